"""Declarations that generated CUDA C needs instead of NVIDIA's headers, which makes NVRTC ten times as fast."""

from __future__ import annotations

from collections.abc import Collection

NUMBERS = """\
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ll)
#define CUDART_NAN __longlong_as_double(0x7fffffffffffffffll)
"""
"""Definitions of <math_constants.h>, for kernels that TVM schedules itself; anatune's own do not use them."""

_ALWAYS = """\
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned short uint16_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned int uint32_t;
typedef unsigned char uint8_t;
"""

_HALF = """\
struct alignas(2) half {
  unsigned short bits;
  half() = default;
  __device__ __forceinline__ explicit half(float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  }
  __device__ __forceinline__ explicit operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};
struct alignas(4) half2 {
  half x, y;
};
struct alignas(8) half4 {
  half x, y, z, w;
};
__device__ __forceinline__ half __float2half_rn(float value) { return half(value); }
__device__ __forceinline__ half2 make_half2(half x, half y) { return {x, y}; }
__device__ __forceinline__ half4 make_half4(half x, half y, half z, half w) { return {x, y, z, w}; }
__device__ __forceinline__ uint __pack_half2(half x, half y) { return (uint)y.bits << 16 | x.bits; }
"""

_BFLOAT16 = """\
struct alignas(2) nv_bfloat16 {
  unsigned short bits;
  nv_bfloat16() = default;
  __device__ __forceinline__ explicit nv_bfloat16(float value) {
    uint word = __float_as_uint(value);
    uint rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    bits = (ushort)((word & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
  }
  __device__ __forceinline__ explicit operator float() const { return __uint_as_float((uint)bits << 16); }
};
struct alignas(4) nv_bfloat162 {
  nv_bfloat16 x, y;
};
struct alignas(8) nv_bfloat164 {
  nv_bfloat16 x, y, z, w;
};
__device__ __forceinline__ nv_bfloat16 __float2bfloat16_rn(float value) { return nv_bfloat16(value); }
__device__ __forceinline__ nv_bfloat162 make_nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
__device__ __forceinline__ nv_bfloat164 make_nv_bfloat164(nv_bfloat16 x, nv_bfloat16 y, nv_bfloat16 z, nv_bfloat16 w) {
  return {x, y, z, w};
}
__device__ __forceinline__ uint __pack_nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) {
  return (uint)y.bits << 16 | x.bits;
}
"""


def make_preamble(dtypes: Collection[str]) -> str:
    """Return the declarations of the types that a kernel with tensors of `dtypes` uses."""
    text = _ALWAYS
    if "float16" in dtypes:
        text += _HALF
    if "bfloat16" in dtypes:
        text += _BFLOAT16
    return text

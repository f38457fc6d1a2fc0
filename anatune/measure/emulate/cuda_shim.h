// CUDA C's own words for a C++ compiler: a kernel compiles as written, and cuda_shim_run.cpp runs it on the CPU.
//
// One fiber a CUDA thread. Threads of a block form warps of 32 lanes; a fiber runs until it waits. __syncthreads waits
// for the block; warp operations wait inside their warp only, so that they cannot stand in for a missing block barrier.
// No standard header is included: parsing them takes longer than compiling a kernel.
//
// For headers that add warp operations (shuffles, votes), see "Warp operations" below:
//   shim_lane()                          lane of the running thread, 0..31
//   shim_warp_deposit(&mine, __LINE__)   every lane gives a pointer; waits for all lanes of the warp; returns the 32
//                                        pointers (null for lanes that do not exist)
//   shim_warp_release(__LINE__)          waits again; call it once the other lanes' data were read or copied, before
//                                        own data change
//   shim_shared_pointer(address)         memory behind a 32-bit address of __cvta_generic_to_shared
//   SHIM_WARP_ALL(type, mine, all)       all three at once: copies every lane's `mine` into `type all[32]`
// Inline PTX arrives as calls: anatune.measure.emulate.cuda_text turns `asm volatile("op.a.b {%0, %1}, [%2], 16;" ...)` into
// `ptx_op_a_b(out0, out1, in2, 16);` (dots and colons become underscores, outputs are lvalues). To support another
// instruction, define that function.
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef __UINTPTR_TYPE__ shim_address;
#ifdef SHIM_CSTDINT  // the kernel includes <cstdint>; else it brings its own, as NVRTC has none
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __UINTPTR_TYPE__ uintptr_t;
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __restrict__  // what other fibers do may not be cached
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9

// ---- The scheduler (cuda_shim_run.cpp) ------------------------------------------------------------------------------
struct shim_uint3 { unsigned x, y, z; };
extern "C" {
extern shim_uint3 threadIdx, blockIdx, blockDim, gridDim;
void shim_block_barrier(int line);
void shim_warp_barrier(unsigned mask, int line);
void** shim_warp_deposit(const void* mine, int line);
void shim_warp_release(int line);
void* shim_shared(int slot, const char* name, size_t bytes);  // -> the block's shared array, alone between guard pages
void* shim_dynamic_shared(const char* name);
unsigned shim_shared_address(const void* pointer);
void* shim_shared_pointer(unsigned address);
void shim_async_copy(unsigned to, const void* from, int bytes, int bytes_read);
void shim_async_commit();
void shim_async_wait(int groups_in_flight);
float shim_atomic_add_float(float* address, float value);
int shim_atomic_add_int(int* address, int value);
unsigned shim_atomic_add_unsigned(unsigned* address, unsigned value);
void shim_misaligned(const void* pointer, int bytes) __attribute__((cold, noreturn));
void shim_trap(const char* message) __attribute__((cold, noreturn));
extern char shim_poison[64];  // what stands where nothing was written
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
}
static constexpr int warpSize = 32;
// a loop of copies: a call of memset would keep the array out of registers
#define SHIM_FILL(array) for (auto& element : array) element = *(decltype(&element))shim_poison;
#define __syncthreads() shim_block_barrier(__LINE__)
#define __trap() shim_trap("the kernel called __trap")
static inline float atomicAdd(float* address, float value) { return shim_atomic_add_float(address, value); }
static inline int atomicAdd(int* address, int value) { return shim_atomic_add_int(address, value); }
static inline unsigned atomicAdd(unsigned* address, unsigned value) { return shim_atomic_add_unsigned(address, value); }

// ---- Warp operations ------------------------------------------------------------------------------------------------
static inline int shim_lane() { return threadIdx.x & 31; }
#define SHIM_WARP_ALL(type, mine, all)                                        \
  do {                                                                        \
    void** shim_lanes = shim_warp_deposit(&(mine), __LINE__);                 \
    for (int shim_i = 0; shim_i < 32; ++shim_i)                               \
      if (shim_lanes[shim_i]) (all)[shim_i] = *(const type*)shim_lanes[shim_i]; \
    shim_warp_release(__LINE__);                                              \
  } while (0)
#define shim_first_argument_(mask, ...) mask
#define __syncwarp(...) shim_warp_barrier(shim_first_argument_(__VA_ARGS__ __VA_OPT__(,) 0xffffffffu), __LINE__)
template <class T> static inline T shim_shuffle(T value, int from) {
  T all[32];
  SHIM_WARP_ALL(T, value, all);
  return from >= 0 && from < 32 ? all[from] : value;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane, int width = 32) {
  return shim_shuffle(v, (shim_lane() & ~(width - 1)) | (lane & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int lanes, int width = 32) {
  int from = shim_lane() ^ lanes;
  return shim_shuffle(v, from < (shim_lane() & ~(width - 1)) + width ? from : -1);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, unsigned by, int width = 32) {
  int from = shim_lane() + by;
  return shim_shuffle(v, from < (shim_lane() & ~(width - 1)) + width ? from : -1);
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned by, int width = 32) {
  int from = shim_lane() - int(by);
  return shim_shuffle(v, from >= (shim_lane() & ~(width - 1)) ? from : -1);
}
static inline unsigned __activemask() { return 0xffffffffu; }

// ---- Vector types ---------------------------------------------------------------------------------------------------
// As in CUDA, an access to a vector must be aligned to its size (at most 16 bytes): the GPU traps otherwise, so do they.
template <int N> static inline void shim_aligned(const void* pointer) {
  if (__builtin_expect((shim_address)pointer & (N - 1), 0)) shim_misaligned(pointer, N);
}
#define SHIM_VECTOR_COPIES(name, bytes)                                                                               \
  name() = default;                                                                                                   \
  name(const name& other) { shim_aligned<bytes>(&other); shim_aligned<bytes>(this); memcpy((void*)this, &other, sizeof(name)); } \
  name& operator=(const name& other) {                                                                                \
    shim_aligned<bytes>(&other); shim_aligned<bytes>(this); memcpy((void*)this, &other, sizeof(name)); return *this; }
#define SHIM_VECTORS(type, prefix)                                                                                    \
  struct prefix##1 { type x; };                                                                                       \
  struct __align__(2 * sizeof(type)) prefix##2 { type x, y; prefix##2(type x, type y) : x(x), y(y) {}                 \
    SHIM_VECTOR_COPIES(prefix##2, (2 * sizeof(type))) };                                                              \
  struct prefix##3 { type x, y, z; };                                                                                 \
  struct __align__(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) prefix##4 { type x, y, z, w;                        \
    prefix##4(type x, type y, type z, type w) : x(x), y(y), z(z), w(w) {}                                             \
    SHIM_VECTOR_COPIES(prefix##4, (4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16)) };                                 \
  static inline prefix##1 make_##prefix##1(type x) { return {x}; }                                                    \
  static inline prefix##2 make_##prefix##2(type x, type y) { return {x, y}; }                                         \
  static inline prefix##3 make_##prefix##3(type x, type y, type z) { return {x, y, z}; }                              \
  static inline prefix##4 make_##prefix##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SHIM_VECTORS(signed char, char)
SHIM_VECTORS(unsigned char, uchar)
SHIM_VECTORS(short, short)
SHIM_VECTORS(unsigned short, ushort)
SHIM_VECTORS(int, int)
SHIM_VECTORS(unsigned, uint)
SHIM_VECTORS(long long, longlong)
SHIM_VECTORS(unsigned long long, ulonglong)
SHIM_VECTORS(float, float)
SHIM_VECTORS(double, double)

// ---- Functions ------------------------------------------------------------------------------------------------------
#define SHIM_MATH1(name) extern "C" float name##f(float); extern "C" double name(double);
#define SHIM_MATH2(name) extern "C" float name##f(float, float); extern "C" double name(double, double);
SHIM_MATH1(exp) SHIM_MATH1(log) SHIM_MATH1(log2) SHIM_MATH1(exp2) SHIM_MATH1(sqrt) SHIM_MATH1(tanh) SHIM_MATH1(tan)
SHIM_MATH1(atan) SHIM_MATH1(erf) SHIM_MATH1(floor) SHIM_MATH1(ceil) SHIM_MATH1(trunc) SHIM_MATH1(round)
SHIM_MATH1(acos) SHIM_MATH1(acosh) SHIM_MATH1(asin) SHIM_MATH1(asinh) SHIM_MATH1(atanh) SHIM_MATH1(cosh)
SHIM_MATH1(erfc) SHIM_MATH1(exp10) SHIM_MATH1(expm1) SHIM_MATH1(log10) SHIM_MATH1(log1p) SHIM_MATH1(sinh)
SHIM_MATH2(atan2) SHIM_MATH2(copysign) SHIM_MATH2(hypot)
SHIM_MATH1(rint) SHIM_MATH1(fabs) SHIM_MATH1(sin) SHIM_MATH1(cos) SHIM_MATH2(pow) SHIM_MATH2(fmod)
#define fmaf __builtin_fmaf
#define fma __builtin_fma
#define fmaxf __builtin_fmaxf
#define fminf __builtin_fminf
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }
#define SHIM_MINMAX(type) \
  static inline type max(type a, type b) { return a > b ? a : b; } \
  static inline type min(type a, type b) { return a < b ? a : b; }
SHIM_MINMAX(int) SHIM_MINMAX(unsigned) SHIM_MINMAX(long long) SHIM_MINMAX(unsigned long long) SHIM_MINMAX(long)
// as on the GPU, a NaN loses against a number
static inline float max(float a, float b) { return a > b || b != b ? a : b; }
static inline float min(float a, float b) { return a < b || b != b ? a : b; }
static inline double max(double a, double b) { return a > b || b != b ? a : b; }
static inline double min(double a, double b) { return a < b || b != b ? a : b; }
template <class T> static inline T __ldg(const T* pointer) { return *pointer; }
template <class To, class From> static inline To shim_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To to;
  __builtin_memcpy((void*)&to, (const void*)&value, sizeof to);
  return to;
}
static inline float __int_as_float(int v) { return shim_bits<float>(v); }
static inline int __float_as_int(float v) { return shim_bits<int>(v); }
static inline float __uint_as_float(unsigned v) { return shim_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return shim_bits<unsigned>(v); }
template <class A, class B> static inline int shim_dp4a(A a, B b, int c) {
  for (int i = 0; i < 32; i += 8) {
    int left = A(-1) < A(0) ? int((signed char)(a >> i)) : int((unsigned char)(a >> i));
    int right = B(-1) < B(0) ? int((signed char)(b >> i)) : int((unsigned char)(b >> i));
    c += left * right;
  }
  return c;
}
static inline int __dp4a(int a, int b, int c) { return shim_dp4a(a, b, c); }
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return shim_dp4a(a, b, int(c)); }

// ---- Shared memory addresses and asynchronous copies ----------------------------------------------------------------
#define __cvta_generic_to_shared(pointer) shim_shared_address(pointer)
template <class T> static inline void shim_store_shared(unsigned address, T value) {
  *(T*)shim_shared_pointer(address) = value;
}
#define SHIM_CP_ASYNC(name)                                                                                           \
  static inline void name(unsigned to, const void* from, int bytes) { shim_async_copy(to, from, bytes, bytes); }      \
  static inline void name(unsigned to, const void* from, int bytes, int read) { shim_async_copy(to, from, bytes, read); }
SHIM_CP_ASYNC(ptx_cp_async_ca_shared_global)
SHIM_CP_ASYNC(ptx_cp_async_cg_shared_global)
SHIM_CP_ASYNC(ptx_cp_async_ca_shared__cta_global)
SHIM_CP_ASYNC(ptx_cp_async_cg_shared__cta_global)
SHIM_CP_ASYNC(ptx_cp_async_ca_shared_global_L2__128B)
SHIM_CP_ASYNC(ptx_cp_async_cg_shared_global_L2__128B)
static inline void ptx_cp_async_commit_group() { shim_async_commit(); }
static inline void ptx_cp_async_wait_group(int groups) { shim_async_wait(groups); }
static inline void ptx_cp_async_wait_all() { shim_async_commit(); shim_async_wait(0); }
static inline void ptx_setp_ne_b32(bool& p, int a, int b) { p = a != b; }
static inline void ptx_setp_eq_u32(bool& p, unsigned a, unsigned b) { p = a == b; }
static inline void ptx_st_shared_u32(unsigned to, unsigned v) { shim_store_shared(to, v); }
static inline void ptx_st_shared_v2_u32(unsigned to, unsigned a, unsigned b) { shim_store_shared(to, uint2(a, b)); }
static inline void ptx_st_shared_v4_u32(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  shim_store_shared(to, uint4(a, b, c, d));
}
#define SHIM_LOADS(name)                                                                                              \
  static inline void name##_u8(unsigned& a, const void* p) { a = *(const unsigned char*)p; }                          \
  static inline void name##_u16(unsigned& a, const void* p) { shim_aligned<2>(p); a = *(const unsigned short*)p; }    \
  static inline void name##_u32(unsigned& a, const void* p) { shim_aligned<4>(p); a = *(const unsigned*)p; }          \
  static inline void name##_v2_u32(unsigned& a, unsigned& b, const void* p) {                                         \
    uint2 v = *(const uint2*)p; a = v.x; b = v.y; }                                                                   \
  static inline void name##_v4_u32(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* p) {               \
    uint4 v = *(const uint4*)p; a = v.x; b = v.y; c = v.z; d = v.w; }
SHIM_LOADS(ptx_ld_global)
SHIM_LOADS(ptx_ld_global_nc)
static inline void ptx_dp4a_u32_s32(int& d, unsigned a, int b, int c) { d = shim_dp4a(a, b, c); }
static inline void ptx_dp4a_s32_u32(int& d, int a, unsigned b, int c) { d = shim_dp4a(a, b, c); }
#define ptx_bar_sync(...) shim_block_barrier(__LINE__)

// ---- 16-bit floating point ------------------------------------------------------------------------------------------
static inline float shim_bfloat16_to_float(unsigned short bits) { return shim_bits<float>(unsigned(bits) << 16); }
static inline unsigned short shim_float_to_bfloat16(float value) {
  unsigned bits = shim_bits<unsigned>(value);
  if (value != value) return (unsigned short)(bits >> 16 | 0x40);
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}
#ifdef __FLT16_MAX__
static inline float shim_half_to_float(unsigned short bits) { return float(shim_bits<_Float16>(bits)); }
static inline unsigned short shim_float_to_half(float value) { return shim_bits<unsigned short>(_Float16(value)); }
#else
static inline float shim_half_to_float(unsigned short bits) {
  unsigned sign = unsigned(bits & 0x8000) << 16, rest = bits & 0x7fff;
  if (rest >= 0x7c00) return shim_bits<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return shim_bits<float>(sign | shim_bits<unsigned>(shim_bits<float>(rest << 13) * 0x1p112f));
}
static inline unsigned short shim_float_to_half(float value) {
  unsigned bits = shim_bits<unsigned>(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return (unsigned short)(sign | 0x7e00);
  if (rest >= 0x477ff000) return (unsigned short)(sign | 0x7c00);  // 65520 and more round to infinity
  if (rest < 0x38800000)  // subnormal: an addition that leaves its last place at 2^-24 rounds
    return (unsigned short)(sign | (shim_bits<unsigned>(shim_bits<float>(rest) + 0.5f) - 0x3f000000));
  return (unsigned short)(sign | (rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13);
}
#endif
#define SHIM_HALF(name, to_float, from_float)                                                                         \
  struct name {                                                                                                       \
    unsigned short bits;                                                                                                    \
    name() = default;                                                                                                 \
    name(float v) : bits(from_float(v)) {}                                                                            \
    name(double v) : bits(from_float(float(v))) {}                                                                    \
    name(int v) : bits(from_float(float(v))) {}                                                                       \
    name(unsigned v) : bits(from_float(float(v))) {}                                                                  \
    operator float() const { return to_float(bits); }                                                                 \
    name& operator+=(name o) { return *this = float(*this) + float(o); }                                              \
    name& operator-=(name o) { return *this = float(*this) - float(o); }                                              \
    name& operator*=(name o) { return *this = float(*this) * float(o); }                                              \
    name& operator/=(name o) { return *this = float(*this) / float(o); }                                              \
  };                                                                                                                  \
  static inline name operator+(name a, name b) { return float(a) + float(b); }                                        \
  static inline name operator-(name a, name b) { return float(a) - float(b); }                                        \
  static inline name operator*(name a, name b) { return float(a) * float(b); }                                        \
  static inline name operator/(name a, name b) { return float(a) / float(b); }                                        \
  static inline name operator-(name a) { return -float(a); }                                                          \
  static inline bool operator<(name a, name b) { return float(a) < float(b); }                                        \
  static inline bool operator>(name a, name b) { return float(a) > float(b); }                                        \
  static inline bool operator<=(name a, name b) { return float(a) <= float(b); }                                      \
  static inline bool operator>=(name a, name b) { return float(a) >= float(b); }                                      \
  static inline bool operator==(name a, name b) { return float(a) == float(b); }                                      \
  static inline bool operator!=(name a, name b) { return float(a) != float(b); }                                      \
  static inline bool __hgt(name a, name b) { return a > b; }                                                          \
  static inline bool __hlt(name a, name b) { return a < b; }                                                          \
  static inline name __hadd(name a, name b) { return a + b; }                                                         \
  static inline name __hsub(name a, name b) { return a - b; }                                                         \
  static inline name __hmul(name a, name b) { return a * b; }                                                         \
  static inline name __hfma(name a, name b, name c) { return __builtin_fmaf(float(a), float(b), float(c)); }          \
  static inline name __hmax(name a, name b) { return max(float(a), float(b)); }                                       \
  static inline name __hmin(name a, name b) { return min(float(a), float(b)); }
#ifdef SHIM_CUDA_FP16  // <cuda_fp16.h>
SHIM_HALF(half, shim_half_to_float, shim_float_to_half)
typedef half __half;
struct __align__(4) half2 { half x, y; half2(half x, half y) : x(x), y(y) {} SHIM_VECTOR_COPIES(half2, 4) };
typedef half2 __half2;
static inline half2 make_half2(half x, half y) { return half2(x, y); }
static inline half2 __halves2half2(half x, half y) { return half2(x, y); }
static inline half __float2half(float v) { return half(v); }
static inline half __float2half_rn(float v) { return half(v); }
static inline float __half2float(half v) { return float(v); }
static inline half __ushort_as_half(unsigned short v) { return shim_bits<half>(v); }
static inline unsigned short __half_as_ushort(half v) { return v.bits; }
#endif
#ifdef SHIM_CUDA_BF16  // <cuda_bf16.h>
SHIM_HALF(nv_bfloat16, shim_bfloat16_to_float, shim_float_to_bfloat16)
typedef nv_bfloat16 __nv_bfloat16;
struct __align__(4) nv_bfloat162 {
  nv_bfloat16 x, y;
  nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) : x(x), y(y) {}
  SHIM_VECTOR_COPIES(nv_bfloat162, 4)
};
typedef nv_bfloat162 __nv_bfloat162;
static inline nv_bfloat16 __float2bfloat16(float v) { return nv_bfloat16(v); }
static inline nv_bfloat16 __float2bfloat16_rn(float v) { return nv_bfloat16(v); }
static inline float __bfloat162float(nv_bfloat16 v) { return float(v); }
static inline nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return shim_bits<nv_bfloat16>(v); }
static inline unsigned short __bfloat16_as_ushort(nv_bfloat16 v) { return v.bits; }
#endif
static inline void ptx_cvt_rn_f16_f32(unsigned short& d, float a) { d = shim_float_to_half(a); }
static inline void ptx_cvt_f32_f16(float& d, unsigned short a) { d = shim_half_to_float(a); }
static inline void ptx_cvt_rn_bf16_f32(unsigned short& d, float a) { d = shim_float_to_bfloat16(a); }

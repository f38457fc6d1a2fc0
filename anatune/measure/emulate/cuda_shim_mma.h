// Tensor-core instructions for cuda_shim.h: what a warp does together, lane by lane, from the PTX ISA's fragment tables.
//
// Every lane waits for the others, reads what it needs of their registers, and waits again before any register changes.
// Products are exact in float32 (bfloat16, tf32, float16 have at most 11 significant bits); sums are rounded to float32
// after each product, which is one of the orders a GPU may take.
#pragma once

// ---- ldmatrix: 8 x 8 matrices of 16-bit elements. Lane 8 q + r gives the address of row r of matrix q; lane 4 g + t
// ---- receives elements 2 t, 2 t + 1 of row g (transposed: rows 2 t, 2 t + 1 of column g).
template <int N> static inline void shim_ldmatrix(unsigned (&d)[N], unsigned address, bool transposed) {
  unsigned all[32];
  unsigned row = address;
  if (address % 16) shim_misaligned(shim_shared_pointer(address), 16);
  SHIM_WARP_ALL(unsigned, row, all);
  int g = shim_lane() / 4, t = shim_lane() % 4;
  for (int q = 0; q < N; ++q) {
    unsigned short low, high;
    if (transposed) {
      low = ((const unsigned short*)shim_shared_pointer(all[8 * q + 2 * t]))[g];
      high = ((const unsigned short*)shim_shared_pointer(all[8 * q + 2 * t + 1]))[g];
    } else {
      const unsigned short* elements = (const unsigned short*)shim_shared_pointer(all[8 * q + g]);
      low = elements[2 * t];
      high = elements[2 * t + 1];
    }
    d[q] = unsigned(high) << 16 | low;
  }
}
#define SHIM_LDMATRIX(flip, transposed)                                                                               \
  static inline void ptx_ldmatrix_sync_aligned_m8n8_x1##flip##_shared_b16(unsigned& a, unsigned address) {            \
    unsigned d[1];                                                                                                    \
    shim_ldmatrix(d, address, transposed);                                                                            \
    a = d[0];                                                                                                         \
  }                                                                                                                   \
  static inline void ptx_ldmatrix_sync_aligned_m8n8_x2##flip##_shared_b16(unsigned& a, unsigned& b, unsigned address) { \
    unsigned d[2];                                                                                                    \
    shim_ldmatrix(d, address, transposed);                                                                            \
    a = d[0], b = d[1];                                                                                               \
  }                                                                                                                   \
  static inline void ptx_ldmatrix_sync_aligned_m8n8_x4##flip##_shared_b16(unsigned& a, unsigned& b, unsigned& c,      \
                                                                          unsigned& e, unsigned address) {            \
    unsigned d[4];                                                                                                    \
    shim_ldmatrix(d, address, transposed);                                                                            \
    a = d[0], b = d[1], c = d[2], e = d[3];                                                                           \
  }
SHIM_LDMATRIX(, false)
SHIM_LDMATRIX(_trans, true)

// ---- mma.sync: d (16 x 8, float32) = a (16 x 8 L) b (8 L x 8) + c, L elements in a register --------------------------
// a: registers are rows g, g + 8 (fastest), then k low, k high; b: k low, k high; lane 4 g + t holds columns (rows of b)
// L t .. L t + L - 1 of a half of 4 L. c, d: rows g, g, g + 8, g + 8; columns 2 t, 2 t + 1, 2 t, 2 t + 1.
struct shim_mma_registers { unsigned a[4], b[2]; };
template <int L, class Element>
static inline void shim_mma(float (&d)[4], const shim_mma_registers& mine, const float (&c)[4], Element element) {
  shim_mma_registers all[32];
  shim_mma_registers registers = mine;
  SHIM_WARP_ALL(shim_mma_registers, registers, all);
  int g = shim_lane() / 4, t = shim_lane() % 4;
  for (int r = 0; r < 4; ++r) {
    int column = 2 * t + r % 2;
    float sum = c[r];
    for (int half = 0; half < 2; ++half)
      for (int k = 0; k < 4 * L; ++k) {
        unsigned a = all[4 * g + k / L].a[2 * half + r / 2], b = all[4 * column + k / L].b[half];
        sum += element(a, k % L) * element(b, k % L);
      }
    d[r] = sum;
  }
}
static inline float shim_element_f16(unsigned word, int at) {
  return shim_half_to_float((unsigned short)(word >> 16 * at));
}
static inline float shim_element_bf16(unsigned word, int at) {
  return shim_bfloat16_to_float((unsigned short)(word >> 16 * at));
}
static inline float shim_element_tf32(unsigned word, int) {  // the hardware ignores the last 13 bits
  return shim_bits<float>(word & 0xffffe000u);
}
#define SHIM_MMA(shape, kind, L)                                                                                      \
  static inline void ptx_mma_sync_aligned_##shape##_row_col_f32_##kind##_##kind##_f32(                                \
      float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,    \
      unsigned b1, float c0, float c1, float c2, float c3) {                                                          \
    float d[4], c[4] = {c0, c1, c2, c3};                                                                              \
    shim_mma<L>(d, shim_mma_registers{{a0, a1, a2, a3}, {b0, b1}}, c, shim_element_##kind);                           \
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                                                                       \
  }
SHIM_MMA(m16n8k16, f16, 2)
SHIM_MMA(m16n8k16, bf16, 2)
SHIM_MMA(m16n8k8, tf32, 1)

// ---- Conversions ----------------------------------------------------------------------------------------------------
static inline void ptx_cvt_rna_tf32_f32(unsigned& d, float a) {  // to nearest, ties away from zero
  unsigned bits = shim_bits<unsigned>(a);
  bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  d = finite ? (bits + 0x1000u) & 0xffffe000u : bits;
}
static inline void ptx_cvt_rn_f16x2_f32(unsigned& d, float high, float low) {
  d = unsigned(shim_float_to_half(high)) << 16 | shim_float_to_half(low);
}
static inline void ptx_cvt_rn_bf16x2_f32(unsigned& d, float high, float low) {
  d = unsigned(shim_float_to_bfloat16(high)) << 16 | shim_float_to_bfloat16(low);
}

/* Two probes of one core's speed just now: FMAs in registers, and a GEMM tile whose B panels come from the L2 cache.
   Built with -DLANES=16 (AVX-512), 8 (AVX2) or 4 (NEON): floats of a vector register. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef float vec __attribute__((vector_size(4 * LANES)));
#if defined(__AVX512F__)
#define KEEP(x) __asm__ volatile("" : "+v"(x))
#elif defined(__x86_64__)
#define KEEP(x) __asm__ volatile("" : "+x"(x))
#else
#define KEEP(x) __asm__ volatile("" : "+w"(x))
#endif

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* CHAINS independent chains hide the latency of an FMA (4 or 5 cycles, 2 a cycle at most). Named variables: gcc keeps
   an array in memory. */
#define CHAINS 12
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#define DECLARE(i) vec x##i = (vec){0};
#define STEP(i) KEEP(a); x##i += a * b; /* a kept: else a * b is computed once, and the chains are additions */
#define USE(i) KEEP(x##i);
__attribute__((noinline)) static void fma_chains(long iterations) {
  vec a = (vec){0}, b = (vec){0};
  EACH(DECLARE)
  KEEP(b);
  for (long n = 0; n < iterations; n++) {
    EACH(STEP)
  }
  EACH(USE)
}

double fma_probe(long iterations) { /* FLOP/s of one thread */
  fma_chains(iterations / 10);
  double start = now();
  fma_chains(iterations);
  return 2.0 * LANES * CHAINS * iterations / (now() - start);
}

/* A ROWS x 2 LANES tile (fits 32 or 16 registers), DEPTH deep; PANELS panels of B, a quarter MiB: in L2, not in L1. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define ROWS 14
#else
#define ROWS 6
#endif
#define DEPTH 256
#define PANELS (64 * 1024 / (DEPTH * 2 * LANES))
static void tile(const float *a, const float *b, float *c) {
  vec x[ROWS][2];
  for (int i = 0; i < ROWS; i++) x[i][0] = x[i][1] = (vec){0};
  for (int k = 0; k < DEPTH; k++) {
    vec b0 = *(const vec *)(b + k * 2 * LANES), b1 = *(const vec *)(b + k * 2 * LANES + LANES);
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; i++) {
      float s = a[i * DEPTH + k];
      x[i][0] += s * b0;
      x[i][1] += s * b1;
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < ROWS; i++) {
    *(vec *)(c + i * 2 * LANES) = x[i][0];
    *(vec *)(c + i * 2 * LANES + LANES) = x[i][1];
  }
}

static __thread float *memory;
double gemm_probe(int repeats) { /* FLOP/s of one thread */
  size_t size_a = ROWS * DEPTH, size_b = (size_t)PANELS * DEPTH * 2 * LANES, size_c = ROWS * 2 * LANES;
  if (!memory) {
    size_t bytes = ((size_a + size_b + size_c) * 4 + 4095) / 4096 * 4096;
    memory = aligned_alloc(4096, bytes);
    memset(memory, 0, bytes);
  }
  float *b = memory, *a = b + size_b, *c = a + size_a;
  for (int p = 0; p < PANELS; p++) tile(a, b + (size_t)p * DEPTH * 2 * LANES, c);
  double start = now();
  for (int i = 0; i < repeats; i++)
    for (int p = 0; p < PANELS; p++) tile(a, b + (size_t)p * DEPTH * 2 * LANES, c);
  return 2.0 * ROWS * 2 * LANES * DEPTH * PANELS * repeats / (now() - start);
}

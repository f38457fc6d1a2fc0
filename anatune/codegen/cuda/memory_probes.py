"""Probes of a GPU's memories, as small CUDA kernels: bandwidths of shared memory, L2 and DRAM, and latencies.

Parameters are those of `codegen.cuda.probes`.
"""

from __future__ import annotations

from anatune.codegen.cuda.probes import START, STOP, GpuProbe, ProbeCode, make_probe

LINE_BYTES = 128
"""Distance between two elements of a chain in global memory, bytes: a cache line."""
CHASE_UNROLL = 32
"""Number of dependent loads in a round."""
LOADS = 8
"""Number of independent 16-byte loads of a thread in a round of `read_global`; half as many copies."""
SHARED_WORDS = 12288
"""Number of words of shared memory that `read_shared` reads: the 48 KiB that every device has."""
_SHIFTED_WORDS = 4096
_CHAINED_WORDS = 1024
_VECTORS = {
    4: ("unsigned", "sum ^= v;"),
    8: ("uint2", "sum ^= v.x ^ v.y;"),
    16: ("uint4", "sum ^= v.x ^ v.y; sum ^= v.z ^ v.w;"),
}


def read_shared(arch: str, width: int, warps: int, blocks: int) -> GpuProbe:
    """Return a probe that loads `width` bytes (4, 8, 16) from shared memory, without bank conflicts.

    Load i of round r of a thread is at word ``(i * T + thread) * width / 4 + (r * step) % 4096``; a round has as many
    loads as fit. input: SHARED_WORDS words, then the step in words, a multiple of 4. result: (blocks, T) words, the
    exclusive or of everything that was read.
    """
    threads = 32 * warps
    words = threads * width // 4
    loads = (SHARED_WORDS - _SHIFTED_WORDS) // words
    vector, add = _VECTORS[width]
    body = f"""\
__shared__ alignas(64) unsigned memory[{SHARED_WORDS}];
  int rounds = rounds_ptr[0];
  for (int i = threadIdx.x; i < {SHARED_WORDS}; i += {threads}) memory[i] = input_ptr[i];
  unsigned step = input_ptr[{SHARED_WORDS}], shift = 0, sum = 0;
  const unsigned* own = memory + threadIdx.x * {width // 4};
  {START}
#pragma unroll 4
  for (int round = 0; round < rounds; ++round) {{
#pragma unroll
    for (int i = 0; i < {loads}; ++i) {{
      {vector} v = *(const {vector}*)(own + shift + i * {words});
      {add}
    }}
    shift = (shift + step) & {_SHIFTED_WORDS - 1};
  }}
  {STOP}
  result_ptr[blockIdx.x * {threads} + threadIdx.x] = sum;"""
    return make_probe(
        "read_shared",
        f"read_shared_{width}_{warps}",
        arch,
        ProbeCode(body, shared_bytes=4 * SHARED_WORDS),
        launch=(blocks, threads),
        words=(SHARED_WORDS + 1, blocks * threads),
        work=float(threads * loads * width),
        facts={"width": width, "loads": loads, "shifted_words": _SHIFTED_WORDS},
    )


_GLOBAL_LOAD = """\
static __device__ __forceinline__ uint4 load(const uint4* from) {
#ifdef __CUDACC__
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
#else
  return *from;
#endif
}
"""


def read_global(arch: str, threads: int, blocks: int, num_bytes: int) -> GpuProbe:
    """Return a probe that loads 16 bytes at a time past L1, over `num_bytes` (a power of two) of global memory.

    Load i of a thread of the grid is at vector ``(thread + i * T * blocks) % (num_bytes / 16)``; a round has LOADS of
    them. input: num_bytes. result: (blocks, T) words, the exclusive or of everything that was read.
    """
    body = f"""\
int rounds = rounds_ptr[0];
  const uint4* vectors = (const uint4*)input_ptr;
  unsigned sum = 0, at = blockIdx.x * {threads}u + threadIdx.x;
  {START}
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {{
    uint4 v[{LOADS}];
#pragma unroll
    for (int i = 0; i < {LOADS}; ++i) v[i] = load(vectors + ((at + i * {threads * blocks}u) & {num_bytes // 16 - 1}u));
    at += {LOADS * threads * blocks}u;
#pragma unroll
    for (int i = 0; i < {LOADS}; ++i) {{ sum ^= v[i].x ^ v[i].y; sum ^= v[i].z ^ v[i].w; }}
  }}
  {STOP}
  result_ptr[blockIdx.x * {threads} + threadIdx.x] = sum;"""
    return make_probe(
        "read_global",
        "read_global",
        arch,
        ProbeCode(body, helpers=_GLOBAL_LOAD),
        launch=(blocks, threads),
        words=(num_bytes // 4, blocks * threads),
        work=float(threads * LOADS * 16),
        facts={"num_bytes": num_bytes, "loads": LOADS},
    )


def copy(arch: str, threads: int, blocks: int, num_bytes: int) -> GpuProbe:
    """Return a probe that copies `num_bytes` (a power of two) in vectors of 16 bytes, LOADS / 2 of a thread in a round.

    input and result: num_bytes.
    """
    loads = LOADS // 2
    body = f"""\
int rounds = rounds_ptr[0];
  const uint4* from = (const uint4*)input_ptr;
  uint4* to = (uint4*)result_ptr;
  unsigned at = blockIdx.x * {threads}u + threadIdx.x;
  {START}
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {{
    uint4 v[{loads}];
#pragma unroll
    for (int i = 0; i < {loads}; ++i) v[i] = load(from + ((at + i * {threads * blocks}u) & {num_bytes // 16 - 1}u));
#pragma unroll
    for (int i = 0; i < {loads}; ++i) to[(at + i * {threads * blocks}u) & {num_bytes // 16 - 1}u] = v[i];
    at += {loads * threads * blocks}u;
  }}
  {STOP}"""
    return make_probe(
        "copy",
        "copy",
        arch,
        ProbeCode(body, helpers=_GLOBAL_LOAD),
        launch=(blocks, threads),
        words=(num_bytes // 4, num_bytes // 4),
        work=float(threads * loads * 32),
        facts={"num_bytes": num_bytes, "loads": loads},
    )


def link(arch: str, lines: int) -> GpuProbe:
    """Return a kernel that turns byte offsets into addresses, a word a line: ``result[i] = &result + input[i]``.

    input and result: (lines, LINE_BYTES / 8) words of 64 bits, of which the first of each line counts.
    """
    words = LINE_BYTES // 8
    body = f"""\
for (int i = threadIdx.x; i < {lines}; i += 256)
    result_ptr[{words} * i] = (unsigned long long)result_ptr + input_ptr[{words} * i];
  {START}
  {STOP}"""
    return make_probe(
        "link",
        f"link_{lines}",
        arch,
        ProbeCode(body, word="unsigned long long"),
        launch=(1, 256),
        words=(lines * words, lines * words),
        facts={"lines": lines},
    )


def chase_global(arch: str, level: str, lines: int) -> GpuProbe:
    """Return a probe with one thread that follows the chain of `link`; level "l1": all caches, "l2": from L2 on.

    input: the chain, the result of `link` (on a CPU: its input). result: (1,) word of 64 bits, the offset of the end.
    rounds: (rounds of CHASE_UNROLL timed loads, single loads before them, 0, 0).
    """
    operator = {"l1": "", "l2": ".cg"}[level]
    helpers = f"""\
static __device__ __forceinline__ unsigned long long follow(unsigned long long from, unsigned long long base) {{
#ifdef __CUDACC__
  unsigned long long next;
  asm volatile("ld.global{operator}.u64 %0, [%1];" : "=l"(next) : "l"(from));
  return next;
#else
  return base + *(const unsigned long long*)from;
#endif
}}
"""
    body = f"""\
int rounds = rounds_ptr[0], before = rounds_ptr[1];
  unsigned long long base = (unsigned long long)input_ptr, at = base;
  if (threadIdx.x == 0) {{
#pragma unroll 1
    for (int i = 0; i < before; ++i) at = follow(at, base);
    // the first cycle waits for the last of these loads
    long long none = (long long)(at == 0ull);
    long long first_ns = now_ns() + none, first_cycle = now_cycles() + none;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
#pragma unroll
      for (int i = 0; i < {CHASE_UNROLL}; ++i) at = follow(at, base);
    }}
    result_ptr[0] = at - base;
    KEEP_TIME(0, now_cycles() - first_cycle);
    KEEP_TIME(1, now_ns() - first_ns);
  }}"""
    return make_probe(
        "chase_global",
        f"chase_{level}",
        arch,
        ProbeCode(body, helpers=helpers, word="unsigned long long"),
        launch=(1, 32),
        words=(lines * LINE_BYTES // 8, 1),
        work=float(CHASE_UNROLL),
        facts={"level": level, "lines": lines},
    )


def chase_shared(arch: str) -> GpuProbe:
    """Return a probe with one thread that follows a chain through 4 KiB of shared memory.

    input: for each of 1024 words the number of the next word. result: (1,) the number of the last word.
    """
    body = f"""\
__shared__ alignas(64) unsigned memory[{_CHAINED_WORDS}];
  int rounds = rounds_ptr[0];
#ifdef __CUDACC__
  unsigned base = (unsigned)__cvta_generic_to_shared(memory);
#define FOLLOW asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at));
#else
  unsigned base = 0;
#define FOLLOW at = memory[at / 4];
#endif
  for (int i = threadIdx.x; i < {_CHAINED_WORDS}; i += 32) memory[i] = base + 4 * input_ptr[i];
  {START}
  if (threadIdx.x == 0) {{
    unsigned at = base;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
#pragma unroll
      for (int i = 0; i < {CHASE_UNROLL}; ++i) {{ FOLLOW }}
    }}
    result_ptr[0] = (at - base) / 4;
  }}
  {STOP}"""
    return make_probe(
        "chase_shared",
        "chase_shared",
        arch,
        ProbeCode(body, shared_bytes=4 * _CHAINED_WORDS),
        launch=(1, 32),
        words=(_CHAINED_WORDS, 1),
        work=float(CHASE_UNROLL),
        facts={"words": _CHAINED_WORDS},
    )

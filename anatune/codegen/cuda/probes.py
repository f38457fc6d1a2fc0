"""Small CUDA kernels that measure a GPU: multiply-adds, matrix units, launches (memories: `memory_probes`).

All have the same parameters: ``input_ptr``, ``rounds_ptr`` (32-bit integers, so that no compiler knows how often the
loop runs), ``result_ptr`` (proves that the work was done; `measure.cuda.calibration.probe_checks` knows what must stand
there) and ``times_ptr`` (cycles and nanoseconds of each block). Where no GPU compiler reads them, the few lines of PTX
have equivalents in C++, so that they run on a CPU as well; only the matrix units' fragments have none.

Notation: a round is the body of a probe's loop, which is unrolled completely. T: threads of a block.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from anatune.emit.buffer import Buffer
from anatune.templates.gpu.kernel import CudaKernel


class _Arithmetic(NamedTuple):
    """One step of a chain: x -> x * factor + offset. `lanes`: multiply-adds of an instruction and thread."""

    word: str
    device: str
    host: str
    lanes: int
    least_capability: int


ARITHMETIC = {
    "float32": _Arithmetic("float", "x = fmaf(x, factor, offset);", "x = fmaf(x, factor, offset);", 1, 30),
    "float16": _Arithmetic(
        "unsigned", 'asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(x) : "r"(factor), "r"(offset));', "", 2, 53
    ),
    "int8": _Arithmetic(
        "unsigned", 'asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(x) : "r"(factor), "r"(offset));', "", 4, 61
    ),
}
"""By dtype of the operands: float16 in pairs; int8 in fours, the sum in 32 bits."""


class _Matrix(NamedTuple):
    """``mma.sync`` of 16 x 8 x `depth`: registers of 32 bits of the two operands' fragments."""

    instruction: str
    depth: int
    a_words: int
    b_words: int


MATRIX = {
    "float16": _Matrix("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, 4, 2),
    "bfloat16": _Matrix("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, 4, 2),
    "tfloat32": _Matrix("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 8, 4, 2),
}
"""Sums in float32. Source: [PTX-ISA] "Matrix multiply-accumulate"."""
MATRIX_CAPABILITY = 80
"""First architecture that has all of them."""

_PREAMBLE = """\
#ifdef __CUDACC__
static __device__ __forceinline__ long long now_ns() {
  long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
static __device__ __forceinline__ long long now_cycles() { return clock64(); }
#define KEEP_TIME(place, value) times_ptr[place] = value
#else
static long long now_ns() { return 0; }
static long long now_cycles() { return 0; }
#define KEEP_TIME(place, value)
#endif
"""
START = "__syncthreads();\n  long long first_ns = now_ns(), first_cycle = now_cycles();"
"""Beginning of what is timed; the variables are declared there."""
STOP = """\
__syncthreads();
  if (threadIdx.x == 0) {
    KEEP_TIME(2 * blockIdx.x, now_cycles() - first_cycle);
    KEEP_TIME(2 * blockIdx.x + 1, now_ns() - first_ns);
  }"""
"""End of what is timed."""


class GpuProbe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One probe. Immutable.

    Attributes
    ----------
    kernel : CudaKernel
        Its parameters say how large the buffers are.
    kind : str
        Name of the function that made it.
    work : float
        Of one block and round: multiply-adds, bytes (a copy: read and written), dependent loads.
    facts : dict of str to int or str
        The arguments it was made with.
    """

    kernel: CudaKernel
    kind: str
    work: float = 0.0
    facts: dict[str, int | str] = {}


class ProbeCode(NamedTuple):
    """CUDA C of a probe.

    Attributes
    ----------
    body : str
        May use ``input_ptr``, ``rounds_ptr``, ``result_ptr``, ``times_ptr``.
    helpers : str
        What stands before the kernel.
    word : str
        Type of the elements of input and result.
    shared_bytes : int
        Shared memory that the body declares.
    """

    body: str
    helpers: str = ""
    word: str = "unsigned"
    shared_bytes: int = 0


def make_probe(
    kind: str,
    name: str,
    arch: str,
    code: ProbeCode,
    *,
    launch: tuple[int, int],
    words: tuple[int, int],
    work: float = 0.0,
    facts: dict[str, int | str] | None = None,
) -> GpuProbe:
    """Put one probe together.

    Parameters
    ----------
    launch : tuple of int
        Blocks of the grid, threads of a block.
    words : tuple of int
        Of the input and of the result.
    """
    (blocks, threads), word = launch, code.word
    source = (
        f"{_PREAMBLE}{code.helpers}"
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}(const {word}* __restrict__ input_ptr, '
        f"const int* __restrict__ rounds_ptr, {word}* __restrict__ result_ptr, long long* __restrict__ times_ptr) {{\n"
        f"  {code.body}\n}}\n"
    )
    dtype = {"unsigned": "uint32", "float": "float32", "uint4": "uint32", "unsigned long long": "uint64"}[word]
    kernel = CudaKernel(
        schedule_key="",
        name=name,
        source=source,
        arch=arch,
        parameters=(
            Buffer("input", dtype, (words[0],)),
            Buffer("rounds", "int32", (4,)),
            Buffer("result", dtype, (words[1],)),
            Buffer("times", "int64", (2 * blocks,)),
        ),
        result="result",
        grid=blocks,
        block=threads,
        shared_bytes=code.shared_bytes,
    )
    return GpuProbe(kernel, kind, work, facts or {})


def multiply_add(arch: str, dtype: str, chains: int, warps: int, blocks: int) -> GpuProbe:
    """Return chains of multiply-adds between registers: `chains` independent ones in every thread.

    input: factor, offset, then the chains' first values, (chains, T). result: (blocks, chains, T). rounds: (rounds,).
    """
    arithmetic, threads = ARITHMETIC[dtype], 32 * warps
    steps = max(16, 128 // chains)
    numbers = range(chains)
    step = f"#ifdef __CUDACC__\n#define STEP(x) {arithmetic.device}\n#else\n#define STEP(x) {arithmetic.host}\n#endif\n"
    starts = "\n  ".join(f"{arithmetic.word} x{i} = input_ptr[2 + {i} * {threads} + threadIdx.x];" for i in numbers)
    ends = "\n  ".join(f"result_ptr[(blockIdx.x * {chains} + {i}) * {threads} + threadIdx.x] = x{i};" for i in numbers)
    body = f"""\
int rounds = rounds_ptr[0];
  {arithmetic.word} factor = input_ptr[0], offset = input_ptr[1];
  {starts}
  {START}
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {{
#pragma unroll
    for (int step = 0; step < {steps}; ++step) {{
      {" ".join(f"STEP(x{i})" for i in numbers)}
    }}
  }}
  {STOP}
  {ends}"""
    return make_probe(
        "multiply_add",
        f"multiply_add_{dtype}_{chains}_{warps}",
        arch,
        ProbeCode(body, helpers=step, word=arithmetic.word),
        launch=(blocks, threads),
        words=(2 + chains * threads, blocks * chains * threads),
        work=float(threads * chains * steps * arithmetic.lanes),
        facts={"dtype": dtype, "chains": chains, "steps": steps},
    )


def matrix_unit(arch: str, dtype: str, chains: int, warps: int, blocks: int) -> GpuProbe:
    """Return chains of ``mma.sync`` between registers, `chains` independent accumulators in a warp; sm_80 and later.

    input: fragments of the operands, (a_words + b_words, T) words. result: (blocks, chains, 4, T) float32.
    """
    matrix, threads = MATRIX[dtype], 32 * warps
    steps = max(4, 32 // chains)
    a, b = [f"a{i}" for i in range(matrix.a_words)], [f"b{i}" for i in range(matrix.b_words)]
    loads = "\n  ".join(
        f"unsigned {name} = input_ptr[{i} * {threads} + threadIdx.x];" for i, name in enumerate((*a, *b))
    )
    places = [f"%{4 + i}" for i in range(len(a) + len(b))]
    operands = f"{{{', '.join(places[: len(a)])}}}, {{{', '.join(places[len(a) :])}}}"
    registers = ", ".join(f'"r"({name})' for name in (*a, *b))
    helpers = f"""\
#define STEP(c) asm("{matrix.instruction} {{%0, %1, %2, %3}}, {operands}, {{%0, %1, %2, %3}};" \\
  : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : {registers});
"""
    body = f"""\
int rounds = rounds_ptr[0];
  {loads}
  float sums[{chains}][4];
#pragma unroll
  for (int i = 0; i < {4 * chains}; ++i) sums[i / 4][i % 4] = 0.0f;
  {START}
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {{
#pragma unroll
    for (int step = 0; step < {steps * chains}; ++step) {{ STEP(sums[step % {chains}]) }}
  }}
  {STOP}
#pragma unroll
  for (int i = 0; i < {4 * chains}; ++i)
    result_ptr[(blockIdx.x * {4 * chains} + i) * {threads} + threadIdx.x] = __float_as_uint(sums[i / 4][i % 4]);"""
    return make_probe(
        "matrix_unit",
        f"matrix_unit_{dtype}_{chains}_{warps}",
        arch,
        ProbeCode(body, helpers=helpers),
        launch=(blocks, threads),
        words=((len(a) + len(b)) * threads, blocks * chains * 4 * threads),
        work=float(warps * chains * steps * 16 * 8 * matrix.depth),
        facts={"dtype": dtype, "chains": chains, "steps": steps, "depth": matrix.depth},
    )


def spin(arch: str) -> GpuProbe:
    """Return one thread that waits; rounds: (microseconds, 0, 0, 0). Launches behind it queue up."""
    body = """\
long long first_ns = now_ns(), ns = 1000ll * rounds_ptr[0];
  while (now_ns() - first_ns < ns && ns > 0) {
#ifndef __CUDACC__
    break;
#endif
  }
  KEEP_TIME(1, now_ns() - first_ns);"""
    return make_probe("spin", "spin", arch, ProbeCode(body), launch=(1, 1), words=(1, 1))


def empty(arch: str, threads: int, blocks: int) -> GpuProbe:
    """Return a kernel that does nothing."""
    return make_probe("empty", "empty", arch, ProbeCode(""), launch=(blocks, threads), words=(1, 1))

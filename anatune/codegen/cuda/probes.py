"""Probes of a GPU, as small CUDA kernels: multiply-adds, matrix units and launches; see also `memory_probes`.

All have the same parameters: ``input_ptr``; ``rounds_ptr`` (32-bit integers, so that no compiler knows the number of
iterations); ``result_ptr`` (proves that the work was done; `measure.cuda.calibration.probe_checks` knows the expected
values); and ``times_ptr`` (cycles and nanoseconds of each block). The few lines of PTX have equivalents in C++ so that
the kernels also run on a CPU; only the fragments of matrix units have none.

Notation: a round is the body of a probe's loop, which is unrolled completely. T: number of threads of a block.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from anatune.emit.buffer import Buffer
from anatune.templates.gpu.kernel import CudaKernel


class _ChainArithmetic(NamedTuple):
    """One update of a chain, x -> x * factor + offset; `lanes` is the multiply-adds of an instruction in one thread."""

    word: str
    device: str
    host: str
    lanes: int
    least_capability: int


ARITHMETIC = {
    "float32": _ChainArithmetic("float", "x = fmaf(x, factor, offset);", "x = fmaf(x, factor, offset);", 1, 30),
    "float16": _ChainArithmetic(
        "unsigned", 'asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(x) : "r"(factor), "r"(offset));', "", 2, 53
    ),
    "int8": _ChainArithmetic(
        "unsigned", 'asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(x) : "r"(factor), "r"(offset));', "", 4, 61
    ),
}
"""Dtype of the operands -> arithmetic: float16 in pairs; int8 in groups of four, summed in 32 bits."""


class _MatrixInstruction(NamedTuple):
    """An ``mma.sync`` of 16 x 8 x `depth`, and the 32-bit registers of its two operands' fragments."""

    instruction: str
    depth: int
    a_words: int
    b_words: int


MATRIX = {
    "float16": _MatrixInstruction("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, 4, 2),
    "bfloat16": _MatrixInstruction("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, 4, 2),
    "tfloat32": _MatrixInstruction("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 8, 4, 2),
}
"""Dtype of the operands -> instruction; sums are float32. Source: [PTX-ISA] "Matrix multiply-accumulate"."""
MATRIX_CAPABILITY = 80
"""First compute capability (major, minor) that has all these instructions."""

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
"""Code at the beginning of the timed part; it declares the variables."""
STOP = """\
__syncthreads();
  if (threadIdx.x == 0) {
    KEEP_TIME(2 * blockIdx.x, now_cycles() - first_cycle);
    KEEP_TIME(2 * blockIdx.x + 1, now_ns() - first_ns);
  }"""
"""Code at the end of the timed part."""


class GpuProbe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A probe. Immutable.

    Attributes
    ----------
    kernel : CudaKernel
        The kernel; its parameters state the sizes of the buffers.
    kind : str
        Kind of the probe: "multiply_add", "copy", ...
    work : float
        Work of one block and round: multiply-adds, bytes (a copy: read and written), or dependent loads.
    facts : dict of str to int or str
        Arguments of the function that made it.
    """

    kernel: CudaKernel
    kind: str
    work: float = 0.0
    facts: dict[str, int | str] = {}


class ProbeCode(NamedTuple):
    """The CUDA C of a probe.

    Attributes
    ----------
    body : str
        Body of the kernel; it may use ``input_ptr``, ``rounds_ptr``, ``result_ptr`` and ``times_ptr``.
    helpers : str
        Code before the kernel.
    word : str
        Type of the elements of input and result.
    shared_bytes : int
        Shared memory that the body declares, bytes.
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
    """Make a probe from its code.

    Parameters
    ----------
    launch : tuple of int
        Number of blocks of the grid, and of threads of a block.
    words : tuple of int
        Number of words of the input and of the result.
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


def make_multiply_add(arch: str, dtype: str, chains: int, warps: int, blocks: int) -> GpuProbe:
    """Return a probe of multiply-adds between registers, with `chains` independent chains in every thread.

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


def make_matrix_unit(arch: str, dtype: str, chains: int, warps: int, blocks: int) -> GpuProbe:
    """Return a probe of ``mma.sync`` between registers, with `chains` independent accumulators a warp; sm_80 and later.

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
    """Return a kernel with one thread that waits, so that launches queue up; rounds: (microseconds, 0, 0, 0)."""
    body = """\
long long first_ns = now_ns(), ns = 1000ll * rounds_ptr[0];
  while (now_ns() - first_ns < ns && ns > 0) {
#ifndef __CUDACC__
    break;
#endif
  }
  KEEP_TIME(1, now_ns() - first_ns);"""
    return make_probe("spin", "spin", arch, ProbeCode(body), launch=(1, 1), words=(1, 1))


def make_empty(arch: str, threads: int, blocks: int) -> GpuProbe:
    """Return a kernel that does nothing."""
    return make_probe("empty", "empty", arch, ProbeCode(""), launch=(blocks, threads), words=(1, 1))

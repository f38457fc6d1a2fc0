"""Probes: kernels with a known amount of work that measure the present speed of the machine and of its parts.

`compile_probe` builds the two that are sampled beside candidates. [CPU_ANCHORS] fact 1: one alone misleads.

"fma"
    Multiply-adds between registers, enough independent ones for the latency. It shows the clock, and whether another
    process or hardware thread uses the core's vector units. Its speed does not depend on the caches.
"gemm"
    A register tile fed from the L2 cache, the core of every tuned kernel: 14 rows and 2 vectors with 32 registers, 6
    and 2 with 16. On a busy machine it loses a third of its speed while "fma" still reaches 95 % of the peak, because
    only this probe depends on shared caches and memory. It is the reference kernel of the timing protocol.

A sample counts as quiet if both probes are near their best before and after it. The other functions, and
`machine_probes`, describe further probes for ``anatune hw calibrate``, which builds many of them with `build_probes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from anatune.codegen.compat import compile_module, import_tvm, parse_program, target_of
from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.codegen.cpu.lower import assembly_facts
from anatune.codegen.linking import link_library
from anatune.core.hardware.dot import WIDENED, dot_operands
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import ACCUMULATOR_DTYPE
from anatune.emit.buffer import Buffer
from anatune.emit.kernels import vector_attributes
from anatune.emit.script import Script, buffer_type, open_function
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.register_tile import Microkernel, Result, TileOperand
from anatune.untyped import tvm

__all__ = [
    "Probe",
    "ProbeModule",
    "RegisterTile",
    "broadcast_probe",
    "build_parallel_reference",
    "build_probes",
    "build_reference",
    "compile_probe",
    "fma_probe",
    "probe_script",
    "tile_probe",
]

CALL_S = 0.15e-3
"""Time of a call of the two standard probes at the peak, s: short, but long beside the timer's 0.1 us."""

DEPTH = 256
"""Number of steps of a tile's reduction."""


@dataclass(frozen=True)
class Probe:
    """A function ``name(A, B, C)`` on float32 buffers, and its work.

    Attributes
    ----------
    name : str
        Name of the function.
    text : str
        Its TVMScript.
    llvm : str
        LLVM IR of the functions that it calls.
    sizes : tuple of int
        Numbers of elements of A, B and C.
    work : int
        Work of one call: FLOP, bytes or dependent steps.
    calls : int
        Number of calls of the function in `llvm` that it makes.
    """

    name: str
    text: str
    llvm: str
    sizes: tuple[int, int, int]
    work: int
    calls: int = 1


def compile_probe(kind: Literal["fma", "gemm"], hardware: CpuSpec, folder: Path, *, threads: int = 1) -> CpuArtifact:
    """Build a standard probe into ``folder/probe_<kind>.so``; the module's docstring describes both.

    Each of `threads` threads does the whole work of one call, and writes separate results.

    Returns
    -------
    CpuArtifact
        ``main(A, B, C)``; ``facts["flop"]`` of one call.

    Raises
    ------
    BuildError
        The program cannot be compiled or linked.
    """
    if kind == "fma":
        probe = fma_probe(hardware, "main", threads=threads)
    else:
        rows, vectors = (14, 2) if hardware.compute.num_vector_registers >= 32 else (6, 2)
        tile = RegisterTile(rows, vectors)
        probe = tile_probe(hardware, "main", tile, panels=_panels(hardware, vectors), threads=threads)
    compiled = _compile_probes([probe], hardware, threads=threads)
    path = Path(folder) / f"probe_{kind}.so"
    link_library(compiled, path)
    buffers = tuple(Buffer(tensor, "float32", (size,)) for tensor, size in zip("ABC", probe.sizes, strict=True))
    facts = {"flop": probe.work, **assembly_facts(compiled.mod.inspect_source("asm"))}
    return CpuArtifact("", str(path), buffers, facts=facts)


def build_reference(hardware: CpuSpec, folder: Path) -> CpuArtifact:
    """Build the reference kernel, which is timed beside all candidates; errors as in `compile_probe`."""
    return compile_probe("gemm", hardware, folder)


def build_parallel_reference(hardware: CpuSpec, folder: Path) -> CpuArtifact:
    """Build the reference kernel with a parallel loop over all cores, for processes that cannot start copies."""
    return compile_probe("gemm", hardware, folder, threads=hardware.compute.num_cores)


# ---- building --------------------------------------------------------------------------------------------------


class ProbeModule:
    """Compiled probes: their assembly, and their functions, loaded into this process or as a library."""

    def __init__(self, compiled: tvm.runtime.Executable, probes: Sequence[Probe]) -> None:
        self._compiled, self._names = compiled, [probe.name for probe in probes]
        self.assembly: str = compiled.mod.inspect_source("asm")

    @cached_property
    def functions(self) -> dict[str, Callable[..., object]]:
        """Name -> function, loaded into this process."""
        self._loaded = self._compiled.jit()
        return {name: self._loaded[name] for name in self._names}

    def link(self, path: Path) -> None:
        """Write the probes as a shared library; raise BuildError if they cannot be linked."""
        link_library(self._compiled, path)

    def spill_ops(self, name: str) -> int:
        """Return the number of vector operations on the stack in the code of a probe."""
        _, _, rest = self.assembly.partition(f"\n{name}_compute_:")
        return assembly_facts("main_compute_:" + rest.partition("\n.Lfunc_end")[0])["spill_ops"]


def build_probes(probes: Sequence[Probe], hardware: CpuSpec, *, threads: int = 1) -> ProbeModule:
    """Compile probes of different names together.

    Raises
    ------
    BuildError
        TVM or LLVM refuses the probes.
    """
    return ProbeModule(_compile_probes(probes, hardware, threads=threads), probes)


def _compile_probes(probes: Sequence[Probe], hardware: CpuSpec, *, threads: int = 1) -> tvm.runtime.Executable:
    tvm = import_tvm()
    functions = {probe.name: parse_program(probe.text, probe.llvm) for probe in probes}
    return compile_module(tvm.IRModule(functions), target_of(hardware, threads=threads))


# ---- arithmetic ------------------------------------------------------------------------------------------------


def fma_probe(
    hardware: CpuSpec,
    name: str,
    *,
    chains: int | None = None,
    lanes: int | None = None,
    seconds: float = CALL_S,
    threads: int = 1,
    instruction: str = "",
) -> Probe:
    """Return a probe of multiply-adds between registers; `chains` of them are independent (1: latency); work in FLOP.

    With `instruction` it sums the products of groups instead (see `cpu.dot`); buffers may then hold any bits.

    Operands are loaded once, because LLVM moves constant loads out of the loop. Sums continue from the content of C, so
    that the chains differ and cannot be merged.
    """
    lanes = lanes or hardware.fp32_lanes
    chains = chains or (24 if hardware.compute.num_vector_registers >= 32 else 12)
    steps = max(1, 48 // chains)
    trips = max(1, round(seconds * _core_peak(hardware) / (2 * lanes * chains * steps)))
    if chains == 1:
        trips = max(1, round(seconds * hardware.compute.clock_hz / hardware.compute.fma_latency_cycles / steps))
    _, dtype, group = dot_operands(instruction) if instruction else ("", "float32", 1)
    accumulator = ACCUMULATOR_DTYPE[dtype]
    # without an accumulator all chains would be one product: each row has its own element, and two vectors are shared
    widened = WIDENED.get(instruction, "")
    vectors = 2 if widened and chains > 1 else 1
    rows = chains // vectors
    unchanging = ((0,), (0,) * steps)
    kernel = Microkernel(
        name=f"fma_{name}",
        lanes=lanes,
        size=vectors * lanes,
        body="multiply_add",
        accumulator=accumulator,
        operands=(
            TileOperand(
                widened or dtype, 0, _steps(rows, group if widened else 0), *unchanging, masked=False, group=group
            ),
            TileOperand(dtype, group, (0,) * rows, *unchanging, masked=False, group=group),
        ),
        result=Result(accumulator, 1, _steps(rows, vectors * lanes)),
        trips=(trips,),
        num_steps=steps,
        is_partial=True,
        dot=instruction,
        attributes=vector_attributes(lanes),
    )
    flop = 2 * lanes * group * chains * steps * trips
    sizes = (rows if widened else 1, lanes, chains * lanes * threads)
    return _make_probe(name, kernel, sizes, [], flop * threads, flags=1, threads=threads)


def broadcast_probe(hardware: CpuSpec, name: str, *, seconds: float = CALL_S) -> Probe:
    """Return a probe of multiply-adds that each load one element for all lanes; work in such loads.

    Vectors have a quarter of the width (at least 128 bits), so that units that halve wide vectors do not hide the
    ports. Every accumulator reads its own element.
    """
    lanes = max(4, hardware.fp32_lanes // 4)
    rows, steps = 12, 8
    trips = max(1, round(seconds * hardware.compute.clock_hz / (rows * steps)))
    elements = _steps(rows, 1)
    kernel = Microkernel(
        name=f"spread_{name}",
        lanes=lanes,
        size=lanes,
        body="multiply_add",
        accumulator="float32",
        operands=(
            TileOperand("float32", 0, elements, (rows * steps,), _steps(steps, rows), masked=False),
            TileOperand("float32", 1, (0,) * rows, (0,), (0,) * steps, masked=False),
        ),
        result=Result("float32", 1, _steps(rows, lanes)),
        trips=(_BROADCAST_TRIPS,),
        num_steps=steps,
        attributes=vector_attributes(lanes),
    )
    repeats = max(1, round(trips / _BROADCAST_TRIPS))
    sizes = (rows * steps * _BROADCAST_TRIPS, lanes, rows * lanes)
    return _make_probe(name, kernel, sizes, [(repeats, (0, 0, 0))], rows * steps * _BROADCAST_TRIPS * repeats)


_BROADCAST_TRIPS = 40


class RegisterTile(NamedTuple):
    """A register tile: rows and vectors of results that stay in registers, and steps of the straight-line body."""

    rows: int
    vectors: int
    unroll: int = 1

    @property
    def name(self) -> str:
        """Name of the tile's probe."""
        return f"tile_{self.rows}_{self.vectors}_{self.unroll}"


def tile_probe(
    hardware: CpuSpec,
    name: str,
    tile: RegisterTile,
    *,
    depth: int = DEPTH,
    panels: int = 1,
    seconds: float = CALL_S,
    threads: int = 1,
) -> Probe:
    """Return a probe that multiplies A (depth x rows) by `panels` panels of B (depth x vectors) again and again.

    Each panel gives its own tile of C; work in FLOP. One panel stays in the L1 cache, several that exceed L1 in L2.
    Every thread does the whole work.
    """
    lanes = hardware.fp32_lanes
    rows, vectors, unroll = tile
    width = vectors * lanes
    kernel = Microkernel(
        name=f"tile_{name}",
        lanes=lanes,
        size=width,
        body="multiply_add",
        accumulator="float32",
        operands=(
            TileOperand("float32", 0, tuple(range(rows)), (unroll * rows,), _steps(unroll, rows), masked=False),
            TileOperand("float32", 1, (0,) * rows, (unroll * width,), _steps(unroll, width), masked=False),
        ),
        result=Result("float32", 1, _steps(rows, width)),
        trips=(depth // unroll,),
        num_steps=unroll,
        attributes=vector_attributes(lanes),
    )
    flop = 2 * rows * width * depth // unroll * unroll * panels
    repeats = max(1, round(seconds * _core_peak(hardware) / flop))
    strides = (0, depth * width, rows * width)
    sizes = (depth * rows, panels * depth * width, panels * rows * width * threads)
    loops = [(repeats, (0, 0, 0)), (panels, strides)]
    return _make_probe(name, kernel, sizes, loops, flop * repeats * threads, threads=threads)


def _core_peak(hardware: CpuSpec) -> float:
    return hardware.compute.fp32_peak_flop_per_s / hardware.compute.num_cores


def _panels(hardware: CpuSpec, vectors: int) -> int:
    """Return the number of panels of B that exceed the L1 cache by far and fill at most half of the L2 cache."""
    panel_bytes = DEPTH * vectors * hardware.fp32_lanes * 4
    share = hardware.l2.size_bytes // max(1, hardware.l2.shared_by_cores)
    return max(2, min(max(8, math.ceil(3 * hardware.l1.size_bytes / panel_bytes)), share // 2 // panel_bytes))


def _steps(count: int, stride: int) -> tuple[int, ...]:
    return tuple(number * stride for number in range(count))


def _make_probe(
    name: str,
    kernel: Microkernel,
    sizes: tuple[int, int, int],
    loops: Sequence[tuple[int, tuple[int, int, int]]],
    work: int,
    *,
    flags: int = 0,
    threads: int = 1,
) -> Probe:
    """Return a probe that calls a microkernel in `loops`: (iterations, strides of A, B, C); each thread has a C."""
    llvm = module_ir([microkernel_ir(kernel)])
    arguments = []
    for position, tensor in enumerate("ABC"):
        terms = [f"i{level} * {strides[position]}" for level, (_, strides) in enumerate(loops) if strides[position]]
        if tensor == "C" and threads > 1:
            terms.append(f"chunk * {sizes[2] // threads}")
        arguments.append(f'{tensor}.data, T.Cast("int64", {" + ".join(terms) or "0"})')
    call = f'T.evaluate(T.call_extern("void", "{kernel.name}", {", ".join(arguments)}, {flags}))'
    extents = [extent for extent, _ in loops]
    return Probe(name, probe_script(name, sizes, extents, call, threads), llvm, sizes, work, math.prod(extents))


def probe_script(name: str, sizes: tuple[int, int, int], extents: Sequence[int], call: str, threads: int = 1) -> str:
    """Return the TVMScript of a function with `call` in loops i0, i1, ... on each thread ("chunk")."""
    text = Script()
    open_function(
        text, name, [(tensor, buffer_type((size,), "float32")) for tensor, size in zip("ABC", sizes, strict=True)]
    )
    text.open('with T.sblock("nest"):')
    text.line(f"T.reads(A[0:{sizes[0]}], B[0:{sizes[1]}])")
    text.line(f"T.writes(C[0:{sizes[2]}])")
    kind = "parallel" if threads > 1 else "serial"
    text.open(f'for chunk in T.{kind}({threads}, annotations={{"pragma_import_llvm": LL}}):')
    for level, extent in enumerate(extents):
        text.open(f"for i{level} in range({extent}):")
    text.line(call)
    return str(text)

"""Kernels of fixed work that say how fast the machine is just now, and what its parts can do.

`compile_probe` builds the two that are sampled beside candidates. [CPU_ANCHORS] fact 1: one alone misleads.

"fma"
    Multiply-adds between registers, enough independent ones for the latency. Shows the clock, and whether another
    process or hardware thread takes the core's vector units. It keeps its speed while caches are busy.
"gemm"
    A register tile fed from the L2 cache, the core of every tuned kernel: 14 rows and 2 vectors with 32 registers, 6
    and 2 with 16. In busy minutes it loses a third while "fma" still reads 95 % of the peak: what shares the caches
    and the memory shows here only. It is the reference kernel of the timing protocol.

A sample counts as quiet if both are near their best before and after it. The other functions describe more such
functions for ``anatune hw calibrate``, which builds many of them with `build_probes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from anatune.codegen.compat import TvmObject, compile_module, import_tvm, link_library, parse_program, target_of
from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.codegen.cpu.lower import assembly_facts
from anatune.core.hardware.dot import dot_operands
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import ACCUMULATOR_DTYPE
from anatune.emit.buffer import Buffer
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.register_tile import Microkernel, Operand, Result

__all__ = [
    "Probe",
    "ProbeModule",
    "broadcast_probe",
    "build_parallel_reference",
    "build_probes",
    "build_reference",
    "chase_probe",
    "clock_probe",
    "compile_probe",
    "fma_probe",
    "start_probe",
    "tile_probe",
    "walk_probe",
]

CALL_S = 0.15e-3
"""Time that a call of the two standard probes takes at the peak: cheap, and long beside the timer's 0.1 us."""

_NO_UNROLL = '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}\n'

DEPTH = 256
"""Steps of a tile's reduction."""


@dataclass(frozen=True)
class Probe:
    """A function ``name(A, B, C)`` on float32 buffers and its work.

    Attributes
    ----------
    name : str
    text : str
        TVMScript.
    llvm : str
        What it calls.
    sizes : tuple of int
        Elements of A, B, C.
    work : int
        Of one call: FLOP, bytes or dependent steps.
    calls : int
        Calls of the function in `llvm` that it makes.
    """

    name: str
    text: str
    llvm: str
    sizes: tuple[int, int, int]
    work: int
    calls: int = 1


def compile_probe(kind: Literal["fma", "gemm"], hardware: CpuSpec, folder: Path, *, threads: int = 1) -> CpuArtifact:
    """Build a standard probe into ``folder/probe_<kind>.so``; see the module for what each shows.

    Each of `threads` threads does the whole work of one call, on results of its own.

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
        probe = tile_probe(hardware, "main", rows, vectors, panels=_panels(hardware, vectors), threads=threads)
    compiled = _compile([probe], hardware, threads=threads)
    path = Path(folder) / f"probe_{kind}.so"
    link_library(compiled, path)
    buffers = tuple(Buffer(tensor, "float32", (size,)) for tensor, size in zip("ABC", probe.sizes, strict=True))
    facts = {"flop": probe.work, **assembly_facts(compiled.mod.inspect_source("asm"))}
    return CpuArtifact("", str(path), buffers, facts=facts)


def build_reference(hardware: CpuSpec, folder: Path) -> CpuArtifact:
    """Build the kernel that is timed beside all candidates; errors as `compile_probe`."""
    return compile_probe("gemm", hardware, folder)


def build_parallel_reference(hardware: CpuSpec, folder: Path) -> CpuArtifact:
    """Build the same for all cores at once: a parallel loop, where no threads of this process can start copies."""
    return compile_probe("gemm", hardware, folder, threads=hardware.compute.num_cores)


# ---- building --------------------------------------------------------------------------------------------------


class ProbeModule:
    """Compiled probes: their assembly, and `functions` of this process by name, or a library."""

    def __init__(self, compiled: TvmObject, probes: Sequence[Probe]) -> None:
        self._compiled, self._names = compiled, [probe.name for probe in probes]
        self.assembly: str = compiled.mod.inspect_source("asm")

    @cached_property
    def functions(self) -> dict[str, Callable[..., object]]:
        """Name -> function, loaded into this process."""
        self._loaded = self._compiled.jit()
        return {name: self._loaded[name] for name in self._names}

    def link(self, path: Path) -> None:
        """Write them as a shared library; raises BuildError where they cannot be linked."""
        link_library(self._compiled, path)

    def spill_ops(self, name: str) -> int:
        """Return the vector operations on the stack in the code of one probe."""
        _, _, rest = self.assembly.partition(f"\n{name}_compute_:")
        return assembly_facts("main_compute_:" + rest.partition("\n.Lfunc_end")[0])["spill_ops"]


def build_probes(probes: Sequence[Probe], hardware: CpuSpec, *, threads: int = 1) -> ProbeModule:
    """Compile probes of different names together.

    Raises
    ------
    BuildError
        TVM or LLVM refuses them.
    """
    return ProbeModule(_compile(probes, hardware, threads=threads), probes)


def _compile(probes: Sequence[Probe], hardware: CpuSpec, *, threads: int = 1) -> TvmObject:
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
    """Multiply-adds between registers: `chains` of them are independent (1: their latency), work in FLOP.

    `instruction` sums the products of groups instead (see `cpu.dot`); buffers hold any bits then.

    Operands are loaded once: LLVM moves loads of what does not change out of the loop. Sums go on from what C holds,
    so that the chains differ and cannot be merged.
    """
    lanes = lanes or hardware.fp32_lanes
    chains = chains or (24 if hardware.compute.num_vector_registers >= 32 else 12)
    steps = max(1, 48 // chains)
    trips = max(1, round(seconds * _core_peak(hardware) / (2 * lanes * chains * steps)))
    if chains == 1:
        trips = max(1, round(seconds * hardware.compute.clock_hz / hardware.compute.fma_latency_cycles / steps))
    _, dtype, group = dot_operands(instruction) if instruction else ("", "float32", 1)
    accumulator = ACCUMULATOR_DTYPE[dtype]
    unchanging = ((0,) * chains, (0,), (0,) * steps)
    kernel = Microkernel(
        name=f"fma_{name}",
        lanes=lanes,
        size=lanes,
        body="multiply_add",
        accumulator=accumulator,
        operands=(
            Operand(dtype, 0, *unchanging, masked=False, group=group),
            Operand(dtype, group, *unchanging, masked=False, group=group),
        ),
        result=Result(accumulator, 1, tuple(chain * lanes for chain in range(chains))),
        trips=(trips,),
        num_steps=steps,
        is_partial=True,
        dot=instruction,
        attributes=_attributes(lanes),
    )
    flop = 2 * lanes * group * chains * steps * trips
    sizes = (1, lanes, chains * lanes * threads)
    return _probe(name, kernel, sizes, [], flop * threads, flags=1, threads=threads)


def broadcast_probe(hardware: CpuSpec, name: str, *, seconds: float = CALL_S) -> Probe:
    """Multiply-adds of which each loads one element for all lanes: work in such loads.

    Vectors have a quarter of the width (no less than 128 bits), so that units that halve wide vectors do not hide the
    ports. Every accumulator reads an element of its own.
    """
    lanes = max(4, hardware.fp32_lanes // 4)
    rows, steps = 12, 8
    trips = max(1, round(seconds * hardware.compute.clock_hz / (rows * steps)))
    elements = _every(rows, 1)
    kernel = Microkernel(
        name=f"spread_{name}",
        lanes=lanes,
        size=lanes,
        body="multiply_add",
        accumulator="float32",
        operands=(
            Operand("float32", 0, elements, (rows * steps,), _every(steps, rows), masked=False),
            Operand("float32", 1, (0,) * rows, (0,), (0,) * steps, masked=False),
        ),
        result=Result("float32", 1, _every(rows, lanes)),
        trips=(_BROADCAST_TRIPS,),
        num_steps=steps,
        attributes=_attributes(lanes),
    )
    repeats = max(1, round(trips / _BROADCAST_TRIPS))
    sizes = (rows * steps * _BROADCAST_TRIPS, lanes, rows * lanes)
    return _probe(name, kernel, sizes, [(repeats, (0, 0, 0))], rows * steps * _BROADCAST_TRIPS * repeats)


_BROADCAST_TRIPS = 40


def tile_probe(
    hardware: CpuSpec,
    name: str,
    rows: int,
    vectors: int,
    *,
    unroll: int = 1,
    depth: int = DEPTH,
    panels: int = 1,
    seconds: float = CALL_S,
    threads: int = 1,
) -> Probe:
    """Multiply A (depth x rows) by `panels` panels of B (depth x vectors) into as many tiles of C, over and over.

    Work in FLOP. One panel stays in the L1 cache; several in L2 where they exceed L1. Every thread does all of it.
    """
    lanes = hardware.fp32_lanes
    width = vectors * lanes
    kernel = Microkernel(
        name=f"tile_{name}",
        lanes=lanes,
        size=width,
        body="multiply_add",
        accumulator="float32",
        operands=(
            Operand("float32", 0, tuple(range(rows)), (unroll * rows,), _every(unroll, rows), masked=False),
            Operand("float32", 1, (0,) * rows, (unroll * width,), _every(unroll, width), masked=False),
        ),
        result=Result("float32", 1, _every(rows, width)),
        trips=(depth // unroll,),
        num_steps=unroll,
        attributes=_attributes(lanes),
    )
    flop = 2 * rows * width * depth // unroll * unroll * panels
    repeats = max(1, round(seconds * _core_peak(hardware) / flop))
    strides = (0, depth * width, rows * width)
    sizes = (depth * rows, panels * depth * width, panels * rows * width * threads)
    loops = [(repeats, (0, 0, 0)), (panels, strides)]
    return _probe(name, kernel, sizes, loops, flop * repeats * threads, threads=threads)


def _core_peak(hardware: CpuSpec) -> float:
    return hardware.compute.fp32_peak_flop_per_s / hardware.compute.num_cores


def _panels(hardware: CpuSpec, vectors: int) -> int:
    """Panels of B that exceed the L1 cache by far and are a half of the L2 cache at most."""
    panel_bytes = DEPTH * vectors * hardware.fp32_lanes * 4
    share = hardware.l2.size_bytes // max(1, hardware.l2.shared_by_cores)
    return max(2, min(max(8, math.ceil(3 * hardware.l1.size_bytes / panel_bytes)), share // 2 // panel_bytes))


def _every(count: int, stride: int) -> tuple[int, ...]:
    return tuple(number * stride for number in range(count))


def _attributes(lanes: int) -> str:
    return f'"prefer-vector-width"="{32 * lanes}" "min-legal-vector-width"="{32 * lanes}"'


def _probe(
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
    for place, tensor in enumerate("ABC"):
        terms = [f"i{level} * {strides[place]}" for level, (_, strides) in enumerate(loops) if strides[place]]
        if tensor == "C" and threads > 1:
            terms.append(f"chunk * {sizes[2] // threads}")
        arguments.append(f'{tensor}.data, T.Cast("int64", {" + ".join(terms) or "0"})')
    call = f'T.evaluate(T.call_extern("void", "{kernel.name}", {", ".join(arguments)}, {flags}))'
    extents = [extent for extent, _ in loops]
    return Probe(name, _script(name, sizes, extents, call, threads), llvm, sizes, work, math.prod(extents))


def _script(name: str, sizes: tuple[int, int, int], extents: Sequence[int], call: str, threads: int = 1) -> str:
    """Return the TVMScript of a function that makes `call` in loops i0, i1, ... on each thread ("chunk")."""
    buffers = ", ".join(f'{tensor}: T.Buffer(({size},), "float32")' for tensor, size in zip("ABC", sizes, strict=True))
    lines = [
        "@T.prim_func(s_tir=True)",
        f"def {name}({buffers}):",
        f'    T.func_attr({{"global_symbol": "{name}", "tirx.noalias": True}})',
        '    with T.sblock("nest"):',
        f"        T.reads(A[0:{sizes[0]}], B[0:{sizes[1]}])",
        f"        T.writes(C[0:{sizes[2]}])",
        f"        for chunk in T.{'parallel' if threads > 1 else 'serial'}({threads}, "
        'annotations={"pragma_import_llvm": LL}):',
    ]
    for level, extent in enumerate(extents):
        lines.append("    " * (3 + level) + f"for i{level} in range({extent}):")
    lines.append("    " * (3 + len(extents)) + call)
    return "\n".join(lines) + "\n"


# ---- clock, memory, threads ------------------------------------------------------------------------------------

_CLOCK_LINKS = 32
"""Additions, and exclusive ors, of one iteration of `clock_probe`."""
_WALK_VECTORS = 16
_CHASE_LINKS = 8


def clock_probe(hardware: CpuSpec, name: str, *, seconds: float = CALL_S) -> Probe:
    """Dependent integer additions and exclusive ors of what LLVM cannot know: one a cycle on every CPU; work in steps.

    It gives the core's clock without knowing its vector units.
    """
    trips = max(1, round(seconds * hardware.compute.clock_hz / (2 * _CLOCK_LINKS)))
    body = []
    value = "%x"
    for link in range(_CLOCK_LINKS):
        body += [f"  %s{link} = add i64 {value}, %a", f"  %t{link} = xor i64 %s{link}, %b"]
        value = f"%t{link}"
    llvm = "\n".join(
        [
            f"define internal void @clock_{name}(ptr %p, ptr %q, ptr %r) noinline nounwind {{",
            "entry:",
            "  %a = load volatile i64, ptr %p, align 4",
            "  %b = load volatile i64, ptr %q, align 4",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %entry], [%next, %loop]",
            f"  %x = phi i64 [%b, %entry], [{value}, %loop]",
            *body,
            "  %next = add nuw nsw i64 %i, 1",
            f"  %last = icmp eq i64 %next, {trips}",
            "  br i1 %last, label %done, label %loop, !llvm.loop !0",
            "done:",
            f"  store volatile i64 {value}, ptr %r, align 4",
            "  ret void",
            "}",
            _NO_UNROLL,
        ]
    )
    call = f'T.evaluate(T.call_extern("void", "clock_{name}", A.data, B.data, C.data))'
    sizes = (2, 2, 2)
    return Probe(name, _script(name, sizes, [], call), llvm, sizes, 2 * _CLOCK_LINKS * trips)


def walk_probe(
    hardware: CpuSpec,
    name: str,
    kind: Literal["load", "store"],
    num_bytes: int,
    *,
    passes: int = 1,
    threads: int = 1,
) -> Probe:
    """Load `num_bytes` of A, or store as many to C, in order and in whole vectors; work in bytes.

    Every thread has as many bytes of its own.
    """
    lanes = hardware.fp32_lanes
    step_bytes = _WALK_VECTORS * lanes * 4
    trips = max(1, num_bytes // step_bytes)
    vector = f"<{lanes} x float>"
    body = []
    for link in range(_WALK_VECTORS):
        body.append(f"  %p{link} = getelementptr {vector}, ptr %at, i64 {link}")
        if kind == "load":
            body.append(f"  %v{link} = load volatile {vector}, ptr %p{link}, align {4 * lanes}")
        else:
            body.append(f"  store volatile {vector} zeroinitializer, ptr %p{link}, align {4 * lanes}")
    llvm = "\n".join(
        [
            f"define internal void @walk_{name}(ptr %base, i64 %from) noinline nounwind {_attributes(lanes)} {{",
            "entry:",
            "  %a = getelementptr float, ptr %base, i64 %from",
            "  br label %again",
            "again:",
            "  %n = phi i64 [0, %entry], [%m, %over]",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %again], [%next, %loop]",
            "  %at = phi ptr [%a, %again], [%then, %loop]",
            *body,
            f"  %then = getelementptr i8, ptr %at, i64 {step_bytes}",
            "  %next = add nuw nsw i64 %i, 1",
            f"  %last = icmp eq i64 %next, {trips}",
            "  br i1 %last, label %over, label %loop, !llvm.loop !0",
            "over:",
            "  %m = add nuw nsw i64 %n, 1",
            f"  %end = icmp eq i64 %m, {passes}",
            "  br i1 %end, label %done, label %again, !llvm.loop !0",
            "done:",
            "  ret void",
            "}",
            _NO_UNROLL,
        ]
    )
    elements = trips * step_bytes // 4
    tensor, sizes = ("A", (elements * threads, 1, 1)) if kind == "load" else ("C", (1, 1, elements * threads))
    start = f'T.Cast("int64", chunk * {elements})'
    call = f'T.evaluate(T.call_extern("void", "walk_{name}", {tensor}.data, {start}))'
    work = trips * step_bytes * passes * threads
    return Probe(name, _script(name, sizes, [], call, threads), llvm, sizes, work)


def chase_probe(name: str, num_bytes: int, steps: int) -> Probe:
    """Follow pointers through A for `steps` dependent loads, from where the call before ended; work in steps.

    A holds byte offsets as 64-bit integers, C the one to start from.
    """
    links = []
    for link in range(_CHASE_LINKS):
        links.append(f"  %p{link} = getelementptr i8, ptr %a, i64 %o{link}")
        links.append(f"  %o{link + 1} = load volatile i64, ptr %p{link}, align 8")
    trips = max(1, steps // _CHASE_LINKS)
    llvm = "\n".join(
        [
            f"define internal void @chase_{name}(ptr %a, ptr %c) noinline nounwind {{",
            "entry:",
            "  %from = load volatile i64, ptr %c, align 8",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %entry], [%next, %loop]",
            f"  %o0 = phi i64 [%from, %entry], [%o{_CHASE_LINKS}, %loop]",
            *links,
            "  %next = add nuw nsw i64 %i, 1",
            f"  %last = icmp eq i64 %next, {trips}",
            "  br i1 %last, label %done, label %loop, !llvm.loop !0",
            "done:",
            f"  store volatile i64 %o{_CHASE_LINKS}, ptr %c, align 8",
            "  ret void",
            "}",
            _NO_UNROLL,
        ]
    )
    call = f'T.evaluate(T.call_extern("void", "chase_{name}", A.data, C.data))'
    sizes = (num_bytes // 4, 1, 2)
    return Probe(name, _script(name, sizes, [], call), llvm, sizes, _CHASE_LINKS * trips)


def start_probe(name: str, threads: int) -> Probe:
    """Start a loop of `threads` parallel iterations that do nothing but store one element each; work in starts."""
    elements = 16 * threads
    lines = [
        "@T.prim_func(s_tir=True)",
        f'def {name}(A: T.Buffer((1,), "float32"), B: T.Buffer((1,), "float32"), '
        f'C: T.Buffer(({elements},), "float32")):',
        f'    T.func_attr({{"global_symbol": "{name}", "tirx.noalias": True}})',
        f"    for i in T.parallel({threads}):",
        f'        with T.sblock("{name}_fill"):',
        f"            T.writes(C[0:{elements}])",
        "            C[i * 16] = T.float32(1)",
    ]
    return Probe(name, "\n".join(lines) + "\n", "", (1, 1, elements), 1)

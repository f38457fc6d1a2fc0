"""CPU kernels in the place of a nest of a TVM function, as a trace that TVM replays.

A schedule of anatune is no chain of TVM's schedule primitives: it is another program. TVM has one primitive that puts a
program in the place of a block: ``tensorize``. So the trace inlines what feeds the nest (padding) and what follows
it, turns the nest's initialisation and its sum into one block each, tensorizes the first with nothing and the second
with the kernel, which overwrites the result, and spreads the remaining element-wise blocks over threads and vectors.
Schedule and threads are annotations of the root block, so that the intrinsics can be made again from a tuning record
alone: `register_kernels` has to see a record before TVM replays it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from anatune.codegen.compat import TVM_ERRORS, import_tvm, last_line, parse_program
from anatune.codegen.program import program_of
from anatune.codegen.tir_nest import Nest, check_loops, read_block
from anatune.core.schedule import Schedule
from anatune.core.workload import Workload
from anatune.errors import AnatuneError, BuildError, WorkloadError

__all__ = ["ANNOTATION", "PREDICTED", "THREADS", "TirTask", "annotated_schedule", "annotation", "register_kernels"]

ANNOTATION = "anatune.schedule"
"""Annotation of the root block that holds the schedule's JSON."""

THREADS = "anatune.threads"
"""Annotation of the root block: threads of the kernel."""
PREDICTED = "anatune.predicted"
"""Annotation of the root block of a kernel that was not measured."""

_REDUCTION = 2
_VECTOR = 64
"""Most elements of a vectorised loop of the element-wise blocks around the nest: what TVM's own rules take."""
_PARALLEL_FROM = 1 << 14
"""Elements from which on such a block is spread over threads: a parallel loop costs some microseconds."""


class TirTask:
    """One TVM function with one nest that anatune has kernels for.

    Parameters
    ----------
    module : tvm.IRModule
        With one PrimFunc.
    threads : int
        That the kernels run with.

    Raises
    ------
    WorkloadError
        The function has no such nest, or more than one reduction; the message says why.
    """

    def __init__(self, module: Any, threads: int = 1) -> None:
        self.module = module
        self.threads = threads
        names = [str(name.name_hint) for name in module.get_global_vars()]
        if len(names) != 1:
            raise WorkloadError(f"the module has {len(names)} functions ({', '.join(names)}), expected one")
        self._function = names[0]
        self._inlines = True
        try:
            self._nest = self._prepared()[2]
        except WorkloadError:
            self._inlines = False  # what feeds the nest stays a block of its own
            self._nest = self._prepared()[2]
        try:
            self._placed(import_tvm(), f"anatune.{self.digest}", None)
        except TVM_ERRORS as error:
            raise WorkloadError(f"TVM cannot put a kernel into {self._function}: {last_line(error)}") from None

    @property
    def workload(self) -> Workload:
        """What the nest computes."""
        return self._nest.workload

    @cached_property
    def digest(self) -> str:
        """Hash of the function and the threads: the kernels' names have to differ in a library of many functions."""
        tvm = import_tvm()
        return hashlib.sha256(f"{tvm.ir.save_json(self.module)} {self.threads}".encode()).hexdigest()[:12]

    def schedule(self, schedule: Schedule, name: str = "", *, predicted: bool = False) -> Any:
        """Return a traced ``tvm.s_tir.Schedule`` of the function with the kernel of `schedule` in it.

        Parameters
        ----------
        schedule : Schedule
            From the space of `workload`.
        name : str
            Of the intrinsic, where a trace has one already.
        predicted : bool
            Note in the trace that its time will be a prediction.

        Raises
        ------
        BuildError
            The kernel cannot be written, or TVM refuses to put it there.
        SpaceError
            Options that contradict the tiles.
        """
        tvm = import_tvm()
        try:
            key = name or f"anatune.{self.digest}.{schedule.key}"
            kernel = self._kernel(schedule, prefix=key.replace(".", "_"))
            notes = {ANNOTATION: schedule.to_json(), THREADS: self.threads}
            return self._placed(tvm, key, kernel, notes | ({PREDICTED: 1} if predicted else {}))
        except TVM_ERRORS as error:
            if isinstance(error, AnatuneError):
                raise
            raise BuildError(f"TVM cannot put the kernel into {self._function}: {last_line(error)}") from None

    def _prepared(self) -> tuple[Any, str, Nest]:
        """Return a new schedule with everything inlined that can be, the nest's block and what it computes."""
        try:
            return self._read(import_tvm())
        except TVM_ERRORS as error:
            if isinstance(error, AnatuneError):
                raise
            raise WorkloadError(f"function {self._function}: {last_line(error)}") from None

    def _read(self, tvm: Any) -> tuple[Any, str, Nest]:
        schedule = tvm.s_tir.Schedule(self.module)
        function = self._function
        blocks = schedule.get_child_blocks(schedule.get_sblock("root", function))
        reductions = [block for block in blocks if _is_reduction(schedule.get(block))]
        if len(reductions) != 1:
            raise WorkloadError(f"function {function} has {len(reductions)} blocks with a reduction, expected one")
        anchor = schedule.get(reductions[0])
        name = str(anchor.name_hint)
        fed_by = [region.source for region in anchor.reads]
        parameters = list(self.module[function].params)
        for block in blocks:
            found = schedule.get(block)
            written = [region.source for region in found.writes]
            feeds = any(buffer.same_as(other) for buffer in written for other in fed_by)
            is_result = any(buffer.same_as(other) for buffer in written for other in parameters)
            if str(found.name_hint) == name or is_result or (feeds and not self._inlines):
                continue
            try:
                schedule.compute_inline(schedule.get_sblock(str(found.name_hint), function))
            except TVM_ERRORS:
                continue  # it is read in a way that TVM cannot substitute; it stays a block
        nest = read_block(schedule.get(schedule.get_sblock(name, function)))
        check_loops(schedule.mod, function, name)
        return schedule, name, nest

    def _placed(self, tvm: Any, key: str, kernel: Any, notes: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Return the traced schedule with a program (None: an empty one) in the place of the nest."""
        sch, name, nest = self._prepared()
        root = sch.get_sblock("root", self._function)
        for note, value in notes.items():
            sch.annotate(root, note, value)
        around = [str(sch.get(block).name_hint) for block in sch.get_child_blocks(root)]
        block = sch.get_sblock(name, self._function)
        start = sch.decompose_reduction(block, sch.get_loops(block)[0])
        total = sch.blockize(sch.get_loops(block)[0], preserve_unit_iters=False)
        begin = sch.blockize(sch.get_loops(start)[0], preserve_unit_iters=False)
        buffers = list(nest.buffers)
        _register(tvm, f"{key}.begin", sch.get(begin), buffers[-1:], None)
        _register(tvm, key, sch.get(total), buffers, kernel)
        sch.tensorize(begin, f"{key}.begin")
        sch.tensorize(total, key)
        for other in around:
            if other != name:
                self._spread(sch, sch.get_sblock(other, self._function))
        return sch

    def _kernel(self, schedule: Schedule, prefix: str) -> Any:
        if schedule.workload != self.workload:
            raise BuildError(
                f"schedule is for {schedule.workload.describe()}, expected {self.workload.describe()}: make it with "
                "the space of this function's workload"
            )
        program = program_of(schedule, threads=self.threads, prepacked=False, prefix=prefix)
        return parse_program(program.main, program.llvm)

    def _spread(self, sch: Any, block: Any) -> None:
        """Vectorise an element-wise block, and distribute it over the threads."""
        loops = sch.get_loops(block)
        if not loops:
            return
        extents = [int(sch.get(loop).extent) for loop in loops]
        width = max(size for size in range(1, min(_VECTOR, extents[-1]) + 1) if extents[-1] % size == 0)
        outer, inner = sch.split(loops[-1], [None, width])
        if len(loops) > 1 or extents[-1] > width:
            chunks = sch.fuse(*loops[:-1], outer)
            if self.threads > 1 and math.prod(extents) >= _PARALLEL_FROM:
                sch.parallel(chunks)
        if width > 1:
            sch.vectorize(inner)


def annotated_schedule(trace: Any) -> Schedule | None:
    """Return the schedule that a trace of `TirTask.schedule` carries, None where there is none.

    Raises
    ------
    SpaceError, WorkloadError
        The annotation is damaged.
    """
    text = annotation(trace, ANNOTATION)
    return None if text is None else Schedule.from_json(str(text))


def register_kernels(module: Any, trace: Any) -> bool:
    """Make the intrinsics of a trace known to TVM, so that it can be replayed on the module.

    Parameters
    ----------
    module : tvm.IRModule
        What the trace was made for: the workload of its tuning record.
    trace : tvm.s_tir.Trace

    Returns
    -------
    bool
        Whether the trace was made by `TirTask`; others need nothing.

    Raises
    ------
    BuildError, SpaceError, WorkloadError
        The trace does not fit the module, or its schedule is damaged.
    """
    schedule = annotated_schedule(trace)
    if schedule is None:
        return False
    names = [str(item.attrs[0]) for item in trace.insts if str(item.kind.name) == "Tensorize"]
    if len(names) != 2:
        raise BuildError(f"a trace of anatune's has {len(names)} tensorized blocks, expected 2; tune it again")
    TirTask(module, int(annotation(trace, THREADS) or 1)).schedule(schedule, names[1])
    return True


def annotation(trace: Any, key: str) -> Any:
    """Return the value of an annotation in a trace, None where it is not there."""
    for instruction in trace.insts:
        if str(instruction.kind.name) == "Annotate" and [str(attr) for attr in instruction.attrs] == [key]:
            return instruction.inputs[1]
    return None


def _is_reduction(block: Any) -> bool:
    return any(int(item.iter_type) == _REDUCTION for item in block.iter_vars)


def _register(tvm: Any, name: str, block: Any, buffers: list[Any], kernel: Any) -> None:
    """Register an intrinsic: `block` (which has `buffers`) becomes `kernel`, or nothing.

    TVM counts indices from the first element that the block's region names. Of a padded tensor that element lies before
    the tensor: the description counts from there, and a block inside the kernel goes back to the
    tensor's own first element.

    Parameters
    ----------
    block : tvm.s_tir.SBlock
        The whole nest, one iteration.
    buffers : list
        Its tensors, in the order of the kernel's parameters.
    kernel : PrimFunc or None
    """
    s_tir, always = tvm.s_tir, tvm.tirx.const(True, "bool")
    bases = [_base(block, buffer) for buffer in buffers]
    zeros = [item.dom.min for item in block.iter_vars]
    counted = _Counted(tvm, [pair for pair in zip(buffers, bases, strict=True) if any(pair[1])]).statement(block)
    description = tvm.tirx.PrimFunc(buffers, s_tir.SBlockRealize(zeros, always, counted))
    description = tvm.ir.load_json(tvm.ir.save_json(description))  # with variables of its own
    own = list((kernel or tvm.ir.load_json(tvm.ir.save_json(description))).params)
    parameters = [_moved(tvm, buffer) if any(base) else buffer for buffer, base in zip(own, bases, strict=True)]
    *reads, write = [
        tvm.ir.expr.TensorRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape], block.writes[0].ty)
        for buffer in parameters
    ]
    inside = tvm.tirx.Evaluate(0)
    if kernel is not None:
        # TVM drops the buffers that an intrinsic's root allocates: they move into a block below it.
        body = kernel.body.block
        whole = [
            s_tir.MatchBufferRegion(buffer, _from(tvm, parameter, base, block.writes[0].ty))
            for buffer, parameter, base in zip(own, parameters, bases, strict=True)
            if any(base)
        ]
        inner = s_tir.SBlock(
            [], reads, [write], "anatune", body.body, alloc_buffers=body.alloc_buffers, match_buffers=whole
        )
        inside = s_tir.SBlockRealize([], always, inner)
    root = s_tir.SBlock([], reads, [write], "root", inside)
    implementation = tvm.tirx.PrimFunc(parameters, s_tir.SBlockRealize([], always, root))
    s_tir.TensorIntrin.register(name, description, implementation, override=True)


def _moved(tvm: Any, buffer: Any) -> Any:
    """Return a buffer of the same shape whose first element may lie anywhere."""
    offset = tvm.tirx.Var(f"{buffer.name}_start", "int64")
    return tvm.tirx.decl_buffer(buffer.shape, str(buffer.dtype), f"{buffer.name}_moved", elem_offset=offset)


def _from(tvm: Any, buffer: Any, base: list[int], ty: Any) -> Any:
    """Return the region of a moved buffer that is the whole tensor: it starts `base` elements before the tensor."""
    ranges = [tvm.ir.Range.from_min_extent(-low, size) for low, size in zip(base, buffer.shape, strict=True)]
    return tvm.ir.expr.TensorRegion(buffer, ranges, ty)


def _base(block: Any, buffer: Any) -> list[int]:
    """Return the first element of a tensor that a block's regions name."""
    for region in (*block.writes, *block.reads):
        if region.source.same_as(buffer):
            return [int(item.min) for item in region.region]
    raise BuildError(f"block {block.name_hint}: TVM's regions lack the tensor {buffer.name}")


class _Counted:
    """Copies statements with the indices of some tensors counted from their bases."""

    def __init__(self, tvm: Any, bases: list[tuple[Any, list[int]]]) -> None:
        self._tvm = tvm
        self._bases = bases

    def _base(self, buffer: Any) -> list[int] | None:
        return next((base for other, base in self._bases if other.same_as(buffer)), None)

    def _region(self, region: Any) -> Any:
        base = self._base(region.source)
        if base is None:
            return region
        ranges = [
            self._tvm.ir.Range.from_min_extent(item.min - low, item.extent)
            for item, low in zip(region.region, base, strict=True)
        ]
        return self._tvm.ir.expr.TensorRegion(region.source, ranges, region.ty)

    def statement(self, node: Any) -> Any:
        """Return a copy of a statement: loops, blocks and one store, which is what `blockize` leaves of a nest."""
        tirx, s_tir = self._tvm.tirx, self._tvm.s_tir
        kind = type(node).__name__
        if not self._bases:
            return node
        if kind == "For":
            return tirx.For(node.loop_var, node.min, node.extent, node.kind, self.statement(node.body))
        if kind == "SBlockRealize":
            return s_tir.SBlockRealize(node.iter_values, node.predicate, self.statement(node.block))
        if kind == "SBlock":
            reads, writes = [self._region(r) for r in node.reads], [self._region(r) for r in node.writes]
            return s_tir.SBlock(node.iter_vars, reads, writes, node.name_hint, self.statement(node.body))
        if kind == "BufferStore":
            return tirx.BufferStore(node.buffer, self._value(node.value), node.indices)
        raise BuildError(f"TVM made a {kind} of a nest, expected loops, blocks and a store")

    def _value(self, node: Any) -> Any:
        tirx = self._tvm.tirx
        kind = type(node).__name__
        if kind in ("Add", "Mul"):
            return getattr(tirx, kind)(self._value(node.a), self._value(node.b))
        if kind == "Cast":
            return tirx.Cast(node.ty, self._value(node.value))
        if kind == "Select":
            return tirx.Select(node.condition, self._value(node.true_value), node.false_value)
        if kind == "Call":
            condition, value, other = node.args
            return tirx.if_then_else(condition, self._value(value), other)
        if kind == "TensorLoad" and (base := self._base(node.source)) is not None:
            return node.source[tuple(index - low for index, low in zip(node.indices, base, strict=True))]
        return node

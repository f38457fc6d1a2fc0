"""CPU and GPU kernels in the place of a nest of a TVM function, as a trace that TVM can replay.

A schedule of anatune is not a sequence of TVM's schedule primitives but another program. TVM has one primitive that
puts a program in the place of a block: ``tensorize``. The trace inlines what feeds the nest (padding) and what follows
it, makes one block each of the nest's initialisation and its sum, and tensorizes the first with nothing and the second
with the kernel, which overwrites the result. The remaining element-wise blocks are distributed over threads and
vectors. Schedule and threads are annotations of the root block, so that the intrinsics can be made again from a tuning
record before TVM replays it: for all records of a function, plain loops under their names (`TirTask.stand_in`, a
microsecond each); for those that are applied, the kernel itself (`register_kernels`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType, ModuleType

from anatune.codegen.compat import TVM_ERRORS, import_tvm, last_line, parse_program
from anatune.codegen.tvm.intrinsic import make_plain_kernel, register_intrinsic
from anatune.codegen.tvm.nest import BlockNest, check_loops, read_block
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, BuildError, WorkloadError
from anatune.templates import get_template
from anatune.templates.cpu.program.program import program_of
from anatune.untyped import tirx, tvm

__all__ = [
    "ANNOTATION",
    "PREDICTED",
    "THREADS",
    "Names",
    "TirTask",
    "find_kernel_names",
    "read_annotated_schedule",
    "read_annotation",
    "read_recorded_kernel",
    "register_kernels",
]

Names = tuple[str, str]
"""The names of a kernel's two intrinsics: for the initialisation, and for the kernel itself."""

ANNOTATION = "anatune.schedule"
"""Annotation of the root block that holds the schedule's JSON."""

THREADS = "anatune.threads"
"""Annotation of the root block: number of threads of the kernel."""
PREDICTED = "anatune.predicted"
"""Annotation of the root block of a kernel that was not measured."""

_REDUCTION = 2
_VECTOR = 64
"""Largest length of a vectorised loop in the element-wise blocks around the nest, as in TVM's own rules."""
_PARALLEL_FROM = 1 << 14
"""Number of elements from which such a block is parallel, because a parallel loop costs some microseconds."""
_BLOCK_THREADS = 256
"""Number of threads of a block in the element-wise kernels around the nest: eight warps, as in TVM's own rules."""


class TirTask:
    """A TVM function with one nest for which anatune has kernels.

    Parameters
    ----------
    module : tvm.IRModule
        A module with one PrimFunc.
    threads : int
        Number of threads that the kernels run with.

    Raises
    ------
    WorkloadError
        The function has no such nest, or more than one reduction; the message gives the reason.
    """

    def __init__(self, module: tvm.IRModule, threads: int = 1) -> None:
        self.module = module
        self.threads = threads
        names = [str(name.name_hint) for name in module.get_global_vars()]
        if len(names) != 1:
            raise WorkloadError(f"the module has {len(names)} functions ({', '.join(names)}), expected one")
        self._function = names[0]
        self._inlines = True
        try:
            self._nest = self._prepare()[2]
        except WorkloadError:
            self._inlines = False  # the blocks that feed the nest stay separate
            self._nest = self._prepare()[2]
        try:
            self._place_kernel(import_tvm(), (f"anatune.{self.digest}.begin", f"anatune.{self.digest}"), None)
        except TVM_ERRORS as error:
            raise WorkloadError(f"TVM cannot put a kernel into {self._function}: {last_line(error)}") from None

    @property
    def workload(self) -> Workload:
        """The workload of the nest."""
        return self._nest.workload

    @cached_property
    def digest(self) -> str:
        """Hash of the function and the threads; it makes the kernels' names unique in a library of many functions."""
        tvm = import_tvm()
        return hashlib.sha256(f"{tvm.ir.save_json(self.module)} {self.threads}".encode()).hexdigest()[:12]

    def schedule(
        self, schedule: Schedule, names: Names | None = None, *, predicted: bool = False
    ) -> tvm.s_tir.Schedule:
        """Return a traced ``tvm.s_tir.Schedule`` of the function with the kernel of `schedule` in it.

        Parameters
        ----------
        schedule : Schedule
            From the space of `workload`.
        names : (str, str), optional
            Names of the intrinsics, if a trace has them already.
        predicted : bool
            Whether to mark the trace's time as a prediction.

        Raises
        ------
        BuildError
            The kernel cannot be written, or TVM cannot put it there.
        SpaceError
            The options contradict the tiles.
        """
        tvm = import_tvm()
        with _translate_errors(BuildError, f"TVM cannot put the kernel into {self._function}"):
            kernel = self._kernel(schedule, prefix=f"anatune_{self.digest}_{schedule.key}")
            notes = {ANNOTATION: schedule.to_json(), THREADS: self.threads}
            # TVM's error for a missing intrinsic contains only its name, so that the name says what to call
            name = f"anatune.{self.digest}.{schedule.key} "
            name += "(open the database with anatune.adapters.metaschedule.open_database)"
            return self._place_kernel(
                tvm, names or (f"{name}, begin", name), kernel, notes | ({PREDICTED: 1} if predicted else {})
            )

    def stand_in(self, kernels: Iterable[Names]) -> None:
        """Register the function's own loops under the names of kernels, so that their traces can be replayed.

        Raises
        ------
        BuildError
            TVM refuses the loops.
        """
        tvm = import_tvm()
        registry = tvm.s_tir.TensorIntrin
        with _translate_errors(BuildError, f"TVM cannot replay {self._function}"):
            first, *others = kernels
            schedule, block, nest = self._prepare()
            loops = schedule.get_loops(schedule.get_sblock(block, self._function))
            self._place_kernel(tvm, first, make_plain_kernel(tvm, schedule.get(loops[0]), list(nest.buffers)))
            intrinsics = [registry.get(name) for name in first]
            for names in others:
                for name, intrinsic in zip(names, intrinsics, strict=True):
                    registry.register(name, intrinsic.desc, intrinsic.impl, override=True)

    def _prepare(self) -> tuple[tvm.s_tir.Schedule, str, BlockNest]:
        """Return a new schedule with everything inlined that can be, the name of the nest's block, and the nest."""
        with _translate_errors(WorkloadError, f"function {self._function}"):
            return self._read(import_tvm())

    def _read(self, tvm: ModuleType) -> tuple[tvm.s_tir.Schedule, str, BlockNest]:
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
            candidate = schedule.get(block)
            written = [region.source for region in candidate.writes]
            feeds = any(buffer.same_as(other) for buffer in written for other in fed_by)
            is_result = any(buffer.same_as(other) for buffer in written for other in parameters)
            if str(candidate.name_hint) == name or is_result or (feeds and not self._inlines):
                continue
            try:
                schedule.compute_inline(schedule.get_sblock(str(candidate.name_hint), function))
            except TVM_ERRORS:
                continue  # TVM cannot substitute it; it stays a block
        nest = read_block(schedule.get(schedule.get_sblock(name, function)))
        check_loops(schedule.mod, function, name)
        return schedule, name, nest

    def _place_kernel(
        self, tvm: ModuleType, names: Names, kernel: tirx.PrimFunc | None,
        notes: Mapping[str, object] = MappingProxyType({}),
    ) -> tvm.s_tir.Schedule:  # fmt: skip
        """Return the traced schedule with a program (None: an empty one) in the place of the nest."""
        sch, name, nest = self._prepare()
        root = sch.get_sblock("root", self._function)
        for note, value in notes.items():
            sch.annotate(root, note, value)
        around = [str(sch.get(block).name_hint) for block in sch.get_child_blocks(root)]
        block = sch.get_sblock(name, self._function)
        start = sch.decompose_reduction(block, sch.get_loops(block)[0])
        total = sch.blockize(sch.get_loops(block)[0], preserve_unit_iters=False)
        begin = sch.blockize(sch.get_loops(start)[0], preserve_unit_iters=False)
        buffers = list(nest.buffers)
        register_intrinsic(tvm, names[0], sch.get(begin), buffers[-1:], None)
        register_intrinsic(tvm, names[1], sch.get(total), buffers, kernel)
        sch.tensorize(begin, names[0])
        sch.tensorize(total, names[1])
        for other in around:
            if other != name:
                self._spread(sch, sch.get_sblock(other, self._function))
        return sch

    def _kernel(self, schedule: Schedule, prefix: str) -> tirx.PrimFunc:
        self._check(schedule)
        program = program_of(schedule, threads=self.threads, prepacked=False, prefix=prefix)
        return parse_program(program.main, program.llvm)

    def _check(self, schedule: Schedule) -> None:
        """Raise BuildError for a schedule of another workload."""
        if schedule.workload != self.workload:
            raise BuildError(
                f"schedule is for {schedule.workload.describe()}, expected {self.workload.describe()}: make it with "
                "the space of this function's workload"
            )

    def _spread(self, sch: tvm.s_tir.Schedule, block: tvm.s_tir.schedule.SBlockRV) -> None:
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


class GpuTirTask(TirTask):
    """A TVM function with one nest for which anatune has GPU kernels; see `TirTask`.

    The blocks around the nest get their own threads, one kernel each. TVM writes and compiles the CUDA C: the changes
    of `anatune.codegen.cuda.lower` (byte offsets, loops that are not unrolled) are missing, but the results are the
    same.
    """

    def _kernel(self, schedule: Schedule, prefix: str) -> tirx.PrimFunc:
        self._check(schedule)
        program = get_template(schedule.template).program(schedule)
        return parse_program(program.script, "")

    def _spread(self, sch: tvm.s_tir.Schedule, block: tvm.s_tir.schedule.SBlockRV) -> None:
        """Give each element of an element-wise block its own thread."""
        loops = sch.get_loops(block)
        if not loops:
            return
        outer, inner = sch.split(sch.fuse(*loops) if len(loops) > 1 else loops[0], [None, _BLOCK_THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")


TASKS = {"cpu": TirTask, "gpu": GpuTirTask}
"""Kind of device -> class of its tasks."""


def read_annotated_schedule(trace: tvm.s_tir.schedule.Trace) -> Schedule | None:
    """Return the schedule in a trace of `TirTask.schedule`, or None if it has none.

    Raises
    ------
    SpaceError, WorkloadError
        The annotation is damaged.
    """
    text = read_annotation(trace, ANNOTATION)
    return None if text is None else Schedule.from_json(str(text))


def register_kernels(module: tvm.IRModule, trace: tvm.s_tir.schedule.Trace) -> bool:
    """Register the intrinsics of a trace with TVM, so that the trace can be replayed on the module.

    Parameters
    ----------
    module : tvm.IRModule
        The module that the trace was made for: the workload of its tuning record.
    trace : tvm.s_tir.Trace

    Returns
    -------
    bool
        Whether the trace contains a kernel of `TirTask`; other traces need no intrinsics.

    Raises
    ------
    BuildError, SpaceError, WorkloadError
        The trace does not fit the module, or its schedule is damaged.
    """
    names = find_kernel_names(trace)
    schedule = read_annotated_schedule(trace) if names is not None else None
    if schedule is None:
        return False
    TASKS[schedule.hardware.kind](module, int(read_annotation(trace, THREADS) or 1)).schedule(schedule, names)
    return True


def find_kernel_names(trace: tvm.s_tir.schedule.Trace) -> Names | None:
    """Return the names of anatune's intrinsics in a trace (``tvm.s_tir.schedule.Trace``), or None if it has none."""
    return _own_names([str(item.attrs[0]) for item in trace.insts if str(item.kind.name) == "Tensorize"])


def read_recorded_kernel(
    trace: Sequence[Sequence[tuple[str, list[str], list[str], list[str]]]],
) -> tuple[Names, int] | None:
    """Return the names and threads of the kernel in a recorded trace, ``[instructions, decisions]`` as in databases.

    The result is None if the trace contains no kernel of anatune.
    """
    names = _own_names([str(attrs[0]) for kind, _, attrs, _ in trace[0] if kind == "Tensorize"])
    if names is None:
        return None
    threads = [inputs[1] for kind, inputs, attrs, _ in trace[0] if kind == "Annotate" and attrs == [THREADS]]
    return names, int(threads[0]) if threads else 1


def _own_names(names: list[str]) -> Names | None:
    return (names[0], names[1]) if len(names) == 2 and all(name.startswith("anatune.") for name in names) else None


def read_annotation(trace: tvm.s_tir.schedule.Trace, key: str) -> str | int | None:
    """Return the value of an annotation in a trace, or None."""
    notes = (one for one in trace.insts if str(one.kind.name) == "Annotate")
    return next((one.inputs[1] for one in notes if [str(attr) for attr in one.attrs] == [key]), None)


@contextmanager
def _translate_errors(kind: type[AnatuneError], what: str) -> Iterator[None]:
    """Raise TVM's errors as errors of a class, with `what` before TVM's own words."""
    try:
        yield
    except AnatuneError:
        raise
    except TVM_ERRORS as error:
        raise kind(f"{what}: {last_line(error)}") from None


def _is_reduction(block: tvm.s_tir.SBlock) -> bool:
    return any(int(item.iter_type) == _REDUCTION for item in block.iter_vars)

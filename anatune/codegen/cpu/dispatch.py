"""Libraries of several CPU kernels for a range of extents: the kernel of each extent, and packing of constants."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import NamedTuple

import msgspec

from anatune.codegen.compat import compile_module, import_tvm, parse_program, target_of
from anatune.codegen.cpu.artifact import CpuArtifact, Packing
from anatune.codegen.linking import link_library
from anatune.core.accuracy import error_of
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError, SpaceError
from anatune.model.ranges.plan import RangePlan
from anatune.templates.cpu.program.program import CpuProgram
from anatune.templates.cpu.program.ranged import ranged_program
from anatune.templates.cpu.range_space import schedule_at
from anatune.untyped import tvm

__all__ = ["Dispatch", "LoweredRange", "RangeArtifact", "build_range", "lower_range", "make_dispatch"]


class Dispatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The assignment of the extents of an axis to programs (kernels). Immutable; JSON both ways.

    Attributes
    ----------
    axis : str
        The axis whose extent varies.
    first : int
        The smallest extent.
    schedules : tuple of Schedule
        The programs, each given as its schedule for the largest extent that it serves.
    lasts, programs : tuple of int
        For each interval in order, its last extent and the number of its program.
    """

    axis: str
    first: int
    schedules: tuple[Schedule, ...]
    lasts: tuple[int, ...]
    programs: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.schedules or len(self.lasts) != len(self.programs):
            raise SpaceError("range: there are no kernels, expected one for each interval")
        if list(self.lasts) != sorted(set(self.lasts)) or not 1 <= self.first <= self.lasts[0]:
            raise SpaceError(f"range: intervals end at {self.lasts!s:.60}, expected ascending ends")
        served = {number: last for last, number in zip(self.lasts, self.programs, strict=True)}
        largest_extents = {number: one.workload.extents.get(self.axis) for number, one in enumerate(self.schedules)}
        if served != largest_extents:
            raise SpaceError(
                f"range: the kernels are for {self.axis} up to {list(largest_extents.values())!s:.60}, but "
                f"serve {served!s:.60}"
            )

    def program_of(self, extent: int) -> int:
        """Return the number of the program that serves an extent.

        Raises
        ------
        SpaceError
            The extent is outside the range.
        """
        if not self.first <= extent <= self.lasts[-1]:
            raise SpaceError(f"{self.axis} is {extent}, expected {self.first} to {self.lasts[-1]}, its range")
        return self.programs[bisect.bisect_left(self.lasts, extent)]

    def least(self, program: int) -> int:
        """Return the smallest extent that a program serves."""
        number = self.programs.index(program)
        return self.lasts[number - 1] + 1 if number else self.first


def make_dispatch(plan: RangePlan) -> Dispatch:
    """Return the assignment of extents to programs in a plan for a range."""
    return Dispatch(
        axis=plan.workload.axis,
        first=plan.intervals[0].first,
        schedules=tuple(one.schedule for one in plan.programs),
        lasts=tuple(interval.last for interval in plan.intervals),
        programs=tuple(interval.program for interval in plan.intervals),
    )


class LoweredRange(NamedTuple):
    """A TVM module of all programs, and the packed forms of their constants.

    Attributes
    ----------
    module, target
        Functions ``main_<program>`` and ``pack_<tensor>_<form>``.
    programs : tuple of CpuProgram
        The generated programs, in order.
    forms : dict of str to tuple of int
        Constant -> number of elements of each of its packed forms.
    form_of : dict of str to tuple of int
        Constant -> number of the form that each program takes; -1: the program takes the tensor itself.
    """

    module: tvm.IRModule
    target: tvm.target.Target
    programs: tuple[CpuProgram, ...]
    forms: dict[str, tuple[int, ...]]
    form_of: dict[str, tuple[int, ...]]

    @property
    def workspace_bytes(self) -> int:
        """Largest memory that a call allocates and releases, bytes."""
        return max(program.workspace_bytes for program in self.programs)


def lower_range(dispatch: Dispatch, *, threads: int = 1) -> LoweredRange:
    """Lower the programs of a range to one TVM module; equal packed forms are generated once.

    Raises
    ------
    SpaceError, BuildError
        As in `ranged_program`.
    MissingDependencyError
        TVM is not installed.
    """
    hardware = dispatch.schedules[0].hardware
    if hardware.kind != "cpu":
        raise BuildError(f"schedules are for {hardware.name}, expected a CPU")
    tvm = import_tvm()
    functions = {}
    programs: list[CpuProgram] = []
    texts: dict[str, list[tuple[str, int]]] = {}
    form_of: dict[str, list[int]] = {}
    for number, schedule in enumerate(dispatch.schedules):
        program = ranged_program(
            schedule.check(),
            dispatch.axis,
            dispatch.least(number),
            threads=threads,
            name=f"main_{number}",
            prefix=f"program{number}_microkernel",
        )
        programs.append(program)
        functions[f"main_{number}"] = parse_program(program.main, program.llvm)
        for tensor, text in program.packing.items():
            known_forms = texts.setdefault(tensor, [])
            form = (text, program.packed_sizes[tensor])
            if form not in known_forms:
                name = f"pack_{tensor}_{len(known_forms)}"
                known_forms.append(form)
                functions[name] = parse_program(text, program.packing_llvm).with_attr("global_symbol", name)
            form_of.setdefault(tensor, [-1] * number).append(known_forms.index(form))
        for forms in form_of.values():
            forms += [-1] * (number + 1 - len(forms))
    return LoweredRange(
        tvm.IRModule(functions),
        target_of(hardware, threads=threads),
        tuple(programs),
        {tensor: tuple(size for _, size in known) for tensor, known in texts.items()},
        {tensor: tuple(forms) for tensor, forms in form_of.items()},
    )


def build_range(dispatch: Dispatch, folder: Path, *, threads: int = 1) -> RangeArtifact:
    """Build the programs of a range into one library in `folder`.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As in `lower_range`; or the programs cannot be compiled or linked.
    """
    lowered = lower_range(dispatch, threads=threads)
    path = Path(folder) / f"{dispatch.schedules[-1].key}_range_{threads}.so"
    link_library(compile_module(lowered.module, lowered.target), path)
    return RangeArtifact(str(path), dispatch, lowered.forms, lowered.form_of, threads)


class RangeArtifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built range: the library is a TVM module with the functions that `LoweredRange` lists."""

    library: str
    dispatch: Dispatch
    forms: dict[str, tuple[int, ...]]
    form_of: dict[str, tuple[int, ...]]
    threads: int = 1

    def at(self, extent: int) -> tuple[Schedule, CpuArtifact]:
        """Return the schedule for one extent, and the library as an artifact for it.

        Raises
        ------
        SpaceError
            The extent is outside the range.
        """
        number = self.dispatch.program_of(extent)
        schedule = schedule_at(self.dispatch.schedules[number], self.dispatch.axis, extent)
        arguments, packings = [], []
        for access in schedule.workload.tensors:
            form = self.form_of.get(access.tensor, ())[number : number + 1]
            shape = (self.forms[access.tensor][form[0]],) if form and form[0] >= 0 else access.shape
            arguments.append(Buffer(access.tensor, access.dtype, shape))
            if form and form[0] >= 0:
                packings.append(Packing(access.tensor, f"pack_{access.tensor}_{form[0]}", arguments[-1]))
        return schedule, CpuArtifact(
            schedule.key,
            self.library,
            tuple(arguments),
            tuple(packings),
            self.threads,
            {"flop": schedule.workload.flop},
            error_of(schedule),
            f"main_{number}",
        )

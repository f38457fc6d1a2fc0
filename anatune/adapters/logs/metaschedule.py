"""MetaSchedule's databases: one JSON line for each measurement, with trace, times, target and the tensors' shapes.

The function of a line is in database_workload.json beside it, as a TVM program. Reading it takes TVM, which is not
imported here, so the caller passes a reader. Without a reader, only matrix products follow from the shapes, and a
given workload is checked against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.adapters.logs.devices import DeviceStatement, parse_target
from anatune.adapters.logs.files import NO_JSON, decode
from anatune.adapters.logs.parts import LogEntry, Shape, check_shapes, gpu_schedule, match_loops, product_of, read_times
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.files import read_lines
from anatune.records.traces import GPU_LEVELS, GPU_TILING, Factors, Json, UnfitError, match_axes, read_trace

FunctionReader = Callable[[Json], "tuple[Workload, Workload] | str"]
"""A function from an entry of database_workload.json to the loop nest of its function and the workload with the usual
operator name, or to the reason why there is none."""
_WORKLOADS = "database_workload.json"


class _Arguments(NamedTuple):
    shapes: list[Shape]
    dtypes: list[str]


class MetaScheduleReader:
    """Reads the lines of one database.

    Parameters
    ----------
    path : Path
        The file of tuning records.
    read_function : callable, optional
        The reader for the entries of database_workload.json beside it.
    """

    def __init__(self, path: Path, read_function: FunctionReader | None = None) -> None:
        self._entries = _function_entries(path) if read_function is not None else []
        self._read_function = read_function
        self._functions: dict[int, tuple[Workload, Workload] | str] = {}

    def device_of(self, entry: Json) -> DeviceStatement | None:
        """Return the device that a line states."""
        target = entry[1][2]
        return parse_target(target) if target else None

    def read_line(self, entry: Json, hardware: HardwareSpec, workload: Workload | None) -> LogEntry:
        """Read the schedule and measurement of a line.

        Raises
        ------
        UnfitError
            The line belongs to another workload, does not state one, or no template of anatune has its tiling.
        """
        number, ((instructions, decisions), times, _, arguments) = entry
        tiling = read_trace(instructions, decisions)
        if tiling.structure != GPU_TILING:
            raise UnfitError(f"the tiling is {tiling.structure} (CPUs), whose vectors depend on the tensors' layout")
        stated = _arguments(arguments)
        function = self._function(int(number))
        if isinstance(function, tuple):
            nest, tuned = function
            if workload is not None and workload != tuned:
                raise UnfitError(f"another workload: {tuned.describe()}")
            tiles = match_axes(tiling, nest)
            tiles = {axis.name: tiles.get(axis.name, (1,) * GPU_LEVELS[axis.kind]) for axis in tuned.axes}
        else:
            loops = tiling.loops("S"), tiling.loops("R")
            if workload is not None:
                check_shapes(workload, stated.shapes, stated.dtypes)
            tuned = workload or _infer_product(stated, loops, function)
            tiles = match_loops(tuned, *loops)
        staged = [access.tensor for access in tuned.reads]
        vector = {staged[number]: width for number, width in tiling.fetch.items() if number < len(staged)}
        schedule = gpu_schedule(tuned, hardware, tiles, tiling.unroll, vector, tiling.stages)
        return LogEntry(schedule, read_times(times or [], None if times else Outcome.RUN_ERROR))

    def _function(self, number: int) -> tuple[Workload, Workload] | str:
        """Return the workload of a line's function, or the reason why it is not known."""
        if self._read_function is None or not 0 <= number < len(self._entries):
            return ""
        if number not in self._functions:
            self._functions[number] = self._read_function(self._entries[number])
        return self._functions[number]


def _function_entries(path: Path) -> list[Json]:
    """Return the functions of a database; empty if its other file is missing or damaged."""
    beside = path.with_name(path.name.replace("tuning_record", "workload"))
    beside = beside if beside != path else path.with_name(_WORKLOADS)
    if not beside.is_file():
        return []
    try:
        return [decode(line) for line in read_lines(beside) if line.strip()]
    except (OSError, UnicodeDecodeError, *NO_JSON):
        return []


def _arguments(arguments: Json) -> _Arguments:
    """Return the shapes of a line's tensors: ["TENSOR", dtype, shape]."""
    tensors = [
        argument
        for argument in arguments or []
        if isinstance(argument, list) and len(argument) == 3 and argument[0] == "TENSOR"
    ]
    return _Arguments([tuple(map(int, shape)) for _, _, shape in tensors], [str(dtype) for _, dtype, _ in tensors])


def _infer_product(stated: _Arguments, loops: Sequence[Sequence[Factors]], why: str) -> Workload:
    extents = [math.prod(factors) for kind in loops for factors in kind]
    try:
        return product_of(stated.shapes, stated.dtypes[0] if stated.dtypes else "float32", extents)
    except UnfitError as reason:
        raise UnfitError(f"{reason}{f'; {_WORKLOADS}: {why}' if why else ''}") from None

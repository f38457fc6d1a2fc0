"""MetaSchedule's databases: one line of JSON a measurement, with its trace, times, target and the tensors' shapes.

What a line is of stands in database_workload.json beside it, as TVM's own program: reading it takes TVM, which this
floor does not know, so the caller brings the reader. Without one, shapes settle matrix products, and the workload given
is checked against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.adapters.logs.devices import DeviceStatement, parse_target
from anatune.adapters.logs.files import NO_JSON, decode
from anatune.adapters.logs.parts import Line, Shape, check_shapes, gpu_schedule, match_loops, measured, product_of
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.files import read_lines
from anatune.records.traces import GPU_LEVELS, GPU_TILING, Factors, Json, UnfitError, match_axes, read_trace

FunctionReader = Callable[[Json], "tuple[Workload, Workload] | str"]
"""An entry of database_workload.json -> the loop nest of its function and the workload that people call it, or why
there is none."""
_WORKLOADS = "database_workload.json"


class _Arguments(NamedTuple):
    shapes: list[Shape]
    dtypes: list[str]


class MetaScheduleReader:
    """Reads the lines of one database.

    Parameters
    ----------
    path : Path
        Of the file of tuning records.
    read_function : callable, optional
        Reads what stands in database_workload.json beside it.
    """

    def __init__(self, path: Path, read_function: FunctionReader | None = None) -> None:
        self._entries = _function_entries(path) if read_function is not None else []
        self._read_function = read_function
        self._functions: dict[int, tuple[Workload, Workload] | str] = {}

    def device_of(self, entry: Json) -> DeviceStatement | None:
        """Return what a line says about the device."""
        target = entry[1][2]
        return parse_target(target) if target else None

    def read_line(self, entry: Json, hardware: HardwareSpec, workload: Workload | None) -> Line:
        """Read a line.

        Raises
        ------
        UnfitError
            It is of another workload, does not say which, or is not tiled as a template of anatune's.
        """
        number, ((instructions, decisions), times, _, arguments) = entry
        tiling = read_trace(instructions, decisions)
        if tiling.structure != GPU_TILING:
            raise UnfitError(f"tiling {tiling.structure}, which is for CPUs: its vectors follow the tensors' layout")
        said = _arguments(arguments)
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
                check_shapes(workload, said.shapes, said.dtypes)
            tuned = workload or _product(said, loops, function)
            tiles = match_loops(tuned, *loops)
        staged = [access.tensor for access in tuned.reads]
        vector = {staged[number]: width for number, width in tiling.fetch.items() if number < len(staged)}
        schedule = gpu_schedule(tuned, hardware, tiles, tiling.unroll, vector, tiling.stages)
        return Line(schedule, measured(times or [], None if times else Outcome.RUN_ERROR))

    def _function(self, number: int) -> tuple[Workload, Workload] | str:
        """Return what a line's function computes, or why that is not known."""
        if self._read_function is None or not 0 <= number < len(self._entries):
            return ""
        if number not in self._functions:
            self._functions[number] = self._read_function(self._entries[number])
        return self._functions[number]


def _function_entries(path: Path) -> list[Json]:
    """Return the functions of a database, none where its other file is missing or damaged."""
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


def _product(said: _Arguments, loops: Sequence[Sequence[Factors]], why: str) -> Workload:
    extents = [math.prod(factors) for kind in loops for factors in kind]
    try:
        return product_of(said.shapes, said.dtypes[0] if said.dtypes else "float32", extents)
    except UnfitError as reason:
        raise UnfitError(f"{reason}{f'; {_WORKLOADS}: {why}' if why else ''}") from None

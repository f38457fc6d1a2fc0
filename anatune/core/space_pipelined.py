"""The GPU tile space with a choice of staging pipeline and of padded rows in shared memory.

A point is a point of the template "cuda" followed by ``stages`` (buffers of the staging pipeline: while one is used,
the others are filled) and ``pad`` (elements between the rows of staged tiles, against bank conflicts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.arguments import shown
from anatune.core.hardware import GpuSpec
from anatune.core.implicit_gemm import guarded_dimensions
from anatune.core.schedule import Schedule
from anatune.core.space_gpu import MAX_FETCH_BYTES, GpuSpace, LegalityCheck
from anatune.core.template_names import PIPELINED
from anatune.core.workload import DTYPE_BYTES, Workload
from anatune.errors import SpaceError

__all__ = ["ASYNC_SINCE", "PipelinedSpace", "pads", "stage_counts"]

ASYNC_SINCE = 8.0
"""Compute capability that copies from global to shared memory beside the arithmetic (cp.async)."""


def stage_counts(workload: Workload, hardware: GpuSpec) -> tuple[int, ...]:
    """Return the numbers of buffers that are of use: three where every copy can be asynchronous, else two."""
    capable = (hardware.compute_capability or 0.0) >= ASYNC_SINCE
    zero_padded = workload.body != "max" or not any(
        any(guarded_dimensions(access, workload)) for access in workload.reads
    )
    return (1, 2, 3) if capable and zero_padded and DTYPE_BYTES[workload.dtype] >= 4 else (1, 2)


def pads(workload: Workload) -> tuple[int, ...]:
    """Return the gaps between rows, elements: none, or as wide as the widest access (vectors stay aligned)."""
    return (0, MAX_FETCH_BYTES // DTYPE_BYTES[workload.dtype])


class PipelinedSpace(GpuSpace):
    """All schedules of one workload on one GPU, pipelines included; otherwise as `GpuSpace`.

    Raises
    ------
    SpaceError
        The device is none of NVIDIA's, or the workload has nothing to stage.
    """

    template = PIPELINED

    def __init__(self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck) -> None:
        super().__init__(workload, hardware, is_legal)
        if not hardware.arch.startswith("sm_") or not self.staged:
            what = f"{hardware.name} is of {hardware.arch}" if self.staged else f"{workload.operator} has no reduction"
            raise SpaceError(
                f"template pipelined: {what}, expected an NVIDIA GPU and operands to stage; use the template cuda"
            )
        self.stage_counts = stage_counts(workload, hardware)
        self.pads = pads(workload)
        self.choices |= {"stages": self.stage_counts, "pad": self.pads}

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        values = self._values(point)
        plain = self._plain_schedule(values[:-2])
        return msgspec.structs.replace(plain, options={"stages": values[-2], "pad": values[-1]})

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64; errors as `GpuSpace.point_of`."""
        self._check_own(schedule)
        given = dict(schedule.options)
        extra = [self._choice(name, given.pop(name, least)) for name, least in (("stages", 1), ("pad", 0))]
        if given:
            raise SpaceError(f"schedule has the option {next(iter(given))!r}, expected some of stages, pad")
        return np.array([*super().point_of(schedule), *extra])

    def schedule(
        self,
        tiles: Mapping[str, Sequence[int]],
        unroll: int = 0,
        vector: Mapping[str, int] | None = None,
        stages: int = 2,
        pad: int = 0,
    ) -> Schedule:
        """Build the schedule with these factors; parameters and errors as `GpuSpace.schedule`.

        Parameters
        ----------
        stages : int
            Buffers of the staging pipeline, one of `stage_counts`.
        pad : int
            Elements between the rows of staged tiles, one of `pads`.
        """
        options = {"stages": self._choice("stages", stages), "pad": self._choice("pad", pad)}
        return msgspec.structs.replace(super().schedule(tiles, unroll, vector), options=options)

    def _choice(self, name: str, value: object) -> int:
        choices = self.stage_counts if name == "stages" else self.pads
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value in choices:
            return int(value)
        raise SpaceError(f"{name} is {shown(value)}, expected one of {', '.join(map(str, choices))}")

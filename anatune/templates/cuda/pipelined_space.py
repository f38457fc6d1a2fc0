"""The space of the template "pipelined": that of "cuda", with the staging pipeline and padded rows as choices.

A point is a point of the template "cuda" followed by ``stages`` (buffers of the staging pipeline: while one is read,
the others are filled) and ``pad`` (elements between the rows of staged tiles, which avoid bank conflicts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.base.space import LegalityCheck
from anatune.templates.cuda.rules import (
    ASYNC_SINCE,
    check_pipeline_applies,
    check_pipeline_option,
    pads,
    pipeline_of,
    stage_counts,
)
from anatune.templates.cuda.space import GpuSpace

__all__ = ["ASYNC_SINCE", "PipelinedSpace", "pads", "stage_counts"]


class PipelinedSpace(GpuSpace):
    """All schedules of the template "pipelined" for one workload on one GPU; otherwise like `GpuSpace`.

    Raises
    ------
    SpaceError
        The device is not from NVIDIA, or the workload has no operands to stage.
    """

    template = "pipelined"

    def __init__(
        self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck, accuracy: str = STANDARD
    ) -> None:
        super().__init__(workload, hardware, is_legal, accuracy)
        check_pipeline_applies(workload, hardware)
        self.stage_counts = stage_counts(workload, hardware)
        self.pads = pads(workload)
        self.choices |= {"stages": self.stage_counts, "pad": self.pads}

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Return the schedule of one point (a vector in the order of `columns`)."""
        values = self._values(point)
        plain = self.cuda_schedule(values[:-2])
        return msgspec.structs.replace(plain, options=dict(plain.options) | {"stages": values[-2], "pad": values[-1]})

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64. Errors are those of `GpuSpace.point_of`."""
        point = super().point_of(schedule)
        stages, pad = pipeline_of(schedule.options)  # the schedule may be for another device
        return np.array([*point, self._choice("stages", stages), self._choice("pad", pad)])

    def schedule(
        self,
        tiles: Mapping[str, Sequence[int]],
        unroll: int = 0,
        vector: Mapping[str, int] | None = None,
        stages: int = 2,
        pad: int = 0,
        *,
        split: Mapping[str, int] | None = None,
    ) -> Schedule:
        """Return the schedule with these factors. The other parameters and the errors are those of `GpuSpace.schedule`.

        Parameters
        ----------
        stages : int
            Buffers of the staging pipeline, one of `stage_counts`.
        pad : int
            Elements between the rows of staged tiles, one of `pads`.
        """
        options = {"stages": self._choice("stages", stages), "pad": self._choice("pad", pad)}
        plain = super().schedule(tiles, unroll, vector, split=split)
        return msgspec.structs.replace(plain, options=dict(plain.options) | options)

    def _choice(self, name: str, value: object) -> int:
        return check_pipeline_option(name, value, self.workload, self.hardware)

"""The analytical CPU model: ranks and explains the schedules of one workload on one CPU."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from anatune.core.accuracy import RELAXED, admits
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.features import FeatureTable
from anatune.templates.base.model import Points, Ranking
from anatune.templates.base.watch import Watch
from anatune.templates.cpu.extension_spaces import AmxSpace, HalfSumsSpace
from anatune.templates.cpu.model.features import cpu_features
from anatune.templates.cpu.model.order import loop_nest
from anatune.templates.cpu.model.ranking import rank
from anatune.templates.cpu.model.scoring import CpuScoring

__all__ = ["AmxModel", "CpuModel", "HalfSumsModel"]


class CpuModel(CpuScoring):
    """Predicts the times of schedules of `workload` on `hardware`, and ranks them exactly.

    Parameters as `CpuScoring`. A distinct ranking looks at a limited number of points, so it can return fewer than
    `top_k`. `cpu.model.ranking` describes the order of ties.
    """

    def program_key(self, point: Points) -> Hashable:
        """Return a key that is equal for points with the same loop nest."""
        return loop_nest(self.space, np.asarray(point, dtype=np.int64))

    def feature_table(self, points: Points) -> FeatureTable:
        """Return the features of points, see `cpu.model.features`."""
        return cpu_features(self, np.atleast_2d(points))

    def _rank(self, top_k: int, watch: Watch, *, distinct: bool) -> Ranking:
        return rank(self, top_k, watch, distinct=distinct)


class HalfSumsModel(CpuModel):
    """Predicts and ranks schedules whose calls sum in float16.

    Parameters
    ----------
    workload, hardware
        The computation and the spec of the CPU.
    accuracy : {"standard", "relaxed"}
        The accuracy that the user accepts.

    Raises
    ------
    SpaceError
        The accuracy does not admit sums in float16, or as for `HalfSumsSpace`.
    """

    def __init__(self, workload: Workload, hardware: CpuSpec, accuracy: str = RELAXED) -> None:
        if not admits(accuracy, RELAXED):
            raise SpaceError(
                f"template {HalfSumsSpace.template} needs accuracy {RELAXED} (--accuracy {RELAXED}), got {accuracy}"
            )
        super().__init__(workload, hardware, HalfSumsSpace(workload, hardware, self._is_legal))


class AmxModel(CpuModel):
    """Predicts and ranks schedules on AMX tiles; parameters and errors as `AmxSpace`."""

    def __init__(self, workload: Workload, hardware: CpuSpec) -> None:
        super().__init__(workload, hardware, AmxSpace(workload, hardware, self._is_legal))

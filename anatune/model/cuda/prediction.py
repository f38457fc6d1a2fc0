"""One readable prediction from the columns of a GPU model, CUDA cores or tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anatune.core.prediction import Prediction
from anatune.core.workload.nest import Workload
from anatune.model.base import Rule
from anatune.numerics.cuda.columns import Limiter

__all__ = ["FEATURES", "LIMITERS", "gpu_predictions"]

FEATURES = (
    "OI_Global_Mem",
    "OI_Shared_Mem",
    "Reg_Reuse_Factor",
    "ILP",
    "WLP",
    "Estimated_Occupancy",
    "Wave_Efficiency",
)
"""The seven features of [ICS24] Sec. 4.1, under the paper's names."""
LIMITERS = {int(limiter): limiter.name.lower() for limiter in Limiter}
_LEVELS = {"dram": "dram_bytes", "l2": "l2_bytes", "shared": "shared_traffic_bytes"}
"""Memory level -> column of the bytes that cross it."""


class _GpuModel(Protocol):
    @property
    def workload(self) -> Workload: ...

    @property
    def rules(self) -> tuple[Rule, ...]: ...

    @property
    def io_bounds(self) -> dict[str, float]: ...


def gpu_predictions(
    model: _GpuModel,
    time_s: NDArray[np.float64],
    rules: NDArray[np.int64],
    columns: Mapping[str, NDArray[np.float64]],
    part_names: Sequence[str],
    resources: Sequence[str],
) -> list[Prediction]:
    """Return one prediction a point, in order.

    Parameters
    ----------
    model
        Whose points they are.
    time_s : (num_points,) float64
    rules : (num_points,) int64
        0, or 1 + the number of the rule that a point breaks.
    columns : mapping of str to (num_points,) float64
        Every quantity by name.
    part_names, resources : sequence of str
        Columns that are parts of the time, and resources.
    """
    lists = {name: values.tolist() for name, values in columns.items()}
    return [
        _prediction(model, lists, row, float(time_s[row]), int(rules[row]), part_names, resources)
        for row in range(len(time_s))
    ]


def _prediction(
    model: _GpuModel,
    columns: Mapping[str, Sequence[float]],
    row: int,
    time_s: float,
    rule: int,
    part_names: Sequence[str],
    resources: Sequence[str],
) -> Prediction:
    parts = {name: columns[name][row] for name in part_names}
    return Prediction(
        time_s=time_s,
        gflop_per_s=model.workload.flop / time_s / 1e9,
        parts=parts,
        bound_by=max(parts, key=lambda name: parts[name]).removesuffix("_s"),
        occupancy=columns["occupancy"][row],
        occupancy_limiter=LIMITERS[int(columns["limiter"][row])],
        waves=columns["waves"][row],
        features={name: columns[name][row] for name in FEATURES},
        traffic_over_bound={level: columns[_LEVELS[level]][row] / bound for level, bound in model.io_bounds.items()},
        resources={name: columns[name][row] for name in resources},
        legal=rule == 0,
        rule="" if rule == 0 else model.rules[rule - 1].id,
    )

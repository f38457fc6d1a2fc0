"""The space of products with scales and of products of experts.

A point is an integer vector in the order of `GroupedSpace.columns`. The space is small enough to be evaluated whole.
"""

from __future__ import annotations

from types import MappingProxyType

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.core.workload.scaling import SIDE
from anatune.templates.base.space import LegalityCheck, SpacePart
from anatune.templates.triton.grouped.rules import check_supported, least_tile, options_of, warps_of
from anatune.templates.triton.rules import OPTIONS
from anatune.templates.triton.space import MOST_DEPTH, MOST_TILE, TileSpace, splits

__all__ = ["GroupedSpace"]


class GroupedSpace(TileSpace):
    """All schedules of one product with scales, or of experts, on one GPU.

    Spaces are deterministic and immutable, so that threads may share them.

    Parameters
    ----------
    workload, hardware
        Workload and device.
    is_legal : callable
        Test of the hardware's limits, which the model supplies: (num_points, num_columns) int64 -> (num_points,) bool.

    Raises
    ------
    SpaceError
        The errors of `check_supported`.
    """

    limits = OPTIONS
    defaults = MappingProxyType({"group_m": 8, "split_k": 1, "num_warps": 4, "num_stages": 3})
    example = "{'m': 64, 'n': 128, 'k': 64}"

    def __init__(self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck) -> None:
        self.problem = check_supported(workload, hardware)
        extents = {"m": self.problem.rows, "n": self.problem.columns, "k": self.problem.k}
        super().__init__(workload, hardware, is_legal, extents)
        self.least = least_tile(self.problem, hardware)
        self.choices = {name: self._values_of(name) for name in options_of(self.problem, hardware)}

    def _axis(self, axis: str) -> SpacePart:
        most = MOST_TILE
        if axis == "k":
            formats = self.problem.format
            # rows of weights that are converted may be as long as rows of other weights
            deepest = MOST_DEPTH * 8 // max(formats.data_bits // 2, formats.weight_bits)
            most = SIDE if self.problem.scales == "blocks" else deepest
        return self._powers(axis, self.least[axis], min(most, self.extents[axis]))

    def _default_tile(self, axis: str) -> int:
        return max(64, self.least[axis])

    def _values_of(self, option: str) -> tuple[int, ...]:
        """Return the values of an option in the space."""
        values: dict[str, tuple[int, ...]] = {
            "group_m": (1, 16) if self.problem.experts else (1, 8),
            "split_k": splits(self.problem.rows * self.problem.columns, self.problem.k, self.hardware),
            "num_warps": warps_of(self.problem, self.hardware),
        }
        return values[option] if option in values else super()._values_of(option)

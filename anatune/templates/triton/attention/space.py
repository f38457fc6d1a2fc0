"""The space of attention's tiles: block_m rows, block_n keys per step, warps, stages, parts of the keys.

A point is an integer vector in the order of `AttentionSpace.columns`. The space is small enough to be evaluated whole.
"""

from __future__ import annotations

from types import MappingProxyType

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.space import LegalityCheck, SpacePart
from anatune.templates.triton.attention.rules import OPTIONS, check_supported, options_of
from anatune.templates.triton.rules import LEAST_TILE
from anatune.templates.triton.space import TileSpace

__all__ = ["AttentionSpace"]

_MOST = {"m": 256, "n": 256}
_LEAST_PART = 128
"""Fewest keys of a part."""
_MOST_SPLIT = 128


class AttentionSpace(TileSpace):
    """All schedules of one attention on one GPU.

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
    defaults = MappingProxyType({"split_kv": 1, "num_warps": 4, "num_stages": 2})
    example = "{'m': 128, 'n': 64}"

    def __init__(self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck) -> None:
        self.problem = check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal, {"m": self.problem.rows, "n": self.problem.seq_kv})
        self.choices = {name: self._values_of(name) for name in options_of(self.problem, hardware)}

    def _axis(self, axis: str) -> SpacePart:
        return self._powers(axis, LEAST_TILE, min(_MOST[axis], self.extents[axis]))

    def _values_of(self, option: str) -> tuple[int, ...]:
        """Return the values of an option in the space."""
        if option == "split_kv":
            return self._splits()
        values = super()._values_of(option)
        return values[:-1] if option == "num_stages" else values

    def _splits(self) -> tuple[int, ...]:
        """Return the values of split_kv in the space. There are several only if tiles do not fill the device."""
        problem, seen = self.problem, min(self.problem.window or self.problem.seq_kv, self.problem.seq_kv)
        tiles = problem.groups * -(-problem.rows // 128)
        most = min(_MOST_SPLIT, seen // _LEAST_PART, 8 * self.hardware.compute.num_sms // tiles)
        return tuple(2**e for e in range(max(1, most).bit_length()))

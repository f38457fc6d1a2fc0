"""The space of kernels on rows: tiles that are powers of two, and warps. It is small enough to be evaluated whole."""

from __future__ import annotations

from types import MappingProxyType

from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.space import LegalityCheck, SpacePart
from anatune.templates.triton.rows.rules import OPTIONS, check_supported
from anatune.templates.triton.space import TileSpace

__all__ = ["RowSpace"]

_MOST_ROWS = 64
_MOST_COLS = 1 << 15
"""Largest number of columns of a tile in the space: 32 warps hold so many columns of a row."""
_LEAST_COLS = 128


class RowSpace(TileSpace):
    """All schedules of kernels on rows for one workload on one GPU.

    Spaces are deterministic and immutable, so that threads may share them.

    Raises
    ------
    SpaceError
        The errors of `check_supported`.
    """

    limits = OPTIONS
    defaults = MappingProxyType({"num_warps": 4})
    example = "{'rows': 1, 'cols': 4096}"

    def __init__(
        self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck, accuracy: str = STANDARD
    ) -> None:
        self.rows = check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal, {"rows": self.rows.rows, "cols": self.rows.cols})
        self.accuracy = validate_accuracy("accuracy", accuracy)
        most = hardware.compute.max_threads_per_block // hardware.compute.warp_size
        self.choices = {"num_warps": tuple(2**e for e in range(min(32, most).bit_length()))}

    def _axis(self, axis: str) -> SpacePart:
        covering = 1 << (self.extents[axis] - 1).bit_length()
        least, most = (1, _MOST_ROWS) if axis == "rows" else (min(_LEAST_COLS, covering), _MOST_COLS)
        return self._powers(axis, least, min(most, covering))

    def _default_tile(self, axis: str) -> int:
        return 1 if axis == "rows" else 1 << (self.rows.cols - 1).bit_length()

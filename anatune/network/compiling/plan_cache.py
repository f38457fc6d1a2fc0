"""Cache plans of products on disk, so that for a changed model only new products are planned.

The key of an entry has all that its plan depends on: the sources of this package, the corrections, the device, the
accuracy, the product, and its constant operands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.disk_cache import DiskCache, sources_of
from anatune.errors import AnatuneError
from anatune.model.learned.corrections import digest_of_cards
from anatune.resources import user_cache_folder

__all__ = ["PlanCache"]

_MOST_BYTES = 64 << 20


class PlanCache:
    """First choices of the analytical models for products on one CPU.

    Parameters
    ----------
    hardware : CpuSpec
    accuracy : str
    folder : Path, optional
        The cache folder; by default the user's.
    """

    def __init__(self, hardware: CpuSpec, accuracy: str, folder: Path | None = None) -> None:
        base = folder or user_cache_folder()
        self._disk = DiskCache(None if base is None else base / "plans", ".json", _MOST_BYTES)
        self._device = msgspec.json.encode([sources_of(), digest_of_cards(), accuracy, hardware], order="sorted")

    def schedules(
        self, workload: Workload, constants: Sequence[str], template: str, search: Callable[[], list[Schedule]]
    ) -> list[Schedule]:
        """Return the schedules that a search finds in a template for a product, from the cache if it has them."""
        question = msgspec.json.encode([workload, sorted(constants), template], order="sorted")
        key = hashlib.sha256(self._device + question).hexdigest()
        cached = self._disk.read(key)
        if cached is not None:
            try:
                return [Schedule.from_json(text) for text in from_json(cached, list[str])]
            except (msgspec.DecodeError, AnatuneError):
                pass
        schedules = search()
        self._disk.write(key, msgspec.json.encode([schedule.to_json() for schedule in schedules]))
        return schedules

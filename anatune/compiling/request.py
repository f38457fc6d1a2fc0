"""What a call of `anatune.compile` asks for, whatever device it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from anatune.compiling.tuning import TuningBudget
from anatune.tuning.cost import ModelEstimate
from anatune.tuning.result import ModelProgress

__all__ = ["Request"]


class Request(NamedTuple):
    """Arguments of `anatune.compiling.session.compile`, checked as far as they do not depend on the device."""

    threads: int | None
    accuracy: str
    budget: TuningBudget
    check: bool | None
    progress: Callable[[int, int], None] | None
    tuning_progress: Callable[[ModelProgress], None] | None
    on_estimate: Callable[[ModelEstimate], None] | None = None

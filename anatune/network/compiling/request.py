"""What a call of `anatune.compile` asks for, whatever device it is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from anatune.arguments import (
    MOST_TRIALS,
    checked_flag,
    checked_function,
    checked_integer,
    checked_seconds,
    shown,
)
from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.errors import RecordError, SpaceError
from anatune.network.graph.nodes import HALVES
from anatune.network.graph.passes.precision import FP8, WIDE
from anatune.records.place import ServerAddress, record_place

if TYPE_CHECKING:
    from anatune.tuning.cost import ModelEstimate
    from anatune.tuning.result import ModelProgress

__all__ = ["PART", "PRECISIONS", "Request"]

PRECISIONS = (WIDE, *HALVES, "int8", FP8)
"""Dtypes that products may be brought to."""
PART = 12
"""Most trials of one kernel before the next choice: a session costs planning and its processes each time."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `anatune.compile`, checked as far as they do not depend on the device. Immutable.

    Attributes
    ----------
    threads, accuracy, trials, time_limit_s, resume, check, progress, tuning_progress, on_estimate,
    on_stage
        As `anatune.compile`.
    records : Path or ServerAddress, optional
        Made of what names it.
    cluster, tls, tracker, key, reuse
        As `anatune.tune`: who measures, and whether recorded schedules are asked for first.
    stop_at, patience
        As `anatune.tune`, of each kernel.
    precision : {"float32", "bfloat16", "float16", "int8", "fp8"}, optional
        In which products are multiplied; None: as the model says, where the processor has instructions for it.
    fallback : {"onnxruntime"}, optional
    percentile : float, optional
        As `anatune.compile`.

    Raises
    ------
    SpaceError, RecordError
        One of them is wrong.
    """

    threads: int | None = None
    accuracy: str = STANDARD
    precision: str | None = None
    trials: int = 0
    time_limit_s: float | None = None
    records: str | Path | ServerAddress | None = None
    resume: bool = False
    check: bool | None = None
    progress: Callable[[int, int], None] | None = None
    tuning_progress: Callable[[ModelProgress], None] | None = None
    cluster: object = None
    tls: str | Path | None = None
    tracker: str | None = None
    key: str | None = None
    reuse: bool = True
    stop_at: float | None = None
    patience: int | None = None
    on_estimate: Callable[[ModelEstimate], None] | None = None
    on_stage: Callable[[str], None] | None = None
    fallback: str | None = None
    percentile: float | None = None

    @property
    def elsewhere(self) -> dict[str, Any]:
        """Who measures, by the names of `anatune.tune`'s keywords."""
        return {"cluster": self.cluster, "tls": self.tls, "tracker": self.tracker, "key": self.key}

    @property
    def rules(self) -> dict[str, Any]:
        """What ends a kernel's sessions early, by the names of `anatune.tune`'s keywords."""
        return {"stop_at": self.stop_at, "patience": self.patience}

    @property
    def is_elsewhere(self) -> bool:
        """Whether another machine measures."""
        return any(value is not None for value in self.elsewhere.values())

    @property
    def may_end_early(self) -> bool:
        """Whether measuring may end before all trials are made."""
        return any(value is not None for value in (self.time_limit_s, *self.rules.values()))

    def __post_init__(self) -> None:
        if self.check is not None:
            msgspec.structs.force_setattr(self, "check", checked_flag("compile: check", self.check))  # NumPy's, too
        for name in ("progress", "tuning_progress", "on_estimate", "on_stage"):
            checked_function(f"compile: {name}", getattr(self, name))
        if self.fallback not in (None, "onnxruntime"):
            raise SpaceError(f"compile: fallback is {shown(self.fallback)}, expected 'onnxruntime', or none")
        if self.precision is not None and not (isinstance(self.precision, str) and self.precision in PRECISIONS):
            raise SpaceError(
                f"compile: precision is {shown(self.precision)}, expected {' or '.join(PRECISIONS)}; leave it out to "
                "keep the model's own"
            )
        if self.percentile is not None:
            share = self.percentile
            if isinstance(share, bool) or not isinstance(share, int | float) or not 50 < share <= 100:
                raise SpaceError(f"compile: percentile is {shown(share)}, expected a number above 50, up to 100")
        checked_accuracy("compile: accuracy", self.accuracy)
        checked_integer("compile: trials", self.trials, 0, MOST_TRIALS)
        checked_seconds("compile: time_limit_s", self.time_limit_s)
        checked_flag("compile: resume", self.resume)
        if not self.trials and self.is_elsewhere:
            raise SpaceError("compile: a cluster or a tracker is named, but trials is 0; say how many, or leave it out")
        if self.reuse is not True or self.is_elsewhere or any(value is not None for value in self.rules.values()):
            from anatune.tuning.settings import TuningSettings

            TuningSettings(**self.elsewhere, **self.rules, reuse=self.reuse)  # refuses what contradicts itself
        if not self.trials and any(value is not None for value in self.rules.values()):
            raise SpaceError("compile: stop_at and patience end measuring, but trials is 0; say how many")
        if self.records is not None:
            place = record_place(self.records)
            if self.resume and isinstance(place, Path) and not place.exists():
                raise RecordError(
                    f"{place} does not exist, and resume goes on with it; name the file of the first call"
                )
            msgspec.structs.force_setattr(self, "records", place)  # nobody has seen the object yet
        elif self.resume:
            raise SpaceError("compile: resume is True, but records is None; name the record file to go on with")

"""What a call of `anatune.compile` asks for, whatever device it is for: groups that check themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    from anatune.network.relax.frontends import Imported
    from anatune.network.relax.ranges import Sizes
    from anatune.tuning.cost import ModelEstimate
    from anatune.tuning.result import ModelProgress

__all__ = [
    "PRECISIONS",
    "TRIALS_PER_TURN",
    "CompileRequest",
    "Listeners",
    "MeasuringOptions",
    "ModelSource",
    "QuantisingOptions",
]

PRECISIONS = (WIDE, *HALVES, "int8", FP8)
"""Dtypes that products may be brought to."""
TRIALS_PER_TURN = 12
"""Most trials of one kernel before the next choice: a session costs planning and its processes each time."""


class MeasuringOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which kernels are measured: how many trials, who makes them, and where they are kept. Immutable.

    Attributes
    ----------
    trials, time_limit_s, resume, reuse, stop_at, patience, cluster, tls, tracker, key
        As `anatune.compile`.
    records : Path or ServerAddress, optional
        Made of what names it.

    Raises
    ------
    SpaceError, RecordError
        One of them is wrong, or contradicts another one.
    """

    trials: int = 0
    time_limit_s: float | None = None
    records: str | Path | ServerAddress | None = None
    resume: bool = False
    cluster: object = None
    tls: str | Path | None = None
    tracker: str | None = None
    key: str | None = None
    reuse: bool = True
    stop_at: float | None = None
    patience: int | None = None

    @property
    def place_options(self) -> dict[str, Any]:
        """Who measures, by the names of `anatune.tune`'s keywords."""
        return {"cluster": self.cluster, "tls": self.tls, "tracker": self.tracker, "key": self.key}

    @property
    def stopping_options(self) -> dict[str, Any]:
        """What ends a kernel's sessions early, by the names of `anatune.tune`'s keywords."""
        return {"stop_at": self.stop_at, "patience": self.patience}

    @property
    def is_remote(self) -> bool:
        """Whether another machine measures."""
        return any(value is not None for value in self.place_options.values())

    @property
    def may_end_early(self) -> bool:
        """Whether measuring may end before all trials are made."""
        return any(value is not None for value in (self.time_limit_s, *self.stopping_options.values()))

    def __post_init__(self) -> None:
        checked_integer("compile: trials", self.trials, 0, MOST_TRIALS)
        checked_seconds("compile: time_limit_s", self.time_limit_s)
        checked_flag("compile: resume", self.resume)
        if not self.trials and self.is_remote:
            raise SpaceError("compile: a cluster or a tracker is named, but trials is 0; say how many (--trials)")
        has_rules = (self.stop_at, self.patience) != (None, None)
        if self.reuse is not True or self.is_remote or has_rules:
            from anatune.tuning.settings import TuningSettings

            TuningSettings(
                **self.place_options, **self.stopping_options, reuse=self.reuse
            )  # refuses what contradicts itself
        if not self.trials and has_rules:
            raise SpaceError("compile: stop_at and patience end measuring, but trials is 0; say how many (--trials)")
        if self.records is not None:
            records_place = record_place(self.records)
            if self.resume and isinstance(records_place, Path) and not records_place.exists():
                raise RecordError(
                    f"{records_place} does not exist, and resume goes on with it; name the file of the first call"
                )
            msgspec.structs.force_setattr(self, "records", records_place)  # nobody has seen the object yet
        elif self.resume:
            raise SpaceError("compile: resume is True, but records is None; name the record file to go on with")


class QuantisingOptions(msgspec.Struct, frozen=True):
    """How a float32 model becomes one of 8-bit integers: `calibrate` and `percentile` of `anatune.compile`. Immutable.

    Raises
    ------
    SpaceError
        The percentile is no share.
    """

    calibrate: object = None
    percentile: float | None = None

    def __post_init__(self) -> None:
        share = self.percentile
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if share is not None and not (is_number and 50 < share <= 100):
            raise SpaceError(f"compile: percentile is {shown(share)}, expected a number above 50, up to 100")


class Listeners(msgspec.Struct, frozen=True):
    """Functions that are called while a model is compiled, see `anatune.compile`. Immutable.

    Raises
    ------
    SpaceError
        One is no function.
    """

    progress: Callable[[int, int], None] | None = None
    tuning_progress: Callable[[ModelProgress], None] | None = None
    on_estimate: Callable[[ModelEstimate], None] | None = None
    on_stage: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            checked_function(f"compile: {name}", getattr(self, name))


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a model, checked as far as it does not depend on the device. Immutable.

    Attributes
    ----------
    threads, accuracy, precision, check, fallback
        As `anatune.compile`.
    measuring : MeasuringOptions
    quantising : Quantising
    listeners : Listeners

    Raises
    ------
    SpaceError
        One of them is wrong.
    """

    threads: int | None = None
    accuracy: str = STANDARD
    precision: str | None = None
    check: bool | None = None
    fallback: str | None = None
    measuring: MeasuringOptions = MeasuringOptions()
    quantising: QuantisingOptions = QuantisingOptions()
    listeners: Listeners = Listeners()

    @property
    def trials(self) -> int:
        """Measurements of all kernels together."""
        return self.measuring.trials

    @property
    def records(self) -> str | Path | ServerAddress | None:
        """Where trials are kept."""
        return self.measuring.records

    @property
    def reuse(self) -> bool:
        """Whether recorded schedules are taken."""
        return self.measuring.reuse

    @property
    def progress(self) -> Callable[[int, int], None] | None:
        """Called with (products planned, products to plan)."""
        return self.listeners.progress

    def __post_init__(self) -> None:
        if self.check is not None:
            msgspec.structs.force_setattr(self, "check", checked_flag("compile: check", self.check))  # NumPy's, too
        if self.fallback not in (None, "onnxruntime"):
            raise SpaceError(f"compile: fallback is {shown(self.fallback)}, expected 'onnxruntime', or none")
        if self.precision is not None and not (isinstance(self.precision, str) and self.precision in PRECISIONS):
            raise SpaceError(
                f"compile: precision is {shown(self.precision)}, expected {' or '.join(PRECISIONS)}; leave it out to "
                "keep the model's own"
            )
        checked_accuracy("compile: accuracy", self.accuracy)
        given = (self.quantising.calibrate, self.quantising.percentile)
        if self.precision != "int8" and any(value is not None for value in given):
            raise SpaceError("compile: calibrate and percentile are for precision int8; name it, or leave them out")


class ModelSource(msgspec.Struct, frozen=True):
    """The model that is compiled, and for which sizes; all as `anatune.compile`. Immutable."""

    model: object
    example_inputs: object = None
    sizes: Sizes | None = None
    dynamic_shapes: object = None
    state: str | Mapping[str, str] | None = None

    def read(self) -> Imported:
        """Return the model as it is imported; errors as `relax.frontends.imported`."""
        from anatune.network.relax.frontends import imported  # late: a model that was compiled before is not read

        return imported(self.model, self.example_inputs, self.sizes, self.dynamic_shapes, self.state)

"""The arguments of a call of `anatune.compile`, in groups that check themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from anatune.arguments import MOST_TRIALS, check_flag, check_function, check_integer, check_seconds, quote
from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.errors import RecordError, SpaceError
from anatune.network.graph.nodes import HALVES
from anatune.network.graph.passes.precision import FP8, WIDE
from anatune.records.place import ServerAddress, record_place

if TYPE_CHECKING:
    from anatune.network.relax.frontends import ImportedModel
    from anatune.network.relax.ranges import Sizes
    from anatune.tuning.cost import ModelEstimate
    from anatune.tuning.result import ModelProgress

__all__ = [
    "PRECISIONS", "TRIALS_PER_TURN", "CompileRequest", "Int8Options", "Listeners", "MeasuringOptions", "ModelSource",
]  # fmt: skip

PRECISIONS = (WIDE, *HALVES, "int8", FP8)
"""Number formats of products that `anatune.compile` takes."""
TRIALS_PER_TURN = 12
"""Most trials of one kernel before another kernel may be chosen; each session starts planning and its processes."""


class MeasuringOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of measuring: how many trials are made, where they run, and where they are stored. Immutable.

    Attributes
    ----------
    trials, time_limit_s, resume, reuse, stop_at, patience, cluster, tls, tracker, key
        As `anatune.compile`.
    records : Path or ServerAddress, optional
        Where the record store is.

    Raises
    ------
    SpaceError, RecordError
        An option is wrong, or contradicts another one.
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
        """The options that say where kernels are measured, as keyword arguments of `anatune.tune`."""
        return {"cluster": self.cluster, "tls": self.tls, "tracker": self.tracker, "key": self.key}

    @property
    def stopping_options(self) -> dict[str, Any]:
        """The options that end a session early, as keyword arguments of `anatune.tune`."""
        return {"stop_at": self.stop_at, "patience": self.patience}

    @property
    def is_remote(self) -> bool:
        """True if another machine measures."""
        return any(value is not None for value in self.place_options.values())

    @property
    def may_end_early(self) -> bool:
        """True if measuring may end before all trials are made."""
        return any(value is not None for value in (self.time_limit_s, *self.stopping_options.values()))

    def __post_init__(self) -> None:
        check_integer("compile: trials", self.trials, 0, MOST_TRIALS)
        check_seconds("compile: time_limit_s", self.time_limit_s)
        check_flag("compile: resume", self.resume)
        if not self.trials and self.is_remote:
            raise SpaceError("compile: a cluster or a tracker is given, but trials is 0; give trials (--trials)")
        has_rules = (self.stop_at, self.patience) != (None, None)
        if self.reuse is not True or self.is_remote or has_rules:
            from anatune.tuning.settings import TuningSettings

            # it refuses options that contradict each other
            TuningSettings(**self.place_options, **self.stopping_options, reuse=self.reuse)
        if not self.trials and has_rules:
            raise SpaceError("compile: stop_at or patience is given, but trials is 0; give trials (--trials)")
        if self.records is not None:
            records_place = record_place(self.records)
            if self.resume and isinstance(records_place, Path) and not records_place.exists():
                raise RecordError(
                    f"{records_place} does not exist, and resume needs one; give the file of the first call"
                )
            msgspec.structs.force_setattr(self, "records", records_place)  # the object is not shared yet
        elif self.resume:
            raise SpaceError("compile: resume is True, but records is None; give the record file to continue")


class Int8Options(msgspec.Struct, frozen=True):
    """Options of quantising a float32 model: `calibrate` and `percentile` of `anatune.compile`. Immutable.

    Raises
    ------
    SpaceError
        The percentile is out of range.
    """

    calibrate: object = None
    percentile: float | None = None

    def __post_init__(self) -> None:
        share = self.percentile
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if share is not None and not (is_number and 50 < share <= 100):
            raise SpaceError(f"compile: percentile is {quote(share)}, expected a number above 50, up to 100")


class Listeners(msgspec.Struct, frozen=True):
    """Functions that are called while a model is compiled, see `anatune.compile`. Immutable.

    Raises
    ------
    SpaceError
        One of them is not callable.
    """

    progress: Callable[[int, int], None] | None = None
    tuning_progress: Callable[[ModelProgress], None] | None = None
    on_estimate: Callable[[ModelEstimate], None] | None = None
    on_stage: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_function(f"compile: {name}", getattr(self, name))


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All options of compiling a model, checked as far as they do not depend on the device. Immutable.

    Attributes
    ----------
    threads, accuracy, precision, check, fallback
        As `anatune.compile`.
    fuses : bool
        As `fused` of `anatune.compare`.
    measuring : MeasuringOptions
    quantising : Int8Options
    listeners : Listeners

    Raises
    ------
    SpaceError
        An option is wrong.
    """

    threads: int | None = None
    accuracy: str = STANDARD
    precision: str | None = None
    check: bool | None = None
    fallback: str | None = None
    fuses: bool = True
    measuring: MeasuringOptions = MeasuringOptions()
    quantising: Int8Options = Int8Options()
    listeners: Listeners = Listeners()

    @property
    def trials(self) -> int:
        """Number of trials of all kernels together."""
        return self.measuring.trials

    @property
    def records(self) -> str | Path | ServerAddress | None:
        """Place of the record store; None if trials are not stored."""
        return self.measuring.records

    @property
    def reuse(self) -> bool:
        """True if recorded schedules are used."""
        return self.measuring.reuse

    @property
    def progress(self) -> Callable[[int, int], None] | None:
        """Called with (products planned, products to plan)."""
        return self.listeners.progress

    def __post_init__(self) -> None:
        if self.check is not None:
            msgspec.structs.force_setattr(self, "check", check_flag("compile: check", self.check))  # maybe NumPy's
        if self.fallback not in (None, "onnxruntime"):
            raise SpaceError(f"compile: fallback is {quote(self.fallback)}, expected 'onnxruntime' or none")
        if self.precision is not None and not (isinstance(self.precision, str) and self.precision in PRECISIONS):
            raise SpaceError(
                f"compile: precision is {quote(self.precision)}, expected {' or '.join(PRECISIONS)}; leave it out "
                "for the model's own"
            )
        validate_accuracy("compile: accuracy", self.accuracy)
        given = (self.quantising.calibrate, self.quantising.percentile)
        if self.precision != "int8" and any(value is not None for value in given):
            raise SpaceError("compile: calibrate and percentile need precision int8; give it, or leave them out")


class ModelSource(msgspec.Struct, frozen=True):
    """The model that is compiled, and its sizes and state, as `anatune.compile` takes them. Immutable."""

    model: object
    example_inputs: object = None
    sizes: Sizes | None = None
    dynamic_shapes: object = None
    state: str | Mapping[str, str] | None = None

    def read(self) -> ImportedModel:
        """Import the model. Raises the errors of `relax.frontends.import_model`."""
        from anatune.network.relax.frontends import import_model  # late: a model from the cache is not imported

        return import_model(self.model, self.example_inputs, self.sizes, self.dynamic_shapes, self.state)

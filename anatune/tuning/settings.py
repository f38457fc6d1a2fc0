"""The settings of a tuning session, with all checks that need no device."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import msgspec

from anatune.arguments import (
    MOST_SEED,
    MOST_TRIALS,
    check_flag,
    check_integer,
    check_path,
    check_seconds,
    check_share,
    quote,
)
from anatune.core.accuracy import validate_accuracy
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import DeviceError, RecordError, SpaceError
from anatune.measure.energy import EnergyCounter
from anatune.measure.place import MakeMeasurer
from anatune.measure.run.build_processes import Limits
from anatune.records.place import ServerAddress, record_place
from anatune.search.base import DEFAULT_STRATEGY, check_start, check_strategy


class TuningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The keyword arguments of `anatune.tune`, which documents them. Immutable.

    In addition `cold` (CPUs): "l3" or "dram", the level of memory from which constant operands are read in every run,
    as in whole networks (`measure.cpu.measurer.CpuMeasurer`). None: they stay in the caches from the previous run.

    At most one of `cluster` and `tracker` is given; without both, this machine measures.

    Raises
    ------
    SpaceError, UnknownNameError, RecordError
        A setting is wrong for every workload and device.
    """

    trials: int = 64
    strategy: str = DEFAULT_STRATEGY
    start: str = "model"
    seed: int = 0
    time_limit_s: float | None = None
    records: str | Path | ServerAddress | None = None
    resume: bool = False
    limits: Limits | None = None
    threads: int | None = None
    template: str | None = None
    accuracy: str | None = None
    l2: str | None = None
    cold: str | None = None
    device: int = 0
    backend: str | None = None
    manifest: str | Path | None = None
    cluster: object = None
    tls: str | Path | None = None
    tracker: str | None = None
    key: str | None = None
    reuse: bool = True
    stop_at: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "trials": check_integer("tune: trials", self.trials, 1, MOST_TRIALS),
            "strategy": check_strategy(self.strategy),
            "start": check_start(self.start),
            "seed": check_integer("tune: seed", self.seed, 0, MOST_SEED),
            "time_limit_s": check_seconds("tune: time_limit_s", self.time_limit_s),
            "accuracy": None if self.accuracy is None else validate_accuracy("tune: accuracy", self.accuracy),
            "resume": check_flag("tune: resume", self.resume),
            "reuse": check_flag("tune: reuse", self.reuse),
            "stop_at": check_share("tune: stop_at", self.stop_at),
        }
        if self.patience is not None:
            checked["patience"] = check_integer("tune: patience", self.patience, 1, MOST_TRIALS)
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise SpaceError(
                f"tune: limits is {quote(self.limits)}, expected anatune.measure.run.build_processes.Limits(...), or "
                "None"
            )
        if self.cluster is not None and self.tracker is not None:
            raise SpaceError("tune: cluster and tracker are both given, expected at most one; leave one of them out")
        if (self.tracker is None) != (self.key is None):
            given, missing = ("tracker", "key") if self.key is None else ("key", "tracker")
            raise SpaceError(f"tune: {given} is given without {missing}; boards need both")
        if self.tls is not None:
            if not isinstance(self.cluster, str):
                raise SpaceError(
                    "tune: tls is given, but cluster is not the address of a cluster; give it or leave tls out"
                )
            checked["tls"] = check_path("tune: tls", self.tls, DeviceError)
        if self.manifest is not None and (self.cluster is not None or self.tracker is not None):
            raise SpaceError(
                "tune: manifest is given with cluster or tracker, but a manifest is measured on this machine; leave "
                "one of them out"
            )
        if self.manifest is not None:
            checked["manifest"] = check_path("tune: manifest", self.manifest, RecordError)
        if self.records is not None:
            checked["records"] = record_place(self.records)
        elif self.resume:
            raise SpaceError("tune: resume is True, but records is None; name the record file of the session to resume")
        for name, value in checked.items():
            msgspec.structs.force_setattr(self, name, value)  # the object is not in use yet


class StandIns(msgspec.Struct, frozen=True, kw_only=True):
    """Replacements for parts of the machine, used by tests.

    Attributes
    ----------
    host : CpuSpec or GpuSpec, optional
        The spec of this machine or its GPU; detected by default.
    measurer : callable, optional
        Makes the measurer, as in `tuning.target.Source`.
    program_key : callable, optional
        Schedule -> key of its program: schedules of equal keys are measured once.
    clock : callable
        Returns seconds.
    costs : Path, optional
        Folder with the costs of earlier sessions; by default the user's cache folder, or none with another measurer.
    counters : sequence of EnergyCounter, optional
        The energy counters; by default those of the place, or none with another measurer.
    """

    host: CpuSpec | GpuSpec | None = None
    measurer: MakeMeasurer | None = None
    program_key: Callable[[Schedule], Hashable] | None = None
    clock: Callable[[], float] = time.monotonic
    costs: Path | None = None
    counters: Sequence[EnergyCounter] | None = None

"""What one asks of a tuning session, checked as far as no device is needed for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import msgspec

from anatune.arguments import (
    MOST_SEED,
    MOST_TRIALS,
    checked_flag,
    checked_integer,
    checked_path,
    checked_seconds,
    checked_share,
    shown,
)
from anatune.core.accuracy import checked_accuracy
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import DeviceError, RecordError, SpaceError
from anatune.measure.energy import EnergyCounter
from anatune.measure.place import MakeMeasurer
from anatune.measure.run.build_processes import Limits
from anatune.records.place import ServerAddress, record_place
from anatune.search.base import DEFAULT_STRATEGY, check_start, check_strategy


class TuningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The keywords of `anatune.tune`, see there. Immutable.

    And `cold`, of CPUs: {"l3", "dram"}, the level that constant operands come from in every run, as in whole models
    (`measure.cpu.measurer.CpuMeasurer`); None: they stay where the run before left them.

    At most one of `cluster` and `tracker` says who measures; none: this machine.

    Raises
    ------
    SpaceError, UnknownNameError, RecordError
        One of them is wrong, whatever is tuned.
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
            "trials": checked_integer("tune: trials", self.trials, 1, MOST_TRIALS),
            "strategy": check_strategy(self.strategy),
            "start": check_start(self.start),
            "seed": checked_integer("tune: seed", self.seed, 0, MOST_SEED),
            "time_limit_s": checked_seconds("tune: time_limit_s", self.time_limit_s),
            "accuracy": None if self.accuracy is None else checked_accuracy("tune: accuracy", self.accuracy),
            "resume": checked_flag("tune: resume", self.resume),
            "reuse": checked_flag("tune: reuse", self.reuse),
            "stop_at": checked_share("tune: stop_at", self.stop_at),
        }
        if self.patience is not None:
            checked["patience"] = checked_integer("tune: patience", self.patience, 1, MOST_TRIALS)
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise SpaceError(
                f"tune: limits is {shown(self.limits)}, expected anatune.measure.run.build_processes.Limits(...), or "
                "None"
            )
        if self.cluster is not None and self.tracker is not None:
            raise SpaceError("tune: cluster and tracker are both given, expected one of them; leave the other out")
        if (self.tracker is None) != (self.key is None):
            given, missing = ("tracker", "key") if self.key is None else ("key", "tracker")
            raise SpaceError(f"tune: {given} is given without {missing}, expected both; boards are found by both")
        if self.tls is not None:
            if not isinstance(self.cluster, str):
                raise SpaceError("tune: tls is given without the address of a cluster; name it, or leave tls out")
            checked["tls"] = checked_path("tune: tls", self.tls, DeviceError)
        if self.manifest is not None and (self.cluster is not None or self.tracker is not None):
            raise SpaceError(
                "tune: manifest is for the machine with the GPU, a cluster builds itself; leave one of them out"
            )
        if self.manifest is not None:
            checked["manifest"] = checked_path("tune: manifest", self.manifest, RecordError)
        if self.records is not None:
            checked["records"] = record_place(self.records)
        elif self.resume:
            raise SpaceError("resume is True, but records is None; name the record file of the session to go on with")
        for name, value in checked.items():
            msgspec.structs.force_setattr(self, name, value)  # nobody has seen the object yet


class StandIns(msgspec.Struct, frozen=True, kw_only=True):
    """What tests put in the place of the machine.

    Attributes
    ----------
    host : CpuSpec or GpuSpec, optional
        The present machine, or its GPU; detected by default.
    measurer : callable, optional
        Makes the measurer, as that of `tuning.target.Source`.
    program_key : callable, optional
        Schedule -> key of the program it is lowered to: schedules of equal keys are measured once.
    clock : callable
        Seconds.
    costs : Path, optional
        Folder of what earlier sessions took; by default the user's, none with another measurer.
    counters : sequence of EnergyCounter, optional
        What counts energy; by default what the place has, nothing with another measurer.
    """

    host: CpuSpec | GpuSpec | None = None
    measurer: MakeMeasurer | None = None
    program_key: Callable[[Schedule], Hashable] | None = None
    clock: Callable[[], float] = time.monotonic
    costs: Path | None = None
    counters: Sequence[EnergyCounter] | None = None

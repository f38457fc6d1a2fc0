"""What travels between a session and its workers: structs as MessagePack, decoded strictly, checked before use."""

from __future__ import annotations

import math
from typing import Literal, TypeVar

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.decoding import from_message
from anatune.errors import AnatuneError, RunError
from anatune.measure.cluster.packing import Packed
from anatune.measure.run.build_processes import Limits

__all__ = [
    "Answer",
    "BuildRequest",
    "Built",
    "CompareRequest",
    "MeasureRequest",
    "Running",
    "SessionSetting",
    "Standing",
    "checked_measurement",
    "decode",
    "encode",
]

_MOST_SAMPLES = 100_000
_MOST_MESSAGE = 2000


class SessionSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all kernels of a session share.

    Attributes
    ----------
    session : str
        Its name: 32 hexadecimal digits.
    workload, hardware, threads, limits, seed
        As a measurer takes them.
    conditions : dict of str to str
        What times depend on beside that: "cold"; "template" and "l2".
    """

    session: str
    workload: Workload
    hardware: CpuSpec | GpuSpec
    threads: int
    limits: Limits
    seed: int
    conditions: dict[str, str]


class BuildRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule to build; None: the kernel that is timed beside all others."""

    session: str
    number: int
    hardware: CpuSpec | GpuSpec
    threads: int
    limits: Limits
    schedule: Schedule | None = None


class Built(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a build: one of the three.

    Attributes
    ----------
    packed : Packed, optional
        The kernel.
    failure : Measurement, optional
        The schedule's own fault.
    trouble : str
        The worker's: it cannot build.
    build_s : float
        Wall time.
    """

    packed: Packed | None = None
    failure: Measurement | None = None
    trouble: str = ""
    build_s: float = 0.0


class MeasureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built schedule to check and time; `incumbent` as `Measurer` has it."""

    session: str
    number: int
    schedule: Schedule
    incumbent: float | None = None


class CompareRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Built schedules to time in turn."""

    session: str
    number: int
    schedules: tuple[Schedule, ...]
    budget_s: float


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker answers to `MeasureRequest` or `CompareRequest`.

    Attributes
    ----------
    session, number
        Of the request.
    measurements : tuple of Measurement
        One for each schedule; none if there was trouble.
    failed_build : bool
        The measurement is that of the build: nothing ran here.
    trouble : str
        Why this worker cannot measure, in one line.
    whose : {"worker", "builder", "lease"}
        Whose trouble: its own, of who built, of the lease, which is answered by itself.
    part : int
        Of which schedule, if of who built.
    """

    session: str
    number: int
    measurements: tuple[Measurement, ...] = ()
    failed_build: bool = False
    trouble: str = ""
    whose: Literal["worker", "builder", "lease"] = "worker"
    part: int = 0


class Running(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that a worker is at: which one, what it does ("build", "wait", "set up", "run"), for how long, s."""

    session: str
    number: int
    stage: str
    seconds: float


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker tells with each sign of life.

    Attributes
    ----------
    running : tuple of Running
        What it is at.
    sessions : int
        For which it is set up.
    built, measured : int
        Since it started.
    peak_flop_per_s : float, optional
        The best that multiply-adds have reached since, as `description.WorkerDescription` has what they reached first.
    """

    running: tuple[Running, ...] = ()
    sessions: int = 0
    built: int = 0
    measured: int = 0
    peak_flop_per_s: float | None = None


_Message = TypeVar("_Message", bound=msgspec.Struct)


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as bytes."""
    return msgspec.msgpack.encode(message)


def decode(content: object, kind: type[_Message]) -> _Message:
    """Return the message of a kind.

    Raises
    ------
    RunError
        It is none.
    """
    if not isinstance(content, bytes):
        raise RunError(f"{type(content).__name__} arrived, expected {kind.__name__}")
    try:
        return from_message(content, kind)
    except (msgspec.DecodeError, RecursionError, AnatuneError) as error:
        raise RunError(f"what arrived is no {kind.__name__}: {error}") from None


def checked_measurement(measurement: Measurement) -> Measurement:
    """Return a measurement that arrived, its message cut to one line of bounded length.

    Raises
    ------
    RunError
        A time is no finite number of seconds, an energy none of joules, or samples are missing.
    """
    times, references = measurement.times_s, measurement.reference_times_s
    wall = measurement.build_s, measurement.run_s
    if len(times) != len(references) or len(times) > _MOST_SAMPLES:
        raise RunError(f"a measurement has {len(times)} samples and {len(references)} of the reference kernel")
    if not all(math.isfinite(one) and one > 0 for one in (*times, *references)):
        raise RunError("a measurement has a sample that is no positive number of seconds")
    if not all(math.isfinite(one) and one >= 0 for one in wall):
        raise RunError("a measurement has a wall time that is no number of seconds")
    energy_j = measurement.energy_j
    if energy_j is not None and not (math.isfinite(energy_j) and energy_j > 0):
        raise RunError("a measurement has an energy that is no positive number of joules")
    if measurement.outcome is Outcome.OK and not times:
        raise RunError("a measurement is ok and has no samples")
    if measurement.outcome is not Outcome.OK and times:
        raise RunError(f"a measurement is {measurement.outcome.value} and has samples")
    message = " ".join(measurement.message.split())[:_MOST_MESSAGE]
    return msgspec.structs.replace(measurement, message=message)

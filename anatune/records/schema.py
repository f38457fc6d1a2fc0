"""What a record store holds: sessions and records as objects, and the texts that rows are made of."""

from __future__ import annotations

import datetime
import hashlib
import math

import msgspec

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.records.environment import Environment

APPLICATION_ID = 0x616E6174
"""Mark of the program that owns a store: "anat"."""

SCHEMA_VERSION = 2
"""Raised when a table changes; places of other versions are refused."""


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tuning session: what was tuned, where, how. Immutable; JSON both ways.

    Attributes
    ----------
    id : str
        32 hexadecimal digits (a random UUID).
    created_utc : str
        When it began: ISO 8601, microseconds, "Z".
    workload, hardware
        What is computed; the device that measures.
    threads : int
        Threads that kernels run with.
    strategy : str
        Who asks for candidates.
    seed : int
        Of its random choices, in [0, 2**63).
    settings : dict
        Whatever else a resume needs to know: a JSON object.
    environment : Environment
        Of the process that began the session.
    """

    id: str
    created_utc: str
    workload: Workload
    hardware: HardwareSpec
    threads: int
    strategy: str
    seed: int
    settings: dict[str, object]
    environment: Environment


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trial with its provenance. Immutable.

    Attributes
    ----------
    id : int
        Row in its file, from 1, in the order of recording.
    created_utc : str
        When it was recorded: ISO 8601, microseconds, "Z".
    session : Session
        The session that asked for it.
    environment : Environment
        Of the process that measured it: a session may go on under another version, or on several machines.
    trial : Trial
        What was asked and what came back.
    """

    id: int
    created_utc: str
    session: Session
    environment: Environment
    trial: Trial


def _body_of(kind: type[msgspec.Struct], *left_out: str) -> type[msgspec.Struct]:
    """Return a struct without some of its fields, made from it so that it follows them."""
    fields: list[str | tuple[str, type] | tuple[str, type, object]] = []
    for field in msgspec.structs.fields(kind):
        if field.name in left_out:
            continue
        if field.required:
            fields.append((field.name, field.type))
        elif field.default is msgspec.NODEFAULT:
            fields.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.name, field.type, field.default))
    return msgspec.defstruct(f"_{kind.__name__}Body", fields, frozen=True, forbid_unknown_fields=True)


_PARTS = ("workload", "hardware")
"""Of a schedule: stored in `parts`."""
_ScheduleBody, _TrialBody = _body_of(Schedule, *_PARTS), _body_of(Trial, "schedule")


def _without(value: msgspec.Struct, *left_out: str) -> str:
    """Return a struct's JSON without some of its fields."""
    names = [name for name in value.__struct_fields__ if name not in left_out]
    return msgspec.json.encode({name: getattr(value, name) for name in names}).decode()


def schedule_text(schedule: Schedule) -> str:
    """Return the JSON of a schedule without its workload and hardware."""
    return _without(schedule, *_PARTS)


def schedule_of(text: str, workload: Workload, hardware: HardwareSpec) -> Schedule:
    """Return the schedule that `schedule_text` wrote; raise msgspec.DecodeError if it is damaged."""
    return Schedule(workload, hardware, **msgspec.structs.asdict(from_json(text, _ScheduleBody)))


def trial_text(trial: Trial) -> str:
    """Return the JSON of a trial without its schedule."""
    return _without(trial, "schedule")


def trial_of(text: str, schedule: Schedule) -> Trial:
    """Return the trial that `trial_text` wrote; raise msgspec.DecodeError if it is damaged."""
    return Trial(schedule, **msgspec.structs.asdict(from_json(text, _TrialBody)))


def content_key(kind: str, text: str) -> str:
    """Return the key of a part: 16 hexadecimal digits."""
    return hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()[:16]


def part_name(value: object) -> str:
    """Return a short text that equal parts have in common, whatever version wrote their JSON."""
    if isinstance(value, Workload):
        return f"{value.operator} {' '.join(f'{axis.name}={axis.extent}' for axis in value.axes)}"
    return str(getattr(value, "name", ""))  # of a spec; an environment has none


def digest(*columns: object, digits: int = 16) -> str:
    """Return hexadecimal digits over the columns of a row: a row that was damaged on the disk is noticed."""
    return hashlib.sha256("\n".join(map(str, columns)).encode()).hexdigest()[:digits]


def now_utc() -> str:
    """Return the time as records have it: ISO 8601, microseconds, "Z"."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def storable(trial: Trial) -> Trial:
    """Return the trial without what JSON cannot hold.

    An error, an energy or a prediction that is not finite (a wrong result that holds NaN) becomes None, what is no
    Unicode in a message (a compiler's output cut in the middle) becomes question marks; the outcome stays.

    Raises
    ------
    ValueError
        A sample is no finite number.
    """
    measurement = trial.measurement
    samples = (*measurement.times_s, *measurement.reference_times_s, measurement.build_s, measurement.run_s)
    if not all(map(math.isfinite, samples)):
        wrong = next(sample for sample in samples if not math.isfinite(sample))
        raise ValueError(f"a time of the trial is {wrong}, expected finite seconds; record a failure as an outcome")
    measurement = msgspec.structs.replace(
        measurement,
        max_rel_error=_finite(measurement.max_rel_error),
        energy_j=_finite(measurement.energy_j),
        message=measurement.message.encode(errors="replace").decode(),
    )
    predicted_s, corrected_s = _finite(trial.predicted_s), _finite(trial.corrected_s)
    return msgspec.structs.replace(trial, measurement=measurement, predicted_s=predicted_s, corrected_s=corrected_s)


def _finite(value: float | None) -> float | None:
    """Return a number if it is one that JSON has."""
    return value if value is not None and math.isfinite(value) else None

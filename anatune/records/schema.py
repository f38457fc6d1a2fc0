"""The contents of a record store: sessions and records as objects, and the texts in their rows."""

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
"""The mark of stores that belong to anatune: "anat"."""

SCHEMA_VERSION = 2
"""The version of the tables, raised when a table changes; stores of other versions are refused."""


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recorded session. Immutable; JSON both ways.

    Attributes
    ----------
    id : str
        32 hexadecimal digits (a random UUID).
    created_utc : str
        Time of its beginning: ISO 8601, microseconds, "Z".
    workload, hardware
        The workload; the device that measures.
    threads : int
        Number of threads of a kernel.
    strategy : str
        The search strategy.
    seed : int
        Seed of its random choices, in [0, 2**63).
    settings : dict
        Other settings that resuming needs: a JSON object.
    environment : Environment
        Environment of the process that began the session.
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
        The session that measured it.
    environment : Environment
        Environment of the process that measured it, which may differ from that of the session.
    trial : Trial
        The trial.
    """

    id: int
    created_utc: str
    session: Session
    environment: Environment
    trial: Trial


def _body_of(kind: type[msgspec.Struct], *left_out: str) -> type[msgspec.Struct]:
    """Return a struct type with the fields of another one, without some of them."""
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


_PART_FIELDS = ("workload", "hardware")
"""Fields of a schedule that are stored in `parts`."""
_ScheduleBody, _TrialBody = _body_of(Schedule, *_PART_FIELDS), _body_of(Trial, "schedule")


def _json_without(value: msgspec.Struct, *left_out: str) -> str:
    """Return a struct's JSON without some of its fields."""
    names = [name for name in value.__struct_fields__ if name not in left_out]
    return msgspec.json.encode({name: getattr(value, name) for name in names}).decode()


def schedule_text(schedule: Schedule) -> str:
    """Return the JSON of a schedule without its workload and hardware."""
    return _json_without(schedule, *_PART_FIELDS)


def schedule_of(text: str, workload: Workload, hardware: HardwareSpec) -> Schedule:
    """Return the schedule that `schedule_text` wrote; raise msgspec.DecodeError if it is damaged."""
    return Schedule(workload, hardware, **msgspec.structs.asdict(from_json(text, _ScheduleBody)))


def trial_text(trial: Trial) -> str:
    """Return the JSON of a trial without its schedule."""
    return _json_without(trial, "schedule")


def trial_of(text: str, schedule: Schedule) -> Trial:
    """Return the trial that `trial_text` wrote; raise msgspec.DecodeError if it is damaged."""
    return Trial(schedule, **msgspec.structs.asdict(from_json(text, _TrialBody)))


def content_key(kind: str, text: str) -> str:
    """Return the key of a part: 16 hexadecimal digits."""
    return hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()[:16]


def part_name(value: object) -> str:
    """Return a short name that is the same for equal parts, even if different versions wrote their JSON."""
    if isinstance(value, Workload):
        return f"{value.operator} {' '.join(f'{axis.name}={axis.extent}' for axis in value.axes)}"
    return str(getattr(value, "name", ""))  # specs have a name, environments have none


def digest(*columns: object, digits: int = 16) -> str:
    """Return a hexadecimal digest of the columns of a row, by which damage on the disk is detected."""
    return hashlib.sha256("\n".join(map(str, columns)).encode()).hexdigest()[:digits]


def now_utc() -> str:
    """Return the present time in the format of records: ISO 8601, microseconds, "Z"."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def storable(trial: Trial) -> Trial:
    """Return the trial without values that JSON cannot hold.

    An error, energy or prediction that is not finite (such as the error of a result with NaN) becomes None. Bytes in a
    message that are no Unicode (such as truncated output of a compiler) become question marks.

    Raises
    ------
    ValueError
        A sample is not finite.
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
    """Return a number if it is finite, else None."""
    return value if value is not None and math.isfinite(value) else None

"""Export of records as JSON lines (complete, can be imported again) and as CSV (one flat row for each trial).

JSON lines
----------
Each line is one object with ``"kind"``. A line of kind "session" precedes the first trial of that session. Lines of
kind "trial" name their session by its id and hold the whole trial with workload and hardware. Files may be
concatenated, and cut after any line.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.core.workload.text import workload_to_text
from anatune.decoding import from_json
from anatune.errors import AnatuneError, RecordError, WorkloadError
from anatune.files import read_lines, reason
from anatune.records.environment import Environment
from anatune.records.schema import Record, Session

if TYPE_CHECKING:
    from anatune.records.store import RecordStore

FORMAT = 1
"""Version of the JSON lines."""


class _SessionLine(msgspec.Struct, frozen=True, tag="session", tag_field="kind"):
    """A session as a JSON line."""

    format: int
    session: Session


class _TrialLine(msgspec.Struct, frozen=True, tag="trial", tag_field="kind"):
    """A trial as a JSON line; `id` is its row in the file it came from."""

    format: int
    id: int
    session: str
    created_utc: str
    environment: Environment
    trial: Trial


class _LineHeader(msgspec.Struct, frozen=True):
    """The fields at the beginning of every line."""

    kind: str
    format: int


# ---- JSON lines ------------------------------------------------------------------------------------------------


def json_lines(records: Iterable[Record], sessions: Iterable[Session] = ()) -> Iterator[str]:
    r"""Yield records as JSON lines, each with its line end.

    Parameters
    ----------
    records : iterable of Record
        The records to write.
    sessions : iterable of Session
        Sessions to write even if they have no records.

    Examples
    --------
    >>> list(json_lines([]))
    []
    """
    written: set[str] = set()
    for record in records:
        if record.session.id not in written:
            written.add(record.session.id)
            yield _line(_SessionLine(FORMAT, record.session))
        yield _line(
            _TrialLine(FORMAT, record.id, record.session.id, record.created_utc, record.environment, record.trial)
        )
    for session in sessions:
        if session.id not in written:
            written.add(session.id)
            yield _line(_SessionLine(FORMAT, session))


def is_export_line(entry: object) -> bool:
    """Return whether the JSON of a line was written by `anatune records export`."""
    return isinstance(entry, dict) and {"kind", "format"} <= set(entry)


def is_export(path: Path) -> bool:
    """Return whether a file was written by `anatune records export`, by its first line of JSON; also True if empty.

    Raises
    ------
    RecordError
        The path is no file, or cannot be read.
    """
    is_empty = True
    try:
        for line in read_lines(path):
            is_empty = is_empty and not line.strip()
            try:
                entry = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError):
                continue
            return is_export_line(entry)
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}; name a file to import") from None
    except UnicodeDecodeError:
        return False
    return is_empty


def import_json_lines(
    store: RecordStore, source: str | Path | Iterable[str], progress: Callable[[float], None] | None = None
) -> tuple[int, int]:
    """Record the lines that `json_lines` wrote in one transaction, all of them or none.

    Parameters
    ----------
    store : RecordStore
        The store to write.
    source : str, Path or iterable of str
        The file, or its lines.
    progress : callable, optional
        Called with the share of a file that is read.

    Returns
    -------
    num_sessions, num_trials : int
        Number of new sessions and trials; those that the store has already are left out.

    Raises
    ------
    RecordError
        A line is damaged or of a newer version; the message names the file and the line.
    """
    if not isinstance(source, str | Path):
        return store.insert(_rows(source, "JSON lines", store.session))
    try:
        lines = read_lines(source)
        lines = lines if progress is None else _report_share(lines, Path(source).stat().st_size, progress)
        return store.insert(_rows(lines, str(source), store.session))
    except OSError as error:
        raise RecordError(f"{source}: {reason(error)}, expected a file that `anatune records export` wrote") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{source}: is no UTF-8 text, expected a file that `anatune records export` wrote") from error


def _report_share(lines: Iterable[str], size_bytes: int, progress: Callable[[float], None]) -> Iterator[str]:
    """Yield the lines of a file and report the share that is read."""
    read_bytes = 0
    for line in lines:
        yield line
        read_bytes += len(line)  # nearly all characters are ASCII, one byte each
        progress(min(0.99, read_bytes / max(1, size_bytes)))


def _rows(lines: Iterable[str], name: str, read_session: Callable[[str], Session]) -> Iterator[Session | Record]:
    """Yield the sessions and records of JSON lines."""
    sessions: dict[str, Session] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = _decode_line(text, f"{name}:{number}")
        if isinstance(line, _SessionLine):
            sessions[line.session.id] = line.session
            yield line.session
            continue
        if line.session not in sessions:
            try:
                sessions[line.session] = read_session(line.session)
            except RecordError as error:
                raise RecordError(
                    f"{name}:{number}: the trial belongs to session {line.session}, which no line before it describes; "
                    "import the file with that session first"
                ) from error
        yield Record(line.id, line.created_utc, sessions[line.session], line.environment, line.trial)


def _decode_line(text: str, place: str) -> _SessionLine | _TrialLine:
    try:
        version = from_json(text, _LineHeader).format
        if version > FORMAT:
            raise RecordError(
                f"{place}: the format has version {version}, but this version of anatune reads up to {FORMAT}; update "
                "anatune"
            )
        return from_json(text, _SessionLine | _TrialLine)
    except RecordError:
        raise
    except (msgspec.DecodeError, RecursionError, AnatuneError) as error:
        raise RecordError(
            f"{place}: {error}, expected a line of `anatune records export --format jsonl`; nothing was imported"
        ) from error


def _line(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode() + "\n"


# ---- flat rows -------------------------------------------------------------------------------------------------


def workload_text(workload: Workload) -> str:
    """Return a workload as typed on the command line, or its description if it cannot be typed."""
    try:
        return workload_to_text(workload)
    except WorkloadError:
        return workload.describe()


def _gflop_per_s(record: Record) -> float | None:
    time_s = record.trial.measurement.time_s
    return record.trial.schedule.workload.flop / time_s / 1e9 if time_s else None


def _reference_time_s(record: Record) -> float | None:
    references = record.trial.measurement.reference_times_s
    return statistics.median(references) if references else None


def _tiles(record: Record) -> str:
    tiles = record.trial.schedule.tiles
    return " ".join(f"{axis}={'x'.join(map(str, factors))}" for axis, factors in tiles.items())


def _options(record: Record) -> str:
    return " ".join(f"{name}={_option_text(value)}" for name, value in record.trial.schedule.options.items())


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


Cell: TypeAlias = str | float | bool | None
_COLUMNS: dict[str, str | Callable[[Record], Cell]] = {
    "id": "id", "created_utc": "created_utc", "session": "session.id", "number": "trial.number",
    "source": "trial.source", "workload": lambda record: workload_text(record.trial.schedule.workload),
    "workload_key": "trial.schedule.workload.key", "hardware": "session.hardware.name", "threads": "trial.threads",
    "strategy": "session.strategy", "seed": "session.seed", "outcome": "trial.measurement.outcome.value",
    "time_s": "trial.measurement.time_s", "num_samples": lambda record: len(record.trial.measurement.times_s),
    "min_time_s": lambda record: min(record.trial.measurement.times_s, default=None),
    "max_time_s": lambda record: max(record.trial.measurement.times_s, default=None),
    "reference_time_s": _reference_time_s, "relative": "trial.measurement.relative", "gflop_per_s": _gflop_per_s,
    "predicted_s": "trial.predicted_s", "max_rel_error": "trial.measurement.max_rel_error",
    "stopped_early": "trial.measurement.stopped_early", "build_s": "trial.measurement.build_s",
    "run_s": "trial.measurement.run_s", "tiles": _tiles, "unroll": "trial.schedule.unroll",
    "vector": lambda record: " ".join(f"{name}={width}" for name, width in record.trial.schedule.vector.items()),
    "options": _options, "schedule_key": "trial.schedule.key",
    "message": lambda record: " ".join(record.trial.measurement.message.split()), "cpu": "environment.cpu",
    "cores": "environment.cores", "platform": "environment.platform", "python": "environment.python",
    "numpy": "environment.numpy", "tvm": "environment.tvm", "anatune": "environment.anatune",
    "worker": lambda record: record.trial.measurement.worker or None, "energy_j": "trial.measurement.energy_j",
    "corrected_s": "trial.corrected_s",
}  # fmt: skip
"""Column of the CSV -> attribute path of its value in a record, or the function that computes it.

Times are in seconds; time_s is the median of the samples, energy_j the joules of one run.
"""
CSV_COLUMNS = tuple(_COLUMNS)
_CELLS = {name: attrgetter(found) if isinstance(found, str) else found for name, found in _COLUMNS.items()}


def flat_row(record: Record) -> dict[str, Cell]:
    """Return a record as one flat row: a value or None for each of `CSV_COLUMNS`."""
    return {name: cell(record) for name, cell in _CELLS.items()}


def csv_lines(records: Iterable[Record]) -> Iterator[str]:
    """Yield records as CSV (RFC 4180, UTF-8), the heading first; each with its line end.

    Parameters
    ----------
    records : iterable of Record
        The records to write. A missing value, such as the time of a failure, is an empty cell.
    """
    yield _csv_line(CSV_COLUMNS)
    for record in records:
        yield _csv_line(flat_row(record).values())


def _csv_line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()

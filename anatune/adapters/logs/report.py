"""What an import recorded of another tuner's log, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from anatune.adapters.logs.recording import Imported
from anatune.records.export import workload_text
from anatune.records.place import RecordPlace
from anatune.report.text import Line, table

__all__ = ["import_lines", "reasons_text"]

_MOST_REASONS = 5


def import_lines(
    store: RecordPlace, kind: str, imported: Sequence[Imported], left_out: Mapping[str, int]
) -> list[Line]:
    """Return a table, a row for each workload on each device, and why entries were left out.

    Parameters
    ----------
    store : Path or ServerAddress
        The record file.
    left_out : mapping of str to int
        Reason -> entries.
    """
    devices: Counter[str] = Counter()
    for log in imported:
        devices[log.hardware.name] += log.rows
    shares = ", ".join(f"{count} on {name}" for name, count in devices.items())
    lines = [
        Line(f"{store}: {sum(devices.values())} trials of this {kind} log are new{f': {shares}' * (len(devices) > 1)}")
    ]
    cells = [
        ("device", [log.hardware.name for log in imported]),
        ("trials", [str(log.rows) for log in imported]),
        ("failed", [str(log.failed) for log in imported]),
        ("known", [str(log.known) for log in imported]),
        ("workload", [workload_text(log.workload) for log in imported]),
    ]
    lines += table(cells, ("device", "workload"))
    if any(log.known for log in imported):
        lines.append(Line("known: imported before, not recorded again", "dim"))
    if left_out:
        lines.append(Line(f"left out: {sum(left_out.values())} entries", "bold"))
        most = max(len(str(count)) for count in left_out.values())
        lines += [Line(f"{count:>{most}}  {reason}") for reason, count in _ordered(left_out)]
    return lines


def reasons_text(left_out: Mapping[str, int]) -> str:
    """Return the commonest reasons in one line."""
    ordered = _ordered(left_out)
    named = [f"{count} entries: {reason}" for reason, count in ordered[:_MOST_REASONS]]
    if rest := sum(count for _, count in ordered[_MOST_REASONS:]):
        named.append(f"{rest} entries for other reasons")
    return "; ".join(named)


def _ordered(left_out: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(left_out.items(), key=lambda pair: -pair[1])

"""The formats of ``anatune prune --for``: anatune's own, and those that other packages register.

To add a format, write a function from a `PruneRequest` to lines, and name it in pyproject.toml under the entry points
"anatune.formats".
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator

from anatune.arguments import quote
from anatune.errors import UnknownNameError
from anatune.listing.formats import PruneRequest, Writer, write_object_lines
from anatune.named import entries, load

_NUMBERS = ("time_s", "gflop_per_s", "bound_by", "occupancy", "waves")


def write_json_lines(request: PruneRequest) -> Iterator[str]:
    """Yield a JSON object in lines: the request and counts, then ``schedules``, one on each line, best first."""
    subset = request.subset()
    head = subset.to_dict() | {"num_listed": min(subset.num_kept, request.most)}
    entries = itertools.islice(subset.entries(), request.most)
    schedules = (schedule.to_dict() | {"prediction": prediction} for schedule, prediction in entries)
    yield from write_object_lines(head, "schedules", schedules)


def write_csv_lines(request: PruneRequest) -> Iterator[str]:
    """Yield a table: place, prediction, and the columns of the space (``i.block``, ..., ``unroll``).

    With several templates there is a column "template" and the columns of all, empty where a schedule has none.
    """
    subset = request.subset()
    spaces = {space.template: space for space in subset.spaces}
    columns = dict.fromkeys(column for space in subset.spaces for column in space.columns)
    several = ["template"] if len(spaces) > 1 else []
    yield _row(["place", *_NUMBERS, *several, *columns])
    for position, (schedule, prediction) in enumerate(itertools.islice(subset.entries(), request.most), 1):
        numbers = [getattr(prediction, name) for name in _NUMBERS]
        space = spaces[schedule.template]
        values = dict(zip(space.columns, space.point_of(schedule).tolist(), strict=True))
        template_column = [schedule.template] if several else []
        yield _row([position, *numbers, *template_column, *(values.get(column, "") for column in columns)])


def _row(values: list[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


_OWN: dict[str, Writer] = {"json": write_json_lines, "csv": write_csv_lines}
OTHER_LINES = {"json": 2, "csv": 1, "triton": 3, "kernel-tuner": 2}
"""Name of a format -> number of lines that hold no schedule."""
IGNORED = {"triton": ("template", "accuracy", "time_limit", "distinct", "no_diverse", "correction", "plain", "html")}
"""Name of a format -> options of the command that it ignores, because it ranks all of Triton's own tiles."""


def list_formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    return (*_OWN, *entries("formats"))


def find_writer(name: str) -> Writer:
    """Return the writer of a format.

    Raises
    ------
    UnknownNameError
        The format is unknown; the message lists all.
    """
    if name in _OWN:
        return _OWN[name]
    if name not in entries("formats"):
        raise UnknownNameError(f"format {quote(name)} is unknown, expected one of {', '.join(list_formats())}")
    writer: Writer = load("formats", name)
    return writer

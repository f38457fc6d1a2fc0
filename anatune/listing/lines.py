"""The kept schedules as JSON or CSV, written as they are found."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator

from anatune.listing.formats import PruneRequest, object_lines

__all__ = ["csv_lines", "json_lines"]

_NUMBERS = ("time_s", "gflop_per_s", "bound_by", "occupancy", "waves")


def json_lines(request: PruneRequest) -> Iterator[str]:
    """Yield one JSON object in lines: what was asked and counted, then ``schedules``, one a line, best first."""
    subset = request.subset()
    head = subset.to_dict() | {"num_listed": min(subset.num_kept, request.most)}
    entries = itertools.islice(subset.entries(), request.most)
    schedules = (schedule.to_dict() | {"prediction": prediction} for schedule, prediction in entries)
    yield from object_lines(head, "schedules", schedules)


def csv_lines(request: PruneRequest) -> Iterator[str]:
    """Yield a table: place, the prediction, then the columns of the space (``i.block``, ..., ``unroll``).

    Of several templates: "template", and the columns of all of them, empty where a schedule has none.
    """
    subset = request.subset()
    spaces = {space.template: space for space in subset.spaces}
    columns = dict.fromkeys(column for space in subset.spaces for column in space.columns)
    several = ["template"] if len(spaces) > 1 else []
    yield _row(["place", *_NUMBERS, *several, *columns])
    for place, (schedule, prediction) in enumerate(itertools.islice(subset.entries(), request.most), 1):
        numbers = [getattr(prediction, name) for name in _NUMBERS]
        space = spaces[schedule.template]
        values = dict(zip(space.columns, space.point_of(schedule).tolist(), strict=True))
        named = [schedule.template] if several else []
        yield _row([place, *numbers, *named, *(values.get(column, "") for column in columns)])


def _row(values: list[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()

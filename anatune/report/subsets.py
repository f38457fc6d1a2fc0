"""What deserves a run, as text: how much is kept, and the first schedules."""

from __future__ import annotations

import itertools

from anatune.model.pruning.subset import SpaceSubset
from anatune.report import units
from anatune.report.tables import registers_text, schedule_items
from anatune.report.templates import template_text
from anatune.report.text import Line, columns, wrapped, wrapped_items

__all__ = ["subset_lines"]


def subset_lines(subset: SpaceSubset, most: int, *, width: int = 80) -> list[Line]:
    """Return a subset as a summary: what was asked and counted, then its first schedules with their tiles.

    Parameters
    ----------
    subset : SpaceSubset
        With at least one schedule.
    most : int
        Schedules to show, at most.
    width : int
        Characters a line.
    """
    workload, hardware, template = subset.workload, subset.hardware, subset.space.template
    entries = list(itertools.islice(subset.entries(), most))
    threads = f", {units.threads(hardware.most_threads)}" if hardware.most_threads else ""
    share = units.percent(subset.num_kept / subset.num_legal)
    head = f"{workload.describe()} on {hardware.name} ({hardware.model}){threads}"
    said = [
        template_text(workload, hardware, template),
        f"kept: {units.count(subset.num_kept)} of {units.count(subset.num_legal)} legal schedules ({share}), of a "
        f"space of {units.count(subset.space.size)}; order: {subset.guarantee.describe()}",
    ]
    rows = [["#", "time", "bound by", "occupancy", "waves", "regs"]]
    for place, (_, one) in enumerate(entries, 1):
        cells = [units.duration(one.time_s), one.bound_by, units.percent(one.occupancy), units.ratio(one.waves)]
        rows.append([str(place), *cells, registers_text(one)])
    heading, *table = columns(rows, left=(2,), width=width)
    lines = [Line(text, "bold") for text in wrapped(head, width, hanging="  ")]
    lines += [Line(text) for words in said for text in wrapped(words, width, hanging="  ")]
    lines += [Line(""), Line(heading, "bold")]
    for row, (schedule, _) in zip(table, entries, strict=True):
        lines.append(Line(row))
        lines += [Line(text, "dim") for text in wrapped_items(schedule_items(schedule), width, indent="    ")]
    if subset.num_kept > len(entries):
        told = (
            f"{units.count(subset.num_kept - len(entries))} more; --json lists them (at most --most N), --for csv, "
            "triton, kernel-tuner or metaschedule writes them for a tuner"
        )
        lines += [Line(""), *(Line(text) for text in wrapped(told, width, hanging="  "))]
    return lines

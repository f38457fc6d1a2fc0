"""Schedules as text: one line of items, or a table of tiles, and the meanings of levels and options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anatune.codegen.arithmetic import find_arithmetic
from anatune.core.accuracy import is_plain_sum
from anatune.core.schedule import OptionValue, Schedule
from anatune.report.text import Line, columns, wrap_items, wrap_text
from anatune.templates import get_template

_INDENT = "   "


def schedule_items(schedule: Schedule) -> list[str]:
    """Return a schedule as items: ``i 8x2x16x2x1``, ``k 64x4x4``, ``unroll 512``, ``vector.A 4``; options last."""
    tiles = [f"{axis} {'x'.join(map(str, factors))}" for axis, factors in schedule.tiles.items()]
    return tiles + [f"{name} {_option_text(value)}" for name, value in _options(schedule).items()]


def template_items(schedule: Schedule, *, among_several: bool) -> list[str]:
    """Return the items before those of a schedule: its template among several, and the error of its results."""
    items = [schedule.template] if among_several else []
    if not is_plain_sum(schedule.template):
        items.append(f"error {find_arithmetic(schedule).expected_relative_error:.1g}")
    return items


def schedule_table(schedule: Schedule, rank: int, items: Sequence[str], ties: str, width: int) -> list[Line]:
    """Return one schedule as a small table: a row an axis with its factor at each level, then its options.

    Parameters
    ----------
    schedule : Schedule
        The schedule to show.
    rank : int
        Its place in the plan, from 1 on.
    items : sequence of str
        Its `template_items`.
    ties : str
        The line about schedules of the same predicted time, "" for none.
    width : int
        Characters a line.
    """
    levels = get_template(schedule.template).levels(schedule.workload)
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for axis, factors in schedule.tiles.items():
        tables.setdefault(levels[axis], []).append([axis, *map(str, factors)])
    lines = []
    for names, rows in tables.items():
        heading, *others = columns([["axis", *names], *rows], [0], width=width - len(_INDENT))
        lines += [Line(_INDENT + heading, "bold"), *(Line(_INDENT + row, "dim") for row in others)]
    number = f"{rank} ".ljust(len(_INDENT))
    lines[0] = lines[0]._replace(text=number + lines[0].text.removeprefix(_INDENT))
    options = [*items, *(f"{name} {_option_text(value)}" for name, value in _options(schedule).items())]
    return lines + _dim(wrap_items(options, width, indent=_INDENT)) + _dim(wrap_text(ties, width, indent=_INDENT))


def schedule_line(schedule: Schedule, rank: int, items: Sequence[str], ties: str, width: int) -> list[Line]:
    """Return one schedule as one line, which is broken between items. Parameters as `schedule_table`."""
    words = [*items, *schedule_items(schedule), *([ties] if ties else [])]
    number = f"{rank} ".ljust(len(_INDENT))
    return _dim(wrap_items(words, width, indent=number, hanging=_INDENT))


def meaning_lines(schedules: Iterable[Schedule], width: int, *, name_templates: bool) -> list[str]:
    """Return the meanings of the options of schedules, a line each.

    Parameters
    ----------
    schedules : iterable of Schedule
        Schedules of one workload.
    width : int
        Characters a line.
    name_templates : bool
        Whether each line begins with its template.
    """
    names: dict[str, dict[str, None]] = {}
    for schedule in schedules:
        names.setdefault(schedule.template, {}).update(dict.fromkeys(_options(schedule)))
    lines = []
    for name, options in names.items():
        template = get_template(name)
        begin = f"{name}, " if name_templates else ""
        for option in dict.fromkeys(option.partition(".")[0] for option in options):
            if option in template.option_meanings:
                lines += wrap_text(f"{begin}{option}: {template.option_meanings[option]}", width, hanging="  ")
    return lines


def _options(schedule: Schedule) -> dict[str, OptionValue]:
    """Return the parts of a schedule besides its tiles: ``unroll``, the vector widths, and its options."""
    options = schedule.told_options
    first = {"unroll": options.pop("unroll")} if "unroll" in options else {}
    return first | {f"vector.{tensor}": width for tensor, width in schedule.vector.items()} | options


def _option_text(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "-".join(map(str, value)) if value else "none"
    return str(value)


def _dim(lines: Iterable[str]) -> list[Line]:
    return [Line(line, "dim") for line in lines]

"""Report of compiling a plan's first schedules: the compiler's numbers and their effect on the plan."""

from __future__ import annotations

from statistics import fmean

from anatune.core.prediction import Prediction
from anatune.model.compilation import Compilation, CompiledSchedule
from anatune.report import units
from anatune.report.plans import occupancy_text
from anatune.report.schedules import schedule_items
from anatune.report.text import Line, columns, paragraph

_MOST_FAILURES = 3
"""Number of failures that are listed with their reason."""
_SAME_SHARE = 1e-3
"""Relative difference below which times and occupancies count as equal."""


def compilation_lines(compilation: Compilation, top_k: int = 10, *, width: int = 80) -> list[Line]:
    """Return the report of a compilation: the first kernels before and after, then the changes and their reasons."""
    lines = []
    ranked = compilation.ranked[:top_k]
    if ranked:
        heading, *rows = columns(_cells(ranked), left=(8, 9), width=width)
        lines += [Line("after compilation", "bold"), Line(heading, "bold"), *map(Line, rows), Line("")]
    for sentence in compilation_sentences(compilation):
        lines += paragraph(sentence, width, indent="- ")
    return lines


def _cells(ranked: list[CompiledSchedule]) -> list[list[str]]:
    rows = [["#", "was", "time", "was", "regs", "was", "shared", "spills", "occupancy", "was"]]
    for rank, entry in enumerate(ranked, start=1):
        assert entry.after is not None
        assert entry.facts is not None
        rows.append(
            [
                str(rank),
                str(entry.rank_before),
                units.duration(entry.after.time_s),
                units.duration(entry.before.time_s),
                str(entry.facts.registers),
                f"{_occupancy_registers(entry.before):.0f}",
                units.size(entry.facts.shared_bytes),
                units.size(entry.facts.spill_bytes),
                occupancy_text(entry.after),
                occupancy_text(entry.before),
            ]
        )
    return rows


def compilation_sentences(compilation: Compilation) -> list[str]:
    """Return sentences about the compiled schedules, the changes with their reasons, and the failures."""
    return [*_work(compilation), *_order(compilation), *_numbers(compilation), *_failures(compilation)]


def _work(compilation: Compilation) -> list[str]:
    done, seconds = len(compilation.schedules), compilation.seconds
    text = (
        f"Compiled the {units.count(done)} different kernels of the first {units.count(compilation.num_considered)} "
        f"schedules with {compilation.compiler} in {units.duration(seconds)}"
    )
    text += f" ({done / seconds:.1f} kernels/s)" if done and seconds > 0 else ""
    text += f"; {units.count(len(compilation.failed))} of them failed" if compilation.failed else ""
    text += f"; the time limit left out {units.count(len(compilation.left))}" if compilation.left else ""
    return [f"{text}. The proof of the order holds for the predictions before compilation."]


def _order(compilation: Compilation) -> list[str]:
    """Return sentences about a change of the first choice and its reason."""
    ranked = compilation.ranked
    if not ranked:
        return []
    best, first = ranked[0], compilation.schedules[0]
    if best is first:
        return [f"The first choice stays: {_change(best)}."]
    sentences = [
        f"The first choice changed: it was number {best.rank_before} before "
        f"({', '.join(schedule_items(best.schedule))}); {_change(best)}."
    ]
    if first.after is None:
        return [*sentences, f"The former first choice failed ({first.outcome.value}): {first.message}."]
    now = ranked.index(first) + 1
    return [*sentences, f"The former first choice is number {now} now: {_change(first)}."]


def _change(entry: CompiledSchedule) -> str:
    """Return a text with the numbers of one kernel that compilation changed."""
    before, after, facts = entry.before, entry.after, entry.facts
    assert after is not None
    assert facts is not None
    parts = []
    registers = _occupancy_registers(before)
    if registers != facts.registers:
        parts.append(f"registers {facts.registers} instead of {registers:.0f}")
    if before.resources["shared_bytes_per_block"] != facts.shared_bytes:
        shared = before.resources["shared_bytes_per_block"]
        parts.append(f"shared memory {units.size(facts.shared_bytes)} instead of {units.size(shared)}")
    spilled, expected = (each.resources.get("spilled_registers", 0.0) for each in (after, before))
    if spilled != expected:
        parts.append(f"spilled registers {spilled:.0f} instead of {expected:.0f}")
    if occupancy_text(before) != occupancy_text(after):
        parts.append(f"occupancy {occupancy_text(after)} instead of {occupancy_text(before)}")
    if _is_close(before.time_s, after.time_s):
        parts.append(f"its predicted time stays {units.duration(after.time_s)}")
    else:
        now, then = units.duration(after.time_s), units.duration(before.time_s)
        parts.append(f"its predicted time is {now} instead of {then}")
    return ", ".join(parts)


def _occupancy_registers(prediction: Prediction) -> float:
    """Return the number of registers from which a prediction computes the occupancy."""
    resources = prediction.resources
    return resources.get("counted_registers", resources["registers_per_thread"])


def _is_close(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME_SHARE * max(abs(a), abs(b))


def _numbers(compilation: Compilation) -> list[str]:
    """Return a sentence that compares the model's numbers with the compiler's."""
    ranked = compilation.ranked
    if not ranked:
        return []
    pairs = [(entry.facts, entry.before.resources, entry.before, entry.after) for entry in ranked if entry.facts]
    apart = [facts.registers - resources["registers_per_thread"] for facts, resources, _, _ in pairs]
    counted = [facts.registers - _occupancy_registers(before) for facts, _, before, _ in pairs]
    shared = sum(facts.shared_bytes != resources["shared_bytes_per_block"] for facts, resources, _, _ in pairs)
    spilling = sum(facts.local_bytes > 0 for facts, _, _, _ in pairs)
    occupancy = sum(
        after is not None and not _is_close(before.occupancy, after.occupancy) for _, _, before, after in pairs
    )
    return [
        f"For these kernels the predicted number of registers is off by {fmean(map(abs, apart)):.1f} on average, the "
        f"number from which occupancy is predicted by {fmean(map(abs, counted)):.1f}. The occupancy changed for "
        f"{occupancy} of {len(ranked)} kernels, {spilling} spill to local memory, and shared memory was as "
        f"predicted for {len(ranked) - shared} of {len(ranked)}."
    ]


def _failures(compilation: Compilation) -> list[str]:
    failed = compilation.failed
    sentences = [
        f"Number {entry.rank_before} failed ({entry.outcome.value}): {entry.message}."
        for entry in failed[:_MOST_FAILURES]
    ]
    more = len(failed) - len(sentences)
    return [*sentences, f"{more} more failed."] if more > 0 else sentences

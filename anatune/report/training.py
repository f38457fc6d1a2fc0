"""What a trained correction is worth, as text."""

from __future__ import annotations

from pathlib import Path

from anatune.report.text import Line
from anatune.tuning.calibration import Learned
from anatune.tuning.training import MIN_TRIALS, Family, Judgement, Quality

__all__ = ["family_lines", "nest_lines"]


def family_lines(family: Family, judgement: Judgement, saved: Path | None) -> list[Line]:
    """Return the report of one correction: what it was trained on, and what it is worth.

    Parameters
    ----------
    saved : Path or None
        Where it was saved, None if it was not.
    """
    lines = [
        Line(
            f"{family.name}: {_count(judgement.num_workloads, 'workload')}, {judgement.num_trials} schedules, "
            f"{judgement.num_failed} of them failed",
            "bold",
        )
    ]
    lines += [Line(f"  {one.workload}: {one.schedules} schedules, {one.failed} failed") for one in family.workloads]
    if family.num_left_out:
        lines.append(Line(f"  left out: {_count(family.num_left_out, 'workload')} with fewer than {MIN_TRIALS} times"))
    lines += _both("each workload left out in turn", judgement.plain, judgement.by_workload)
    lines += _both("the device left out", judgement.plain_by_device, judgement.by_device)
    if judgement.by_workload is None:
        lines.append(Line("  one workload only: whether a correction helps on others cannot be told"))
    verdict = "better" if judgement.helps else "not better"
    where = f"saved in {saved}" if saved is not None else "not saved"
    lines.append(Line(f"  {verdict} than the analytical model on workloads it has not seen; {where}"))
    return lines


def nest_lines(learned: Learned) -> list[str]:
    """Return what a calibration learned from generated nests, and what that is worth."""
    lines = []
    if learned.measured:
        failed = f", {learned.failed} of them failed" if learned.failed else ""
        lines.append(f"measured {_count(learned.measured, 'generated kernel')}{failed}; kept in {learned.records}")
    judgement = learned.judgement
    if judgement is None or judgement.plain is None or judgement.by_workload is None:
        return [*lines, "too few generated kernels were measured to learn from; calibrate for longer"]
    parts = [
        f"{who}: Spearman {found.spearman:.2f}, its first choice takes {found.first_regret:.3f} times as long as the "
        f"best (worst {found.worst_first:.2f}), the best of its first 8 {found.top8_regret:.3f}"
        for who, found in (("model", judgement.plain), ("corrected", judgement.by_workload))
    ]
    where = f"saved in {learned.saved}, plans use it" if learned.saved else "it does not help, and is not kept"
    return [
        *lines,
        f"a correction learned from {judgement.num_trials} kernels of {judgement.num_workloads} workloads, each left "
        "out in turn:",
        *(f"  {part}" for part in parts),
        f"  {where}",
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _both(title: str, plain: Quality | None, corrected: Quality | None) -> list[Line]:
    if plain is None or corrected is None:
        return []
    return [Line(f"  {title} (medians):"), _line("analytical", plain), _line("corrected", corrected)]


def _line(who: str, quality: Quality) -> Line:
    regret = f"best of its first 8 is {quality.top8_regret:.3f} x the best"
    return Line(f"    {who:<10}  Spearman {quality.spearman:.3f}, {regret}")

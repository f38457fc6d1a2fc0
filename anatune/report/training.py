"""What a trained correction is worth, as text."""

from __future__ import annotations

from pathlib import Path

from anatune.report.text import Line
from anatune.tuning.training import MIN_TRIALS, Family, Judgement, Quality

__all__ = ["family_lines"]


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


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _both(title: str, plain: Quality | None, corrected: Quality | None) -> list[Line]:
    if plain is None or corrected is None:
        return []
    return [Line(f"  {title} (medians):"), _line("analytical", plain), _line("corrected", corrected)]


def _line(who: str, quality: Quality) -> Line:
    regret = f"best of its first 8 is {quality.top8_regret:.3f} x the best"
    return Line(f"    {who:<10}  Spearman {quality.spearman:.3f}, {regret}")

"""Accuracies: how far a kernel's arithmetic may leave a plain sum of products, and what a schedule's needs.

"standard" admits what errs about as much as a plain sum: direct kernels, Winograd's F(2x2, 3x3). "relaxed" admits
besides what errs several times as much: Winograd's F(4x4, 3x3). Templates say which one each schedule needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anatune.arguments import checked_choice
from anatune.core.templates import template_named

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule

__all__ = ["ACCURACIES", "RELAXED", "STANDARD", "accuracy_of", "admits", "checked_accuracy", "error_of", "is_plain_sum"]

STANDARD, RELAXED = "standard", "relaxed"
ACCURACIES = (STANDARD, RELAXED)
"""Each admits what those before it admit."""


def checked_accuracy(what: str, value: Any) -> str:
    """Return `value` if it is one of `ACCURACIES`; `what` leads the message.

    Raises
    ------
    SpaceError
        It is not; the message lists them.
    """
    return checked_choice(what, value, ACCURACIES)


def admits(accuracy: str, needed: str) -> bool:
    """Return whether who asks for `accuracy` may get what needs `needed`."""
    return ACCURACIES.index(needed) <= ACCURACIES.index(accuracy)


def accuracy_of(schedule: Schedule) -> str:
    """Return the accuracy that one has to ask for to get a schedule."""
    template = template_named(schedule.template)
    return STANDARD if template.accuracy is None else str(template.part("accuracy")(schedule))


def is_plain_sum(template: str) -> bool:
    """Return whether kernels of a template add up the products as the workload says, in whatever order."""
    return template_named(template).error is None


def error_of(schedule: Schedule) -> float:
    """Return the largest error that a schedule's arithmetic explains, over the result's scale.

    0.0 where the arithmetic is a plain sum's, whose bound follows from the workload
    (`measure.run.correctness.tolerance`).
    """
    template = template_named(schedule.template)
    return 0.0 if template.error is None else float(template.part("error")(schedule))

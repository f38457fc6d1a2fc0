"""Accuracies: how much the arithmetic of a kernel may err, and which accuracy each schedule needs.

"standard" allows errors about as large as those of a plain sum of products: direct kernels, Winograd's F(2x2, 3x3).
"relaxed" also allows arithmetic that errs several times as much, such as Winograd's F(4x4, 3x3), and sums in float16
(template "fp16_accumulation"), which err much more. Each template states which accuracy its schedules need.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from anatune.arguments import check_choice
from anatune.core.templates import all_templates
from anatune.core.workload.access import ACCUMULATOR_DTYPE

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from anatune.core.workload.nest import Workload

STANDARD, RELAXED = "standard", "relaxed"
ACCURACIES = (STANDARD, RELAXED)
"""All accuracies, the strictest first: each allows what those before it allow."""
EPS: dict[str, float] = {
    "float32": 2.0**-23,
    "tf32": 2.0**-10,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-2,
}
"""Number format -> distance of 1 to its next number."""
TYPICAL_ERROR = 0.35
"""Typical error of a sum of K products, in units of eps * sqrt(K) times its spread; see `rounding_error`."""
_STEP_ROUNDINGS = {"relu": 0, "relu6": 0, "silu": 3, "gelu": 3, "gelu_tanh": 3}
"""Roundings of a fused step, in eps of the result; steps that are not listed have 1. Activations err by 2 eps of their
argument, and their slope is at most 1.13. Source: `codegen.formulas`, tests/unit/codegen/cpu/test_rows.py."""
_SUM_FACTOR = 4.0
"""Allowed error of such a sum, in the same units."""
TYPICAL_OF_BOUND = TYPICAL_ERROR / _SUM_FACTOR
"""Typical error over allowed error; the bounds of other arithmetic leave the same margin."""
TRUNCATION = 4.0
"""Factor on both errors for tensor cores: they truncate sums instead of rounding them, so that errors add up.
Source: [Fasi2021] (V100, T4, A100); a factor of 4 covers sums of about 10,000 products."""


def validate_accuracy(what: str, value: object) -> str:
    """Return `value` if it is one of `ACCURACIES`; `what` begins the message.

    Raises
    ------
    SpaceError
        The value is another one; the message lists the accuracies.
    """
    return check_choice(what, value, ACCURACIES)


def admits(accuracy: str, needed: str) -> bool:
    """Return whether a schedule that needs `needed` may be used where `accuracy` was requested."""
    return ACCURACIES.index(needed) <= ACCURACIES.index(accuracy)


def accuracy_of(schedule: Schedule) -> str:
    """Return the accuracy that has to be requested to get a schedule."""
    return str(all_templates()[schedule.template].accuracy_of(schedule))


def is_plain_sum(template: str) -> bool:
    """Return whether kernels of a template add up the products of the workload itself, in any order."""
    return bool(all_templates()[template].is_plain_sum)


def error_of(schedule: Schedule) -> float:
    """Return the largest error that a schedule's arithmetic explains, relative to the result's scale.

    It is 0.0 if the arithmetic is a plain sum, whose bound follows from the workload
    (`measure.run.correctness.tolerance`).
    """
    return float(all_templates()[schedule.template].error_of(schedule))


def rounding_error(workload: Workload, growth: float = 1.0, *, half_additions: int = 0) -> float:
    """Return the largest error that rounding explains for floating-point operands, relative to the result's scale.

    ``4 * eps(accumulator) * growth * sqrt(K) + eps(result) * (1 + roundings of the epilogue)``, K: iterations of the
    reduction axes. For operands of mean zero a partial sum of k products has spread ``sqrt(k) * rms`` and each addition
    errs by at most half an eps of it, at random: ``eps / 2 * K / sqrt(2) * rms`` after K of them, which is
    ``0.35 * eps * sqrt(K)`` of the element's own spread. The factor 4 leaves 11 standard deviations to the worst of
    millions of elements, summed in the worst order (one after another; vector lanes and tiles err less).

    The worst-case bound, ``eps * K``, would let errors of whole products pass; see Higham and Mary, A New Approach to
    Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41 (2019), for why sqrt(K) holds for random data.

    Parameters
    ----------
    growth : float
        Error of the sum over that of a plain sum.
    half_additions : int
        Number of consecutive additions in float16 before a partial sum continues in the accumulator's dtype. K / h
        parts of h products each err by ``eps / 2 * h / sqrt(2) * rms``, at random: together ``0.35 * eps * sqrt(h)`` of
        the element's own spread, for any number of parts.
    """
    additions = sum(_STEP_ROUNDINGS.get(step, 1) for step in workload.epilogue)
    error = _SUM_FACTOR * EPS[ACCUMULATOR_DTYPE[workload.dtype]] * growth * math.sqrt(workload.num_reduced)
    error += _SUM_FACTOR * EPS["float16"] * math.sqrt(half_additions)
    return error + EPS[workload.write.dtype] * (1 + additions)

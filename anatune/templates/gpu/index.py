"""Index expressions in TVMScript: from fused indices to axes, from axes to elements of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from anatune.core.workload.nest import Access, Workload

__all__ = [
    "Fused",
    "axis_values",
    "condition_head",
    "element",
    "inside_tests",
    "join_conditions",
    "position_along",
    "sum_of",
]


class Fused(Protocol):
    """A loop nest with the fused indices "batch", "m", "n" and "k"."""

    def axes(self, index: str) -> tuple[str, ...]:
        """Return the axes of a fused index, outer to inner."""
        ...


def sum_of(*terms: str) -> str:
    """Return the sum of expressions. Terms that are "0" are left out."""
    return " + ".join(term for term in terms if term != "0") or "0"


def join_conditions(conditions: Sequence[str]) -> str:
    """Return the conjunction of conditions, or "" if there are none."""
    if len(conditions) < 2:
        return "".join(conditions)
    return f"T.And({conditions[0]}, {join_conditions(conditions[1:])})"


def condition_head(conditions: Sequence[str]) -> str:
    """Return the head of a block that runs if all conditions hold, or "" if there are none."""
    return f"if {join_conditions(conditions)}:" if conditions else ""


def axis_values(gemm: Fused, workload: Workload, places: Mapping[str, str]) -> dict[str, str]:
    """Return axis -> expression of its value, from expressions of fused indices ("batch", "m", "n", "k")."""
    values: dict[str, str] = {}
    for index, fused_value in places.items():
        inner = 1
        axes = [axis for axis in gemm.axes(index) if workload.extents[axis] > 1]
        for axis in reversed(axes):
            digit = f"({fused_value}) // {inner}" if inner > 1 else f"({fused_value})"
            values[axis] = f"({digit} % {workload.extents[axis]})" if axis != axes[0] else f"({digit})"
            inner *= workload.extents[axis]
    return values


def position_along(access: Access, d: int, values: Mapping[str, str]) -> str:
    """Return the expression of the position along dimension `d`. Axes without a value count as 0."""
    terms = [
        values[term.axis] if term.coefficient == 1 else f"{values[term.axis]} * {term.coefficient}"
        for term in access.indices[d]
        if term.axis in values
    ]
    offset = access.offsets[d]
    text = " + ".join(terms) or "0"
    return f"{text} + {offset}" if offset > 0 else f"{text} - {-offset}" if offset < 0 else text


def element(access: Access, values: Mapping[str, str]) -> str:
    """Return the expression of the element that an access reads or writes."""
    return f"{access.tensor}[{', '.join(position_along(access, d, values) for d in range(len(access.shape))) or '()'}]"


def inside_tests(access: Access, guarded: Sequence[bool], workload: Workload, values: Mapping[str, str]) -> list[str]:
    """Return the conditions under which an element lies inside the tensor. Only guarded dimensions are tested."""
    tests = []
    for d, is_guarded in enumerate(guarded):
        if not is_guarded:
            continue
        position = position_along(access, d, values)
        last = sum(term.coefficient * (workload.extents[term.axis] - 1) for term in access.indices[d])
        if access.offsets[d] < 0:
            tests.append(f"{position} >= 0")
        if access.offsets[d] + last >= access.shape[d]:
            tests.append(f"{position} < {access.shape[d]}")
    return tests

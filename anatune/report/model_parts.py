"""A compiled model in parts: what each kind of function takes by prediction and measurement, and what it could take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError
from anatune.graph.summary import KernelSummary, ModelSummary, OperatorSummary
from anatune.model.bound import TimeBound, time_bound
from anatune.templates import make_model, template_named

__all__ = ["LEFT", "ModelPart", "kernel_bound", "kernel_kind", "model_parts"]

LEFT = "left to TVM"
_KIND = re.compile(r"^anatune_[a-z]+_[0-9]+_")
"""What the name of a kernel without a plan begins with; its kind follows."""


def kernel_kind(one: OperatorSummary) -> str:
    """Return the kind of a kernel without a plan: "softmax", "max_pool2d"."""
    return _KIND.sub("", one.name)


class ModelPart(NamedTuple):
    """One kind of function of a model.

    Attributes
    ----------
    name : str
        Products by the order of their dimensions ("products, NHWC"), kernels without a plan by their kind, `LEFT`.
    calls : int
        In a run.
    predicted_s, measured_s : float or None
        Of all calls in a run; None: not known.
    """

    name: str
    calls: int
    predicted_s: float | None
    measured_s: float | None


def model_parts(summary: ModelSummary, measured_s: Mapping[str, float] | None = None) -> list[ModelPart]:
    """Return the parts of a model, the longest first.

    Parameters
    ----------
    measured_s : mapping of str to float, optional
        Function of the library -> seconds of all its calls in a run (`CompiledModel.profile`).
    """
    own = {one.name for one in summary.kernels} | {one.name for one in summary.rows}
    rest = None if measured_s is None else sum(time_s for name, time_s in measured_s.items() if name not in own)
    groups: dict[str, list[tuple[int, float | None, float | None]]] = {}
    for kernel in summary.kernels:
        name = f"products, {kernel.layout}" if kernel.layout else kernel.template if not kernel.schedule else "products"
        groups.setdefault(name, []).append((kernel.count, kernel.total_s, _of(measured_s, kernel.name)))
    for one in summary.rows:
        groups.setdefault(kernel_kind(one), []).append((one.count, one.predicted_s, _of(measured_s, one.name)))
    parts = [ModelPart(name, *_added(members)) for name, members in groups.items()]
    if summary.operators or rest:
        calls = sum(one.count for one in summary.operators)
        parts.append(ModelPart(LEFT, calls, _sum(one.predicted_s for one in summary.operators), rest))
    return sorted(parts, key=lambda part: -(part.measured_s or part.predicted_s or 0.0))


def _of(measured_s: Mapping[str, float] | None, name: str) -> float | None:
    return None if measured_s is None else measured_s.get(name)


def _added(members: list[tuple[int, float | None, float | None]]) -> tuple[int, float | None, float | None]:
    calls, predicted, measured = zip(*members, strict=True)
    return sum(calls), _sum(predicted), _sum(measured)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of values, None if one of them is not known."""
    kept = list(values)
    return sum(one for one in kept if one is not None) if None not in kept else None


def kernel_bound(kernel: KernelSummary) -> TimeBound | None:
    """Return the time of one call that no schedule of a kernel's template undercuts; None of an attention.

    As kernels are timed alone, their operands where the run before left them: in a model they come from further away.
    """
    if not kernel.schedule:
        return None
    try:
        schedule = Schedule.from_json(kernel.schedule)
        template = template_named(schedule.template)
        fewest = make_model(schedule.workload, schedule.hardware, schedule.template).least_flop
    except AnatuneError:  # of another version
        return None
    return time_bound(schedule.workload, schedule.hardware, {template.tensor_cores: fewest})

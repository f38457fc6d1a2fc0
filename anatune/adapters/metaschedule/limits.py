"""A filter of MetaSchedule's GPU design spaces: candidates that break a limit of the device are not measured.

::

    space = PostOrderApply(postprocs=[*Postproc.create("cuda"), metaschedule.postproc("rtx3090")], ...)

TVM is imported by the calls, not by the module.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from anatune import api
from anatune.adapters.device import gpu_of
from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import Context, TracedSchedule, derived
from anatune.adapters.metaschedule.scores import GpuScorer
from anatune.adapters.metaschedule.tasks import check_kind
from anatune.core.hardware.spec import GpuSpec
from anatune.measure.named_hardware import HardwareLike
from anatune.records.traces import Tiling, UnfitError
from anatune.untyped import ms

__all__ = ["REGISTERS_RULE", "AnatunePostproc", "postproc"]

REGISTERS_RULE = "registers_per_thread"
"""Rule of `postproc` beside those of the GPU model: a thread's sums alone do not fit its registers, so they spill."""
_COLUMNS = {
    "threads_per_block": "threads_per_block",
    "shared_bytes_per_block": "shared_bytes_per_block",
    "grid_blocks": "blocks",
    REGISTERS_RULE: "accumulators_per_thread",
}
"""Rule -> column of the model that it limits."""


def postproc(hw: HardwareLike) -> ms.Postproc:
    """Return a ``Postproc`` that rejects GPU candidates which break a limit of the device.

    Beside the model's rules (threads and shared memory of a block, blocks of the grid, local memory) it rejects threads
    whose sums alone do not fit their registers (`REGISTERS_RULE`). What is not understood passes.

    Attributes of what is returned: ``rejected`` (rule -> candidates), ``unknown`` (reason -> candidates), ``passed``;
    ``explain(sch)`` is one sentence.

    Raises
    ------
    SpaceError
        `hw` is a CPU: there its limits forbid nothing, and no tile of registers that does not fit was safe to reject.
        From the filter, when it is used: the target is no GPU.
    UnknownNameError, SpecError, MissingDependencyError
        As `cost_model`.
    """
    base = meta_schedule().postproc.PyPostproc
    spec = api.hardware(hw)
    refused = f"postproc: {spec.name} is a CPU, expected a GPU: CPU tilings break no limits; use cost_model"
    return derived(AnatunePostproc, base)(gpu_of(spec, refused))


class _Finding(NamedTuple):
    """The rule that a candidate breaks ("": none), its value, the limit, and what it is of; or why nothing is known."""

    rule: str = ""
    value: float = 0.0
    limit: float = 0.0
    text: str = ""
    unknown: str = ""


@dataclass
class _Shared:
    """What clones of a filter have together: the function whose candidates come, and counts."""

    task: GpuScorer | None = None
    passed: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


class AnatunePostproc:
    """The filter, as MetaSchedule calls it; clones count together."""

    def __init__(self, hardware: GpuSpec, shared: _Shared | None = None) -> None:
        self.hardware = hardware
        self._shared = shared or _Shared()
        self.rejected, self.unknown = self._shared.rejected, self._shared.unknown

    @property
    def passed(self) -> int:
        """Candidates that passed."""
        return self._shared.passed

    def _initialize_with_tune_context(self, context: Context) -> None:
        check_kind(context.target, self.hardware)
        self._shared.task = GpuScorer(context.mod, self.hardware)

    def clone(self) -> ms.Postproc:
        """Return another one that counts with this one."""
        return derived(AnatunePostproc, meta_schedule().postproc.PyPostproc)(self.hardware, self._shared)

    def apply(self, sch: TracedSchedule) -> bool:
        """Return whether a candidate passes, and count it."""
        finding = self._judge(sch)
        if finding.unknown:
            self.unknown[finding.unknown] += 1
        elif finding.rule:
            self.rejected[finding.rule] += 1
        self._shared.passed += not finding.rule
        return not finding.rule

    def explain(self, sch: TracedSchedule) -> str:
        """Return in one sentence what becomes of a candidate, and why."""
        finding = self._judge(sch)
        if finding.unknown:
            return f"kept, not judged: {finding.unknown}"
        if finding.rule:
            value, most = f"{finding.value:,.10g} {finding.text}", f"{finding.limit:,.10g}"
            return f"rejected by {finding.rule}: {value}, {self.hardware.name} has at most {most}"
        return f"kept: it breaks no limit of {self.hardware.name}"

    def _judge(self, sch: TracedSchedule) -> _Finding:
        task = self._shared.task
        if task is None:
            return _Finding(unknown="no function yet: a TuneContext gives one")
        try:
            reading = task.read(sch)
        except UnfitError as why:
            return _Finding(unknown=str(why))
        if not isinstance(reading, Tiling):
            return _Finding(unknown="a CPU kernel of anatune's")
        model = task.model(reading.stages)
        point = model.space.point_of(task.plain_point(reading))[None, :]
        evaluation = model.evaluate(point)
        code = int(evaluation.rule[0])
        if code:
            rule = model.rules[code - 1]
            column = _COLUMNS.get(rule.id)
            value = evaluation.columns[column][0] if column else 4.0 * evaluation.columns["accumulators_per_thread"][0]
            return _Finding(rule.id, float(value if rule.needed is None else rule.needed), rule.limit, rule.text)
        sums, limit = float(evaluation.columns[_COLUMNS[REGISTERS_RULE]][0]), self.hardware.registers.per_thread
        if sums > limit:
            return _Finding(REGISTERS_RULE, sums, limit, "sums of a thread")
        return _Finding()

"""A postprocessor for MetaSchedule's GPU design spaces that rejects candidates which break a limit of the device.

::

    space = PostOrderApply(postprocs=[*Postproc.create("cuda"), metaschedule.postproc("rtx3090")], ...)

TVM is imported when these functions are called.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from anatune import api
from anatune.adapters.device import gpu_of
from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import Context, TracedSchedule, derive_class
from anatune.adapters.metaschedule.scores import GpuScorer
from anatune.adapters.metaschedule.tasks import check_kind
from anatune.core.hardware.spec import GpuSpec
from anatune.measure.named_hardware import HardwareLike
from anatune.records.traces import Tiling, UnfitError
from anatune.untyped import ms

__all__ = ["REGISTERS_RULE", "AnatunePostproc", "postproc"]

REGISTERS_RULE = "registers_per_thread"
"""The rule of `postproc` in addition to those of the GPU model: a thread's sums have to fit its registers."""
_COLUMNS = {
    "threads_per_block": "threads_per_block",
    "shared_bytes_per_block": "shared_bytes_per_block",
    "grid_blocks": "blocks",
    REGISTERS_RULE: "accumulators_per_thread",
}
"""The column of the model that each rule limits."""


def postproc(hw: HardwareLike) -> ms.Postproc:
    """Return a ``Postproc`` that rejects GPU candidates which break a limit of the device.

    It applies the model's rules (threads and shared memory of a block, blocks of the grid, local memory), and also
    rejects threads whose sums do not fit their registers (`REGISTERS_RULE`). Candidates that the model cannot judge
    pass.

    The result has the attributes ``rejected`` (candidates by rule), ``unknown`` (candidates by reason) and ``passed``,
    and the method ``explain(sch)``, which returns a sentence.

    Raises
    ------
    SpaceError
        `hw` is a CPU, whose limits forbid no candidate. Raised when the postprocessor is used: the target is not a GPU.
    UnknownNameError, SpecError, MissingDependencyError
        The device or MetaSchedule cannot be found, as in `cost_model`.
    """
    base = meta_schedule().postproc.PyPostproc
    spec = api.hardware(hw)
    refused = f"postproc: {spec.name} is a CPU, expected a GPU; CPU candidates break no limits, use cost_model instead"
    return derive_class(AnatunePostproc, base)(gpu_of(spec, refused))


class _RuleFinding(NamedTuple):
    """The rule that a candidate breaks (or ""), its value, limit and text; or the reason why it cannot be judged."""

    rule: str = ""
    value: float = 0.0
    limit: float = 0.0
    text: str = ""
    unknown: str = ""


@dataclass
class _SharedCounts:
    """The state that clones of a postprocessor share: the function whose candidates it gets, and counts."""

    task: GpuScorer | None = None
    passed: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


class AnatunePostproc:
    """The class of the postprocessor that MetaSchedule calls; clones share their counts."""

    def __init__(self, hardware: GpuSpec, shared: _SharedCounts | None = None) -> None:
        self.hardware = hardware
        self._shared = shared or _SharedCounts()
        self.rejected, self.unknown = self._shared.rejected, self._shared.unknown

    @property
    def passed(self) -> int:
        """The number of candidates that passed."""
        return self._shared.passed

    def _initialize_with_tune_context(self, context: Context) -> None:
        check_kind(context.target, self.hardware)
        self._shared.task = GpuScorer(context.mod, self.hardware)

    def clone(self) -> ms.Postproc:
        """Return a copy that shares the counts."""
        return derive_class(AnatunePostproc, meta_schedule().postproc.PyPostproc)(self.hardware, self._shared)

    def apply(self, sch: TracedSchedule) -> bool:
        """Count a candidate, and return whether it passes."""
        finding = self._judge(sch)
        if finding.unknown:
            self.unknown[finding.unknown] += 1
        elif finding.rule:
            self.rejected[finding.rule] += 1
        self._shared.passed += not finding.rule
        return not finding.rule

    def explain(self, sch: TracedSchedule) -> str:
        """Return a sentence that says whether a candidate passes, and why."""
        finding = self._judge(sch)
        if finding.unknown:
            return f"kept, because it cannot be judged: {finding.unknown}"
        if finding.rule:
            value, most = f"{finding.value:,.10g} {finding.text}", f"{finding.limit:,.10g}"
            return f"rejected by {finding.rule}: {value}, {self.hardware.name} has at most {most}"
        return f"kept: it breaks no limit of {self.hardware.name}"

    def _judge(self, sch: TracedSchedule) -> _RuleFinding:
        task = self._shared.task
        if task is None:
            return _RuleFinding(unknown="no function is known yet; use it in a TuneContext")
        try:
            reading = task.read(sch)
        except UnfitError as why:
            return _RuleFinding(unknown=str(why))
        if not isinstance(reading, Tiling):
            return _RuleFinding(unknown="it is a CPU kernel of anatune")
        model = task.model(reading.stages)
        point = model.space.point_of(task.plain_point(reading))[None, :]
        evaluation = model.evaluate(point)
        code = int(evaluation.rule[0])
        if code:
            rule = model.rules[code - 1]
            column = _COLUMNS.get(rule.id)
            value = evaluation.columns[column][0] if column else 4.0 * evaluation.columns["accumulators_per_thread"][0]
            return _RuleFinding(rule.id, float(value if rule.needed is None else rule.needed), rule.limit, rule.text)
        sums, limit = float(evaluation.columns[_COLUMNS[REGISTERS_RULE]][0]), self.hardware.registers.per_thread
        if sums > limit:
            return _RuleFinding(REGISTERS_RULE, sums, limit, "sums of a thread")
        return _RuleFinding()

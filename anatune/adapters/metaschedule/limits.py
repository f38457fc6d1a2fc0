"""A filter of MetaSchedule's GPU design spaces: candidates that break a limit of the device are not measured.

::

    space = PostOrderApply(postprocs=[*Postproc.create("cuda"), metaschedule.postproc("rtx3090")], ...)

TVM is imported by the calls, not by the module.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

from anatune import api
from anatune.adapters.device import gpu_of
from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import Context, TracedSchedule, TvmObject
from anatune.adapters.metaschedule.scores import GpuScorer
from anatune.adapters.metaschedule.tasks import check_kind
from anatune.codegen.compat import import_tvm
from anatune.core.hardware.spec import GpuSpec
from anatune.measure.named_hardware import HardwareLike
from anatune.records.traces import Tiling, UnfitError

__all__ = ["REGISTERS_RULE", "PostprocCore", "postproc"]

REGISTERS_RULE = "registers_per_thread"
"""Rule of `postproc` beside those of the GPU model: a thread's sums alone do not fit its registers, so they spill."""
_COLUMNS = {
    "threads_per_block": "threads_per_block",
    "shared_bytes_per_block": "shared_bytes_per_block",
    "grid_blocks": "blocks",
    REGISTERS_RULE: "accumulators_per_thread",
}
"""Rule -> column of the model that it limits."""


def postproc(hw: HardwareLike) -> TvmObject:
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
    meta_schedule()
    spec = api.hardware(hw)
    refused = f"postproc: {spec.name} is a CPU, expected a GPU: CPU tilings break no limits; use cost_model"
    return _postproc_class()(PostprocCore(gpu_of(spec, refused)))


class _Finding(NamedTuple):
    """The rule that a candidate breaks ("": none), its value, the limit, and what it is of; or why nothing is known."""

    rule: str = ""
    value: float = 0.0
    limit: float = 0.0
    text: str = ""
    unknown: str = ""


class PostprocCore:
    """The filter without TVM's base class; clones share one."""

    def __init__(self, hardware: GpuSpec) -> None:
        self.hardware = hardware
        self.rejected: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.passed = 0
        self._task: GpuScorer | None = None

    def start(self, module: TvmObject, target: TvmObject) -> None:
        """Take the function whose candidates come."""
        check_kind(target, self.hardware)
        self._task = GpuScorer(module, self.hardware)

    def apply(self, sch: TracedSchedule) -> bool:
        """Return whether a candidate passes, and count it."""
        found = self._judge(sch)
        if found.unknown:
            self.unknown[found.unknown] += 1
        elif found.rule:
            self.rejected[found.rule] += 1
        self.passed += not found.rule
        return not found.rule

    def explain(self, sch: TracedSchedule) -> str:
        """Return in one sentence what becomes of a candidate, and why."""
        found = self._judge(sch)
        if found.unknown:
            return f"kept, not judged: {found.unknown}"
        if found.rule:
            value, most = f"{found.value:,.10g} {found.text}", f"{found.limit:,.10g}"
            return f"rejected by {found.rule}: {value}, {self.hardware.name} has at most {most}"
        return f"kept: it breaks no limit of {self.hardware.name}"

    def _judge(self, sch: TracedSchedule) -> _Finding:
        if self._task is None:
            return _Finding(unknown="no function yet: a TuneContext gives one")
        try:
            reading = self._task.read(sch)
        except UnfitError as why:
            return _Finding(unknown=str(why))
        if not isinstance(reading, Tiling):
            return _Finding(unknown="a CPU kernel of anatune's")
        model = self._task.model(reading.stages)
        point = model.space.point_of(self._task.plain_point(reading))[None, :]
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


@cache
def _postproc_class() -> type:
    base: TvmObject = meta_schedule().postproc.PyPostproc

    class AnatunePostproc(base):  # type: ignore[misc]
        """`PostprocCore` as MetaSchedule calls it; clones count together."""

        def __init__(self, core: PostprocCore) -> None:
            base.__init__(self)
            self.core, self.unknown, self.rejected = core, core.unknown, core.rejected

        @property
        def passed(self) -> int:
            return self.core.passed

        def explain(self, sch: TracedSchedule) -> str:
            return self.core.explain(sch)

        def _initialize_with_tune_context(self, context: Context) -> None:
            self.core.start(context.mod, context.target)

        def apply(self, sch: TracedSchedule) -> bool:
            return self.core.apply(sch)

        def clone(self) -> TvmObject:
            return derived(self.core)

    derived: type = import_tvm().ir.utils.derived_object(AnatunePostproc)
    return derived

"""A cost model for MetaSchedule, and a filter of its GPU design spaces.

::

    from anatune.adapters.metaschedule import cost_model, postproc

    tune_tir(mod, target, work_dir, max_trials_global=64, cost_model=cost_model("host"))
    space = PostOrderApply(postprocs=[*Postproc.create("cuda"), postproc("rtx3090")], ...)

Candidates of MetaSchedule's own spaces and anatune's own kernels get predicted times; measured ones correct the next
predictions. TVM is imported by the calls, not by the module.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune import api
from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.scores import CandidateScores
from anatune.codegen.compat import import_tvm
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import RecordError, SpaceError
from anatune.files import read_file, reason
from anatune.measure.named_hardware import HardwareLike
from anatune.records.foreign import SENTINEL_S
from anatune.records.traces import Tiling, UnfitError
from anatune.search.learning.residuals import Residuals

__all__ = ["FORMAT", "REGISTERS_RULE", "CostModelCore", "PostprocCore", "cost_model", "postproc"]

Floats = NDArray[np.float64]

FORMAT = "anatune-metaschedule-cost-1"
"""What a saved cost model begins with."""
REGISTERS_RULE = "registers_per_thread"
"""Rule of `postproc` beside those of the GPU model: a thread's sums alone do not fit its registers, so they spill."""
AUTO = "auto"
NEUTRAL = 0.1
"""Score of a candidate that is not understood while none was: a tenth of the peak."""
_COLUMNS = {
    "threads_per_block": "threads_per_block",
    "shared_bytes_per_block": "shared_bytes_per_block",
    "grid_blocks": "blocks",
    REGISTERS_RULE: "accumulators_per_thread",
}
"""Rule -> column of the model that it limits."""


def cost_model(hw: HardwareLike = "host", *, path: str | Path | None = None, fallback: Any = AUTO) -> Any:
    """Return a ``CostModel`` for ``tune_tir``, ``tune_relax`` and evolutionary search.

    Scores are shares of the device's peak (higher is better): 0 for what the device cannot run; what is not understood
    gets the median of the batch and is counted in ``.unknown`` (reason -> candidates). ``.learned`` counts
    measurements.

    Parameters
    ----------
    hw : str, Path, CpuSpec or GpuSpec
        The device that the target names: a spec, its name, "host" (this CPU), or a file.
    path : str or Path, optional
        What ``save`` wrote: measurements to begin with.
    fallback : CostModel, "auto" or None
        For functions that are not understood at all: MetaSchedule's model of xgboost where that is installed ("auto"),
        or none: then their candidates are all equal. ``save`` leaves out what it learned.

    Raises
    ------
    UnknownNameError, SpecError
        There is no such hardware.
    SpaceError
        From the model, when it is used: the target is no device of the kind of `hw`.
    RecordError
        `path` is no saved cost model.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported; the message has the pip command.
    """
    meta_schedule()
    core = CostModelCore(api.hardware(hw), fallback)
    if path is not None:
        core.load(str(path))
    return _cost_model_class()(core)


def postproc(hw: str | Path | GpuSpec) -> Any:
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
    if not isinstance(spec, GpuSpec):
        raise SpaceError(f"postproc: {spec.name} is a CPU, expected a GPU: CPU tilings break no limits; use cost_model")
    return _postproc_class()(PostprocCore(spec))


class CostModelCore:
    """The cost model without TVM's base class."""

    def __init__(self, hardware: CpuSpec | GpuSpec, fallback: Any = None) -> None:
        self.hardware = hardware
        self._fallback = fallback
        self.unknown: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.learned = 0
        self._tasks: dict[str, CandidateScores] = {}
        self._residuals: dict[str, Residuals] = {}
        self._middle: dict[str, float] = {}

    def predict(self, context: Any, candidates: Any) -> Floats:
        """Return scores, (num_candidates,) float64 in [0, 1] (or a little more), higher is better."""
        key, task = self._task(context)
        found = task.score([candidate.sch for candidate in candidates])
        self.unknown.update(task.unknown)
        task.unknown.clear()
        other = self._other(task)
        if other is not None:
            return np.asarray(other.predict(context, candidates), dtype=np.float64)
        times = found.time_s.copy()
        for kind in set(found.kinds) - {""}:
            at = [place for place, own in enumerate(found.kinds) if own == kind]
            residuals = self._residuals.get(f"{key} {kind}")
            if residuals is not None:
                times[at] *= np.exp(residuals.predict(np.array([found.features[place] for place in at])))
        scores = np.zeros(len(times))
        legal = np.array([not rule for rule in found.rules], dtype=bool)
        known = np.isfinite(times) & (times > 0) & legal
        self.rejected.update(rule for rule in found.rules if rule)
        scores[known] = task.floor_s / times[known]
        if known.any():
            self._middle[key] = float(np.median(scores[known]))
        scores[np.isnan(found.time_s)] = self._middle.get(key, NEUTRAL)
        return scores

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        """Learn from measurements; failures are no times."""
        key, task = self._task(context)
        other = self._other(task)
        if other is not None:
            other.update(context, candidates, results)
            return
        measured = [_seconds(result) for result in results]
        places = [place for place, seconds in enumerate(measured) if seconds is not None]
        found = task.score([candidates[place].sch for place in places])
        task.unknown.clear()  # they were counted when they were predicted
        for kind in set(found.kinds) - {""}:
            at = [place for place, own in enumerate(found.kinds) if own == kind and np.isfinite(found.time_s[place])]
            if not at:
                continue
            values = [float(np.log((measured[places[place]] or np.nan) / found.time_s[place])) for place in at]
            rows = np.array([found.features[place] for place in at])
            self._residuals.setdefault(f"{key} {kind}", Residuals()).observe(rows, values)
            self.learned += len(at)

    def save(self, path: str) -> None:
        """Write what was measured.

        Raises
        ------
        RecordError
            The file cannot be written.
        """
        data = {name: residuals.to_builtins() for name, residuals in self._residuals.items()}
        try:
            Path(path).write_bytes(msgspec.json.encode({"format": FORMAT, "tasks": data}))
        except OSError as error:
            raise RecordError(f"{path}: {reason(error)}, expected a file to write") from None

    def load(self, path: str) -> None:
        """Read what `save` wrote, in the place of what was learned.

        Raises
        ------
        RecordError
            The file cannot be read or is something else.
        """
        try:
            data = msgspec.json.decode(read_file(path))
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise RecordError(f"{path}: no cost model of anatune's, expected what its save() wrote")
            self._residuals = {name: Residuals.from_builtins(one) for name, one in data["tasks"].items()}
        except OSError as error:
            raise RecordError(f"{path}: {reason(error)}, expected a saved cost model") from None
        except (msgspec.MsgspecError, KeyError, AttributeError, UnicodeDecodeError):
            raise RecordError(f"{path}: damaged, expected what save() of a cost model wrote") from None
        self.learned = sum(map(len, self._residuals.values()))

    def _other(self, task: CandidateScores) -> Any:
        """Return the cost model of a function that is not understood, None where it is, or where there is none."""
        if task.meaning is not None:
            return None
        if self._fallback == AUTO:
            made = None
            if find_spec("xgboost") is not None:
                made = meta_schedule().cost_model.CostModel.create("xgb")
            self._fallback = made
        return self._fallback

    def _task(self, context: Any) -> tuple[str, CandidateScores]:
        """Return the function of a context, by what it is: MetaSchedule makes new objects of the same."""
        key = f"{_hash(context.mod)} {context.target}"
        if key not in self._tasks:
            self._tasks[key] = CandidateScores(context.mod, context.target, self.hardware)
        return key, self._tasks[key]


class PostprocCore:
    """The filter without TVM's base class; clones share one."""

    def __init__(self, hardware: GpuSpec) -> None:
        self.hardware = hardware
        self.rejected: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.passed = 0
        self._task: CandidateScores | None = None

    def start(self, module: Any, target: Any) -> None:
        """Take the function whose candidates come."""
        self._task = CandidateScores(module, target, self.hardware)

    def apply(self, sch: Any) -> bool:
        """Return whether a candidate passes, and count it."""
        rule, reason = self._judge(sch)[:2]
        if reason:
            self.unknown[reason] += 1
        elif rule:
            self.rejected[rule] += 1
        self.passed += not rule
        return not rule

    def explain(self, sch: Any) -> str:
        """Return in one sentence what becomes of a candidate, and why."""
        rule, reason, value, limit, text = self._judge(sch)
        if reason:
            return f"kept, not judged: {reason}"
        if rule:
            return f"rejected by {rule}: {value:,.10g} {text}, {self.hardware.name} has at most {limit:,.10g}"
        return f"kept: it breaks no limit of {self.hardware.name}"

    def _judge(self, sch: Any) -> tuple[str, str, float, float, str]:
        """Return the broken rule, why nothing is known, the value, the limit, and what it is of."""
        if self._task is None:
            return "", "no function yet: a TuneContext gives one", 0.0, 0.0, ""
        try:
            reading = self._task.read(sch)
        except UnfitError as why:
            return "", str(why), 0.0, 0.0, ""
        if not isinstance(reading, Tiling):
            return "", "a CPU kernel of anatune's", 0.0, 0.0, ""
        model = self._task.gpu_model(reading.stages)
        point = model.space.point_of(self._task.plain_point(reading))[None, :]
        evaluation = model.evaluate(point)
        code = int(evaluation.rule[0])
        if code:
            rule = model.rules[code - 1]
            column = _COLUMNS.get(rule.id)
            value = evaluation.columns[column][0] if column else 4.0 * evaluation.columns["accumulators_per_thread"][0]
            return rule.id, "", float(value if rule.needed is None else rule.needed), rule.limit, rule.text
        sums, limit = float(evaluation.columns[_COLUMNS[REGISTERS_RULE]][0]), self.hardware.registers.per_thread
        if sums > limit:
            return REGISTERS_RULE, "", sums, float(limit), "sums of a thread"
        return "", "", 0.0, 0.0, ""


def _seconds(result: Any) -> float | None:
    """Return the mean time of a RunnerResult, None where it failed."""
    if result.error_msg is not None or not result.run_secs:
        return None
    times = [float(seconds) for seconds in result.run_secs]
    mean = sum(times) / len(times)
    return mean if 0.0 < mean < SENTINEL_S else None


def _hash(module: Any) -> str:
    import tvm_ffi

    return f"{tvm_ffi.structural_hash(module, map_free_vars=True) & (1 << 64) - 1:016x}"


@cache
def _cost_model_class() -> type:
    base: Any = meta_schedule().cost_model.PyCostModel

    class AnatuneCostModel(base):  # type: ignore[misc]
        """`CostModelCore` as MetaSchedule calls it."""

        def __init__(self, core: CostModelCore) -> None:
            base.__init__(self)
            self.core = core

        @property
        def unknown(self) -> Counter[str]:
            return self.core.unknown

        @property
        def rejected(self) -> Counter[str]:
            return self.core.rejected

        @property
        def learned(self) -> int:
            return self.core.learned

        def load(self, path: str) -> None:
            self.core.load(path)

        def save(self, path: str) -> None:
            self.core.save(path)

        def update(self, context: Any, candidates: Any, results: Any) -> None:
            self.core.update(context, candidates, results)

        def predict(self, context: Any, candidates: Any) -> Floats:
            return self.core.predict(context, candidates)

    derived: type = import_tvm().ir.utils.derived_object(AnatuneCostModel)
    return derived


@cache
def _postproc_class() -> type:
    base: Any = meta_schedule().postproc.PyPostproc

    class AnatunePostproc(base):  # type: ignore[misc]
        """`PostprocCore` as MetaSchedule calls it; clones count together."""

        def __init__(self, core: PostprocCore) -> None:
            base.__init__(self)
            self.core = core

        @property
        def rejected(self) -> Counter[str]:
            return self.core.rejected

        @property
        def unknown(self) -> Counter[str]:
            return self.core.unknown

        @property
        def passed(self) -> int:
            return self.core.passed

        def explain(self, sch: Any) -> str:
            return self.core.explain(sch)

        def _initialize_with_tune_context(self, context: Any) -> None:
            self.core.start(context.mod, context.target)

        def apply(self, sch: Any) -> bool:
            return self.core.apply(sch)

        def clone(self) -> Any:
            return derived(self.core)

    derived: type = import_tvm().ir.utils.derived_object(AnatunePostproc)
    return derived

"""Predicted times of MetaSchedule's candidates for one function on one device, from any search strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.metaschedule.objects import TracedSchedule
from anatune.adapters.metaschedule.tasks import check_kind, unpacked_model
from anatune.adapters.metaschedule.traces import FunctionMeaning, nests_of, tiling_of
from anatune.adapters.tvm_tiles.tvm_nest import CompiledNestModel
from anatune.codegen.tvm.kernel import read_annotated_schedule
from anatune.core.hardware.spec import CpuSpec, GpuSpec, HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError
from anatune.records.traces import CPU_TILING, GPU_TILING, Tiling, UnfitError, match_axes
from anatune.templates import make_model
from anatune.templates.base.model import Model, Rule
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cuda.model.model import CudaModel
from anatune.untyped import tvm

__all__ = ["CandidateScorer", "CandidateScores", "GpuScorer", "scorer_of"]

Floats = NDArray[np.float64]

_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


class CandidateScores(NamedTuple):
    """The predictions for a batch of candidates.

    Attributes
    ----------
    time_s : (num_candidates,) float64
        The predicted seconds, NaN for a candidate that cannot be judged.
    rules : list of str
        The id of the first rule that each candidate breaks, or "".
    kinds : list of str
        "kernel" (anatune's own), "cpu" or "gpu" (MetaSchedule's own space), "" for a candidate that cannot be judged.
    features : list of (num_features,) float64
        The features for learned corrections; their length depends on the kind.
    """

    time_s: Floats
    rules: list[str]
    kinds: list[str]
    features: list[Floats]


class _ScoredBatch(NamedTuple):
    """The scores of candidates of one kind: seconds, codes of the broken rules, features, and the rules."""

    time_s: Floats
    codes: NDArray[np.int64]
    features: Floats
    rules: Sequence[Rule]


def _score_points(model: Model, schedules: Sequence[Schedule]) -> _ScoredBatch:
    points = np.array([model.space.point_of(schedule) for schedule in schedules], dtype=np.int64)
    table = model.feature_table(points)
    return _ScoredBatch(table.time_s, table.rule, table.values, model.rules)


class CandidateScorer(ABC):
    """Predicts times of schedules for one function. It is not safe for concurrent use.

    Parameters
    ----------
    module : tvm.IRModule
        The function before scheduling.
    hardware : CpuSpec or GpuSpec
        The device.

    Attributes
    ----------
    meaning : FunctionMeaning or None
        The workload of the function, or None if anatune does not know it.
    unknown : Counter
        The number of candidates that could not be judged, by reason.
    """

    structure: ClassVar[str]
    """The tiling structure of MetaSchedule's own space for such a device."""

    def __init__(self, module: tvm.IRModule, hardware: HardwareSpec) -> None:
        self.hardware: HardwareSpec = hardware
        self.unknown: Counter[str] = Counter()
        self.meaning: FunctionMeaning | None = None
        self._reason = ""
        try:
            self.meaning = FunctionMeaning(module)
        except AnatuneError as error:
            self._reason = str(error)
        except _DAMAGED as error:  # a function of an unexpected form
            self._reason = f"the function cannot be read ({type(error).__name__})"

    @property
    def known_meaning(self) -> FunctionMeaning:
        """The meaning of the function; raises UnfitError if anatune does not know it."""
        if self.meaning is None:
            raise UnfitError(self._reason)
        return self.meaning

    @property
    def peak_time_s(self) -> float:
        """The seconds of the arithmetic at the device's peak, which are the unit of scores."""
        if self.meaning is None:
            return 1.0
        return self.meaning.workload.flop / self._peak_flop_per_s()

    @abstractmethod
    def _peak_flop_per_s(self) -> float: ...

    @abstractmethod
    def _tilings(self, stages: int, tilings: list[Tiling]) -> _ScoredBatch:
        """Return predictions for candidates of MetaSchedule's own space with this number of stages."""

    @abstractmethod
    def _kernels(self, workload: Workload, schedules: list[Schedule]) -> _ScoredBatch:
        """Return predictions for anatune's own kernels of a workload."""

    def read(self, sch: TracedSchedule) -> Schedule | Tiling:
        """Return the schedule or tiling that a ``tvm.s_tir.Schedule`` describes.

        Raises
        ------
        UnfitError
            The schedule cannot be judged.
        """
        workload = self.known_meaning.workload
        try:
            kernel_schedule = read_annotated_schedule(sch.trace)
            if kernel_schedule is not None:
                return kernel_schedule
            tiling = tiling_of(sch.trace)
            match_axes(tiling, workload)
        except AnatuneError as error:
            raise UnfitError(str(error)) from None
        except _DAMAGED as error:
            raise UnfitError(f"the trace cannot be read ({type(error).__name__})") from None
        if tiling.structure != self.structure:
            raise UnfitError(f"the tiling is {tiling.structure}, expected {self.structure}")
        return tiling

    def score(self, schedules: Sequence[TracedSchedule]) -> CandidateScores:
        """Return predictions for ``tvm.s_tir.Schedule`` objects in order, and count those that cannot be judged."""
        count = len(schedules)
        scores = CandidateScores(np.full(count, np.nan), [""] * count, [""] * count, [np.empty(0)] * count)
        kernels: dict[Workload, dict[int, Schedule]] = {}
        tilings: dict[int, dict[int, Tiling]] = {}
        for index, sch in enumerate(schedules):
            try:
                reading = self.read(sch)
            except UnfitError as reason:
                self.unknown[str(reason)] += 1
                continue
            if isinstance(reading, Schedule):
                kernels.setdefault(reading.workload, {})[index] = reading
            else:
                tilings.setdefault(reading.stages, {})[index] = reading
        groups = [("kernel", partial(self._kernels, one, [*own.values()]), [*own]) for one, own in kernels.items()]
        own_space: str = self.hardware.kind
        groups += [(own_space, partial(self._tilings, one, [*own.values()]), [*own]) for one, own in tilings.items()]
        for kind, predict, indices in groups:
            try:
                batch = predict()
            except (AnatuneError, UnfitError) as reason:
                self.unknown[str(reason)] += len(indices)
                continue
            for row, index in enumerate(indices):
                code = int(batch.codes[row])
                scores.time_s[index] = batch.time_s[row]
                scores.kinds[index] = kind
                scores.rules[index] = batch.rules[code - 1].id if code else ""
                scores.features[index] = batch.features[row]
        return scores


class CpuScorer(CandidateScorer):
    """The scorer for CPUs: compiled loop nests of MetaSchedule's own space, and anatune's kernels."""

    structure = CPU_TILING

    def __init__(self, module: tvm.IRModule, hardware: CpuSpec, threads: int) -> None:
        super().__init__(module, hardware)
        self._cpu, self._threads = hardware, threads
        self._models: dict[Workload, CpuModel] = {}

    def _peak_flop_per_s(self) -> float:
        compute = self._cpu.compute
        share = min(self._threads, compute.num_cores) / compute.num_cores
        return compute.fp32_peak_flop_per_s * share

    @cached_property
    def _nests(self) -> CompiledNestModel:
        return CompiledNestModel(self.known_meaning.workload, self._cpu, self._threads)

    def _tilings(self, stages: int, tilings: list[Tiling]) -> _ScoredBatch:
        model = self._nests
        nests = nests_of(model.workload, tilings)
        evaluation = model.evaluate(nests)
        return _ScoredBatch(evaluation.time_s, evaluation.rule, model.features(nests, evaluation), model.rules)

    def _kernels(self, workload: Workload, schedules: list[Schedule]) -> _ScoredBatch:
        if workload not in self._models:
            threads = min(self._threads, self._cpu.compute.num_cores)
            self._models[workload] = unpacked_model(workload, self._cpu, threads)
        return _score_points(self._models[workload], schedules)


class GpuScorer(CandidateScorer):
    """The scorer for GPUs: candidates of MetaSchedule's own space as points of the template `cuda`."""

    structure = GPU_TILING

    def __init__(self, module: tvm.IRModule, hardware: GpuSpec) -> None:
        super().__init__(module, hardware)
        self._gpu = hardware
        self._models: dict[int, CudaModel] = {}
        self._kernel_models: dict[tuple[Workload, str], Model] = {}

    def _peak_flop_per_s(self) -> float:
        return self._gpu.compute.fp32_peak_flop_per_s

    def _tilings(self, stages: int, tilings: list[Tiling]) -> _ScoredBatch:
        return _score_points(self.model(stages), [self.plain_point(tiling) for tiling in tilings])

    def _kernels(self, workload: Workload, schedules: list[Schedule]) -> _ScoredBatch:
        if schedules[0].hardware.kind != "gpu":
            raise UnfitError("it is a CPU kernel of anatune, but the device is a GPU")
        key = (workload, schedules[0].template)
        if key not in self._kernel_models:
            self._kernel_models[key] = make_model(workload, self._gpu, schedules[0].template)
        return _score_points(self._kernel_models[key], schedules)

    def plain_point(self, tiling: Tiling) -> Schedule:
        """Return the schedule of the template `cuda` for a tiling, without its stages."""
        return self.known_meaning.gpu_schedule(tiling._replace(stages=1), self._gpu)

    def model(self, stages: int) -> CudaModel:
        """Return the model for tilings with this number of stages."""
        if stages not in self._models:
            self._models[stages] = CudaModel(self.known_meaning.workload, self._gpu, stages=stages, plain=True)
        return self._models[stages]


def scorer_of(module: tvm.IRModule, target: tvm.target.Target, hardware: HardwareSpec) -> CandidateScorer:
    """Return the scorer that predicts times of candidates for a function.

    Raises
    ------
    SpaceError
        `target` and `hardware` are not of the same kind (CPU or GPU).
    """
    check_kind(target, hardware)
    if hardware.kind == "gpu":
        return GpuScorer(module, hardware)
    return CpuScorer(module, hardware, int(target.attrs.get("num-cores", 1)))

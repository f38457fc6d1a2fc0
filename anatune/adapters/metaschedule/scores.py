"""Predicted times of MetaSchedule's candidates for one function on one device, whatever proposed them."""

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
from anatune.codegen.tvm.kernel import annotated_schedule
from anatune.core.hardware.spec import CpuSpec, GpuSpec, HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError
from anatune.records.traces import CPU_TILING, GPU_TILING, Tiling, UnfitError, match_axes
from anatune.templates import make_model
from anatune.templates.base.model import Model, Rule
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cuda.model.model import GpuModel
from anatune.untyped import tvm

__all__ = ["CandidateScorer", "CandidateScores", "GpuScorer", "scorer_of"]

Floats = NDArray[np.float64]

_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


class CandidateScores(NamedTuple):
    """What is predicted of a batch of candidates.

    Attributes
    ----------
    time_s : (num_candidates,) float64
        Seconds, NaN where the candidate is not understood.
    rules : list of str
        Id of the first limit of the device that a candidate breaks, "" where it breaks none.
    kinds : list of str
        "kernel" (anatune's own), "cpu" or "gpu" (MetaSchedule's own space), "" where it is not understood.
    features : list of (num_features,) float64
        For learned corrections; of one length for each kind.
    """

    time_s: Floats
    rules: list[str]
    kinds: list[str]
    features: list[Floats]


class _Batch(NamedTuple):
    """Candidates of one kind: seconds, codes of the rules they break, features, and the rules."""

    time_s: Floats
    codes: NDArray[np.int64]
    features: Floats
    rules: Sequence[Rule]


def _of_points(model: Model, schedules: Sequence[Schedule]) -> _Batch:
    points = np.array([model.space.point_of(schedule) for schedule in schedules], dtype=np.int64)
    table = model.feature_table(points)
    return _Batch(table.time_s, table.rule, table.values, model.rules)


class CandidateScorer(ABC):
    """Predicts times of schedules over one function. Not safe for concurrent use.

    Parameters
    ----------
    module : tvm.IRModule
        The function, before any schedule.
    hardware : CpuSpec or GpuSpec

    Attributes
    ----------
    meaning : FunctionMeaning or None
        None: the function is not understood.
    unknown : Counter
        Reason -> candidates that were not understood.
    """

    structure: ClassVar[str]
    """How MetaSchedule's own space tiles for such a device."""

    def __init__(self, module: tvm.IRModule, hardware: HardwareSpec) -> None:
        self.hardware: HardwareSpec = hardware
        self.unknown: Counter[str] = Counter()
        self.meaning: FunctionMeaning | None = None
        self._why = ""
        try:
            self.meaning = FunctionMeaning(module)
        except AnatuneError as error:
            self._why = str(error)
        except _DAMAGED as error:  # a function of a form that nobody thought of is not understood, either
            self._why = f"a function that cannot be read ({type(error).__name__})"

    @property
    def understood(self) -> FunctionMeaning:
        """What the function computes; UnfitError where that is not understood."""
        if self.meaning is None:
            raise UnfitError(self._why)
        return self.meaning

    @property
    def floor_s(self) -> float:
        """Seconds that arithmetic alone takes at the device's peak: the unit of scores."""
        if self.meaning is None:
            return 1.0
        return self.meaning.workload.flop / self._peak_flop_per_s()

    @abstractmethod
    def _peak_flop_per_s(self) -> float: ...

    @abstractmethod
    def _tilings(self, stages: int, tilings: list[Tiling]) -> _Batch:
        """Return predictions for MetaSchedule's own space, all with a staging pipeline of so many buffers."""

    @abstractmethod
    def _kernels(self, workload: Workload, schedules: list[Schedule]) -> _Batch:
        """Return predictions for anatune's own kernels of a workload."""

    def read(self, sch: TracedSchedule) -> Schedule | Tiling:
        """Return what a ``tvm.s_tir.Schedule`` stands for.

        Raises
        ------
        UnfitError
            It is not understood.
        """
        workload = self.understood.workload
        try:
            own = annotated_schedule(sch.trace)
            if own is not None:
                return own
            tiling = tiling_of(sch.trace)
            match_axes(tiling, workload)
        except AnatuneError as error:
            raise UnfitError(str(error)) from None
        except _DAMAGED as error:
            raise UnfitError(f"a trace that cannot be read ({type(error).__name__})") from None
        if tiling.structure != self.structure:
            raise UnfitError(f"tiling {tiling.structure}, expected {self.structure}")
        return tiling

    def score(self, schedules: Sequence[TracedSchedule]) -> CandidateScores:
        """Return predictions of ``tvm.s_tir.Schedule`` objects, in order; what is not understood is counted."""
        count = len(schedules)
        found = CandidateScores(np.full(count, np.nan), [""] * count, [""] * count, [np.empty(0)] * count)
        kernels: dict[Workload, dict[int, Schedule]] = {}
        tilings: dict[int, dict[int, Tiling]] = {}
        for place, sch in enumerate(schedules):
            try:
                reading = self.read(sch)
            except UnfitError as reason:
                self.unknown[str(reason)] += 1
                continue
            if isinstance(reading, Schedule):
                kernels.setdefault(reading.workload, {})[place] = reading
            else:
                tilings.setdefault(reading.stages, {})[place] = reading
        groups = [("kernel", partial(self._kernels, one, [*own.values()]), [*own]) for one, own in kernels.items()]
        own_space: str = self.hardware.kind
        groups += [(own_space, partial(self._tilings, one, [*own.values()]), [*own]) for one, own in tilings.items()]
        for kind, predict, places in groups:
            try:
                batch = predict()
            except (AnatuneError, UnfitError) as reason:
                self.unknown[str(reason)] += len(places)
                continue
            for at, place in enumerate(places):
                code = int(batch.codes[at])
                found.time_s[place] = batch.time_s[at]
                found.kinds[place] = kind
                found.rules[place] = batch.rules[code - 1].id if code else ""
                found.features[place] = batch.features[at]
        return found


class CpuScorer(CandidateScorer):
    """For CPUs: compiled nests of MetaSchedule's own space, and anatune's kernels."""

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
        return CompiledNestModel(self.understood.workload, self._cpu, self._threads)

    def _tilings(self, stages: int, tilings: list[Tiling]) -> _Batch:
        model = self._nests
        nests = nests_of(model.workload, tilings)
        evaluation = model.evaluate(nests)
        return _Batch(evaluation.time_s, evaluation.rule, model.features(nests, evaluation), model.rules)

    def _kernels(self, workload: Workload, schedules: list[Schedule]) -> _Batch:
        if workload not in self._models:
            threads = min(self._threads, self._cpu.compute.num_cores)
            self._models[workload] = unpacked_model(workload, self._cpu, threads)
        return _of_points(self._models[workload], schedules)


class GpuScorer(CandidateScorer):
    """For GPUs: MetaSchedule's own space as points of the template for CUDA cores."""

    structure = GPU_TILING

    def __init__(self, module: tvm.IRModule, hardware: GpuSpec) -> None:
        super().__init__(module, hardware)
        self._gpu = hardware
        self._models: dict[int, GpuModel] = {}
        self._own: dict[tuple[Workload, str], Model] = {}

    def _peak_flop_per_s(self) -> float:
        return self._gpu.compute.fp32_peak_flop_per_s

    def _tilings(self, stages: int, tilings: list[Tiling]) -> _Batch:
        return _of_points(self.model(stages), [self.plain_point(tiling) for tiling in tilings])

    def _kernels(self, workload: Workload, schedules: list[Schedule]) -> _Batch:
        if schedules[0].hardware.kind != "gpu":
            raise UnfitError("a CPU kernel of anatune's for a GPU")
        key = (workload, schedules[0].template)
        if key not in self._own:
            self._own[key] = make_model(workload, self._gpu, schedules[0].template)
        return _of_points(self._own[key], schedules)

    def plain_point(self, tiling: Tiling) -> Schedule:
        """Return the schedule for CUDA cores that a trace stands for, its staging pipeline left out."""
        return self.understood.gpu_schedule(tiling._replace(stages=1), self._gpu)

    def model(self, stages: int) -> GpuModel:
        """Return the model of tilings with a staging pipeline of so many buffers."""
        if stages not in self._models:
            self._models[stages] = GpuModel(self.understood.workload, self._gpu, stages=stages, plain=True)
        return self._models[stages]


def scorer_of(module: tvm.IRModule, target: tvm.target.Target, hardware: HardwareSpec) -> CandidateScorer:
    """Return what predicts times of candidates over a function.

    Raises
    ------
    SpaceError
        `target` and `hardware` are not both CPUs, or GPUs.
    """
    check_kind(target, hardware)
    if hardware.kind == "gpu":
        return GpuScorer(module, hardware)
    return CpuScorer(module, hardware, int(target.attrs.get("num-cores", 1)))

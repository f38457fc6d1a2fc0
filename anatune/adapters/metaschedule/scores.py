"""Predicted times of MetaSchedule's candidates for one function on one device, whatever proposed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.metaschedule.tasks import check_kind
from anatune.adapters.metaschedule.traces import FunctionMeaning, nests_of, tiling_of
from anatune.codegen.tvm.kernel import annotated_schedule
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError
from anatune.model.cpu.model import CpuModel
from anatune.model.cuda.model import GpuModel
from anatune.model.foreign.tvm_nest import CompiledNestModel
from anatune.model.learned.features import feature_table
from anatune.records.traces import CPU_TILING, GPU_TILING, Tiling, UnfitError, match_axes

__all__ = ["CandidateScores", "Scores"]

Floats = NDArray[np.float64]

_Reading = Schedule | Tiling
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


class Scores(NamedTuple):
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


class CandidateScores:
    """Predicts times of schedules over one function. Not safe for concurrent use.

    Parameters
    ----------
    module : tvm.IRModule
        The function, before any schedule.
    target : tvm.target.Target
    hardware : CpuSpec or GpuSpec

    Raises
    ------
    SpaceError
        `target` and `hardware` are not both CPUs, or GPUs.

    Attributes
    ----------
    meaning : FunctionMeaning or None
        None: the function is not understood.
    unknown : Counter
        Reason -> candidates that were not understood.
    """

    def __init__(self, module: Any, target: Any, hardware: CpuSpec | GpuSpec) -> None:
        self.hardware = hardware
        self.unknown: Counter[str] = Counter()
        self.meaning: FunctionMeaning | None = None
        self._why = ""
        self._models: dict[Any, Any] = {}
        check_kind(target, hardware)
        self._threads = int(target.attrs.get("num-cores", 1)) if isinstance(hardware, CpuSpec) else 1
        try:
            self.meaning = FunctionMeaning(module)
        except AnatuneError as error:
            self._why = str(error)
        except _DAMAGED as error:  # a function of a form that nobody thought of is not understood, either
            self._why = f"a function that cannot be read ({type(error).__name__})"

    @property
    def floor_s(self) -> float:
        """Seconds that arithmetic alone takes at the device's peak: the unit of scores."""
        if self.meaning is None:
            return 1.0
        compute = self.hardware.compute
        share = 1.0
        if isinstance(self.hardware, CpuSpec):
            share = min(self._threads, self.hardware.compute.num_cores) / self.hardware.compute.num_cores
        return self.meaning.workload.flop / (compute.fp32_peak_flop_per_s * share)

    def read(self, sch: Any) -> _Reading:
        """Return what a ``tvm.s_tir.Schedule`` stands for.

        Raises
        ------
        UnfitError
            It is not understood.
        """
        if self.meaning is None:
            raise UnfitError(self._why)
        try:
            own = annotated_schedule(sch.trace)
            if own is not None:
                return own
            tiling = tiling_of(sch.trace)
            match_axes(tiling, self.meaning.workload)
        except AnatuneError as error:
            raise UnfitError(str(error)) from None
        except _DAMAGED as error:
            raise UnfitError(f"a trace that cannot be read ({type(error).__name__})") from None
        structure = GPU_TILING if isinstance(self.hardware, GpuSpec) else CPU_TILING
        if tiling.structure != structure:
            raise UnfitError(f"tiling {tiling.structure}, expected {structure}")
        return tiling

    def score(self, schedules: Sequence[Any]) -> Scores:
        """Return predictions of ``tvm.s_tir.Schedule`` objects, in order; what is not understood is counted."""
        count = len(schedules)
        found = Scores(np.full(count, np.nan), [""] * count, [""] * count, [np.empty(0)] * count)
        groups: dict[tuple[str, Any], list[tuple[int, _Reading]]] = {}
        for place, sch in enumerate(schedules):
            try:
                reading = self.read(sch)
            except UnfitError as reason:
                self.unknown[str(reason)] += 1
                continue
            key: tuple[str, Any] = ("cpu", 0)
            if isinstance(reading, Schedule):
                key = ("kernel", reading.workload)
            elif reading.structure == GPU_TILING:
                key = ("gpu", reading.stages)
            groups.setdefault(key, []).append((place, reading))
        for key, members in groups.items():
            try:
                self._fill(found, key, members)
            except AnatuneError as error:
                self.unknown[str(error)] += len(members)
            except UnfitError as reason:
                self.unknown[str(reason)] += len(members)
        return found

    def _fill(self, found: Scores, key: tuple[str, Any], members: list[tuple[int, _Reading]]) -> None:
        kind = key[0]
        places = [place for place, _ in members]
        readings: list[Any] = [reading for _, reading in members]
        if kind == "cpu":
            model = self._model(key, self._compiled)
            nests = nests_of(model.workload, readings)
            evaluation = model.evaluate(nests)
            times, codes, rows = evaluation.time_s, evaluation.rule, model.features(nests, evaluation)
        else:
            model = self._model(key, (lambda: self._own(key[1])) if kind == "kernel" else (lambda: self._gpu(key[1])))
            schedules = readings if kind == "kernel" else [self.plain_point(reading) for reading in readings]
            points = np.array([model.space.point_of(schedule) for schedule in schedules], dtype=np.int64)
            table = feature_table(model, points)
            times, codes, rows = table.time_s, table.rule, table.values
        for at, place in enumerate(places):
            found.time_s[place] = times[at]
            found.kinds[place] = kind
            found.rules[place] = model.rules[int(codes[at]) - 1].id if codes[at] else ""
            found.features[place] = rows[at]

    def plain_point(self, tiling: Tiling) -> Schedule:
        """Return the point of the template "cuda" that a trace stands for, its staging pipeline left out."""
        assert self.meaning is not None
        assert isinstance(self.hardware, GpuSpec)
        return self.meaning.gpu_schedule(tiling._replace(stages=1), self.hardware)

    def gpu_model(self, stages: int) -> GpuModel:
        """Return the model of GPU tilings with a staging pipeline of so many buffers."""
        model: GpuModel = self._model(("gpu", stages), lambda: self._gpu(stages))
        return model

    def _model(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._models:
            self._models[key] = make()
        return self._models[key]

    def _gpu(self, stages: int) -> GpuModel:
        assert self.meaning is not None
        assert isinstance(self.hardware, GpuSpec)
        return GpuModel(self.meaning.workload, self.hardware, stages=stages)

    def _compiled(self) -> CompiledNestModel:
        assert self.meaning is not None
        assert isinstance(self.hardware, CpuSpec)
        return CompiledNestModel(self.meaning.workload, self.hardware, self._threads)

    def _own(self, workload: Any) -> CpuModel:
        if not isinstance(self.hardware, CpuSpec):
            raise UnfitError("a CPU kernel of anatune's for a GPU")
        threads = min(self._threads, self.hardware.compute.num_cores)
        return CpuModel(workload, self.hardware.with_threads(threads), constants=())

"""Estimate the cost of compiling a model before it is planned, from the costs of earlier models on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.network.compiling.request import TRIALS_PER_TURN, CompileRequest
from anatune.network.graph.nodes import Graph
from anatune.network.graph.operators import PRODUCTS, find_operator
from anatune.numerics._jit import first_compilation_s
from anatune.resources import user_cache_folder
from anatune.templates import templates_of
from anatune.tuning.cost import ModelEstimate, error_factor, first_trial_seconds
from anatune.tuning.cost_history import CostHistory, machine_key

__all__ = ["STAGES", "ModelCost", "ModelCosts", "estimate_model"]

STAGES = {
    "calibrate": "running the model on the calibration data",
    "plan": "planning",
    "tune": "measuring",
    "build": "building",
    "check": "comparing outputs with the original's",
}
"""Stage of compiling -> its description in progress messages."""
_FILE = "model_costs"
_FIRST_PLAN_S, _FIRST_BUILD_S, _FIRST_CHECK_S = 0.093, 0.163, 0.007
"""Seconds per product on a machine without history. Source: ResNet-18 on one core of an Emerald Rapids, 2026-11: 21
products in 2.5, 4.4 and 0.2 s (docs/bench/estimates.md), divided by 21 + `_FIXED_PRODUCTS`."""
_FIXED_PRODUCTS = 6
"""Fixed cost of any model in products: starting searches and TVM, building the rest. Source: chains of 1, 4 and 21
convolutions, Granite Rapids, 2026-11: 2.1, 4.1 and 9.3 s."""
_FIRST_COMPARISON_S = 5.0
"""Seconds of running two builds of a model in turn. Source: `compiling.tuning`."""


class ModelCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cost of compiling one model, in wall seconds. Immutable; JSON both ways.

    Attributes
    ----------
    products : int
        Number of convolutions and matrix products of the model.
    trials : int
        Number of trials.
    plan_s, build_s, check_s, tune_s : float
        As `ModelEstimate` has them; 0 for a stage that was left out.
    builds : int
        Number of libraries that were built.
    total_s, estimated_s : float
        All stages together, and the estimate of that.
    """

    products: int
    trials: int
    plan_s: float
    build_s: float
    check_s: float
    tune_s: float
    builds: int
    total_s: float
    estimated_s: float


def estimate_model(
    products: int,
    hardware: CpuSpec | GpuSpec,
    threads: int,
    request: CompileRequest,
    *,
    is_checked: bool,
    earlier: Sequence[ModelCost] = (),
    compile_s: float = 0.0,
    calibrates: bool = False,
) -> ModelEstimate:
    """Return an estimate of the cost of compiling a model.

    Parameters
    ----------
    products : int
        Number of its convolutions and matrix products.
    request : CompileRequest
        Number of trials, their place, and the limits that may end them early.
    is_checked : bool
        Whether outputs are compared with the original's.
    earlier : sequence of ModelCost
        Costs of earlier models on this machine and kind of device.
    compile_s : float
        As `ModelEstimate` has it.
    calibrates : bool
        Whether the model is planned and built twice more to calibrate it, with its activations as outputs.
    """
    each = [_costs_per_product(one) for one in earlier] or [(_FIRST_PLAN_S, _FIRST_BUILD_S, _FIRST_CHECK_S)]
    size = products + _FIXED_PRODUCTS
    plan_s, build_s, check_s = (size * statistics.median(values) for values in zip(*each, strict=True))
    measuring = request.measuring
    tune_s, trials, limit_s = 0.0, measuring.trials, measuring.time_limit_s
    if trials:
        measured = [one.tune_s / one.trials for one in earlier if one.trials]
        trial_s = (
            statistics.median(measured)
            if measured
            else first_trial_seconds(hardware, plan_cores(threads, physical_cores()), TRIALS_PER_TURN)
        )
        tune_s = min(trials * trial_s, math.inf if limit_s is None else limit_s) + _FIRST_COMPARISON_S
    calibrate_s = 2 * (plan_s + build_s) if calibrates else 0.0
    if trials:
        build_s *= 2  # one build with the planned kernels and one with the measured ones
    total_s = compile_s + calibrate_s + plan_s + build_s + tune_s + (check_s if is_checked else 0.0)
    factor = error_factor([(one.total_s, one.estimated_s) for one in earlier])
    is_predictable = not measuring.is_remote or not trials
    return ModelEstimate(
        products,
        trials,
        plan_s,
        build_s,
        check_s if is_checked else 0.0,
        tune_s,
        total_s if is_predictable else None,
        total_s / factor if is_predictable else None,
        total_s * factor if is_predictable else None,
        ("machine" if earlier else "first") if is_predictable else "elsewhere",
        bool(trials) and measuring.may_end_early,
        compile_s,
        calibrate_s,
    )


def _costs_per_product(cost: ModelCost) -> tuple[float, float, float]:
    """Return the seconds of planning, of one build and of the check, per product."""
    products = cost.products + _FIXED_PRODUCTS
    return cost.plan_s / products, cost.build_s / products / max(1, cost.builds), cost.check_s / products


class ModelCosts:
    """Estimates the cost of compiling a model, times its stages, and stores them for later estimates.

    Parameters
    ----------
    hardware, threads
        The device, and the threads of its kernels.
    request : CompileRequest
    is_checked : bool
        Whether outputs are compared with the original's.
    folder : Path, optional
        Folder of the costs of earlier models.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        hardware: CpuSpec | GpuSpec,
        threads: int,
        request: CompileRequest,
        *,
        is_checked: bool,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hardware, self._threads, self._request = hardware, threads, request
        self._is_checked, self._clock = is_checked, clock
        default, *others = templates_of(hardware)
        self._templates = (default, *(other for other in others if other.joins))
        self._history = CostHistory(_FILE, ModelCost, folder or user_cache_folder())
        self._key = machine_key(hardware, f"{threads} threads")
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._times: defaultdict[str, int] = defaultdict(int)
        self._estimate: ModelEstimate | None = None

    def announce(self, graph: Graph, *, calibrates: bool = False) -> ModelEstimate:
        """Return the estimate for a model as it was imported, and pass it to the listener.

        `calibrates` is explained at `estimate_model`.
        """
        listener = self._request.listeners.on_estimate
        self._estimate = estimate = estimate_model(
            sum(find_operator(node).own in PRODUCTS for node in graph.nodes()),
            self._hardware,
            self._threads,
            self._request,
            is_checked=self._is_checked,
            earlier=self._history.of(self._key),
            compile_s=sum(first_compilation_s(code) for code in {template.folder for template in self._templates}),
            calibrates=calibrates,
        )
        if listener is not None:
            listener(estimate)
        return estimate

    @contextmanager
    def time_stage(self, name: str) -> Iterator[None]:
        """Time a stage of `STAGES`, and tell the listener that it begins."""
        if self._request.listeners.on_stage is not None:
            self._request.listeners.on_stage(STAGES[name])
        began = self._clock()
        yield
        self._spent[name] += self._clock() - began
        self._times[name] += 1

    def store(self, trials: int) -> None:
        """Store the cost of the model, for which `trials` trials were made."""
        prior, spent = self._estimate, self._spent
        total_s = sum(spent.values())
        if (
            not prior
            or not prior.seconds
            or not prior.products
            or trials != prior.trials
            or not 0.0 < total_s < math.inf
        ):
            return  # the estimate was for other work; a model without products tells nothing about others
        if prior.compile_s:
            return  # later models load the compiled code
        cost = ModelCost(
            prior.products, trials, spent["plan"], spent["build"], spent["check"], spent["tune"],
            self._times["build"], total_s, prior.seconds,
        )  # fmt: skip
        self._history.add(self._key, cost)

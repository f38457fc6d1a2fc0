"""What compiling a model costs: told before it is planned, by what earlier models took on this machine."""

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
from anatune.network.graph.operators import PRODUCTS, operator_of
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
"""Part of compiling -> what people are told of it while it goes on."""
_FILE = "model_costs"
_FIRST_PLAN_S, _FIRST_BUILD_S, _FIRST_CHECK_S = 0.093, 0.163, 0.007
"""Of a product, where nothing is known of a machine. Source: ResNet-18 on one core of an Emerald Rapids, 2026-11: 21
products in 2.5, 4.4 and 0.2 s (bench/README.md, estimates), of 21 + `_FIXED_PRODUCTS`."""
_FIXED_PRODUCTS = 6
"""Products whose time goes by with any model: searches and TVM start, the rest is built. Source: chains of 1, 4 and 21
convolutions, Granite Rapids, 2026-11: 2.1, 4.1 and 9.3 s."""
_FIRST_COMPARISON_S = 5.0
"""Running two builds of a model in turn. Source: `compiling.tuning`."""


class ModelCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What compiling one model took, wall seconds. Immutable; JSON both ways.

    Attributes
    ----------
    products : int
        Convolutions and matrix products of the model.
    trials : int
        That were measured.
    plan_s, build_s, check_s, tune_s : float
        As `ModelEstimate` has them; what was not done took no time.
    builds : int
        Libraries that were built.
    total_s, estimated_s : float
        All of it, and what was told of it.
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
    """Return an estimate of compiling a model.

    Parameters
    ----------
    products : int
        Its convolutions and matrix products.
    request : Request
        How many trials are measured at most, where, and what may end measuring before.
    is_checked : bool
        Whether outputs are compared.
    earlier : sequence of ModelCost
        Of this machine and kind of device.
    compile_s : float
        As `ModelEstimate` has it.
    calibrates : bool
        Whether the model is planned and built twice more, with what is measured of its activations as outputs.
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
        build_s *= 2  # with the plan's kernels and with the measured ones
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
    """Return plan, one build and check of a product."""
    products = cost.products + _FIXED_PRODUCTS
    return cost.plan_s / products, cost.build_s / products / max(1, cost.builds), cost.check_s / products


class ModelCosts:
    """Tells what a model will cost, times the parts of compiling it, and keeps that for the next one.

    Parameters
    ----------
    hardware, threads
        What it is compiled for.
    request
        What was asked for.
    is_checked : bool
        Whether outputs are compared.
    folder : Path, optional
        Of what earlier models took.
    clock : callable
        Seconds.
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
        """Return the estimate for a model as it was imported, and tell whoever wants to hear.

        `calibrates`: see `estimate_model`.
        """
        listener = self._request.listeners.on_estimate
        self._estimate = estimate = estimate_model(
            sum(operator_of(node).own in PRODUCTS for node in graph.nodes()),
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
        """Time a part of `STAGES`, and tell whoever wants to hear that it begins."""
        if self._request.listeners.on_stage is not None:
            self._request.listeners.on_stage(STAGES[name])
        began = self._clock()
        yield
        self._spent[name] += self._clock() - began
        self._times[name] += 1

    def store(self, trials: int) -> None:
        """Keep what the model took, of which `trials` were measured now."""
        estimate, spent = self._estimate, self._spent
        total_s = sum(spent.values())
        if (
            not estimate
            or not estimate.seconds
            or not estimate.products
            or trials != estimate.trials
            or not 0.0 < total_s < math.inf
        ):
            return  # what was told was about more, or less; a model without products says nothing of others
        if estimate.compile_s:
            return  # later ones find the code
        cost = ModelCost(
            estimate.products, trials, spent["plan"], spent["build"], spent["check"], spent["tune"],
            self._times["build"], total_s, estimate.seconds,
        )  # fmt: skip
        self._history.add(self._key, cost)

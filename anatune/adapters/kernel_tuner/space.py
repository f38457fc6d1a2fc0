"""The best predicted configurations of a caller's kernel, in order, and the reasons why others are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.adapters.device import GpuLike, find_gpu
from anatune.adapters.kernel_tuner.fit import AUTO_SPREAD, Fit, check_spread
from anatune.adapters.kernel_tuner.names import CLBLAST, Config, Names, Value, Values, is_clblast
from anatune.adapters.kernel_tuner.scores import MISFIT, Scorer
from anatune.arguments import is_iterable, quote
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.learned.corrections import (
    AUTO,
    NONE,
    SavedCorrection,
    find_named_correction,
    find_shipped_correction,
)
from anatune.model.pruning.portfolio import choose_portfolio, value_positions
from anatune.model.pruning.subset import Verdict, against_best, count_kept
from anatune.named import import_optional

_KERNELS = "clblast"
"""The name of the kernels for which a correction with CLBlast's parameters is shipped."""
_UNFIT = "values contradict each other: threads x results of a thread have to equal the block, and parts divide it"

_UNJUDGED = "kept, although the model cannot predict it"

TuneParams: TypeAlias = Mapping[str, Sequence[Value]]
"""The values of each parameter."""
Floats = NDArray[np.float64]


def import_kernel_tuner(module: str = "") -> ModuleType:
    """Return Kernel Tuner, or one of its modules (".util"), with the errors of `import_optional`."""
    return import_optional(f"kernel_tuner{module}", "kernel-tuner", "anatune.adapters.kernel_tuner")


def prune(
    workload: Workload,
    hw: GpuLike,
    tune_params: TuneParams,
    *,
    names: Names = CLBLAST,
    keep: float = 0.05,
    restrictions: object = None,
    correction: str | Path = "auto",
    spread: float | str = AUTO_SPREAD,
) -> PrunedSpace:
    """Return the configurations of a kernel that are worth a run, best predicted first.

    Parameters
    ----------
    workload : Workload
        The workload that the kernel computes, such as ``anatune.matmul(m, n, k)``; `clblast_gemm` for CLBlast's Xgemm.
    hw
        The name, TOML file or spec of a device, or "auto": the device that the environment variable ANATUNE_HW names,
        otherwise the GPU of this machine.
    tune_params : mapping
        The values of each parameter, as for ``tune_kernel``.
    names : mapping, optional
        The meaning of the parameters: role -> name of a parameter, number, or function of the configuration. The module
        `kernel_tuner.names` lists the roles. The default is those of CLBlast's Xgemm. Configurations that differ only
        in parameters without a role have equal predicted times, and some of each are kept.
    keep : float or int
        An integer is the number of configurations to keep. A float is a share, above 0 and below 1, of those that the
        device can start.
    restrictions : optional
        The kernel's own restrictions, in any form that Kernel Tuner takes.
    correction : "auto", "none", or str or Path
        "auto" means the shipped correction for the device, if there is one and the names are CLBlast's. Otherwise give
        the name or folder of a correction, such as `anatune records train` writes.
    spread : "auto" or float
        The share of the selection, from 0 to 1, that is drawn from the whole space without predictions. "auto" is 0
        for CLBlast's names. For other kernels it is 0.25 if every parameter has a role and every configuration can be
        judged, and up to 1 otherwise. However wrong the model is, the selection is then at least as good as a random
        selection of that share of its size (`anatune.model.pruning.portfolio.choose_portfolio`).

    Warns
    -----
    UserWarning
        Predictions were not compared with measurements for this kernel; the text says what the model does not know.

    Raises
    ------
    SpaceError
        `names` does not fit the workload or the parameters, `keep` or `spread` is wrong, or no configuration can run.
    MissingDependencyError
        Kernel Tuner is not installed.
    DeviceError, UnknownNameError, SpecError, ModelVersionError
        The device or the correction cannot be found or used.
    """
    return PrunedSpace(workload, hw, tune_params, names, keep, restrictions, correction, spread)


def restrict(
    workload: Workload,
    hw: GpuLike,
    tune_params: TuneParams,
    *,
    names: Names = CLBLAST,
    keep: float = 0.05,
    restrictions: object = None,
    correction: str | Path = "auto",
    spread: float | str = AUTO_SPREAD,
) -> Callable[..., bool]:
    """Return a function for ``tune_kernel(restrictions=...)`` that says whether a configuration is worth a run.

    Pass it alone or in a list with other restrictions. It is the method `PrunedSpace.keeps` of the result of `prune`,
    and has the same parameters, warnings and errors.
    """
    return PrunedSpace(workload, hw, tune_params, names, keep, restrictions, correction, spread).keeps


class PrunedSpace:
    """The kept configurations of a kernel, in predicted order.

    The selection is deterministic. It never contains a configuration that the device cannot start, and always contains
    the best predicted one. Configurations that the model cannot judge (inconsistent values, or more resources than
    the code of anatune could have) are kept as often as in a random selection if `spread` is above 0, otherwise never.

    Attributes
    ----------
    workload, hardware, tune_params, keep
        The arguments.
    fit : Fit
        The share of the kernel that the model understands, and the resulting spread.
    num_configs : int
        The number of configurations that the kernel's own restrictions allow.
    num_legal : int
        The number of those that the device can start.
    """

    def __init__(
        self,
        workload: Workload,
        hw: GpuLike,
        tune_params: TuneParams,
        names: Names,
        keep: float,
        restrictions: object,
        correction: str | Path,
        spread: float | str = AUTO_SPREAD,
    ) -> None:
        if not isinstance(workload, Workload):
            raise SpaceError(f"workload is {quote(workload)}, expected a Workload, such as anatune.matmul(...) returns")
        if not isinstance(tune_params, Mapping) or not all(map(is_iterable, tune_params.values())):
            raise SpaceError(f"tune_params is {quote(tune_params)}, expected a mapping from parameters to their values")
        if not isinstance(names, Mapping):
            raise SpaceError(f"names is {quote(names)}, expected a mapping from roles to parameters")
        count_kept(keep, 1)
        check_spread(spread)
        hardware = find_gpu(hw)
        self.workload, self.keep = workload, keep
        self.hardware = _lift_register_limit(hardware) if names is CLBLAST else hardware
        self.tune_params = {name: list(values) for name, values in tune_params.items()}
        self._configs = _list_configurations(self.tune_params, restrictions, hardware)
        self._order: list[int] = []
        self._rank_of: dict[Values, int] = {}
        saved = _correction(correction, self.hardware, names)
        self._scorer = Scorer(workload, self.hardware, names, self.parameters, saved, windows=not is_clblast(names))
        self.num_configs = len(self._configs)
        scores = self._scorer.score(self._configs)
        self._time_s, self._points = scores.time_s, scores.points
        self.fit = Fit(names, self.parameters, self._configs, scores, spread)
        self.num_legal = int(scores.runs.sum())
        if not self.num_legal or not (scores.judged.any() or self.fit.spread):
            why = self._verdict_of(self._configs[0]).text if self._configs else "the restrictions exclude all"
            raise SpaceError(
                f"none of the {self.num_configs} configurations can run {workload.describe()} on {hardware.name}; "
                f"reason for the first one: {why}"
            )
        self._time_s = np.where(scores.judged, scores.time_s, np.inf)
        self._order = self._choose_rows(scores.runs, scores.judged).tolist()
        self._rank_of = {self._configs[at]: place for place, at in enumerate(self._order, 1)}
        if len(self) < self.num_legal:
            self.fit.warn(len(self), self.num_configs)

    def _choose_rows(self, runs: NDArray[np.bool_], judged: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the row numbers of the kept configurations, in predicted order."""
        order = np.lexsort((np.arange(self.num_configs), self._time_s))
        if not self.fit.spread:
            return order[: count_kept(self.keep, int(judged.sum()))]
        rows = np.flatnonzero(runs)
        coordinates = np.column_stack(
            [value_positions([self._configs[row][at] for row in rows]) for at in range(len(self.parameters))]
        )
        count = count_kept(self.keep, len(rows))
        kept = np.zeros(self.num_configs, dtype=bool)
        kept[rows[choose_portfolio(self._time_s[rows], coordinates, count, self.fit.spread)]] = True
        chosen: NDArray[np.int64] = order[kept[order]]
        return chosen

    def __repr__(self) -> str:
        spread = (
            f", {self.fit.spread:.0%} of them spread over the space: {self.fit.describe()}" if self.fit.spread else ""
        )
        return f"PrunedSpace(keep {len(self)} of {self.num_configs} configurations{spread})"

    def __len__(self) -> int:
        return len(self._order)

    def __deepcopy__(self, memo: dict[int, object]) -> PrunedSpace:
        return self  # Kernel Tuner makes deep copies of restrictions, and this object never changes

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the tunable parameters."""
        return tuple(self.tune_params)

    @property
    def configs(self) -> list[dict[str, Value]]:
        """The kept configurations, best first."""
        return [dict(zip(self.parameters, self._configs[at], strict=True)) for at in self._order]

    @property
    def predicted_s(self) -> Floats:
        """The predicted seconds of `configs`, (num_kept,) float64."""
        return self._time_s[self._order]

    @property
    def start(self) -> list[Value]:
        """The values of the best configuration, for ``strategy_options={"x0": ...}``."""
        return list(self._configs[self._order[0]])

    def population(self, count: int) -> list[list[Value]]:
        """Return the values of up to `count` different good configurations, best first.

        Configurations with equal tiles take turns: first one of each tile, then a second one of each, and so on.
        """
        seen: dict[bytes, int] = {}
        turns: list[int] = []
        for row in self._order:
            tile = self._points[row].tobytes()
            turns.append(seen.get(tile, 0))
            seen[tile] = turns[-1] + 1
        chosen = np.argsort(turns, kind="stable")[:count].tolist()
        return [list(self._configs[self._order[place]]) for place in chosen]

    @cached_property
    def kept_params(self) -> dict[str, list[Value]]:
        """`tune_params` without unused values, so that Kernel Tuner lists the space faster."""
        return {
            name: [value for value in values if any(self._configs[row][at] == value for row in self._order)]
            for at, (name, values) in enumerate(self.tune_params.items())
        }

    def keeps(self, *values: Value, **config: Value) -> bool:
        """Return whether a configuration is kept.

        Kernel Tuner passes a configuration as one mapping, as values in order, or as keyword arguments.
        """
        return self._key(values, config) in self._rank_of

    def explain(self, *values: Value, **config: Value) -> Verdict:
        """Return why a configuration is kept or left out; it is given as in `keeps`.

        Raises
        ------
        SpaceError
            The configuration lacks a parameter.
        """
        return self._verdict_of(self._key(values, config))

    def _key(self, values: Values, config: Config) -> Values:
        if len(values) == 1 and isinstance(values[0], Mapping):
            config, values = values[0], ()
        try:
            return tuple(values) if values else tuple(config[name] for name in self.parameters)
        except KeyError as missing:
            raise SpaceError(
                f"configuration {quote(dict(config))} lacks {missing}, expected {', '.join(self.parameters)}"
            ) from None

    def _verdict_of(self, key: Values) -> Verdict:
        if len(key) != len(self.parameters):
            raise SpaceError(
                f"configuration has {len(key)} values, expected {len(self.parameters)}: {', '.join(self.parameters)}"
            )
        scores = self._scorer.score([key])
        time_s, code = float(scores.time_s[0]), int(scores.rule[0])
        kept = self._order
        best_s, cut_s = (float(self._time_s[kept[at]]) for at in (0, -1)) if kept else (math.nan, math.nan)
        rank = self._rank_of.get(key)
        rule, limit, part = "", None, ""
        if code == MISFIT:
            rule, reason = "values", _UNFIT
        else:
            prediction, rules = self._scorer.prediction(scores.points[0])
            part = prediction.bound_by
            reason = f"predicted {time_s * 1e3:.4g} ms ({against_best(time_s, best_s)}), bound by {part}"
            if code:
                broken = rules[code - 1]
                rule, limit, reason = broken.id, broken.limit, broken.broken_text(None)
        if rule:
            text = f"{_UNJUDGED if rank else 'left out'}: {reason}"
        elif rank is not None:
            text = f"kept: rank {rank} of {len(self)}, {reason}"
        elif time_s > cut_s:
            text = f"left out: {reason}; {time_s / cut_s:.3g} times the time of the last one kept"
        elif self.fit.spread:
            text = f"left out: {reason}; faster than some that are kept to spread the selection over the space"
        else:
            text = f"left out: {reason}; the restrictions exclude it, or enough others of the same time are kept"
        return Verdict(rank is not None, rank, rule, None, limit, time_s, best_s, cut_s, time_s / cut_s, part, text)


def _lift_register_limit(hardware: GpuSpec) -> GpuSpec:
    """Return the hardware without the compiler's limit of registers, for kernels that declare their block size.

    ``compiler.registers_per_thread`` describes TVM's code generator, which gives the threads of an MI50 64 registers.
    """
    compiler = msgspec.structs.replace(hardware.compiler, registers_per_thread=hardware.registers.per_thread)
    return msgspec.structs.replace(hardware, compiler=compiler)


def _correction(correction: str | Path, hardware: GpuSpec, names: Names) -> SavedCorrection | None:
    if str(correction) == NONE:
        return None
    if str(correction) != AUTO:
        return find_named_correction(correction)
    return find_shipped_correction(hardware, _KERNELS) if names is CLBLAST else None


def _list_configurations(tune_params: TuneParams, restrictions: object, hardware: GpuSpec) -> list[Values]:
    """Return the configurations that the kernel's own restrictions allow, in Kernel Tuner's order."""
    if not tune_params or not all(tune_params.values()):
        raise SpaceError("tune_params is empty, or a parameter has no value; give the argument of tune_kernel")
    searchspace = import_kernel_tuner(".searchspace").Searchspace
    try:
        space = searchspace(dict(tune_params), restrictions, hardware.compute.max_threads_per_block)
    except (ValueError, TypeError, NameError, SyntaxError) as error:  # ValueError: none is left
        raise SpaceError(f"restrictions: Kernel Tuner finds no configuration that they allow ({error})") from None
    return [tuple(config) for config in (space.sorted_list() if space.size else ())]

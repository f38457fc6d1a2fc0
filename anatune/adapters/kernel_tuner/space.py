"""The configurations of somebody's kernel that deserve a run, in predicted order, and why the others do not."""

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
from anatune.adapters.kernel_tuner.fit import AUTO_SPREAD, Fit, checked_spread
from anatune.adapters.kernel_tuner.names import CLBLAST, Config, Names, Value, Values, is_clblast
from anatune.adapters.kernel_tuner.scores import MISFIT, Scorer
from anatune.arguments import is_iterable, shown
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.learned.corrections import AUTO, NONE, SavedCorrection, named_correction, shipped_correction
from anatune.model.pruning.portfolio import portfolio, value_places
from anatune.model.pruning.subset import Verdict, kept_count
from anatune.named import import_optional

_KERNELS = "clblast"
"""Kernels of the shipped correction for CLBlast's parameters."""
_UNFIT = "values that do not fit together: threads times results of a thread must be the block, parts must divide it"

_UNJUDGED = "kept without a judgement"

TuneParams: TypeAlias = Mapping[str, Sequence[Value]]
"""Parameter -> its values."""
Floats = NDArray[np.float64]


def import_kernel_tuner(module: str = "") -> ModuleType:
    """Return Kernel Tuner, or a module of it (".util"); errors as `import_optional`."""
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
    """Return the configurations of a kernel that deserve a run, in predicted order.

    Parameters
    ----------
    workload : Workload
        What the kernel computes, such as ``anatune.matmul(m, n, k)``; `clblast_gemm` for CLBlast's Xgemm.
    hw
        A device's name, a TOML file or a spec; "auto": what ANATUNE_HW names, else the present device.
    tune_params : mapping
        As for ``tune_kernel``: parameter -> its values.
    names : mapping, optional
        What the parameters mean: role -> parameter's name, number, or function of the configuration. The roles are
        those of `kernel_tuner.names`; left out: CLBlast's Xgemm. Parameters without a role are left to the tuner:
        configurations that differ only there are predicted alike, and kept in turn.
    keep : float or int
        A float: share of the configurations that the device can start, above 0 and below 1. An integer: how many.
    restrictions : optional
        The kernel's own, in any form that Kernel Tuner takes.
    correction : "auto", "none", or str or Path
        "auto": for CLBlast's names the shipped correction for the device, where there is one. Otherwise the name or
        folder of one, such as `anatune records train` makes.
    spread : "auto" or float
        Share of the list, from 0 to 1, that is drawn over the whole space whatever is predicted. "auto": 0 for
        CLBlast's names; for other kernels from 0.25, where every parameter has a role and every configuration can be
        judged, to 1, where none is. The list is then as good as a random one of that share of its size, however
        wrong the model is (`anatune.model.pruning.portfolio`).

    Warns
    -----
    UserWarning
        The kernel is not one that the model was compared with; what of it is not understood.

    Raises
    ------
    SpaceError
        Names that do not fit the workload or the parameters, a wrong `keep` or `spread`, nothing that can run.
    MissingDependencyError
        Kernel Tuner is not installed.
    DeviceError, UnknownNameError, SpecError, ModelVersionError
        The device, or the correction, cannot be found or used.
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
    """Return a function for ``tune_kernel(restrictions=...)``: whether a configuration deserves a run.

    It can stand alone or in a list beside other restrictions. Parameters, warnings and errors: as `prune`, whose
    `PrunedSpace.keeps` it is.
    """
    return PrunedSpace(workload, hw, tune_params, names, keep, restrictions, correction, spread).keeps


class PrunedSpace:
    """The configurations of a kernel that are kept, in predicted order.

    Guarantees: deterministic; what the device cannot start is never kept, the best predicted one always. What the model
    cannot judge (values that fit no role, other needs than its own code's) is kept as often as in a random choice where
    the list is spread, else not.

    Attributes
    ----------
    workload, hardware, tune_params, keep
        As asked.
    fit : Fit
        What of the kernel is understood, and the share of the list that is spread for it.
    num_configs : int
        That the kernel's own restrictions allow.
    num_legal : int
        Of them, that the device can start.
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
            raise SpaceError(f"workload is {shown(workload)}, expected a Workload; make one with anatune.matmul(...)")
        if not isinstance(tune_params, Mapping) or not all(map(is_iterable, tune_params.values())):
            raise SpaceError(f"tune_params is {shown(tune_params)}, expected a mapping from parameters to their values")
        if not isinstance(names, Mapping):
            raise SpaceError(f"names is {shown(names)}, expected a mapping from roles to parameters")
        kept_count(keep, 1)
        checked_spread(spread)
        hardware = find_gpu(hw)
        self.workload, self.keep = workload, keep
        self.hardware = _unlimited(hardware) if names is CLBLAST else hardware
        self.tune_params = {name: list(values) for name, values in tune_params.items()}
        self._configs = _listed(self.tune_params, restrictions, hardware)
        self._order: list[int] = []
        self._places: dict[Values, int] = {}
        saved = _correction(correction, self.hardware, names)
        self._scorer = Scorer(workload, self.hardware, names, self.parameters, saved, windows=not is_clblast(names))
        self.num_configs = len(self._configs)
        scores = self._scorer.score(self._configs)
        self._time_s, self._points = scores.time_s, scores.points
        self.fit = Fit(names, self.parameters, self._configs, scores, spread)
        self.num_legal = int(scores.runs.sum())
        if not self.num_legal or not (scores.known.any() or self.fit.spread):
            why = self._verdict_of(self._configs[0]).text if self._configs else "its restrictions allow nothing"
            raise SpaceError(
                f"none of {self.num_configs} configurations can run {workload.describe()} on {hardware.name}; "
                f"the first one: {why}"
            )
        self._time_s = np.where(scores.known, scores.time_s, np.inf)
        self._order = self._chosen(scores.runs, scores.known).tolist()
        self._places = {self._configs[at]: place for place, at in enumerate(self._order, 1)}
        if len(self) < self.num_legal:
            self.fit.warn(len(self), self.num_configs)

    def _chosen(self, runs: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the rows that are kept, in predicted order."""
        order = np.lexsort((np.arange(self.num_configs), self._time_s))
        if not self.fit.spread:
            return order[: kept_count(self.keep, int(known.sum()))]
        rows = np.flatnonzero(runs)
        coordinates = np.column_stack(
            [value_places([self._configs[row][at] for row in rows]) for at in range(len(self.parameters))]
        )
        count = kept_count(self.keep, len(rows))
        kept = np.zeros(self.num_configs, dtype=bool)
        kept[rows[portfolio(self._time_s[rows], coordinates, count, self.fit.spread)]] = True
        found: NDArray[np.int64] = order[kept[order]]
        return found

    def __repr__(self) -> str:
        spread = f", {self.fit.spread:.0%} of the choice spread: {self.fit.describe()}" if self.fit.spread else ""
        return f"PrunedSpace(keep {len(self)} of {self.num_configs} configurations{spread})"

    def __len__(self) -> int:
        return len(self._order)

    def __deepcopy__(self, memo: dict[int, object]) -> PrunedSpace:
        return self  # Kernel Tuner copies restrictions deeply; this one never changes

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the tunable parameters."""
        return tuple(self.tune_params)

    @property
    def configs(self) -> list[dict[str, Value]]:
        """The kept configurations, best first."""
        return [dict(zip(self.parameters, self._configs[at], strict=True)) for at in self._order]

    @property
    def predicted_s(self) -> Floats:
        """Predicted seconds of `configs`, (num_kept,) float64."""
        return self._time_s[self._order]

    @property
    def start(self) -> list[Value]:
        """The best configuration's values: ``strategy_options={"x0": ...}``."""
        return list(self._configs[self._order[0]])

    def population(self, count: int) -> list[list[Value]]:
        """Return the values of `count` good configurations that differ, best first; fewer where fewer are kept.

        Those that are tiled alike take turns: first one of each tile, then a second one of each, and so on.
        """
        seen: dict[bytes, int] = {}
        turns: list[int] = []
        for at in self._order:
            tile = self._points[at].tobytes()
            turns.append(seen.get(tile, 0))
            seen[tile] = turns[-1] + 1
        chosen = np.argsort(turns, kind="stable")[:count].tolist()
        return [list(self._configs[self._order[place]]) for place in chosen]

    @cached_property
    def kept_params(self) -> dict[str, list[Value]]:
        """`tune_params` without the values that no kept configuration has: Kernel Tuner lists spaces sooner."""
        return {
            name: [value for value in values if any(self._configs[row][at] == value for row in self._order)]
            for at, (name, values) in enumerate(self.tune_params.items())
        }

    def keeps(self, *values: Value, **config: Value) -> bool:
        """Return whether a configuration is kept: as one mapping, as values in order, or by name.

        Kernel Tuner calls restrictions in all three ways.
        """
        return self._key(values, config) in self._places

    def explain(self, *values: Value, **config: Value) -> Verdict:
        """Return why a configuration is kept or not, given as in `keeps`.

        Raises
        ------
        SpaceError
            It does not name every parameter.
        """
        return self._verdict_of(self._key(values, config))

    def _key(self, values: Values, config: Config) -> Values:
        if len(values) == 1 and isinstance(values[0], Mapping):
            config, values = values[0], ()
        try:
            return tuple(values) if values else tuple(config[name] for name in self.parameters)
        except KeyError as missing:
            raise SpaceError(
                f"configuration {shown(dict(config))} lacks {missing}, expected {', '.join(self.parameters)}"
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
        place = self._places.get(key)
        rule, limit, part = "", None, ""
        if code == MISFIT:
            rule, said = "values", _UNFIT
        else:
            prediction, rules = self._scorer.prediction(scores.points[0])
            part = prediction.bound_by
            said = f"predicted {time_s * 1e3:.4g} ms, {time_s / best_s:.3g} times the best, bound by {part}"
            if code:
                broken = rules[code - 1]
                rule, limit, said = broken.id, broken.limit, broken.broken_text(None)
        if rule:
            text = f"{_UNJUDGED if place else 'left out'}: {said}"
        elif place is not None:
            text = f"kept: place {place} of {len(self)}, {said}"
        elif time_s > cut_s:
            text = f"left out: {said}; {time_s / cut_s:.3g} times the last one kept"
        elif self.fit.spread:
            text = f"left out: {said}; not drawn: {self.fit.spread:.0%} of the choice is spread over all configurations"
        else:
            text = f"left out: {said}; the restrictions exclude it, or it comes behind its equals"
        return Verdict(place is not None, place, rule, None, limit, time_s, best_s, cut_s, time_s / cut_s, part, text)


def _unlimited(hardware: GpuSpec) -> GpuSpec:
    """Return the hardware as kernels see it that name their group size: all registers are theirs.

    ``compiler.registers_per_thread`` describes TVM's code generator, which leaves an MI50's threads 64 registers.
    """
    own = msgspec.structs.replace(hardware.compiler, registers_per_thread=hardware.registers.per_thread)
    return msgspec.structs.replace(hardware, compiler=own)


def _correction(correction: str | Path, hardware: GpuSpec, names: Names) -> SavedCorrection | None:
    if str(correction) == NONE:
        return None
    if str(correction) != AUTO:
        return named_correction(correction)
    return shipped_correction(hardware, _KERNELS) if names is CLBLAST else None


def _listed(tune_params: TuneParams, restrictions: object, hardware: GpuSpec) -> list[Values]:
    """Return the configurations that the kernel's own restrictions allow, as Kernel Tuner lists them."""
    if not tune_params or not all(tune_params.values()):
        raise SpaceError("tune_params is empty, or a parameter has no value; give what tune_kernel gets")
    searchspace = import_kernel_tuner(".searchspace").Searchspace
    try:
        found = searchspace(dict(tune_params), restrictions, hardware.compute.max_threads_per_block)
    except (ValueError, TypeError, NameError, SyntaxError) as error:  # also how its solver says that nothing is left
        raise SpaceError(f"restrictions: Kernel Tuner lists no configuration with them ({error})") from None
    return [tuple(config) for config in (found.sorted_list() if found.size else ())]

"""Kernel Tuner: its strategies search only the configurations that deserve a run, and begin with the best of them.

``restrictions=restrict(workload, hw, tune_params, keep=0.01)`` is all that a search needs. `prune` returns the same
with the order behind it: a starting point (`PrunedSpace.start`), the strategies `Ordered` and `Within`, and why
a configuration was left out. No GPU is needed before Kernel Tuner wants one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.adapters.kernel_tuner_names import CLBLAST, Names, clblast_gemm, rounded_workload, tile_points
from anatune.adapters.kernel_tuner_strategies import Ordered, Within, import_kernel_tuner
from anatune.adapters.triton_device import AUTO, find_gpu
from anatune.core.hardware import GpuSpec
from anatune.core.workload import Workload
from anatune.errors import SpaceError
from anatune.model.corrected import CorrectedModel
from anatune.model.corrections import NONE, named_correction, shipped_correction
from anatune.model.pruning import Verdict, kept_count
from anatune.model.templates import make_model

__all__ = ["CLBLAST", "Ordered", "PrunedSpace", "Within", "clblast_gemm", "import_kernel_tuner", "prune", "restrict"]

_KERNELS = "clblast"
"""Kernels of the shipped correction for CLBlast's parameters."""
_UNFIT = "values that do not fit together: threads times results of a thread must be the block, parts must divide it"
_OVERHANG = "its blocks do not divide the workload, which is only modelled for matrix products"

Config = Mapping[str, Any]
Floats = NDArray[np.float64]


def prune(
    workload: Workload,
    hw: str | Path | GpuSpec,
    tune_params: Mapping[str, Sequence[Any]],
    *,
    names: Names = CLBLAST,
    keep: float = 0.05,
    restrictions: Any = None,
    correction: str | Path = "auto",
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
        those of `kernel_tuner_names`; left out: CLBlast's Xgemm. Parameters without a role are left to the tuner:
        configurations that differ only there are predicted alike.
    keep : float or int
        A float: share of the legal configurations, above 0 and below 1. An integer: how many.
    restrictions : optional
        The kernel's own, in any form that Kernel Tuner takes.
    correction : "auto", "none", or str or Path
        "auto": for CLBlast's names the shipped correction for the device, where there is one. Otherwise the name or
        folder of one, such as `anatune records train` makes.

    Raises
    ------
    SpaceError
        Names that do not fit the workload or the parameters, a wrong `keep`, no legal configuration.
    MissingDependencyError
        Kernel Tuner is not installed.
    DeviceError, UnknownNameError, SpecError, ModelVersionError
        The device, or the correction, cannot be found or used.
    """
    kept_count(keep, 1)
    return PrunedSpace(workload, find_gpu(hw), tune_params, names, keep, restrictions, correction)


def restrict(
    workload: Workload,
    hw: str | Path | GpuSpec,
    tune_params: Mapping[str, Sequence[Any]],
    *,
    names: Names = CLBLAST,
    keep: float = 0.05,
    restrictions: Any = None,
    correction: str | Path = "auto",
) -> Callable[..., bool]:
    """Return a function for ``tune_kernel(restrictions=...)``: whether a configuration deserves a run.

    It can stand alone or in a list beside other restrictions. Parameters and errors: as `prune`, whose
    `PrunedSpace.keeps` it is.
    """
    return prune(
        workload, hw, tune_params, names=names, keep=keep, restrictions=restrictions, correction=correction
    ).keeps


class PrunedSpace:
    """A kernel's configurations in predicted order, cut after those that are kept.

    Guarantees: deterministic; what the model calls illegal is never kept. Equal predictions keep the order of
    `tune_params`.

    Attributes
    ----------
    workload, hardware, tune_params, keep
        As asked.
    num_configs : int
        That the kernel's own restrictions allow.
    num_legal : int
        Of them, that break no rule of the device.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: GpuSpec,
        tune_params: Mapping[str, Sequence[Any]],
        names: Names,
        keep: float,
        restrictions: Any,
        correction: str | Path,
    ) -> None:
        self.workload, self.keep = workload, keep
        self.hardware = _unlimited(hardware) if names is CLBLAST else hardware
        self.tune_params = {name: list(values) for name, values in tune_params.items()}
        self._names = names
        self._correction = _correction(correction, self.hardware, names)
        self._configs: list[tuple[Any, ...]] = _listed(self.tune_params, restrictions, hardware)
        self._models: dict[Workload, Any] = {}
        self.num_configs = len(self._configs)
        time_s, rule, self._points = self._scores(self._configs)
        self._time_s = time_s
        self.num_legal = int((rule == 0).sum())
        if not self.num_legal:
            why = self._verdict_of(self._configs[0]).text if self._configs else "its restrictions allow nothing"
            raise SpaceError(
                f"none of {self.num_configs} configurations can run {workload.describe()} on {hardware.name}; "
                f"the first one: {why}"
            )
        order = np.lexsort((np.arange(self.num_configs), time_s, rule != 0))
        self._order: list[int] = order[: kept_count(keep, self.num_legal)].tolist()
        self._places = {self._configs[at]: place for place, at in enumerate(self._order, 1)}

    def __repr__(self) -> str:
        return f"PrunedSpace(keep {len(self)} of {self.num_configs} configurations)"

    def __len__(self) -> int:
        return len(self._order)

    def __deepcopy__(self, memo: dict[int, Any]) -> PrunedSpace:
        return self  # Kernel Tuner copies restrictions deeply; this one never changes

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the tunable parameters."""
        return tuple(self.tune_params)

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The kept configurations, best first."""
        return [dict(zip(self.parameters, self._configs[at], strict=True)) for at in self._order]

    @property
    def predicted_s(self) -> Floats:
        """Predicted seconds of `configs`, (num_kept,) float64."""
        return self._time_s[self._order]

    @property
    def start(self) -> list[Any]:
        """The best configuration's values: ``strategy_options={"x0": ...}``."""
        return list(self._configs[self._order[0]])

    def population(self, count: int) -> list[list[Any]]:
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
    def kept_params(self) -> dict[str, list[Any]]:
        """`tune_params` without the values that no kept configuration has: Kernel Tuner lists spaces sooner."""
        return {
            name: [value for value in values if any(self._configs[row][at] == value for row in self._order)]
            for at, (name, values) in enumerate(self.tune_params.items())
        }

    def keeps(self, *values: Any, **config: Any) -> bool:
        """Return whether a configuration is kept: as one mapping, as values in order, or by name.

        Kernel Tuner calls restrictions in all three ways.
        """
        return self._key(values, config) in self._places

    def explain(self, *values: Any, **config: Any) -> Verdict:
        """Return why a configuration is kept or not, given as in `keeps`.

        Raises
        ------
        SpaceError
            It does not name every parameter.
        """
        return self._verdict_of(self._key(values, config))

    def _key(self, values: tuple[Any, ...], config: Config) -> tuple[Any, ...]:
        if len(values) == 1 and isinstance(values[0], Mapping):
            config, values = values[0], ()
        try:
            return tuple(values) if values else tuple(config[name] for name in self.parameters)
        except KeyError as missing:
            raise SpaceError(
                f"configuration {dict(config)!r:.80} lacks {missing}, expected {', '.join(self.parameters)}"
            ) from None

    def _scores(self, configs: Sequence[tuple[Any, ...]]) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Return predicted seconds (inf where nothing can be said), rule codes (-1, -2: not modelled), and points."""
        points, valid, weight = tile_points(self._names, self.workload, self.parameters, configs)
        time_s = np.full(len(configs), np.inf)
        rule = np.where(valid, -2, -1).astype(np.int64)
        widths = [5 if axis.kind == "spatial" else 3 for axis in self.workload.axes]
        first = np.cumsum([0, *widths])
        extents = np.column_stack(
            [points[:, at : at + width].prod(axis=1) for at, width in zip(first, widths, strict=False)]
        )
        shapes, which = np.unique(extents, axis=0, return_inverse=True)
        for number, shape in enumerate(shapes.tolist()):
            rows = np.flatnonzero((which.reshape(-1) == number) & valid)
            model = self._model(shape) if len(rows) else None
            if model is not None:
                times, rule[rows] = model.times(points[rows])
                time_s[rows] = times * weight[rows]
        return time_s, rule, points

    def _model(self, shape: Sequence[int]) -> Any:
        names = [axis.name for axis in self.workload.axes]
        rounded = rounded_workload(self.workload, dict(zip(names, shape, strict=True)))
        if rounded is None:
            return None
        if rounded not in self._models:
            plain = make_model(rounded, self.hardware, "cuda")
            saved = self._correction
            self._models[rounded] = plain if saved is None else CorrectedModel(plain, saved.model)
        return self._models[rounded]

    def _verdict_of(self, key: tuple[Any, ...]) -> Verdict:
        if len(key) != len(self.parameters):
            raise SpaceError(
                f"configuration has {len(key)} values, expected {len(self.parameters)}: {', '.join(self.parameters)}"
            )
        times, rules, points = self._scores([key])
        time_s, code = float(times[0]), int(rules[0])
        nothing = math.nan
        kept = getattr(self, "_order", [])
        best_s, cut_s = (float(self._time_s[kept[at]]) for at in (0, -1)) if kept else (nothing, nothing)
        facts = {"time_s": time_s, "best_s": best_s, "cut_s": cut_s, "factor": time_s / cut_s}
        if code < 0:
            rule, text = ("values", _UNFIT) if code == -1 else ("overhang", _OVERHANG)
            return Verdict(False, None, rule, None, None, **facts, bound_by="", text=f"left out: {text}")
        widths = [5 if axis.kind == "spatial" else 3 for axis in self.workload.axes]
        first = np.cumsum([0, *widths])
        shape = [int(points[0, at : at + width].prod()) for at, width in zip(first, widths, strict=False)]
        model = self._model(shape)
        prediction = model.predictions(points)[0]
        if prediction.rule:
            limit = next(rule for rule in model.rules if rule.id == prediction.rule)
            text = f"left out: {limit.broken_text(limit.needed)}"
            return Verdict(False, None, limit.id, None, limit.limit, **facts, bound_by=prediction.bound_by, text=text)
        place = self._places.get(key)
        said = f"predicted {time_s * 1e3:.4g} ms, {time_s / best_s:.3g} times the best, bound by {prediction.bound_by}"
        if place is not None:
            text = f"kept: place {place} of {len(self)}, {said}"
        elif time_s > cut_s:
            text = f"left out: {said}; {time_s / cut_s:.3g} times the last one kept"
        else:
            text = f"left out: {said}; the restrictions exclude it, or it comes behind its equals"
        return Verdict(place is not None, place, "", None, None, **facts, bound_by=prediction.bound_by, text=text)


def _unlimited(hardware: GpuSpec) -> GpuSpec:
    """Return the hardware as kernels see it that name their group size: all registers are theirs.

    ``compiler.registers_per_thread`` describes TVM's code generator, which leaves an MI50's threads 64 registers.
    """
    own = msgspec.structs.replace(hardware.compiler, registers_per_thread=hardware.registers.per_thread)
    return msgspec.structs.replace(hardware, compiler=own)


def _correction(correction: str | Path, hardware: GpuSpec, names: Names) -> Any:
    if str(correction) == NONE:
        return None
    if str(correction) != AUTO:
        return named_correction(correction)
    return shipped_correction(hardware, _KERNELS) if names is CLBLAST else None


def _listed(tune_params: Mapping[str, Sequence[Any]], restrictions: Any, hardware: GpuSpec) -> list[tuple[Any, ...]]:
    """Return the configurations that the kernel's own restrictions allow, as Kernel Tuner lists them."""
    if not tune_params or not all(tune_params.values()):
        raise SpaceError("tune_params is empty, or a parameter has no value; give what tune_kernel gets")
    searchspace = import_kernel_tuner(".searchspace").Searchspace
    try:
        found = searchspace(dict(tune_params), restrictions, hardware.compute.max_threads_per_block)
    except ValueError as error:  # how its solver says that nothing is left, too
        raise SpaceError(f"restrictions: Kernel Tuner lists no configuration with them ({error})") from None
    return [tuple(config) for config in (found.sorted_list() if found.size else ())]

"""Triton: ``@triton.autotune`` measures only the configurations that deserve it, for matmul-like kernels.

``prune_configs_by=matmul_pruner(hw="auto", keep=8)`` leaves the eight of smallest predicted time, the caller's first
configuration always among them; `configs_for` proposes configurations that nobody has listed. Neither needs a GPU
before the kernel's first call, nor imports Triton before it has to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anatune.adapters.formats import PruneRequest
from anatune.adapters.packages import import_optional
from anatune.adapters.triton_arguments import ArgumentNames, Names, dtype_name
from anatune.adapters.triton_device import AUTO, find_gpu
from anatune.adapters.triton_tiles import bound_by, propose
from anatune.core.hardware import GpuSpec
from anatune.core.implicit_gemm import implicit_gemm
from anatune.errors import SpaceError
from anatune.model.block_tile_time import score_tiles, tile_order
from anatune.model.block_tiles import MatmulProblem, Tiles, rules
from anatune.model.pruning import Verdict, kept_count

__all__ = ["MatmulPruner", "config_lines", "configs_for", "matmul_pruner"]

_NAMES = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
}
"""Names of Triton's own matmul tutorial."""
_USUAL = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4, 5, 6))
"""Block sizes, warps and stages that most configurations have."""


def matmul_pruner(
    hw: str | Path | GpuSpec = AUTO,
    keep: float = 8,
    names: Names | None = None,
    dtype: str | None = None,
) -> MatmulPruner:
    """Return what ``triton.autotune(prune_configs_by=...)`` takes, for a kernel that multiplies matrices.

    Parameters
    ----------
    hw
        A device's name, a TOML file or a spec; "auto": at the first call, what the environment variable ANATUNE_HW
        names, else the present device.
    keep : int or float
        Configurations to measure (a count), or a share of the legal ones. The caller's first configuration is one of
        them whatever is predicted for it.
    names : mapping, optional
        What the kernel calls things: "block_m", "block_n", "block_k", "split_k", "group_m" (meta-parameters), "m", "n",
        "k" (arguments, or functions of all arguments), "a", "b", "c" (the tensors). Usual spellings are recognised
        without it (BLOCK_M, BLOCK_SIZE_M, ...; a_ptr, ...).
    dtype : str, optional
        Of the operands: "float16", "bfloat16", "fp8", "tf32", or "float32" where ``tl.dot`` is told to keep all bits.
        Left out: that of the left operand, float32 as "tf32", which is what ``tl.dot`` makes of it.

    Raises
    ------
    SpaceError
        `keep`, `names` or `dtype` is wrong. The device is looked up later: see `find_gpu`.
    """
    return MatmulPruner(hw, keep, names, dtype)


class MatmulPruner(Mapping[str, Any]):
    """A mapping with ``early_config_prune``, ``perf_model`` and ``top_k``; each of them can be used on its own.

    Guarantees: deterministic; the configurations kept are the first of the predicted order, and the caller's first.
    One object may serve many shapes; `explain` is about the last one unless told otherwise.

    Attributes
    ----------
    keep : int or float
        As asked.
    top_k : int or float
        What Triton then keeps of what is left: the same count; of a share, all (Triton would take its share of them).
    """

    def __init__(
        self,
        hw: str | Path | GpuSpec = AUTO,
        keep: float = 8,
        names: Names | None = None,
        dtype: str | None = None,
    ) -> None:
        kept_count(keep, 1)
        self.keep = keep
        self.top_k = 1.0 if isinstance(keep, float) else keep
        self._hw = hw
        self._arguments = ArgumentNames(names, dtype)
        self._spec: GpuSpec | None = None
        self._timed: MatmulProblem | None = None
        self._times: dict[tuple[int, ...], float] = {}
        self._problem: MatmulProblem | None = None
        self._configs: list[Any] = []
        self._kept: set[int] = set()

    def __repr__(self) -> str:
        return f"matmul_pruner(hw={self._hw if self._spec is None else self._spec.name!r}, keep={self.keep})"

    def __getitem__(self, key: str) -> Any:
        if key not in ("early_config_prune", "perf_model", "top_k"):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(("early_config_prune", "perf_model", "top_k"))

    def __len__(self) -> int:
        return 3

    @property
    def hardware(self) -> GpuSpec:
        """The device; looked up when it is first needed.

        Raises
        ------
        DeviceError, UnknownNameError, SpecError, SpaceError
            As `find_gpu`.
        """
        if self._spec is None:
            self._spec = find_gpu(self._hw)
        return self._spec

    def early_config_prune(self, configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        """Return the configurations to measure, best first; what Triton calls.

        Parameters
        ----------
        configs : sequence of triton.Config
            The first one is the caller's default and always stays.
        named_args, kwargs
            Arguments of the kernel by name.

        Raises
        ------
        SpaceError
            The product or a tile size cannot be found; the message says how to name it.
        """
        configs = list(configs)
        if not configs:
            return []
        problem = self._arguments.problem({**named_args, **kwargs})
        order = self._order(problem, configs)
        count = kept_count(self.keep, max(1, len(order)))
        kept = order[:count]
        if 0 not in kept:
            kept = [*kept[: max(0, count - 1)], 0]
        self._problem, self._configs, self._kept = problem, configs, set(kept)
        return [configs[place] for place in kept]

    def perf_model(self, **arguments: Any) -> float:
        """Return the predicted seconds of one configuration, infinite where it breaks a limit; what Triton calls.

        Parameters
        ----------
        arguments
            Arguments of the kernel, meta-parameters, ``num_warps`` and ``num_stages``, by name.
        """
        problem = self._arguments.problem(arguments)
        tile = tuple(self._arguments.tile(arguments, arguments.get("num_warps", 4), arguments.get("num_stages", 3)))
        if self._timed != problem:
            self._timed, self._times = problem, {}
        if tile not in self._times:  # Triton asks one by one; thousands at once cost no more than ten
            usual = [] if self._times else itertools.product(*_USUAL, tile[5:6], tile[6:])
            rows = [tile, *usual]
            scores = score_tiles(problem, Tiles.of(rows), self.hardware)
            seconds = np.where(scores.resources.rule == 0, scores.time_s, np.inf)
            self._times |= dict(zip(rows, seconds.tolist(), strict=True))
        return self._times[tile]

    def explain(self, config: Any, **arguments: Any) -> Verdict:
        """Return why a configuration is measured or not.

        Parameters
        ----------
        config : triton.Config
        arguments
            Of the kernel, by name; left out: those of the last call.

        Raises
        ------
        SpaceError
            Nothing was pruned yet and there are no arguments, or the configuration has no tile sizes.
        """
        if arguments:
            problem, configs = self._arguments.problem(arguments), [config]
            kept = {0}
        elif self._problem is None:
            raise SpaceError("explain: nothing was pruned yet; call the kernel first, or pass its arguments by name")
        else:
            problem, kept = self._problem, self._kept
            configs = [*self._configs, config]
        place = next(at for at, known in enumerate(configs) if known is config or _is_same(known, config))
        return self._verdict(problem, configs, place, kept)

    def _tiles(self, configs: Sequence[Any]) -> Tiles:
        tile = self._arguments.tile
        try:
            return Tiles.of([tile(c.kwargs, c.num_warps, c.num_stages) for c in configs])
        except AttributeError:
            wrong = next(c for c in configs if not hasattr(c, "kwargs"))
            raise SpaceError(f"configuration is {wrong!r:.60}, expected a triton.Config") from None

    def _order(self, problem: MatmulProblem, configs: Sequence[Any]) -> list[int]:
        tiles = self._tiles(configs)
        order: list[int] = tile_order(score_tiles(problem, tiles, self.hardware), problem, tiles).tolist()
        return order

    def _verdict(self, problem: MatmulProblem, configs: Sequence[Any], place: int, kept: set[int]) -> Verdict:
        tiles = self._tiles(configs)
        scores = score_tiles(problem, tiles, self.hardware)
        order = tile_order(scores, problem, tiles).tolist()
        time_s = float(scores.time_s[place])
        first = order[: len(kept)]
        chosen = [at for at in order if at in kept and (at != 0 or at in first)]  # the first one may be there as such
        best_s = float(scores.time_s[order[0]]) if order else time_s
        cut_s = float(scores.time_s[chosen[-1]]) if chosen else time_s
        part = bound_by(scores, np.array([place]))[0]
        is_kept, rule = place in kept, int(scores.resources.rule[place])
        rank = order.index(place) + 1 if place in order else None
        where = f"{problem.describe()} on {self.hardware.name}"
        needed = limit = None
        name = ""
        if rule:
            broken = rules(self.hardware, problem.dtype)[rule - 1]
            needed, limit, name = float(scores.resources.needed[place]), broken.limit, broken.id
            reason = f"{broken.id}: {broken.text}: {needed:.10g}" + (f", limit {limit:.10g}" if limit else "")
        else:
            reason = (
                f"predicted {time_s * 1e6:.4g} us, {time_s / best_s:.3g} times the best, place {rank} of {len(order)}, "
                f"bound by {part}"
            )
        if is_kept:
            text = f"kept for {where}{' (the first one listed always is)' if place == 0 else ''}: {reason}"
        else:
            slower = "" if rule else f"; {time_s / cut_s:.3g} times the slowest one kept by prediction"
            text = f"left out for {where}: {reason}{slower}"
        return Verdict(is_kept, rank, name, needed, limit, time_s, best_s, cut_s, time_s / cut_s, part, text)


def configs_for(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float16",
    hw: str | Path | GpuSpec = AUTO,
    keep: float = 8,
    names: Mapping[str, str] | None = None,
    make: Callable[..., Any] | None = None,
) -> list[Any]:
    """Return configurations for one product that nobody has listed, best first.

    Parameters
    ----------
    m, n, k : int
        Extents of the product.
    dtype : str
        As in `matmul_pruner`.
    hw, keep
        As in `matmul_pruner`; a share is one of all tile shapes that are legal.
    names : mapping of str to str, optional
        What the kernel calls "block_m", "block_n", "block_k", and, if it has them, "group_m" and "split_k"; by default
        as in Triton's tutorial (BLOCK_SIZE_M, ..., GROUP_SIZE_M, no split).
    make : callable, optional
        What makes a configuration of (meta-parameters, num_warps=, num_stages=); by default ``triton.Config``.

    Raises
    ------
    MissingDependencyError
        Triton is not installed, and there is no `make`.
    SpaceError
        An extent, `keep`, `dtype` or `names` is wrong.
    DeviceError, UnknownNameError, SpecError
        As `find_gpu`.
    """
    kept_count(keep, 1)
    names = dict(_NAMES if names is None else names)
    ArgumentNames(names)
    missing = [field for field in ("block_m", "block_n", "block_k") if field not in names]
    if missing:
        raise SpaceError(f"configs_for: names has no {missing[0]}, expected what the kernel calls it")
    if make is None:
        make = import_optional("triton", "triton", "configs_for").Config
    problem = MatmulProblem(m, n, k, dtype_name(dtype))
    found = propose(problem, find_gpu(hw), split_k="split_k" in names, group_m="group_m" in names)
    meta = [field for field in names if field in ("block_m", "block_n", "block_k", "group_m", "split_k")]
    return [
        make(
            {names[field]: proposal.tile[field] for field in meta},
            num_warps=proposal.tile["num_warps"],
            num_stages=proposal.tile["num_stages"],
        )
        for proposal in found[: kept_count(keep, len(found))]
    ]


def config_lines(request: PruneRequest) -> Iterator[str]:
    """Yield a Python list of configurations for ``triton.autotune``, best first; ``anatune prune --for triton``.

    Raises
    ------
    SpaceError
        The workload is no matrix product of one batch, or the device is no GPU.
    """
    workload, spec = request.workload, request.hardware
    if not isinstance(spec, GpuSpec):
        raise SpaceError(f"triton: {spec.name} is no GPU; name one of `anatune hw list`")
    gemm = implicit_gemm(workload)
    extents = gemm.extents
    if extents["batch"] > 1 or workload.operator != "matmul":
        raise SpaceError(f"triton: expected a matmul, got {workload.operator}; prune matmuls, or use --for json")
    problem = MatmulProblem(
        extents["m"], extents["n"], extents["k"], "tf32" if workload.dtype == "float32" else dtype_name(workload.dtype)
    )
    found = propose(problem, spec, split_k=False, group_m=True)
    kept = found[: min(request.most, kept_count(request.keep, len(found)))]
    yield f"# {problem.describe()} on {spec.model}: {len(kept)} of {len(found)} tile shapes, in predicted order"
    yield "configs = ["
    for tile, time_s, part in kept:
        meta = ", ".join(f'"{name}": {tile[field]}' for field, name in _NAMES.items())
        yield (
            f"    triton.Config({{{meta}}}, num_warps={tile['num_warps']}, num_stages={tile['num_stages']}),"
            f"  # {time_s * 1e6:.4g} us, bound by {part}"
        )
    yield "]"


def _is_same(one: Any, other: Any) -> bool:
    keys = ("kwargs", "num_warps", "num_stages")
    return all(getattr(one, key, None) == getattr(other, key, None) for key in keys)

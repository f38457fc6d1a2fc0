"""Configurations for Triton that nobody has listed: as objects, and as the text of ``anatune prune --for triton``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from anatune.adapters.device import AUTO, GpuLike, find_gpu
from anatune.adapters.formats import PruneRequest
from anatune.adapters.triton.arguments import ArgumentNames, dtype_name
from anatune.adapters.triton.tiles import propose
from anatune.core.workload.implicit_gemm import implicit_gemm
from anatune.errors import SpaceError
from anatune.model.foreign.triton_tiles import MatmulProblem
from anatune.model.pruning.subset import kept_count
from anatune.named import import_optional

__all__ = ["config_lines", "configs_for"]

_NAMES = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
}
"""Names of Triton's own matmul tutorial."""


def configs_for(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float16",
    hw: GpuLike = AUTO,
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
    workload, spec = request.workload, request.gpu("triton")
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

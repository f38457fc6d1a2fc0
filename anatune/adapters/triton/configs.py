"""Proposed configurations for Triton: as objects, and as the text of ``anatune prune --for triton``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from anatune.adapters.device import AUTO, GpuLike, find_gpu
from anatune.adapters.triton.arguments import ArgumentNames, DtypeLike, KernelNames
from anatune.adapters.triton.operands import descriptor_fault, dtype_name, operand_types
from anatune.adapters.triton.tiles import Proposal, propose
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.implicit_gemm import implicit_gemm
from anatune.errors import SpaceError
from anatune.listing.formats import PruneRequest
from anatune.model.pruning.subset import count_kept
from anatune.named import import_optional
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import OPTION_FIELDS, TILE_FIELDS

_NAMES = {"block_m": "BLOCK_SIZE_M", "block_n": "BLOCK_SIZE_N", "block_k": "BLOCK_SIZE_K", "group_m": "GROUP_SIZE_M"}
"""The names in Triton's own matmul tutorial."""
_METAS = (*(field for field in TILE_FIELDS if not field.startswith("num_")), *OPTION_FIELDS)


def configs_for(
    m: int,
    n: int,
    k: int,
    *,
    dtype: DtypeLike = "float16",
    hw: GpuLike = AUTO,
    keep: float = 8,
    names: KernelNames | None = None,
    make: Callable[..., Any] | None = None,
) -> list[Any]:
    """Propose configurations for one product, best predicted first.

    Parameters
    ----------
    m, n, k : int
        The extents of the product.
    dtype : str or pair of str
        The type of the operands, as in `matmul_pruner`.
    hw, keep
        The same as in `matmul_pruner`. A share is relative to all legal tile shapes.
    names : mapping, optional
        The kernel's names of "block_m", "block_n", "block_k", and, if it has them, of "group_m", "split_k",
        "descriptors" and "persistent". The last two are meta-parameters of True or False; give a bool instead of a name
        if the kernel always or never does so. The default is the names in Triton's tutorial (BLOCK_SIZE_M, ...,
        GROUP_SIZE_M, no split).
    make : callable, optional
        A function of (meta-parameters, num_warps=, num_stages=) that returns a configuration. The default is
        ``triton.Config``.

    Raises
    ------
    MissingDependencyError
        Triton is not installed, and `make` is not given.
    SpaceError
        An extent, `keep`, `dtype` or `names` is wrong, or the operands' rows do not allow tensor descriptors.
    DeviceError, UnknownNameError, SpecError
        The device cannot be found, as in `find_gpu`.
    """
    count_kept(keep, 1)
    names = dict(_NAMES if names is None else names)
    reading = ArgumentNames(names, dtype)
    missing = [field for field in ("block_m", "block_n", "block_k") if field not in names]
    if missing:
        raise SpaceError(f"configs_for: names has no {missing[0]}, expected the kernel's name of it")
    if make is None:
        make = import_optional("triton", "triton", "configs_for").Config
    left_dtype, right_bytes = operand_types(None, None, reading.dtypes or (dtype_name(dtype),))
    problem, spec = MatmulProblem(m, n, k, left_dtype, right_bytes=right_bytes), find_gpu(hw)
    proposals = propose(
        problem,
        spec,
        split_k="split_k" in names,
        group_m="group_m" in names,
        options=[_values(field, names, problem, spec) for field in OPTION_FIELDS],
    )
    return [
        make(_meta(names, proposal), num_warps=proposal.tile["num_warps"], num_stages=proposal.tile["num_stages"])
        for proposal in proposals[: count_kept(keep, len(proposals))]
    ]


def _meta(names: KernelNames, proposal: Proposal) -> dict[str, int]:
    """Return the meta-parameters of a proposal under the kernel's names."""
    tile = proposal.tile
    return {
        name: bool(tile[field]) if field in OPTION_FIELDS else tile[field]
        for field, name in names.items()
        if isinstance(name, str) and field in _METAS
    }


def _values(field: str, names: KernelNames, problem: MatmulProblem, spec: GpuSpec) -> tuple[int, ...]:
    """Return the values that an option of the kernel can have on this device."""
    given = names.get(field, False)
    if field != "descriptors" or given is False:
        return (int(given),) if isinstance(given, bool) else (0, 1)
    fault = descriptor_fault({}, problem)
    if given is True and fault:
        raise SpaceError(f"configs_for: {fault}")
    return (1,) if given is True else (0, 1) if has_descriptors(spec) and not fault else (0,)


def config_lines(request: PruneRequest) -> Iterator[str]:
    """Yield the lines of ``anatune prune --for triton``: a Python list for ``triton.autotune``, best first.

    Raises
    ------
    SpaceError
        The workload is not a single matrix product, or the device is not a GPU.
    """
    workload, spec = request.workload, request.gpu("triton")
    if workload.operator != "matmul":
        raise SpaceError(
            f"triton: the workload is {workload.operator}, expected matmul; use --for json, or a pruner of "
            "anatune.adapters.triton in the kernel's decorator"
        )
    extents = implicit_gemm(workload).extents
    problem = MatmulProblem(
        extents["m"], extents["n"], extents["k"], "tf32" if workload.dtype == "float32" else dtype_name(workload.dtype)
    )
    proposals = propose(problem, spec, split_k=False, group_m=True)
    kept = proposals[: min(request.most, count_kept(request.keep, len(proposals)))]
    yield f"# {problem.describe()} on {spec.model}: {len(kept)} of {len(proposals)} tile shapes, in predicted order"
    yield "configs = ["
    for tile, time_s, part in kept:
        meta = ", ".join(f'"{name}": {tile[field]}' for field, name in _NAMES.items())
        yield (
            f"    triton.Config({{{meta}}}, num_warps={tile['num_warps']}, num_stages={tile['num_stages']}),"
            f"  # {time_s * 1e6:.4g} us, bound by {part}"
        )
    yield "]"

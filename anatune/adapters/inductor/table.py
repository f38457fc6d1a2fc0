"""Inductor's lookup table of products: what the model takes, so that nothing is measured.

Source of keys and entries: torch/_inductor/lookup_table/choices.py of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable

from anatune.adapters.device import AUTO, GpuLike, find_gpu
from anatune.adapters.triton.operands import matmul_problem
from anatune.adapters.triton.tiles import propose
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.pruning.subset import kept_count

__all__ = ["lookup_table"]

_DTYPES = ("float32", "float16", "bfloat16")
_EPILOGUES = {(): "mm", ("bias",): "addmm"}
Entry = dict[str, str | int | bool]


def lookup_table(products: Iterable[Workload], hw: GpuLike = AUTO, keep: float = 1) -> dict[str, list[Entry]]:
    """Return a table for ``torch._inductor.config.lookup_table.table``; it can be written as JSON.

    Inductor looks it up when ``inductor_choices_class`` is its own ``LookupTableChoices``. With one entry for a product
    it generates that kernel and measures nothing; of several it measures these. `aten.addmm` asks cuBLAS apart, under a
    key of its own, so that stays in the race.

    Parameters
    ----------
    products : iterable of Workload
        Of `anatune.matmul`: float16, bfloat16 or float32 (as tf32), ``epilogue=("bias",)`` for an ``addmm`` with a row
        of bias; ``transpose_b=True`` is how ``torch.nn.Linear`` stores its weight. Extents are those that Inductor
        sees when it compiles.
    hw
        As in `matmul_pruner`.
    keep : int or float
        Entries of a product, or a share of the legal tiles.

    Raises
    ------
    SpaceError
        `keep` is wrong, or a workload is none of these.
    UnknownNameError, SpecError, DeviceError
        As `find_gpu`.
    """
    spec = find_gpu(hw)
    table: dict[str, list[Entry]] = {}
    for workload in products:
        key, problem = _key(workload), matmul_problem(workload)
        found = propose(problem, spec, split_k=False, group_m=True)
        table[key] = [
            {
                "template_id": "triton::mm",
                "BLOCK_M": tile["block_m"],
                "BLOCK_N": tile["block_n"],
                "BLOCK_K": tile["block_k"],
                "GROUP_M": tile["group_m"],
                "num_warps": tile["num_warps"],
                "num_stages": tile["num_stages"],
                "EVEN_K": problem.k % tile["block_k"] == 0,
            }
            for tile, _, _ in found[: kept_count(keep, len(found))]
        ]
    return table


def _key(workload: Workload) -> str:
    """Return the key of a product: dtype, shape and strides of each input, scalars, operator.

    Raises
    ------
    SpaceError
        It is no product that Inductor looks up.
    """
    if workload.operator != "matmul" or {workload.formats} - set(_DTYPES) or workload.epilogue not in _EPILOGUES:
        raise SpaceError(
            f"{workload.describe()}: Inductor looks up products by mm and addmm, expected a matmul of "
            f"{', '.join(_DTYPES)}, alone or with the step bias; leave it out"
        )
    m, n, k = (workload.extents[axis] for axis in "ijk")
    own, operator = workload.attribute, _EPILOGUES[workload.epilogue]
    inputs = [([m, k], [1, m] if own["transpose_a"] else [k, 1]), ([k, n], [1, k] if own["transpose_b"] else [n, 1])]
    scalars = ""
    if operator == "addmm":
        inputs.insert(0, ([m, n], [0, 1]))  # a row, spread over all rows
        scalars = "alpha=1&beta=1+"
    nodes = ", ".join(f"(torch.{workload.dtype}, {shape}, {strides})" for shape, strides in inputs)
    return f"({nodes})+{scalars}{operator}"

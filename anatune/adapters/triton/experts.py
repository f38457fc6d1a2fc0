"""The pruner for configurations of kernels that compute the matrix products of experts (mixture of experts).

Source of arguments and their usual names: fused_moe_kernel and fused_moe_kernel_gptq_awq of vLLM and SGLang.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import ClassVar

from anatune.adapters.device import AUTO, GpuLike
from anatune.adapters.triton.arguments import OPERANDS, SPELLINGS, ArgumentNames, DtypeLike, KernelNames
from anatune.adapters.triton.calls import CallReading, Problem
from anatune.adapters.triton.operands import Arguments, operand_types
from anatune.adapters.triton.pruner import MatmulPruner
from anatune.arguments import quote
from anatune.core.workload.operators.scaled import check_routing
from anatune.core.workload.routing import Routing, parse_routing
from anatune.errors import SpaceError, WorkloadError
from anatune.templates.triton.grouped.problem import GroupedProblem
from anatune.templates.triton.problem import DTYPES
from anatune.templates.triton.tiles import TILE_FIELDS

_COUNTS = {
    "rows": ("numvalidtokens",),
    "top_k": ("topk",),
    "experts": ("e", "experts", "numexperts"),
    "group_k": ("groupk",),
}


def moe_pruner(
    hw: GpuLike = AUTO,
    keep: float = 8,
    names: KernelNames | None = None,
    dtype: DtypeLike | None = None,
    routing: str = "uniform",
    ranks: int = 1,
) -> MoePruner:
    """Return a pruner for ``triton.autotune(prune_configs_by=...)`` and a kernel of all experts' matrix products.

    The kernel has the form of fused_moe_kernel in vLLM and SGLang: rows are sorted by expert and padded to whole blocks
    (`sorted_token_ids`, `expert_ids`, `num_tokens_post_padded`), weights are (experts, n, k), and one launch computes
    all products.

    Parameters
    ----------
    hw, keep
        The same as in `matmul_pruner`.
    names : mapping, optional
        The kernel's names of

        - "block_m", "block_n", "block_k", "group_m": meta-parameters; block sizes may also be arguments;
        - "n", "k", "rows" (rows of all experts without padding), "top_k" (experts for each token; 1 if each row of the
          left operand is read once), "experts", and "group_k" (the number of elements of k that share a float32 scale
          in both operands; 0 if scales are applied at the end): arguments, or functions of all arguments;
        - "a", "b", "c": tensors.

        Usual spellings are recognised for names that are not given (N, K, num_valid_tokens, top_k, group_k, a_ptr,
        ...). Sizes that are not among the arguments are read from the tensors.
    dtype : str or pair of str, optional
        The type of the operands, as in `matmul_pruner`. By default, weights with half as many elements as experts x n x
        k have 4 bits.
    routing : str
        The distribution of tokens over experts: "uniform", "balanced", or a power law with an exponent ("power:1.2").
    ranks : int
        The number of devices that share the experts evenly (expert parallelism). "experts" is the number on one device,
        and "rows" is the number of rows of all experts on all devices.

    Raises
    ------
    SpaceError
        `keep`, `names`, `dtype`, `routing` or `ranks` is wrong.
    UnknownNameError, SpecError
        The named device is unknown, as in `matmul_pruner`.

    Warns
    -----
    NotJudgedWarning
        A call or some of its configurations cannot be judged, as in `matmul_pruner`.
    """
    return MoePruner(hw, keep, names, dtype, routing, ranks)


class MoePruner(MatmulPruner):
    """The pruner for configurations of a kernel of all experts' products; `MatmulPruner` is that for one product."""

    name = "moe_pruner"

    def __init__(
        self,
        hw: GpuLike = AUTO,
        keep: float = 8,
        names: KernelNames | None = None,
        dtype: DtypeLike | None = None,
        routing: str = "uniform",
        ranks: int = 1,
    ) -> None:
        super().__init__(hw, keep)
        self._arguments: ExpertNames = ExpertNames(names, dtype, routing, ranks)

    def _read(self, arguments: Arguments) -> CallReading:
        return _ExpertReading(self._arguments.layer(arguments))


class _ExpertReading:
    """One call of a kernel of experts."""

    def __init__(self, problem: GroupedProblem) -> None:
        self.problem: Problem = problem

    def row(self, tile: list[int], kwargs: Arguments) -> list[int]:
        """Return a configuration's tile; raise SpaceError if it splits the reduction."""
        if (split := tile[TILE_FIELDS.index("split_k")]) > 1:
            raise SpaceError(f"split_k is {split}, which the model does not know for experts")
        return tile


class ExpertNames(ArgumentNames):
    """Finds tile sizes in configurations, and the products of experts in the arguments of a call.

    Parameters
    ----------
    names, dtype, routing, ranks
        The same as in `moe_pruner`.

    Raises
    ------
    SpaceError
        One of them is wrong.
    """

    # "group_size" belongs to the scales in vLLM's kernel for 4-bit weights
    spellings: ClassVar = {**SPELLINGS, **_COUNTS, "group_m": ("groupsizem", "groupm")}
    sizes: ClassVar = ("n", "k", *_COUNTS)

    def __init__(
        self, names: KernelNames | None = None, dtype: DtypeLike | None = None, routing: str = "uniform", ranks: int = 1
    ) -> None:
        super().__init__(names, dtype)
        try:
            if not isinstance(routing, str):
                raise WorkloadError("no word")
            check_routing("moe_pruner", routing, 0, 0)
        except WorkloadError:
            raise SpaceError(f"routing is {quote(routing)}, expected uniform, balanced or power:1.2") from None
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise SpaceError(f"ranks is {quote(ranks)}, expected an integer >= 1")
        self.routing, self.ranks = routing, ranks

    def layer(self, arguments: Arguments) -> GroupedProblem:
        """Return the products that a call computes.

        Raises
        ------
        SpaceError
            A number or the dtype is not among the arguments, or they contradict each other.
        """
        a, b, c = (self._operand(name, arguments) for name in OPERANDS)
        if any(operand is not None and operand.is_described for operand in (a, b, c)):
            raise SpaceError("operands are passed as tensor descriptors, which the model does not know for experts")
        weights, left, results = (operand.shape if operand is not None else () for operand in (b, a, c))
        if weights and len(weights) != 3:
            raise SpaceError(f"operand b has {len(weights)} dimensions, expected weights of the shape (experts, n, k)")
        experts, n, k = (
            self._count(size, arguments, of)
            for size, of in zip(("experts", "n", "k"), (weights[:1], weights[1:2], left[-1:]), strict=True)
        )
        each = self._count("top_k", arguments, (1,))
        rows = self._count("rows", arguments, tuple(extent * each for extent in left[:1]))
        is_gathered = each > 1
        if not is_gathered and len(results) == 3 and results[0] * results[1] == rows:
            each = results[1]  # the second product: one row for each expert of a token
        total = experts * self.ranks
        if rows % each or each > total:
            raise SpaceError(f"{rows} rows do not fit {each} of {total} experts for each token; check them")
        dtype, right_bytes = operand_types(a, b, self.dtypes)
        if b is not None and right_bytes == 1 and 2 * math.prod(weights) == experts * n * k:
            right_bytes = 0.5
        eight = DTYPES.get(dtype) == 1
        return GroupedProblem(
            rows // each, each, experts, n, k, _route_rows(self.routing, rows // each, total, each, self.ranks), dtype,
            right_bytes, self._count("group_k", arguments, (0,), least=0) if eight else 0, gathered=is_gathered,
            out_bytes=2 if c is None else c.element_bytes or 2,
        )  # fmt: skip

    def _count(self, field: str, arguments: Arguments, otherwise: tuple[int, ...], least: int = 1) -> int:
        """Return a number from the arguments of a call, or from the shapes of its tensors."""
        is_named = field in self.names or self._find_name(field, arguments) is not None
        if not is_named and otherwise:
            return otherwise[0]
        value = self._size(field, arguments)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpaceError(f"{field} is {quote(value)}, expected an integer >= {least}")
        return value


@functools.lru_cache(maxsize=64)
def _route_rows(routing: str, tokens: int, experts: int, top_k: int, ranks: int) -> Routing:
    """Return the rows of the experts of one rank: an even share of all rows."""
    routing_all = parse_routing(routing, tokens, experts, top_k)
    return replace(routing_all, experts=routing_all.experts / ranks)

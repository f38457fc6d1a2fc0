"""What a kernel of grouped products computes: rows sorted by expert, times each expert's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from anatune.core.workload.nest import Workload
from anatune.core.workload.routing import Routing
from anatune.core.workload.scaling import SCALED_FORMATS, SIDE, ScaledFormat
from anatune.templates.triton.problem import MatmulProblem

__all__ = ["GroupedProblem", "ScaledProblem", "most_blocks", "scaled_problem_of"]


@dataclass(frozen=True)
class GroupedProblem:
    """One launch over the rows of all experts, padded to whole blocks each.

    Attributes
    ----------
    tokens, top_k, experts : int
        Rows of the layer's input, experts that each takes, experts in memory.
    n, k : int
        Of an expert's weights, (n, k) in memory.
    routing
        Rows an expert.
    right_bytes : float
        Of a weight in memory where the kernel converts it to `dtype`; 0: as the left operand's.
    scaled : int
        Elements of k that share a scale (of blocks of 128 x 128: 128); 0: scales are applied once, at the end.
    gathered : bool
        Whether the experts' rows are read from the tokens, `top_k` times each; else each row is read once.
    out_bytes : int
        Of the result, for a column of the weights.
    """

    tokens: int
    top_k: int
    experts: int
    n: int
    k: int
    routing: Routing
    dtype: str = "bfloat16"
    right_bytes: float = 0
    scaled: int = 0
    gathered: bool = True
    out_bytes: int = 2

    @property
    def product(self) -> MatmulProblem:
        """The product of all rows with one expert's weights."""
        rows = max(1, round(self.routing.num_rows))
        return MatmulProblem(
            rows, self.n, self.k, self.dtype, out_bytes=self.out_bytes, b_along_n=False, right_bytes=self.right_bytes
        )

    def describe(self) -> str:
        """Return the sizes and the operand type in words."""
        scaled = f", a scale for {self.scaled} of k" if self.scaled else ""
        return f"{self.product.describe()}{scaled}, {self.top_k} of {self.experts} experts"


class ScaledProblem(NamedTuple):
    """A product of data (rows of the result, or tokens) with weights (columns, k), scaled or of several experts.

    Attributes
    ----------
    rows, columns, k : int
        Of the result (all experts' rows) and of the weights: with an activation twice the result's columns.
    format
        Operands in memory.
    scales : str
        One of `core.workload.scaling.SCALES` where operands of 8 bits are scaled apart from their format, else "".
    run : int
        Elements along k that share a scale; 0: all.
    experts : int
        0: none, a plain product with scales.
    """

    rows: int
    columns: int
    k: int
    format: ScaledFormat
    scales: str = ""
    run: int = 0
    zero_points: bool = False
    experts: int = 0
    tokens: int = 0
    top_k: int = 1
    expanded: bool = False
    activation: bool = False
    routing: str | tuple[int, ...] = "uniform"

    @property
    def result_columns(self) -> int:
        """Of the result."""
        return self.columns // (2 if self.activation else 1)


def scaled_problem_of(workload: Workload) -> ScaledProblem:
    """Return the problem of a workload whose body is "scaled_matmul" or "grouped_matmul"."""
    own: dict[str, Any] = workload.attribute
    found = SCALED_FORMATS[own["dtype"].partition(":")[0]]
    scales = own["scales"] if found.scale == "float32" else ""
    run = SIDE if scales == "blocks" else found.run or own["group"]
    grouped = {
        name: own[name] for name in ("experts", "tokens", "top_k", "expanded", "activation", "routing") if name in own
    }
    columns = own["n"] * (2 if own.get("activation") else 1)
    return ScaledProblem(workload.extents["i"], columns, own["k"], found, scales, run, own["zero_points"], **grouped)


def most_blocks(problem: ScaledProblem, block_m: int) -> int:
    """Return the blocks of rows that any routing needs at most."""
    active = min(problem.experts, problem.rows)
    return min(problem.rows, (problem.rows + active * (block_m - 1)) // block_m)

"""The problems of products with scales and of grouped products: rows sorted by expert, times each expert's weights."""

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
    """The product of the rows of all experts in one launch. The rows of each expert are padded to whole blocks.

    Attributes
    ----------
    tokens, top_k, experts : int
        Rows of the layer's input, experts per row, experts in memory.
    n, k : int
        Sizes of an expert's weights, (n, k) in memory.
    routing
        Number of rows of each expert.
    right_bytes : float
        Bytes of a weight in memory if the kernel converts it to `dtype`. 0: as many as the left operand's.
    scaled : int
        Elements of k that share a scale (128 for blocks of 128 x 128). 0: scales are applied once, at the end.
    gathered : bool
        Whether the experts' rows are read from the tokens, `top_k` times each. Otherwise each row is read once.
    out_bytes : int
        Bytes of the result per column of the weights.
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
    """A product of data (rows of the result, or tokens) with weights (columns, k), with scales or of several experts.

    Attributes
    ----------
    rows, columns, k : int
        Sizes of the result (of all experts) and of the weights. With an activation, columns are twice the result's.
    format
        Format of the operands in memory.
    scales : str
        One of `core.workload.scaling.SCALES` if 8-bit operands have scales that are not part of their format, else "".
    run : int
        Elements along k that share a scale. 0: all.
    experts : int
        Number of experts. 0: one weight.
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
        """Number of columns of the result."""
        return self.columns // (2 if self.activation else 1)


def scaled_problem_of(workload: Workload) -> ScaledProblem:
    """Return the problem of a workload whose body is "scaled_matmul" or "grouped_matmul"."""
    values: dict[str, Any] = workload.attribute
    formats = SCALED_FORMATS[values["dtype"].partition(":")[0]]
    scales = values["scales"] if formats.scale == "float32" else ""
    run = SIDE if scales == "blocks" else formats.run or values["group"]
    grouped = {
        name: values[name]
        for name in ("experts", "tokens", "top_k", "expanded", "activation", "routing")
        if name in values
    }
    columns = values["n"] * (2 if values.get("activation") else 1)
    return ScaledProblem(
        workload.extents["i"], columns, values["k"], formats, scales, run, values["zero_points"], **grouped
    )


def most_blocks(problem: ScaledProblem, block_m: int) -> int:
    """Return the most blocks of rows that any routing needs."""
    active = min(problem.experts, problem.rows)
    return min(problem.rows, (problem.rows + active * (block_m - 1)) // block_m)

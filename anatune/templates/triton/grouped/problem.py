"""What a kernel of grouped products computes: rows sorted by expert, times each expert's weights."""

from __future__ import annotations

from dataclasses import dataclass

from anatune.core.workload.routing import Routing
from anatune.templates.triton.problem import MatmulProblem

__all__ = ["GroupedProblem"]


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
    """

    tokens: int
    top_k: int
    experts: int
    n: int
    k: int
    routing: Routing
    dtype: str = "bfloat16"
    right_bytes: int = 0
    scaled: int = 0
    gathered: bool = True

    @property
    def product(self) -> MatmulProblem:
        """The product of all rows with one expert's weights."""
        rows = max(1, round(self.routing.num_rows))
        return MatmulProblem(
            rows, self.n, self.k, self.dtype, out_bytes=2, b_along_n=False, right_bytes=self.right_bytes
        )

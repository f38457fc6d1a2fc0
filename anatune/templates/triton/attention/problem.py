"""The problem that attention solves, as its model and its program take it.

Notation
--------
row : a query of one of the heads that share a head of keys. There are shared x seq_q rows: queries in order, with the
    heads of each query beside each other. The queries of a block of rows therefore see almost the same keys.
tile : block_m rows.
step : block_n keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.triton.tiles import Ints, TileBatch, no_option

__all__ = ["AttentionProblem", "AttentionTiles", "next_power_of_two", "problem_of"]


class AttentionProblem(NamedTuple):
    """Attention of batch x kv_heads groups of rows.

    Attributes
    ----------
    dtype : str
        Dtype of queries, keys and values.
    out_bytes : int
        Bytes of an element of the result.
    page_size : int
        Keys of a page. 0: keys lie in order.
    strides : tuple of (int, int, int)
        Elements between sequences (for paged K and V: pages), heads and tokens, of Q, K and V. It is set if the
        output's rows are tokens. (): heads lie one after the other.
    counted : {"", "held", "lengths"}
        The operand with the number of keys: those before the queries begin ("held"), or those of each sequence
        ("lengths"). "": the number is fixed.
    pool : int
        Pages in memory, if `strides` are given.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool = False
    window: int = 0
    dtype: str = "float16"
    out_bytes: int = 2
    page_size: int = 0
    strides: tuple[tuple[int, int, int], ...] = ()
    counted: str = ""
    pool: int = 0

    @property
    def places(self) -> tuple[tuple[int, int, int], ...]:
        """Strides of Q, K and V: `strides`, or those of heads that lie one after the other."""
        queries, keys = self.seq_q * self.head_dim, (self.page_size or self.seq_kv) * self.head_dim
        kv = (self.kv_heads * keys, keys, self.head_dim)
        return self.strides or ((self.heads * queries, queries, self.head_dim), kv, kv)

    @property
    def shared(self) -> int:
        """Number of heads of queries that share a head of keys."""
        return self.heads // self.kv_heads

    @property
    def groups(self) -> int:
        """Number of heads of keys of all sequences."""
        return self.batch * self.kv_heads

    @property
    def rows(self) -> int:
        """Number of rows of a group."""
        return self.shared * self.seq_q

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of queries, keys and values."""
        return DTYPE_BYTES[self.dtype]

    @property
    def depth(self) -> int:
        """Elements of a row as matrix units take it: the next power of two."""
        return next_power_of_two(self.head_dim)


def next_power_of_two(extent: int) -> int:
    """Return the least power of two that is at least `extent`."""
    return 1 << (extent - 1).bit_length()


def problem_of(workload: Workload) -> AttentionProblem:
    """Return the problem of a workload whose body is "attention"."""
    attributes = {name: value for name, value in workload.attributes if name != "dtype"}
    out_bytes = DTYPE_BYTES[workload.write.dtype]
    return AttentionProblem(**attributes, dtype=workload.dtype, out_bytes=out_bytes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class AttentionTiles(TileBatch):
    """A batch of tiles of attention. Descriptors (0 or 1) may be left out."""

    num_warps: Ints
    num_stages: Ints
    split_kv: Ints
    descriptors: Ints = field(default_factory=no_option)
    options: ClassVar[tuple[str, ...]] = ("descriptors",)

"""The description of an attention kernel: the layouts of its tensors, and the products of its blocks of queries."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.sizes import is_run_time
from anatune.core.workload.operators import matmul
from anatune.templates.cpu.program.layout import PITCH_ELEMENTS

__all__ = ["AttentionKernel", "QueryBlocks", "pitch", "tile_rows", "tile_schedule"]


@dataclass(frozen=True)
class QueryBlocks:
    """Blocks of queries that are computed in the same way.

    Attributes
    ----------
    first, count, rows : int
        The first query, the number of blocks, and the queries of a block. At run time blocks may have one query less.
    keys : int
        The number of keys that the queries may see, counted from the first.
    scores, values : Schedule
        Schedules of "matmul" in the template "cpu" without packing: (rows, keys, dim) and (rows, value_dim, keys). At
        run time those of the widest register tile (`tile_schedule`): (rows, columns, dim) and (rows, columns, 2).
    """

    first: int
    count: int
    rows: int
    keys: int
    scores: Schedule
    values: Schedule


@dataclass(frozen=True)
class AttentionKernel:
    """An attention and how it is computed; names are those of `anatune.network.graph.operators.ATTENTION`.

    All sizes except heads, dim and value_dim may be known only at run time (`core.sizes`).

    Attributes
    ----------
    shapes : tuple of tuple of int
        The shapes of the tensors of queries, keys and values.
    places : tuple of (offset, batch, head, row, group)
        The layout of heads in each of them; heads of a group share their rows.
    mask_rows, block : int
        The rows of the mask (0: no mask) and how they belong to row ``(b * heads + head) * queries + query``:
        `rows.mask_row`.
    blocks : tuple of Blocks
        All queries, in order; a single entry if the number of queries or keys is known only at run time.
    parts : int
        The number of threads that share a head.
    causal : int, optional
        The causal mask if the number of keys is known only at run time: query q sees at most ``q + 1 + causal`` keys.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    shapes: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, int, int, int, int], ...]
    scale: float
    mask_rows: int
    zero_rows: bool
    blocks: tuple[QueryBlocks, ...]
    parts: int = 1
    block: int = 0
    causal: int | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the number of queries or keys, or a stride of rows, is known only at run time."""
        return is_run_time((self.queries, self.keys, tuple(place[3] for place in self.places)))


def pitch(length: int, lanes: int) -> int:
    """Return the stride of rows of `length` in a buffer, in elements: whole vectors, and no power of 2."""
    if is_run_time(length):
        return (length + 2 * lanes - 1) // (2 * lanes) * (2 * lanes) + lanes
    padded = -(-length // lanes) * lanes
    return padded + lanes if padded % PITCH_ELEMENTS == 0 else padded


def tile_schedule(like: Schedule, rows: int, columns: int, depth: int, unroll: int) -> Schedule:
    """Return the schedule of a product that is one register tile, for the device and vectors of the product `like`."""
    kept = ("simd_axis", "simd_lanes", "packed", "packed_ahead", "parallel")
    return msgspec.structs.replace(
        like,
        workload=matmul(rows, columns, depth),
        tiles={"i": (1, 1, 1, 1, rows), "j": (1, 1, 1, 1, columns), "k": (1, 1, depth // unroll, unroll)},
        options={name: like.options[name] for name in kept},
    )


def tile_rows(schedule: Schedule, vectors: int) -> int:
    """Return the most rows of a register tile of some vectors: its sums, a row of vectors and one element fit."""
    assert isinstance(schedule.hardware, CpuSpec)
    return (schedule.hardware.compute.num_vector_registers - vectors - 1) // vectors

"""What an attention kernel is: where its tensors lie, and which products its blocks of queries are."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.sizes import at_run_time
from anatune.core.workload.operators import matmul
from anatune.templates.cpu.program.layout import PITCH_ELEMENTS

__all__ = ["AttentionKernel", "Blocks", "pitch", "tile_rows", "tile_schedule"]


@dataclass(frozen=True)
class Blocks:
    """Blocks of queries that are treated alike.

    Attributes
    ----------
    first, count, rows : int
        First query, blocks, queries of a block. At run time `rows` is the most; blocks differ by one at most.
    keys : int
        Keys that the queries may see: the first ones.
    scores, values : Schedule
        "matmul" of the template "cpu": (rows, keys, dim) and (rows, value_dim, keys), nothing packed. At run time of
        the widest register tile (`tile_schedule`): (rows, columns, dim) and (rows, columns, 2).
    """

    first: int
    count: int
    rows: int
    keys: int
    scores: Schedule
    values: Schedule


@dataclass(frozen=True)
class AttentionKernel:
    """An attention and how it is computed; names as of `anatune.network.graph.operators.ATTENTION`.

    Sizes may be known at run time (`core.sizes`), but heads, dim and value_dim.

    Attributes
    ----------
    shapes : tuple of tuple of int
        Of the tensors of queries, keys and values.
    places : tuple of (offset, batch, head, row, group)
        Where an element lies in each of them: heads of a group share one place.
    mask_rows, block : int
        Of the mask, 0: there is none; which is that of row ``(b * heads + head) * queries + query``: `rows.mask_row`.
    blocks : tuple of Blocks
        All queries, in order; one where queries or keys are known at run time.
    parts : int
        Threads that share a head.
    causal : int, optional
        What the mask hides of keys that are known at run time: query q sees ``q + 1 + causal`` at most.
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
    blocks: tuple[Blocks, ...]
    parts: int = 1
    block: int = 0
    causal: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether queries, keys, or how far apart they lie are known at run time."""
        return at_run_time((self.queries, self.keys, tuple(place[3] for place in self.places)))


def pitch(length: int, lanes: int) -> int:
    """Return the elements from one row of a buffer to the next for rows of `length`: whole vectors, no power of 2."""
    if at_run_time(length):
        return (length + 2 * lanes - 1) // (2 * lanes) * (2 * lanes) + lanes
    padded = -(-length // lanes) * lanes
    return padded + lanes if padded % PITCH_ELEMENTS == 0 else padded


def tile_schedule(like: Schedule, rows: int, columns: int, depth: int, unroll: int) -> Schedule:
    """Return the schedule of a product that is one register tile, for the device and vectors of another product's."""
    kept = ("simd_axis", "simd_lanes", "packed", "packed_ahead", "parallel")
    return msgspec.structs.replace(
        like,
        workload=matmul(rows, columns, depth),
        tiles={"i": (1, 1, 1, 1, rows), "j": (1, 1, 1, 1, columns), "k": (1, 1, depth // unroll, unroll)},
        options={name: like.options[name] for name in kept},
    )


def tile_rows(schedule: Schedule, vectors: int) -> int:
    """Return the most rows of a register tile so many vectors wide: its sums, a row of vectors, and one element."""
    assert isinstance(schedule.hardware, CpuSpec)
    return (schedule.hardware.compute.num_vector_registers - vectors - 1) // vectors

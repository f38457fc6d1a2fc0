"""The choice of a tile for a number of rows: the model predicts the times of all tiles of a server's tuner.

They are compared with a lower bound of the time of any tile: bytes over bandwidth, arithmetic over the peak, launches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.access import FLOAT8_DTYPES
from anatune.core.workload.routing import Routing, make_power_law_routing, make_uniform_routing
from anatune.errors import SpaceError
from anatune.servers.defaults import Tile
from anatune.servers.shapes import DTYPES, Experts, Product
from anatune.templates.triton.grouped.layer import ExpertLayer, score_layer
from anatune.templates.triton.grouped.scales import LATEST, Served
from anatune.templates.triton.grouped.times import score_scaled
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles, stage_preference


class TileBound(NamedTuple):
    """A lower bound in seconds of the time of any tile, and its largest part: "dram", "mma" or "launch"."""

    time_s: float
    bound_by: str


class _Kernel(NamedTuple):
    weight_bytes: float
    row_bytes: float
    """The bytes of the rows that it reads and of its results."""
    flop: float


def bound_of(layer: ExpertLayer | MatmulProblem, spec: GpuSpec) -> TileBound:
    """Return a lower bound of the time of the products of a layer of experts, or of one product.

    The weights of experts with at least one row are read from DRAM once. Rows and results are moved through DRAM as far
    as they do not fit L2. Scales of weights and padding rows do not count.
    """
    kernels = list(_list_kernels(layer))
    dtype = layer.dtype
    names = FLOAT8_DTYPES if dtype == "fp8" else (dtype,)
    rates = [rate for name in ("bfloat16", *names) if (rate := spec.tensor_flop_per_s(name))]
    peak = max(rates, default=spec.compute.fp32_peak_flop_per_s)
    spans = {"dram": 0.0, "mma": 0.0, "launch": len(kernels) * spec.launch.overhead_s}
    for kernel in kernels:
        moved = kernel.weight_bytes + max(0.0, kernel.row_bytes - spec.l2.size_bytes)
        dram_s, mma_s = moved / spec.dram.bandwidth_bytes_per_s, kernel.flop / peak
        spans["dram" if dram_s >= mma_s else "mma"] += max(dram_s, mma_s)
    return TileBound(sum(spans.values()), max(spans, key=spans.__getitem__))


def _list_kernels(work: ExpertLayer | MatmulProblem) -> Iterable[_Kernel]:
    if isinstance(work, MatmulProblem):
        moved = float(work.m * (work.k * work.element_bytes + work.n * work.result_bytes))
        yield _Kernel(work.n * work.k * work.right_element_bytes, moved, 2.0 * work.m * work.n * work.k)
        return
    count = work.routing.num_rows
    for layer in work.products():
        product = layer.product
        weights = work.routing.num_active * layer.n * layer.k * product.right_element_bytes
        read = min(float(work.tokens), count) if layer.gathered else count
        moved = read * layer.k * product.element_bytes + count * layer.n * product.result_bytes
        yield _Kernel(weights, moved, 2.0 * count * layer.n * layer.k)


Floats = NDArray[np.float64]

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""The numbers of rows in servers' files; a server uses the entry with the nearest number."""
_SIZES = ((16, 32, 64, 128, 256), (32, 64, 128, 256), (64, 128, 256))
_GROUPS = (1, 16, 32, 64)
_TIE_SHARE = 1e-3
_WIDE_ROWS = 64
"""The rows of a block from which on the matrix units read its left operand from shared memory."""


@dataclass(frozen=True)
class PredictedTile:
    """A tile and its predicted seconds, for both products of a layer of experts or for one product."""

    tile: Tile
    time_s: float


@dataclass(frozen=True)
class Race:
    """The predicted times of all tiles of a space for a number of rows.

    Attributes
    ----------
    tokens : int
        The number of rows.
    tiles : Tiles
        The tiles.
    time_s : (num_tiles,) float64
        The predicted seconds; inf if the device cannot run the tile.
    parts : (2, num_tiles) float64, or (1, num_tiles)
        The seconds of the up and the down product, or of the only product.
    bound : TileBound
        The lower bound of the time.
    """

    tokens: int
    tiles: Tiles
    time_s: Floats
    parts: Floats
    bound: TileBound

    def best(self, count: int = 1, part: int | None = None, block_m: int | None = None) -> list[PredictedTile]:
        """Return the best tiles, each of another shape.

        Among times that differ by less than 0.1 %, three stages come first, then four, then the smaller group.

        Parameters
        ----------
        part : int, optional
            The index of the only product that counts.
        block_m : int, optional
            The only allowed block_m.

        Raises
        ------
        SpaceError
            No tile is legal.
        """
        times = np.where(np.isfinite(self.time_s), self.time_s if part is None else self.parts[part], np.inf)
        if block_m is not None:
            times = np.where(self.tiles.block_m == block_m, times, np.inf)
        legal = int(np.isfinite(times).sum())
        if not legal:
            raise SpaceError(f"{self.tokens} rows: the device can run none of {len(times)} tiles; name another device")
        t = self.tiles
        with np.errstate(invalid="ignore"):
            steps = np.floor(np.log(times / times.min()) / np.log1p(_TIE_SHARE))
        order = np.lexsort((t.group_m, stage_preference(t.num_stages), steps))[:legal]
        shapes = np.stack([t.block_m, t.block_n, t.block_k, t.num_warps])[:, order]
        _, first = np.unique(shapes, axis=1, return_index=True)
        return [PredictedTile(_tile(t, place), float(times[place])) for place in order[np.sort(first)][:count]]

    def time_of(self, tile: Tile, down: Tile | None = None) -> float:
        """Return the seconds of a tile, or of a tile for each product; inf if the device cannot run it."""
        places = [self._index_of(one) for one in (tile, down or tile)]
        if not np.isfinite(self.time_s[places]).all():
            return math.inf
        return float(sum(part[place] for part, place in zip(self.parts, places, strict=False)))

    def _index_of(self, tile: Tile) -> int:
        return int(np.flatnonzero((_rows(self.tiles) == np.array(tile)).all(axis=1))[0])


def check_device(shape: Experts | Product, spec: GpuSpec) -> None:
    """Raise SpaceError for 8-bit floats if the device's spec has no matrix instruction for them."""
    has_float8 = any(spec.tensor_flop_per_s(name) for name in FLOAT8_DTYPES)
    if shape.dtype == "fp8_w8a8" and spec.tensor_cores is not None and not has_float8:
        raise SpaceError(
            f"{shape.dtype}: {spec.name} ({spec.arch}) has no matrix instruction for 8-bit floats, so servers use "
            "other kernels there, which read no file; choose another --dtype or device"
        )


def space_of(shape: Experts | Product, spec: GpuSpec, also: tuple[Tile, ...] = ()) -> Tiles:
    """Return the tiles that servers' tuners try, and those in `also`.

    If operands have scales for blocks, a step is one block deep. Weights with a scale for each group are read in whole
    blocks. For 4-bit weights, a CUDA kernel that may read the same file needs whole groups.
    """
    depths: tuple[int, ...] = _SIZES[2] if shape.block is None else (shape.block[1],)
    if isinstance(shape, Experts) and shape.group:
        both, whole = math.gcd(shape.hidden, shape.intermediate), shape.group if shape.dtype == "int4_w4a16" else 1
        depths = tuple(depth for depth in depths if both % depth == 0 and depth % whole == 0)
    amd = spec.vendor == "amd"
    warps, stages = ((1, 2, 4, 8), (2,)) if amd else ((4, 8), (2, 3, 4, 5))
    rows = [(*row, 1, group) for *row, group in itertools.product(*_SIZES[:2], depths, warps, stages, _GROUPS)]
    return Tiles.of(list(dict.fromkeys((*map(tuple, rows), *also))))


def race(
    shape: Experts | Product,
    tokens: int,
    spec: GpuSpec,
    tiles: Tiles,
    exponent: float | None = None,
    triton: tuple[int, int] = LATEST,
) -> Race:
    """Predict the times of all tiles.

    Parameters
    ----------
    exponent
        The exponent of a power law of the experts' popularity. None means random experts, as in servers' tuners.
    triton
        The version of Triton that compiles the server's kernels.

    Raises
    ------
    SpaceError, SpecError
        The device has no instruction for the operands, or its spec does not have the rate of that instruction.
    """
    dtype, right_bytes = DTYPES[shape.dtype]
    scaled = shape.block[1] if shape.block is not None else 0
    if isinstance(shape, Product):
        product = MatmulProblem(tokens, shape.n, shape.k, dtype, out_bytes=2, b_along_n=False)
        race_result = score_scaled(product, scaled, tiles, spec, kernel=Served(triton))
        times = np.where(race_result.resources.rule == 0, race_result.time_s, np.inf)
        return Race(tokens, tiles, times, times[None], bound_of(product, spec))
    layer = ExpertLayer(
        tokens, shape.hidden, shape.intermediate, shape.experts, shape.top_k,
        routing_of(shape, tokens, exponent), dtype, right_bytes, scaled,
    )  # fmt: skip
    scores = score_layer(layer, tiles, spec, served=triton)
    is_legal = scores.is_legal
    if shape.group:
        is_legal = is_legal & (group_bytes(tiles, spec, shape.dtype) <= spec.shared_memory.per_block_bytes)
    parts = np.stack([scores.up.time_s, scores.down.time_s])
    return Race(tokens, tiles, np.where(is_legal, parts.sum(axis=0), np.inf), parts, bound_of(layer, spec))


def routing_of(shape: Experts, tokens: int, exponent: float | None) -> Routing:
    """Return the routing of all ranks' tokens to the experts of one rank: an even share of all rows."""
    experts = shape.experts * shape.ranks
    routing_all = (
        make_uniform_routing(tokens, experts, shape.top_k) if exponent is None
        else make_power_law_routing(tokens, experts, shape.top_k, exponent)
    )  # fmt: skip
    return replace(routing_all, experts=routing_all.experts / shape.ranks)


def group_bytes(tiles: Tiles, spec: GpuSpec, dtype: str) -> NDArray[np.int64]:
    """Return the shared memory in bytes of servers' kernel for weights with a scale for each group, (num_tiles,).

    The 16-bit numbers of a step pass through it once. Weights of 8 bits are copied there in advance. Weights of 4 bits
    are not, because they are read byte by byte. Source: kernels of Triton 3.9 for sm_80, sm_90, sm_100, sm_120, gfx942.
    """
    capability, ahead = spec.compute_capability or 0.0, tiles.num_stages - 1
    is_wide = (tiles.block_m >= _WIDE_ROWS) & (9.0 <= capability < 12.0)
    scratch = 16 << 10 if spec.vendor == "amd" else 5 << 10 if 10.0 <= capability < 12.0 else 0
    stored = tiles.block_n * ahead if dtype == "int8_w8a16" else 0
    rows = tiles.block_m * (ahead + is_wide) + tiles.block_n
    shared_bytes: NDArray[np.int64] = tiles.block_k * (2 * rows + stored) + scratch
    return shared_bytes


def _rows(tiles: Tiles) -> NDArray[np.int64]:
    t = tiles
    return np.stack([t.block_m, t.block_n, t.block_k, t.num_warps, t.num_stages, t.split_k, t.group_m], axis=1)


def _tile(tiles: Tiles, index: int) -> Tile:
    m, n, k, warps, stages, split, group = (int(value) for value in _rows(tiles.take(np.array([index])))[0])
    return m, n, k, warps, stages, split, group

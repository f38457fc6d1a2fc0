"""Judges the entries of servers' files, whoever wrote them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from anatune.arguments import shown
from anatune.core.hardware.spec import GpuSpec
from anatune.decoding import from_json
from anatune.errors import SpaceError
from anatune.files import read_file
from anatune.servers.choose import check_device, race, space_of
from anatune.servers.defaults import FIELDS, Tile
from anatune.servers.names import check_version
from anatune.servers.shapes import MOST_ROWS, Experts, Product, check_shape, checked_size
from anatune.templates.triton.grouped.scales import LATEST


class Judged(msgspec.Struct, frozen=True):
    """An entry of a file: how far the model thinks it is from its best."""

    rows: int
    tile: Tile
    time_s: float | None
    """None: the device cannot run it."""
    best: Tile
    best_s: float


def check_file(
    path: Path, shape: Experts | Product, spec: GpuSpec, exponent: float | None = None, triton: str | None = None
) -> list[Judged]:
    """Return how far each entry of a file is from the model's best; `triton`: version in the server.

    Raises
    ------
    SpaceError
        It is no file of configurations, or has none; or the device has no instruction for the layer's operands.
    OSError
        It cannot be read.
    """
    check_shape(shape)
    check_device(shape, spec)
    tiles = read_tiles(path)
    space = space_of(shape, spec, tuple(running_tile(tile, shape) for tile in tiles.values()))
    compiled_by = LATEST if triton is None else check_version(triton)
    judged = []
    for rows, tile in sorted(tiles.items()):
        found = race(shape, rows, spec, space, exponent, compiled_by)
        best, mine = found.best()[0], found.time_of(running_tile(tile, shape)) if _is_legal(tile, shape) else math.inf
        judged.append(Judged(rows, tile, mine if mine < math.inf else None, best.tile, best.time_s))
    return judged


def read_tiles(path: Path) -> dict[int, Tile]:
    """Return rows -> tile, as a server's file has them.

    Raises
    ------
    SpaceError
        It is no file of configurations, or has none.
    OSError
        It cannot be read.
    """
    try:
        entries = from_json(read_file(path), dict[str, object])
    except msgspec.MsgspecError as error:
        raise SpaceError(f"{path} is no JSON object ({error}), expected rows -> a configuration") from None
    tiles = {
        checked_size(f"{path}: rows of an entry", rows, MOST_ROWS): _tile_of(path, rows, entry)
        for rows, entry in entries.items()
        if rows.isdecimal() and rows.strip("0")
    }
    if not tiles:
        raise SpaceError(f"{path} has no entries, expected numbers of rows -> a configuration")
    return tiles


def running_tile(tile: Tile, shape: Experts | Product) -> Tile:
    """Return the tile that runs: servers cut block_k of experts to the block of their scales, min(block shape)."""
    if isinstance(shape, Product) or shape.block is None:
        return tile
    return (*tile[:2], min(tile[2], *shape.block), *tile[3:])


def _is_legal(tile: Tile, shape: Experts | Product) -> bool:
    """Whether sizes and warps are powers of two, and a step of a block-scaled product has one scale."""
    is_deep = isinstance(shape, Product) and tile[2] > shape.block[1]
    return not is_deep and all(size & (size - 1) == 0 for size in tile[:4])


def _tile_of(path: Path, rows: str, entry: object) -> Tile:
    """Return the tile of an entry; what Triton would choose itself is Triton's default."""
    if not isinstance(entry, dict):
        raise SpaceError(f"{path}: {rows} is {shown(entry)}, expected a configuration such as BLOCK_SIZE_M: 64")
    values: list[int] = []
    for field, usual in zip(FIELDS, (None, None, None, 4, 3, 1, 1), strict=True):
        value = entry.get(field, usual)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 16:
            raise SpaceError(f"{path}: {field} of {rows} rows is {shown(value)}, expected an integer >= 1")
        values.append(value)
    m, n, k, warps, stages, split, group = values
    return m, n, k, warps, stages, split, group

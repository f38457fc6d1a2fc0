"""Comparing the entries of servers' files with the best predicted tiles."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from anatune.arguments import quote
from anatune.core.hardware.spec import GpuSpec
from anatune.decoding import from_json
from anatune.errors import SpaceError
from anatune.files import read_file
from anatune.servers.choose import check_device, race, space_of
from anatune.servers.defaults import FIELDS, Tile
from anatune.servers.names import check_version
from anatune.servers.shapes import MOST_ROWS, Experts, Product, check_shape, check_size
from anatune.templates.triton.grouped.scales import LATEST


class JudgedEntry(msgspec.Struct, frozen=True):
    """An entry of a file with its predicted time and the best tile."""

    rows: int
    tile: Tile
    time_s: float | None
    """The predicted seconds; None if the device cannot run the tile."""
    best: Tile
    best_s: float


def check_file(
    path: Path, shape: Experts | Product, spec: GpuSpec, exponent: float | None = None, triton: str | None = None
) -> list[JudgedEntry]:
    """Compare each entry of a file with the best predicted tile; `triton` is the server's version of Triton.

    Raises
    ------
    SpaceError
        The file is not a file of configurations or is empty, or the device has no instruction for the operands.
    OSError
        The file cannot be read.
    """
    check_shape(shape)
    check_device(shape, spec)
    tiles = read_tiles(path)
    space = space_of(shape, spec, tuple(running_tile(tile, shape) for tile in tiles.values()))
    compiled_by = LATEST if triton is None else check_version(triton)
    judged = []
    for rows, tile in sorted(tiles.items()):
        raced = race(shape, rows, spec, space, exponent, compiled_by)
        best, mine = (raced.best()[0], raced.time_of(running_tile(tile, shape)) if _is_legal(tile, shape) else math.inf)
        judged.append(JudgedEntry(rows, tile, mine if mine < math.inf else None, best.tile, best.time_s))
    return judged


def read_tiles(path: Path) -> dict[int, Tile]:
    """Return the tiles in a server's file by number of rows.

    Raises
    ------
    SpaceError
        The file is not a file of configurations, or is empty.
    OSError
        The file cannot be read.
    """
    try:
        entries = from_json(read_file(path), dict[str, object])
    except msgspec.MsgspecError as error:
        raise SpaceError(f"{path} is not a JSON object ({error}), expected a configuration by rows") from None
    tiles = {
        check_size(f"{path}: rows of an entry", rows, MOST_ROWS): _tile_of(path, rows, entry)
        for rows, entry in entries.items()
        if rows.isdecimal() and rows.strip("0")
    }
    if not tiles:
        raise SpaceError(f"{path} has no entries, expected a configuration by rows")
    return tiles


def running_tile(tile: Tile, shape: Experts | Product) -> Tile:
    """Return the tile that runs: for experts, servers limit block_k to min(block shape) of the scales."""
    if isinstance(shape, Product) or shape.block is None:
        return tile
    return (*tile[:2], min(tile[2], *shape.block), *tile[3:])


def _is_legal(tile: Tile, shape: Experts | Product) -> bool:
    """Return whether sizes and warps are powers of two, and a step of a block-scaled product has one scale."""
    is_deep = isinstance(shape, Product) and tile[2] > shape.block[1]
    return not is_deep and all(size & (size - 1) == 0 for size in tile[:4])


def _tile_of(path: Path, rows: str, entry: object) -> Tile:
    """Return the tile of an entry, with Triton's defaults for missing fields."""
    if not isinstance(entry, dict):
        raise SpaceError(f"{path}: the entry for {rows} rows is {quote(entry)}, expected for example BLOCK_SIZE_M: 64")
    values: list[int] = []
    for field, usual in zip(FIELDS, (None, None, None, 4, 3, 1, 1), strict=True):
        value = entry.get(field, usual)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 16:
            raise SpaceError(f"{path}: {field} of {rows} rows is {quote(value)}, expected an integer >= 1")
        values.append(value)
    m, n, k, warps, stages, split, group = values
    return m, n, k, warps, stages, split, group

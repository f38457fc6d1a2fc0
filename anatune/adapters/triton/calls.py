"""The reading of a Triton kernel's call: its product, and a tile for each configuration that can be judged."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.triton.arguments import ArgumentNames
from anatune.adapters.triton.asked import Config, LaunchGrid, unmodelled_option
from anatune.adapters.triton.operands import Arguments, descriptor_fault
from anatune.arguments import quote
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpaceError
from anatune.templates.triton.grouped.problem import GroupedProblem
from anatune.templates.triton.grouped.scales import LATEST, Served
from anatune.templates.triton.grouped.times import score_grouped
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import TileScores, score_tiles, tile_order

Problem: TypeAlias = MatmulProblem | GroupedProblem
"""The product, or the products of experts, that a kernel computes."""


def score_problem(problem: Problem, tiles: Tiles, spec: GpuSpec) -> tuple[TileScores, NDArray[np.int64]]:
    """Return the model's scores of tiles, and the indices of the legal tiles, best first."""
    if isinstance(problem, GroupedProblem):
        product, scores = (
            problem.product,
            score_grouped(problem, tiles, spec, kernel=Served(_imported_triton_version())),
        )
    else:
        product, scores = problem, score_tiles(problem, tiles, spec)
    return scores, tile_order(scores, product, tiles)


def _imported_triton_version() -> tuple[int, int]:
    """Return the version of the imported Triton, which compiles the kernel, or `LATEST` if none is imported."""
    version = re.match(r"(\d{1,4})\.(\d{1,4})", str(getattr(sys.modules.get("triton"), "__version__", "")))
    return (int(version[1]), int(version[2])) if version else LATEST


class CallReading(Protocol):
    """One call of a kernel: the product that it computes, and how it turns configurations into tiles."""

    problem: Problem

    def row(self, tile: list[int], kwargs: Arguments) -> list[int]:
        """Return a configuration's tile with its options, in the order of `TILE_FIELDS` and `OPTION_FIELDS`.

        Raises
        ------
        SpaceError
            The call does not fit the tile.
        """


class ProductReading:
    """One call of a kernel for matrix products: its product, its grid, and how operands are passed.

    Parameters
    ----------
    arguments
        The arguments of the kernel by name, and the grid.
    num_sms : int
        The number of SMs of the device.

    Raises
    ------
    SpaceError
        The product cannot be read, as in `ArgumentNames.product`.
    """

    def __init__(self, names: ArgumentNames, arguments: Arguments, num_sms: int) -> None:
        self.names, self.arguments = names, arguments
        product, operands = names.product(arguments)
        self.problem: Problem = product
        self.launch = LaunchGrid(product, arguments.get("grid"), num_sms, names.num_programs(arguments))
        self.is_described = any(operand is not None and operand.is_described for operand in operands.values())
        self.fault = descriptor_fault(operands, product)
        self._options: dict[str, tuple[int, int]] = {}

    def row(self, tile: list[int], kwargs: Arguments) -> list[int]:
        """Return a configuration's tile with its options, in the order of `TILE_FIELDS` and `OPTION_FIELDS`.

        Raises
        ------
        SpaceError
            The grid does not fit the tile, or the operands' rows do not allow tensor descriptors.
        """
        key = repr(kwargs)  # configurations that differ only in warps and stages have the same grid
        if key not in self._options:
            self._options[key] = self._options_of(tile, {**self.arguments, **kwargs})
        return [*tile, *self._options[key]]

    def _options_of(self, tile: list[int], meta: Arguments) -> tuple[int, int]:
        described = self.is_described or bool(self.names.option("descriptors", meta))
        if described and self.fault:
            raise SpaceError(self.fault)
        is_declared = bool(self.names.option("persistent", meta))
        return int(described), int(self.launch.is_persistent(tile, meta, is_declared=is_declared))


@dataclass(frozen=True)
class JudgedConfigs:
    """The product of a call, the tiles of its configurations by index, and the reasons why others have none."""

    problem: Problem
    rows: dict[int, list[int]]
    unjudged: Mapping[int, str] = field(default_factory=dict)


def read_tiles(
    names: ArgumentNames, configs: Sequence[Config], arguments: Arguments, read: Callable[[], CallReading]
) -> JudgedConfigs:
    """Return the product of a call and the tiles of its configurations; the call is read if at least one has a tile.

    Raises
    ------
    SpaceError
        No configuration can be judged.
    """
    block_sizes = names.find_block_sizes(arguments)
    tiles: dict[int, list[int]] = {}
    unjudged: dict[int, str] = {}
    for index, config in enumerate(configs):
        if not hasattr(config, "kwargs"):
            unjudged[index] = f"configuration is {quote(config)}, expected a triton.Config"
        elif option := unmodelled_option(vars(config)):
            unjudged[index] = f"the model does not know the option {option}"
        else:
            try:
                given = config.kwargs or {}
                missing = {name: value for name, value in block_sizes.items() if name not in given}
                tiles[index] = names.tile({**given, **missing}, config.num_warps, config.num_stages)
            except SpaceError as error:
                unjudged[index] = str(error)
    if not tiles:
        raise SpaceError(next(iter(unjudged.values())))
    reading = read()
    rows: dict[int, list[int]] = {}
    for index, tile in tiles.items():
        try:
            rows[index] = reading.row(tile, configs[index].kwargs or {})
        except SpaceError as error:
            unjudged[index] = str(error)
    if not rows:
        raise SpaceError(unjudged[next(iter(tiles))])
    return JudgedConfigs(reading.problem, rows, unjudged)

"""What a call of a Triton kernel says about its configurations: the product, and a tile for each that can be judged."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.triton.arguments import ArgumentNames
from anatune.adapters.triton.asked import Config, Launch, unmodelled_option
from anatune.adapters.triton.operands import Arguments, descriptor_fault
from anatune.arguments import shown
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpaceError
from anatune.templates.triton.grouped.problem import GroupedProblem
from anatune.templates.triton.grouped.scales import LATEST, Served
from anatune.templates.triton.grouped.times import score_grouped
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import TileScores, score_tiles, tile_order

Problem: TypeAlias = MatmulProblem | GroupedProblem
"""What a kernel computes."""


def scored(problem: Problem, tiles: Tiles, spec: GpuSpec) -> tuple[TileScores, NDArray[np.int64]]:
    """Return what the model says of tiles, and the places of the legal ones, best first."""
    if isinstance(problem, GroupedProblem):
        product, scores = problem.product, score_grouped(problem, tiles, spec, kernel=Served(_compiled_by()))
    else:
        product, scores = problem, score_tiles(problem, tiles, spec)
    return scores, tile_order(scores, product, tiles)


def _compiled_by() -> tuple[int, int]:
    """Return the version of Triton that is imported, which compiles the kernel; else the one that is known best."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", str(getattr(sys.modules.get("triton"), "__version__", "")))
    return (int(found[1]), int(found[2])) if found else LATEST


class Reading(Protocol):
    """One call: what it computes, and what it says about configurations."""

    problem: Problem

    def row(self, tile: list[int], kwargs: Arguments) -> list[int]:
        """Return a configuration's tile with its options, in the order of `TILE_FIELDS` and `OPTION_FIELDS`.

        Raises
        ------
        SpaceError
            The call does not fit the tile.
        """


class ProductReading:
    """One call of a kernel of matrix products: its product, its launch, and how operands are passed.

    Parameters
    ----------
    arguments
        Of the kernel by name, and the grid.
    num_sms : int
        Of the device.

    Raises
    ------
    SpaceError
        As `ArgumentNames.product`.
    """

    def __init__(self, names: ArgumentNames, arguments: Arguments, num_sms: int) -> None:
        self.names, self.arguments = names, arguments
        product, operands = names.product(arguments)
        self.problem: Problem = product
        self.launch = Launch(product, arguments.get("grid"), num_sms, names.num_programs(arguments))
        self.is_described = any(operand is not None and operand.is_described for operand in operands.values())
        self.fault = descriptor_fault(operands, product)
        self._options: dict[str, tuple[int, int]] = {}

    def row(self, tile: list[int], kwargs: Arguments) -> list[int]:
        """Return a configuration's tile with its options, in the order of `TILE_FIELDS` and `OPTION_FIELDS`.

        Raises
        ------
        SpaceError
            The grid does not fit the tile, or rows of operands cannot have tensor descriptors.
        """
        key = repr(kwargs)  # configurations that differ in warps and stages only have one grid
        if key not in self._options:
            self._options[key] = self._options_of(tile, {**self.arguments, **kwargs})
        return [*tile, *self._options[key]]

    def _options_of(self, tile: list[int], meta: Arguments) -> tuple[int, int]:
        described = self.is_described or bool(self.names.option("descriptors", meta))
        if described and self.fault:
            raise SpaceError(self.fault)
        said = bool(self.names.option("persistent", meta))
        return int(described), int(self.launch.is_persistent(tile, meta, said=said))


@dataclass(frozen=True)
class Judged:
    """The product of a call, the rows of its configurations by place, and of the others why they have none."""

    problem: Problem
    rows: dict[int, list[int]]
    unjudged: Mapping[int, str] = field(default_factory=dict)


def judged(
    names: ArgumentNames, configs: Sequence[Config], arguments: Arguments, read: Callable[[], Reading]
) -> Judged:
    """Return what a call says about configurations, once one of them has a tile.

    Raises
    ------
    SpaceError
        Of the call nothing can be judged.
    """
    fixed = names.fixed(arguments)
    tiles: dict[int, list[int]] = {}
    unjudged: dict[int, str] = {}
    for place, config in enumerate(configs):
        if not hasattr(config, "kwargs"):
            unjudged[place] = f"configuration is {shown(config)}, expected a triton.Config"
        elif option := unmodelled_option(vars(config)):
            unjudged[place] = f"{option} is not modelled"
        else:
            try:
                given = config.kwargs or {}
                more = {name: value for name, value in fixed.items() if name not in given}
                tiles[place] = names.tile({**given, **more}, config.num_warps, config.num_stages)
            except SpaceError as error:
                unjudged[place] = str(error)
    if not tiles:
        raise SpaceError(next(iter(unjudged.values())))
    reading = read()
    rows: dict[int, list[int]] = {}
    for place, tile in tiles.items():
        try:
            rows[place] = reading.row(tile, configs[place].kwargs or {})
        except SpaceError as error:
            unjudged[place] = str(error)
    if not rows:
        raise SpaceError(unjudged[next(iter(tiles))])
    return Judged(reading.problem, rows, unjudged)

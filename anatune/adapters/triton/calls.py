"""What a call of a Triton kernel says about its configurations: the product, and a tile for each that can be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anatune.adapters.triton.arguments import ArgumentNames
from anatune.adapters.triton.checks import Config, Launch, unmodelled_option
from anatune.adapters.triton.operands import Arguments, descriptor_fault
from anatune.arguments import shown
from anatune.errors import SpaceError
from anatune.templates.triton.problem import MatmulProblem

__all__ = ["Judged", "Reading", "judged"]


class Reading:
    """One call: its product, its launch, and how operands are passed.

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
        self.problem, operands = names.product(arguments)
        self.launch = Launch(self.problem, arguments.get("grid"), num_sms, names.num_programs(arguments))
        self.is_described = any(operand is not None and operand.is_described for operand in operands.values())
        self.fault = descriptor_fault(operands, self.problem)
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

    problem: MatmulProblem
    rows: dict[int, list[int]]
    unjudged: Mapping[int, str] = field(default_factory=dict)


def judged(names: ArgumentNames, configs: Sequence[Config], arguments: Arguments, num_sms: int) -> Judged:
    """Return what a call says about configurations.

    Raises
    ------
    SpaceError
        Of the call nothing can be judged.
    """
    tiles: dict[int, list[int]] = {}
    unjudged: dict[int, str] = {}
    for place, config in enumerate(configs):
        if not hasattr(config, "kwargs"):
            unjudged[place] = f"configuration is {shown(config)}, expected a triton.Config"
        elif option := unmodelled_option(vars(config)):
            unjudged[place] = f"{option} is not modelled"
        else:
            try:
                tiles[place] = names.tile(config.kwargs or {}, config.num_warps, config.num_stages)
            except SpaceError as error:
                unjudged[place] = str(error)
    if not tiles:
        raise SpaceError(next(iter(unjudged.values())))
    reading = Reading(names, arguments, num_sms)
    rows: dict[int, list[int]] = {}
    for place, tile in tiles.items():
        try:
            rows[place] = reading.row(tile, configs[place].kwargs or {})
        except SpaceError as error:
            unjudged[place] = str(error)
    if not rows:
        raise SpaceError(unjudged[next(iter(tiles))])
    return Judged(reading.problem, rows, unjudged)

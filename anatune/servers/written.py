"""What a file holds, and whether it should be written."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anatune.servers.defaults import Tile
from anatune.servers.shapes import Experts, Product
from anatune.servers.shipped import Shipped

__all__ = ["LEAST_GAIN", "Choice", "Written", "reason_against"]

LEAST_GAIN = 1.05
"""A file where no entry gains so much changes nothing that the model can tell: its differences below are not sure."""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tile for so many rows, and what is known of its time.

    Attributes
    ----------
    rows : int
    tile : Tile
    time_s : float
        Predicted; of both products of a layer of experts.
    default : Tile or None
        What the server takes without our file; None: an entry of its own file, which is not here.
    default_s : float or None
        Predicted of it; None: the device cannot run it, or it is not known.
    bound_s : float
        What no tile undercuts, and `bound_by` what that is (`floor.Floor`).
    measured_s, default_measured_s : float or None
        Seconds of our kernels with both tiles; None: not measured, or they failed.
    why : str
        Why kernels of this row have no measured time, in one line.
    """

    rows: int
    tile: Tile
    time_s: float
    default: Tile | None
    default_s: float | None
    bound_s: float
    bound_by: str
    measured_s: float | None = None
    default_measured_s: float | None = None
    why: str = ""

    @property
    def gain(self) -> float | None:
        """Time of the server's default over the tile's, measured where both are; None: the default does not run."""
        if self.measured_s is not None:
            return None if self.default_measured_s is None else self.default_measured_s / self.measured_s
        return None if self.default_s is None else self.default_s / self.time_s


class Written(msgspec.Struct, frozen=True):
    """A file that was written, or would be.

    Attributes
    ----------
    path : str
        Below the folder.
    shape : Experts or Product
    choices : list of Choice
    shipped : str
        Who ships a tuned file for this layer and device, as `Shipped.server` says; "": nobody, as far as is known.
    not_written : str
        Why the file is not written unless that is forced, in one line; "": it is written.
    """

    path: str
    shape: Experts | Product
    choices: list[Choice]
    shipped: str = ""
    not_written: str = ""


def reason_against(shipped: Shipped | None, choices: Sequence[Choice]) -> str:
    """Return why a file of these choices should not be written, in one line; "": nothing is against it."""
    gains = [one.gain for one in choices]
    is_measured = all(one.measured_s is not None for one in choices)
    if shipped is not None and not is_measured:
        return (
            f"{shipped.server} ships a file that was tuned on this device for a layer of this name, and predicted "
            "tiles would take its place; measure them beside it (--measure), or say --force"
        )
    if all(gain is not None and gain < LEAST_GAIN for gain in gains):
        return (
            f"no entry is {'measured' if is_measured else 'predicted'} to gain 5 % over what the server takes "
            "without it, so that the file would change nothing; --force writes it"
        )
    return ""

"""What a file holds, which tuned files servers ship themselves, and whether ours should be written.

A server that is installed here is asked; else there is a list of the names of its files.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path

import msgspec

from anatune.servers.defaults import Tile
from anatune.servers.judging import read_tiles
from anatune.servers.names import TITLES, Server, folder_version
from anatune.servers.shapes import Experts, Product

_LIST = Path(__file__).with_name("shipped.txt")


class Shipped(msgspec.Struct, frozen=True):
    """A tuned file that a server has for a layer and a device.

    Attributes
    ----------
    server : str
        Who ships it: "vLLM 0.33.0", "SGLang 0.5.23 (tuned with Triton 3.2.0)", "vLLM as installed here".
    tiles : mapping of int to Tile, optional
        Rows -> tile, as the file has them; None: only its name is on the list, the file is not here.
    """

    server: str
    tiles: Mapping[int, Tile] | None = None

    def nearest(self, rows: int) -> Tile | None:
        """Return the tile that the server takes for so many rows; None: the file is not here."""
        return self.tiles[min(self.tiles, key=lambda known: abs(known - rows))] if self.tiles else None


def find_shipped(server: Server, name: str, triton: str | None = None, against: Path | None = None) -> Shipped | None:
    """Return the tuned file of a server for what a file's name says; None: it ships none, as far as is known.

    Parameters
    ----------
    name
        Of the file, without folders.
    triton
        The server's version of Triton: SGLang looks in its folder first, then in those of others, late ones first.
    against
        The server's own file, where the caller says it.

    Raises
    ------
    SpaceError
        A file of the server is no file of configurations.
    OSError
        It cannot be read.
    """
    if against is not None:
        return Shipped("the server", read_tiles(against))
    package = util.find_spec(server)
    if package is not None and package.origin is not None:
        paths = {
            folder_version(path.parent.name) or "": path
            for path in Path(package.origin).parent.rglob(glob.escape(name))
        }
        return (
            Shipped(f"{TITLES[server]} as installed here", read_tiles(paths[_first(paths, triton)])) if paths else None
        )
    layer, _, rest = name.removesuffix(".json").partition(",device_name=")
    lines = [line.split("\t") for line in _LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    labels = {
        line[1]: line[0] for line in lines if line[0].lower().startswith(server) and line[2] == rest and layer in line
    }
    if not labels:
        return None
    version = _first(labels, triton)
    return Shipped(labels[version] + (f" (tuned with Triton {version})" if version else ""))


def _first(versions: Mapping[str, object], triton: str | None) -> str:
    """Return the version of Triton whose folder a server reads first."""
    return max(versions, key=lambda one: (one == triton, [int(part) for part in one.split(".") if part.isdecimal()]))


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

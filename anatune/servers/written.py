"""The content of a file, the tuned files that servers ship, and the decision whether a file should be written.

Shipped files are found in an installed server, otherwise in a list of their names.
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


class ShippedFile(msgspec.Struct, frozen=True):
    """A tuned file that a server ships for a layer and a device.

    Attributes
    ----------
    server : str
        The server: "vLLM 0.33.0", "SGLang 0.5.23 (tuned with Triton 3.2.0)", "vLLM as installed here".
    tiles : mapping of int to Tile, optional
        The tiles by number of rows; None if only the file's name is known.
    """

    server: str
    tiles: Mapping[int, Tile] | None = None

    def nearest(self, rows: int) -> Tile | None:
        """Return the tile that the server uses for a number of rows, or None if only the file's name is known."""
        return self.tiles[min(self.tiles, key=lambda known: abs(known - rows))] if self.tiles else None


def find_shipped(
    server: Server, name: str, triton: str | None = None, against: Path | None = None
) -> ShippedFile | None:
    """Return the tuned file that a server ships under a name, or None if there is none.

    Parameters
    ----------
    name
        The name of the file, without folders.
    triton
        The server's version of Triton. SGLang first looks in the folder of its version, then in those of other
        versions, latest first.
    against
        The server's own file, if the caller gives it.

    Raises
    ------
    SpaceError
        A file of the server is not a file of configurations.
    OSError
        The file cannot be read.
    """
    if against is not None:
        return ShippedFile("the server", read_tiles(against))
    package = util.find_spec(server)
    if package is not None and package.origin is not None:
        paths = {
            folder_version(path.parent.name) or "": path
            for path in Path(package.origin).parent.rglob(glob.escape(name))
        }
        return (
            ShippedFile(f"{TITLES[server]} as installed here", read_tiles(paths[_latest(paths, triton)]))
            if paths
            else None
        )
    layer, _, suffix = name.removesuffix(".json").partition(",device_name=")
    lines = [line.split("\t") for line in _LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    labels = {
        line[1]: line[0] for line in lines if line[0].lower().startswith(server) and line[2] == suffix and layer in line
    }
    if not labels:
        return None
    version = _latest(labels, triton)
    return ShippedFile(labels[version] + (f" (tuned with Triton {version})" if version else ""))


def _latest(versions: Mapping[str, object], triton: str | None) -> str:
    """Return the version of Triton whose folder the server reads first."""
    return max(versions, key=lambda one: (one == triton, [int(part) for part in one.split(".") if part.isdecimal()]))


LEAST_GAIN = 1.05
"""The least gain of an entry for which a file is written; smaller predicted differences are not significant."""


class RowChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tile for a number of rows, and its times.

    Attributes
    ----------
    rows : int
        The number of rows.
    tile : Tile
        The chosen tile.
    time_s : float
        The predicted seconds, of both products for a layer of experts.
    default : Tile or None
        The tile that the server uses without the file; None if it is in a file that is not known.
    default_s : float or None
        The predicted seconds of the default; None if the device cannot run it, or it is not known.
    bound_s : float
        The lower bound for any tile; `bound_by` is its largest part (`choose.TileBound`).
    measured_s, default_measured_s : float or None
        The measured seconds of anatune's kernels with both tiles; None if not measured, or if they failed.
    why : str
        The reason in one line why kernels of this row have no measured time.
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
        """The default's time over the tile's, measured if both are; None if the default's time is not known."""
        if self.measured_s is not None:
            return None if self.default_measured_s is None else self.default_measured_s / self.measured_s
        return None if self.default_s is None else self.default_s / self.time_s


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that belongs to a request; it may not be written.

    Attributes
    ----------
    path : str
        The path below the folder.
    shape : Experts or Product
        The layer.
    choices : list of RowChoice
        The entries.
    shipped : str
        The server that ships a tuned file for this layer and device (`Shipped.server`), "" if none is known.
    not_written : str
        The reason in one line why the file was not written, "" if it was.
    """

    path: str
    shape: Experts | Product
    choices: list[RowChoice]
    shipped: str = ""
    not_written: str = ""


def reason_against(shipped: ShippedFile | None, choices: Sequence[RowChoice]) -> str:
    """Return the reason in one line why a file with these choices should not be written, or an empty text."""
    gains = [one.gain for one in choices]
    is_measured = all(one.measured_s is not None for one in choices)
    if shipped is not None and not is_measured:
        return (
            f"{shipped.server} ships a file for this layer that was tuned on this device, which predicted tiles should "
            "not replace; compare them with --measure, or write the file with --force"
        )
    if all(gain is not None and gain < LEAST_GAIN for gain in gains):
        return (
            f"no entry has a {'measured' if is_measured else 'predicted'} gain of 5 % over the server's default; write "
            "the file anyway with --force"
        )
    return ""

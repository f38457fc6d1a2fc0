"""Which tuned files servers ship themselves: in the server that is installed here, else by a list of their names."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from importlib import util
from pathlib import Path

import msgspec

from anatune.servers.defaults import Tile
from anatune.servers.judging import read_tiles
from anatune.servers.names import TITLES, Server, folder_version

__all__ = ["Shipped", "find_shipped"]

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

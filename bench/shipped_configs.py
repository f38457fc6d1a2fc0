"""Write the list of tuned files that servers ship, ``anatune/servers/shipped.txt``.

    python -m bench.shipped_configs "vLLM 0.33.0=FOLDER" "SGLang 0.5.23=FOLDER"

FOLDER is a server's unpacked source archive or wheel. The list has names alone: which device, layer and version of
Triton a file is for, no tile.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HEAD = """\
# Names of the tuned files of tile configurations that servers ship (Apache License 2.0), one line for each kind:
# server and version, Triton of the folder (SGLang), device and options, layers; separated by tabs.
# A name is LAYER,device_name=DEVICE_AND_OPTIONS.json. Written by bench/shipped_configs.py from the packages on PyPI.
"""
LIST = Path(__file__).parents[1] / "anatune/servers/shipped.txt"


def shipped_names(label: str, folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield label, version of Triton ("" for any), device with options, and layer of each file below a folder."""
    for path in folder.rglob("*,device_name=*.json"):
        name = re.fullmatch(r"((?:E=\d+,N|N=\d+,K)=\d+),device_name=([^,].*)\.json", path.name)
        if name is not None:
            triton = path.parent.name.removeprefix("triton_").replace("_", ".")
            yield label, triton if path.parent.name.startswith("triton_") else "", name[2], name[1]


def main() -> None:
    """Write the list."""
    pairs = (argument.split("=", 1) for argument in sys.argv[1:])
    names = sorted({name for label, folder in pairs for name in shipped_names(label, Path(folder))})
    lines = (
        "\t".join((*kind, *(name[3] for name in of_kind)))
        for kind, of_kind in itertools.groupby(names, key=lambda name: name[:3])
    )
    LIST.write_text(HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()

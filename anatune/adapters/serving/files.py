"""Writes configuration files with a manifest beside them, and judges those of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from anatune.adapters.serving.choose import ROWS, race, space_of
from anatune.adapters.serving.defaults import Tile, default_tile, rivals
from anatune.adapters.serving.names import Server, device_name, file_name, version_folder
from anatune.adapters.serving.shapes import Experts, Product, check_shape
from anatune.arguments import shown
from anatune.core.hardware.spec import GpuSpec
from anatune.decoding import from_json
from anatune.errors import SpaceError
from anatune.files import make_folder, read_file, replace_file
from anatune.version import __version__

__all__ = ["MANIFEST", "Choice", "Judged", "Request", "Written", "check_file", "write_configs"]

MANIFEST = "anatune-configs.json"
_FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages", "SPLIT_K", "GROUP_SIZE_M")
"""As `tiles.TILE_FIELDS`."""
_AMD = {"waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 2}
"""What files for AMD's devices have besides; the model does not tell their values apart."""


class Choice(msgspec.Struct, frozen=True):
    """The tile for so many rows, its predicted seconds, and those of what the server takes without a file."""

    rows: int
    tile: Tile
    time_s: float
    default: Tile
    default_s: float | None
    """None: the device cannot run it."""


class Written(msgspec.Struct, frozen=True):
    """A file that was written."""

    path: str
    shape: Experts | Product
    choices: list[Choice]


@dataclass(frozen=True)
class Request:
    """What files are for.

    Attributes
    ----------
    server : "vllm" or "sglang"
    spec
        The device.
    shapes
        A file each.
    rows
        Numbers of rows that files have entries for.
    keep
        How many tiles a list of candidates beside each file has for each; 0: none is written.
    device : str, optional
        What the driver calls the device, where it is not known here.
    triton : str, optional
        Version of Triton that SGLang runs; it keys its folders.
    down
        Whether SGLang gets a file of its own for the down product.
    exponent
        Of a power law of the experts' popularity; None: tokens take experts at random.
    """

    server: Server
    spec: GpuSpec
    shapes: tuple[Experts | Product, ...]
    rows: tuple[int, ...] = ROWS
    keep: int = 0
    device: str | None = None
    triton: str | None = None
    down: bool = False
    exponent: float | None = None

    def notes(self) -> list[str]:
        """Return in sentences where files have to lie, what may not read them, and what the model does not know."""
        experts = any(isinstance(shape, Experts) for shape in self.shapes)
        found = []
        if self.server == "vllm" and experts:
            found.append("Files of experts are read from the folder that VLLM_TUNED_CONFIG_FOLDER names.")
        if self.server == "sglang" and experts:
            found.append(
                "SGLANG_MOE_CONFIG_DIR=FOLDER makes SGLang read these files and none of its own; it looks in the "
                f"folder of its version of Triton first, here {version_folder(self.triton or '')}."
            )
        if not experts:
            place = (
                "vllm/model_executor/layers/quantization/utils/configs"
                if self.server == "vllm" else "the folder configs beside sglang's fp8_kernel.py"
            )  # fmt: skip
            found.append(f"Block-scaled products are read from {place} inside the package only: copy the file there.")
        return found + list(
            dict.fromkeys(note for shape in self.shapes for note in rivals(self.server, shape, self.spec))
        )


class Judged(msgspec.Struct, frozen=True):
    """An entry of a file: how far the model thinks it is from its best."""

    rows: int
    tile: Tile
    time_s: float | None
    """None: the device cannot run it."""
    best: Tile
    best_s: float


def write_configs(
    request: Request, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Written]:
    """Write the files of a request into a folder, and a manifest; files that anatune did not write stay.

    Raises
    ------
    SpaceError
        A shape has no model, or a file is there that the manifest does not list.
    SpecError
        The device's spec does not say what its matrix units do.
    OSError
        A file or the folder cannot be written.
    """
    for shape in request.shapes:
        check_shape(shape)
    name = device_name(request.spec, request.device)
    below = version_folder(request.triton or "") if request.server == "sglang" and _has_experts(request) else ""
    make_folder(folder)
    known = _known(folder)
    if known is None:
        raise SpaceError(f"{folder / MANIFEST} is there, and anatune did not write it; name another folder")
    place = folder / below
    for part in [*reversed([p for p in place.parents if folder in p.parents]), place]:
        make_folder(part)
    parts: tuple[bool, ...] = (False, True) if request.down else (False,)
    targets = [place / file_name(request.server, shape, name, down=down) for shape in request.shapes for down in parts]
    for target in targets:
        if target.exists() and str(target.relative_to(folder)) not in known:
            raise SpaceError(f"{target} is there, and anatune did not write it; remove it or name another folder")
    written = []
    total = len(request.shapes) * len(request.rows)
    for number, shape in enumerate(request.shapes):
        done_before = number * len(request.rows)
        lists, choices = _chosen(request, shape, partial(_report, progress, done_before, total))
        for down in parts:
            target = place / file_name(request.server, shape, name, down=down)
            mine = choices[down]
            replace_file(target, _json({str(c.rows): _entry(c.tile, request.spec) for c in mine}))
            written.append(Written(str(target.relative_to(folder)), shape, mine))
            if request.keep and not down:
                entries = {rows: [_entry(tile, request.spec) for tile in tiles] for rows, tiles in lists.items()}
                replace_file(target.with_name(target.stem + ".candidates.json"), _json(entries))
    replace_file(folder / MANIFEST, _json(_manifest(request, known, written)))
    return written


def _report(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _chosen(
    request: Request, shape: Experts | Product, progress: Callable[[int], None]
) -> tuple[dict[str, list[Tile]], dict[bool, list[Choice]]]:
    """Return the candidates of each number of rows, and the choices: of the file, and of that of the down product."""
    defaults = tuple(default_tile(request.server, shape, rows, request.spec) for rows in request.rows)
    tiles = space_of(shape, request.spec, defaults)
    lists: dict[str, list[Tile]] = {}
    choices: dict[bool, list[Choice]] = {False: [], True: []}
    for number, (rows, default) in enumerate(zip(request.rows, defaults, strict=True), 1):
        found = race(shape, rows, request.spec, tiles, request.exponent)
        best = found.best(max(1, request.keep))
        lists[str(rows)] = [choice.tile for choice in best]
        first, default_s = best[0], found.time_of(default)
        usual = default_s if default_s < float("inf") else None
        if request.down and isinstance(shape, Experts):
            # both products share one sorting, whose blocks have block_m rows
            up, down = (found.best(part=part, block_m=first.tile[0])[0] for part in (0, 1))
            both = up.time_s + down.time_s
            choices[False].append(Choice(rows, up.tile, both, default, usual))
            choices[True].append(Choice(rows, down.tile, both, default, usual))
        else:
            choices[False].append(Choice(rows, first.tile, first.time_s, default, usual))
        progress(number)
    return lists, choices


def check_file(path: Path, shape: Experts | Product, spec: GpuSpec, exponent: float | None = None) -> list[Judged]:
    """Return how far each entry of a file is from the model's best.

    Raises
    ------
    SpaceError
        It is no file of configurations, or has none.
    OSError
        It cannot be read.
    """
    check_shape(shape)
    try:
        entries = from_json(read_file(path), dict[str, object])
    except msgspec.MsgspecError as error:
        raise SpaceError(f"{path} is no JSON object ({error}), expected rows -> a configuration") from None
    tiles = {
        int(rows): _tile_of(path, rows, entry) for rows, entry in entries.items() if rows.isdecimal() and int(rows)
    }
    if not tiles:
        raise SpaceError(f"{path} has no entries, expected numbers of rows -> a configuration")
    space = space_of(shape, spec, tuple(tiles.values()))
    judged = []
    for rows, tile in sorted(tiles.items()):
        found = race(shape, rows, spec, space, exponent)
        best, mine = found.best()[0], found.time_of(tile)
        judged.append(Judged(rows, tile, mine if mine < float("inf") else None, best.tile, best.time_s))
    return judged


def _tile_of(path: Path, rows: str, entry: object) -> Tile:
    """Return the tile of an entry; what Triton would choose itself is Triton's default."""
    if not isinstance(entry, dict):
        raise SpaceError(f"{path}: {rows} is {shown(entry)}, expected a configuration such as BLOCK_SIZE_M: 64")
    values: list[int] = []
    for field, usual in zip(_FIELDS, (None, None, None, 4, 3, 1, 1), strict=True):
        value = entry.get(field, usual)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 16:
            raise SpaceError(f"{path}: {field} of {rows} rows is {shown(value)}, expected an integer >= 1")
        values.append(value)
    m, n, k, warps, stages, split, group = values
    return m, n, k, warps, stages, split, group


def _entry(tile: Tile, spec: GpuSpec) -> dict[str, int]:
    named = dict(zip(_FIELDS, tile, strict=True))
    shown_fields = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
    return {field: named[field] for field in shown_fields} | (_AMD if spec.vendor == "amd" else {})


def _has_experts(request: Request) -> bool:
    return any(isinstance(shape, Experts) for shape in request.shapes)


def _known(folder: Path) -> dict[str, object] | None:
    """Return the files that the manifest of a folder lists, none without a manifest; None: it is somebody else's."""
    try:
        files = from_json(read_file(folder / MANIFEST), dict[str, object]).get("files")
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError):
        return None
    return files if isinstance(files, dict) else None


def _manifest(request: Request, known: dict[str, object], written: list[Written]) -> dict[str, object]:
    files = {
        file.path: {
            "server": request.server,
            "hardware": request.spec.name,
            "shape": file.shape,
            "routing": "random" if request.exponent is None else f"power law {request.exponent:g}",
            "predicted": file.choices,
        }
        for file in written
    }
    return {"format": "anatune configs", "anatune": __version__, "files": {**known, **files}}


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=4) + b"\n"

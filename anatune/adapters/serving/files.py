"""Writes configuration files with a manifest beside them, predicted or measured, and judges those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from anatune.adapters.serving.choose import ROWS, Race, race, space_of
from anatune.adapters.serving.defaults import Tile, default_tile, rivals
from anatune.adapters.serving.kernels import Measured, workloads_of
from anatune.adapters.serving.names import Server, check_version, device_name, file_name, version_folder
from anatune.adapters.serving.shapes import Experts, Product, check_shape
from anatune.arguments import shown
from anatune.core.hardware.spec import GpuSpec
from anatune.decoding import from_json
from anatune.errors import SpaceError
from anatune.files import make_folder, read_file, replace_file
from anatune.templates.triton.grouped.scales import LATEST
from anatune.version import __version__

if TYPE_CHECKING:
    from anatune.adapters.serving.measuring import Measuring

__all__ = ["MANIFEST", "Choice", "Judged", "Request", "Written", "check_file", "write_configs"]

MANIFEST = "anatune-configs.json"
_FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages", "SPLIT_K", "GROUP_SIZE_M")
"""As `tiles.TILE_FIELDS`."""
_AMD = {"waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 2}
"""What files for AMD's devices have besides; the model does not tell their values apart."""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tile for so many rows, and what is known of its time.

    Attributes
    ----------
    rows : int
    tile : Tile
    time_s : float
        Predicted; of both products of a layer of experts.
    default : Tile
        What the server takes without a file.
    default_s : float or None
        Predicted of it; None: the device cannot run it.
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
    default: Tile
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
    """A file that was written."""

    path: str
    shape: Experts | Product
    choices: list[Choice]


class _Ranked(NamedTuple):
    """What the model says of so many rows."""

    race: Race
    default: Tile
    best: list[Tile]
    up: Tile
    down: Tile
    """Of a file of its own; else as `up`."""

    @property
    def candidates(self) -> list[Tile]:
        """What deserves a run, the server's default among it."""
        runs = [self.default] if self.race.time_of(self.default) < float("inf") else []
        return list(dict.fromkeys([self.up, self.down, *self.best, *runs]))


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
        Version of Triton in the server, which compiles its kernels and keys SGLang's folders; by default a late one.
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
        if any(shape.dtype == "int4_w4a16" for shape in self.shapes):
            found.append(
                "No measurements of weights of 4 bits stand behind these times; that servers' kernels load each byte "
                "twice is left out."
            )
        if any(isinstance(shape, Experts) and shape.ranks > 1 for shape in self.shapes):
            found.append(
                "Rows are the tokens of all ranks that share the experts; those of this rank get an even share of them."
            )
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
    request: Request,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    measuring: Measuring | None = None,
    on_kernel: Callable[[int, int], None] = lambda done, total: None,
) -> list[Written]:
    """Write the files of a request into a folder, and a manifest; files that anatune did not write stay.

    With `measuring` the candidates of each row run, and the fastest is written; where none has a time, the model's
    first choice. Whatever ends this, files hold what was measured until then. `progress` hears of rows, `on_kernel` of
    kernels.

    Raises
    ------
    SpaceError
        A shape has no model, or a file is there that the manifest does not list.
    SpecError
        The device's spec does not say what its matrix units do.
    DeviceError, MissingDependencyError, RecordError, RunError
        With `measuring`: see there.
    OSError
        A file or the folder cannot be written.
    """
    for shape in request.shapes:
        check_shape(shape)
        if measuring is not None:
            workloads_of(shape, 1)
    if measuring is not None:
        measuring.check(request.spec)
    known, targets = _targets(request, folder, keeps=measuring is not None)
    total = len(request.shapes) * len(request.rows)
    ranked: list[list[_Ranked]] = []
    for number, shape in enumerate(request.shapes):
        ranked.append(_ranked(request, shape, partial(_report, progress, number * len(request.rows), total)))
    measured = [Measured(1 if isinstance(shape, Product) else 2) for shape in request.shapes]
    written = _write_all(request, folder, known, targets, ranked, measured)
    if measuring is None:
        return written
    from anatune.adapters.serving.measuring import RECORDS, measure

    how = replace(measuring, records=measuring.records or folder / RECORDS)
    total = sum(len(one.candidates) * len(one.race.parts) for of_shape in ranked for one in of_shape)
    done = 0
    try:
        for shape, of_shape, into in zip(request.shapes, ranked, measured, strict=True):
            wanted = {one.race.tokens: one.candidates for one in of_shape}
            report = partial(_report, on_kernel, done, total)
            measure(shape, request.exponent, wanted, request.spec, how, into, report)
            done += sum(len(one.candidates) * len(one.race.parts) for one in of_shape)
    finally:
        written = _write_all(request, folder, known, targets, ranked, measured)
    return written


def _targets(request: Request, folder: Path, *, keeps: bool) -> tuple[dict[str, object], list[dict[bool, Path]]]:
    """Return what a folder's manifest lists, and the files of each shape (True: of the down product); make folders.

    `keeps`: whether what was measured is known when they are written again.

    Raises
    ------
    SpaceError
        There is a file that anatune did not write, or one of measured tiles that would be lost.
    """
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
    targets = [
        {down: place / file_name(request.server, shape, name, down=down) for down in parts} for shape in request.shapes
    ]
    for target in (target for of_shape in targets for target in of_shape.values()):
        listed = known.get(str(target.relative_to(folder)))
        if target.exists() and listed is None:
            raise SpaceError(f"{target} is there, and anatune did not write it; remove it or name another folder")
        if target.exists() and not keeps and _has_measured(listed):
            raise SpaceError(f"{target} has measured tiles; say --measure, which keeps them, or name another folder")
    return known, targets


def _has_measured(listed: object) -> bool:
    """Whether a file that a manifest lists has entries that were measured."""
    entries = listed.get("entries") if isinstance(listed, dict) else None
    return isinstance(entries, list) and any(isinstance(one, dict) and "measured_s" in one for one in entries)


def _report(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _ranked(request: Request, shape: Experts | Product, progress: Callable[[int], None]) -> list[_Ranked]:
    """Return what the model says of each number of rows."""
    defaults = tuple(default_tile(request.server, shape, rows, request.spec) for rows in request.rows)
    tiles = space_of(shape, request.spec, defaults)
    ranked = []
    for number, (rows, default) in enumerate(zip(request.rows, defaults, strict=True), 1):
        found = race(shape, rows, request.spec, tiles, request.exponent, _compiled_by(request.triton))
        best = [choice.tile for choice in found.best(max(1, request.keep))]
        up = down = best[0]
        if request.down and isinstance(shape, Experts):
            # both products share one sorting, whose blocks have block_m rows
            up, down = (found.best(part=part, block_m=best[0][0])[0].tile for part in (0, 1))
        ranked.append(_Ranked(found, default, best, up, down))
        progress(number)
    return ranked


def _write_all(
    request: Request, folder: Path, known: dict[str, object], targets: Sequence[dict[bool, Path]],
    ranked: Sequence[Sequence[_Ranked]], measured: Sequence[Measured],
) -> list[Written]:  # fmt: skip
    """Write every file and the manifest by what is known."""
    written = []
    for shape, of_shape, files, into in zip(request.shapes, ranked, targets, measured, strict=True):
        choices = [_choices(one, request.down, into) for one in of_shape]
        for down, target in files.items():
            mine = [pair[down] for pair in choices]
            replace_file(target, _json({str(c.rows): _entry(c.tile, request.spec) for c in mine}))
            written.append(Written(str(target.relative_to(folder)), shape, mine))
        if request.keep:
            entries = {str(one.race.tokens): [_entry(tile, request.spec) for tile in one.best] for one in of_shape}
            replace_file(files[False].with_name(files[False].stem + ".candidates.json"), _json(entries))
    replace_file(folder / MANIFEST, _json(_manifest(request, known, written)))
    return written


def _choices(ranked: _Ranked, apart: bool, measured: Measured) -> tuple[Choice, Choice]:
    """Return the choice of a file, and that of the down product's: the fastest measured one, else the model's."""
    found, up, down = ranked.race, ranked.up, ranked.down
    rows = found.tokens
    times = {tile: parts for tile in ranked.candidates if (parts := measured.parts(rows, tile)) is not None}
    measured_s: float | None = None
    if times:
        pairs = [(one, other) for one in times for other in times if one == other or (apart and one[0] == other[0])]
        took = {(one, other): times[one][0] + sum(times[other][1:]) for one, other in pairs}
        up, down = min(took, key=took.__getitem__)
        measured_s = took[up, down]
    usual = found.time_of(ranked.default)
    own = times.get(ranked.default)
    made = [
        Choice(
            rows, tile, found.time_of(up, down), ranked.default, usual if usual < float("inf") else None,
            found.floor.time_s, found.floor.bound_by, measured_s, None if own is None else sum(own),
            measured.failed.get(rows, ""),
        )
        for tile in (up, down)
    ]  # fmt: skip
    return made[0], made[1]


def check_file(
    path: Path, shape: Experts | Product, spec: GpuSpec, exponent: float | None = None, triton: str | None = None
) -> list[Judged]:
    """Return how far each entry of a file is from the model's best; `triton`: version in the server.

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
        found = race(shape, rows, spec, space, exponent, _compiled_by(triton))
        best, mine = found.best()[0], found.time_of(tile)
        judged.append(Judged(rows, tile, mine if mine < float("inf") else None, best.tile, best.time_s))
    return judged


def _compiled_by(triton: str | None) -> tuple[int, int]:
    return LATEST if triton is None else check_version(triton)


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
            "entries": file.choices,
        }
        for file in written
    }
    return {"format": "anatune configs", "anatune": __version__, "files": {**known, **files}}


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=4) + b"\n"

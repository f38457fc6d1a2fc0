"""Writes configuration files with a manifest beside them, predicted or measured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from anatune.core.hardware.spec import GpuSpec
from anatune.decoding import converted, from_json
from anatune.errors import SpaceError
from anatune.files import make_folder, read_file, replace_file
from anatune.servers.choose import ROWS, Race, check_device, race, space_of
from anatune.servers.defaults import FIELDS, Tile, default_tile, rivals
from anatune.servers.judging import running_tile
from anatune.servers.kernels import Measured, workloads_of
from anatune.servers.names import Server, check_version, device_name, file_name, version_folder
from anatune.servers.shapes import Experts, Product, check_shape
from anatune.servers.written import Choice, Shipped, Written, find_shipped, reason_against
from anatune.templates.triton.grouped.scales import LATEST
from anatune.version import __version__

if TYPE_CHECKING:
    from anatune.servers.measuring import Measuring

__all__ = ["MANIFEST", "Choice", "Request", "Written", "write_configs"]

MANIFEST = "anatune-configs.json"
_AMD = {"waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 2}
"""What files for AMD's devices have besides; the model does not tell their values apart."""


class _Ranked(NamedTuple):
    """What the model says of so many rows."""

    race: Race
    default: Tile | None
    best: list[Tile]
    up: Tile
    down: Tile
    """Of a file of its own; else as `up`."""

    @property
    def candidates(self) -> list[Tile]:
        """What deserves a run, the server's default among it."""
        runs = [self.default] if self.default and self.race.time_of(self.default) < float("inf") else []
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
    against : Path, optional
        The server's own tuned file, to compare with; by default that of the server that is installed here.
    force
        Whether files are written that gain too little, or that take the place of the server's tuned ones.
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
    against: Path | None = None
    force: bool = False

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
        found += [
            f"n = {shape.n} ends in a part of a block: servers take it where weights are neither split nor merged."
            for shape in self.shapes
            if isinstance(shape, Product) and shape.n % shape.block[0]
        ]
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


def write_configs(
    request: Request,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    measuring: Measuring | None = None,
    on_kernel: Callable[[int, int], None] = lambda done, total: None,
) -> list[Written]:
    """Write the files of a request into a folder, and a manifest; files that anatune did not write stay.

    A file is written where it can gain something, or where that is forced: predicted tiles do not take the place of
    those that the server's makers measured on the device, and no entry has to gain less than 5 %.

    With `measuring` the candidates of each row run, and the fastest is written; where none has a time, the model's
    first choice. Whatever ends this, files hold what was measured until then, by earlier calls, too; rows of theirs
    that are not asked for stay. `progress` hears of rows, `on_kernel` of kernels.

    Raises
    ------
    SpaceError
        A shape has no model, the device has no instruction for its operands, or a file is there that would be lost.
    SpecError
        The device's spec does not say what its matrix units do.
    DeviceError, MissingDependencyError, RecordError, RunError
        With `measuring`: see there.
    OSError
        A file or the folder cannot be written.
    """
    for shape in request.shapes:
        check_shape(shape)
        check_device(shape, request.spec)
        if measuring is not None:
            workloads_of(shape, 1)
    if measuring is not None:
        measuring.check(request.spec)
    is_new = not folder.exists()
    known, targets = _targets(request, folder, keeps=measuring is not None)
    kept = [
        _kept(request, shape, folder, known, files) if measuring is not None else {}
        for shape, files in zip(request.shapes, targets, strict=True)
    ]
    total = len(request.shapes) * len(request.rows)
    ranked: list[list[_Ranked]] = []
    shipped = [find_shipped(request.server, of[False].name, request.triton, request.against) for of in targets]
    for number, (shape, tuned) in enumerate(zip(request.shapes, shipped, strict=True)):
        if measuring is not None and tuned is not None and not (tuned.tiles or request.force):
            raise SpaceError(
                f"{tuned.server} ships a tuned file for this layer and device, but it is not here to be measured "
                f"beside; give it: --against FILE ({targets[number][False].name} in the server's package), or say "
                "--force"
            )
        ranked.append(_ranked(request, shape, tuned, partial(_report, progress, number * len(request.rows), total)))
    measured = [Measured(1 if isinstance(shape, Product) else 2) for shape in request.shapes]
    write = partial(_write_all, request, folder, known, targets, kept, ranked, measured, shipped)
    if measuring is None:
        written = write()
        if is_new and all(file.not_written for file in written):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return written
    from anatune.servers.measuring import RECORDS, measure, recall

    how = replace(measuring, records=measuring.records or folder / RECORDS)
    wanted = [{one.race.tokens: one.candidates for one in of_shape} for of_shape in ranked]
    for shape, tiles, into in zip(request.shapes, wanted, measured, strict=True):
        recall(shape, request.exponent, tiles, request.spec, how, into)
    written = write()
    total = sum(into.kernels * sum(map(len, tiles.values())) for tiles, into in zip(wanted, measured, strict=True))
    done = 0
    try:
        for shape, tiles, into in zip(request.shapes, wanted, measured, strict=True):
            measure(shape, request.exponent, tiles, request.spec, how, into, partial(_report, on_kernel, done, total))
            done += into.kernels * sum(map(len, tiles.values()))
    finally:
        written = write()
    return written


def _targets(request: Request, folder: Path, *, keeps: bool) -> tuple[dict[str, object], list[dict[bool, Path]]]:
    """Return what a folder's manifest lists, and the files of each shape (True: of the down product).

    `keeps`: whether what was measured is known when they are written again.

    Raises
    ------
    SpaceError
        There is a file that anatune did not write, or, unless it `keeps`, one of measured tiles.
    """
    name = device_name(request.spec, request.device)
    below = version_folder(request.triton or "") if request.server == "sglang" and _has_experts(request) else ""
    make_folder(folder)
    known = _known(folder)
    if known is None:
        raise SpaceError(f"{folder / MANIFEST} is there, and anatune did not write it; name another folder")
    place = folder / below
    if keeps:  # what runs for long learns first where it cannot write
        _make_folders(folder, place)
    parts: tuple[bool, ...] = (False, True) if request.down else (False,)
    targets = [
        {down: place / file_name(request.server, shape, name, down=down) for down in parts} for shape in request.shapes
    ]
    for down, target in (pair for of_shape in targets for pair in of_shape.items()):
        listed = known.get(str(target.relative_to(folder)))
        files = [(target, listed is not None)]
        if request.keep and not down:
            files.append((_candidates(target), isinstance(listed, dict) and listed.get("candidates") is True))
        for file, is_ours in files:
            if file.exists() and not is_ours:
                raise SpaceError(f"{file} is there, and anatune did not write it; remove it or name another folder")
        if target.exists() and not keeps and _has_measured(listed):
            raise SpaceError(f"{target} has measured tiles; say --measure, which keeps them, or name another folder")
    return known, targets


def _kept(
    request: Request, shape: Experts | Product, folder: Path, known: dict[str, object], files: dict[bool, Path]
) -> dict[int, tuple[Choice, ...]]:
    """Return rows -> what the files of a shape have of them, as a manifest lists it; those that all of them have.

    Raises
    ------
    SpaceError
        Files have measured tiles that are another layer's, or that one of two files lacks.
    """
    origin = from_json(_json(_origin(request, shape)), dict[str, object])
    found: list[dict[int, Choice]] = []
    for target in files.values():
        listed = known.get(str(target.relative_to(folder))) if target.exists() else None
        try:
            is_same = isinstance(listed, dict) and listed | origin == listed
            entries = converted(listed["entries"], list[Choice]) if isinstance(listed, dict) and is_same else []
        except (KeyError, msgspec.ValidationError):
            entries = []
        if _has_measured(listed) and not entries:
            raise SpaceError(f"{target} has measured tiles of another layer or routing; name another folder")
        found.append({one.rows: one for one in entries})
    common = set.intersection(*map(set, found))
    if lost := {row for own in found for row, one in own.items() if one.measured_s} - common - {*request.rows}:
        raise SpaceError(f"{files[False]} has measured tiles for {min(lost)} rows, too; say them in --rows")
    return {rows: tuple(own[rows] for own in found) for rows in common}


def _has_measured(listed: object) -> bool:
    """Whether a file that a manifest lists has entries that were measured."""
    entries = listed.get("entries") if isinstance(listed, dict) else None
    return isinstance(entries, list) and any(isinstance(one, dict) and "measured_s" in one for one in entries)


def _report(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _ranked(
    request: Request, shape: Experts | Product, shipped: Shipped | None, progress: Callable[[int], None]
) -> list[_Ranked]:
    """Return what the model says of each number of rows."""
    defaults = tuple(
        default_tile(request.server, shape, rows, request.spec) if shipped is None
        else (tile := shipped.nearest(rows)) and running_tile(tile, shape)
        for rows in request.rows
    )  # fmt: skip
    tiles = space_of(shape, request.spec, tuple(filter(None, defaults)))
    compiled_by = LATEST if request.triton is None else check_version(request.triton)
    ranked = []
    for number, (rows, default) in enumerate(zip(request.rows, defaults, strict=True), 1):
        found = race(shape, rows, request.spec, tiles, request.exponent, compiled_by)
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
    kept: Sequence[dict[int, tuple[Choice, ...]]], ranked: Sequence[Sequence[_Ranked]], measured: Sequence[Measured],
    shipped: Sequence[Shipped | None],
) -> list[Written]:  # fmt: skip
    """Write every file and the manifest by what is known; what was measured before stays until it is undercut."""
    written = []
    for shape, of_shape, files, old, into, tuned in zip(
        request.shapes, ranked, targets, kept, measured, shipped, strict=True
    ):
        choices: dict[int, tuple[Choice, ...]] = {**old}
        for one in of_shape:
            new, before = _choices(one, request.down, into), old.get(one.race.tokens)
            if before is None or _measured_s(before) >= _measured_s(new):
                choices[one.race.tokens] = new
        why = "" if request.force else reason_against(tuned, [up for up, _ in choices.values()])
        for down, target in files.items():
            mine = [pair[down] for _, pair in sorted(choices.items())]
            if not why:
                _make_folders(folder, target.parent)
                replace_file(target, _json({str(c.rows): _entry(c.tile, request.spec) for c in mine}))
            written.append(
                Written(str(target.relative_to(folder)), shape, mine, tuned.server if tuned is not None else "", why)
            )
        if request.keep and not why:
            entries = {str(one.race.tokens): [_entry(tile, request.spec) for tile in one.best] for one in of_shape}
            replace_file(_candidates(files[False]), _json(entries))
    if any(not file.not_written for file in written):
        replace_file(folder / MANIFEST, _json(_manifest(request, known, written)))
    return written


def _make_folders(folder: Path, below: Path) -> None:
    for part in [*reversed([p for p in below.parents if folder in (p, *p.parents)]), below]:
        make_folder(part)


def _measured_s(choices: tuple[Choice, ...]) -> float:
    measured_s = choices[0].measured_s
    return math.inf if measured_s is None else measured_s


def _candidates(target: Path) -> Path:
    return target.with_name(target.stem + ".candidates.json")


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
    usual = found.time_of(ranked.default) if ranked.default else math.inf
    own = times.get(ranked.default) if ranked.default else None
    made = [
        Choice(
            rows, tile, found.time_of(up, down), ranked.default, usual if usual < math.inf else None,
            found.floor.time_s, found.floor.bound_by, measured_s, None if own is None else sum(own),
            measured.failed.get(rows, ""),
        )
        for tile in (up, down)
    ]  # fmt: skip
    return made[0], made[1]


def _entry(tile: Tile, spec: GpuSpec) -> dict[str, int]:
    named = dict(zip(FIELDS, tile, strict=True))
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


def _origin(request: Request, shape: Experts | Product) -> dict[str, object]:
    """Return what the entries of a file are for, as the manifest has it."""
    return {
        "server": request.server,
        "hardware": request.spec.name,
        "shape": shape,
        "routing": "random" if request.exponent is None else f"power law {request.exponent:g}",
    }


def _manifest(request: Request, known: dict[str, object], written: list[Written]) -> dict[str, object]:
    files: dict[str, object] = {}
    for file in (file for file in written if not file.not_written):
        before = known.get(file.path)
        listed = request.keep > 0 or (isinstance(before, dict) and before.get("candidates") is True)
        files[file.path] = {**_origin(request, file.shape), "candidates": listed, "entries": file.choices}
    return {"format": "anatune configs", "anatune": __version__, "files": {**known, **files}}


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=4) + b"\n"

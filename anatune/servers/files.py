"""Writing predicted or measured configuration files, with a manifest."""

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
from anatune.decoding import convert, from_json
from anatune.errors import SpaceError
from anatune.files import make_folder, read_file, replace_file
from anatune.servers.choose import ROWS, Race, check_device, race, space_of
from anatune.servers.defaults import FIELDS, Tile, default_tile, rivals
from anatune.servers.judging import running_tile
from anatune.servers.kernels import MeasuredTiles, workloads_of
from anatune.servers.names import Server, check_version, device_name, file_name, version_folder
from anatune.servers.shapes import Experts, Product, check_shape
from anatune.servers.written import RowChoice, ShippedFile, WrittenFile, find_shipped, reason_against
from anatune.templates.triton.grouped.scales import LATEST
from anatune.version import __version__

if TYPE_CHECKING:
    from anatune.servers.measuring import MeasureOptions

__all__ = ["MANIFEST", "ConfigRequest", "RowChoice", "WrittenFile", "write_configs"]

MANIFEST = "anatune-configs.json"
_AMD_FIELDS = {"waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 2}
"""The additional fields in files for AMD's devices; predicted times do not depend on their values."""


class _RankedTiles(NamedTuple):
    """The model's ranking of tiles for a number of rows."""

    race: Race
    default: Tile | None
    best: list[Tile]
    up: Tile
    down: Tile
    """The tile of a separate file for the down product; otherwise the same as `up`."""

    @property
    def candidates(self) -> list[Tile]:
        """The tiles to measure, with the server's default among them."""
        runs = [self.default] if self.default and self.race.time_of(self.default) < float("inf") else []
        return list(dict.fromkeys([self.up, self.down, *self.best, *runs]))


@dataclass(frozen=True)
class ConfigRequest:
    """A request for configuration files.

    Attributes
    ----------
    server : "vllm" or "sglang"
        The server.
    spec
        The device.
    shapes
        The layers, one file each.
    rows
        The numbers of rows for which files have entries.
    keep
        The number of tiles for each entry in a list of candidates beside each file; 0 writes no list.
    device : str, optional
        The driver's name of the device, if anatune does not know it.
    triton : str, optional
        The server's version of Triton, which compiles its kernels and is part of SGLang's folders; by default a late
        one.
    down
        Whether SGLang gets a separate file for the down product.
    exponent
        The exponent of a power law of the experts' popularity; None means random experts.
    against : Path, optional
        The server's own tuned file to compare with; by default that of an installed server.
    force
        Whether to write files that gain too little, or that replace the server's tuned ones.
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
        """Return sentences about the files' folders, kernels that do not read them, and limits of the model."""
        experts = any(isinstance(shape, Experts) for shape in self.shapes)
        sentences = []
        if self.server == "vllm" and experts:
            sentences.append("vLLM reads files for experts from the folder in VLLM_TUNED_CONFIG_FOLDER.")
        if self.server == "sglang" and experts:
            sentences.append(
                "SGLANG_MOE_CONFIG_DIR=FOLDER makes SGLang read these files instead of its own. It first looks in the "
                f"folder of its version of Triton, here {version_folder(self.triton or '')}."
            )
        if not experts:
            folder = (
                "vllm/model_executor/layers/quantization/utils/configs"
                if self.server == "vllm" else "the folder configs next to sglang's fp8_kernel.py"
            )  # fmt: skip
            sentences.append(f"Block-scaled products are only read from {folder} of the package: copy the file there.")
        sentences += [
            f"n = {shape.n} is not a multiple of the block; servers accept it if weights are not split or merged."
            for shape in self.shapes
            if isinstance(shape, Product) and shape.n % shape.block[0]
        ]
        if any(shape.dtype == "int4_w4a16" for shape in self.shapes):
            sentences.append(
                "These times were not compared with measurements for weights of 4 bits, and ignore that servers' "
                "kernels load each byte twice."
            )
        if any(isinstance(shape, Experts) and shape.ranks > 1 for shape in self.shapes):
            sentences.append("Rows are the tokens of all ranks that share the experts; this rank gets an even share.")
        return sentences + list(
            dict.fromkeys(note for shape in self.shapes for note in rivals(self.server, shape, self.spec))
        )


def write_configs(
    request: ConfigRequest,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    measuring: MeasureOptions | None = None,
    on_kernel: Callable[[int, int], None] = lambda done, total: None,
) -> list[WrittenFile]:
    """Write the files of a request and a manifest into a folder; never replace files that anatune did not write.

    A file is only written if some entry gains at least 5 %, and if predicted tiles would not replace those that the
    server's developers measured on the device. `request.force` overrides both.

    With `measuring`, the candidates of each row are measured and the fastest one is written. If no candidate has a
    time, the best predicted tile is written. If this is interrupted, the files have all measurements until then, also
    those of earlier calls, and rows of earlier calls that are not in the request stay. `progress` is called for rows,
    `on_kernel` for kernels.

    Raises
    ------
    SpaceError
        A layer has no model, the device has no instruction for its operands, or an existing file would be lost.
    SpecError
        The device's spec does not have the rates of its matrix units.
    DeviceError, MissingDependencyError, RecordError, RunError
        The errors of measuring.
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
    manifest, targets = _plan_files(request, folder, keeps=measuring is not None)
    kept = [
        _read_kept_entries(request, shape, folder, manifest, files) if measuring is not None else {}
        for shape, files in zip(request.shapes, targets, strict=True)
    ]
    total = len(request.shapes) * len(request.rows)
    ranked: list[list[_RankedTiles]] = []
    shipped = [find_shipped(request.server, of[False].name, request.triton, request.against) for of in targets]
    for number, (shape, tuned) in enumerate(zip(request.shapes, shipped, strict=True)):
        if measuring is not None and tuned is not None and not (tuned.tiles or request.force):
            raise SpaceError(
                f"{tuned.server} ships a tuned file for this layer and device, but the server is not installed here to "
                f"compare them; give the file with --against FILE ({targets[number][False].name} in the server's "
                "package), or ignore it with --force"
            )
        ranked.append(_rank_tiles(request, shape, tuned, partial(_report, progress, number * len(request.rows), total)))
    measured = [MeasuredTiles(1 if isinstance(shape, Product) else 2) for shape in request.shapes]
    write = partial(_write_all, request, folder, manifest, targets, kept, ranked, measured, shipped)
    if measuring is None:
        written = write()
        if is_new and all(file.not_written for file in written):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return written
    from anatune.servers.measuring import RECORDS, measure, recall

    options = replace(measuring, records=measuring.records or folder / RECORDS)
    wanted = [{one.race.tokens: one.candidates for one in of_shape} for of_shape in ranked]
    for shape, tiles, into in zip(request.shapes, wanted, measured, strict=True):
        recall(shape, request.exponent, tiles, request.spec, options, into)
    written = write()
    total = sum(into.kernels * sum(map(len, tiles.values())) for tiles, into in zip(wanted, measured, strict=True))
    done = 0
    try:
        for shape, tiles, into in zip(request.shapes, wanted, measured, strict=True):
            measure(
                shape, request.exponent, tiles, request.spec, options, into, partial(_report, on_kernel, done, total)
            )
            done += into.kernels * sum(map(len, tiles.values()))
    finally:
        written = write()
    return written


def _plan_files(
    request: ConfigRequest, folder: Path, *, keeps: bool
) -> tuple[dict[str, object], list[dict[bool, Path]]]:
    """Return the files in a folder's manifest, and the files of each shape (True: for the down product).

    `keeps` says whether measurements in existing files are kept when they are written again.

    Raises
    ------
    SpaceError
        There is a file that anatune did not write, or a file with measured tiles that would not be kept.
    """
    name = device_name(request.spec, request.device)
    below = version_folder(request.triton or "") if request.server == "sglang" and _has_experts(request) else ""
    make_folder(folder)
    manifest = _read_manifest(folder)
    if manifest is None:
        raise SpaceError(f"{folder / MANIFEST} exists, but anatune did not write it; name another folder")
    subfolder = folder / below
    if keeps:  # find out before a long measurement whether folders can be written
        _make_folders(folder, subfolder)
    parts: tuple[bool, ...] = (False, True) if request.down else (False,)
    targets = [
        {down: subfolder / file_name(request.server, shape, name, down=down) for down in parts}
        for shape in request.shapes
    ]
    for down, target in (pair for of_shape in targets for pair in of_shape.items()):
        listed = manifest.get(str(target.relative_to(folder)))
        files = [(target, listed is not None)]
        if request.keep and not down:
            files.append((_candidates_path(target), isinstance(listed, dict) and listed.get("candidates") is True))
        for file, is_ours in files:
            if file.exists() and not is_ours:
                raise SpaceError(f"{file} exists, but anatune did not write it; remove it or name another folder")
        if target.exists() and not keeps and _has_measured(listed):
            raise SpaceError(f"{target} has measured tiles; add --measure, which keeps them, or name another folder")
    return manifest, targets


def _read_kept_entries(
    request: ConfigRequest, shape: Experts | Product, folder: Path, manifest: dict[str, object], files: dict[bool, Path]
) -> dict[int, tuple[RowChoice, ...]]:
    """Return the entries of a shape's files in the manifest by number of rows, as far as all its files have them.

    Raises
    ------
    SpaceError
        Files have measured tiles of another layer, or measured tiles that one of two files lacks.
    """
    origin = from_json(_json(_origin(request, shape)), dict[str, object])
    by_file: list[dict[int, RowChoice]] = []
    for target in files.values():
        listed = manifest.get(str(target.relative_to(folder))) if target.exists() else None
        try:
            is_same = isinstance(listed, dict) and listed | origin == listed
            entries = convert(listed["entries"], list[RowChoice]) if isinstance(listed, dict) and is_same else []
        except (KeyError, msgspec.ValidationError):
            entries = []
        if _has_measured(listed) and not entries:
            raise SpaceError(f"{target} has measured tiles of another layer or routing; name another folder")
        by_file.append({one.rows: one for one in entries})
    common = set.intersection(*map(set, by_file))
    if lost := {row for own in by_file for row, one in own.items() if one.measured_s} - common - {*request.rows}:
        raise SpaceError(f"{files[False]} also has measured tiles for {min(lost)} rows; add them to --rows")
    return {rows: tuple(own[rows] for own in by_file) for rows in common}


def _has_measured(listed: object) -> bool:
    """Return whether a file in the manifest has measured entries."""
    entries = listed.get("entries") if isinstance(listed, dict) else None
    return isinstance(entries, list) and any(isinstance(one, dict) and "measured_s" in one for one in entries)


def _report(progress: Callable[[int, int], None], offset: int, total: int, done: int) -> None:
    progress(offset + done, total)


def _rank_tiles(
    request: ConfigRequest, shape: Experts | Product, shipped: ShippedFile | None, progress: Callable[[int], None]
) -> list[_RankedTiles]:
    """Rank the tiles for each number of rows."""
    defaults = tuple(
        default_tile(request.server, shape, rows, request.spec) if shipped is None
        else (tile := shipped.nearest(rows)) and running_tile(tile, shape)
        for rows in request.rows
    )  # fmt: skip
    tiles = space_of(shape, request.spec, tuple(filter(None, defaults)))
    compiled_by = LATEST if request.triton is None else check_version(request.triton)
    ranked = []
    for number, (rows, default) in enumerate(zip(request.rows, defaults, strict=True), 1):
        raced = race(shape, rows, request.spec, tiles, request.exponent, compiled_by)
        best = [choice.tile for choice in raced.best(max(1, request.keep))]
        up = down = best[0]
        if request.down and isinstance(shape, Experts):
            # both products use the same sorted rows, in blocks of block_m
            up, down = (raced.best(part=part, block_m=best[0][0])[0].tile for part in (0, 1))
        ranked.append(_RankedTiles(raced, default, best, up, down))
        progress(number)
    return ranked


def _write_all(
    request: ConfigRequest, folder: Path, manifest: dict[str, object], targets: Sequence[dict[bool, Path]],
    kept: Sequence[dict[int, tuple[RowChoice, ...]]], ranked: Sequence[Sequence[_RankedTiles]],
    measured: Sequence[MeasuredTiles], shipped: Sequence[ShippedFile | None],
) -> list[WrittenFile]:  # fmt: skip
    """Write all files and the manifest; an earlier measured entry is only replaced by a faster one."""
    written = []
    for shape, of_shape, files, old, into, tuned in zip(
        request.shapes, ranked, targets, kept, measured, shipped, strict=True
    ):
        choices: dict[int, tuple[RowChoice, ...]] = {**old}
        for ranked_rows in of_shape:
            new, previous = _choose_tiles(ranked_rows, request.down, into), old.get(ranked_rows.race.tokens)
            if previous is None or _measured_s(previous) >= _measured_s(new):
                choices[ranked_rows.race.tokens] = new
        why = "" if request.force else reason_against(tuned, [up for up, _ in choices.values()])
        for down, target in files.items():
            mine = [pair[down] for _, pair in sorted(choices.items())]
            if not why:
                _make_folders(folder, target.parent)
                replace_file(target, _json({str(c.rows): _entry(c.tile, request.spec) for c in mine}))
            written.append(
                WrittenFile(
                    str(target.relative_to(folder)), shape, mine, tuned.server if tuned is not None else "", why
                )
            )
        if request.keep and not why:
            entries = {str(one.race.tokens): [_entry(tile, request.spec) for tile in one.best] for one in of_shape}
            replace_file(_candidates_path(files[False]), _json(entries))
    if any(not file.not_written for file in written):
        replace_file(folder / MANIFEST, _json(_manifest(request, manifest, written)))
    return written


def _make_folders(folder: Path, below: Path) -> None:
    for part in [*reversed([p for p in below.parents if folder in (p, *p.parents)]), below]:
        make_folder(part)


def _measured_s(choices: tuple[RowChoice, ...]) -> float:
    measured_s = choices[0].measured_s
    return math.inf if measured_s is None else measured_s


def _candidates_path(target: Path) -> Path:
    return target.with_name(target.stem + ".candidates.json")


def _choose_tiles(ranked: _RankedTiles, apart: bool, measured: MeasuredTiles) -> tuple[RowChoice, RowChoice]:
    """Return the choices of a file and of the down product's file: the fastest measured or predicted tile."""
    raced, up, down = ranked.race, ranked.up, ranked.down
    rows = raced.tokens
    times = {tile: parts for tile in ranked.candidates if (parts := measured.parts(rows, tile)) is not None}
    measured_s: float | None = None
    if times:
        pairs = [(one, other) for one in times for other in times if one == other or (apart and one[0] == other[0])]
        time_by_pair = {(one, other): times[one][0] + sum(times[other][1:]) for one, other in pairs}
        up, down = min(time_by_pair, key=time_by_pair.__getitem__)
        measured_s = time_by_pair[up, down]
    default_s = raced.time_of(ranked.default) if ranked.default else math.inf
    default_times = times.get(ranked.default) if ranked.default else None
    choices = [
        RowChoice(
            rows, tile, raced.time_of(up, down), ranked.default, default_s if default_s < math.inf else None,
            raced.bound.time_s, raced.bound.bound_by, measured_s, None if default_times is None else sum(default_times),
            measured.failed.get(rows, ""),
        )
        for tile in (up, down)
    ]  # fmt: skip
    return choices[0], choices[1]


def _entry(tile: Tile, spec: GpuSpec) -> dict[str, int]:
    named = dict(zip(FIELDS, tile, strict=True))
    shown_fields = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
    return {field: named[field] for field in shown_fields} | (_AMD_FIELDS if spec.vendor == "amd" else {})


def _has_experts(request: ConfigRequest) -> bool:
    return any(isinstance(shape, Experts) for shape in request.shapes)


def _read_manifest(folder: Path) -> dict[str, object] | None:
    """Return the files in a folder's manifest; empty without a manifest, None if anatune did not write it."""
    try:
        files = from_json(read_file(folder / MANIFEST), dict[str, object]).get("files")
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError):
        return None
    return files if isinstance(files, dict) else None


def _origin(request: ConfigRequest, shape: Experts | Product) -> dict[str, object]:
    """Return the description of a file in the manifest: server, device, layer and routing."""
    return {
        "server": request.server,
        "hardware": request.spec.name,
        "shape": shape,
        "routing": "random" if request.exponent is None else f"power law {request.exponent:g}",
    }


def _manifest(request: ConfigRequest, manifest: dict[str, object], written: list[WrittenFile]) -> dict[str, object]:
    files: dict[str, object] = {}
    for file in (file for file in written if not file.not_written):
        previous = manifest.get(file.path)
        listed = request.keep > 0 or (isinstance(previous, dict) and previous.get("candidates") is True)
        files[file.path] = {**_origin(request, file.shape), "candidates": listed, "entries": file.choices}
    return {"format": "anatune configs", "anatune": __version__, "files": {**manifest, **files}}


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=4) + b"\n"

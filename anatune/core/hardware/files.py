"""Spec files by name: finding, reading, checking and writing them.

Specs come from two folders: the user's own (`user_spec_folder`), which is searched first, and the packaged
``hwspecs/``. A spec is found by the name of its file (``<vendor>_<name>.toml`` or ``<name>.toml``), then by its
aliases; case, ``-``, ``_``, ``.`` and blanks do not matter. Files are read once, and again when they change.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from anatune.core.hardware.groups import SpecGroup
from anatune.core.hardware.reading import SpecFinding, read_spec
from anatune.core.hardware.spec import CpuSpec, GpuSpec, HardwareSpec
from anatune.errors import SpecError, UnknownNameError
from anatune.resources import data_folder, user_config_folder

__all__ = [
    "SpecFinding", "check_spec_file", "hardware", "list_hardware", "load_spec_file", "spec_to_toml", "user_spec_folder",
]  # fmt: skip

_MAKER = re.compile(r"(?<![a-z])(nvidia|amd|intel)(?![a-z])")
_COMMON_WORDS = re.compile(rf"{_MAKER.pattern}|\b(?:tesla|cpu|processor|\d+-core)\b|@.*|\((?:r|tm)\)|[()]")
"""Words beside the product in names such as "AMD EPYC 7763 64-Core Processor", "Intel(R) Core(TM) .. @ 3.40GHz"."""

# ---- finding a spec ----------------------------------------------------------------------------------------


def user_spec_folder(config_home: str | Path | None = None) -> Path:
    """Return the folder of the user's own specs, which may not exist.

    Parameters
    ----------
    config_home
        Configuration folder; by default ``$XDG_CONFIG_HOME``, or ``~/.config`` where that is not set.

    Raises
    ------
    SpecError
        The system does not know the user's home folder.
    """
    folder = user_config_folder(config_home)
    if folder is None:
        raise SpecError("the user's home folder is unknown; set XDG_CONFIG_HOME or pass the folder")
    return folder / "hwspecs"


def hardware(name_or_path: str | Path, *, user_folder: Path | None = None) -> HardwareSpec:
    """Return the spec of a device.

    Parameters
    ----------
    name_or_path
        A name or alias ("rtx3090", "GTX 1080 Ti"), the name that a driver or /proc/cpuinfo gives a device ("Tesla
        V100-SXM2-16GB"), "host" (the saved spec of this machine), or the path of a TOML file.
    user_folder
        Folder of the user's specs, `user_spec_folder()` by default.

    Raises
    ------
    UnknownNameError
        No spec has this name; the message lists close names. For "host": no spec is saved yet.
    SpecError
        The file is missing, damaged, or contradicts itself; or the name is an alias of both a user's and a packaged
        spec.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or os.sep in text:
        return load_spec_file(name_or_path)
    wanted = _normal(text)
    folders = _folders(user_folder)
    if wanted:
        for path in _spec_files(folders):
            if wanted in _file_names(path):
                return load_spec_file(path)
    if wanted == "host":
        raise UnknownNameError(
            "hardware 'host': no saved spec of this machine yet; run `anatune hw detect` to write one"
        )
    unreadable: list[str] = []
    specs: dict[Path, HardwareSpec] = {}
    for path in _spec_files(folders):
        try:
            specs[path] = load_spec_file(path)
        except SpecError as error:
            unreadable.append(str(error))
    hits = [path for path, spec in specs.items() if wanted in map(_normal, (spec.name, *spec.aliases))]
    if hits:
        first, spec = hits[0], specs[hits[0]]
        others = {specs[path].name for path in hits if path.parent != first.parent} - {spec.name}
        if others and wanted != _normal(spec.name):
            raise SpecError(
                f"hardware {text!r} means {spec.name} in {first} and also the shipped {', '.join(others)}; remove the "
                f"alias from the file, or write {spec.name} or {', '.join(others)}"
            )
        return spec
    makers, product = set(_MAKER.findall(text.lower())), _product(text)
    for spec in specs.values():
        if product in _products(spec) and makers <= {spec.vendor}:
            return spec
    names = [name for spec in specs.values() for name in (spec.name, *spec.aliases)]
    raise UnknownNameError(_unknown_text(text, names, unreadable))


def list_hardware(*, user_folder: Path | None = None) -> list[HardwareSpec]:
    """Return all specs sorted by name; a user's spec replaces the packaged one of the same name.

    Parameters
    ----------
    user_folder
        Folder of the user's specs, `user_spec_folder()` by default.

    Raises
    ------
    SpecError
        A file cannot be used; the message names it.
    """
    specs: dict[str, HardwareSpec] = {}
    for path in _spec_files(_folders(user_folder)):
        spec = load_spec_file(path)
        specs.setdefault(spec.name, spec)
    return [specs[name] for name in sorted(specs)]


def load_spec_file(path: str | Path) -> HardwareSpec:
    """Read one spec file.

    Raises
    ------
    SpecError
        The file is missing, is not TOML, or is not a valid spec. The message names the file, the key, what was got and
        what was expected, for the first problem only; `check_spec_file` returns all.
    """
    path = Path(path)
    try:
        state = path.stat()
    except (OSError, ValueError):
        return _load(path, 0, 0)  # raises the error that says why
    return _load(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=512)
def _load(path: Path, mtime_ns: int, size: int) -> HardwareSpec:
    spec, findings = read_spec(path)
    if spec is None:
        first = next(finding for finding in findings if finding.level == "error")
        num_others = sum(finding.level == "error" for finding in findings) - 1
        more = f" (and {num_others} more: `anatune hw check {path}`)" if num_others else ""
        raise SpecError(f"{path}: {first.key + ': ' if first.key else ''}{first.text}{more}")
    return spec


def _normal(name: str) -> str:
    return re.sub(r"[-_. ]+", "", name).lower()


def _product(name: str) -> str:
    """Return a device's name without its maker and words that all devices have."""
    return _normal(_COMMON_WORDS.sub(" ", name.lower().replace("_", " ")))


def _products(spec: HardwareSpec) -> set[str]:
    """Return the names of a spec's device; text in brackets distinguishes devices of one name."""
    names = [spec.name, *spec.aliases, spec.model]
    if spec.kind == "cpu" or "one of its" in spec.model:  # a microarchitecture, or a part of a card
        names.append(spec.model.partition("(")[0])
    return set(map(_product, names)) - {""}


def _folders(user_folder: Path | None) -> list[Path]:
    """Return the folders that hold specs, the user's first."""
    folders = [data_folder("hwspecs")]
    with contextlib.suppress(SpecError):
        folders.insert(0, user_folder or user_spec_folder())
    return folders


def _spec_files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        with contextlib.suppress(PermissionError):
            yield from sorted(folder.glob("*.toml"))


def _file_names(path: Path) -> set[str]:
    """Return the names that a file is found by without reading it: its stem, with and without the vendor."""
    vendor, _, name = path.stem.partition("_")
    return {_normal(path.stem), _normal(name)} if name and vendor else {_normal(path.stem)}


def _how_to_add() -> str:
    return (
        f"for a new device copy a file of {data_folder('hwspecs')}, edit it, run `anatune hw check FILE` "
        "and give its path instead of a name"
    )


def _unknown_text(name: str, names: list[str], unreadable: list[str]) -> str:
    by_product = {_product(word): word for word in reversed(names)}
    close = [by_product[word] for word in difflib.get_close_matches(_product(name), by_product, n=5, cutoff=0.55)]
    near = f"close names: {', '.join(close)}" if close else "no name is close"
    text = f"unknown hardware {name!r}: {near}; `anatune hw list` shows all; {_how_to_add()}"
    return f"{text}; could not be read: {'; '.join(unreadable)}" if unreadable else text


# ---- reading and checking ----------------------------------------------------------------------------------


def check_spec_file(path: str | Path) -> list[SpecFinding]:
    """Check a spec file and return all findings, errors first; never raise for a bad file.

    Returns
    -------
    list of Finding
        Errors (the file cannot be used), warnings (numbers that look doubtful together) and notes (the peak, and the
        keys that nobody has verified).
    """
    path = Path(path)
    spec, findings = read_spec(path)
    if spec is None:
        return findings
    if _normal(spec.name) not in _file_names(path):
        text = f"is {spec.name!r}, but the file is {path.name}; anatune finds it by the file's name first"
        findings.append(SpecFinding("warning", "name", text))
    for shipped in map(load_spec_file, _spec_files([data_folder("hwspecs")])):
        if shipped.name != spec.name and (both := {shipped.name, *shipped.aliases} & {spec.name, *spec.aliases}):
            text = f"{', '.join(sorted(both))} is also a name of the shipped spec {shipped.name}; choose another name"
            findings.append(SpecFinding("warning", "aliases", text))
    doubts = _gpu_doubts(spec) if spec.kind == "gpu" else _cpu_doubts(spec)
    findings += [SpecFinding("warning", key, text) for key, text in doubts]
    peak = f"{spec.compute.fp32_peak_flop_per_s / 1e9:.1f} GFLOP/s in float32, agrees with the product of its parts"
    findings.append(SpecFinding("note", "compute.fp32_peak_flop_per_s", peak))
    for key in spec.__struct_fields__:
        group = getattr(spec, key)
        if isinstance(group, SpecGroup) and group.unverified:
            findings.append(SpecFinding("note", key, f"unverified: {', '.join(group.unverified)}"))
    return findings


def _gpu_doubts(spec: GpuSpec) -> Iterator[tuple[str, str]]:
    """Yield the keys of a GPU's spec whose numbers look doubtful beside others, and why."""
    compute, shared, registers, l2, dram = spec.compute, spec.shared_memory, spec.registers, spec.l2, spec.dram
    smem_bandwidth = compute.num_sms * shared.bytes_per_cycle_per_sm * compute.clock_hz
    max_threads = compute.max_warps_per_sm * compute.warp_size
    if l2.bandwidth_bytes_per_s < dram.bandwidth_bytes_per_s:
        text = f"is {l2.bandwidth_bytes_per_s:.4g}, below the DRAM's {dram.bandwidth_bytes_per_s:.4g}"
        yield "l2.bandwidth_bytes_per_s", text
    if smem_bandwidth < l2.bandwidth_bytes_per_s:
        text = f"gives {smem_bandwidth:.4g} bytes/s in all, below the L2's {l2.bandwidth_bytes_per_s:.4g}"
        yield "shared_memory.bytes_per_cycle_per_sm", text
    if shared.per_block_bytes + shared.reserved_per_block_bytes > shared.per_sm_bytes:
        text = f"{shared.per_block_bytes} and {shared.reserved_per_block_bytes} reserved exceed per_sm_bytes "
        yield "shared_memory.per_block_bytes", f"{text}({shared.per_sm_bytes}): such a block never starts"
    if shared.per_sm_bytes % shared.granularity_bytes:
        text = f"{shared.per_sm_bytes} is no multiple of granularity_bytes ({shared.granularity_bytes})"
        yield "shared_memory.per_sm_bytes", text
    if max_threads < compute.max_threads_per_block:
        text = f"{max_threads} threads an SM, below max_threads_per_block ({compute.max_threads_per_block})"
        yield "compute.max_warps_per_sm", text
    if registers.per_sm % (registers.num_sub_partitions * registers.allocation_unit):
        yield "registers.per_sm", f"{registers.per_sm} does not divide into sub-partitions of whole allocation units"
    rises = shared.latency_cycles < l2.latency_cycles < dram.latency_cycles
    if not rises or spec.l1.latency_cycles >= l2.latency_cycles:
        text = "latencies do not rise from shared memory and L1 over L2 to DRAM (load-to-use is meant for each)"
        yield "dram.latency_cycles", text


def _cpu_doubts(spec: CpuSpec) -> Iterator[tuple[str, str]]:
    """Yield the keys of a CPU's spec whose numbers look doubtful beside others, and why."""
    compute, l1, dram = spec.compute, spec.l1, spec.dram
    widths = {"avx512": (256, 512), "avx2": (256,), "avx": (256,), "sse": (128,), "neon": (128,)}
    ports = compute.loads_per_cycle * compute.simd_bits / 8
    levels = [("l1", l1), ("l2", spec.l2)] + ([("l3", spec.l3)] if spec.l3 else [])
    if compute.simd_bits not in widths.get(compute.isa, (compute.simd_bits,)):
        yield "compute.simd_bits", f"is {compute.simd_bits}, unusual for isa {compute.isa!r}"
    if l1.bandwidth_bytes_per_cycle > ports * 1.02:
        text = f"is {l1.bandwidth_bytes_per_cycle:g}, more than the load ports take ({ports:g})"
        yield "l1.bandwidth_bytes_per_cycle", text
    if l1.shared_by_cores != 1:
        yield "l1.shared_by_cores", f"is {l1.shared_by_cores}, expected 1"
    if dram.bandwidth_bytes_per_s > 1.2e12:
        text = f"is {dram.bandwidth_bytes_per_s:.4g}, more than any socket's memory delivers"
        yield "dram.bandwidth_bytes_per_s", text
    for key, level in levels:
        if level.size_bytes % (level.ways * level.line_bytes):
            yield f"{key}.size_bytes", f"{level.size_bytes} is no multiple of ways x line_bytes"
    for (inner_key, inner), (key, outer) in itertools.pairwise(levels):
        if outer.size_bytes <= inner.size_bytes / inner.shared_by_cores:
            yield f"{key}.size_bytes", f"is not larger than {inner_key}"
        if outer.latency_cycles <= inner.latency_cycles:
            yield f"{key}.latency_cycles", f"is not above {inner_key}'s"
        if outer.bandwidth_bytes_per_cycle > inner.bandwidth_bytes_per_cycle:
            yield f"{key}.bandwidth_bytes_per_cycle", f"is above {inner_key}'s"


# ---- writing -----------------------------------------------------------------------------------------------


def spec_to_toml(spec: HardwareSpec) -> str:
    """Return a spec as the text of a TOML file; reading it gives an equal spec.

    Large numbers are written with an exponent ("1.695e9") wherever that is exact.
    """
    tree = cast("dict[str, Any]", msgspec.to_builtins(spec))
    head = {key: value for key, value in tree.items() if not isinstance(value, dict) and value is not None}
    blocks = ["\n".join(f"{key} = {_toml_value(value)}" for key, value in head.items())]
    for key, table in tree.items():
        if isinstance(table, dict):
            last = ("source", "unverified")
            items = [(name, table[name]) for name in table if name not in last and table[name] is not None]
            items += [(name, table[name]) for name in last if name != "unverified" or table[name]]
            blocks.append("\n".join([f"[{key}]", *(f"{name} = {_toml_value(value)}" for name, value in items)]))
    return "\n\n".join(blocks) + "\n"


def _table_lines(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the rows of a table as text; rows with the same first two entries share a line."""
    for _, group in itertools.groupby(rows, key=lambda row: row[:2]):
        yield ", ".join(map(_toml_value, group))


def _toml_value(value: object) -> str:
    if isinstance(value, (str, bool)):
        # JSON booleans are those of TOML; a JSON string is a basic string, save that TOML also wants DEL escaped.
        return msgspec.json.encode(value).decode("utf-8").replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (list, tuple)):
            return f"[\n{''.join(f'  {line},{chr(10)}' for line in _table_lines(value))}]"
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float):
        short = f"{value / 1e9:.12g}e9"
        if abs(value) >= 1e7 and "e" not in short[:-2] and float(short) == value:
            return short
        return repr(value)
    return repr(value)

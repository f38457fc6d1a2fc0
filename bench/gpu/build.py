"""Builds the GPU benchmark's kernels where there are compilers but no GPU: a folder with a manifest for each layer."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import anatune
from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import AnatuneError
from anatune.measure.cuda.apart import LIMITS
from anatune.measure.cuda.measurer import build_schedules
from anatune.tuning.manifest import build_manifest
from bench.gpu.layers import template_of, workload_of
from bench.gpu.system import entry_folder
from bench.layers import Layer

__all__ = ["build_layers", "folder_bytes"]

_PATIENTLY = functools.partial(build_manifest, builds=functools.partial(build_schedules, limits=LIMITS))
"""A kernel that timed out on a busy machine would be missing where there is no compiler."""


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def build_layers(
    wanted: Sequence[tuple[Layer, str, int]],
    hw: str,
    folder: Path,
    megabytes: float,
    say: Callable[[str], None],
    build: Callable[..., object] = _PATIENTLY,
) -> list[str]:
    """Build layers until all are there or the folder is full; those that are there already are left alone.

    Parameters
    ----------
    wanted
        (layer, dtype, number of kernels).
    hw : str
        Name of a GPU's spec.
    folder
        Where to; made.
    megabytes : float
        Most that may be written altogether; the layer that goes beyond is removed again.
    say
        Told what is going on.
    build
        `build_manifest`, or something that behaves alike.

    Returns
    -------
    list of str
        Folders that were not built.

    Raises
    ------
    SystemExit
        `hw` is no GPU.
    """
    spec = anatune.hardware(hw)
    if not isinstance(spec, GpuSpec):
        raise SystemExit(f"--hw: {hw} is a CPU, expected a GPU")
    folder.mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    is_full = False
    for layer, dtype, trials in wanted:
        name = entry_folder(layer, dtype)
        target = folder / name
        if (target / "manifest.json").exists():
            continue
        if is_full:
            missing.append(name)
            continue
        try:
            manifest = build(workload_of(layer, dtype), spec, target, trials=trials, template=template_of(dtype))
        except AnatuneError as error:
            say(f"build {name}: {error}")
            missing.append(name)
            shutil.rmtree(target, ignore_errors=True)
            continue
        size = folder_bytes(folder) / 1e6
        entries = manifest.entries  # type: ignore[attr-defined]
        usable = sum(isinstance(entry.artifact, GpuArtifact) for entry in entries)
        why = next((f"; {entry.failure.message}" for entry in entries if entry.failure is not None), "")
        say(f"build {name}: {usable} of {len(entries)} kernels, {size:.1f} MB altogether{why}")
        if not usable:
            shutil.rmtree(target)
            missing.append(name)
        elif size > megabytes:
            shutil.rmtree(target)
            missing.append(name)
            is_full = True
    if missing:
        say(f"not built: {', '.join(missing)}; call again, or allow more --megabytes or ask for fewer --trials")
    return missing

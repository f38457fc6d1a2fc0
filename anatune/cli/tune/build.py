"""``anatune tune --build-only``: kernels for a machine with the GPU, and a manifest that it measures them by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anatune.cli.output import print_json, print_text
from anatune.cli.progress import Progress
from anatune.errors import BuildError

if TYPE_CHECKING:
    from anatune.core.hardware.spec import GpuSpec
    from anatune.core.workload.nest import Workload

__all__ = ["build_kernels"]


def build_kernels(
    workload: Workload, hardware: GpuSpec, folder: Path, trials: int, template: str | None, seed: int, as_json: bool
) -> None:
    """Build kernels for another machine and say where they are.

    Raises
    ------
    BuildError
        None of the schedules can be built.
    """
    from anatune.tuning.manifest import MANIFEST, build_manifest

    with Progress(compiles=True) as progress:
        report = progress.count("building")
        made = build_manifest(
            workload,
            hardware,
            folder,
            trials=trials,
            template=template,
            seed=seed,
            progress=lambda done, failed, total: report(done, total),
        )
    failures = [entry.failure for entry in made.entries if entry.failure is not None]
    if len(failures) == len(made.entries):
        raise BuildError(f"none of {len(failures)} schedules can be built; the first says: {failures[0].message}")
    path, number = folder / MANIFEST, len(made.entries) - len(failures)
    if as_json:
        print_json({"manifest": str(path), "kernels": number, "failed": len(failures), "compiler": made.compiler})
        return
    print_text(
        f"wrote {path}: {number} kernels for {hardware.name} ({hardware.arch}), by {made.compiler}"
        + (f"; {len(failures)} schedules cannot be built, the first: {failures[0].message}" if failures else "")
        + f"\non a machine with that GPU: anatune tune --manifest {folder} --records FILE"
    )

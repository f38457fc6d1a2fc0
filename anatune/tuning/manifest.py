"""Kernels that were built on another machine: a folder of cubins, and a manifest that describes and launches them.

``manifest.json`` is {"sha256": digest of the text of "manifest", "manifest": {...}}. Measuring its kernels needs
neither TVM nor a compiler.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from anatune.codegen.cuda.artifact import GpuArtifact, read_image
from anatune.codegen.toolchains import describe_compilers, find_toolchain
from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.core.generation import check_generation
from anatune.core.hardware.spec import GpuSpec, HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Trial
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.errors import DeviceError, RecordError, RunError, SpaceError
from anatune.files import Output, OutputKind, make_folder, make_key_check, read_file, reason
from anatune.measure.cuda.measurer import Built, build_schedules
from anatune.records.schema import schedule_of, schedule_text
from anatune.templates import check_accuracy, template_of
from anatune.tuning.machine import gpu_templates
from anatune.version import __version__

MANIFEST = "manifest.json"
VERSION = 2
"""Version of the file format; files of other versions are refused."""
_KIND = OutputKind("the manifest of `anatune tune --build-only`", make_key_check("sha256", "manifest"))
SOURCE = "plan"
"""Name of the strategy in the records; schedules are measured in the order of the plan."""

Builds: TypeAlias = Callable[[Sequence[Schedule], GpuSpec, Path], Iterable[GpuArtifact | tuple[Schedule, Built]]]


class ManifestEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule with its predicted time, and its kernel or the reason why there is none."""

    schedule: str
    predicted_s: float | None = None
    artifact: GpuArtifact | None = None
    failure: Measurement | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest of built kernels. Immutable; JSON both ways.

    Attributes
    ----------
    version : int
        Version of the file format.
    anatune, compiler : str
        Version of anatune, and the compilers that built the kernels.
    flags : tuple of str
        Flags of the compilers, without the architecture.
    workload, hardware
        The workload; the GPU for which the schedules were chosen.
    templates : tuple of str
        Templates that were ranked together, the one that tuning uses by default first.
    accuracy : str
        The admitted arithmetic.
    seed : int
        Seed of the random operands.
    reference : GpuArtifact
        The reference kernel, which is timed with all schedules.
    entries : tuple of ManifestEntry
        Entries in the order of the plan; a schedule is the JSON of `Schedule` without workload and hardware.
    """

    version: int
    anatune: str
    compiler: str
    flags: tuple[str, ...]
    workload: Workload
    hardware: GpuSpec
    templates: tuple[str, ...]
    accuracy: str
    seed: int
    reference: GpuArtifact
    entries: tuple[ManifestEntry, ...]

    def schedules(self) -> list[Schedule]:
        """Return the schedules, in the order of the plan."""
        return [schedule_of(entry.schedule, self.workload, self.hardware) for entry in self.entries]

    def read_results(self) -> dict[str, Built]:
        """Return the kernel or failure of each schedule, by its key."""
        built: dict[str, Built] = {}
        for schedule, entry in zip(self.schedules(), self.entries, strict=True):
            became = entry.artifact or entry.failure
            assert became is not None
            built[schedule.key] = became
        return built

    def predictions(self) -> dict[str, float | None]:
        """Return the predicted times by key of the schedule, s."""
        return {s.key: entry.predicted_s for s, entry in zip(self.schedules(), self.entries, strict=True)}


class _ManifestFile(msgspec.Struct, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class ManifestStrategy:
    """A `search.base.Strategy` that proposes the schedules of a manifest in their order."""

    least_samples = 1

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._left = list(schedules)

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer at the end."""
        schedules, self._left = self._left[:n], self._left[n:]
        return schedules

    def tell(self, trials: Sequence[Trial]) -> None:
        """Remove the schedules of these trials from the queue."""
        measured_keys = {trial.schedule.key for trial in trials}
        self._left = [schedule for schedule in self._left if schedule.key not in measured_keys]


def build_manifest(
    workload: Workload,
    hardware: HardwareSpec,
    folder: str | Path,
    *,
    trials: int = 64,
    template: str | None = None,
    accuracy: str | None = None,
    seed: int = 0,
    progress: Callable[[int, int, int], None] | None = None,
    builds: Builds = build_schedules,
) -> Manifest:
    """Build the first schedules of the plan and write them with a manifest into `folder`, without a GPU.

    Schedules of the same predicted time count as one. A schedule that cannot be built is recorded as a failure when the
    manifest is measured.

    Parameters
    ----------
    workload, hardware
        The workload; the GPU.
    folder
        The folder, which is made if needed; its manifest is replaced.
    trials : int
        Number of schedules.
    template : {"cuda", "pipelined", "thin", "triton"}, optional
        The only template to use; by default several templates are ranked together, as in `tune`.
    accuracy : {"standard", "relaxed"}
        The admitted arithmetic.
    seed : int
        Seed of the operands.
    progress : callable, optional
        Called with (schedules done, failures among them, all schedules).
    builds : callable
        `build_schedules`, or a replacement.

    Raises
    ------
    DeviceError
        The hardware is no NVIDIA GPU.
    BuildError
        The compiler does not know the GPU's architecture.
    SpaceError
        No schedule is legal; an argument is wrong.
    RecordError
        The folder cannot be written to.
    MissingDependencyError
        TVM, NVRTC or Triton is not installed.
    """
    from anatune.model.joint import find_corrections  # late: schedules that are only measured need no model
    from anatune.model.rank import Constraints, rank_templates

    if hardware.kind != "gpu":
        raise DeviceError(f"{hardware.name} is a CPU, whose kernels are built by `anatune tune` on the machine itself")
    names = _check_templates(workload, hardware, template, accuracy)
    accuracy = accuracy or STANDARD
    compiler, flags = describe_compilers(names)
    constraints, saved = Constraints(accuracy=accuracy, distinct=True), find_corrections(hardware, names)
    plan, _ = rank_templates(workload, hardware, names, trials, constraints, saved)
    if not plan.schedules:
        raise SpaceError(f"{workload.describe()} on {hardware.name}: no schedule is legal; `anatune plan` says why")
    path = Path(folder)
    try:
        make_folder(path)
        target = Output(path / MANIFEST, _KIND)
    except OSError as error:
        raise RecordError(f"{error.filename or path}: {reason(error)}") from None
    reference, built = _collect_builds(builds(plan.schedules, hardware, path), len(plan.schedules), progress)
    entries = tuple(
        _make_entry(schedule, built[schedule.key], prediction.time_s)
        for schedule, prediction in zip(plan.schedules, plan.predictions, strict=True)
    )
    manifest = Manifest(
        VERSION, __version__, compiler, flags, workload, hardware, tuple(names), accuracy, seed,
        _relative_paths(reference), entries,
    )  # fmt: skip
    _write(target, manifest)
    return manifest


def _check_templates(workload: Workload, hardware: GpuSpec, template: str | None, accuracy: str | None) -> list[str]:
    """Return the templates whose schedules are built, after checking that they can be built."""
    if hardware.compute_capability is None:
        raise DeviceError(
            f"{hardware.name} ({hardware.arch}) is no NVIDIA GPU, and manifests can only be measured on NVIDIA GPUs; "
            "`anatune export --template triton` writes kernels for it"
        )
    admitted = STANDARD if accuracy is None else validate_accuracy("tune: accuracy", accuracy)
    chosen = [template_of(template, hardware)] if template else gpu_templates(workload, hardware, admitted)
    names = [one.name for one in chosen]
    for checked in chosen:
        check_accuracy(workload, checked, accuracy)
        find_toolchain(checked.name).check_target(hardware)
    check_generation(workload, hardware, names)
    return names


def _collect_builds(
    results: Iterable[GpuArtifact | tuple[Schedule, Built]],
    count: int,
    progress: Callable[[int, int, int], None] | None,
) -> tuple[GpuArtifact, dict[str, Built]]:
    """Return the reference kernel, and the kernel or failure of each of `count` schedules by its key."""
    reference: GpuArtifact | None = None
    built: dict[str, Built] = {}
    failed = 0
    for result in results:
        if isinstance(result, GpuArtifact):
            reference = result
            continue
        built[result[0].key] = result[1]
        failed += isinstance(result[1], Measurement)
        if progress is not None:
            progress(len(built), failed, count)
    assert reference is not None
    return reference, built


def _make_entry(schedule: Schedule, built: Built, time_s: float) -> ManifestEntry:
    """Return the manifest entry of a schedule."""
    text, predicted_s = schedule_text(schedule), time_s if math.isfinite(time_s) else None
    if isinstance(built, GpuArtifact):
        return ManifestEntry(text, predicted_s, artifact=_relative_paths(built))
    return ManifestEntry(text, predicted_s, failure=built)


def _relative_paths(artifact: GpuArtifact) -> GpuArtifact:
    return artifact.with_files(lambda path: Path(path).name)


def _write(target: Output, manifest: Manifest) -> None:
    """Write the manifest, as a whole or not at all."""
    text = msgspec.json.encode(manifest)
    whole = msgspec.json.encode(_ManifestFile(hashlib.sha256(text).hexdigest(), msgspec.Raw(text)))
    try:
        target.write(whole)
    except OSError as error:
        raise RecordError(f"cannot write {target.path}: {reason(error)}; free some space") from None


def read_manifest(folder: str | Path) -> Manifest:
    """Read what `build_manifest` wrote and check every file; paths of cubins become absolute.

    Raises
    ------
    RecordError
        The manifest is missing, damaged or of another version, or a cubin is missing or damaged.
    """
    path = Path(folder) / MANIFEST if Path(folder).name != MANIFEST else Path(folder)
    again = "build it again with `anatune tune --build-only`"
    try:
        content = read_file(path)
    except OSError as error:
        raise RecordError(
            f"{path}: {reason(error)}; expected a folder that `anatune tune --build-only` wrote"
        ) from None
    try:
        file = from_json(content, _ManifestFile)
        version = from_json(file.manifest, dict).get("version")
        if version != VERSION:
            raise RecordError(f"{path} has version {version!r}, expected {VERSION}; {again} of this version of anatune")
        if hashlib.sha256(bytes(file.manifest)).hexdigest() != file.sha256:
            raise RecordError(f"{path} is damaged: its contents do not match its digest; {again}")
        manifest = from_json(file.manifest, Manifest)
        manifest.read_results()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AssertionError, SpaceError) as error:
        raise RecordError(f"{path} is damaged, or is no manifest ({error}); {again}") from None
    where = path.resolve().parent
    try:
        reference = _check_artifact(manifest.reference, where)
        entries = tuple(
            entry
            if entry.artifact is None
            else msgspec.structs.replace(entry, artifact=_check_artifact(entry.artifact, where))
            for entry in manifest.entries
        )
    except RunError as error:
        raise RecordError(f"{path} names a kernel that is missing or was changed: {error}") from None
    return msgspec.structs.replace(manifest, reference=reference, entries=entries)


def _check_artifact(artifact: GpuArtifact, where: Path) -> GpuArtifact:
    """Return the artifact with an absolute path; raise RunError if its cubin has changed since it was built."""
    absolute = artifact.with_files(lambda path: str(where / Path(path).name))
    read_image(absolute)
    for launch in absolute.launches:
        if launch.image:
            read_image(launch)
    return absolute

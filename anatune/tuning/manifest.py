"""Kernels that were built elsewhere: a folder of cubins and a manifest that says what they are and how to launch them.

``manifest.json`` is {"sha256": of the text of "manifest", "manifest": {...}}. Neither TVM nor a compiler is needed to
measure what it names.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from anatune.codegen.cuda.artifact import GpuArtifact, read_image
from anatune.codegen.toolchains import compilers_of, toolchain_of
from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.core.generation import check_generation
from anatune.core.hardware.spec import GpuSpec, HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Trial
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.errors import DeviceError, RecordError, RunError, SpaceError
from anatune.files import Output, OutputKind, json_with, make_folder, read_file, reason
from anatune.measure.cuda.measurer import Built, build_schedules
from anatune.records.schema import schedule_of, schedule_text
from anatune.templates import check_accuracy, template_of
from anatune.tuning.machine import gpu_templates
from anatune.version import __version__

MANIFEST = "manifest.json"
VERSION = 2
"""Of the file's layout; files of other versions are refused."""
_KIND = OutputKind("the manifest of `anatune tune --build-only`", json_with("sha256", "manifest"))
SOURCE = "plan"
"""The strategy's name in the records: schedules come in the order of the plan."""

Builds: TypeAlias = Callable[[Sequence[Schedule], GpuSpec, Path], Iterable[GpuArtifact | tuple[Schedule, Built]]]


class ManifestEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One schedule: what the model says, and its kernel or why there is none."""

    schedule: str
    predicted_s: float | None = None
    artifact: GpuArtifact | None = None
    failure: Measurement | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was built. Immutable; JSON both ways.

    Attributes
    ----------
    version : int
        Of the layout.
    anatune, compiler : str
        What built it; of several compilers one after the other.
    flags : tuple of str
        The compilers', beside the architecture.
    workload, hardware
        What is computed; the GPU that the schedules were chosen for.
    templates : tuple of str
        Whose schedules were ranked together, the device's default or what is tuned in its place first.
    accuracy : str
        What arithmetic was admitted.
    seed : int
        Of the random operands.
    reference : GpuArtifact
        The kernel timed beside all candidates.
    entries : tuple of ManifestEntry
        In the order of the plan; a schedule is the JSON of `Schedule` without workload and hardware.
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

    def built(self) -> dict[str, Built]:
        """Return what became of each schedule, by its key."""
        built: dict[str, Built] = {}
        for schedule, entry in zip(self.schedules(), self.entries, strict=True):
            became = entry.artifact or entry.failure
            assert became is not None
            built[schedule.key] = became
        return built

    def predictions(self) -> dict[str, float | None]:
        """Return the model's times by key of the schedule, s."""
        return {s.key: entry.predicted_s for s, entry in zip(self.schedules(), self.entries, strict=True)}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class ManifestStrategy:
    """Asks for the schedules of a manifest in their order; a `search.base.Strategy`."""

    least_samples = 1

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._left = list(schedules)

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer at the end."""
        asked, self._left = self._left[:n], self._left[n:]
        return asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """Leave out what was measured."""
        known = {trial.schedule.key for trial in trials}
        self._left = [schedule for schedule in self._left if schedule.key not in known]


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
    """Build the plan's first schedules and write them with a manifest into `folder`; no GPU is needed.

    Schedules that the model cannot tell apart count as one. What cannot be built becomes an outcome when the manifest
    is measured.

    Parameters
    ----------
    workload, hardware
        What is computed; for which GPU.
    folder
        Made; its manifest is replaced.
    trials : int
        How many schedules.
    template : {"cuda", "pipelined", "thin", "triton"}, optional
        What the schedules look like; by default several in one order, as `tune` takes them.
    accuracy : {"standard", "relaxed"}
        What arithmetic is admitted.
    seed : int
        Of the operands.
    progress : callable, optional
        Called with (schedules done, of them failed, schedules in all).
    builds : callable
        `build_schedules`, or something that behaves alike.

    Raises
    ------
    DeviceError
        The hardware is no GPU of NVIDIA's.
    BuildError
        The compiler does not know the GPU's architecture.
    SpaceError
        No schedule is legal; an argument is wrong.
    RecordError
        The folder cannot be written to.
    MissingDependencyError
        TVM, NVRTC or Triton is not installed.
    """
    from anatune.model.joint import find_corrections  # what is measured only needs no model
    from anatune.model.rank import Constraints, rank_templates

    if hardware.kind != "gpu":
        raise DeviceError(f"{hardware.name} is a CPU: kernels for it are built where they are measured")
    names = _check_templates(workload, hardware, template, accuracy)
    accuracy = accuracy or STANDARD
    compiler, flags = compilers_of(names)
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
    reference, built = _built(builds(plan.schedules, hardware, path), len(plan.schedules), progress)
    entries = tuple(
        _entry(made, built[made.key], told.time_s) for made, told in zip(plan.schedules, plan.predictions, strict=True)
    )
    manifest = Manifest(
        VERSION, __version__, compiler, flags, workload, hardware, tuple(names), accuracy, seed, _relative(reference),
        entries,
    )  # fmt: skip
    _write(target, manifest)
    return manifest


def _check_templates(workload: Workload, hardware: GpuSpec, template: str | None, accuracy: str | None) -> list[str]:
    """Return the templates whose schedules are built, once it is clear that they can be."""
    if hardware.compute_capability is None:
        raise DeviceError(
            f"{hardware.name} ({hardware.arch}) is no NVIDIA GPU, and kernels that were built elsewhere are measured "
            "on those only; `anatune export` writes kernels of the template triton for it"
        )
    admitted = STANDARD if accuracy is None else checked_accuracy("tune: accuracy", accuracy)
    named = [template_of(template, hardware)] if template else gpu_templates(workload, hardware, admitted)
    names = [one.name for one in named]
    for one in named:
        check_accuracy(workload, one, accuracy)
        toolchain_of(one.name).check_target(hardware)
    check_generation(workload, hardware, names)
    return names


def _built(
    results: Iterable[GpuArtifact | tuple[Schedule, Built]],
    count: int,
    progress: Callable[[int, int, int], None] | None,
) -> tuple[GpuArtifact, dict[str, Built]]:
    """Return the reference kernel, and what became of each of `count` schedules by its key."""
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


def _entry(schedule: Schedule, built: Built, time_s: float) -> ManifestEntry:
    """Return a schedule with the model's time and its kernel, or why there is none."""
    text, predicted_s = schedule_text(schedule), time_s if math.isfinite(time_s) else None
    if isinstance(built, GpuArtifact):
        return ManifestEntry(text, predicted_s, artifact=_relative(built))
    return ManifestEntry(text, predicted_s, failure=built)


def _relative(artifact: GpuArtifact) -> GpuArtifact:
    return artifact.with_files(lambda path: Path(path).name)


def _write(target: Output, manifest: Manifest) -> None:
    """Write the file as a whole or not at all."""
    text = msgspec.json.encode(manifest)
    whole = msgspec.json.encode(_File(hashlib.sha256(text).hexdigest(), msgspec.Raw(text)))
    try:
        target.write(whole)
    except OSError as error:
        raise RecordError(f"cannot write {target.path}: {reason(error)}; free some space") from None


def read_manifest(folder: str | Path) -> Manifest:
    """Read what `build_manifest` wrote and check every file; paths of cubins become absolute.

    Raises
    ------
    RecordError
        There is none, it is damaged or of another version, or a cubin is missing or damaged.
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
        file = from_json(content, _File)
        version = from_json(file.manifest, dict).get("version")
        if version != VERSION:
            raise RecordError(f"{path} is of version {version!r}, expected {VERSION}; {again} and this anatune")
        if hashlib.sha256(bytes(file.manifest)).hexdigest() != file.sha256:
            raise RecordError(f"{path} is damaged: its contents are not what was written; {again}")
        manifest = from_json(file.manifest, Manifest)
        manifest.built()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AssertionError, SpaceError) as error:
        raise RecordError(f"{path} is damaged or no manifest ({error}); {again}") from None
    where = path.resolve().parent
    try:
        reference = _checked(manifest.reference, where)
        entries = tuple(
            entry
            if entry.artifact is None
            else msgspec.structs.replace(entry, artifact=_checked(entry.artifact, where))
            for entry in manifest.entries
        )
    except RunError as error:
        raise RecordError(f"{path} names a kernel that is not there as it was built: {error}") from None
    return msgspec.structs.replace(manifest, reference=reference, entries=entries)


def _checked(artifact: GpuArtifact, where: Path) -> GpuArtifact:
    """Return the artifact with an absolute path; raise RunError if its cubin is not what was built."""
    absolute = artifact.with_files(lambda path: str(where / Path(path).name))
    read_image(absolute)
    for launch in absolute.launches:
        if launch.image:
            read_image(launch)
    return absolute

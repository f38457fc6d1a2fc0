"""What a session tunes, and where: the workload, the present device, how schedules look and under what they run."""

from __future__ import annotations

from typing import Any, NamedTuple

from anatune.arguments import checked_integer
from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.measure.cpu.cold import check_cold
from anatune.measure.cuda.runner import check_l2
from anatune.records.schema import Session
from anatune.templates import Template, joined_templates, template_of, templates_of, tuning_template
from anatune.tuning.manifest import Manifest, read_manifest
from anatune.tuning.places.place import Place
from anatune.tuning.settings import TuningSettings

__all__ = ["Target", "target_of"]


class Target(NamedTuple):
    """What is tuned where.

    Attributes
    ----------
    workload, hardware
        The workload; the device that measures, under the spec that was given.
    templates : tuple of Template
        What schedules look like: one, or those that share the trials, the default first.
    accuracy : str
        What arithmetic is admitted.
    threads : int
        Threads that kernels run with; 1 on GPUs.
    conditions : dict
        What times depend on beside that, by the names of `tune`'s keywords: sessions that differ in it are not resumed.
    device : dict
        Which of several devices, through what: "device", "backend"; empty on CPUs.
    manifest : Manifest or None
        Kernels that were built elsewhere.
    """

    workload: Workload
    hardware: CpuSpec | GpuSpec
    templates: tuple[Template, ...]
    accuracy: str
    threads: int
    conditions: dict[str, str]
    device: dict[str, Any]
    manifest: Manifest | None

    @property
    def asked(self) -> dict[str, Any]:
        """Which schedules are candidates, as sessions record it: sessions that differ in it are not resumed."""
        return {"templates": [template.name for template in self.templates], "accuracy": self.accuracy}

    def asked_of(self, session: Session) -> dict[str, Any]:
        """Return the same of a recorded session; older ones had one template, and standard arithmetic."""
        default = str(session.settings.get("template", templates_of(self.hardware)[0].name))
        return {
            "templates": session.settings.get("templates", [default]),
            "accuracy": session.settings.get("accuracy", STANDARD),
        }


def target_of(workload: Workload, hw: CpuSpec | GpuSpec, settings: TuningSettings, place: Place) -> Target:
    """Return the target of a session, checked against the devices of its place.

    Raises
    ------
    DeviceError
        `hw` is not what is there.
    SpaceError, RecordError
        A setting does not fit the workload or the device; the manifest is damaged.
    """
    templates: tuple[Template, ...]
    manifest = None if settings.manifest is None else _fitting(read_manifest(settings.manifest), workload, hw)
    if isinstance(hw, GpuSpec):
        if settings.cold is not None:
            raise SpaceError(f"tune: cold is for CPUs, and {hw.name} is none; name l2")
        named = settings.template if manifest is None else manifest.template
        templates = (template_of(named, hw) if named else tuning_template(workload, hw),)
        if not named and settings.start != "paper":
            templates += joined_templates(workload, hw, settings.accuracy)[1:]
        conditions = {"template": templates[0].name, "l2": check_l2(settings.l2 or "flush")}
        device: dict[str, Any] = {
            "device": checked_integer("tune: device", settings.device, 0, 1023),
            "backend": settings.backend,
        }
    elif given := _of_gpus(settings):
        raise SpaceError(f"tune: {given} is for GPUs, and {hw.name} is none; leave it out")
    else:
        cold = check_cold(settings.cold, hw)
        conditions, device = ({} if cold is None else {"cold": cold}), {}
        # As published, a search walks one space.
        alone = template_of(settings.template, hw) if settings.template or settings.start == "paper" else None
        templates = joined_templates(workload, hw, settings.accuracy) if alone is None else (alone,)
    hardware = place.check(hw, device, built=manifest is not None)
    threads = place.threads(hardware, settings.threads)
    place.check_fits(workload, hardware)
    return Target(workload, hardware, templates, settings.accuracy, threads, conditions, device, manifest)


def _of_gpus(settings: TuningSettings) -> str:
    """Return the first setting that only GPUs have and that was given; an empty text if there is none."""
    unset = {"l2": (None,), "device": (0,), "backend": (None,), "manifest": (None,)}
    return next((name for name, values in unset.items() if getattr(settings, name) not in values), "")


def _fitting(manifest: Manifest, workload: Workload, hw: CpuSpec | GpuSpec) -> Manifest:
    """Return the manifest if it is of this workload and kind of GPU."""
    if manifest.workload != workload:
        raise SpaceError(
            f"manifest: its kernels compute {manifest.workload.describe()}, expected {workload.describe()}; "
            "name the manifest of this workload"
        )
    if hw.arch != manifest.hardware.arch:
        raise SpaceError(
            f"manifest: its kernels are for {manifest.hardware.name} ({manifest.hardware.arch}), expected {hw.arch} "
            f"for {hw.name}; build them with --hw {hw.name}"
        )
    return manifest

"""The local machine as a place, and the choice of a place by a session's settings."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.measure.cuda.detect import device_counter
from anatune.measure.energy import EnergyCounter, cpu_counter
from anatune.measure.run.memory import check_runs_here
from anatune.named import load
from anatune.tuning.machine import check_cpu, check_gpu, choose_threads
from anatune.tuning.manifest import Manifest
from anatune.tuning.places.place import DeviceChoice, Place
from anatune.tuning.settings import TuningSettings


def energy_counters(device: DeviceChoice) -> tuple[EnergyCounter, ...]:
    """Return the energy counters for a session on this machine: of its processors, and of the GPU that measures.

    Parameters
    ----------
    device : DeviceChoice
        Which GPU.
    """
    counters = [cpu_counter(), device_counter(**device) if device else None]
    return tuple(counter for counter in counters if counter is not None)


class LocalPlace(Place):
    """The machine that this process runs on.

    Parameters
    ----------
    host : CpuSpec or GpuSpec, optional
        The device of this machine; detected by default.
    """

    is_here = True

    def __init__(self, host: HardwareSpec | None = None) -> None:
        self._host = host

    def check(self, hardware: HardwareSpec, device: DeviceChoice, *, built: bool) -> HardwareSpec:
        """Return `hardware` if it describes the device of this machine."""
        if hardware.kind == "gpu":
            return check_gpu(hardware, self._host, **device, built=built)
        return check_cpu(hardware, self._host)

    def threads(self, hardware: HardwareSpec, threads: int | None) -> int:
        """Return the number of threads of a kernel."""
        return choose_threads(hardware, threads)

    def check_fits(self, workload: Workload, hardware: HardwareSpec, templates: Sequence[str]) -> None:
        """Raise an error if no kernel can be generated, or checked in the memory that is free."""
        check_runs_here(workload, hardware, templates)

    def provenance(self, device: DeviceChoice, built: Manifest | None, templates: Sequence[str]) -> dict[str, object]:
        """Return the properties that records of a GPU hold besides the environment; empty for CPUs."""
        if not device:
            return {}
        from anatune.codegen.toolchains import describe_compilers
        from anatune.measure.cuda.detect import gpu_environment

        compiler, flags = describe_compilers(templates) if built is None else (built.compiler, built.flags)
        return {
            **gpu_environment(**device),
            "built": "here" if built is None else "elsewhere",
            "compiler": compiler,
            "flags": list(flags),
        }


def place_of(settings: TuningSettings, host: HardwareSpec | None = None) -> Place:
    """Return the place that measures; packages for other machines are imported only if they are used.

    Parameters
    ----------
    host : CpuSpec or GpuSpec, optional
        The present machine, or its GPU; detected by default.

    Raises
    ------
    DeviceError
        The place cannot be reached.
    MissingDependencyError
        A package that reaching it needs is not installed.
    """
    for name in ("cluster", "tracker"):
        if getattr(settings, name) is not None:
            place: Place = load("places", name, f"--{name}")(settings, host)
            return place
    return LocalPlace(host)

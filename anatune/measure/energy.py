"""Energy from the machine's counters, if this process may read them: RAPL of CPUs, NVML of GPUs.

Both count whole devices, including other programs and idle power. RAPL's domains are processor packages without their
memory. Since 2020 only root may read them on Linux unless the owner of the system allows more. If a counter, a
permission or a package is missing, functions return None, because tuning needs no counter.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

_POWERCAP = Path("/sys/class/powercap")
_DOMAIN = re.compile(r"intel-rapl:\d+")
"""The name of package domains, also on AMD processors. "intel-rapl-mmio:0" is the same counter by another path,
"intel-rapl:0:0" a part of it; "psys" of laptops contains the packages."""
_RAPL_STEP_S = 1e-3
"""Seconds between two updates of the counter. Source: Intel SDM Vol. 3B, 16.10.4."""
_NVML_STEP_S = 0.1
"""Seconds between two updates of the counter; the longest of common devices."""
_LEAST_STEPS = 10
"""Fewest updates of a counter in a measurement, so that its delay at both ends is at most a tenth."""


class EnergyCounter(Protocol):
    """A counter of joules.

    Attributes
    ----------
    name : str
        The counted device: "package-0", "gpu 0".
    step_s : float
        Seconds between two updates.
    """

    name: str
    step_s: float

    def joules(self) -> float | None:
        """Return the joules since a fixed moment without waiting; None if the counter cannot be read any more."""
        ...


class RaplCounter:
    """An `EnergyCounter` of one or more processor packages, which corrects overflows if it is read often enough.

    A counter of 262 kJ overflows after 20 minutes at 200 W.

    Parameters
    ----------
    domains : sequence of Path
        Folders below /sys/class/powercap.

    Raises
    ------
    OSError, ValueError
        One of them cannot be read.
    """

    step_s = _RAPL_STEP_S

    def __init__(self, domains: Sequence[Path]) -> None:
        self.name = " + ".join(_text(domain / "name") for domain in domains)
        self._files = [domain / "energy_uj" for domain in domains]
        self._ranges = [int(_text(domain / "max_energy_range_uj")) for domain in domains]
        self._last = [int(_text(file)) for file in self._files]
        self._total_uj = 0
        self._is_lost = False

    def joules(self) -> float | None:
        """Return the joules since it was made."""
        if self._is_lost:
            return None
        try:
            now = [int(_text(file)) for file in self._files]
        except (OSError, ValueError):
            self._is_lost = True
            return None
        for last, read, size in zip(self._last, now, self._ranges, strict=True):
            self._total_uj += read - last if read >= last else read - last + size
        self._last = now
        return self._total_uj * 1e-6


class NvmlCounter:
    """An `EnergyCounter` of one NVIDIA GPU of Volta or later.

    Parameters
    ----------
    nvml : module
        ``pynvml`` of the package nvidia-ml-py.
    address : str
        Address on the PCI bus: "00000000:17:00.0".

    Raises
    ------
    Exception
        An exception of the package: there is no such device, or it does not count.
    """

    step_s = _NVML_STEP_S

    def __init__(self, nvml: ModuleType, address: str) -> None:
        nvml.nvmlInit()
        self.name = f"gpu {address}"
        self._nvml = nvml
        self._device = nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
        self._first = nvml.nvmlDeviceGetTotalEnergyConsumption(self._device)
        self._is_lost = False

    def joules(self) -> float | None:
        """Return the joules since it was made."""
        if self._is_lost:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device) - self._first) * 1e-3
        except self._nvml.NVMLError:
            self._is_lost = True
            return None


def cpu_counter(root: Path = _POWERCAP) -> RaplCounter | None:
    """Return the counter of all processor packages; None if there is none that may be read."""
    try:
        domains = sorted(folder for folder in root.iterdir() if _DOMAIN.fullmatch(folder.name))
        packages = [folder for folder in domains if _text(folder / "name").startswith("package")]
        return RaplCounter(packages) if packages else None
    except (OSError, ValueError):
        return None


def gpu_counter(address: str, nvml: ModuleType | None = None) -> NvmlCounter | None:
    """Return the counter of a GPU by its address on the PCI bus; None without nvidia-ml-py, or if it does not count."""
    try:
        module = import_module("pynvml") if nvml is None else nvml
    except ImportError:
        return None
    try:
        return NvmlCounter(module, address)
    except (module.NVMLError, AttributeError, OSError):  # AttributeError: an old package of that name
        return None


class Metered:
    """A sampled kernel (`measure.run.timing.Timed`) whose energy is counted during samples.

    Samples that are too short for the counter are not counted. Without a counter there is no energy.

    Parameters
    ----------
    kernel : callable
        Runs -> seconds.
    counter : EnergyCounter or None
    clock : callable
        Seconds of the wall; for tests.
    """

    def __init__(
        self,
        kernel: Callable[[int], float],
        counter: EnergyCounter | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._kernel, self._counter, self._clock = kernel, counter, clock
        self._joules, self._runs = 0.0, 0

    def __call__(self, count: int) -> float:
        """Run the kernel `count` times in a row; return the seconds by its own clock."""
        if self._counter is None:
            return self._kernel(count)
        before, began = self._counter.joules(), self._clock()
        seconds = self._kernel(count)
        took_s, after = self._clock() - began, self._counter.joules()
        if before is not None and after is not None and took_s >= _LEAST_STEPS * self._counter.step_s:
            self._joules += after - before
            self._runs += count
        return seconds

    @property
    def energy_j(self) -> float | None:
        """Joules that the device used in one run; None if no sample was long enough, or there is no counter."""
        return self._joules / self._runs if self._runs and self._joules > 0.0 else None


class EnergyMeter:
    """The sum of all counters of a machine from now on; it must be read from time to time, because counters overflow.

    Parameters
    ----------
    counters : sequence of EnergyCounter
        The counters; without any, the energy is unknown.
    """

    def __init__(self, counters: Sequence[EnergyCounter]) -> None:
        self._counters = list(counters)
        self._first = [counter.joules() for counter in self._counters]
        self._joules: list[float | None] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the counted devices."""
        return tuple(counter.name for counter in self._counters)

    def read(self) -> None:
        """Read all counters."""
        self._joules = [counter.joules() for counter in self._counters]

    @property
    def energy_j(self) -> float | None:
        """Joules until the last reading; None if a counter was lost or there is none."""
        total = 0.0
        for first, now in zip(self._first, self._joules, strict=False):
            if first is None or now is None:
                return None
            total += now - first
        return total if self._joules and total > 0.0 else None


def _text(path: Path) -> str:
    return path.read_text().strip()

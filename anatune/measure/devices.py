"""Library calls and measurers for each kind of device, which are imported when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.measure.run.correctness import Verification
from anatune.measure.run.measurer import Measurer
from anatune.model.ranges.plan import RangePlan

if TYPE_CHECKING:
    from anatune.measure.cpu.kernel import Kernel
    from anatune.measure.cpu.ranged import RangeKernel
    from anatune.measure.cuda.kernel import GpuKernel
    from anatune.measure.cuda.ranges import GpuRangeKernel


class Calls(Protocol):
    """The library calls on one schedule, see `measure.verify`."""

    def build(self, schedule: Schedule, threads: int) -> Kernel | GpuKernel:
        """Compile a schedule and load it into this process."""

    def verify(self, schedule: Schedule, threads: int, seed: int) -> Verification:
        """Run a schedule on random operands and compare the result with float64."""

    def inspect(self, schedule: Schedule, threads: int) -> dict[str, int]:
        """Return the compiler's report of a schedule."""


class RangeCalls(Protocol):
    """The library calls on a plan for a range of extents."""

    def build(self, plan: RangePlan, threads: int) -> RangeKernel | GpuRangeKernel:
        """Compile the kernels of a plan and load them into this process."""

    def verify(self, plan: RangePlan, threads: int, seed: int) -> Verification:
        """Run each kernel at the ends and in the middle of the extents that it serves."""


def calls_of(hardware: HardwareSpec) -> Calls:
    """Return the library calls on a device's schedules."""
    if hardware.kind == "gpu":
        from anatune.measure.cuda import calls as gpu

        return gpu
    from anatune.measure.cpu import kernel as cpu

    return cpu


def range_calls_of(hardware: HardwareSpec) -> RangeCalls:
    """Return the library calls on a device's plans for ranges."""
    if hardware.kind == "gpu":
        from anatune.measure.cuda import ranges as gpu

        return gpu
    from anatune.measure.cpu import ranged as cpu

    return cpu


def measurer_of(hardware: HardwareSpec) -> type[Measurer]:
    """Return the class that builds, checks and times a device's schedules on this machine."""
    if hardware.kind == "gpu":
        from anatune.measure.cuda.measurer import GpuMeasurer

        return GpuMeasurer
    from anatune.measure.cpu.measurer import CpuMeasurer

    return CpuMeasurer

"""The interface of places where schedules are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypedDict

from anatune.core.generation import check_generation
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.measure.named_hardware import HardwareLike
from anatune.measure.named_hardware import hardware as named_hardware
from anatune.measure.place import MakeMeasurer
from anatune.tuning.manifest import Manifest


class DeviceChoice(TypedDict, total=False):
    """The GPU and backend that `tune` names; empty on CPUs."""

    device: int
    backend: str | None


class Place(ABC):
    """A place with devices that measure.

    Attributes
    ----------
    is_here : bool
        Whether this machine builds and measures, so that its time can be estimated and its energy counted.
    """

    is_here = False

    def hardware(self, named: HardwareLike) -> HardwareSpec:
        """Return the spec of a name; "host" and "host_gpu" are devices of the place, by default of this machine.

        Raises
        ------
        UnknownNameError, SpecError, SpaceError, DeviceError
            There is no such device or spec.
        """
        return named_hardware(named)

    @abstractmethod
    def check(self, hardware: HardwareSpec, device: DeviceChoice, *, built: bool) -> HardwareSpec:
        """Return `hardware` if it describes the devices of the place.

        Parameters
        ----------
        device : DeviceChoice
            Which GPU.
        built : bool
            Whether the kernels are built already, for the advice in the message.

        Raises
        ------
        DeviceError
            The place has another device, or none.
        """

    @abstractmethod
    def threads(self, hardware: HardwareSpec, threads: int | None) -> int:
        """Return the number of threads of a kernel; 1 on GPUs.

        Raises
        ------
        SpaceError
            The place has fewer.
        """

    def check_fits(self, workload: Workload, hardware: HardwareSpec, templates: Sequence[str]) -> None:
        """Raise an error if no kernel of the workload can be generated, or checked in the known memory.

        Parameters
        ----------
        templates : sequence of str
            Templates of the schedules.

        Raises
        ------
        BuildError, RunError
            No kernel can be generated; the memory is too small.
        """
        check_generation(workload, hardware, templates)

    def measurer(self, make: MakeMeasurer) -> MakeMeasurer:
        """Return the function that makes the measurer, given the one for this machine."""
        return make

    @abstractmethod
    def provenance(self, device: DeviceChoice, built: Manifest | None, templates: Sequence[str]) -> dict[str, object]:
        """Return the properties of the place that records hold besides environments.

        Parameters
        ----------
        device : DeviceChoice
            Which GPU.
        built : Manifest or None
            Kernels that were built on another machine.
        templates : sequence of str
            Templates of the schedules, which determine the compilers.
        """

    def close(self) -> None:  # noqa: B027
        """Release the resources of the place; closing twice does nothing."""

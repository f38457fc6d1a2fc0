"""What a session asks of the place where its schedules are measured; which place its settings name."""

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
    """Which of several GPUs, through what, as `tune` takes them; empty on CPUs."""

    device: int
    backend: str | None


class Place(ABC):
    """Devices that measure, and what is known of them before the first trial.

    Attributes
    ----------
    is_here : bool
        Whether this machine builds and measures: how long that takes can be told beforehand, and its counters of
        energy count all of it.
    """

    is_here = False

    def hardware(self, named: HardwareLike) -> HardwareSpec:
        """Return the spec that is meant; "host" and "host_gpu" are the devices of the place, by default this machine's.

        Raises
        ------
        UnknownNameError, SpecError, SpaceError, DeviceError
            There is none.
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
            Whether the kernels are built already, for the advice.

        Raises
        ------
        DeviceError
            There is another device, or none.
        """

    @abstractmethod
    def threads(self, hardware: HardwareSpec, asked: int | None) -> int:
        """Return the threads that kernels run with; 1 on GPUs.

        Raises
        ------
        SpaceError
            There are not so many.
        """

    def check_fits(self, workload: Workload, hardware: HardwareSpec, templates: Sequence[str]) -> None:
        """Raise an error if no kernel of the workload can be generated, or checked in the memory that is known.

        `templates`: of the schedules.

        Raises
        ------
        BuildError, RunError
            That is so.
        """
        check_generation(workload, hardware, templates)

    def measurer(self, make: MakeMeasurer) -> MakeMeasurer:
        """Return what makes the measurer, given what would make it on this machine."""
        return make

    @abstractmethod
    def provenance(self, device: DeviceChoice, built: Manifest | None, templates: Sequence[str]) -> dict[str, object]:
        """Return what records have to say of the place beside environments.

        Parameters
        ----------
        device : DeviceChoice
            Which GPU.
        built : Manifest or None
            Kernels that were built elsewhere.
        templates : sequence of str
            Of the schedules: what compiles them.
        """

    def close(self) -> None:  # noqa: B027
        """Give back what the place holds; closing twice does nothing. By default it holds nothing."""

"""The GPUs and drivers that can run a cubin."""

from __future__ import annotations

import re

import msgspec

_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest Linux driver for cubins of each major version of the toolkit. Source: [CUDA-compatibility]."""
_INTRODUCED = {
    89: (11, 8, 520), 90: (11, 8, 520),
    100: (12, 8, 570), 101: (12, 8, 570), 120: (12, 8, 570), 103: (12, 9, 575), 121: (12, 9, 575),
    88: (13, 0, 580), 110: (13, 0, 580),
}  # fmt: skip
"""The first toolkit (and its driver) that supports a compute capability, if it is not the first one of a major version.
Source: [CUDA-compatibility] (release notes of these toolkits)."""


class CudaRequirements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requirements of a cubin; they are immutable and can be written to and read from JSON.

    Attributes
    ----------
    compute_capability : str
        The compute capability, such as "8.6".
    other_minors : bool
        Whether later ones of the same major version (8.9) can run it, too. Other major versions never can.
    driver_cuda : int
        The least result of ``cuDriverGetVersion``: 12000 is CUDA 12.0.
    driver_linux : int or None
        The oldest branch of Linux drivers, such as 525; None if not known.
    """

    compute_capability: str
    other_minors: bool
    driver_cuda: int
    driver_linux: int | None

    def capabilities(self) -> str:
        """Return the text about devices: "compute capability 8.6 and later ones of 8.x"."""
        last = f" and later ones of {self.compute_capability.split('.')[0]}.x" if self.other_minors else " only"
        return f"compute capability {self.compute_capability}{last}"

    def drivers(self) -> str:
        """Return the text about drivers: "CUDA 12.0 or later (Linux: 525 or later)"."""
        branch = f" (Linux: {self.driver_linux} or later)" if self.driver_linux else ""
        return f"CUDA {self.driver_cuda // 1000}.{self.driver_cuda % 1000 // 10} or later{branch}"


def requirements_of(arch: str, compiler: tuple[int, int]) -> CudaRequirements:
    """Return the requirements of a cubin for `arch` ("sm_86") by NVRTC or nvcc `compiler` (12, 9)."""
    number = int(re.sub(r"\D", "", arch))
    major, minor, driver = max((compiler[0], 0, _DRIVERS.get(compiler[0], 0)), _INTRODUCED.get(number, (0, 0, 0)))
    return CudaRequirements(
        compute_capability=f"{number // 10}.{number % 10}",
        other_minors=arch[-1].isdigit(),
        driver_cuda=1000 * major + 10 * minor,
        driver_linux=driver or None,
    )

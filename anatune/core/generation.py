"""Limits of the code generators: kernels that cannot be generated although a device could run them.

Plans ignore these limits, because their schedules may be for the kernels of another tuner.
"""

from __future__ import annotations

from collections.abc import Iterable

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.templates import all_templates
from anatune.core.workload.nest import Workload
from anatune.errors import BuildError

MOST_ELEMENTS = 2**31 - 1
"""Largest number of elements of a tensor, or of a copy that a kernel makes: addresses have 32 bits."""


def generation_limit(workload: Workload, hardware: GpuSpec | CpuSpec, templates: Iterable[str] = ()) -> str:
    """Return why no kernel of `workload` can be generated for `hardware` with any schedule; "" if one can.

    Parameters
    ----------
    templates : iterable of str
        Templates of the schedules, if they are known: some generate code without such limits.
    """
    if not all(all_templates()[name].is_limited for name in templates):
        return ""
    if limit := vendor_limit(hardware):
        return limit
    for access in workload.tensors:
        if access.num_elements > MOST_ELEMENTS:
            return too_large_text(access.tensor, access.num_elements)
    return ""


def check_generation(workload: Workload, hardware: GpuSpec | CpuSpec, templates: Iterable[str] = ()) -> None:
    """Raise an error before a search if no kernel of `workload` can be generated for `hardware`.

    `templates`: as for `generation_limit`.

    Raises
    ------
    BuildError
        No kernel can be generated; the message says why.
    """
    if limit := generation_limit(workload, hardware, templates):
        raise BuildError(f"{workload.describe()}: {limit}")


def vendor_limit(hardware: GpuSpec | CpuSpec) -> str:
    """Return why no kernel at all can be generated for `hardware`; "" if some can."""
    if hardware.kind != "gpu" or hardware.compute_capability is not None:
        return ""
    return (
        f"{hardware.name} is of architecture {hardware.arch!r}, expected an NVIDIA one (sm_..), because this template "
        "generates CUDA C; `anatune plan` works without code, and --template triton generates matrix products for "
        "gfx90a, gfx942 and gfx950 (it rounds float32 to tf32)"
    )


def too_large_text(tensor: str, num_elements: int) -> str:
    """Return the message for a tensor, or a copy that a schedule makes of it, that has too many elements."""
    return (
        f"{tensor} has {num_elements} elements, but generated kernels address at most {MOST_ELEMENTS} (32 bits); "
        "split the workload, or plan it without generating code"
    )

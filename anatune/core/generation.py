"""What generated kernels cannot do although a device can: limits of the code generators, not of schedules.

A plan does not count them: its schedules may be for another tuner's kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.templates import known_templates
from anatune.core.workload.nest import Workload
from anatune.errors import BuildError

MOST_ELEMENTS = 2**31 - 1
"""Elements of a tensor, copies that kernels make included: addresses are computed in 32 bits."""


def generation_limit(workload: Workload, hardware: GpuSpec | CpuSpec, templates: Iterable[str] = ()) -> str:
    """Return why no kernel of `workload` can be generated for `hardware`, whatever the schedule; "": one can.

    Parameters
    ----------
    templates : iterable of str
        Of the schedules, where these are known: some have code without such limits.
    """
    if not all(known_templates()[name].is_limited for name in templates):
        return ""
    if limit := vendor_limit(hardware):
        return limit
    for access in workload.tensors:
        if access.num_elements > MOST_ELEMENTS:
            return too_large_text(access.tensor, access.num_elements)
    return ""


def check_generation(workload: Workload, hardware: GpuSpec | CpuSpec, templates: Iterable[str] = ()) -> None:
    """Raise an error if no kernel of `workload` can be generated for `hardware`: better before a search than after it.

    `templates`: as for `generation_limit`.

    Raises
    ------
    BuildError
        None can; the message says why.
    """
    if limit := generation_limit(workload, hardware, templates):
        raise BuildError(f"{workload.describe()}: {limit}")


def vendor_limit(hardware: GpuSpec | CpuSpec) -> str:
    """Return why no kernel at all can be generated for `hardware`; "": some can."""
    if hardware.kind != "gpu" or hardware.compute_capability is not None:
        return ""
    return (
        f"{hardware.name} is of architecture {hardware.arch!r}, expected an NVIDIA one (sm_..): code of this kind is "
        "CUDA C only; `anatune plan` works for it, and gfx90a, gfx942 and gfx950 have products by --template triton, "
        "which rounds float32 to tf32"
    )


def too_large_text(tensor: str, num_elements: int) -> str:
    """Return that generated kernels cannot address a tensor, or the copy that a schedule makes of it."""
    return (
        f"{tensor} has {num_elements} elements, but generated kernels address at most {MOST_ELEMENTS} (in 32 bits); "
        "split the workload, or plan without generating code"
    )

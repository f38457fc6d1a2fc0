"""What templates are called, everywhere: on the command line, in schedules, JSON, records and cards."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_CORES",
    "GPU_TEMPLATES",
    "PIPELINED",
    "TEMPLATES",
    "TENSORCORE",
    "adopt_name",
    "former_names",
    "template_name",
]

CUDA, PIPELINED, TENSORCORE, CPU = "cuda", "pipelined", "tensorcore", "cpu"
CUDA_CORES = (CUDA, PIPELINED)
"""Templates whose arithmetic runs on CUDA cores."""
GPU_TEMPLATES = (*CUDA_CORES, TENSORCORE)
TEMPLATES = (*GPU_TEMPLATES, CPU)

_FORMER = {"gpu": CUDA, "gpu_pipelined": PIPELINED, "gpu_tensorcore": TENSORCORE}
"""What files of anatune 0.1.0 say."""


def template_name(name: Any) -> Any:
    """Return the name of a template that may be called by its former one; anything else comes back as it is."""
    return _FORMER.get(name, name) if isinstance(name, str) else name


def former_names(name: str) -> tuple[str, ...]:
    """Return what a template was called before."""
    return tuple(former for former, now in _FORMER.items() if now == name)


def adopt_name(owner: Any) -> None:
    """Replace a former name in the field ``template`` of a struct that is being made."""
    if owner.template != (name := template_name(owner.template)):
        # Frozen for everybody else: nobody has seen the object yet.
        msgspec.structs.force_setattr(owner, "template", name)

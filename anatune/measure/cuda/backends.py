"""Which of two packages makes NVIDIA's driver calls: cuda-bindings (NVIDIA's own) or pycuda."""

from __future__ import annotations

from collections.abc import Callable

from anatune.errors import DeviceError, MissingDependencyError
from anatune.measure.cuda.cuda_bindings import CudaBindings
from anatune.measure.cuda.driver_calls import Backend
from anatune.measure.cuda.pycuda_backend import PyCuda
from anatune.named import resolve

__all__ = ["BACKENDS", "NO_GPU", "WITHOUT_GPU", "make_backend"]

NO_GPU = "no GPU can be used here: "
WITHOUT_GPU = "plan, inspect, verify and export work without a GPU"

BACKENDS: dict[str, Callable[[], Backend]] = {"pycuda": PyCuda, "cuda-bindings": CudaBindings}
"""In the order in which they are tried."""


def make_backend(name: str | None = None) -> Backend:
    """Return the backend called `name`, by default the first one that works; or what ``module:function`` makes.

    Raises
    ------
    DeviceError
        None works here; the message says why and what works without.
    """
    if name is not None and ":" in name:
        made: Backend = resolve(name)()
        return made
    if name is not None and name not in BACKENDS:
        raise DeviceError(f"unknown GPU backend {name!r}, expected one of {', '.join(BACKENDS)}")
    why = f"neither {' nor '.join(BACKENDS)} is installed: pip install cuda-bindings"
    for each in [name] if name is not None else BACKENDS:
        try:
            return BACKENDS[each]()
        except MissingDependencyError as error:
            why = str(error) if name is not None else why
        except DeviceError as error:
            why = str(error)  # says more than that the other package is missing
    raise DeviceError(f"{NO_GPU}{why}; {WITHOUT_GPU}")

"""The choice of the package for driver calls: pycuda or cuda-bindings for NVIDIA GPUs, hip-python for AMD GPUs."""

from __future__ import annotations

from collections.abc import Callable

from anatune.errors import DeviceError, MissingDependencyError
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from anatune.measure.cuda.drivers.driver_calls import DriverBackend
from anatune.measure.cuda.drivers.hip_python import HipPython
from anatune.measure.cuda.drivers.pycuda_backend import PyCuda
from anatune.named import resolve

NO_GPU = "no GPU can be used here: "
WITHOUT_GPU = "plan, inspect, verify and export work without a GPU"

BACKENDS: dict[str, Callable[[], DriverBackend]] = {"pycuda": PyCuda, "cuda-bindings": CudaBindings}
"""Backends for NVIDIA GPUs in the order in which they are tried."""
_OF_AMD: dict[str, Callable[[], DriverBackend]] = {"hip-python": HipPython}


def make_backend(name: str | None = None, arch: str = "") -> DriverBackend:
    """Return the backend called `name`, or the result of ``module:function``; by default the first one that works.

    Parameters
    ----------
    arch : str
        Architecture of the GPU: "gfx..." uses AMD's package, others NVIDIA's.

    Raises
    ------
    DeviceError
        No backend works; the message says why, and what works without a GPU.
    """
    if name is not None and ":" in name:
        backend: DriverBackend = resolve(name)()
        return backend
    backends = _OF_AMD if arch.startswith("gfx") else BACKENDS
    if name is not None and name not in backends:
        raise DeviceError(f"unknown GPU backend {name!r}, expected one of {', '.join(backends)}")
    why = f"neither {' nor '.join(backends)} is installed: pip install cuda-bindings"
    for each in [name] if name is not None else backends:
        try:
            return backends[each]()
        except MissingDependencyError as error:
            why = str(error) if name is not None or len(backends) == 1 else why
        except DeviceError as error:
            why = str(error)  # more helpful than that the other package is missing
    raise DeviceError(f"{NO_GPU}{why}; {WITHOUT_GPU}")

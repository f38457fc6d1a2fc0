"""Convert PyTorch tensors to arrays and back, also bfloat16, for which NumPy needs ml_dtypes."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from anatune.arguments import plain_array
from anatune.errors import AnatuneError, WorkloadError
from anatune.network.graph.nodes import Array, TensorType, make_unknown
from anatune.untyped import TorchTensor

__all__ = ["any_array", "array_of_torch", "torch_of_array"]


def any_array(name: str, argument: object, error: type[AnatuneError]) -> Array:
    """Return an argument, maybe a PyTorch tensor, as an array; errors as `array_of_torch` and `plain_array`."""
    return array_of_torch(argument, name, error) if hasattr(argument, "detach") else plain_array(name, argument, error)


def array_of_torch(tensor: TorchTensor, name: str = "a constant", error: type[AnatuneError] = WorkloadError) -> Array:
    """Return the elements of a tensor as an array, without a copy if possible; those of a meta tensor are unknown.

    Parameters
    ----------
    name : str
        Words for the tensor in the message, such as "input x".

    Raises
    ------
    AnatuneError
        NumPy has no such arrays (sparse, quantised, 8-bit floats). The class is `error`.
    """
    if tensor.is_meta:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "bfloat16":
            import_module("ml_dtypes")
        return make_unknown(TensorType(tuple(tensor.shape), dtype))
    try:
        detached = tensor.detach().cpu()
        if detached.is_neg() or detached.is_conj():  # NumPy has no negation and conjugation bits
            detached = detached.resolve_conj().resolve_neg()
        if detached.dtype.itemsize != 2 or str(detached.dtype) != "torch.bfloat16":
            array: Array = detached.numpy()
            return array
        import_module("ml_dtypes")  # registers bfloat16 in NumPy
        bits: Array = detached.view(import_module("torch").int16).numpy()
    except (RuntimeError, TypeError, NotImplementedError) as reason:
        kind = f"{tensor.layout} {tensor.dtype} on {tensor.device}".replace("torch.", "")
        why = " ".join(str(reason).split())
        raise error(f"{name} is a tensor ({kind}), expected a dense one of numbers on the CPU: {why:.120}") from None
    return bits.view(np.dtype("bfloat16"))


def torch_of_array(array: Array) -> TorchTensor:
    """Return an array as a tensor, without a copy if possible.

    Raises
    ------
    WorkloadError
        PyTorch does not have the dtype.
    """
    torch = import_module("torch")
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    try:
        if array.dtype.name != "bfloat16":
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    except TypeError:
        raise WorkloadError(f"got an array of {array.dtype}, expected a dtype that PyTorch has") from None

"""Tensors of PyTorch's as arrays and back; NumPy's bfloat16 is that of ml_dtypes, which neither library exchanges."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from anatune.arguments import plain_array
from anatune.errors import AnatuneError, WorkloadError
from anatune.network.graph.nodes import Array, TensorType, unknown
from anatune.untyped import TorchTensor

__all__ = ["any_array", "array_of_torch", "torch_of_array"]


def any_array(name: str, given: object, error: type[AnatuneError]) -> Array:
    """Return what a caller gave as an array, tensors of PyTorch's too; errors as `array_of_torch` and `plain_array`."""
    return array_of_torch(given, name, error) if hasattr(given, "detach") else plain_array(name, given, error)


def array_of_torch(tensor: TorchTensor, name: str = "a constant", error: type[AnatuneError] = WorkloadError) -> Array:
    """Return the elements of a tensor, where they lie if they can; `unknown` ones of a meta tensor.

    Parameters
    ----------
    name : str
        What it is, for the message: "input x".

    Raises
    ------
    AnatuneError
        Of type `error`: NumPy has no such arrays (sparse, quantised, of 8-bit floats).
    """
    if tensor.is_meta:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "bfloat16":
            import_module("ml_dtypes")
        return unknown(TensorType(tuple(tensor.shape), dtype))
    try:
        found = tensor.detach().cpu()
        if found.is_neg() or found.is_conj():  # NumPy knows no bits that say so
            found = found.resolve_conj().resolve_neg()
        if found.dtype.itemsize != 2 or str(found.dtype) != "torch.bfloat16":
            array: Array = found.numpy()
            return array
        import_module("ml_dtypes")  # NumPy has bfloat16 from it
        bits: Array = found.view(import_module("torch").int16).numpy()
    except (RuntimeError, TypeError, NotImplementedError) as reason:
        kind = f"{tensor.layout} {tensor.dtype} on {tensor.device}".replace("torch.", "")
        told = " ".join(str(reason).split())
        raise error(f"{name} is a tensor ({kind}), expected a dense one of numbers on the CPU: {told:.120}") from None
    return bits.view(np.dtype("bfloat16"))


def torch_of_array(array: Array) -> TorchTensor:
    """Return a tensor of an array's elements, where they lie if they can.

    Raises
    ------
    WorkloadError
        PyTorch has no such dtype.
    """
    torch = import_module("torch")
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    try:
        if array.dtype.name != "bfloat16":
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    except TypeError:
        raise WorkloadError(f"an array of {array.dtype} was given, expected one of a dtype of PyTorch's") from None

"""Tensors of PyTorch's as arrays and back; NumPy's bfloat16 is that of ml_dtypes, which neither library exchanges."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from anatune.graph.nodes import Array, TensorType, unknown
from anatune.untyped import TorchObject

__all__ = ["array_of_torch", "torch_of_array"]


def array_of_torch(tensor: TorchObject) -> Array:
    """Return the elements of a tensor, where they lie; `unknown` ones of a meta tensor."""
    if tensor.is_meta:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "bfloat16":
            import_module("ml_dtypes")
        return unknown(TensorType(tuple(tensor.shape), dtype))
    found = tensor.detach().cpu()
    if found.dtype.itemsize != 2 or str(found.dtype) != "torch.bfloat16":
        array: Array = found.numpy()
        return array
    import_module("ml_dtypes")  # NumPy has bfloat16 from it
    bits: Array = found.view(import_module("torch").int16).numpy()
    return bits.view(np.dtype("bfloat16"))


def torch_of_array(array: Array) -> TorchObject:
    """Return a tensor of an array's elements, where they lie."""
    torch = import_module("torch")
    if array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

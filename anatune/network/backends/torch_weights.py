"""Digests of weights, which tell if the weights of a sub-graph are those that a network was compiled for.

PyTorch counts changes in place (`_version`), but not those through `.data`, through NumPy, or in inference mode. So
each call reads all weights, about as fast as memory is (25 GB/s on one core of an AMD EPYC, 0.4 us a small tensor).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np

from anatune.network.graph.nodes import Array
from anatune.numerics.digests import NUM_KEYS, update_digest
from anatune.untyped import TorchTensor, nn

__all__ = ["WeightDigests", "attribute_tensors", "is_static"]

_KEYS = np.random.default_rng(42).integers(0, 1 << 64, NUM_KEYS, dtype=np.uint64)
_PIECE = 1 << 22
"""Words of a tensor on a GPU that are multiplied at once."""
_LOW = (1 << 32) - 1


def is_static(argument: object) -> bool:
    """Return whether PyTorch's compiler took an argument from a module: a parameter, a buffer, another attribute."""
    return getattr(argument, "_dynamo_static_input_type", None) is not None


def attribute_tensors(torch: ModuleType, module: nn.Module) -> list[TorchTensor]:
    """Return the tensors that a sub-graph has as attributes, which PyTorch did not make arguments."""
    tensors = [*module.parameters(), *module.buffers()]
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = module
            for word in node.target.split("."):
                value = getattr(value, word, None)
            if isinstance(value, torch.Tensor) and not any(value is tensor for tensor in tensors):
                tensors.append(value)
    return tensors


class WeightDigests:
    """Digests of the contents of lists of tensors, the tensors of one list always of the same sizes and strides.

    Not safe to call from several threads at once.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._arrays: dict[int, tuple[int, int, Array | None]] = {}

    def digest(self, tensors: Sequence[TorchTensor]) -> int:
        """Return a digest of the contents of tensors on any device, which may be subclasses that hold tensors."""
        state = np.zeros(1, np.uint64)
        for index, tensor in enumerate(self._parts(tensors)):
            address, count = tensor.data_ptr(), tensor.numel()
            entry = self._arrays.get(index)
            if entry is None or entry[:2] != (address, count):
                entry = self._arrays[index] = (address, count, self._array(tensor))
            array = entry[2] if entry[2] is not None else self._copy(tensor)
            update_digest(array, _KEYS, state)
        return int(state[0])

    def _parts(self, tensors: Sequence[TorchTensor]) -> Iterator[TorchTensor]:
        """Yield tensors, and in the place of those that are made of others these."""
        for tensor in tensors:
            if type(tensor) not in self._plain and hasattr(tensor, "__tensor_flatten__"):
                yield from self._parts([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
            else:
                yield tensor

    def _array(self, tensor: TorchTensor) -> Array | None:
        """Return the bytes of a tensor, where they lie; None: they do not lie beside each other in this memory.

        The array does not keep the memory: it may be read only while a tensor is there that has its address.
        """
        expected = 1
        for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
            if size != 1 and stride != expected:
                return None
            expected *= size
        if tensor.device.type != "cpu" or not expected:
            return None
        memory = (ctypes.c_uint8 * (expected * tensor.element_size())).from_address(tensor.data_ptr())
        return np.frombuffer(memory, np.uint8)

    def _copy(self, tensor: TorchTensor) -> Array:
        """Return the bytes of a tensor's contents that do not lie in this memory in one piece."""
        whole = tensor.detach().contiguous().reshape(-1).view(self._torch.uint8)
        if tensor.device.type == "cpu":
            array: Array = whole.numpy()
            return array
        return _device_digest(self._torch, whole)


def _device_digest(torch: ModuleType, data: TorchTensor) -> Array:
    """Return a digest of the bytes of a tensor on a GPU, as bytes, which is computed there."""
    words = torch.nn.functional.pad(data, (0, -data.numel() % 8)).view(torch.int64)
    totals = []
    for number, piece in enumerate(words.split(_PIECE)):
        keys = torch.arange(piece.numel(), device=data.device) + (number * _PIECE + 1)
        for factor in (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9):
            key = keys * factor
            key = (key ^ ((key >> 31) & _LOW)) * 0x14D049BB133111EB
            low, high = (piece & _LOW) + (key & _LOW), ((piece >> 32) & _LOW) + ((key >> 32) & _LOW)
            totals.append(((low & _LOW) * (high & _LOW)).sum())
    digest: Array = torch.stack(totals).cpu().numpy().view(np.uint8) if totals else np.zeros(0, np.uint8)
    return digest

"""Pack a model's weights into one block of memory, which is also the saved file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from anatune.measure.cpu.blocks import ALIGNMENT_BYTES, tensor_of
from anatune.network.compiling.memory import Memory, new_memory, release_freed_memory, views
from anatune.network.graph.summary import WeightPlace
from anatune.network.relax.objects import compile_objects
from anatune.network.relax.packing import apply_copies
from anatune.network.relax.writing import Weight
from anatune.untyped import tvm

__all__ = ["pack_weights"]

_TRIM_BYTES = 1 << 24
"""Bytes of freed constants after which memory is returned to the system."""


def pack_weights(
    weights: Sequence[Weight], target: tvm.target.Target, *, forget: bool = False
) -> tuple[Memory, tuple[WeightPlace, ...]]:
    """Return weights packed as their kernels read them, in one block of memory, and the place of each.

    Parameters
    ----------
    forget : bool
        Free each constant after packing it: the graph's constants then have no values.

    Raises
    ------
    BuildError
        TVM refuses a packing function.
    """
    places: list[WeightPlace] = []
    end = 0
    for weight in weights:
        places.append(WeightPlace(end, weight.dtype, weight.shape))
        end += -(-weight.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    memory = new_memory(end)
    packers = {one.packer.name: one.packer for one in weights if one.packer and one.packer.copies is None}
    library = compile_objects({name: packer.function for name, packer in packers.items()}, target).load()
    freed = 0
    readers = Counter(weight.constant for weight in weights)
    for weight, array in zip(weights, views(memory, places), strict=True):
        if weight.packer and weight.packer.copies is not None:
            apply_copies(weight.packer.copies, weight.constant.array, array)
        elif weight.packer:
            library[weight.packer.name](tensor_of(weight.constant.array), tensor_of(array))
        else:
            array[...] = weight.constant.array
        readers[weight.constant] -= 1
        if forget and not readers[weight.constant]:
            freed += weight.constant.array.nbytes
            weight.constant.forget()
        if freed >= _TRIM_BYTES:
            freed = 0
            release_freed_memory()
    if forget:
        del library
        release_freed_memory()
    return memory, tuple(places)

"""A model's weights in one piece of memory, each where the compiled code expects it: that is also the saved file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.compat import TvmObject
from anatune.codegen.relax.building import packing_library
from anatune.codegen.relax.kernels import ModelKernel
from anatune.codegen.relax.writing import Weight
from anatune.graph.summary import WeightPlace
from anatune.measure.cpu.blocks import ALIGNMENT_BYTES, Block, tensor_of

__all__ = ["Memory", "pack_weights", "views"]

Memory = NDArray[np.uint8]
"""(num_bytes,) uint8, aligned for vectors."""


def pack_weights(
    weights: Sequence[Weight], kernels: Iterable[ModelKernel], target: TvmObject
) -> tuple[Memory, tuple[WeightPlace, ...]]:
    """Return weights as the built model takes them, packed by the kernels' own functions, and where each lies.

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
    memory = Block("uint8", (end,)).array
    memory[:] = 0  # packed forms have gaps
    library = packing_library(kernels, target)
    for weight, array in zip(weights, views(memory, places), strict=True):
        if weight.kernel:
            library[f"{weight.kernel}_pack_{weight.tensor}"](tensor_of(weight.array), tensor_of(array))
        else:
            array[...] = weight.array
    return memory, tuple(places)


def views(memory: Memory, places: Iterable[WeightPlace]) -> list[NDArray[np.generic]]:
    """Return the weights that lie in `memory`, without copying."""
    found = []
    for place in places:
        kind = np.dtype(place.dtype)
        size = math.prod(place.shape) * kind.itemsize
        found.append(memory[place.offset : place.offset + size].view(kind).reshape(place.shape))
    return found

"""A model's weights as views of one block of memory, which is all that running a model needs.

Also checks whether the machine has enough memory for a model's tensors.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anatune.files import open_file
from anatune.measure.cpu.blocks import ALIGNMENT_BYTES
from anatune.measure.run.correctness import array_dtype
from anatune.measure.run.memory import check_fits
from anatune.network.graph.nodes import Graph, TensorType, tensor_type
from anatune.network.graph.summary import WeightPlace

__all__ = ["Memory", "check_model_memory", "map_file", "new_memory", "release_freed_memory", "views"]

Memory = NDArray[np.uint8]
"""(num_bytes,) uint8, aligned for vectors."""


def new_memory(num_bytes: int) -> Memory:
    """Return zeroed memory; pages take no space until they are written to."""
    raw = np.zeros(num_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + num_bytes]


def map_file(path: Path) -> Memory:
    """Return a file's content, mapped: pages are read on use, and changes stay in this process.

    The mapped content stays the same if the file is replaced or removed.

    Raises
    ------
    OSError
        The file is missing, not a regular file, or not readable.
    """
    with open_file(path, None) as stream:
        return np.memmap(stream, np.uint8, "c") if os.fstat(stream.fileno()).st_size else np.empty(0, np.uint8)


def views(memory: Memory, places: Iterable[WeightPlace]) -> list[NDArray[np.generic]]:
    """Return the weights in `memory` as views."""
    arrays = []
    for weight_place in places:
        dtype = array_dtype(weight_place.dtype)
        size = math.prod(weight_place.shape) * dtype.itemsize
        arrays.append(memory[weight_place.offset : weight_place.offset + size].view(dtype).reshape(weight_place.shape))
    return arrays


def check_model_memory(graph: Graph, name: str, *, checked: bool) -> None:
    """Raise RunError if inputs, results, and for a check the largest of them in float64, exceed the free memory."""
    nodes = [one.type for one in graph.nodes() if isinstance(one.type, TensorType) and one.op != "broadcast_to"]
    kinds = [tensor_type(one) for one in (*graph.inputs, *graph.outputs)]
    ends = sum(math.prod(kind.shape) * array_dtype(kind.dtype).itemsize for kind in kinds)
    largest = 8 * checked * max((math.prod(kind.shape) for kind in (*nodes, *kinds)), default=0)
    advice = "compile it for smaller inputs or without the check, or take a machine with more memory"
    check_fits(f"{name}: its inputs and results", ends, ends + largest, advice)


def release_freed_memory() -> None:
    """Return freed memory to the system; glibc keeps freed blocks below one that is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

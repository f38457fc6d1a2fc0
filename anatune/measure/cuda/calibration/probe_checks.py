"""Inputs and expected results of the GPU probes, which detect probes whose work was optimized away.

Checking and timing use different operands. Checks need results that are known exactly after a few rounds. Timing needs
data whose bits change as in real programs, because all zeros can run faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.cuda.memory_probes import CHASE_UNROLL, LINE_BYTES
from anatune.codegen.cuda.probes import GpuProbe
from anatune.measure.run.correctness import Array

_ONES = {"float16": 0x3C003C00, "bfloat16": 0x3F803F80, "tfloat32": 0x3F800000}
"""1.0 in every element of a 32-bit word."""
_INT8_FACTORS = (3, -5, 7, 11)
_INT8_OFFSETS = (13, 2, -9, 4)
_TIMED_FACTOR, _TIMED_OFFSET = -1.0, 1.25
"""Factor and offset with which x becomes 1.25 - x and back again, so that all bits change and no result grows."""
_CHECKED_FACTOR, _CHECKED_OFFSET = 1.0, 1.0 / 64
"""Factor and offset that are exact in float16 for a few rounds."""
_SHARED_STEP = 52


def chain(lines: int, visited: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Return a chain that visits `visited` lines, evenly spread over `lines`, in random order, then starts again.

    Returns
    -------
    (lines * LINE_BYTES / 8,) uint64
        The first word of each line holds the byte offset of the next line; the chain starts at line 0.
    """
    places = rng.permutation(np.arange(1, visited)) * (lines // visited)
    order = np.concatenate(([0], places))
    words = LINE_BYTES // 8
    offsets = np.zeros(lines * words, dtype=np.uint64)
    offsets[order * words] = np.roll(order, -1) * LINE_BYTES
    return offsets


def probe_input(probe: GpuProbe, rng: np.random.Generator, *, checked: bool) -> Array:
    """Return the input of a probe for `check_result` or for timing; chases of global memory use `chain`."""
    buffer = probe.kernel.parameters[0]
    (size,) = buffer.shape
    if probe.kind == "multiply_add":
        return _multiply_add_input(str(probe.facts["dtype"]), size, rng, checked=checked)
    if probe.kind == "matrix_unit":
        dtype = str(probe.facts["dtype"])
        if checked:
            return np.full(size, _ONES[dtype], dtype=np.uint32)
        values = rng.standard_normal((size, 2), dtype=np.float32)
        if dtype == "float16":
            return values.astype(np.float16).view(np.uint32)[:, 0]
        wide = values.view(np.uint32)
        return wide[:, 0].copy() if dtype == "tfloat32" else (wide[:, 0] >> 16) | (wide[:, 1] & 0xFFFF0000)
    if probe.kind == "chase_shared":
        order = np.concatenate(([0], rng.permutation(np.arange(1, size))))
        following = np.empty(size, dtype=np.uint32)
        following[order] = np.roll(order, -1)
        return following
    if probe.kind == "read_shared":
        words = rng.integers(0, 2**32, size=size, dtype=np.uint32)
        words[-1] = _SHARED_STEP
        return words
    return rng.integers(0, 2**32, size=size, dtype=np.uint32).astype(buffer.dtype, copy=False)


def _multiply_add_input(dtype: str, size: int, rng: np.random.Generator, *, checked: bool) -> Array:
    if dtype == "int8":
        words = rng.integers(0, 2**32, size=size, dtype=np.uint32)
        words[:2] = np.array([_INT8_FACTORS, _INT8_OFFSETS], dtype=np.int8).view(np.uint32)[:, 0]
        return words
    values = rng.integers(16, 64, size=(size, 2)) / 64.0
    values[0] = _CHECKED_FACTOR if checked else _TIMED_FACTOR
    values[1] = _CHECKED_OFFSET if checked else _TIMED_OFFSET
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint32)[:, 0]
    return values[:, 0].astype(np.float32)


def check_result(probe: GpuProbe, given: Array, rounds: int, result: Array, *, before: int = 0) -> str | None:
    """Return the error in the result of a probe; None if it is correct.

    Parameters
    ----------
    probe, given, rounds
        The probe, its input (of `probe_input` for a check, or of `chain`), and its rounds.
    result
        The result buffer.
    before : int
        Number of loads of a chase of global memory before the timed ones.
    """
    expected = _compute_expected(probe, given, rounds, before)
    if expected is None:
        return None
    wrong = np.flatnonzero(result.reshape(-1)[: expected.size] != expected.reshape(-1))
    if not wrong.size:
        return None
    index = int(wrong[0])
    return (
        f"{probe.kernel.name} computed {result.reshape(-1)[index]!r} at {index}, expected "
        f"{expected.reshape(-1)[index]!r} ({wrong.size} of {expected.size} are wrong)"
    )


def _compute_expected(probe: GpuProbe, given: Array, rounds: int, before: int) -> Array | None:
    facts, kernel = probe.facts, probe.kernel
    if probe.kind == "multiply_add":
        return _multiply_add_result(probe, given, rounds * int(facts["steps"]))
    if probe.kind == "matrix_unit":
        total = float(rounds * int(facts["steps"]) * int(facts["depth"]))
        size = kernel.parameters[2].shape[0]
        return np.full(size, total, dtype=np.float32).view(np.uint32)
    if probe.kind == "read_shared":
        width, threads = int(facts["width"]) // 4, kernel.block
        base = np.arange(threads * width).reshape(threads, width)
        words = np.zeros(threads, dtype=np.uint32)
        for turn in range(rounds):
            shift = turn * int(given[-1]) % int(facts["shifted_words"])
            for load in range(int(facts["loads"])):
                words ^= np.bitwise_xor.reduce(given[base + (load * threads * width + shift)], axis=1)
        return np.tile(words, kernel.grid)
    if probe.kind == "read_global":
        vectors = given.reshape(-1, 4)
        threads = kernel.grid * kernel.block
        words = np.zeros(threads, dtype=np.uint32)
        for load in range(rounds * int(facts["loads"])):
            read = vectors[(np.arange(threads) + load * threads) % len(vectors)]
            words ^= read[:, 0] ^ read[:, 1] ^ read[:, 2] ^ read[:, 3]
        return words
    if probe.kind == "copy":
        copied = min(given.size, rounds * int(facts["loads"]) * kernel.grid * kernel.block * 4)
        return given[:copied]
    if probe.kind == "chase_global":
        offset = 0
        for _ in range(before + rounds * CHASE_UNROLL):
            offset = int(given[offset // 8])
        return np.array([offset], dtype=np.uint64)
    if probe.kind == "chase_shared":
        offset = 0
        for _ in range(rounds * CHASE_UNROLL):
            offset = int(given[offset])
        return np.array([offset], dtype=np.uint32)
    return None


def _multiply_add_result(probe: GpuProbe, given: Array, steps: int) -> Array:
    dtype, kernel = str(probe.facts["dtype"]), probe.kernel
    starts = given[2:]
    if dtype == "int8":
        factor, offset = given[:2].astype(np.uint32).view(np.int8).reshape(2, 4).astype(np.int64)
        last = ((starts.astype(np.int64) + steps * int(factor @ offset)) & 0xFFFFFFFF).astype(np.uint32)
    elif dtype == "float16":
        halves = starts.view(np.float16).astype(np.float64) + steps * _CHECKED_OFFSET
        last = halves.astype(np.float16).view(np.uint32)
    else:
        last = (starts.astype(np.float64) + steps * _CHECKED_OFFSET).astype(np.float32)
    return np.tile(last, kernel.grid)

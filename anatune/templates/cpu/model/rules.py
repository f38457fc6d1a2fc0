"""Exact number of legal points of a CPU space, and of those that each rule rejects."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.templates.cpu.model.pack import MULTIPLY_ADD_LIMIT, REGISTER_LIMIT
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.times.microkernel import kernel_rules

__all__ = ["count_rules"]


class _Kernel(NamedTuple):
    """What the rules need to know of the axes so far."""

    rows: int
    own_rows: tuple[int, ...]
    """Of each operand."""
    vectors: int
    unroll: int
    pairs: int
    is_chunked: bool


class _Axis(NamedTuple):
    """What an axis adds to them."""

    is_simd: bool
    is_summed: bool
    uses: tuple[bool, ...]
    """Whether each operand is indexed by the axis."""
    choices: tuple[tuple[int, bool, bool, int], ...]
    """Factor in the microkernel, whether it has a pair, and chunks; how many tilings are so."""


def count_rules(model: CpuScoring) -> tuple[int, dict[str, int]]:
    """Return the exact number of legal points and of those that each rule is the first to reject.

    The rules depend on few numbers of each axis (register factor, pair, unroll, whether it has chunks), whose
    histograms are multiplied axis by axis.
    """
    space, num_reads = model.space, len(model.workload.reads)
    most = int(REGISTER_LIMIT * model.machine.core.registers)  # of accumulators: more break the rule whatever else
    states = {_Kernel(1, (1,) * num_reads, 1, 1, 0, False): 1}
    for a in range(len(space.axes)):
        axis = _axis(model, a, most)
        following: dict[_Kernel, int] = {}
        for state, count in states.items():
            for factor, is_pair, is_chunked, number in axis.choices:
                grown = _grown(state, axis, factor, is_pair, is_chunked, most)
                following[grown] = following.get(grown, 0) + count * number
        states = following
    kernels = [(state.rows, state.vectors, state.unroll, state.pairs, 1 + state.is_chunked) for state in states]
    own_rows = np.array([state.own_rows for state in states], dtype=np.int64).reshape(len(states), num_reads)
    broken = np.empty(len(states), dtype=np.int64)
    kernel_rules(model.nest, model.machine.core, np.array(kernels, dtype=np.int64), own_rows, broken)
    rest = math.prod(space.radices[len(space.axes) :])
    legal, counts = 0, dict.fromkeys((rule.id for rule in model.rules), 0)
    for number, count in zip(broken.tolist(), states.values(), strict=True):
        points = count * rest
        if number:
            rule = model.rules[number - 1].id
            rejected = points // 2 if rule == "parallel_cores" else points  # the half whose loop is parallel
            counts[rule] += rejected
            points -= rejected
        legal += points
    return legal, counts


def _axis(model: CpuScoring, a: int, most: int) -> _Axis:
    """Return an axis; its factors that break a rule by themselves are one."""
    space, nest, axis = model.space, model.nest, model.space.axes[a]
    table, is_simd, is_summed = space.table(axis), bool(a == nest.simd[0]), bool(nest.is_reduction[a])
    kernel = table[:, len(space.levels[axis]) - 1]
    pair = table[:, -1] if axis in space.pairable else np.zeros_like(kernel)
    kernel = -(-kernel // (space.lanes if is_simd else nest.group[1] if a == nest.group[0] else 1))
    kernel = np.where(pair > 0, -(-kernel // np.maximum(pair, 1)), kernel)
    kernel = np.minimum(kernel, 1 + (int(MULTIPLY_ADD_LIMIT) if is_summed and not is_simd else most))
    is_chunked = (table[:, 0] > 1) & (nest.columns[a, 0] >= 0)
    rows = np.column_stack([kernel, (pair > 0) & (not is_simd), is_chunked])
    distinct, numbers = np.unique(rows, axis=0, return_counts=True)
    choices = tuple((*row, number) for row, number in zip(distinct.tolist(), numbers.tolist(), strict=True))
    return _Axis(is_simd, is_summed, tuple(nest.uses[:-1, a].astype(bool).tolist()), choices)


def _grown(state: _Kernel, axis: _Axis, factor: int, is_pair: bool, is_chunked: bool, most: int) -> _Kernel:
    """Return a state with one more axis; states that break the same rules whatever follows are one."""
    rows, own_rows, vectors, unroll, pairs, _ = state
    if axis.is_simd:
        vectors = factor
    elif axis.is_summed:
        unroll *= factor
    else:
        rows, pairs = rows * factor, min(pairs + is_pair, 2)
        own_rows = tuple([own * factor if used else own for own, used in zip(own_rows, axis.uses, strict=True)])
    if rows * vectors > most:
        return _Kernel(most + 1, (1,) * len(own_rows), 1, 1, pairs, False)
    if rows * vectors * unroll > MULTIPLY_ADD_LIMIT:
        unroll = int(MULTIPLY_ADD_LIMIT) + 1
    return _Kernel(rows, own_rows, vectors, unroll, pairs, bool(state.is_chunked or is_chunked))

"""Exact number of legal points of a CPU space, and of those that each rule rejects."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.templates.cpu.model.pack import MULTIPLY_ADD_LIMIT
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.times.microkernel import kernel_rules

__all__ = ["count_rules"]


_MOST_STEPS = int(MULTIPLY_ADD_LIMIT)


class _Kernel(NamedTuple):
    """What the rules need to know of the axes so far."""

    rows: int
    own_rows: tuple[int, ...]
    """Of each operand."""
    vectors: int
    pairs: int
    is_chunked: bool


class _Axis(NamedTuple):
    """What an axis adds to them."""

    is_simd: bool
    is_unrolled: bool
    """Whether its factor multiplies the steps of a call, which rule 3 limits, and nothing else."""
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
    core, block = model.machine.core, int(model.nest.group[2])
    most = int(core.register_limit * core.registers) * block  # of accumulators: more break the rule whatever else
    states = {_Kernel(1, (1,) * num_reads, 1, 0, False): 1}
    steps = {1: 1}
    for a in range(len(space.axes)):
        axis = _axis(model, a, most)
        if axis.is_unrolled:
            steps = _multiplied(steps, axis)
        else:
            states = _grown(states, axis, most)
    whole = sum(steps.values())
    kernels, own_rows, counts_of = [], [], []
    for state, count in states.items():
        fit = int(core.multiply_add_limit) // (-(-state.rows // block) * state.vectors)
        few = whole if state.rows > most else sum(number for unrolled, number in steps.items() if unrolled <= fit)
        for unrolled, number in ((1, few), (_MOST_STEPS + 1, whole - few)):
            if number:
                kernels.append((state.rows, state.vectors, unrolled, state.pairs, 1 + state.is_chunked))
                own_rows.append(state.own_rows)
                counts_of.append(count * number)
    broken = np.empty(len(kernels), dtype=np.int64)
    rows = np.array(own_rows, dtype=np.int64).reshape(len(kernels), num_reads)
    kernel_rules(model.nest, core, np.array(kernels, dtype=np.int64), rows, broken)
    rest = math.prod(space.radices[len(space.axes) :])
    legal, counts = 0, dict.fromkeys((rule.id for rule in model.rules), 0)
    for number, count in zip(broken.tolist(), counts_of, strict=True):
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
    table, is_simd = space.table(axis), bool(a == nest.simd[0])
    is_unrolled = bool(nest.is_reduction[a]) and not is_simd
    kernel = table[:, len(space.levels[axis]) - 1]
    pair = table[:, -1] if axis in space.pairable else np.zeros_like(kernel)
    kernel = -(-kernel // (space.lanes if is_simd else nest.group[1] if a == nest.group[0] else 1))
    kernel = np.where(pair > 0, -(-kernel // np.maximum(pair, 1)), kernel)
    kernel = np.minimum(kernel, 1 + (_MOST_STEPS if is_unrolled else most))
    is_chunked = (table[:, 0] > 1) & (nest.columns[a, 0] >= 0)
    rows = np.column_stack([kernel, (pair > 0) & (not is_simd), is_chunked])
    distinct, numbers = np.unique(rows, axis=0, return_counts=True)
    choices = tuple((*row, number) for row, number in zip(distinct.tolist(), numbers.tolist(), strict=True))
    return _Axis(is_simd, is_unrolled, tuple(nest.uses[:-1, a].astype(bool).tolist()), choices)


def _multiplied(steps: dict[int, int], axis: _Axis) -> dict[int, int]:
    """Return the steps of a call with one more axis, and how many tilings have them; too many are one number."""
    following: dict[int, int] = {}
    for factor, _, _, number in axis.choices:
        for unrolled, count in steps.items():
            product = min(unrolled * factor, _MOST_STEPS + 1)
            following[product] = following.get(product, 0) + count * number
    return following


def _grown(states: dict[_Kernel, int], axis: _Axis, most: int) -> dict[_Kernel, int]:
    """Return kernels with one more axis, and their counts; those that break the same rules whatever follows are one."""
    following: dict[_Kernel, int] = {}
    for (rows, own_rows, vectors, pairs, was_chunked), count in states.items():
        for factor, is_pair, is_chunked, number in axis.choices:
            grown_pairs = pairs if axis.is_simd else min(pairs + is_pair, 2)
            if rows * vectors * factor > most:
                grown = _Kernel(most + 1, (1,) * len(own_rows), 1, grown_pairs, False)
            elif axis.is_simd:
                grown = _Kernel(rows, own_rows, factor, grown_pairs, was_chunked or is_chunked)
            else:
                own = tuple([own * factor if used else own for own, used in zip(own_rows, axis.uses, strict=True)])
                grown = _Kernel(rows * factor, own, vectors, grown_pairs, was_chunked or is_chunked)
            following[grown] = following.get(grown, 0) + count * number
    return following

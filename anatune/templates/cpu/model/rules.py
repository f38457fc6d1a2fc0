"""Exact count of the legal points of a CPU space, and of those that each rule rejects."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.templates.cpu.model.pack import MULTIPLY_ADD_LIMIT
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.times.microkernel import kernel_rules

__all__ = ["count_rules"]


_MOST_STEPS = int(MULTIPLY_ADD_LIMIT)


class _KernelState(NamedTuple):
    """The quantities on which the rules depend, for the axes so far."""

    rows: int
    own_rows: tuple[int, ...]
    """Rows of each operand."""
    vectors: int
    pairs: int
    is_chunked: bool


class _AxisChoices(NamedTuple):
    """The contribution of one axis to a `_KernelState`."""

    is_simd: bool
    is_unrolled: bool
    """True if its factor only multiplies the unrolled steps of a call, which the rule microkernel_code limits."""
    uses: tuple[bool, ...]
    """True if the axis indexes each operand."""
    choices: tuple[tuple[int, bool, bool, int], ...]
    """(factor in the microkernel, has a pair, has chunks, number of such tilings) for each different choice."""


def count_rules(model: CpuScoring) -> tuple[int, dict[str, int]]:
    """Return the exact number of legal points, and of those that each rule is the first to reject.

    The rules depend on few quantities of each axis: register factor, pair, unroll factor, and whether it has chunks.
    The histograms of these quantities are multiplied axis by axis.
    """
    space, num_reads = model.space, len(model.workload.reads)
    core, block = model.machine.core, int(model.nest.group[2])
    most = int(core.register_limit * core.registers) * block  # accumulators: more than these break a rule in any case
    states = {_KernelState(1, (1,) * num_reads, 1, 0, False): 1}
    steps = {1: 1}
    for a in range(len(space.axes)):
        axis = _axis(model, a, most)
        if axis.is_unrolled:
            steps = _multiply_steps(steps, axis)
        else:
            states = _extend_states(states, axis, most)
    num_unrollings = sum(steps.values())
    kernels, own_rows, counts_of = [], [], []
    for state, count in states.items():
        fit = int(core.multiply_add_limit) // (-(-state.rows // block) * state.vectors)
        few = (
            num_unrollings
            if state.rows > most
            else sum(number for unrolled, number in steps.items() if unrolled <= fit)
        )
        for unrolled, number in ((1, few), (_MOST_STEPS + 1, num_unrollings - few)):
            if number:
                kernels.append((state.rows, state.vectors, unrolled, state.pairs, 1 + state.is_chunked))
                own_rows.append(state.own_rows)
                counts_of.append(count * number)
    broken = np.empty(len(kernels), dtype=np.int64)
    rows = np.array(own_rows, dtype=np.int64).reshape(len(kernels), num_reads)
    kernel_rules(model.nest, core, np.array(kernels, dtype=np.int64), rows, broken)
    num_choices = math.prod(space.radices[len(space.axes) :])
    legal, counts = 0, dict.fromkeys((rule.id for rule in model.rules), 0)
    for number, count in zip(broken.tolist(), counts_of, strict=True):
        points = count * num_choices
        if number:
            rule = model.rules[number - 1].id
            rejected = points // 2 if rule == "parallel_cores" else points  # the half whose loop is parallel
            counts[rule] += rejected
            points -= rejected
        legal += points
    return legal, counts


def _axis(model: CpuScoring, a: int, most: int) -> _AxisChoices:
    """Return the choices of an axis. Factors that break a rule by themselves are one choice."""
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
    return _AxisChoices(is_simd, is_unrolled, tuple(nest.uses[:-1, a].astype(bool).tolist()), choices)


def _multiply_steps(steps: dict[int, int], axis: _AxisChoices) -> dict[int, int]:
    """Return the steps of a call with one more axis -> number of tilings; counts beyond the limit are one entry."""
    following: dict[int, int] = {}
    for factor, _, _, number in axis.choices:
        for unrolled, count in steps.items():
            product = min(unrolled * factor, _MOST_STEPS + 1)
            following[product] = following.get(product, 0) + count * number
    return following


def _extend_states(states: dict[_KernelState, int], axis: _AxisChoices, most: int) -> dict[_KernelState, int]:
    """Return states with one more axis -> number of tilings; states that break the same rules in any case are one."""
    following: dict[_KernelState, int] = {}
    for (rows, own_rows, vectors, pairs, was_chunked), count in states.items():
        for factor, is_pair, is_chunked, number in axis.choices:
            grown_pairs = pairs if axis.is_simd else min(pairs + is_pair, 2)
            if rows * vectors * factor > most:
                grown = _KernelState(most + 1, (1,) * len(own_rows), 1, grown_pairs, False)
            elif axis.is_simd:
                grown = _KernelState(rows, own_rows, factor, grown_pairs, was_chunked or is_chunked)
            else:
                new_rows = tuple([old * factor if used else old for old, used in zip(own_rows, axis.uses, strict=True)])
                grown = _KernelState(rows * factor, new_rows, vectors, grown_pairs, was_chunked or is_chunked)
            following[grown] = following.get(grown, 0) + count * number
    return following

"""Exact number of legal points of a CPU space, and of those that each rule rejects."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.templates.cpu.model.pack import MULTIPLY_ADD_LIMIT, REGISTER_LIMIT
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.times.microkernel import kernel_rules

__all__ = ["count_rules"]


_Numbers = list[tuple[int, int]]


class _Kernel(NamedTuple):
    """What the rules need to know of a partial point."""

    rows: int
    own_rows: tuple[int, ...]
    """Of each operand."""
    vectors: int
    unroll: int
    pairs: int
    chunks: int


def count_rules(model: CpuScoring) -> tuple[int, dict[str, int]]:
    """Return the exact number of legal points and of those that each rule is the first to reject.

    The rules depend on few numbers of each axis (register factor, pair, unroll, whether it has chunks), whose
    histograms are multiplied axis by axis.
    """
    space, nest, machine = model.space, model.nest, model.machine
    registers, code_limit = REGISTER_LIMIT * machine.core.registers, int(MULTIPLY_ADD_LIMIT)
    num_reads = len(model.workload.reads)
    simd = int(nest.simd[0])
    states: dict[_Kernel, int] = {_Kernel(1, (1,) * num_reads, 1, 1, 0, 0): 1}
    too_large = [0, 0, 0]  # by number of pairs so far, 2 for more
    for a, axis in enumerate(space.axes):
        table = space.table(axis)
        kernel = table[:, len(space.levels[axis]) - 1].copy()
        pair = table[:, -1] if axis in space.pairable else np.zeros(len(table), dtype=np.int64)
        if a == simd:
            kernel = -(-kernel // space.lanes)
        if a == nest.group[0]:
            kernel = -(-kernel // nest.group[1])
        kernel = np.where(pair > 0, -(-kernel // np.maximum(pair, 1)), kernel)
        chunked = table[:, 0] > 1 if nest.columns[a, 0] >= 0 else np.zeros(len(table), dtype=bool)
        rows, numbers = np.unique(
            np.column_stack([kernel, (pair > 0) & (a != simd), chunked]), axis=0, return_counts=True
        )
        choices = [(*row, number) for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)]
        from_here = [(0, 0)]  # how many there are from each choice on: without, with a pair
        for _, is_pair, _, number in reversed(choices):
            alone, paired = from_here[-1]
            from_here.append((alone, paired + number) if is_pair else (alone + number, paired))
        from_here.reverse()
        following: dict[_Kernel, int] = {}
        lost = [0, 0, 0]

        def lose(pairs: int, count: int, place: int, lost: list[int] = lost, from_here: _Numbers = from_here) -> None:
            lost[pairs] += count * from_here[place][0]
            lost[min(pairs + 1, 2)] += count * from_here[place][1]

        for pairs, count in enumerate(too_large):
            lose(pairs, count, 0)
        is_summed, uses = nest.is_reduction[a] == 1, nest.uses[:num_reads, a].tolist()
        for (all_rows, own, vectors, unroll, pairs, chunks), count in states.items():
            for place, (factor, is_pair, is_chunked, number) in enumerate(choices):
                if a == simd:
                    state = _Kernel(all_rows, own, factor, unroll, pairs, chunks | is_chunked)
                elif is_summed:
                    product = unroll * factor
                    if product * all_rows * vectors > code_limit:  # and so it stays, whatever follows
                        state = _Kernel(all_rows, own, vectors, code_limit + 1, pairs, chunks)
                        following[state] = following.get(state, 0) + count * sum(from_here[place])
                        break
                    state = _Kernel(all_rows, own, vectors, product, pairs, chunks)
                else:
                    if all_rows * factor * vectors > registers:
                        lose(pairs, count, place)
                        break  # factors ascend
                    grown = tuple([o * factor if used else o for o, used in zip(own, uses, strict=True)])
                    paired = min(pairs + is_pair, 2)
                    state = _Kernel(all_rows * factor, grown, vectors, unroll, paired, chunks | is_chunked)
                if state.rows * state.vectors > registers:
                    lose(pairs, count, place)
                    break
                following[state] = following.get(state, 0) + count * number
        too_large = lost
        states = following
    rest = math.prod(space.radices[len(space.axes) :])
    counts = dict.fromkeys((rule.id for rule in model.rules), 0)
    counts["microkernel_pairs"] = too_large[2] * rest
    counts["microkernel_registers"] = (too_large[0] + too_large[1]) * rest
    found = list(states)
    kernels = [(state.rows, state.vectors, state.unroll, state.pairs, 1 + state.chunks) for state in found]
    own_rows = [state.own_rows for state in found]
    broken = np.empty(len(found), dtype=np.int64)
    kernel_rules(
        nest,
        machine.core,
        np.array(kernels, dtype=np.int64).reshape(len(found), 5),
        np.array(own_rows, dtype=np.int64).reshape(len(found), num_reads),
        broken,
    )
    legal = 0
    for state, number in zip(found, broken.tolist(), strict=True):
        count = states[state] * rest
        rule = model.rules[number - 1].id if number else ""
        if rule == "parallel_cores":  # broken by the half of the points whose loop is parallel
            count //= 2
            legal += count
        if rule:
            counts[rule] += count
        else:
            legal += count
    return legal, counts

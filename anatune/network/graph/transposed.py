"""Transposed convolutions as ordinary ones: a stride of s leaves s kinds of outputs, each a plain convolution.

Output ``o`` of a dimension with padding ``p`` is ``sum over i, t of x[i] * w[t]`` where ``i * s + t * d == o + p``. All
outputs with the same ``(o + p) mod s``, a phase, read the same taps, turned around, of neighbouring elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from anatune.network.graph.building import (
    broadcast,
    concat,
    constant,
    convolution,
    elementwise,
    permute,
    reshape,
    sliced,
)
from anatune.network.graph.nodes import Value, tensor_type

__all__ = ["transposed_convolution", "transposed_sizes"]


class _Phase(NamedTuple):
    """What one phase reads along a dimension.

    Attributes
    ----------
    first, step, taps : int
        Taps of the kernel: the first one, from each to the next one, how many; 0: the phase is nothing but zeros.
    dilation : int
        Elements from what a tap reads to what the next one reads.
    before, after : int
        Elements that the data lack; negative: that they have too many.
    """

    first: int
    step: int
    taps: int
    dilation: int
    before: int
    after: int


def transposed_sizes(
    sizes: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Return the sizes of what a transposed convolution makes of an image; `padding`: all before, then all behind."""
    rank = len(sizes)
    return tuple(
        int(
            strides[d] * (sizes[d] - 1)
            + output_padding[d]
            + (taps[d] - 1) * dilation[d]
            + 1
            - padding[d]
            - padding[rank + d]
        )
        for d in range(rank)
    )


def transposed_convolution(
    data: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """Return a transposed convolution of 1 to 3 dimensions with its channels first.

    Parameters
    ----------
    data, weight : Value
        (n, c, ...) and (c, k / groups, taps ...).
    bias : Value, optional
        (k,).
    strides, padding, output_padding, dilation : sequence of int
        Of each dimension; `padding`: all before, then all behind, what is taken away from the output.
    """
    (batch, channels, *sizes), (_, own, *taps) = tensor_type(data).shape, tensor_type(weight).shape
    rank = len(sizes)
    outputs = transposed_sizes(sizes, taps, strides, padding, output_padding, dilation)
    if min(outputs) < 1:
        raise ValueError(f"a transposed convolution leaves the sizes {list(outputs)}, expected 1 at least")
    grouped = reshape(weight, (groups, channels // groups, own, *taps))
    turned = permute(grouped, (0, 2, 1, *range(3, 3 + rank)))  # groups, outputs, inputs, taps
    first = [padding[d] // strides[d] for d in range(rank)]
    counts = [(padding[d] + outputs[d] - 1) // strides[d] - first[d] + 1 for d in range(rank)]
    phases = [
        [_phase(r, taps[d], strides[d], dilation[d], (first[d], counts[d], sizes[d])) for r in range(strides[d])]
        for d in range(rank)
    ]
    whole = list(itertools.product(*phases))
    alike = len({tuple(one._replace(first=0) for one in phase) for phase in whole}) == 1
    parts = [whole] if alike else [[phase] for phase in whole]
    found = concat([_convolved(data, turned, bias, part, counts) for part in parts], 2)
    # groups, outputs, then each dimension's places with the phases between them
    found = reshape(found, (batch, groups, *strides, own, *counts))
    order = [axis for d in range(rank) for axis in (3 + rank + d, 2 + d)]
    found = reshape(
        permute(found, (0, 1, 2 + rank, *order)),
        (batch, groups * own, *(count * stride for count, stride in zip(counts, strides, strict=True))),
    )
    begins = [padding[d] - first[d] * strides[d] for d in range(rank)]
    return sliced(found, range(2, 2 + rank), begins, [begins[d] + outputs[d] for d in range(rank)])


def _phase(rest: int, taps: int, stride: int, dilation: int, where: tuple[int, int, int]) -> _Phase:
    """Return what the outputs ``rest mod stride`` read; `where`: their first place, how many, elements of the data."""
    first, count, size = where
    common = math.gcd(stride, dilation)
    step, apart = stride // common, dilation // common
    start = next((tap for tap in range(min(step, taps)) if (tap * dilation - rest) % stride == 0), None)
    if start is None:
        return _Phase(0, 1, 0, 1, 0, 0)
    number = (taps - start + step - 1) // step
    before = (start * dilation - rest) // stride + (number - 1) * apart - first
    after = count + (number - 1) * apart - before - size
    return _Phase(start, step, number, apart, before, after)


def _convolved(
    data: Value, weight: Value, bias: Value | None, phases: Sequence[tuple[_Phase, ...]], counts: Sequence[int]
) -> Value:
    """Return phases that read the same data, (n, groups, phases * outputs of a group, places ...)."""
    (batch, _, *sizes), (groups, own, inputs, *taps) = tensor_type(data).shape, tensor_type(weight).shape
    rank, shape = len(counts), (batch, groups, own * len(phases), *counts)
    term = None if bias is None else concat([reshape(bias, (groups, own))] * len(phases), 1)
    cut = sliced(
        data,
        range(2, 2 + rank),
        [max(0, -one.before) for one in phases[0]],
        [size - max(0, -one.after) for one, size in zip(phases[0], sizes, strict=True)],
    )
    if not all(one.taps for one in phases[0]) or 0 in tensor_type(cut).shape:  # reads padding alone
        zero = constant(0, tensor_type(data).dtype)
        return broadcast(zero if term is None else reshape(term, (groups, -1, *(1,) * rank)), shape)
    cuts = [
        sliced(
            weight,
            range(3, 3 + rank),
            [one.first + (one.taps - 1) * one.step for one in phase],
            [one.first - one.step if one.first >= one.step else -tap - 1 for one, tap in zip(phase, taps, strict=True)],
            [-one.step for one in phase],
        )
        for phase in phases
    ]
    turned = reshape(concat(cuts, 1), (groups * own * len(phases), inputs, *(one.taps for one in phases[0])))
    padding = [max(0, one.before) for one in phases[0]] + [max(0, one.after) for one in phases[0]]
    found = convolution(
        cut, turned, strides=(1,) * rank, padding=padding, dilation=[one.dilation for one in phases[0]], groups=groups
    )
    if term is not None:
        found = elementwise("add", found, reshape(term, (-1, *(1,) * rank)))
    return reshape(found, shape)

"""Transposed convolutions as ordinary ones: with stride s the outputs form s groups, each a plain convolution.

Output ``o`` of a dimension with padding ``p`` is ``sum over i, t of x[i] * w[t]`` where ``i * s + t * d == o + p``. All
outputs with the same ``(o + p) mod s``, a phase, use the same taps in reverse order on neighbouring elements.
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
    slice_axes,
)
from anatune.network.graph.nodes import Value, tensor_type

__all__ = ["transposed_convolution", "transposed_sizes"]


class _Phase(NamedTuple):
    """The taps and elements that one phase reads along a dimension.

    Attributes
    ----------
    first, step, taps : int
        The first tap of the kernel, the distance between taps, and their number; 0 taps: the phase consists of zeros.
    dilation : int
        Elements between those that neighbouring taps read.
    before, after : int
        Elements of padding; negative: elements to drop.
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
    """Return the output sizes of a transposed convolution; `padding` lists all starts, then all ends."""
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
    """Return a transposed convolution of 1 to 3 dimensions, channels first.

    Parameters
    ----------
    data, weight : Value
        (n, c, ...) and (c, k / groups, taps ...).
    bias : Value, optional
        (k,).
    strides, padding, output_padding, dilation : sequence of int
        The values of each dimension. `padding` lists all starts, then all ends; it is cropped from the output.
    """
    (batch, channels, *sizes), (_, group_outputs, *taps) = tensor_type(data).shape, tensor_type(weight).shape
    rank = len(sizes)
    outputs = transposed_sizes(sizes, taps, strides, padding, output_padding, dilation)
    if min(outputs) < 1:
        raise ValueError(f"a transposed convolution has outputs of the sizes {list(outputs)}, expected at least 1")
    grouped = reshape(weight, (groups, channels // groups, group_outputs, *taps))
    outputs_first = permute(grouped, (0, 2, 1, *range(3, 3 + rank)))  # groups, outputs, inputs, taps
    first = [padding[d] // strides[d] for d in range(rank)]
    counts = [(padding[d] + outputs[d] - 1) // strides[d] - first[d] + 1 for d in range(rank)]
    phases = [
        [_phase(r, taps[d], strides[d], dilation[d], (first[d], counts[d], sizes[d])) for r in range(strides[d])]
        for d in range(rank)
    ]
    all_phases = list(itertools.product(*phases))
    is_uniform = len({tuple(axis_phase._replace(first=0) for axis_phase in phase) for phase in all_phases}) == 1
    parts = [all_phases] if is_uniform else [[phase] for phase in all_phases]
    result = concat([_convolve_phases(data, outputs_first, bias, part, counts) for part in parts], 2)
    # groups, outputs, then the positions of each dimension, with the phases between them
    result = reshape(result, (batch, groups, *strides, group_outputs, *counts))
    order = [axis for d in range(rank) for axis in (3 + rank + d, 2 + d)]
    result = reshape(
        permute(result, (0, 1, 2 + rank, *order)),
        (batch, groups * group_outputs, *(count * stride for count, stride in zip(counts, strides, strict=True))),
    )
    begins = [padding[d] - first[d] * strides[d] for d in range(rank)]
    return slice_axes(result, range(2, 2 + rank), begins, [begins[d] + outputs[d] for d in range(rank)])


def _phase(remainder: int, taps: int, stride: int, dilation: int, extents: tuple[int, int, int]) -> _Phase:
    """Return the taps of the outputs ``remainder mod stride``; `extents`: first position, positions, data size."""
    first, count, size = extents
    common = math.gcd(stride, dilation)
    step, dilated_step = stride // common, dilation // common
    start = next((tap for tap in range(min(step, taps)) if (tap * dilation - remainder) % stride == 0), None)
    if start is None:
        return _Phase(0, 1, 0, 1, 0, 0)
    number = (taps - start + step - 1) // step
    before = (start * dilation - remainder) // stride + (number - 1) * dilated_step - first
    after = count + (number - 1) * dilated_step - before - size
    return _Phase(start, step, number, dilated_step, before, after)


def _convolve_phases(
    data: Value, weight: Value, bias: Value | None, phases: Sequence[tuple[_Phase, ...]], counts: Sequence[int]
) -> Value:
    """Return phases that read the same data, (n, groups, phases * outputs of a group, positions ...)."""
    (batch, _, *sizes), (groups, size_k, inputs, *taps) = tensor_type(data).shape, tensor_type(weight).shape
    rank, shape = len(counts), (batch, groups, size_k * len(phases), *counts)
    term = None if bias is None else concat([reshape(bias, (groups, size_k))] * len(phases), 1)
    cut = slice_axes(
        data,
        range(2, 2 + rank),
        [max(0, -p.before) for p in phases[0]],
        [size - max(0, -p.after) for p, size in zip(phases[0], sizes, strict=True)],
    )
    if not all(p.taps for p in phases[0]) or 0 in tensor_type(cut).shape:  # reads only padding
        zero = constant(0, tensor_type(data).dtype)
        return broadcast(zero if term is None else reshape(term, (groups, -1, *(1,) * rank)), shape)
    cuts = [
        slice_axes(
            weight,
            range(3, 3 + rank),
            [p.first + (p.taps - 1) * p.step for p in phase],
            [p.first - p.step if p.first >= p.step else -tap - 1 for p, tap in zip(phase, taps, strict=True)],
            [-p.step for p in phase],
        )
        for phase in phases
    ]
    reversed = reshape(concat(cuts, 1), (groups * size_k * len(phases), inputs, *(p.taps for p in phases[0])))
    padding = [max(0, p.before) for p in phases[0]] + [max(0, p.after) for p in phases[0]]
    result = convolution(
        cut, reversed, strides=(1,) * rank, padding=padding, dilation=[p.dilation for p in phases[0]], groups=groups
    )
    if term is not None:
        result = elementwise("add", result, reshape(term, (-1, *(1,) * rank)))
    return reshape(result, shape)

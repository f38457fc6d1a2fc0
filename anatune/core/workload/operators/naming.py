"""Recognition of common operators: the constructor's workload for a loop nest of another program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from anatune.core.workload.nest import Access, Workload
from anatune.core.workload.operators.convolution import conv2d, depthwise_conv2d
from anatune.core.workload.operators.matmul import batch_matmul, matmul
from anatune.errors import WorkloadError


def named_workload(nest: Workload) -> Workload:
    """Return the matrix product or two-dimensional convolution that a nest computes, or else the nest itself.

    The nest may lack loops of one iteration and may have its loops in another order, but its axes must have the names
    that the constructors use. Padding that no window reaches is unknown; symmetric padding is assumed if it fits.

    Examples
    --------
    >>> import msgspec
    >>> from anatune.core.workload.operators import matmul
    >>> bare = msgspec.structs.replace(matmul(8, 4, 2, transpose_b=True), operator="einsum", attributes=())
    >>> named_workload(bare) == matmul(8, 4, 2, transpose_b=True)
    True
    """
    wanted = _content(nest)
    return next((candidate for candidate in _candidates(nest) if _content(candidate) == wanted), nest)


def _content(workload: Workload) -> tuple[object, ...]:
    """Return the computation without loops of one iteration, the order of the loops, and names other than the axes'."""
    loops = {(axis.name, axis.extent, axis.kind) for axis in workload.axes if axis.extent > 1}
    many = {name for name, _, _ in loops}

    def content(access: Access) -> tuple[object, ...]:
        terms = tuple(frozenset((t.axis, t.coefficient) for t in index if t.axis in many) for index in access.indices)
        return access.dtype, access.shape, terms, access.offsets

    accesses = tuple(content(access) for access in (*workload.reads, workload.write))
    return frozenset(loops), accesses, workload.body, workload.epilogue


def _candidates(nest: Workload) -> Iterator[Workload]:
    if len(nest.reads) != 2 or nest.body != "multiply_add":
        return
    shapes = [access.shape for access in (*nest.reads, nest.write)]
    try:
        if all(len(shape) == 4 for shape in shapes):
            yield from _convolutions(nest)
        elif len(shapes[0]) in (2, 3) and all(len(shape) == len(shapes[0]) for shape in shapes):
            yield from _products(nest)
    except WorkloadError:
        return


def _products(nest: Workload) -> Iterator[Workload]:
    a, c = nest.reads[0].shape, nest.write.shape
    make = partial(batch_matmul, c[0]) if len(c) == 3 else matmul
    for flip_a in (False, True):
        k = a[-2 if flip_a else -1]
        for flip_b in (False, True):
            yield make(c[-2], c[-1], k, dtype=nest.dtype, transpose_a=flip_a, transpose_b=flip_b)


def _convolutions(nest: Workload) -> Iterator[Workload]:
    data, weight = nest.reads
    outputs = nest.write.shape
    for layout in ("NCHW", "NHWC"):
        first = 2 if layout == "NCHW" else 1  # number of the height's dimension
        n, c, (h, w) = data.shape[0], data.shape[1 if first == 2 else 3], data.shape[first : first + 2]
        k, inner, r, s = weight.shape if first == 2 else (*reversed(weight.shape[2:]), *weight.shape[:2])
        windows = [
            _window(data, first + place, axis, size, kernel, output)
            for place, (axis, size, kernel, output) in enumerate(
                zip("yx", (h, w), (r, s), outputs[first : first + 2], strict=True)
            )
        ]
        stride, dilation, before, after = zip(*windows, strict=True)
        if inner == 1 < c and k % c == 0:
            make = partial(depthwise_conv2d, n, c, h, w, r, s, k // c)
        elif inner and c % inner == 0 and k % (c // inner) == 0:
            make = partial(conv2d, n, c, h, w, k, r, s, groups=c // inner)
        else:
            continue
        padding = before if before == after else (*before, *after)
        yield make(stride=stride, padding=padding, dilation=dilation, layout=layout, dtype=nest.dtype)


def _window(data: Access, dimension: int, axis: str, size: int, kernel: int, output: int) -> tuple[int, int, int, int]:
    """Return stride, dilation, and zeros before and after a dimension of the data."""
    steps = {term.axis: term.coefficient for term in data.indices[dimension]}
    stride, dilation = steps.get(axis, 1), steps.get(f"r{axis}", 1)
    before = -data.offsets[dimension]
    reach = (kernel - 1) * dilation + 1
    if (size + 2 * before - reach) // stride + 1 == output:
        return stride, dilation, before, before
    return stride, dilation, before, max(0, (output - 1) * stride + reach - size - before)

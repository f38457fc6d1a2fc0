"""What logs say about the workload: shapes of operands, checked against a workload, or read to one where they suffice.

Shapes alone settle a matrix product (unless it is square: then nobody knows what is transposed), never a convolution:
stride, padding and dilation may change and leave all shapes as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.matmul import batch_matmul, matmul
from anatune.errors import WorkloadError
from anatune.records.traces import GPU_TILING, Factors, UnfitError, axis_factors

__all__ = ["NO_WORKLOAD", "Shape", "axis_orders", "check_shapes", "match_loops", "product_of", "shapes_text"]

Shape = tuple[int, ...]
NO_WORKLOAD = "the log does not say which workload this is: give it, as for `anatune plan`"


def shapes_text(shapes: Sequence[Shape]) -> str:
    """Return shapes as people read them."""
    return ", ".join("x".join(map(str, shape)) for shape in shapes)


def check_shapes(workload: Workload, shapes: Sequence[Shape], dtypes: Sequence[str] = ()) -> None:
    """Raise UnfitError unless a log's tensors can be those of a workload.

    Parameters
    ----------
    shapes : sequence of shapes
        Operands, then the result; a bias may stand between. Empty: nothing is said. One flat shape: all of them joined.
    dtypes : sequence of str
        Of the tensors; empty: nothing is said.
    """
    wanted = [access.shape for access in (*workload.reads, workload.write)]
    if shapes:
        joined = [extent for shape in shapes for extent in shape]
        operands, result = sum(wanted[:-1], ()), wanted[-1]
        swapped = sum(wanted[-2::-1], ())
        fits = tuple(joined[: len(operands)]) in (operands, swapped) and tuple(joined[-len(result) :]) == result
        if not fits or len(joined) < len(operands) + len(result):
            raise UnfitError(
                f"another workload: the log's tensors are {shapes_text(shapes)}, expected {shapes_text(wanted)}"
            )
    if dtypes and workload.dtype not in dtypes:
        raise UnfitError(f"another workload: the log's tensors are {dtypes[0]}, expected {workload.dtype}")


def product_of(shapes: Sequence[Shape], dtype: str, extents: Sequence[int]) -> Workload:
    """Return the only matrix product of these tensors.

    Parameters
    ----------
    shapes : sequence of shapes
        Operands, then the result.
    extents : sequence of int
        Of the loops that the log tiles, spatial before reduction: they have to be the product's.

    Raises
    ------
    UnfitError
        There is none, or several.
    """
    found = [one for one in _products(shapes, dtype) if sorted(one.extents.values()) == sorted(extents)]
    if len(found) == 1:
        return found[0]
    raise UnfitError(NO_WORKLOAD + (f" (tensors {shapes_text(shapes)} may be several)" if found else ""))


def _products(shapes: Sequence[Shape], dtype: str) -> Iterator[Workload]:
    if len(shapes) == 1 and len(shapes[0]) in (6, 9):  # one flat shape
        third = len(shapes[0]) // 3
        shapes = [shapes[0][at : at + third] for at in range(0, 3 * third, third)]
    if len(shapes) != 3 or any(len(shape) != len(shapes[0]) for shape in shapes) or len(shapes[0]) not in (2, 3):
        return
    batch, (m, n) = shapes[2][:-2], shapes[2][-2:]
    for flip_a in (False, True):
        k = shapes[0][-2 if flip_a else -1]
        for flip_b in (False, True):
            a, b = ((k, m) if flip_a else (m, k)), ((n, k) if flip_b else (k, n))
            if [*shapes[:2]] == [batch + a, batch + b]:
                make = functools.partial(batch_matmul, batch[0]) if batch else matmul
                try:
                    yield make(m, n, k, dtype=dtype, transpose_a=flip_a, transpose_b=flip_b)
                except WorkloadError:
                    return


def axis_orders(workload: Workload) -> list[tuple[str, ...]]:
    """Return the orders in which TVM may loop over a workload: spatial axes, then reduction axes.

    The spatial loops are the result's dimensions. The reduction's are the channels before the windows or behind them:
    first as the workload's own layout has them (topi's convolutions do), then the other way.
    """
    spatial = workload.output_axes
    names = [axis.name for axis in workload.reduction_axes]
    channels = [name for name in names if name == "rc"]
    windows = [name for name in names if name != "rc"]
    orders = [(*channels, *windows), (*windows, *channels)] if channels and windows else [tuple(names)]
    if str(workload.attribute.get("layout", "")).endswith("C"):
        orders.reverse()
    return [(*spatial, *reduction) for reduction in orders]


def match_loops(
    workload: Workload, spatial: Sequence[Sequence[int]], reduction: Sequence[Sequence[int]]
) -> dict[str, Factors]:
    """Return axis -> factors of the GPU's tiling, the tiled loops of a block being those of a workload.

    Parameters
    ----------
    spatial, reduction : sequence of factors
        Of each loop, outer to inner, in the block's order; loops of one iteration may be missing.

    Raises
    ------
    UnfitError
        Their extents are not the workload's.
    """
    extents = workload.extents
    kinds = (("S", workload.spatial_axes, spatial), ("R", workload.reduction_axes, reduction))
    for order in axis_orders(workload):
        tiles: dict[str, Factors] = {}
        for kind, axes, loops in kinds:
            own = {axis.name for axis in axes}
            found = axis_factors({name: extents[name] for name in order if name in own}, loops, GPU_TILING.count(kind))
            if found is None:
                break
            tiles |= found
        else:
            return {axis.name: tiles[axis.name] for axis in workload.axes}
    stated = "x".join(str(math.prod(factors)) for factors in (*spatial, *reduction))
    wanted_text = "x".join(str(extents[name]) for name in axis_orders(workload)[0])
    raise UnfitError(f"another workload: the log tiles loops of {stated}, expected {wanted_text} ({workload.operator})")

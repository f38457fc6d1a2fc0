"""The constructors of reductions over dimensions of one tensor, and of element-wise operators."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.arguments import quote
from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.number_formats import accumulated_dtype
from anatune.core.workload.operators._arguments import check_choice, check_dtype, check_integer, check_shape
from anatune.core.workload.operators._product import make_access
from anatune.errors import WorkloadError

REDUCTION_KINDS: dict[str, str] = {"sum": "add", "max": "max", "mean": "average"}
"""Kind of reduction -> body of the nest."""

ELEMENTWISE_OPERATORS: dict[str, tuple[str, int, int]] = {
    "relu": ("relu", 1, 1),
    "copy": ("copy", 1, 0),
    "add": ("add", 2, 1),
    "multiply": ("multiply", 2, 1),
    "maximum": ("max", 2, 1),
}
"""Element-wise operator -> (body of the nest, number of operands, operations per element)."""


def _access(tensor: str, dtype: str, shape: tuple[int, ...], dimensions: Sequence[int]) -> Access:
    """Return the access to some dimensions of `shape`, with one axis for each."""
    return make_access(tensor, dtype, [(shape[place], (Term(f"d{place}"),), 0) for place in dimensions])


def reduction(
    shape: Sequence[int], axes: int | Sequence[int] | None = None, kind: str = "sum", dtype: str = "float32"
) -> Workload:
    """Return the reduction of a tensor over some of its dimensions, which the result lacks.

    The axes are called d0, d1, ... after the dimensions of the input; the reduced ones come last.

    Parameters
    ----------
    shape : sequence of int, >= 1
        Shape of the input, in elements.
    axes : int, sequence of int or None
        Dimensions to reduce; negative numbers count from the end. By default all (the result is a scalar).
    kind : {"sum", "max", "mean"}
        Function of the reduced elements.
    dtype : {"float32", "float16", "bfloat16", "int8"}
        Dtype of the input; the result has the same dtype, or int32 for a sum or mean of int8.

    Raises
    ------
    WorkloadError
        An argument is out of range, or a dimension is named twice or does not exist.
    """
    extents = check_shape("reduction", "shape", shape)
    rank = len(extents)
    dimensions: tuple[object, ...] = tuple(range(rank)) if axes is None else (axes,)
    if isinstance(axes, (tuple, list)):
        dimensions = tuple(axes)
    hint = f"give some of 0..{rank - 1}, each once"
    positions = [check_integer("reduction", "axes", place, -rank, hint) for place in dimensions]
    reduced = sorted(place % rank for place in positions)
    if not reduced or max(positions) >= rank or len(set(reduced)) != len(reduced):
        raise WorkloadError(f"reduction: axes is {quote(axes)}, expected dimensions of a shape of rank {rank}; {hint}")
    body = REDUCTION_KINDS[check_choice("reduction", "kind", kind, tuple(REDUCTION_KINDS))]
    element = check_dtype("reduction", dtype)
    kept_dimensions = [place for place in range(rank) if place not in reduced]
    return Workload(
        operator="reduction",
        axes=(
            *(Axis(f"d{place}", extents[place], "spatial") for place in kept_dimensions),
            *(Axis(f"d{place}", extents[place], "reduction") for place in reduced),
        ),
        reads=(_access("data", element, extents, range(rank)),),
        write=_access("output", element if body == "max" else accumulated_dtype(element), extents, kept_dimensions),
        body=body,
        flop_per_point=1,
        attributes=(("shape", extents), ("axes", tuple(reduced)), ("kind", kind), ("dtype", element)),
    )


def elementwise(shape: Sequence[int], op: str = "relu", dtype: str = "float32") -> Workload:
    """Return an element-wise operator: each element depends on the elements with the same indices.

    Parameters
    ----------
    shape : sequence of int, >= 1
        Shape of all operands and of the result, in elements; the axes are d0, d1, ...
    op : {"relu", "copy", "add", "multiply", "maximum"}
        Operator. relu and copy read ``data`` and write ``output``; the others read ``A`` and ``B`` and write ``C``.
    dtype : {"float32", "float16", "bfloat16", "int8"}
        Dtype of the operands and the result.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    extents = check_shape("elementwise", "shape", shape)
    body, operands, flop = ELEMENTWISE_OPERATORS[check_choice("elementwise", "op", op, tuple(ELEMENTWISE_OPERATORS))]
    element = check_dtype("elementwise", dtype)
    names = ("data", "output") if operands == 1 else ("A", "B", "C")
    accesses = [_access(name, element, extents, range(len(extents))) for name in names]
    return Workload(
        operator="elementwise",
        axes=tuple(Axis(f"d{place}", extent, "spatial") for place, extent in enumerate(extents)),
        reads=tuple(accesses[:-1]),
        write=accesses[-1],
        body=body,
        flop_per_point=flop,
        attributes=(("shape", extents), ("op", op), ("dtype", element)),
    )

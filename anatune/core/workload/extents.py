"""The same operator with another extent of one axis."""

from __future__ import annotations

from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.errors import WorkloadError

__all__ = ["with_extent"]


def with_extent(workload: Workload, axis: str, extent: int) -> Workload:
    """Return `workload` with `extent` iterations of `axis`, all other axes as they are.

    Raises
    ------
    WorkloadError
        There is no such axis, no argument of the operator is its extent (the rows of a convolution's result follow
        from those of its data), or the operator takes no such extent.
    """
    extents = workload.extents
    if axis not in extents:
        raise WorkloadError(f"{workload.operator} has no axis {axis!r:.40}, expected one of {', '.join(extents)}")
    if extent == extents[axis]:
        return workload
    wanted = {**extents, axis: extent}
    arguments = workload.attribute
    for name, value in arguments.items():
        if type(value) is int and value == extents[axis]:
            changed = CONSTRUCTORS[workload.operator](**{**arguments, name: extent})
            if dict(changed.extents) == wanted:
                return changed
    raise WorkloadError(f"{workload.operator}: axis {axis} is the size of no argument, so that it has no other extents")

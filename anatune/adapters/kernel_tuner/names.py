"""What the parameters of somebody's kernel mean: configurations as points of the template `cuda`.

Notation
--------
names : mapping from a role to where its value comes from: the name of a tunable parameter, a number, or a function of
    the configuration. Roles of an axis x of the workload: ``block_x`` results of a thread block (of a summed axis:
    steps between two barriers), ``threads_x``, ``work_x`` results of a thread (two of the three; the third follows;
    an axis of extent 1 needs none), ``inner_x`` how many of them lie side by side (of a summed axis: innermost,
    unrolled steps). Of an operand T: ``vector_T`` elements fetched at once, ``fetch_T`` threads side by side that
    fetch it, ``staged_T`` whether it goes through shared memory. ``unroll``: depth.
weight : what a predicted time is multiplied by, for what the template cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.logs.parts import UNROLLED
from anatune.arguments import shown
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.operators.matmul import matmul
from anatune.errors import SpaceError

Integers = NDArray[np.int64]
Value: TypeAlias = Any
"""Of a tunable parameter: whatever Kernel Tuner takes, mostly integers."""
Config: TypeAlias = Mapping[str, Value]
"""A configuration: parameter -> its value."""
Values: TypeAlias = tuple[Value, ...]
"""A configuration as values in the order of the parameters."""
Source: TypeAlias = str | int | Callable[[Config], int]
Names: TypeAlias = Mapping[str, Source]

_WIDE = 32
"""Threads side by side whose accesses the model counts as whole transactions."""
_NARROW_COST = 0.02
"""Log of the time that each halving of `_WIDE` costs, for each operand. Assumed; fewer threads were slower for both
operands on each of seven devices (CLBlast's GEMM), and pruning hardly depends on it between 0.01 and 0.05."""
_UNSTAGED_COST = 0.02
"""The same for each operand that is not staged. Assumed: the model does not know; keeps such kernels behind others."""


def _inner(width: str, strided: str, tile: str, threads: str) -> Callable[[Config], int]:
    """Return CLBlast's results side by side: a vector where threads are strided, else all of the thread's."""

    def found(config: Config) -> int:
        return int(config[width]) if config.get(strided, 0) else int(config[tile]) // int(config[threads])

    return found


CLBLAST: Names = {
    "block_i": "NWG", "threads_i": "NDIMC", "inner_i": _inner("VWN", "STRN", "NWG", "NDIMC"),
    "block_j": "MWG", "threads_j": "MDIMC", "inner_j": _inner("VWM", "STRM", "MWG", "MDIMC"),
    "block_k": "KWG", "inner_k": "KWI", "vector_A": "VWN", "vector_B": "VWM", "staged_A": "SB", "staged_B": "SA",
    "fetch_A": "NDIMB", "fetch_B": "MDIMA",
}  # fmt: skip
"""Parameters of CLBlast's Xgemm, for the workload of `clblast_gemm`. Its M is the contiguous dimension of a
column-major result, so it is j here, and its A is our B."""


def clblast_gemm(m: int, n: int, k: int) -> Workload:
    """Return the workload of CLBlast's Xgemm of these sizes (column-major, A not transposed, B transposed).

    Raises
    ------
    WorkloadError
        A size is below 1.
    """
    return matmul(n, m, k, transpose_a=True)


def is_clblast(names: Names) -> bool:
    """Return whether names are those of CLBlast's Xgemm."""
    return isinstance(names, Mapping) and dict(names) == dict(CLBLAST)


def roles_of(workload: Workload) -> tuple[str, ...]:
    """Return the roles that names may have for a workload."""
    roles = [f"{kind}_{axis.name}" for axis in workload.spatial_axes for kind in ("block", "threads", "work", "inner")]
    roles += [f"{kind}_{axis.name}" for axis in workload.reduction_axes for kind in ("block", "inner")]
    roles += [f"{kind}_{access.tensor}" for access in workload.reads for kind in ("vector", "fetch", "staged")]
    return (*roles, "unroll")


def checked_names(names: Names, workload: Workload, parameters: Sequence[str]) -> None:
    """Refuse unknown roles, unknown parameters, and axes of which too little is known.

    Raises
    ------
    SpaceError
        One of these.
    """
    if not isinstance(names, Mapping) or not names:
        raise SpaceError(f"names is {shown(names)}, expected a mapping such as {{'block_i': 'BM', 'threads_i': 'TM'}}")
    roles = roles_of(workload)
    for role, source in names.items():
        if role not in roles:
            raise SpaceError(f"names: role {shown(role)} is unknown, expected some of {', '.join(roles)}")
        if isinstance(source, str) and source not in parameters:
            raise SpaceError(
                f"names: {role} is the parameter {shown(source)}, which tune_params lacks; it has "
                f"{', '.join(parameters)}: add it there with its one value, or give the number"
            )
        if not isinstance(source, str | int) and not callable(source):
            raise SpaceError(f"names: {role} is {shown(source)}, expected a parameter's name, a number or a function")
    for axis in workload.spatial_axes:
        known = [f"{kind}_{axis.name}" for kind in ("block", "threads", "work") if f"{kind}_{axis.name}" in names]
        if len(known) < 2 and (known or axis.extent > 1):
            raise SpaceError(
                f"names: of axis {axis.name} only {known or 'nothing'} is given, expected two of block_{axis.name}, "
                f"threads_{axis.name} and work_{axis.name} (1 where it has none)"
            )
    for axis in workload.reduction_axes:
        if f"block_{axis.name}" not in names and axis.extent > 1:
            raise SpaceError(f"names: block_{axis.name} is missing, expected how many steps a stage has")


class Roles:
    """Values of the roles of many configurations.

    Parameters
    ----------
    names
        As above.
    parameters : sequence of str
        Names of the tunable parameters.
    rows : sequence of tuple
        One value of each parameter for each configuration.

    Raises
    ------
    SpaceError
        A value is no integer.
    """

    def __init__(self, names: Names, parameters: Sequence[str], rows: Sequence[Values]) -> None:
        self._names, self._parameters, self._rows = names, list(parameters), rows

    def has(self, role: str) -> bool:
        """Return whether the names say where a role's value comes from."""
        return role in self._names

    def get(self, role: str, default: int | Integers) -> Integers:
        """Return a role's value of each configuration, (num_configs,) int64."""
        if role not in self._names:
            return np.broadcast_to(np.asarray(default, dtype=np.int64), (len(self._rows),))
        source = self._names[role]
        values: list[Value]
        if isinstance(source, str):
            at = self._parameters.index(source)
            values = [row[at] for row in self._rows]
        elif callable(source):
            values = [source(dict(zip(self._parameters, row, strict=True))) for row in self._rows]
        else:
            values = [source] * len(self._rows)
        try:
            found = np.array(values, dtype=np.float64).reshape(len(self._rows))
        except (TypeError, ValueError):
            found = np.array([np.nan])
        if not np.all(np.isfinite(found) & (found == np.floor(found))):
            raise SpaceError(f"names: {role} ({shown(source)}) has values that are no integers")
        return found.astype(np.int64)


def _spatial(roles: Roles, axis: str, extents: Integers, valid: NDArray[np.bool_]) -> Integers:
    """Return block, vthread, thread, outer and inner factors, (num_configs, 5); narrows `valid`."""
    named = [f"{kind}_{axis}" for kind in ("block", "threads", "work")]
    least = -1 if any(map(roles.has, named)) else 1  # of one element there is nothing to say
    block, threads, work = (roles.get(role, least) for role in named)
    block = np.where(block < 0, threads * work, block)
    threads = np.where(threads < 0, block // np.maximum(work, 1), threads)
    threads = np.maximum(threads, 0)
    each = block // np.maximum(threads, 1)
    inner = roles.get(f"inner_{axis}", each)
    valid &= (block >= 1) & (threads >= 1) & (inner >= 1) & (threads * each == block)
    inner = np.clip(inner, 1, np.maximum(each, 1))
    valid &= each % inner == 0
    safe = np.maximum(block, 1)
    return np.column_stack([-(-extents // safe), each // inner, threads, np.ones_like(block), inner])


def _reduction(roles: Roles, axis: str, extents: Integers, valid: NDArray[np.bool_]) -> Integers:
    """Return stage, outer and inner factors, (num_configs, 3); narrows `valid`."""
    block = roles.get(f"block_{axis}", 1)
    inner = np.minimum(roles.get(f"inner_{axis}", 1), np.maximum(block, 1))
    valid &= (block >= 1) & (inner >= 1) & (block % np.maximum(inner, 1) == 0)
    return np.column_stack([-(-extents // np.maximum(block, 1)), block // np.maximum(inner, 1), inner])


def tile_points(
    names: Names, workload: Workload, parameters: Sequence[str], rows: Sequence[Values]
) -> tuple[Integers, NDArray[np.bool_], NDArray[np.float64]]:
    """Turn configurations into points of the template `cuda`.

    Blocks that reach over the end of an axis count whole: the factors multiply to the extent rounded up.

    Returns
    -------
    points : (num_configs, num_columns) int64
        In the order of GpuSpace.columns.
    valid : (num_configs,) bool
        Whether the values fit together: threads times work is the block, parts divide it.
    weight : (num_configs,) float64, >= 1
        Operands that few neighbouring threads fetch, or that are not staged, cost a little: of configurations that
        are tiled alike, the others come first.

    Raises
    ------
    SpaceError
        Names that `workload` or the parameters do not have; values that are no integers.
    """
    checked_names(names, workload, parameters)
    roles = Roles(names, parameters, rows)
    valid, cost = np.ones(len(rows), dtype=bool), np.zeros(len(rows))
    columns: list[Integers] = []
    for axis in workload.axes:
        extents = np.full(len(rows), axis.extent, dtype=np.int64)
        make = _spatial if axis.kind == "spatial" else _reduction
        columns.append(make(roles, axis.name, extents, valid))
    columns.append(roles.get("unroll", UNROLLED)[:, None])
    for access in workload.reads if workload.reduction_axes else ():
        columns.append(np.maximum(roles.get(f"vector_{access.tensor}", 1), 1)[:, None])
        cost += np.where(roles.get(f"staged_{access.tensor}", 1) == 0, _UNSTAGED_COST, 0.0)
        neighbours = np.clip(roles.get(f"fetch_{access.tensor}", _WIDE), 1, _WIDE)
        cost += _NARROW_COST * np.log2(_WIDE / neighbours)
    return np.concatenate(columns, axis=1), valid, np.exp(cost)


def rounded_workload(workload: Workload, extents: Mapping[str, int]) -> Workload:
    """Return the workload that blocks of these extents compute: of a matrix product the padded one.

    Other operators stay as they are: kernels guard what reaches over the end, tensors are not padded, and a point's
    blocks count whole in any case.
    """
    if dict(extents) == dict(workload.extents) or workload.operator != "matmul":
        return workload
    sizes = {"m": extents["i"], "n": extents["j"], "k": extents["k"]}
    return CONSTRUCTORS[workload.operator](**workload.attribute | sizes)

"""The meaning of the parameters of a caller's kernel: its configurations as points of the template `cuda`.

Notation
--------
names : a mapping from a role to the source of its value: the name of a tunable parameter, a number, or a function of
    the configuration. Roles of an axis x of the workload: ``block_x``, results of a thread block (for a reduction axis:
    steps between two barriers); ``threads_x``; ``work_x``, results of a thread; ``inner_x``, how many of the latter are
    adjacent (for a reduction axis: innermost, unrolled steps). Give two of block, threads and work: the third follows
    from them, and an axis of extent 1 needs none. Roles of an operand T: ``vector_T``, elements fetched at once;
    ``fetch_T``, neighbouring threads that fetch it; ``staged_T``, whether it goes through shared memory. ``unroll`` is
    the unroll depth.
weight : a factor of the predicted time, for properties of the kernel that the template cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.logs.parts import UNROLLED
from anatune.arguments import quote
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.operators.matmul import matmul
from anatune.errors import SpaceError

Integers = NDArray[np.int64]
Value: TypeAlias = Any
"""The value of a tunable parameter: anything that Kernel Tuner takes, mostly integers."""
Config: TypeAlias = Mapping[str, Value]
"""A configuration: parameter -> its value."""
Values: TypeAlias = tuple[Value, ...]
"""A configuration as values in the order of the parameters."""
Source: TypeAlias = str | int | Callable[[Config], int]
Names: TypeAlias = Mapping[str, Source]

_WIDE = 32
"""The number of neighbouring threads whose accesses the model counts as whole transactions."""
_NARROW_COST = 0.02
"""The logarithm of the factor in time for each halving of `_WIDE`, for each operand. Assumed: fewer threads were slower
for both operands on each of seven devices (CLBlast's GEMM), and pruning hardly changes between 0.01 and 0.05."""
_UNSTAGED_COST = 0.02
"""The same for each operand that is not staged. Assumed: the model does not predict it, and others come first."""


def _inner(width: str, strided: str, tile: str, threads: str) -> Callable[[Config], int]:
    """Return a function for CLBlast's adjacent results: a vector if threads are strided, otherwise all of a thread."""

    def count_adjacent(config: Config) -> int:
        return int(config[width]) if config.get(strided, 0) else int(config[tile]) // int(config[threads])

    return count_adjacent


CLBLAST: Names = {
    "block_i": "NWG", "threads_i": "NDIMC", "inner_i": _inner("VWN", "STRN", "NWG", "NDIMC"),
    "block_j": "MWG", "threads_j": "MDIMC", "inner_j": _inner("VWM", "STRM", "MWG", "MDIMC"),
    "block_k": "KWG", "inner_k": "KWI", "vector_A": "VWN", "vector_B": "VWM", "staged_A": "SB", "staged_B": "SA",
    "fetch_A": "NDIMB", "fetch_B": "MDIMA",
}  # fmt: skip
"""The parameters of CLBlast's Xgemm, for the workload of `clblast_gemm`. CLBlast's M is the contiguous dimension of a
column-major result, so it is j here, and CLBlast's A is B here."""


def clblast_gemm(m: int, n: int, k: int) -> Workload:
    """Return the workload of CLBlast's Xgemm with these sizes (column-major, A not transposed, B transposed).

    Raises
    ------
    WorkloadError
        A size is below 1.
    """
    return matmul(n, m, k, transpose_a=True)


def is_clblast(names: Names) -> bool:
    """Return whether `names` equals `CLBLAST`."""
    return isinstance(names, Mapping) and dict(names) == dict(CLBLAST)


def roles_of(workload: Workload) -> tuple[str, ...]:
    """Return the roles that `names` may have for a workload."""
    roles = [f"{kind}_{axis.name}" for axis in workload.spatial_axes for kind in ("block", "threads", "work", "inner")]
    roles += [f"{kind}_{axis.name}" for axis in workload.reduction_axes for kind in ("block", "inner")]
    roles += [f"{kind}_{access.tensor}" for access in workload.reads for kind in ("vector", "fetch", "staged")]
    return (*roles, "unroll")


def check_names(names: Names, workload: Workload, parameters: Sequence[str]) -> None:
    """Check that `names` has known roles and parameters, and enough roles for each axis.

    Raises
    ------
    SpaceError
        A role or parameter is unknown, or an axis has too few roles.
    """
    if not isinstance(names, Mapping) or not names:
        raise SpaceError(f"names is {quote(names)}, expected a mapping such as {{'block_i': 'BM', 'threads_i': 'TM'}}")
    roles = roles_of(workload)
    for role, source in names.items():
        if role not in roles:
            raise SpaceError(f"names: role {quote(role)} is unknown, expected roles among {', '.join(roles)}")
        if isinstance(source, str) and source not in parameters:
            raise SpaceError(
                f"names: {role} is the parameter {quote(source)}, which is not in tune_params ("
                f"{', '.join(parameters)}); add it there with its only value, or give a number instead"
            )
        if not isinstance(source, str | int) and not callable(source):
            raise SpaceError(f"names: {role} is {quote(source)}, expected a parameter's name, a number or a function")
    for axis in workload.spatial_axes:
        axis_roles = [f"{kind}_{axis.name}" for kind in ("block", "threads", "work") if f"{kind}_{axis.name}" in names]
        if len(axis_roles) < 2 and (axis_roles or axis.extent > 1):
            raise SpaceError(
                f"names: axis {axis.name} has {', '.join(axis_roles) or 'no role'}, expected two of block_{axis.name}, "
                f"threads_{axis.name} and work_{axis.name} (give 1 if the kernel has no such parameter)"
            )
    for axis in workload.reduction_axes:
        if f"block_{axis.name}" not in names and axis.extent > 1:
            raise SpaceError(f"names: block_{axis.name} is missing, expected the number of steps of a stage")


class Roles:
    """The values of the roles in many configurations.

    Parameters
    ----------
    names
        The mapping that the head of this module describes.
    parameters : sequence of str
        The names of the tunable parameters.
    rows : sequence of tuple
        The values of the parameters, one row for each configuration.

    Raises
    ------
    SpaceError
        A value is not an integer.
    """

    def __init__(self, names: Names, parameters: Sequence[str], rows: Sequence[Values]) -> None:
        self._names, self._parameters, self._rows = names, list(parameters), rows

    def has(self, role: str) -> bool:
        """Return whether `names` has this role."""
        return role in self._names

    def get(self, role: str, default: int | Integers) -> Integers:
        """Return the value of a role in each configuration, (num_configs,) int64."""
        if role not in self._names:
            return np.broadcast_to(np.asarray(default, dtype=np.int64), (len(self._rows),))
        source = self._names[role]
        values: list[Value]
        if isinstance(source, str):
            column = self._parameters.index(source)
            values = [row[column] for row in self._rows]
        elif callable(source):
            values = [source(dict(zip(self._parameters, row, strict=True))) for row in self._rows]
        else:
            values = [source] * len(self._rows)
        try:
            numbers = np.array(values, dtype=np.float64).reshape(len(self._rows))
        except (TypeError, ValueError):
            numbers = np.array([np.nan])
        if not np.all(np.isfinite(numbers) & (numbers == np.floor(numbers))):
            raise SpaceError(f"names: {role} ({quote(source)}) has values that are not integers")
        return numbers.astype(np.int64)


def _spatial(roles: Roles, axis: str, extents: Integers, valid: NDArray[np.bool_]) -> Integers:
    """Return block, vthread, thread, outer and inner factors, (num_configs, 5); clear `valid` where they do not fit."""
    role_names = [f"{kind}_{axis}" for kind in ("block", "threads", "work")]
    least = -1 if any(map(roles.has, role_names)) else 1  # an axis without roles has extent 1
    block, threads, work = (roles.get(role, least) for role in role_names)
    block = np.where(block < 0, threads * work, block)
    threads = np.where(threads < 0, block // np.maximum(work, 1), threads)
    threads = np.maximum(threads, 0)
    work_given = block // np.maximum(threads, 1)
    inner = roles.get(f"inner_{axis}", work_given)
    valid &= (block >= 1) & (threads >= 1) & (inner >= 1) & (threads * work_given == block)
    inner = np.clip(inner, 1, np.maximum(work_given, 1))
    valid &= work_given % inner == 0
    safe = np.maximum(block, 1)
    return np.column_stack([-(-extents // safe), work_given // inner, threads, np.ones_like(block), inner])


def _reduction(roles: Roles, axis: str, extents: Integers, valid: NDArray[np.bool_]) -> Integers:
    """Return stage, outer and inner factors, (num_configs, 3); clear `valid` where they do not fit."""
    block = roles.get(f"block_{axis}", 1)
    inner = np.minimum(roles.get(f"inner_{axis}", 1), np.maximum(block, 1))
    valid &= (block >= 1) & (inner >= 1) & (block % np.maximum(inner, 1) == 0)
    return np.column_stack([-(-extents // np.maximum(block, 1)), block // np.maximum(inner, 1), inner])


def tile_points(
    names: Names, workload: Workload, parameters: Sequence[str], rows: Sequence[Values]
) -> tuple[Integers, NDArray[np.bool_], NDArray[np.float64]]:
    """Turn configurations into points of the template `cuda`.

    Blocks that reach over the end of an axis count as whole blocks: the product of the factors is the padded extent.

    Returns
    -------
    points : (num_configs, num_columns) int64
        The points, with the columns of GpuSpace.columns.
    valid : (num_configs,) bool
        Whether the values are consistent: threads times work is the block, and the parts divide it.
    weight : (num_configs,) float64, >= 1
        The factor of the predicted time. Operands that are not staged, or that few neighbouring threads fetch, cost a
        little, so that configurations without them come first among those with equal tiles.

    Raises
    ------
    SpaceError
        `names` has a role or parameter that does not exist, or a value is not an integer.
    """
    check_names(names, workload, parameters)
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


def pad_workload(workload: Workload, extents: Mapping[str, int]) -> Workload:
    """Return the workload with padded extents if it is a matrix product, and otherwise the workload itself.

    Kernels of other operators do not pad their tensors but guard accesses over the end of an axis. The blocks of a
    point count as whole blocks in any case.
    """
    if dict(extents) == dict(workload.extents) or workload.operator != "matmul":
        return workload
    sizes = {"m": extents["i"], "n": extents["j"], "k": extents["k"]}
    return CONSTRUCTORS[workload.operator](**workload.attribute | sizes)

"""Registers that NVIDIA's compiler will probably use, estimated by a regression on compiled schedules.

A compiler with free registers moves loads ahead and unrolls loops. Accumulators, fragments and staged loads therefore
explain only half of the registers that it uses. Boosted trees learn the rest from compiled schedules (``python -m
bench.models.gpu_compiler FILE --fit``). ``models/gpu_registers`` holds the trees, their data, versions, and errors on
operators and architectures that they were not fitted to.

Only reports use the estimate. The ranking keeps the model's own count, because its bounds need a closed form.
``plan(compile=N)`` gets the number from the compiler.
"""

from __future__ import annotations

import functools
import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import DTYPE_BYTES
from anatune.decoding import from_json
from anatune.errors import SpecError
from anatune.resources import data_folder
from anatune.templates.cuda.model.scoring import CudaScoring
from anatune.templates.gpu.times.columns import Col

__all__ = ["FEATURES", "RegisterTrees", "expected_registers", "register_features", "register_trees"]

FIRST_ARCH = 70
"""Oldest architecture of the data, sm_70. Nothing is estimated for older ones or for compilers of other vendors."""
DTYPE = "float32"
"""Number format of the data. All of its workloads have a reduction."""
LEAST_REGISTERS = 16.0
"""Fewest registers that kernels of the data use, about."""
_MOST_LOADS_AHEAD = 16.0
"""Fetches of a thread that the generated code unrolls (`cuda.program.program`)."""

Floats = NDArray[np.float64]

_COLUMNS = (
    "ACCUMULATORS", "FRAGMENTS", "THREADS", "REGISTER_CAP", "SPILLED", "DYNAMIC", "VTHREADS", "REG_INNER", "REG_OUTER",
    "K2", "STEPS", "STAGES", "LOADS", "FETCHES", "UNROLL",
)  # fmt: skip
FEATURES = (
    *(name.lower() for name in _COLUMNS),
    "k1", "last_k2", "fetched_elements", "fetch_width", "loads_a_step", "inner_body", "step_body", "register_body",
    "whole_body", "unrolled_k2", "unrolled_outer", "unrolled_k1", "live_while_fetching", "live_while_computing",
    "live_ahead", "operands", "dimensions", "guarded", "spatial_axes", "reduction_axes", "arch",
)  # fmt: skip
"""Names of the columns of `register_features`, in order. A change needs a new fit."""


class RegisterTrees(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Boosted trees as flat tables, in which the nodes of all trees follow each other.

    Attributes
    ----------
    features : tuple of str
        Names of the features; the entries of `feature` are indices into it.
    roots : tuple of int
        First node of each tree.
    feature, left, right : tuple of int
        For each node, the feature that it tests, the next node if the feature is at most the threshold, and the next
        node otherwise. `left` of a leaf is the leaf itself.
    threshold : tuple of float
        Threshold of each node.
    value : tuple of float
        Registers of each leaf. The estimate is the sum over the trees.
    """

    features: tuple[str, ...]
    roots: tuple[int, ...]
    feature: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    threshold: tuple[float, ...]
    value: tuple[float, ...]

    def evaluate(self, table: Floats) -> Floats:
        """Return the sum of the trees' leaves for each row of `table`, (num_points, len(features)) float64."""
        feature, left, right = (np.array(values) for values in (self.feature, self.left, self.right))
        threshold, value = np.array(self.threshold), np.array(self.value)
        rows = np.arange(len(table))[:, None]
        node = np.broadcast_to(np.array(self.roots), (len(table), len(self.roots)))
        while True:
            following = np.where(table[rows, feature[node]] <= threshold[node], left[node], right[node])
            if (following == node).all():
                return np.asarray(value[node].sum(axis=1))
            node = following


@functools.cache
def register_trees() -> RegisterTrees:
    """Return the regression from the package's data.

    Raises
    ------
    SpecError
        The file is damaged or was fitted to other features.
    """
    path = data_folder("models") / "gpu_registers" / "model.json"
    try:
        trees = from_json(path.read_bytes(), RegisterTrees)
    except (OSError, msgspec.DecodeError) as error:
        raise SpecError(f"{path}: {error}; reinstall anatune") from None
    if trees.features != FEATURES:
        raise SpecError(f"{path}: fitted to other features than this version has; reinstall anatune")
    return trees


def arch_number(arch: str) -> int:
    """Return 86 for "sm_86", and 0 for an architecture that is not NVIDIA's."""
    match = re.fullmatch(r"sm_(\d+)", arch)
    return int(match[1]) if match else 0


def expected_registers(model: CudaScoring, points: NDArray[np.int64], columns: Floats) -> Floats | None:
    """Return the registers of a thread that the compiler is expected to use, or None if there is no data for the case.

    Parameters
    ----------
    points : (num_points, len(model.space.columns)) int64
    columns : (Col.COUNT, num_points) float64
        Quantities of the points, from `model.raw_columns`.
    """
    workload = model.workload
    if arch_number(model.hardware.arch) < FIRST_ARCH or workload.dtype != DTYPE or not workload.reduction_axes:
        return None
    estimate = register_trees().evaluate(register_features(model, points, columns))
    return np.rint(np.clip(estimate, LEAST_REGISTERS, columns[Col.REGISTER_CAP]))


def register_features(model: CudaScoring, points: NDArray[np.int64], columns: Floats) -> Floats:
    """Return the regression's features, (num_points, len(FEATURES)) float64. Arguments: see `expected_registers`."""
    workload, column_of = model.workload, {name: column for column, name in enumerate(model.space.columns)}
    reduction = [axis.name for axis in workload.reduction_axes]
    col = {name: columns[Col[name]] for name in _COLUMNS}
    ones = np.ones(len(points))
    k1 = np.prod([points[:, column_of[f"{axis}.k1"]] for axis in reduction], axis=0) * ones
    last_k2 = points[:, column_of[f"{reduction[-1]}.k2"]] * ones if reduction else ones
    limit = np.maximum(col["UNROLL"], float(model.hardware.compiler.unroll_statements))
    inner = col["VTHREADS"] * col["REG_INNER"]
    step, register = inner * col["K2"], inner * col["REG_OUTER"]
    whole = step * col["REG_OUTER"]
    unrolled = [step <= limit, whole <= limit, whole * k1 <= np.maximum(col["UNROLL"], 1.0)]
    fetched = columns[Col.TILE_BYTES] / DTYPE_BYTES[workload.dtype] / col["THREADS"]
    width = fetched / np.maximum(col["FETCHES"], 1.0)
    kept = np.where(unrolled[1], col["ACCUMULATORS"], 8.0)
    operands = max(1, len(workload.reads))
    ahead = np.minimum(col["FETCHES"], operands * _MOST_LOADS_AHEAD)
    steps = np.where(unrolled[0], col["K2"], 1.0)
    rows = [
        *col.values(),
        k1, last_k2, fetched, width, col["LOADS"] / np.maximum(col["STEPS"], 1.0), inner, step, register, whole * k1,
        *unrolled, kept + ahead * (width + 1.0), kept + col["FRAGMENTS"], kept + col["FRAGMENTS"] * steps,
        operands * ones, sum(len(access.shape) for access in workload.reads) * ones,
        float(any(offset < 0 for access in workload.reads for offset in access.offsets)) * ones,
        len(workload.spatial_axes) * ones, len(reduction) * ones, arch_number(model.hardware.arch) * ones,
    ]  # fmt: skip
    return np.stack([np.asarray(row, dtype=np.float64) for row in rows], axis=1)

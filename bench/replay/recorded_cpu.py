"""Recorded CPU measurements (by others) as points of anatune's CPU space.

Reads the tables described in the data folder's README: AutoTVM conv2d_NCHWc.x86 (any device with a spec) and Ansor on
x86. How a row maps to the template:

AutoTVM NCHWc (TVM's schedule): parallel loop over n, f / oc_bn, y / tile_oh; inside it x / ow_bn, then the whole
reduction around tile_oh * ow_bn rows of oc_bn channels. Data, weight and output are blocked before the measurement
begins (AutoTVM tunes with packed placeholders), so all three are packed; ic_bn only orders the input channels.

Ansor (SSRSRS): levels 0 and 1 of each spatial axis outside the outer reduction loops, levels 2 inside them, then the
inner reduction loops around level 3; the last spatial axis is vectorised in the tensors' own layout. Level 1 belongs to
the parallel loop when more loops are fused than there are spatial axes. Without cache_write or unrolling the
accumulators live in memory, which is scored as a spill.

Neither source names an instruction set: with a bare "llvm" target on x86 that is SSE2, four lanes and no fused
multiply-add (its latency is the addition's).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.errors import AnatuneError
from anatune.templates.base.features import FeatureTable
from anatune.templates.cpu.model.model import CpuModel
from bench.replay.recorded import RecordedGroup, workload_of

ANSOR_DEVICE = "ryzen3700x"
"""The Ansor file names no machine; the README of the data folder says why this one is likely."""


@dataclass(frozen=True)
class CpuGroup(RecordedGroup):
    """Recorded kernels of CPUs, most of them no points of the template: their legality is not judged."""

    predicted_time_fn: Callable[[], NDArray[np.float64]]
    """() -> (num_points,) seconds the analytical model predicts."""
    feature_table_fn: Callable[[], FeatureTable]

    def predictions(self) -> tuple[NDArray[np.float64], None]:
        """Return the analytical model's seconds."""
        return self.predicted_time_fn(), None

    def features(self) -> FeatureTable:
        """Return the features of the points, for learned corrections."""
        return self.feature_table_fn()


def as_compiled(hardware: CpuSpec) -> CpuSpec:
    """Return `hardware` as a bare "llvm" target uses it.

    x86: SSE2, 16 registers, a multiply-add is movaps, mulps, addps: 4/3 of them a cycle from 4 decoded instructions.
    The latency, 1.5 cycles instead of an addition's 3, is fitted to the table's kernels of one accumulator.
    """
    compute = hardware.compute
    if compute.isa not in ("avx512", "avx2", "avx"):
        return hardware
    rate = 4 / 3
    peak = 2.0 * compute.num_cores * compute.clock_hz * rate * 4
    return msgspec.structs.replace(
        hardware,
        compute=msgspec.structs.replace(
            compute, isa="sse", simd_bits=128, num_vector_registers=16, fma_latency_cycles=1.5, fma_per_cycle=rate,
            fp32_peak_flop_per_s=peak,
        ),
    )  # fmt: skip


def _table(model: CpuModel, columns: dict[str, NDArray[np.int64] | int], size: int) -> NDArray[np.int64]:
    """Return points with the given columns; factors that are left out are 1, choices 0."""
    points = np.zeros((size, len(model.space.columns)), dtype=np.int64)
    for index, name in enumerate(model.space.columns):
        is_factor = "." in name and not name.startswith(("pair.", "order.", "pack."))
        points[:, index] = columns.get(name, 1 if is_factor else 0)
    unknown = set(columns) - set(model.space.columns)
    if unknown:
        raise ValueError(f"no columns {sorted(unknown)}")
    return points


def _keep(model: CpuModel, level: str, tensor: str) -> int:
    accesses = {access.tensor: access for access in (*model.workload.reads, model.workload.write)}
    axes = model.space.orders[level][0]
    used = [a for a in model.space.axes if a in axes and accesses[tensor].uses(a)]
    rest = [a for a in model.space.axes if a in axes and not accesses[tensor].uses(a)]
    return model.space.orders[level].index((*used, *rest))


def nchwc_nest(workload: Workload, ic: int, oc: int, more_y: int, more_x: int) -> Workload:
    """Return `workload` (conv2d) on blocked tensors that are padded already.

    Data [n, c / ic, h, w, ic], weight [f / oc, c / ic, r, s, ic, oc], output [n, f / oc, y, x, oc].

    ``more_y`` and ``more_x`` extra outputs are computed; `oc` is widened to a power of two.
    """
    own, extents = workload.attribute, workload.extents
    sy, sx = own["stride"]  # type: ignore[misc]
    wide = 1 << (oc - 1).bit_length()
    rows, columns = extents["y"] + more_y, extents["x"] + more_x
    sizes = {"n": extents["n"], "fo": extents["f"] // oc, "y": rows, "x": columns, "fi": wide,
             "rco": extents["rc"] // ic, "ry": extents["ry"], "rx": extents["rx"], "rci": ic}  # fmt: skip

    def one(*names: str) -> tuple[tuple[Term, ...], ...]:
        return tuple((Term(name),) for name in names)

    window = ((Term("y", int(sy)), Term("ry")), (Term("x", int(sx)), Term("rx")))
    height, width = (rows - 1) * int(sy) + extents["ry"], (columns - 1) * int(sx) + extents["rx"]

    def access(tensor: str, indices: tuple[tuple[Term, ...], ...], shape: tuple[int, ...]) -> Access:
        return Access(tensor, "float32", shape, indices, (0,) * len(shape))

    return Workload(
        "einsum",
        tuple(Axis(name, size, "reduction" if name.startswith("r") else "spatial") for name, size in sizes.items()),
        (
            access("data", (*one("n", "rco"), *window, *one("rci")), (sizes["n"], sizes["rco"], height, width, ic)),
            access("weight", one("fo", "rco", "ry", "rx", "rci", "fi"),
                   (sizes["fo"], sizes["rco"], sizes["ry"], sizes["rx"], ic, wide)),
        ),
        access("output", one("n", "fo", "y", "x", "fi"), (sizes["n"], sizes["fo"], rows, columns, wide)),
        "multiply_add",
        2,
    )  # fmt: skip


def nchwc_points(model: CpuModel, rows: pd.DataFrame) -> NDArray[np.int64]:
    """Return the points of AutoTVM rows (one ic_bn and oc_bn) on their `nchwc_nest`."""
    extents = model.space.extents
    ow, oh = rows["ow_bn"].to_numpy(np.int64), _tile_oh(rows)
    unrolled = rows["unroll_kw"].fillna(0).to_numpy() > 0
    points = _table(
        model,
        {
            "n.outer": extents["n"], "fo.outer": extents["fo"], "fi.register": extents["fi"],
            "y.outer": extents["y"] // oh, "y.register": oh, "x.l3": extents["x"] // ow, "x.register": ow,
            "rco.l1": extents["rco"], "rci.l1": extents["rci"], "ry.l1": extents["ry"],
            "rx.l1": np.where(unrolled, 1, extents["rx"]), "rx.unroll": np.where(unrolled, extents["rx"], 1),
            "order.outer": _keep(model, "outer", "weight"),
        },
        len(rows),
    )  # fmt: skip
    points[:, -1] = _num_chunks(model, points) > 1
    return points


def _tile_oh(rows: pd.DataFrame) -> NDArray[np.int64]:
    return rows["tile_oh"].fillna(1).to_numpy(np.int64)


def _num_chunks(model: CpuModel, points: NDArray[np.int64]) -> NDArray[np.int64]:
    outer = [i for i, c in enumerate(model.space.columns) if c.endswith(".outer") and not c.startswith("order")]
    return np.asarray(points[:, outer].prod(axis=1))


def nchwc_times(workload: Workload, hardware: CpuSpec, rows: pd.DataFrame) -> NDArray[np.float64]:
    """Return predicted seconds of AutoTVM NCHWc rows, (num_rows,)."""
    return nchwc_table(workload, hardware, rows).time_s


def nchwc_table(workload: Workload, hardware: CpuSpec, rows: pd.DataFrame) -> FeatureTable:
    """Return predicted seconds and features of AutoTVM NCHWc rows.

    A block that does not divide the width or height computes the padded rest, and LLVM widens vectors of oc_bn elements
    to the next power of two: both are scored on a padded nest. On cores with 64-bit pipes (Cortex-A72) vectors of up to
    64 bits issue twice as fast.
    """
    extents = workload.extents
    oh, ow, oc = _tile_oh(rows), rows["ow_bn"].to_numpy(np.int64), rows["oc_bn"].to_numpy(np.int64)
    kinds = np.column_stack([rows["ic_bn"].to_numpy(np.int64), oc, -extents["y"] % oh, -extents["x"] % ow])
    parts: list[tuple[NDArray[np.int64], FeatureTable]] = []
    for kind in np.unique(kinds, axis=0):
        use = (kinds == kind).all(axis=1)
        nest = nchwc_nest(workload, *(int(v) for v in kind))
        narrow = nest.extents["fi"] <= 2 and hardware.arch == "cortex-a72"
        model = CpuModel(nest, _half_width(hardware) if narrow else hardware, simd="fi")
        part = model.feature_table(nchwc_points(model, rows[use]))
        if nest.extents["fi"] == 1:  # LLVM's SLP vectoriser packs the unrolled positions where that pays
            model = CpuModel(nest, hardware, simd="x")
            part = _faster(part, model.feature_table(nchwc_points(model, rows[use])))
        parts.append((np.flatnonzero(use), part))
    order = np.argsort(np.concatenate([at for at, _ in parts]))
    tables = [table for _, table in parts]
    own = np.column_stack([np.log2(rows["ic_bn"]), np.log2(oc), np.log2(ow), np.log2(oh)])
    return FeatureTable(
        np.concatenate([table.time_s for table in tables])[order],
        np.concatenate([table.rule for table in tables])[order],
        (*tables[0].names, "knob_ic_bn", "knob_oc_bn", "knob_ow_bn", "knob_oh_bn"),
        np.column_stack([np.concatenate([table.values for table in tables])[order], own]),
    )


def _faster(one: FeatureTable, other: FeatureTable) -> FeatureTable:
    """Return for each point the table that predicts less."""
    return _chosen(one.time_s <= other.time_s, one, other)


def _chosen(use: NDArray[np.bool_], one: FeatureTable, other: FeatureTable) -> FeatureTable:
    """Return `one` where `use`, else `other`."""
    return FeatureTable(
        np.where(use, one.time_s, other.time_s), np.where(use, one.rule, other.rule), one.names,
        np.where(use[:, None], one.values, other.values),
    )  # fmt: skip


def _half_width(hardware: CpuSpec) -> CpuSpec:
    compute = hardware.compute
    return msgspec.structs.replace(
        hardware,
        compute=msgspec.structs.replace(
            compute, simd_bits=compute.simd_bits // 2, fma_per_cycle=2 * compute.fma_per_cycle,
            loads_per_cycle=2 * compute.loads_per_cycle,
        ),
    )  # fmt: skip


def ansor_points(model: CpuModel, rows: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the points of Ansor rows, which of them divide the extents, and whose accumulators stay in memory."""
    space = model.space
    values: dict[str, NDArray[np.int64] | int] = {}
    fine = np.ones(len(rows), dtype=bool)
    split = [text.split() for text in rows["axes"]]
    fused = rows["n_fused_outer"].fillna(1).to_numpy()
    spatial = {axis.name for axis in model.workload.spatial_axes}
    body = np.ones(len(rows), dtype=np.int64)
    for index, axis in enumerate(space.axes):
        factors = np.array([list(map(int, row[index].split(":")[1].split("x"))) for row in split], dtype=np.int64)
        fine &= factors.prod(axis=1) == space.extents[axis]
        if axis in spatial:
            wide = fused > len(spatial)
            values[f"{axis}.outer"] = np.where(wide, factors[:, 0] * factors[:, 1], factors[:, 0])
            values[f"{axis}.l3"] = np.where(wide, 1, factors[:, 1])
            values[f"{axis}.l1"], values[f"{axis}.register"] = factors[:, 2], factors[:, 3]
            if axis != space.simd_axis:
                body = body * factors[:, 3]
        else:
            values[f"{axis}.l2"], values[f"{axis}.l1"] = factors[:, 0], factors[:, 1]
    values["parallel"] = 1
    points = _table(model, values, len(rows))
    points[:, -1] = _num_chunks(model, points) > 1
    in_memory = (rows["cache_write"].to_numpy() == 0) & (rows["unroll"].to_numpy() < body) & (body > 1)
    return points, fine, in_memory


def load_cpu_groups(folder: Path, notes: list[str] | None = None) -> Iterator[CpuGroup]:
    """Yield every group of recorded CPU points below `folder`, table by table; skips are explained in `notes`."""
    notes = notes if notes is not None else []
    for path in sorted(folder.glob("*.csv.gz")):
        table = path.name.split(".")[0]
        if table.startswith("autotvm_conv2d_NCHWc_cpu"):
            yield from _nchwc_groups(pd.read_csv(path), table, notes)
        elif table.startswith("ansor_cpu"):
            yield from _ansor_groups(pd.read_csv(path), table, notes)


def _nchwc_groups(frame: pd.DataFrame, table: str, notes: list[str]) -> Iterator[CpuGroup]:
    for (device, workload_id), rows in frame.groupby(["cpu", "workload_id"], sort=True):
        try:
            hardware = as_compiled(anatune.hardware(str(device).replace("-", "_")))
        except AnatuneError:
            notes.append(f"{table}: no spec for device {device!r}, {len(rows)} rows skipped")
            continue
        workload = workload_of(str(workload_id))
        failed = rows["err"].fillna(0).to_numpy() != 0
        yield CpuGroup(
            table, "autotvm_nchwc", str(device), str(workload_id), workload, hardware,
            rows["time_s"].astype(float).where(~failed).to_numpy(), (rows["kept"] != "best").to_numpy(),
            partial(nchwc_times, workload, hardware, rows), partial(nchwc_table, workload, hardware, rows),
        )  # fmt: skip


def _ansor_groups(frame: pd.DataFrame, table: str, notes: list[str]) -> Iterator[CpuGroup]:
    hardware = as_compiled(anatune.hardware(ANSOR_DEVICE))
    in_memory_hardware = msgspec.structs.replace(
        hardware, compute=msgspec.structs.replace(hardware.compute, num_vector_registers=4)
    )
    for file, rows in frame.groupby("file", sort=True):
        name, *_ = json.loads(rows["workload"].iloc[0])
        sizes = [int(text.split(":")[0]) for text in rows["axes"].iloc[0].split()]
        if len(sizes) == 3:
            workload, simd = anatune.matmul(*sizes), "j"
        elif len(sizes) == 7:
            n, f, y, x, rc, ry, rx = sizes
            workload = anatune.conv2d(n, rc, y, x, f, ry, rx, padding=((ry - 1) // 2, (rx - 1) // 2))
            simd = "x"
        else:
            notes.append(f"{table}: {file} {name} has {len(sizes)} axes, expected 3 or 7; skipped")
            continue
        model = CpuModel(workload, hardware, simd=simd)
        slow = CpuModel(workload, in_memory_hardware, simd=simd)
        points, fine, in_memory = ansor_points(model, rows)
        points, in_memory = points[fine], in_memory[fine]

        def predicted(model=model, slow=slow, points=points, in_memory=in_memory) -> NDArray[np.float64]:
            return np.where(in_memory, slow.times(points)[0], model.times(points)[0])

        def features(
            model: CpuModel = model, slow: CpuModel = slow, points: Any = points, in_memory: Any = in_memory
        ) -> FeatureTable:
            found = _chosen(in_memory, slow.feature_table(points), model.feature_table(points))
            return found._replace(names=(*found.names, "in_memory"), values=np.column_stack([found.values, in_memory]))

        failed = rows["err"].fillna(0).to_numpy() != 0
        yield CpuGroup(
            table, "ansor_x86", ANSOR_DEVICE, str(file).removesuffix(".json"), workload, hardware,
            rows["time_s"].astype(float).where(~failed).to_numpy()[fine], (rows["idx"] < 64).to_numpy()[fine],
            predicted, features,
        )  # fmt: skip

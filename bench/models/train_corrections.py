"""Train the corrections in models/ on recorded tables whose licence allows it, and write what they are worth.

    python -m bench.models.train_corrections FOLDER [--output models]

One correction for each tuner and device of which enough workloads are recorded, and one for all NVIDIA devices of
CLBlast's kernels, where devices that it has not seen are ranked better, too. A correction that does not rank the
workloads (devices) left out better than the analytical model is not written.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anatune.core.hardware.spec import GpuSpec
from anatune.model.learned.corrections import Card, DataSource, save_correction
from anatune.model.learned.cross_fit import MeasuredPoints, cross_fit, fit_residual
from anatune.model.learned.residual import ResidualOptions
from bench.replay.corrections import KERNELS, measured_of
from bench.replay.metrics import quantile, spearman_measured, top_k_regret
from bench.replay.recorded import table_files
from bench.replay.recorded_cpu import load_cpu_groups
from bench.replay.recorded_gpu import load_groups

LICENCES = {"mit": "MIT", "apache2": "Apache-2.0"}
"""Suffix of a table's name -> licence; only these are trained on."""
MIN_WORKLOADS = 10
"""Fewest workloads from which a correction for one device is trained."""
ROLLER = "HPCRL/bench_roller, commit fefde815bc62, MIT (c) Microsoft Corporation"
SOURCES = {
    "ansor_conv2d_gpu__mit": ROLLER,
    "ansor_matmul_gpu__mit": ROLLER,
    "autotvm_conv2d_gpu_roller__mit": ROLLER,
    "gemm_clblast__mit": "AutoTuningAssociation/benchmark_hub, commit 8eeb99e7179e, MIT (c) 2025 AutoTuningAssociation",
}
"""Table -> where its measurements of the shipped devices come from."""
OTHER_SOURCE = "recorded by others, see the table's own documentation"


def licence_of(table: str) -> str | None:
    """Return the licence that a table's name ends in, None if it may not be used."""
    return LICENCES.get(table.rpartition("__")[2])


def measures(group: Any, predicted: Any, legal: Any) -> tuple[float, float, float]:
    """Return Spearman's rho and the top-1 and top-8 regret of one group."""
    regret = top_k_regret(predicted, group.time_s, legal, (1, 8))
    return spearman_measured(predicted, group.time_s, group.unbiased), regret[1], regret[8]


def report(groups: Sequence[Any], measured: Sequence[MeasuredPoints], corrected: Sequence[Any]) -> dict[str, Any]:
    """Return plain and corrected medians over the groups, all together and for each table and device."""
    out: dict[str, Any] = {}
    places = {"all": groups} | {place: [g for g in groups if _place(g) == place] for place in map(_place, groups)}
    for place, chosen in places.items():
        rows: dict[str, list[tuple[float, float, float]]] = {"plain": [], "corrected": []}
        for group, one, times in zip(groups, measured, corrected, strict=True):
            if times is not None and any(group is one_of for one_of in chosen):
                legal = one.table.rule == 0
                rows["plain"].append(measures(group, one.table.time_s, legal))
                rows["corrected"].append(measures(group, times, legal))
        out[place] = {
            kind: {
                name: round(quantile([row[at] for row in some], 0.5), 4)
                for at, name in enumerate(("spearman", "top1_regret", "top8_regret"))
            }
            for kind, some in rows.items()
        } | {"num_workloads": len(rows["plain"])}
    return out


def _place(group: Any) -> str:
    return f"{group.table}, {group.device}"


def is_better(found: dict[str, Any]) -> bool:
    """Return whether the correction ranks better than the analytical model: nothing worse, something better."""
    plain, corrected = found["plain"], found["corrected"]
    gains = [corrected["spearman"] - plain["spearman"], plain["top8_regret"] - corrected["top8_regret"]]
    return min(gains) >= 0.0 and max(gains) > 0.0


def sources(groups: Sequence[Any], files: dict[str, Path]) -> tuple[DataSource, ...]:
    """Return where the groups come from, table by table."""
    found = []
    for table in dict.fromkeys(group.table for group in groups):
        own = [group for group in groups if group.table == table]
        digest = hashlib.sha256(files[table].read_bytes()).hexdigest()
        found.append(
            DataSource(
                table,
                str(licence_of(table)),
                SOURCES.get(table, OTHER_SOURCE),
                tuple(dict.fromkeys(group.device for group in own)),
                tuple(dict.fromkeys(group.workload_id for group in own)),
                sum(len(group.time_s) for group in own),
                sum(int(np.isnan(group.time_s).sum()) for group in own),
                digest,
            )
        )
    return tuple(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of recorded tables")
    parser.add_argument("--output", type=Path, default=Path("models"), help="folder of the corrections")
    options = parser.parse_args(arguments)
    files = {path.name.split(".")[0]: path for path in table_files(options.folder)}
    notes: list[str] = []
    groups: list[Any] = [*load_groups(options.folder, notes), *load_cpu_groups(options.folder, notes)]
    groups = [group for group in groups if licence_of(group.table) and group.kind != "tophub"]
    families: dict[tuple[str, str], list[Any]] = {}
    for group in groups:
        kernels = KERNELS[group.kind]
        by_vendor = kernels == "clblast"
        families.setdefault((kernels, group.hardware.vendor if by_vendor else group.device), []).append(group)
    for (kernels, where), own in families.items():
        by_vendor = kernels == "clblast"
        workloads = {group.workload_id for group in own}
        devices = {group.device for group in own}
        if len(workloads) < MIN_WORKLOADS and not (by_vendor and len(devices) > 1):
            print(f"{kernels} on {where}: {len(workloads)} workloads are too few, not shipped", flush=True)
            continue
        measured = [measured_of(group) for group in own]
        settings = ResidualOptions(group_rows=5000) if by_vendor else ResidualOptions()
        by = "device" if by_vendor else "workload"
        found = report(own, measured, cross_fit(measured, by, settings))
        better = all(is_better(part) for part in found.values())
        for place, part in found.items():
            print(f"    {place}: {part}", flush=True)
        print(
            f"{kernels} on {where}, leave-one-{by}-out: {found['all']} {'shipped' if better else 'NOT shipped'}",
            flush=True,
        )
        if not better:
            continue
        hardware = own[0].hardware
        name = f"{kernels}_{where}"
        card = Card(
            name=name, kernels=kernels, template="cuda" if isinstance(hardware, GpuSpec) else "cpu",
            devices=() if by_vendor else (hardware.name,), vendors=(hardware.vendor,) if by_vendor else (),
            data=sources(own, files), metrics={f"leave_one_{by}_out": found}, feature_names=(), low=(), high=(),
            offset=0.0,
            noise=0.0, files={}, versions={}, options=settings,
        )  # fmt: skip
        save_correction(options.output / name, card, fit_residual(measured, settings))
    for note in notes:
        print(f"left out: {note}")


if __name__ == "__main__":
    sys.exit(main())

"""Compare predicted times of whole image networks with the images per second that timm's authors measured.

    python -m bench.replay.networks FOLDER [--device rtx4090] [--networks resnet50,vgg16] [--batch 256] [--json FILE]

FOLDER holds images_timm__*.csv.gz. Networks are made by timm on PyTorch's meta device: no weights are loaded. Two
predictions of `anatune.compare` stand beside the measured time. "fused" is the network of our kernels. "divided" is the
network as PyTorch divides it (`fused=False`): its convolutions and products write their results, and kernels of joined
steps read them again. Both are of our Triton kernels. Nothing is fitted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import anatune
from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError
from anatune.network.graph.summary import ModelSummary
from anatune.network.report import kernel_kind
from bench.cpu.networks import import_with_torchvision
from bench.replay.tensorcores_tables import table_of

TABLES = {
    "Inductor 2.4": ("rtx4090", "amp-nchw-pt240-cu124-rtx4090-dynamo"),
    "Inductor 2.9": ("rtx4090", "amp-nchw-pt291-cu128-4090-dynamo"),
    "eager, RTX 4090": ("rtx4090", "amp-nhwc-pt240-cu124-rtx4090"),
    "eager, RTX 3090": ("rtx3090", "amp-nhwc-pt240-cu124-rtx3090"),
}
"""Name of a measured series -> its device and table. Both eager ones have channels last, as our kernels have."""
FAMILIES = {
    "plain": ("vgg11", "vgg16"),
    "residual": ("resnet18", "resnet50", "resnet101", "wide_resnet50_2"),
    "grouped": ("resnext50_32x4d", "regnetx_016", "regnety_016", "nfnet_l0"),
    "dense": ("densenet121", "densenet169"),
    "depthwise": ("mobilenetv2_100", "mobilenetv3_large_100", "efficientnet_b0", "mnasnet_100", "convnext_tiny"),
    "transformer": (
        "vit_base_patch16_224", "deit_small_patch16_224", "swin_tiny_patch4_window7_224", "mixer_b16_224",
        "coatnet_0_rw_224",
    ),
}  # fmt: skip
"""Family -> the networks of the sample."""
_IMAGE, _WORST, _KINDS = 224, 10, 4


@dataclass
class NetworkResult:
    """The predictions of a network on a device, in seconds for one image."""

    device: str
    family: str
    network: str
    fused_s: float
    divided_s: float
    launches: int
    """Kernels that are launched in a run of our network."""
    fused: dict[str, float]
    divided: dict[str, float]
    """Kind of kernel -> its share of the predicted time."""


def load_timm() -> Any:
    """Return the module timm; None, and one line, where it cannot be imported."""
    try:
        return import_with_torchvision(importlib.import_module("torch"), "timm")
    except (ImportError, RuntimeError) as error:
        print(f"timm cannot be imported ({error}), so nothing was predicted; pip install timm, torch and torchvision")
        return None


def shares_of(summary: ModelSummary) -> dict[str, float]:
    """Return the share of each kind of kernel in the predicted time, the largest first."""
    seconds: Counter[str] = Counter()
    for kernel in summary.kernels:
        workload = Schedule.from_json(kernel.schedule).workload
        attributes, kind = workload.attribute, workload.operator
        if kind == "conv2d":
            kind = "grouped " * (attributes["groups"] != 1) + f"{attributes['r']}x{attributes['s']}"
        seconds[kind] += kernel.total_s  # type: ignore[assignment]
    for row in summary.rows:
        kind = kernel_kind(row)
        names = ("mean", "max_pool2d", "avg_pool2d", "layer_norm", "softmax")
        kind = "depthwise" if "depthwise" in row.name else next((word for word in names if word in kind), "steps")
        seconds[kind] += row.predicted_s or 0.0  # type: ignore[assignment]
    return {kind: time_s / summary.whole_s for kind, time_s in seconds.most_common()}


def predict(timm: Any, network: str, family: str, devices: Iterable[str], batch: int) -> Iterable[NetworkResult]:
    """Yield the predictions of a network on devices."""
    torch = importlib.import_module("torch")
    with torch.device("meta"):
        module = timm.create_model(network).eval().half()
        images = torch.empty(batch, 3, _IMAGE, _IMAGE, dtype=torch.float16)
    own, divided = (anatune.compare(module, (images,), hw=list(devices), fused=fused) for fused in (True, False))
    for first, second in zip(own, divided, strict=True):
        yield NetworkResult(
            first.hardware, family, network, first.whole_s / batch, second.whole_s / batch, first.launches or 0,
            shares_of(first), shares_of(second),
        )  # fmt: skip


def read_measured(folder: Path) -> pd.DataFrame:
    """Return the measured seconds of an image: one row for each network and key of `TABLES`."""
    table = table_of(folder, "images_timm", "table", "model", "img_size", "samples_per_s")
    table = table[table.img_size == _IMAGE].assign(network=table.model.str.split(".").str[0])
    parts = []
    for runner, (device, name) in TABLES.items():
        best = table[table.table == name].groupby("network").samples_per_s.max().reset_index()
        parts.append(best.assign(runner=runner, device=device, measured_s=1.0 / best.samples_per_s))
    return pd.concat(parts, ignore_index=True)


def print_ratios(rows: pd.DataFrame) -> None:
    """Print the ratio of measured to predicted time of each network: fused; divided."""
    runners = [runner for runner in TABLES if runner in set(rows.runner)]
    print("Measured over predicted time, fused; divided. Above 1: predicted too fast.\n")
    print(f"| network | {' | '.join(runners)} |\n" + "|---" * (len(runners) + 1) + "|")
    for network, group in rows.groupby("network", sort=False):
        cells = {
            row["runner"]: f"{row['fused ratio']:.2f}; {row['divided ratio']:.2f}" for row in group.to_dict("records")
        }
        print(f"| {network} | {' | '.join(cells.get(runner, '') for runner in runners)} |")


def print_scores(rows: pd.DataFrame) -> None:
    """Print median errors, rank correlations and extreme ratios of each table, and median errors of each family."""
    print(
        "\n| measured by | family | networks | prediction | median error | rank correlation | ratios |\n"
        + "|---" * 7
        + "|"
    )
    for runner, own in rows.groupby("runner", sort=False):
        for family, group in [("all", own), *own.groupby("family", sort=False)]:
            for word in ("fused", "divided"):
                ratio = group[f"{word} ratio"]
                error = (1.0 / ratio - 1.0).abs().median()
                rank = f"{group[f'{word}_s'].corr(group.measured_s, method='spearman'):.3f}" if len(group) > 5 else ""
                ends = f"{ratio.min():.2f} to {ratio.max():.2f}"
                print(f"| {runner} | {family} | {len(group)} | {word} | {error:.0%} | {rank} | {ends} |")


def print_worst(rows: pd.DataFrame) -> None:
    """Print the worst divided predictions, with the kinds of kernels that take most of the predicted time."""
    error = rows["divided ratio"].map(lambda ratio: max(ratio, 1.0 / ratio))
    print("\n| measured by | network | fused | divided | predicted time, divided |\n" + "|---" * 5 + "|")
    for row in rows.loc[error.sort_values(ascending=False).index[:_WORST]].to_dict("records"):
        kinds = ", ".join(f"{share:.0%} {kind}" for kind, share in list(row["divided"].items())[:_KINDS])
        print(
            f"| {row['runner']} | {row['network']} | {row['fused ratio']:.2f} | {row['divided ratio']:.2f} | {kinds} |"
        )


def predict_all(timm: Any, families: Mapping[str, str], devices: Iterable[str], batch: int) -> list[NetworkResult]:
    """Return the predictions of all networks. A line says which are refused."""
    results: list[NetworkResult] = []
    for network, family in families.items():
        print(network, file=sys.stderr)
        try:
            results += predict(timm, network, family, devices, batch)
        except AnatuneError as error:
            print(f"{network}: {error}", file=sys.stderr)
    return results


def main() -> None:
    """Predict the networks of the sample, read the tables, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    devices = tuple(dict.fromkeys(device for device, _ in TABLES.values()))
    parser.add_argument("--device", choices=devices, action="append", help=f"default: {' and '.join(devices)}")
    parser.add_argument("--networks", help="names, separated by commas; default: a sample of all families")
    parser.add_argument("--batch", type=int, default=256, help="images of a run (256)")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    args = parser.parse_args()
    if (timm := load_timm()) is None:
        return
    measured = read_measured(args.folder)
    families = {name: family for family, names in FAMILIES.items() for name in names}
    if args.networks:
        families = {name: families.get(name, "other") for name in args.networks.split(",")}
    results = predict_all(timm, families, args.device or devices, args.batch)
    if not results:
        return
    rows = pd.DataFrame([asdict(result) for result in results]).merge(measured, on=["network", "device"])
    for word in ("fused", "divided"):
        rows[f"{word} ratio"] = rows.measured_s / rows[f"{word}_s"]
    print_ratios(rows)
    rows = rows.sort_values("runner", key=lambda column: column.map(list(TABLES).index), kind="stable")
    print_scores(rows)
    print_worst(rows)
    if args.json:
        args.json.write_text(json.dumps(rows.to_dict("records"), indent=1))


if __name__ == "__main__":
    main()

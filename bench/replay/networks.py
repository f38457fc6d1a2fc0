"""Compare predicted times of whole image networks with the images per second that timm's authors measured.

    python -m bench.replay.networks FOLDER [--device rtx4090] [--networks resnet50,vgg16] [--batch 256] [--json FILE]

FOLDER holds images_timm__*.csv.gz. Networks are made by timm on PyTorch's meta device: no weights are loaded. "ours" is
the time of our kernels by `anatune.compare`. "as measured" is the time of the kernels that PyTorch divides the network
into: products, convolutions and attentions without fused steps, each as fast as our own kernel, and the kernels between
them, which read and write their tensors once. Inductor joins neighbouring steps; without it each operator is a kernel.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError
from anatune.measure.named_hardware import hardware
from anatune.templates import TRITON
from anatune.templates.gpu.streaming import streaming_s
from bench.replay.tensorcores_tables import table_of

TABLES = {"rtx4090": "amp-nchw-pt291-cu128-4090-dynamo", "rtx3090": "amp-nhwc-pt240-cu124-rtx3090"}
"""Device -> its table: Inductor on the RTX 4090, eager PyTorch with channels last on the RTX 3090."""
FAMILIES = {
    "plain": ("vgg16",),
    "residual": ("resnet18", "resnet50", "resnet101"),
    "grouped": ("resnext50_32x4d", "regnety_016"),
    "dense": ("densenet121",),
    "depthwise": ("mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny"),
    "transformer": ("vit_base_patch16_224", "deit_small_patch16_224", "swin_tiny_patch4_window7_224", "mixer_b16_224"),
}
"""Family -> the networks of the sample."""
_VIEWS = {
    "view", "reshape", "flatten", "permute", "transpose", "unsqueeze", "squeeze", "expand", "slice", "select",
    "getitem", "split", "split_with_sizes", "chunk", "unbind", "dropout", "dropout_", "detach", "alias", "contiguous",
    "t", "_assert_tensor_metadata", "unflatten", "to",
}  # fmt: skip
_WINDOWS = {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "mean"}
"""Operators whose operands Inductor writes to memory first, as several results read each of them."""
_LIBRARY = {"conv2d", "linear", "matmul", "bmm", "addmm", "mm", "scaled_dot_product_attention"}
_HALF_BYTES, _CAST_BYTES = 2, 6
"""Bytes of a float16 element, and bytes moved to make it from a float32 weight."""


@dataclass
class NetworkResult:
    """The predictions of a network beside its measured time, in seconds for one image."""

    device: str
    family: str
    network: str
    measured_s: float
    ours_s: float
    divided_s: float
    kinds: dict[str, float] = field(default_factory=dict)
    """Kind of kernel -> its share of the time as measured."""
    own_kinds: dict[str, float] = field(default_factory=dict)
    """Kind of kernel -> its share of the time of our kernels."""


class Library:
    """Predicted times of a device's products, convolutions and attentions without fused steps."""

    def __init__(self, spec: GpuSpec) -> None:
        self.spec = spec
        self._times: dict[Workload, float] = {}

    def time_s(self, node: Any) -> tuple[str, float]:
        """Return the kind and the seconds of a node that a library computes."""
        kind, workload = workload_of(node)
        if workload is None or not TRITON.takes(workload, self.spec):
            operands = [value for value in node.all_input_nodes if "val" in value.meta]
            flop = 0 if workload is None else workload.flop
            return kind, streaming_s(self.spec, sum(map(num_bytes, [*operands, node])), flop)
        if workload not in self._times:
            self._times[workload] = anatune.plan(workload, self.spec, 1, template="triton").predictions[0].time_s
        return kind, self._times[workload]


def num_bytes(node: Any) -> int:
    """Return the bytes of a node's tensors in float16."""
    value = node.meta["val"]
    tensors = value if isinstance(value, tuple | list) else [value]
    return _HALF_BYTES * sum(int(one.numel()) for one in tensors if hasattr(one, "numel"))


def operator_of(node: Any) -> str:
    """Return the name of a node's operator, such as "conv2d"."""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def workload_of(node: Any) -> tuple[str, Workload | None]:
    """Return the kind of a node that a library computes, and its workload; None if there is none of ours."""
    left, right = (tuple(map(int, value.meta["val"].shape)) for value in node.args[:2])
    name, out = operator_of(node), tuple(map(int, node.meta["val"].shape))
    if name == "conv2d":
        stride, padding, dilation, groups = (*node.args[3:], *([1, 1], [0, 0], [1, 1], 1)[len(node.args[3:]) :])
        kind = "depthwise" if right[1] == 1 and groups > 1 else "grouped" if groups > 1 else f"{right[2]}x{right[3]}"
        if isinstance(padding, str):
            padding = [(right[2] - 1) // 2 if padding == "same" else 0] * 2
        return f"convolution {kind}", anatune.conv2d(
            left[0], left[1], left[2], left[3], right[0], right[2], right[3], stride=stride, padding=padding,
            dilation=dilation, groups=groups, layout="NHWC", dtype="float16",
        )  # fmt: skip
    if name == "scaled_dot_product_attention":
        batch, heads, queries, dim = left
        if dim % 8 or dim < 16:
            return "attention", None
        return "attention", anatune.attention(batch, heads, right[1], queries, right[2], dim, dtype="float16")
    depth = left[-1]
    if name == "linear":
        rows = 1
        for extent in left[:-1]:
            rows *= extent
        return "product", anatune.matmul(rows, right[0], depth, dtype="float16")
    batch = 1
    for extent in out[:-2]:
        batch *= extent
    return "product", anatune.batch_matmul(batch, out[-2], out[-1], depth, dtype="float16")


def divide(graph: Any, library: Library, *, joins: bool) -> Counter[str]:
    """Return kind of kernel -> seconds, for the kernels that PyTorch divides a network into.

    Steps between two library kernels are one kernel if they are connected and none of them waits for another library
    kernel. Views move nothing. Without `joins` each step is a kernel.
    """
    seconds: Counter[str] = Counter()
    level: dict[Any, int] = {}
    source: dict[Any, Any] = {}
    parent: dict[Any, Any] = {}

    def root(node: Any) -> Any:
        while parent[node] is not node:
            node = parent[node]
        return node

    for node in graph.nodes:
        if node.op == "output" or "val" not in node.meta:
            continue
        name = operator_of(node)
        operands = [source[one] for one in node.all_input_nodes if one in source]
        level[node] = max((level[one] + (operator_of(one) in _LIBRARY) for one in operands), default=0)
        if node.op == "call_function" and name in _VIEWS and operands:
            source[node] = operands[0]
            continue
        source[node] = node
        if node.op != "call_function":
            continue
        if name in _LIBRARY:
            kind, time_s = library.time_s(node)
            seconds[kind] += time_s
            continue
        level[node] += name in _WINDOWS
        parent[node] = node
        for one in operands if joins else ():
            if one in parent and level[one] == level[node]:
                parent[root(one)] = root(node)
    steps: dict[Any, list[Any]] = {}
    for node in parent:
        steps.setdefault(root(node), []).append(node)
    readers: dict[Any, set[Any]] = {}
    for node in graph.nodes:
        for one in node.all_input_nodes:
            if one in source and (node.op == "output" or source.get(node) is node):
                readers.setdefault(source[one], set()).add(node)
    for nodes in steps.values():
        inside = set(nodes)
        read = {source[one] for node in nodes for one in node.all_input_nodes if one in source} - inside
        written = [node for node in nodes if readers.get(node, set()) - inside]
        kind = next((name for name in map(operator_of, nodes) if name in _WINDOWS), "between")
        seconds[kind] += streaming_s(library.spec, sum(map(num_bytes, [*read, *written])))
    return seconds


def predict(network: str, family: str, devices: dict[str, float], batch: int) -> Iterable[NetworkResult]:
    """Yield the predictions of a network on devices, whose measured seconds of an image are given."""
    timm, torch = importlib.import_module("timm"), importlib.import_module("torch")
    with torch.device("meta"):
        module = timm.create_model(network).eval()
        size = module.default_cfg["input_size"]
        images = torch.empty(batch, *size, dtype=torch.float16)
    module = module.half()
    weights = sum(one.numel() for one in module.parameters())
    with torch.no_grad():
        graph = torch.export.export(module, (images,)).graph
    for summary in anatune.compare(module, (images,), hw=list(devices)):
        spec = hardware(summary.hardware)
        assert spec.kind == "gpu"
        own: Counter[str] = Counter()
        for kernel in summary.kernels:
            own[kernel.workload.split()[0]] += kernel.total_s
        for row in summary.rows:
            own["between"] += row.predicted_s or 0.0
        seconds = divide(graph, Library(spec), joins=TABLES[summary.hardware].endswith("dynamo"))
        seconds["casts of weights"] += streaming_s(spec, _CAST_BYTES * weights)
        measured = devices[summary.hardware]
        yield NetworkResult(
            summary.hardware, family, network, measured, summary.whole_s / batch, sum(seconds.values()) / batch,
            shares_of(seconds), shares_of(own),
        )  # fmt: skip


def shares_of(seconds: Counter[str]) -> dict[str, float]:
    """Return the share of each kind, the largest first."""
    total = sum(seconds.values())
    return {kind: time_s / total for kind, time_s in seconds.most_common()}


def print_tables(results: pd.DataFrame) -> None:
    """Print ratios of measured to predicted times by device and family, and the worst networks with their kernels."""
    for column, words in (("ours_s", "ours"), ("divided_s", "as measured")):
        results[words] = results.measured_s / results[column]
        results[f"{words} error"] = (results[column] / results.measured_s - 1.0).abs()
    print("Measured over predicted time; above 1: predicted too fast.\n")
    print("| device | network | ours | as measured |\n|---|---|---|---|")
    for row in results.to_dict("records"):
        print(f"| {row['device']} | {row['network']} | {row['ours']:.2f} | {row['as measured']:.2f} |")
    print("\n| device | family | networks | median error, ours | as measured |\n|---|---|---|---|---|")
    for (device, family), group in results.groupby(["device", "family"], sort=False):
        errors = " | ".join(f"{group[f'{words} error'].median():.0%}" for words in ("ours", "as measured"))
        print(f"| {device} | {family} | {len(group)} | {errors} |")
    for device, group in results.groupby("device"):
        for column, words in (("ours_s", "ours"), ("divided_s", "as measured")):
            rank = group.measured_s.corr(group[column], method="spearman")
            error = group[f"{words} error"].median()
            print(f"\n{device}, {words}: median error {error:.1%}, rank correlation {rank:.3f}, {len(group)} networks")
    print("\nThe worst ten, as measured, with the kinds of kernels that take most of the predicted time:\n")
    for row in results.sort_values("as measured error", ascending=False).head(10).to_dict("records"):
        kinds = ", ".join(f"{kind} {share:.0%}" for kind, share in list(row["kinds"].items())[:4])
        print(f"- {row['device']} {row['network']} {row['as measured']:.2f}: {kinds}")


def main() -> None:
    """Read the table, predict the networks of the sample, print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=sorted(TABLES), action="append", help="default: rtx4090")
    parser.add_argument("--networks", help="names, separated by commas; default: a sample of all families")
    parser.add_argument("--batch", type=int, default=256, help="images of a run (256)")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    args = parser.parse_args()
    try:
        importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:
        print(f"timm cannot be imported ({error}), so nothing was predicted; pip install timm, torch and torchvision")
        return
    table = table_of(args.folder, "images_timm", "table", "model", "img_size", "samples_per_s")
    wanted = set(args.networks.split(",")) if args.networks else None
    families = {name: family for family, names in FAMILIES.items() for name in names}
    names = sorted(wanted) if wanted else list(families)
    results: list[NetworkResult] = []
    for name in names:
        rows = {}
        for device in args.device or ["rtx4090"]:
            group = table[(table.table == TABLES[device]) & (table.model.str.split(".").str[0] == name)]
            group = group[group.img_size == 224]
            if len(group):
                rows[device] = 1.0 / float(group.samples_per_s.max())
        if not rows:
            print(f"{name}: not in the table with images of 224 x 224", file=sys.stderr)
            continue
        print(name, file=sys.stderr)
        try:
            results += predict(name, families.get(name, "other"), rows, args.batch)
        except AnatuneError as error:
            print(f"{name}: {error}", file=sys.stderr)
    if results:
        print_tables(pd.DataFrame([asdict(one) for one in results]))
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in results], indent=1))


if __name__ == "__main__":
    main()

"""Compare predicted times of whole networks on Arm CPUs with times that ncnn recorded, one thread, batch 1.

    python -m bench.replay.boards FOLDER [--all] [--networks NAME ...] [--json FILE]

FOLDER holds boards_ncnn__bsd3.csv.gz. The bench has those of ncnn's networks that it can build. It predicts them by
`anatune.compare` for the cores that anatune has specs of, at the clock that the table names: one board of each core and
number format, with ``--all`` every board. Nothing is fitted. Recorded times are the least ones.

ncnn computes in float16 where a core has instructions for it, unless it was built or told otherwise; the table does not
say. Nearly all of MobileNet is products without a transform, so a board that reaches over `FULL_RATE` of the float32
peak on it computes in float16. anatune has no float16 kernels for NEON. The prediction for such a board is that of a
core with twice as many elements in a vector, a cache and a transfer: `with_half_elements`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.errors import AnatuneError
from anatune.network.graph.summary import ModelSummary
from bench.replay.metrics import spearman
from bench.results import environment, write_json

TABLE = "boards_ncnn__bsd3.csv.gz"
FULL_RATE = 0.8
"""Share of the float32 peak that no network with depthwise convolutions reaches in float32."""
MOBILENET_FLOP = 1.138e9
"""Operations of MobileNet's convolutions. Source: 569 million multiply-adds [Howard et al. 2017, Table 4]."""


class Core(NamedTuple):
    """A board of the table: text of its name, its setting of powersave, the spec of its core, and the clock."""

    text: str
    powersave: int
    spec: str
    clock_hz: float


CORES = (
    Core("Raspberry Pi 3 Model B+", 0, "cortex_a53", 1.4e9),
    Core("MSM8916 Snapdragon 410", 0, "cortex_a53", 1.2e9),
    Core("Raspberry Pi Zero 2 W", 0, "cortex_a53", 1.0e9),
    Core("EAIDK 310", 0, "cortex_a53", 1.3e9),
    Core("AXERA AX630C", 0, "cortex_a53", 1.2e9),
    Core("Arduino UNO Q", 0, "cortex_a53", 2.0e9),
    Core("Station P2", 0, "cortex_a55", 2.0e9),
    Core("Rock3A", 0, "cortex_a55", 2.0e9),
    Core("Station-M2", 0, "cortex_a55", 1.8e9),
    Core("OrangePicm4", 0, "cortex_a55", 1.8e9),
    Core("Rockchip RK3588 (Cortex-A76 2.4GHz x 4", 1, "cortex_a55", 1.8e9),
    Core("NVIDIA Jetson Nano", 0, "cortex_a57", 1.43e9),
    Core("MSM8994 Snapdragon 810", 2, "cortex_a57", 2.0e9),
    Core("Raspberry Pi 4 Model B", 0, "cortex_a72", 1.8e9),
    Core("Raspberry Pi 5", 0, "raspberry_pi_5", 2.4e9),
    Core("Rockchip RK3588 (Cortex-A76 2.4GHz x 4", 2, "rk3588", 2.4e9),
    Core("Station-M3", 0, "rk3588", 2.4e9),
    Core("Rockchip RK3588 (Quad Core A76", 0, "rk3588", 2.4e9),
    Core("Kunpeng 920", 0, "kunpeng_920", 2.6e9),
    Core("D64ps v6", 0, "neoverse_n2", 3.4e9),
    Core("MacBook Air (13-inch, M3", 0, "apple_m3", 4.05e9),
    Core("Apple M1", 0, "apple_m1", 3.2e9),
)
"""Boards by their cores; those that are not in the table are left out."""


class Board(NamedTuple):
    """A board with its spec and its recorded times, s, by network."""

    name: str
    core: Core
    spec: CpuSpec
    has_halves: bool
    recorded_s: dict[str, float]


class Result(NamedTuple):
    """A network on a board: predicted and recorded seconds, and the kernels that take longest."""

    board: Board
    network: str
    predicted_s: float
    recorded_s: float
    kernels: str

    @property
    def ratio(self) -> float:
        """Predicted over recorded time."""
        return self.predicted_s / self.recorded_s


def read_boards(folder: Path) -> list[Board]:
    """Return the boards of the table that anatune has the specs of."""
    table = pd.read_csv(folder / TABLE)
    table = table[(table.threads == 1) & (table.gpu_device == -1)]
    boards = []
    for core in CORES:
        rows = table[table.board.str.contains(core.text, regex=False) & (table.powersave == core.powersave)]
        recorded = {str(name): ms / 1e3 for name, ms in rows.groupby("model").min_ms.min().items()}
        if "mobilenet" not in recorded:
            continue
        spec = at_clock(anatune.hardware(core.spec), core.clock_hz)
        peak = spec.compute.fp32_peak_flop_per_s / spec.compute.num_cores
        has_halves = MOBILENET_FLOP / recorded["mobilenet"] > FULL_RATE * peak
        name = f"{rows.board.iloc[0].split(',')[0].split(' (')[0]}, {core.spec} {core.clock_hz / 1e9:g} GHz"
        spec = msgspec.structs.replace(with_half_elements(spec) if has_halves else spec, name=f"board_{len(boards)}")
        boards.append(Board(name, core, spec, has_halves, recorded))
    return boards


def at_clock(spec: CpuSpec, clock_hz: float) -> CpuSpec:
    """Return a spec with another clock."""
    peak = spec.compute.fp32_peak_flop_per_s * clock_hz / spec.compute.clock_hz
    compute = msgspec.structs.replace(spec.compute, clock_hz=clock_hz, fp32_peak_flop_per_s=peak)
    return msgspec.structs.replace(spec, compute=compute, aliases=())


def with_half_elements(spec: CpuSpec) -> CpuSpec:
    """Return a spec whose float32 numbers stand for float16: twice as many fit vectors, caches and transfers."""
    compute = msgspec.structs.replace(
        spec.compute, isa="sve", simd_bits=2 * spec.compute.simd_bits,
        fp32_peak_flop_per_s=2 * spec.compute.fp32_peak_flop_per_s,
    )  # fmt: skip
    caches = {
        name: msgspec.structs.replace(
            cache, size_bytes=2 * cache.size_bytes, line_bytes=2 * cache.line_bytes,
            bandwidth_bytes_per_cycle=2 * cache.bandwidth_bytes_per_cycle,
        )
        for name, cache in spec.caches.items()
    }  # fmt: skip
    dram = msgspec.structs.replace(
        spec.dram, bandwidth_bytes_per_s=2 * spec.dram.bandwidth_bytes_per_s,
        core_bandwidth_bytes_per_s=2 * spec.dram.core_bandwidth_bytes_per_s,
    )  # fmt: skip
    return msgspec.structs.replace(spec, compute=compute, dram=dram, **caches)


def choose_boards(boards: Sequence[Board]) -> list[Board]:
    """Return the first board of each core and number format."""
    first: dict[tuple[str, bool], Board] = {}
    for board in boards:
        first.setdefault((board.core.spec, board.has_halves), board)
    return list(first.values())


def make_mobilenet() -> Any:
    """Return MobileNet with random weights."""
    from torch import nn

    def block(inputs: int, outputs: int, taps: int, stride: int, groups: int = 1) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, taps, stride, taps // 2, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers, inputs = block(3, 32, 3, 2), 32
    pairs = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for outputs, stride in pairs:
        layers += block(inputs, inputs, 3, stride, groups=inputs) + block(inputs, outputs, 1, 1)
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def make_alexnet() -> Any:
    """Return Caffe's AlexNet, which is ncnn's, without its two normalisations of responses."""
    from torch import nn

    def pool() -> Any:
        return nn.MaxPool2d(3, 2)

    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.ReLU(), pool(),
        nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(), pool(),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(), pool(), nn.Flatten(),
        nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


def make_googlenet() -> Any:
    """Return GoogLeNet with the filters of 5x5 of the paper and of ncnn, which torchvision has as 3x3.

    ncnn's has two normalisations of responses more.
    """
    from torch import nn

    network = _torchvision("googlenet", aux_logits=False, init_weights=False)()
    for name, module in network.named_children():
        if name.startswith("inception"):
            last = module.branch3[1]
            last.conv = nn.Conv2d(last.conv.in_channels, last.conv.out_channels, 5, padding=2, bias=False)
    return network


def _torchvision(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **options)

    return make


NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "squeezenet": (_torchvision("squeezenet1_1"), 227),
    "mobilenet": (make_mobilenet, 224),
    "mobilenet_v2": (_torchvision("mobilenet_v2"), 224),
    "mobilenet_v3": (_torchvision("mobilenet_v3_large"), 224),
    "shufflenet_v2": (_torchvision("shufflenet_v2_x1_0"), 224),
    "mnasnet": (_torchvision("mnasnet1_0"), 224),
    "efficientnet_b0": (_torchvision("efficientnet_b0"), 224),
    "regnety_400m": (_torchvision("regnet_y_400mf"), 224),
    "googlenet": (make_googlenet, 224),
    "resnet18": (_torchvision("resnet18"), 224),
    "alexnet": (make_alexnet, 227),
    "vgg16": (_torchvision("vgg16", init_weights=False), 224),
    "resnet50": (_torchvision("resnet50"), 224),
}
"""ncnn's name -> how to make the network, and the size of its images in ncnn's benchmark."""


def predict(name: str, boards: Sequence[Board]) -> Iterator[Result]:
    """Yield a network's result on each board that has a recorded time of it."""
    import torch

    boards = [board for board in boards if name in board.recorded_s]
    make, size = NETWORKS[name]
    image = torch.zeros(1, 3, size, size)
    summaries = anatune.compare(make().eval(), image, hw=[board.spec for board in boards], threads=1)
    for board, summary in zip(boards, summaries, strict=True):
        yield Result(board, name, summary.whole_s, board.recorded_s[name], longest_kernels(summary))


def longest_kernels(summary: ModelSummary, count: int = 3) -> str:
    """Return the kernels of a network that are predicted to take longest, with their shares."""
    seconds = {kernel.workload: kernel.total_s for kernel in summary.kernels}
    for row in (*summary.rows, *summary.operators):
        kind = row.name.rpartition("_")[2]
        seconds[kind] = seconds.get(kind, 0.0) + (row.predicted_s or 0.0)
    longest = sorted(seconds, key=lambda name: -seconds[name])[:count]
    return "; ".join(f"{name} {100 * seconds[name] / summary.whole_s:.0f} %" for name in longest)


def print_boards(results: Sequence[Result]) -> None:
    """Print a line for each board."""
    print("| board | format | networks | ratio, median (least to most) | median error | rank correlation |")
    print("|---|---|---|---|---|---|")
    for board, group in groupby(sorted(results, key=lambda one: one.board.name), key=lambda one: one.board):
        rows = list(group)
        ratios = np.array([row.ratio for row in rows])
        rank = spearman([row.predicted_s for row in rows], [row.recorded_s for row in rows])
        print(
            f"| {board.name} | {'float16' if board.has_halves else 'float32'} | {len(rows)} | "
            f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f}) | "
            f"{100 * np.median(abs(ratios - 1)):.0f} % | {rank:.3f} |"
        )


def print_networks(results: Sequence[Result]) -> None:
    """Print the median ratio of each network over the boards, and the ten results that are furthest off."""
    print("\n| network | predicted / recorded: median over the boards |\n|---|---|")
    for name in NETWORKS:
        if ratios := [row.ratio for row in results if row.network == name]:
            print(f"| {name} | {np.median(ratios):.2f} |")
    print("\n| the ten worst | board | predicted (ms) | recorded (ms) | ratio | most of the predicted time |")
    print("|---" * 6 + "|")
    for row in sorted(results, key=lambda one: -abs(np.log(one.ratio)))[:10]:
        print(
            f"| {row.network} | {row.board.name} | {1e3 * row.predicted_s:.1f} | {1e3 * row.recorded_s:.1f} | "
            f"{row.ratio:.2f} | {row.kernels} |"
        )


def main() -> None:
    """Parse the command line, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--all", action="store_true", help="every board, not one of each core and number format")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    boards = read_boards(given.folder)
    boards = boards if given.all else choose_boards(boards)
    results: list[Result] = []
    for name in given.networks:
        try:
            results += predict(name, boards)
        except AnatuneError as error:
            print(f"{name}: {error}")
    print_boards(results)
    print_networks(results)
    print("\nNo time of this table was measured by us, and our kernels are not ncnn's.")
    if given.json is not None:
        rows = [
            {
                "board": row.board.name,
                "network": row.network,
                "predicted_s": row.predicted_s,
                "recorded_s": row.recorded_s,
            }
            for row in results
        ]
        write_json(given.json, {**environment(all=given.all), "rows": rows})


if __name__ == "__main__":
    main()

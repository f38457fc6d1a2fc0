"""The machine code of planned kernels: what the loop over the staging steps spends its issue slots on. Needs no GPU.

    python -m bench.gpu.machine_code [--layers resnet50,yolo9000:Y5] [--hw rtx3090 a100] [--template cuda pipelined]
                                     [--nvdisasm PROGRAM] [--keep FOLDER] [--json FILE]

The plan's first choice of each layer is compiled (NVRTC) and disassembled by nvdisasm, which the package
nvidia-cuda-nvdisasm holds (sm_75 and later). Instructions are those of one thread and one staging step: what stands in
the loop, inner loops as often as their multiply-adds take (others once); of kernels with a single step the whole
kernel. Predicated instructions count: they take their slots. A last row for each template and device is the geometric
mean of the shares of multiply-adds.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import anatune
from anatune import api
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import compile_cuda
from anatune.core.schedule import Schedule
from anatune.core.workload.layers import layer_names
from anatune.templates.cuda.program.nest import CudaNest
from bench.results import environment, write_json

__all__ = ["CLASSES", "Row", "disassembled", "loop_mix", "step_mix"]

CLASSES: dict[str, tuple[str, ...]] = {
    "fma": ("FFMA", "HFMA2", "IDP"),
    "lds": ("LDS",),
    "global": ("LDG", "LDGSTS", "LD"),
    "sts": ("STS", "ST"),
    "int": ("IMAD", "IADD3", "IADD", "LEA", "SHF", "LOP3", "IABS", "PRMT", "SGXT", "VIADD", "I2F", "F2I"),
    "pred": ("ISETP", "PLOP3", "SEL", "R2P", "P2R", "FSEL", "VOTE", "IMNMX", "VIMNMX"),
    "move": ("MOV", "CS2R", "S2R", "IMAD.MOV", "R2UR"),
    "local": ("LDL", "STL"),
    "control": ("BRA", "BAR", "BSSY", "BSYNC", "NOP", "EXIT", "LDGDEPBAR", "DEPBAR", "WARPSYNC", "YIELD"),
}
"""Class -> operations (up to their first dot). "uniform": those of the uniform data path (U...), "other": the rest."""

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);")
_LABEL = re.compile(r"^(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")


class Row(msgspec.Struct):
    """One kernel."""

    layer: str
    device: str
    template: str
    schedule: str
    registers: int
    spill_bytes: int
    mix: dict[str, float]


class _Loop(NamedTuple):
    """Instructions [first, last] of a loop."""

    first: int
    last: int


def class_of(operation: str, operands: str) -> str:
    """Return the class of an operation with its modifiers ("IMAD.MOV.U32") and operands."""
    parts = operation.split(".")
    if parts[:2] == ["IMAD", "MOV"] or (parts[0] in ("HFMA2", "FFMA") and operands.count("RZ") > 1):  # a constant
        return "move"
    if operation.startswith("U"):
        return "uniform"
    return next((name for name, known in CLASSES.items() if parts[0] in known), "other")


def loop_mix(text: str, multiply_adds: float, *, whole: bool = False) -> dict[str, float]:
    """Return the instructions of one staging step by class.

    Parameters
    ----------
    text : str
        What ``nvdisasm -c`` prints of one kernel.
    multiply_adds : float
        Multiply-add instructions that a thread needs for one staging step: inner loops are taken to run as often as
        that takes. A loop without any of them is counted once.
    whole : bool
        Whether there is a single step, hence no loop over them: the whole kernel counts.
    """
    classes: list[str] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(classes)
        elif found := _INSTRUCTION.match(line):
            if found[2].startswith("BRA") and (target := _TARGET.search(found[3])):
                jumps.append((len(classes), target[1]))
            classes.append(class_of(found[2], found[3]))
    is_fma = [name == "fma" for name in classes]
    loops = sorted(
        {_Loop(labels[name], at) for at, name in jumps if name in labels and labels[name] < at},
        key=lambda loop: loop.first - loop.last,
    )
    loops = [loop for loop in loops if any(is_fma[loop.first : loop.last + 1])]
    if whole or not loops:
        loops = [_Loop(0, len(classes) - 1), *loops]
    outer = loops[0]
    inner = min(loops, key=lambda loop: loop.last - loop.first)
    inside = sum(is_fma[inner.first : inner.last + 1])
    outside = sum(is_fma[outer.first : outer.last + 1]) - inside
    turns = max(1.0, (multiply_adds - outside) / inside) if inner != outer else 1.0
    mix: Counter[str] = Counter()
    for at in range(outer.first, outer.last + 1):
        mix[classes[at]] += turns if inner.first <= at <= inner.last and inner != outer else 1.0
    return dict(mix)


def disassembled(image: bytes, nvdisasm: str) -> str:
    """Return the machine code of a cubin as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        return subprocess.run([nvdisasm, "-c", str(path)], capture_output=True, text=True, check=True).stdout


def step_mix(schedule: Schedule, text: str) -> dict[str, float]:
    """Return the instructions of one staging step of a schedule's machine code by class."""
    nest = CudaNest(schedule)
    steps = math.prod(nest.extent(axis, level) for axis in nest.reduction for level in ("k1", "k2"))
    return loop_mix(text, float(nest.num_accumulators * steps), whole=nest.num_steps == 1)


def examine(schedule: Schedule, layer: str, nvdisasm: str, keep: Path | None) -> Row:
    """Compile a schedule and read its machine code."""
    kernel = cuda_kernel(schedule)
    cubin = compile_cuda(kernel.source, kernel.arch)
    text = disassembled(cubin.image, nvdisasm)
    if keep is not None:
        name = f"{layer.replace(':', '_')}_{schedule.hardware.name}_{schedule.template}"
        (keep / f"{name}.cu").write_text(kernel.source)
        (keep / f"{name}.sass").write_text(text)
    mix = step_mix(schedule, text)
    facts = cubin.facts
    name = schedule.hardware.name
    return Row(layer, name, schedule.template, schedule.describe(), facts.registers, facts.spill_bytes, mix)


def _chosen(words: str) -> list[str]:
    wanted = words.split(",")
    # layers of Yolo-9000 have two names, Y1 and 2
    groups = [name for name in layer_names() if name.split(":")[0] in wanted and name.split(":")[1][0].isalpha()]
    return list(dict.fromkeys([*groups, *(word for word in wanted if ":" in word)]))


def share(row: Row) -> float:
    """Return the share of multiply-adds."""
    return row.mix.get("fma", 0.0) / sum(row.mix.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", default="resnet50,yolo9000", help="networks and layers, with commas between them")
    parser.add_argument("--hw", nargs="+", default=["rtx3090", "a100", "h100"], metavar="NAME")
    parser.add_argument("--template", nargs="+", default=["cuda", "pipelined"], metavar="NAME")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm") or "nvdisasm", metavar="PROGRAM")
    parser.add_argument("--schedules", type=Path, metavar="FILE", help="kept there; what is there is not planned again")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="CUDA C and machine code of every kernel")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {}
    if options.schedules and options.schedules.exists():
        known = msgspec.json.decode(options.schedules.read_bytes(), type=dict[str, Schedule])
    names = ("fma", "lds", "global", "sts", "int", "pred", "move", "uniform", "local", "control", "other")
    print(f"{'layer':<14}" + "".join(f"{name:>8}" for name in (*names, "all", "share", "regs", "spills")))
    rows: list[Row] = []
    for template in options.template:
        for device in options.hw:
            hardware = anatune.hardware(device)
            print(f"{template}, {hardware.name}")
            shares = []
            for layer in _chosen(options.layers):
                key = f"{template} {device} {layer}"
                if key not in known:
                    known[key] = api.plan(anatune.layer(layer), hardware, 1, template=template).schedules[0]
                row = examine(known[key], layer, options.nvdisasm, options.keep)
                rows.append(row)
                shares.append(share(row))
                numbers = "".join(f"{row.mix.get(name, 0.0):>8.0f}" for name in names)
                total = sum(row.mix.values())
                print(f"{layer:<14}{numbers}{total:>8.0f}{share(row):>8.1%}{row.registers:>8}{row.spill_bytes:>8}")
            mean = math.exp(sum(map(math.log, shares)) / len(shares))
            print(f"{'mean':<14}{mean:>{8 * (len(names) + 2)}.1%}")
    if options.schedules:
        options.schedules.write_bytes(msgspec.json.format(msgspec.json.encode(known)))
    if options.json:
        write_json(options.json, environment() | {"rows": msgspec.to_builtins(rows)})


if __name__ == "__main__":
    main()

"""What Triton makes of products beside what the template says: instructions, shared memory, registers, spills.

Programs are compiled for GPUs that need not be there. `--table` compiles every entry of the table of instructions.
"""

from __future__ import annotations

import random
import re
import sys
from argparse import ArgumentParser
from collections import defaultdict
from pathlib import Path

import msgspec

from anatune.core.hardware.files import hardware
from anatune.templates.triton.instructions import (
    SCALED_DEPTH,
    SCALED_ROWS,
    DotUnit,
    Instruction,
    instructions_of,
    scaled_instruction,
)
from anatune.templates.triton.problem import DTYPES, MatmulProblem
from anatune.templates.triton.resources import Resources, resources
from anatune.templates.triton.tiles import Tiles
from bench.gpu.triton_worker import ARCHS, Built, Program, compiler

__all__ = ["Compared", "agrees", "compared", "drawn", "entry", "main", "needed", "scaled_as_said", "scaled_entry"]

SPECS = {
    "sm_80": "a100_sxm", "sm_86": "rtx3090", "sm_89": "rtx4090", "sm_90": "h100_sxm", "sm_100": "b200",
    "sm_120": "rtx5090", "gfx90a": "mi210", "gfx942": "mi300x", "gfx950": "mi355x",
}  # fmt: skip
RANDOM_ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")
_OUT_BYTES = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
_STARTS = {DotUnit.WGMMA: "wgmma", DotUnit.TCGEN05: "tcgen05", DotUnit.MMA: "mma.sync", DotUnit.MFMA: "v_mfma"}
_WORDS = {
    "float16": ("f16",), "bfloat16": ("bf16", "kind::f16"), "tf32": ("tf32", "xf32"), "float32": ("f32",),
    "int8": ("s8", "i8"), "float8_e4m3fn": ("e4m3", "fp8_fp8", "f8f6f4"), "float8_e5m2": ("e5m2", "bf8", "f8f6f4"),
    "float8_e4m3fnuz": ("fp8_fp8",), "float8_e5m2fnuz": ("bf8_bf8",),
    "mxfp8": ("mxf8f6f4.block_scale", "mfma_scale"), "nvfp4": ("mxf4nvf4.block_scale",),
    "mxfp4": ("mxf4.block_scale", "mxf4nvf4.block_scale", "mfma_scale"),
}  # fmt: skip
"""What operands are called in names of instructions."""
_OPERANDS = tuple(name for name in DTYPES if name != "fp8")
_SCALED = (("mxfp8", "mxfp8"), ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"), ("bfloat16", "mxfp4"))
"""Operands of ``tl.dot_scaled``."""
_DRAWN = (
    *2 * ("float16", "bfloat16"), "tf32", "float32", "int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "mixed",
)  # fmt: skip


class Compared(msgspec.Struct, frozen=True):
    """One program: what the compiler said and what the template says."""

    program: Program
    built: Built
    unit: str
    legal: bool
    shared_bytes: int
    registers: int
    spills: bool


def drawn(rng: random.Random, arch: str) -> Program:
    """Return a random product: any block sizes, warps, stages, transposes, masks, operands that the arch has."""
    while True:
        a = rng.choice(_DRAWN)
        a, b = (rng.choice(("float16", "bfloat16")), "int8") if a == "mixed" else (a, a)
        found = instructions_of(arch, a)
        if found is None or found[0].unit == DotUnit.FMA:
            continue
        out = a if a in _OUT_BYTES else {"tf32": "float32", "int8": "int32"}.get(a, "float16")
        program = Program(
            arch, a, b, out if a == "int8" or rng.random() < 0.8 else "float32",
            *(2 ** rng.randint(4, 8) for _ in range(3)),
            num_warps=2 ** rng.randint(0, 4) if rng.random() < 0.4 else rng.choice((4, 8)),
            num_stages=rng.randint(1, 4 if arch.startswith("gfx") else 6),
            a_along_k=rng.random() < 0.75, b_along_n=rng.random() < 0.7, masks=rng.random() < 0.5,
            descriptors=arch in ("sm_90", "sm_100", "sm_120") and rng.random() < 0.45,
        )  # fmt: skip
        stage = (program.block_m + program.block_n) * program.block_k * DTYPES[a]
        if stage * program.num_stages < 2**18 and program.block_m * program.block_n <= program.num_warps * 2**13:
            return program


def needed(program: Program) -> Resources:
    """Return what the template says of a program."""
    problem = MatmulProblem(
        4096, 4096, 4096, program.a, _OUT_BYTES[program.out], program.a_along_k, program.b_along_n,
        right_bytes=0 if program.a == program.b else DTYPES[program.b],
    )  # fmt: skip
    sizes = (program.block_m, program.block_n, program.block_k, program.num_warps, program.num_stages, 1, 8)
    return resources(problem, Tiles.of([(*sizes, int(program.descriptors), 0)]), hardware(SPECS[program.arch]))


def compared(program: Program, built: Built) -> Compared:
    """Return a program's facts beside the template's."""
    need = needed(program)
    shared = int(need.shared_bytes[0])
    if program.descriptors and not program.masks:  # results are staged for a store by descriptor
        shared = max(shared, program.block_m * program.block_n * _OUT_BYTES[program.out])
    unit = DotUnit(int(need.unit[0])).name
    spills = bool(need.spilled[0] > 0)
    return Compared(program, built, unit, int(need.rule[0]) == 0, shared, int(need.registers[0]), spills)


def agrees(instruction: Instruction, built: Built) -> bool:
    """Return whether a program has the instruction that the table says: its unit, its operands, its steps of k."""
    if instruction.unit == DotUnit.FMA:
        return not built.error and not built.instructions
    for name in built.instructions:
        depth = re.search(r"n\d+k(\d+)|(\d+)x\d+x(\d+)", name)
        if not name.startswith(_STARTS[instruction.unit]) or not any(w in name for w in _WORDS[instruction.as_dtype]):
            return False
        if depth and int(depth[1] or depth[3]) * (16 if depth[2] == "16" else 32) != instruction.depth * 32:
            return False
    return bool(built.instructions)


def entry(arch: str, dtype: str, *, wide: bool) -> Program:
    """Return the program that shows which instruction an entry of the table is: a wide tile's, or a small one's."""
    rows = 64 if wide else 32
    out = {"tf32": "float32", "float32": "float32", "int8": "int32"}.get(dtype, "float16")
    stages = 1 if dtype == "float32" else 2
    return Program(arch, dtype, dtype, out, rows, 64 if dtype != "float32" else 32, 64, 4, stages)


def scaled_entry(arch: str, a: str, b: str, rows: int) -> Program:
    """Return the program that shows what ``tl.dot_scaled`` of two operands becomes in a tile of so many rows."""
    return Program(arch, a, b, "bfloat16", rows, 64, SCALED_DEPTH, 4, 2)


def scaled_as_said(arch: str, a: str, b: str, rows: int, built: Built) -> tuple[str, bool]:
    """Return what the table says of such a program, and whether the compiler made that of it."""
    found = scaled_instruction(arch, a) if a == b else None
    if found is None or (found.unit == DotUnit.TCGEN05 and rows < SCALED_ROWS):
        native = any("scale" in name for name in built.instructions)
        return "none: refused" if found is None else f"none in less than {SCALED_ROWS} rows: refused", not native
    return f"{found.unit.name:7} k {found.depth:2}, block_k >= {found.least_depth:2}", agrees(found, built)


def _table(archs: list[str]) -> int:
    wrong = 0

    def row(arch: str, operands: str, rows: int, said: str, right: bool, built: Built) -> int:
        came = ", ".join(built.instructions) or built.error[:60] or "no matrix instruction"
        stack = f", stack of {built.spilled_bytes}" if built.spilled_bytes else ""
        print(
            f"{arch:7} {operands:16} {rows:3} rows  {said:52} {'as compiled' if right else 'WRONG'}: {came}{stack}",
            flush=True,
        )
        return int(not right)

    with compiler() as build:
        for arch in archs:
            for dtype in _OPERANDS:
                found = instructions_of(arch, dtype)
                for wide in (True, False):
                    built = build(entry(arch, dtype, wide=wide))
                    if found is None:
                        right, said = bool(built.error), "none"
                    else:
                        one = found[0 if wide else 1]
                        right = agrees(one, built)
                        said = f"{one.unit.name:7} k {one.depth:2}, block_k >= {one.least_depth:2}"
                        said += f", as {one.as_dtype}" if one.emulated else ""
                    wrong += row(arch, dtype, 64 if wide else 32, said, right, built)
            for a, b in _SCALED:
                for rows in (128, 32):
                    built = build(scaled_entry(arch, a, b, rows))
                    wrong += row(
                        arch, a if a == b else f"{a} x {b}", rows, *scaled_as_said(arch, a, b, rows, built), built
                    )
    print(f"{wrong} entries are not what Triton makes")
    return wrong


def _cached(path: Path | None) -> dict[Program, Built]:
    if path is None or not path.exists():
        return {}
    return {p: b for p, b in (msgspec.json.decode(line, type=tuple[Program, Built]) for line in path.open("rb"))}


def _report(rows: list[Compared]) -> None:
    groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for row in rows:
        kind = row.program.a if row.program.a == row.program.b else "16 x 8 bits"
        for key in ((row.program.arch, row.unit), (row.program.arch, kind), (row.program.arch, "all"), ("all", "all")):
            groups[key].append(row)
    print("device  what              programs  shared exact  registers off  spills alike  legal alike")
    for (arch, what), some in sorted(groups.items()):
        built = [row for row in some if not row.built.error]
        exact = sum(row.shared_bytes == row.built.shared_bytes for row in built)
        off = sum(abs(row.registers - row.built.registers) for row in built)
        alike = sum(row.spills == (row.built.spilled_bytes > 16) for row in built)
        legal = sum(row.legal == _runs(row) for row in some)
        count = max(1, len(built))
        shares = f"{exact / count:12.1%}  {off / count:13.1f}  {alike / count:12.1%}  {legal / len(some):11.1%}"
        print(f"{arch:7} {what:16}  {len(some):8}  {shares}")


def _runs(row: Compared) -> bool:
    limit = hardware(SPECS[row.program.arch]).shared_memory.per_block_bytes
    return not row.built.error and row.built.shared_bytes <= limit


def main(words: list[str] | None = None) -> int:
    """Compile and compare; return how many entries of the table are wrong."""
    parser = ArgumentParser(prog="bench.gpu.triton_resources", description=__doc__)
    parser.add_argument("--table", action="store_true", help="compile the table of instructions, and nothing else")
    parser.add_argument("--archs", default="", help="commas between; left out: all of them")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="JSON lines of what was compiled before, and is")
    parser.add_argument("--wrong", action="store_true", help="print the programs whose shared bytes are not exact")
    given = parser.parse_args(words)
    if given.table:
        return _table(given.archs.split(",") if given.archs else list(ARCHS))
    archs = given.archs.split(",") if given.archs else RANDOM_ARCHS
    rng, known, rows = random.Random(given.seed), _cached(given.cache), []
    with compiler() as build:
        for number in range(given.programs):
            program = drawn(rng, archs[number % len(archs)])
            if (built := known.get(program)) is None:
                built = build(program)
                if given.cache is not None:
                    with given.cache.open("ab") as file:
                        file.write(msgspec.json.encode((program, built)) + b"\n")
            rows.append(compared(program, built))
            if given.wrong and not built.error and rows[-1].shared_bytes != built.shared_bytes:
                print(rows[-1])
    _report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main() > 0)

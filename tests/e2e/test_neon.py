"""Exported NEON kernels compute what the workload says: cross compiled, run by an emulator of the processor."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.measure.run.correctness import array_dtype, compare, compute_expected, random_inputs
from tests.unit.codegen.cpu.test_lower import WORKLOADS

pytest.importorskip("tvm")
from anatune.export.cpu.write import CLibrary, write_c_library

TRIPLE = "aarch64-linux-gnu"
MISSING = [tool for tool in ("qemu-aarch64", f"{TRIPLE}-gcc", f"{TRIPLE}-objcopy") if shutil.which(tool) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} cannot be found")]

SPECS = {"arm_cortex_a72": "cortex-a72", "aws_graviton3": "max", "apple_m3": "max", "marvell_thunderx2": "max"}
"""Device -> the processor that the emulator plays: the only one of them that it knows, and one that has everything."""

PLANNED = [
    "matmul", "matmul_ta", "matmul_tb_epilogue", "conv_nchw", "conv_nhwc_stride_epilogue", "conv_7x7",
    "depthwise_nhwc", "max_pool", "sum_of_whole_vectors", "matrix_vector", "float16", "bfloat16", "int8",
]  # fmt: skip

PADDED = anatune.conv2d(1, 16, 7, 7, 64, 3, 3, padding=1, layout="NHWC")
MOVING = {
    "f": (1, 1, 1, 4, 16), "y": (1, 1, 1, 7, 1), "x": (1, 1, 1, 1, 7), "rc": (1, 1, 16, 1), "ry": (1, 3, 1),
    "rx": (1, 1, 3),
}  # fmt: skip
PAIR = anatune.conv2d(1, 8, 11, 11, 16, 3, 3, padding=1, layout="NHWC", epilogue=("bias", "relu"))
PAIR_TILES = {"f": (1, 1, 1, 2, 8), "x": (1, 1, 1, 1, 11), "y": (1, 1, 1, 11, 1), "rx": (1, 3, 1)}
WINOGRAD = {
    "winograd_nhwc": anatune.conv2d(1, 16, 14, 14, 24, 3, 3, padding=1, layout="NHWC", epilogue=("bias", "relu")),
    "winograd_nchw": anatune.conv2d(1, 20, 9, 11, 24, 3, 3, padding=1),
}
CHOSEN = {
    "padding_left_out": (PADDED, MOVING, {}),
    "pair": (PAIR, PAIR_TILES, {"x": 2}),
    "pair_of_vectors": (anatune.matmul(12, 50, 20), {"j": (1, 1, 1, 1, 50), "i": (1, 1, 1, 3, 4)}, {"j": 3}),
    "partial_sums": (
        anatune.matmul(8, 16, 96, dtype="float16"),
        {"j": (1, 1, 1, 1, 16), "i": (1, 1, 1, 2, 4), "k": (4, 4, 6, 1)},
        {},
    ),
}
"""Name -> workload, tiles, and calls along axes whose register tiles are pairs."""


class Case(NamedTuple):
    """A kernel to try: "drawn" from the space, the "planned" one, "chosen" here, or drawn from "winograd"'s space."""

    kind: str
    name: str
    device: str
    threads: int = 1

    def schedule(self) -> Schedule:
        hardware = anatune.hardware(self.device)
        if self.kind == "chosen":
            workload, tiles, calls = CHOSEN[self.name]
            return anatune.space(workload, hardware).schedule(tiles=tiles, calls=calls)
        if self.kind == "winograd":
            name, _, number = self.name.rpartition("-")
            return anatune.space(WINOGRAD[name], hardware, template="winograd").sample(4, seed=1)[int(number)]
        workload = WORKLOADS[self.name]
        if self.kind == "drawn":
            return anatune.space(workload, hardware).sample(1, seed=sum(map(ord, self.name)))[0]
        return anatune.plan(workload, hardware, top_k=1, template="cpu").best


def cases() -> list[Case]:
    devices = list(SPECS)
    found = [Case("drawn", name, devices[place % 4]) for place, name in enumerate(WORKLOADS)]
    found += [Case("planned", name, devices[(place + 1) % 4]) for place, name in enumerate(PLANNED)]
    found += [Case("chosen", name, devices[place % 4]) for place, name in enumerate(CHOSEN)]
    pairs = enumerate((name, number) for name in WINOGRAD for number in range(4))
    found += [Case("winograd", f"{name}-{number}", devices[place % 4]) for place, (name, number) in pairs]
    return [*found, Case("planned", "conv_nchw", "aws_graviton3", threads=3)]


CASES = cases()

HEAD = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static FILE *in, *out;
static unsigned char *room(size_t bytes, int fill) { /* aligned, filled, and 64 bytes of guard on both sides */
  size_t whole = (bytes + 63) / 64 * 64 + 128;
  unsigned char *start = aligned_alloc(64, whole);
  if (!start) exit(8);
  memset(start, 0x5a, whole);
  memset(start + 64, fill, bytes);
  return start + 64;
}
static void *take(size_t bytes) {
  unsigned char *data = room(bytes, 0);
  if (fread(data, 1, bytes, in) != bytes) exit(9);
  return data;
}
static void give(int status, const unsigned char *data, size_t bytes, int written) {
  int intact = 1;
  for (int i = 1; i <= 64; ++i) intact &= data[-i] == 0x5a && data[bytes + i - 1] == 0x5a;
  int said[2] = {status, intact};
  fwrite(said, sizeof said, 1, out);
  if (written) fwrite(data, 1, bytes, out);
}
"""


def num_bytes(argument) -> int:
    return int(np.prod(argument.shape, dtype=np.int64)) * array_dtype(argument.dtype).itemsize


def c_function(name: str, library: CLibrary) -> str:
    """C code that takes the operands of a kernel, calls what its header declares, and gives the results."""
    plain, *others = library.functions
    *operands, result = plain.arguments
    size = num_bytes(result)
    lines = [f"static void try_{name}(void) {{"]
    lines += [f"  void *{one.tensor} = take({num_bytes(one)}), *kept_{one.tensor};" for one in operands]
    for one in operands:
        lines.append(f"  kept_{one.tensor} = memcpy(room({num_bytes(one)}, 0), {one.tensor}, {num_bytes(one)});")
    lines.append(f"  unsigned char *result = room({size}, 255);")
    lines.append("  int status;")
    for function in [plain, *others[-1:]]:
        for pack in others[:-1] if function is not plain else ():
            source, target = pack.arguments
            lines.append(f"  unsigned char *{target.tensor} = room({num_bytes(target)}, 119);")
            lines.append(f"  if ((status = {pack.name}({source.tensor}, (void *){target.tensor}))) exit(10);")
            lines.append(f"  give(status, {target.tensor}, {num_bytes(target)}, 0);")
        words = ", ".join(f"(void *){one.tensor}" for one in function.arguments[:-1])
        lines.append(f"  memset(result, 255, {size});")
        lines.append(f"  status = {function.name}({words}, (void *)result);")
        lines += [
            f"  if (memcmp({one.tensor}, kept_{one.tensor}, {num_bytes(one)})) status = -100;" for one in operands
        ]
        lines.append(f"  give(status, result, {size}, 1);")
    return "\n".join([*lines, "}", ""])


def emulate(folder: Path, processor: str, program: str) -> int:
    words = ["qemu-aarch64", "-cpu", processor, f"./{program}"]
    return subprocess.run(words, cwd=folder, check=False, timeout=120).returncode


def link(folder: Path, program: str, source: str, words: list[str]) -> None:
    (folder / f"{program}.c").write_text(source)
    command = [f"{TRIPLE}-gcc", "-O1", "-Wall", "-Werror", "-static", f"{program}.c", *words, "-o", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What every kernel did: case -> (schedule, operands, [(status, guards intact, result)])."""
    folder = tmp_path_factory.mktemp("neon")
    found = {}
    for processor in sorted(set(SPECS.values())):
        chosen = [case for case in CASES if SPECS[case.device] == processor]
        sources, words, runs = [], dict.fromkeys(["-lm"]), []
        with (folder / "operands").open("wb") as operands:
            for number, case in enumerate(chosen):
                name, schedule = f"case{number}", case.schedule()
                library = write_c_library(schedule, name, folder, threads=case.threads, form="o")
                assert bool(library.needs.openmp) == (case.threads > 1)
                words.update(dict.fromkeys(library.link))
                sources.append(f'#include "{library.header}"\n{c_function(name, library)}')
                inputs = random_inputs(schedule.workload, 3)
                for one in library.functions[0].arguments[:-1]:
                    operands.write(np.ascontiguousarray(inputs[one.tensor]).tobytes())
                runs.append((case, schedule, inputs, library))
        calls = "".join(f"  try_case{number}();\n" for number in range(len(chosen)))
        opened = '  in = fopen("operands", "rb");\n  out = fopen("results", "wb");\n'
        main = f"int main(void) {{\n{opened}{calls}  return fclose(out);\n}}\n"
        ordered = [word for word in words if not word.startswith("-l")] + [word for word in words if word[:2] == "-l"]
        link(folder, "try", HEAD + "".join(sources) + main, ordered)
        assert emulate(folder, processor, "try") == 0
        with (folder / "results").open("rb") as results:
            for case, schedule, inputs, library in runs:
                found[case] = (schedule, inputs, list(read(results, library)))
            assert not results.read()
    return found


def read(results, library: CLibrary):
    """Yield (status, guards intact, result) of each call; no result of packing."""
    _, *others = library.functions
    result = library.functions[0].arguments[-1]
    for packing in [False, *[True] * len(others[:-1]), *[False] * bool(others)]:
        status, intact = np.frombuffer(results.read(8), np.int32)
        dtype = array_dtype(result.dtype)
        values = None if packing else np.frombuffer(results.read(num_bytes(result)), dtype).reshape(result.shape)
        yield status, intact, values


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_neon_kernel_computes_the_workload(answers, case):
    schedule, inputs, calls = answers[case]
    want = compute_expected(schedule.workload, inputs)
    assert calls
    for status, intact, result in calls:
        assert (status, intact) == (0, 1), schedule.describe()
        if result is not None:
            outcome = compare(schedule.workload, result, want)
            assert outcome.ok, f"{outcome.message}\n{schedule.describe()}"


def test_the_cases_have_what_the_generator_can_do(answers):
    options = [schedule.options for schedule, _, _ in answers.values()]
    assert any(option.get("packed_ahead") for option in options)
    assert any(
        schedule.options["packed"] and not schedule.options["packed_ahead"] for schedule, _, _ in answers.values()
    )
    tiles = {schedule.options.get("output_tile") for schedule, _, _ in answers.values()}
    assert tiles == {None, 2, 4}
    assert {len(calls) for _, _, calls in answers.values()} >= {1, 3}


ELSEWHERE = """
#include <stdio.h>
#include "elsewhere.h"
static _Alignas(64) float a[64], b[64], c[64];
int main(void) { return 10 * elsewhere_supported() - elsewhere(a, b, c); }
"""


def test_a_processor_without_the_instructions_is_told_so(tmp_path):
    schedule = anatune.plan(anatune.matmul(8, 8, 8), "aws_graviton3", top_k=1).best
    library = write_c_library(schedule, "elsewhere", tmp_path, threads=1, form="a")
    assert {"neon", "dotprod", "sve"} <= set(library.needs.features)
    link(tmp_path, "use", ELSEWHERE, list(library.link))
    assert emulate(tmp_path, "max", "use") == 10
    assert emulate(tmp_path, "cortex-a72", "use") == 4


def test_the_command_line_links_for_the_other_machine(anatune, tmp_path):
    done = anatune("export", "--hw", "cortex_a72", "matmul", "8x8x8", "--output", tmp_path, "--name", "k", "--json")
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout)["library"] == "libk.so"
    assert (tmp_path / "libk.so").read_bytes()[18:20] == b"\xb7\x00"  # EM_AARCH64

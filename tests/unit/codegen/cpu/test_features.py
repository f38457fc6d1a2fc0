"""What a processor is asked, by a C compiler and the present processor."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from anatune.codegen.cpu.features import check_source, code_features

FLAGS = {
    "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "popcnt": "popcnt", "movbe": "movbe",
    "avx": "avx", "f16c": "f16c", "fma": "fma", "avx2": "avx2", "bmi": "bmi1", "bmi2": "bmi2", "lzcnt": "abm",
    "sse4a": "sse4a", "avx512f": "avx512f", "avx512dq": "avx512dq", "avx512cd": "avx512cd", "avx512bw": "avx512bw",
    "avx512vl": "avx512vl", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
    "avxvnni": "avx_vnni", "gfni": "gfni", "xop": "xop", "fma4": "fma4", "tbm": "tbm",
}  # fmt: skip
"""LLVM's name -> Linux' name."""

needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None or not Path("/proc/cpuinfo").exists(),
    reason="asks an x86 processor under Linux",
)


def answer(tmp_path, *checks):
    """Return what each check says on the present machine."""
    calls = []
    for number, text in enumerate(checks):
        (tmp_path / f"check{number}.c").write_text(f"{text}int check{number}(void) {{ return cpu_is_right(); }}\n")
        calls.append(f'printf("%d", check{number}());')
    declared = "".join(f"int check{number}(void);" for number in range(len(checks)))
    (tmp_path / "main.c").write_text(
        f"#include <stdio.h>\n{declared}int main(void) {{ {' '.join(calls)} return 0; }}\n"
    )
    files = [f"check{number}.c" for number in range(len(checks))]
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "main.c", *files, "-o", "main"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return [digit == "1" for digit in subprocess.run([tmp_path / "main"], capture_output=True, text=True).stdout]


@needs_x86
def test_each_feature_is_found_where_linux_finds_it(tmp_path):
    have = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    said = answer(tmp_path, *(check_source([name], "x86_64") for name in FLAGS))
    assert dict(zip(FLAGS, said, strict=True)) == {name: flag in have for name, flag in FLAGS.items()}


@needs_x86
def test_all_are_needed_and_nothing_is_always_there(tmp_path):
    have = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    mine = [name for name, flag in FLAGS.items() if flag in have]
    absent = next(name for name, flag in FLAGS.items() if flag not in have)
    texts = [check_source(names, "x86_64") for names in (mine, [*mine, absent], [])]
    assert answer(tmp_path, *texts) == [True, False, True]


def test_only_what_compiled_code_may_use_is_asked_for():
    assert code_features({"avx2", "fast-gather", "sha", "64bit", "bmi"}, "x86_64") == ("avx2", "bmi")
    assert code_features({"neon", "lse", "sve", "fuse-aes"}, "aarch64") == ("neon", "sve")


def test_arms_processors_are_asked_by_the_auxiliary_vector():
    text = check_source(["dotprod", "fullfp16", "neon", "i8mm"], "aarch64")
    assert "cpu_has(16, 0x100602ul) && cpu_has(26, 0x2000ul)" in text
    assert "0x" not in check_source([], "aarch64")

"""Every complete program in docs/ runs: without a GPU, in a process of its own."""

import subprocess
import sys

import pytest

from tests.documents import PAGES, PROGRAM, blocks, name

PROGRAMS = [block for page in PAGES for block in blocks(page) if block.text.startswith(PROGRAM)]

FAST = """
import sys, types
for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):
    sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)
"""
"""Before a program: without intrinsics of other devices, which take TVM 25 s to import."""

ADAPTERS = (
    *("triton", "inductor", "helion", "kernel_tuner", "metaschedule", "optuna", "pruning", "fleets", "attention"),
    "scaled",
)

QUICK = ("docs/howto/pruning.md",)
"""Pages whose programs are in the fast tier."""


def test_each_adapter_has_a_program():
    assert {page.stem for page in PAGES if any(block.page == name(page) for block in PROGRAMS)} == set(ADAPTERS)


@pytest.mark.parametrize(
    "program", [pytest.param(one, marks=() if one.page in QUICK else pytest.mark.slow) for one in PROGRAMS], ids=str
)
def test_a_program_runs(program, environment, tmp_path):
    needs = program.text.splitlines()[0].removeprefix(PROGRAM)
    for package in filter(None, (word.strip() for word in needs.split(","))):
        pytest.importorskip(package, reason=f"{program} needs {package}")
    path = tmp_path / "program.py"  # a file: Triton reads the source of kernels
    path.write_text(FAST + program.text)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout

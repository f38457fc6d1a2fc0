"""Every complete program in docs/ runs: without a GPU, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in DOCS.glob("**/*.md") if "# A complete program" in page.read_text())
PROGRAM = re.compile(r"^```python\n(# A complete program; needs:([^\n]*)\n.*?)^```", re.MULTILINE | re.DOTALL)

FAST = """
import sys, types
for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):
    sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)
"""
"""Before a program: without intrinsics of other devices, which take TVM 25 s to import."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_program_of_a_page_runs(page, environment, tmp_path):
    programs = PROGRAM.findall(page.read_text())
    assert programs, f"{page.name} has no complete program: ```python, then '# A complete program; needs: PACKAGES'"
    for text, needs in programs:
        for package in filter(None, (word.strip() for word in needs.split(","))):
            pytest.importorskip(package, reason=f"docs/{page.name} needs {package}")
        path = tmp_path / f"{page.stem}_program.py"  # a file: Triton reads the source of kernels
        path.write_text(FAST + text)
        run(path, environment)


def run(path, environment):
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | {"TRITON_CACHE_DIR": str(path.parent / "triton"), "CUDA_VISIBLE_DEVICES": ""},
        cwd=path.parent,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout

"""The C header of a range: compilers take it, and it picks the program that the plan names."""

import subprocess
from unittest import mock

import pytest

from tests.e2e.cuda_compilers import cuda_include
from tests.unit.measure.cuda.test_ranges import a_mixed_plan, a_plan, no_triton

pytest.importorskip("tvm")
pytest.importorskip("cuda.bindings")
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
from anatune.export.cli import files
from anatune.export.triton.ranges import write_gpu_range

pytestmark = pytest.mark.slow

USE = """
#include "rows.h"
int main(void) {
  rows_t kernels;
  return rows_load(&kernels, ".") || rows_launch(&kernels, 0, 7, 0, 0, 0) || rows_supported(0);
}
"""
PICK = """
#include "rows.h"
int main(void) {
  int extent;
  for (extent = 0; extent <= 46; ++extent) printf("%d ", rows_program(extent));
  return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("range")
    write_gpu_range(a_plan(), "rows", found, no_triton)
    (found / "use.c").write_text(USE)
    (found / "pick.c").write_text(PICK)
    return found


@pytest.mark.parametrize("compiler", [("cc", "-std=c99"), ("c++", "-x", "c++")])
def test_c_and_cpp_take_the_header(folder, compiler):
    flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{cuda_include()}"]
    subprocess.run([*compiler, *flags, "use.c"], cwd=folder, check=True, timeout=60)


def test_it_picks_the_program_that_the_plan_names(folder):
    link = ["-o", "pick", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run(["cc", f"-I{cuda_include()}", "pick.c", *link], cwd=folder, check=True, timeout=60)
    said = subprocess.run([folder / "pick"], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    plan = a_plan()
    assert said == ["-1", *(str(plan.program_of(extent)) for extent in range(1, 46)), "-1"]


def test_the_manifest_says_how_programs_of_both_kinds_are_called(tmp_path):
    pytest.importorskip("triton", reason="its compiler says its version")

    def compiled(wanted, hardware, workers):
        return [Cubin(one.name, hardware.arch, b"code", CompilerFacts(9), "", 128, 0, 64) for _, one in wanted]

    with mock.patch.object(files, "compiled_kernels", compiled):
        made = files.write_range(a_mixed_plan(split_k=2), "rows", "so", None, tmp_path)
    assert made["files"] == [
        "rows_0.cubin", "rows_1.cubin", "rows_1_1.cubin", "rows_0.cu", "rows_1.py", "rows_dispatch.json"
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*made["files"], made["header"]])
    launch = made["functions"][0]
    tensors = "CUdeviceptr A, CUdeviceptr B, CUdeviceptr C, CUdeviceptr parts, CUdeviceptr scratch"
    assert f"CUstream stream, int extent, {tensors});" in launch["prototype"]
    assert [one.tensor for one in launch["arguments"]] == ["A", "B", "C", "parts"]
    assert made["arithmetic"].sentences().split(". ")[1] in (tmp_path / "rows.h").read_text().replace("\n * ", " ")

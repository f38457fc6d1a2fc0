"""The C header of a range: compilers take it, and it picks the program that the plan names."""

import subprocess

import pytest

from tests.e2e.cuda_compilers import cuda_include
from tests.unit.measure.cuda.test_ranges import a_plan, no_triton

pytest.importorskip("tvm")
pytest.importorskip("cuda.bindings")
from anatune.codegen.triton.export.ranges import write_gpu_range

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

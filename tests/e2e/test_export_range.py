"""``anatune export`` of a plan for a range: a C program calls every extent through one function."""

import json
import shutil
import subprocess

import pytest

pytest.importorskip("tvm")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

PROGRAM = """
#include "product.h"
static _Alignas(64) float a[30 * 8], b[8 * 20], packed[PACKED], c[31 * 20];
int main(void) {
  for (int i = 0; i < 30 * 8; ++i) a[i] = i % 7 - 3;
  for (int i = 0; i < 8 * 20; ++i) b[i] = i % 5 - 2;
  if (!product_supported() || product_pack_B(b, packed)) return 1;
  for (int rows = 1; rows <= 30; ++rows) {
    for (int i = 0; i < 31 * 20; ++i) c[i] = -999;
    if (product_packed(rows, a, packed, c)) return 2;
    for (int i = 0; i < 31 * 20; ++i) {
      float sum = 0;
      for (int k = 0; k < 8; ++k) sum += i / 20 < rows ? a[i / 20 * 8 + k] * b[k * 20 + i % 20] : 0;
      if (c[i] != (i / 20 < rows ? sum : -999)) return 3;
    }
  }
  return product(31, a, b, c) == -5 && product(0, a, b, c) == -5 ? 0 : 4;
}
"""


def test_a_c_program_calls_every_extent(anatune, tmp_path):
    words = ("matmul", "1..30x20x8")
    plan = anatune("plan", "--hw", "host", "--threads", "1", *words, "--kernels", "2", "--json")
    assert plan.returncode == 0, plan.stderr
    (tmp_path / "range.json").write_text(plan.stdout)
    done = anatune("export", tmp_path / "range.json", "--output", tmp_path, "--name", "product", "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert manifest["dispatch"]["intervals"][0]["first"] == 1
    assert manifest["workload"] == "matmul i=1..30 j=20 k=8 float32"
    (size,) = manifest["functions"][1]["arguments"][1]["shape"]
    (tmp_path / "use.c").write_text(PROGRAM)
    command = ["gcc", "-Wall", "-Werror", f"-DPACKED={size}", "-I.", "use.c", "-L.", *manifest["link"]]
    built = subprocess.run([*command, "-Wl,-rpath,.", "-o", "use"], cwd=tmp_path, check=False)
    assert built.returncode == 0
    assert subprocess.run([tmp_path / "use"], cwd=tmp_path, check=False).returncode == 0
    again = anatune("export", tmp_path / "product.json", "--output", tmp_path / "again", "--name", "product")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "product.h").read_text() == (tmp_path / "product.h").read_text()


def test_what_cannot_be_exported_is_one_line(anatune, tmp_path):
    plan = anatune("plan", "--hw", "host", "--threads", "1", "matmul", "1..4x20x8", "--kernels", "1", "--json")
    (tmp_path / "range.json").write_text(plan.stdout)
    for words, said in (
        ((tmp_path / "range.json", "--format", "tvm"), "--format tvm is for single schedules"),
        ((tmp_path / "range.json", "--target", "cuda"), "--target cuda: the schedule is for host"),
        (("--hw", "host", "matmul", "1..4x20x8"), "has a range of extents; plan it first"),
    ):
        done = anatune("export", *words)
        assert done.returncode != 0
        assert said in done.stderr
        assert done.stderr.count("\n") == 1

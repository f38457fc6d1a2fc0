"""Exports of ranges whose programs are Triton's, beside CUDA C's: files, and a header that launches both kinds."""

import subprocess
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("tvm")

import anatune
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.workload.ranges import parse_ranged_workload
from anatune.errors import SpaceError
from anatune.export.cuda.requirements import requirements_of
from anatune.export.triton import ranges
from tests.e2e.cuda_compilers import STUB_OF_MODULES, cuda_include, run
from tests.unit.measure.cuda.test_ranges import a_mixed_plan
from tests.wording import refuses

DRIVER = (
    '#include "rows.h"\n'
    + STUB_OF_MODULES
    + r"""
  const char *name = (const char *)function;
  int at, tensors = name[0] == 'a' ? 2 : 3;
  (void)gy; (void)gz; (void)by; (void)bz; (void)stream; (void)extra;
  printf("%s %u %u %u", name, gx, bx, shared);
  for (at = 0; at < tensors; ++at) printf(" %llu", *(unsigned long long *)arguments[at]);
  printf(" %d", *(int *)arguments[tensors]);
  if (name[0] != 'r')
    for (at = 1; at < 3; ++at) printf(" %llu", *(unsigned long long *)arguments[tensors + at]);
  printf("\n");
  return 0;
}
CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)attribute; (void)device; *value = 0; return 0;
}
int main(void) {
  rows_t kernels;
  int extent;
  if (rows_supported(0) || rows_load(&kernels, "place")) return 1;
  if (rows_launch(&kernels, 0, 46, 16, 32, 48, 64, 128) != CUDA_ERROR_INVALID_VALUE) return 2;
  if (rows_launch(&kernels, 0, 8, 16, 32, 40, 64, 128) != CUDA_ERROR_INVALID_VALUE) return 3;
  for (extent = 7; extent < 46; extent += 19)
    if (rows_launch(&kernels, 0, extent, 16, 32, 48, 64, 128)) return 4;
  return 0;
}
"""
)


def compiled(wanted):
    """Stand for Triton: the first kernel keeps descriptors in scratch memory."""
    sizes = [(98304, 384) if not number else (0, 0) for number in range(len(wanted))]
    return [
        Cubin(kernel.name, "sm_90", kernel.name.encode(), CompilerFacts(100), "", 128, shared, scratch)
        for (_, kernel), (shared, scratch) in zip(wanted, sizes, strict=True)
    ]


def exported(plan, folder):
    with (
        mock.patch.object(ranges, "triton_version", return_value="Triton 3.9.0"),
        mock.patch.object(ranges, "compiler_version", return_value="NVRTC 12.9"),
        mock.patch.object(ranges, "compiler_release", return_value=(12, 9)),
        mock.patch.object(ranges, "find_requirements", lambda arch: requirements_of(f"{arch}a", (12, 9))),
        mock.patch.object(ranges, "compile_kernel", return_value=Cubin("", "", b"CUDA C", CompilerFacts(1))),
    ):
        return ranges.write_gpu_range(plan, "rows", folder, compiled)


def test_one_header_launches_programs_of_both_kinds(tmp_path):
    made = exported(a_mixed_plan(split_k=2), tmp_path)
    assert made.images == ("rows_0.cubin", "rows_1.cubin", "rows_1_1.cubin")
    assert [(tmp_path / file).read_bytes() for file in made.images] == [b"CUDA C", b"product", b"add_parts"]
    assert made.sources == ("rows_0.cu", "rows_1.py")
    compile((tmp_path / "rows_1.py").read_text(), "rows_1.py", "exec")
    assert [one.tensor for one in made.arguments] == ["A", "B", "C", "parts"]
    assert not made.needs.other_minors
    (tmp_path / "main.c").write_text(DRIVER)
    words = ("-Wall", "-Wextra", "-Werror", "-isystem", cuda_include(), "-I", tmp_path, "main.c", "-o", "main")
    built = run("gcc", "-std=c99", *words, folder=tmp_path)
    assert (built.returncode, built.stderr) == (0, "")
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    first = made.launches[0]
    assert done.stdout.splitlines() == [
        "load place/rows_0.cubin",
        "load place/rows_1.cubin",
        "load place/rows_1_1.cubin",
        "allow product 98304",
        f"rows_0 {first.growth.grid(7)} {first.block} 0 16 32 48 7",  # A, B, C, the extent
        "product 8 128 98304 16 32 64 26 128 0",  # A, B, parts, the extent, scratch memory, nothing
        "add_parts 1 128 0 64 48 26 0 0",  # parts, C, the extent, nothing, nothing
        "product 12 128 98304 16 32 64 45 128 0",
        "add_parts 2 128 0 64 48 45 0 0",
    ]
    header = (tmp_path / "rows.h").read_text()
    assert "compiled by NVRTC 12.9, Triton 3.9.0" in header
    assert f"#define ROWS_SCRATCH_BYTES {12 * 384}ULL" in header
    assert f"#define ROWS_WORKSPACE_BYTES {2 * 45 * 24 * 4}ULL" in header


def test_cpp_takes_the_header(tmp_path):
    exported(a_mixed_plan(), tmp_path)
    use = '#include "rows.h"\nint main() { rows_t all; return rows_launch(&all, 0, 7, 0, 0, 0, 0); }\n'
    (tmp_path / "use.cpp").write_text(use)
    words = ("-Wall", "-Wextra", "-Werror", "-isystem", cuda_include(), "-I", tmp_path, "-fsyntax-only", "use.cpp")
    built = run("g++", *words, folder=tmp_path)
    assert (built.returncode, built.stderr) == (0, "")


def test_the_arithmetic_is_that_of_the_program_with_the_largest_error(tmp_path):
    plan = a_mixed_plan()
    exported(plan, tmp_path)
    errors = [ranges.find_arithmetic(program.schedule) for program in plan.programs]
    largest = max(errors, key=lambda one: one.expected_relative_error)
    assert largest.sentences().split(". ")[1] in (tmp_path / "rows.h").read_text().replace("\n * ", " ")


def test_a_range_for_amd(tmp_path):
    many = parse_ranged_workload(["matmul", "16,40x32x64"], dtype="float16")
    plan = anatune.plan_range(many, "mi300x", kernels=1)
    made = exported(plan, tmp_path)
    assert (made.images, made.needs) == (("rows_0.hsaco",), None)
    header = (tmp_path / "rows.h").read_text()
    assert "hipModuleLaunchKernel(self->kernels[0], " in header
    assert '"gfx942", 6)' in header
    assert "CUdevice" not in header
    triton = pytest.importorskip("triton", reason="its package has AMD's headers")
    include = Path(triton.__file__).parent / "backends/amd/include"
    if not (include / "hip/hip_runtime_api.h").exists():
        pytest.skip("this Triton has no headers of HIP")
    (tmp_path / "main.c").write_text('#include "rows.h"\nint main(void) { return rows_supported(0); }\n')
    words = ("-D__HIP_PLATFORM_AMD__", "-Wall", "-Wextra", "-isystem", include, "-I", tmp_path, "-fsyntax-only")
    built = run("gcc", "-std=c99", *words, "main.c", folder=tmp_path)
    assert (built.returncode, built.stderr) == (0, "")


def test_a_plan_for_a_cpu_is_refused():
    plan = anatune.plan_range("matmul 8,16x16x16", "xeon_8480", kernels=1)
    with refuses(SpaceError):
        ranges.range_kernels(plan)

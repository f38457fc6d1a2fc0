"""Exports of Triton schedules: C compilers take the header, whose launch hands over what the kernels take."""

import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest

import anatune
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
from anatune.export.cuda.requirements import requirements_of
from anatune.export.triton import write
from tests.e2e.cuda_compilers import STUB_OF_MODULES, cuda_include, run

WORKLOAD = anatune.matmul(512, 256, 4096, dtype="float16", epilogue=("bias", "relu"))
TILES = {"m": 128, "n": 128, "k": 64}


def schedule(device="h100", **options):
    return anatune.space(WORKLOAD, device, template="triton").schedule(TILES, num_warps=8, **options)


def images(made):
    """Stand for the compiler: the first kernel has warps of its own for copies, and descriptors."""
    warp = made.hardware.compute.warp_size
    found = []
    for at, kernel in enumerate(write.TRITON.program(made).kernels):
        threads, shared, scratch = (warp * 12, 98328, 384) if not at else (warp * 4, 0, 0)
        code = f"code {at}".encode()
        facts = CompilerFacts(100)
        found.append(Cubin(kernel.name, made.hardware.arch, code, facts, "", threads, shared, scratch))
    return found


def exported(made, name, folder):
    with (
        mock.patch.object(write, "compiler_version", return_value="Triton 3.9.0"),
        mock.patch.object(write, "find_requirements", lambda arch: requirements_of(f"{arch}a", (12, 9))),
    ):
        return write.write_triton(made, images(made), name, folder)


DRIVER = (
    '#include "product.h"\n'
    + STUB_OF_MODULES
    + r"""
  (void)stream; (void)extra;
  printf("%s %u %u %u %u %u %u %u", (const char *)function, gx, gy, gz, bx, by, bz, shared);
  for (int at = 0; at < 5; ++at) printf(" %llu", *(unsigned long long *)arguments[at]);
  printf("\n");
  return 0;
}
CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
         : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0 : 232448;
  return 0;
}
int main(void) {
  product_t kernels;
  if (!product_supported(0) || product_load(&kernels, "place")) return 1;
  if (product_launch(&kernels, 0, 16, 32, 48, 60, 80, 128) != CUDA_ERROR_INVALID_VALUE) return 2;
  return product_launch(&kernels, 0, 16, 32, 48, 64, 80, 128);
}
"""
)


def test_the_header_loads_and_launches(tmp_path):
    made = exported(schedule(split_k=2), "product", tmp_path)
    assert made.images == ("product.cubin", "product_1.cubin")
    assert [(tmp_path / file).read_bytes() for file in made.images] == [b"code 0", b"code 1"]
    assert [one.tensor for one in made.arguments] == ["A", "B", "bias", "C", "parts"]
    (tmp_path / "main.c").write_text(DRIVER)
    words = ("-Wall", "-Wextra", "-Werror", "-isystem", cuda_include(), "-I", tmp_path, "main.c", "-o", "main")
    built = run("gcc", "-std=c99", *words, folder=tmp_path)
    assert (built.returncode, built.stderr) == (0, "")
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    first, second = made.launches
    assert done.stdout.splitlines() == [
        "load place/product.cubin",
        "load place/product_1.cubin",
        f"allow {first.name} 98328",
        f"{first.name} 16 1 1 384 1 1 98328 16 32 80 128 0",  # A, B, parts, scratch, nothing
        f"{second.name} {second.grid} 1 1 128 1 1 0 80 48 64 0 0",  # parts, bias, C, nothing, nothing
    ]
    header = (tmp_path / "product.h").read_text()
    assert f"#define PRODUCT_SCRATCH_BYTES {16 * 384}ULL" in header
    assert f"#define PRODUCT_WORKSPACE_BYTES {2 * 512 * 256 * 4}ULL" in header
    assert "Runs on compute capability 9.0 only" in header


def test_the_header_for_amd(tmp_path):
    made = exported(schedule("mi300x"), "amd", tmp_path)
    assert made.images == ("amd.hsaco",)
    assert made.needs is None
    header = (tmp_path / "amd.h").read_text()
    assert '"gfx942", 6)' in header
    assert not re.search(r"\bcu[A-Z]", header)
    triton = pytest.importorskip("triton", reason="its package has AMD's headers")
    include = Path(triton.__file__).parent / "backends/amd/include"
    if not (include / "hip/hip_runtime_api.h").exists():
        pytest.skip("this Triton has no headers of HIP")
    (tmp_path / "main.c").write_text('#include "amd.h"\nint main(void) { return amd_supported(0); }\n')
    words = ("-D__HIP_PLATFORM_AMD__", "-Wall", "-Wextra", "-isystem", include, "-I", tmp_path, "-fsyntax-only")
    built = run("gcc", "-std=c99", *words, "main.c", folder=tmp_path)
    assert (built.returncode, built.stderr) == (0, "")


def test_what_cubins_of_tritons_need():
    pytest.importorskip("triton")
    hopper, blackwell = write.find_requirements("sm_90"), write.find_requirements("sm_100")
    assert (hopper.compute_capability, hopper.other_minors) == ("9.0", False)
    assert write.find_requirements("sm_86").other_minors
    assert blackwell.driver_cuda >= 12080

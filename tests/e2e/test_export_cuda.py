"""``anatune export`` for GPUs: NVIDIA's compiler and clang take the CUDA C, C and C++ programs the header."""

import json
import shutil
import textwrap

import numpy as np
import pytest

import anatune as package
from tests.e2e.cuda_compilers import clang, cuda_include, nvcc, run
from tests.split_schedules import split_schedule

pytest.importorskip("tvm")
pytest.importorskip("cuda.bindings")

pytestmark = pytest.mark.slow

CONV = package.conv2d(n=1, c=16, h=14, w=14, k=32, r=3, s=3, padding=1, epilogue=("bias", "relu"))
EXPORTS = {
    "cuda_75": ("t4", "cuda", package.matmul(64, 128, 64, epilogue=("bias",))),
    "cuda_80": ("a100_sxm", "cuda", CONV),
    "half_86": ("rtx3090", "cuda", package.matmul(128, 64, 64, dtype="float16")),
    "bfloat_90": ("h200", "cuda", package.matmul(96, 64, 32, dtype="bfloat16", epilogue=("relu",))),
    "int8_75": ("t4", "cuda", package.matmul(64, 64, 32, dtype="int8")),
    "pool_90": ("h200", "cuda", package.parse_workload(["max_pool2d", "1x8x16x16", "2x2"])),
    "pipelined_75": ("t4", "pipelined", package.matmul(128, 128, 128)),
    "bfloat_86": ("rtx3090", "cuda", package.matmul(128, 128, 64, dtype="bfloat16")),
    "pipelined_80": ("a100_sxm", "pipelined", package.matmul(512, 4096, 192)),  # too shallow to be split
    "pipelined_86": ("rtx3090", "pipelined", package.matmul(128, 128, 128)),
}
SPLITS = {
    "split_86": ("rtx3090", "cuda", CONV, {"split": 3}),
    "split_half_80": ("a100_sxm", "cuda", package.matmul(128, 128, 640, dtype="float16"), {"split": 4, "whole": 1}),
    "atomic_86": ("rtx3090", "pipelined", package.matmul(128, 128, 512), {"split": 2, "atomic": 1}),
}
DEVICES = {hw: package.hardware(hw) for hw, _, _ in EXPORTS.values()}


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Return a function that writes exports, each once, and returns their folder."""
    from anatune.export.cuda.write import write_cuda

    folder = tmp_path_factory.mktemp("exports")

    def write(*names):
        for name in names:
            if not (folder / f"{name}.h").exists():
                write_cuda(schedule_of(name), name, folder)
        return folder

    return write


def schedule_of(name):
    if name in SPLITS:
        return split_schedule(*SPLITS[name])
    hw, template, workload = EXPORTS[name]
    return package.plan(workload, DEVICES[hw], top_k=1, template=template).best


@pytest.mark.parametrize("name", [*EXPORTS, *SPLITS])
def test_nvcc_takes_the_cuda_c_without_a_warning(exports, tmp_path, name):
    from anatune.codegen.cuda.nvrtc import code_size

    target = tmp_path / "again.cubin"
    arch = f"-arch=sm_{name.rpartition('_')[2]}"
    built = run(
        *nvcc(),
        arch,
        "-Werror=all-warnings",
        "-std=c++14",
        "-Xcompiler=-Wall",
        "-cubin",
        exports(name) / f"{name}.cu",
        "-o",
        target,
    )
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    assert code_size(target.read_bytes(), name) > 0


@pytest.mark.parametrize("name", [*EXPORTS, *SPLITS])
def test_clang_takes_the_cuda_c_without_a_warning(exports, tmp_path_factory, name):
    command = clang(tmp_path_factory.getbasetemp())
    arch = f"--cuda-gpu-arch=sm_{name.rpartition('_')[2]}"
    built = run(*command, arch, "-std=c++14", "-Wall", "-Wextra", exports(name) / f"{name}.cu")
    assert (built.returncode, built.stderr) == (0, "")


def test_exports_share_a_program_with_nvidias_types_and_each_other(exports, tmp_path):
    source = """
        #include <cuda_fp16.h>
        #include <cstdint>
        #include "half_86.cu"
        #include "bfloat_86.cu"
        #include "pipelined_86.cu"
        int main() {
          float *f = nullptr;
          auto *h = reinterpret_cast<anatune_half_86::half *>(f);
          anatune_half_86::half_86<<<1, 32>>>(h, h, h);
          using anatune_pipelined_86::pipelined_86;
          pipelined_86<<<1, 32>>>(f, f, f);
          return static_cast<int>(__half2float(__float2half_rn(0.0f)));
        }
    """
    (tmp_path / "use.cu").write_text(textwrap.dedent(source))
    folder = exports("half_86", "bfloat_86", "pipelined_86")
    built = run(*nvcc(), "-arch=sm_86", "-I", folder, tmp_path / "use.cu", "-c", "-o", tmp_path / "use.o")
    if "nv/target" in built.stderr:
        pytest.skip("NVIDIA's cuda_fp16.h needs a package (nvidia-cuda-cccl) that is not installed")
    assert (built.returncode, built.stderr) == (0, "")
    words = ("-fatbin", "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_86,code=[sm_86,compute_86]")
    built = run(*nvcc(), *words, folder / "bfloat_86.cu", "-o", tmp_path / "both.fatbin")
    assert (built.returncode, built.stderr) == (0, "")


DRIVER = r"""
#include <cuda.h>
#include <stdio.h>
#include <string.h>
int capability[2] = {8, 6}, version = 12090, optin = 232448;
CUresult cuDriverGetVersion(int *found) { *found = version; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *found, CUdevice_attribute which, CUdevice device) {
  *found = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? capability[0]
         : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability[1]
         : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? optin : -1;
  return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)(void *)name;
  return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
  printf("%s %d %d\n", (char *)function, (int)which, value);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra) {
  printf("%s %u %u %u %u %u %u %u", (char *)function, gx, gy, gz, bx, by, bz, shared);
  for (int i = 0; i < 3; ++i) printf(" %llu", (unsigned long long)*(CUdeviceptr *)arguments[i]);
  printf("\n");
  return stream || extra ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
"""
PROGRAM = r"""
#include "bfloat_90.h"
#include "pipelined_80.h"
extern int capability[2], version, optin;
int other(void);
int main(void) {
  CUfunction kernel;
  CUmodule module = (CUmodule)&kernel;
  if (pipelined_80_get(&kernel, 0) != CUDA_ERROR_INVALID_HANDLE || pipelined_80_get(&kernel, module)) return 1;
  if (pipelined_80_launch(kernel, 0, 1024, 2048, 4096)) return 2;
  if (pipelined_80_launch(kernel, 0, 1024, 2056, 4096) != CUDA_ERROR_INVALID_VALUE) return 3;
  if (!pipelined_80_supported(0) || pipelined_80_supported(1) || bfloat_90_supported(0)) return 4;
  version = 11080;
  if (pipelined_80_supported(0)) return 5;
  version = 13000; capability[0] = 7;
  if (pipelined_80_supported(0)) return 6;
  capability[0] = 8; optin = 65536;
  if (pipelined_80_supported(0) != (PIPELINED_80_DYNAMIC_SHARED_BYTES <= 65536)) return 7;
  return other();
}
"""
OTHER = r"""
#include "pipelined_80.h"
#include "pipelined_80.h"
extern "C" int other(void) { return PIPELINED_80_GRID > 0 && PIPELINED_80_BLOCK > 0 ? 0 : 8; }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_c_and_cpp_programs_launch_by_the_header(exports, tmp_path):
    from anatune.codegen.cuda.lower import cuda_kernel

    folder = exports("bfloat_90", "pipelined_80")
    for name, text in {"driver.c": DRIVER, "main.c": PROGRAM, "other.cpp": OTHER}.items():
        (tmp_path / name).write_text(text)
        compiler = ("g++",) if name.endswith("cpp") else ("gcc", "-std=c99")
        words = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-isystem", cuda_include(), "-I", folder, "-c", name)
        built = run(*compiler, *words, "-o", f"{name}.o", folder=tmp_path)
        assert (built.returncode, built.stderr) == (0, "")
    assert run("gcc", "driver.c.o", "main.c.o", "other.cpp.o", "-o", "main", folder=tmp_path).returncode == 0
    ran = run(tmp_path / "main")
    assert ran.returncode == 0
    kernel = cuda_kernel(schedule_of("pipelined_80"))
    places = {"A": 1024, "B": 2048, "C": 4096}
    shared, name = kernel.dynamic_shared_bytes, "pipelined_80"
    lines = [f"{name} 8 {shared}"] if shared else []
    order = " ".join(str(places[buffer.tensor]) for buffer in kernel.parameters)
    assert ran.stdout.splitlines() == [*lines, f"{name} {kernel.grid} 1 1 {kernel.block} 1 1 {shared} {order}"]


SPLIT_PROGRAM = r"""
#include "split_86.h"
#include "atomic_86.h"
int main(void) {
  CUfunction kernels[SPLIT_86_KERNELS], others[ATOMIC_86_KERNELS];
  CUmodule module = (CUmodule)&kernels;
  if (split_86_get(kernels, 0) != CUDA_ERROR_INVALID_HANDLE || split_86_get(kernels, module)) return 1;
  if (split_86_launch(kernels, 0, 1024, 2048, 3072, 4096, 8192)) return 2;
  if (split_86_launch(kernels, 0, 1024, 2048, 3072, 4096, 8196) != CUDA_ERROR_INVALID_VALUE) return 3;
  if (split_86_launch(kernels, (CUstream)module, 1024, 2048, 3072, 4096, 8192) != CUDA_ERROR_INVALID_VALUE) return 4;
  if (atomic_86_get(others, module) || atomic_86_launch(others, 0, 1024, 2048, 4096)) return 5;
  return SPLIT_86_WORKSPACE_BYTES > 0 ? 0 : 6;
}
"""


def test_programs_launch_several_kernels_with_a_workspace(exports, tmp_path):
    from anatune.codegen.cuda.lower import cuda_kernel

    folder = exports("split_86", "atomic_86")
    driver = DRIVER.replace("i < 3", "i < 1")  # there are kernels that take the result only
    for name, text in {"driver.c": driver, "main.c": SPLIT_PROGRAM}.items():
        (tmp_path / name).write_text(text)
        words = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-isystem", cuda_include(), "-I", folder, "-c", name)
        built = run("gcc", "-std=c99", *words, "-o", f"{name}.o", folder=tmp_path)
        assert (built.returncode, built.stderr) == (0, "")
    assert run("gcc", "driver.c.o", "main.c.o", "-o", "main", folder=tmp_path).returncode == 0
    ran = run(tmp_path / "main")
    assert ran.returncode == 0
    lines = [line for line in ran.stdout.splitlines() if line.count(" ") > 2]  # others ask for shared memory
    split, atomic = cuda_kernel(schedule_of("split_86")), cuda_kernel(schedule_of("atomic_86"))
    workspace, text = split.workspace, (folder / "split_86.h").read_text()
    assert f"#define SPLIT_86_WORKSPACE_BYTES {workspace.num_bytes}\n" in text
    assert "each with a workspace of its own" in text.replace("\n * ", " ")
    assert "WORKSPACE" not in (folder / "atomic_86.h").read_text()
    names = [words[0] for words in map(str.split, lines)]
    # the second launch of split_86 fails with its first kernel: nothing behind it is launched
    assert names == ["split_86", "split_86_after", "split_86", "atomic_86_before", "atomic_86"]
    principal = split.principal
    assert lines[0].startswith(f"split_86 {principal.grid} 1 1 {principal.block} 1 1 {principal.dynamic_shared_bytes} ")
    assert lines[3].startswith(f"atomic_86_before {atomic.before[0].grid} 1 1 256 1 1 0 4096")


def test_more_shared_memory_than_a_kernel_may_declare(anatune, tmp_path):
    space = package.space(package.matmul(128, 128, 64, epilogue=("bias",)), package.hardware("h200"))
    tiles = {"i": (1, 1, 16, 1, 8), "j": (1, 1, 16, 1, 8), "k": (1, 2, 32)}
    (tmp_path / "s.json").write_text(space.schedule(tiles, 64).to_json())
    done = anatune("export", tmp_path / "s.json", "--target", "cuda", "--name", "large", "--output", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert manifest["launch"]["block"] == [256, 1, 1]
    assert manifest["launch"]["dynamic_shared_bytes"] == 65536
    assert manifest["compiler"]["registers"] > 0
    assert (tmp_path / "large.cubin").read_bytes()[:4] == b"\x7fELF"
    built = run(*nvcc(), "-arch=sm_90", "-Werror=all-warnings", "-cubin", "large.cu", "-o", "l.cubin", folder=tmp_path)
    assert (built.returncode, built.stderr) == (0, "")


def test_what_the_files_need_is_said(anatune, tmp_path):
    words = ("export", "--hw", "h200", "matmul", "128x128x64", "--output", tmp_path)
    done = anatune(*words, "--template", "cuda", "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    name = "matmul_128x128x64"
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{kind}" for kind in ("cu", "cubin", "h", "json")}
    assert [one["name"] for one in manifest["functions"]] == [f"{name}_{do}" for do in ("launch", "get", "supported")]
    said = manifest["arithmetic"]
    assert (said["operands"], said["multiplied_as"], said["accumulated_in"]) == ("float32", "float32", "float32")
    assert manifest["needs"]["compute_capability"] == "9.0"
    assert manifest["needs"]["driver_cuda"] // 1000 == int(manifest["compiler"]["version"].split()[1].split(".")[0])
    assert "Linux: " in (tmp_path / f"{name}.h").read_text()
    assert "tf32" not in (tmp_path / f"{name}.h").read_text()


@pytest.mark.parametrize(("dtype", "template"), [("float32", "triton"), ("float16", "cuda"), ("bfloat16", "cuda")])
def test_the_expected_error_is_what_rounding_costs(dtype, template):
    from anatune.codegen.arithmetic import find_arithmetic
    from anatune.measure.run.correctness import random_inputs
    from anatune.measure.run.reference import reference
    from anatune.measure.run.rounding import find_used_operands

    workload = package.matmul(256, 256, 512, dtype=dtype)
    schedule = package.Schedule(workload, DEVICES["h200"], template, {})
    inputs = random_inputs(workload, 7)
    exact = reference(workload, inputs)
    result = reference(workload, find_used_operands(schedule, inputs))
    if dtype != "float32":
        result = result.astype(next(iter(inputs.values())).dtype).astype(np.float64)
    error = np.sqrt(np.mean((result - exact) ** 2) / np.mean(exact**2))
    assert find_arithmetic(schedule).expected_relative_error == pytest.approx(error, rel=0.25)

"""NVRTC in process: facts of compiled kernels, and one line for whatever is wrong."""

import builtins
import sys

import pytest

from anatune.codegen.cuda.nvrtc import code_size, compile_cuda, compiler_version, known_archs, parse_log
from anatune.core.compiler_facts import CompilerFacts
from anatune.errors import BuildError, MissingDependencyError
from tests.wording import refuses

SCALE = """
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ X_ptr, float* __restrict__ Y_ptr) {
  __shared__ alignas(64) float smem_ptr[256];
  smem_ptr[threadIdx.x] = X_ptr[threadIdx.x];
  __syncthreads();
  Y_ptr[threadIdx.x] = 2.0f * smem_ptr[63 - threadIdx.x];
}
"""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_86'
ptxas info    : Function properties for other
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 8 bytes stack frame, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'main_kernel' for 'sm_86'
ptxas info    : Function properties for main_kernel
ptxas         .     248 bytes stack frame, 236 bytes spill stores, 344 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 6144 bytes smem, 376 bytes cmem[0]
ptxas info    : Compile time = 38.505 ms
"""


@pytest.fixture(scope="module")
def compiler():
    pytest.importorskip("cuda.bindings.nvrtc", reason="compiling CUDA C needs cuda-bindings")
    return compiler_version()


def test_log():
    want = CompilerFacts(registers=255, shared_bytes=6144, spill_bytes=236, spill_load_bytes=344, local_bytes=248)
    assert parse_log(LOG, "main_kernel") == want
    assert parse_log(LOG, "other") == CompilerFacts(8, 0, 4, 4, 8)
    with refuses(BuildError):
        parse_log(LOG, "kernel")


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90", "sm_90a"])
def test_compiled(compiler, arch):
    cubin = compile_cuda(SCALE, arch)
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.arch == arch
    assert cubin.facts.shared_bytes == 1024
    assert 4 <= cubin.facts.registers <= 32
    assert cubin.facts.spill_bytes == cubin.facts.local_bytes == 0
    assert 128 <= cubin.facts.code_bytes < len(cubin.image)
    assert cubin == compile_cuda(SCALE, arch)
    assert code_size(cubin.image, "other") == 0
    assert code_size(b"PTX", "main_kernel") == 0


@pytest.mark.parametrize("arch", ["sm_35", "sm_85", "sm_86a", "sm_190", "gfx906", ""])
def test_unknown_arch(compiler, arch):
    with refuses(BuildError) as raised:
        compile_cuda(SCALE, arch)
    assert (arch or "''") in str(raised.value)
    assert ", ".join(known_archs()) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_refused_source(compiler):
    with refuses(BuildError) as raised:
        compile_cuda("foo", "sm_86")
    assert "\n" not in str(raised.value)
    with refuses(BuildError):
        compile_cuda(SCALE.replace("[256]", "[20000]"), "sm_86")
    with refuses(BuildError):
        compile_cuda(SCALE, "sm_86", name="other")


def test_missing_bindings(monkeypatch):
    monkeypatch.delitem(sys.modules, "cuda.bindings.nvrtc", raising=False)
    imported = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("cuda"):
            raise ImportError("No module named 'cuda'")
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with refuses(MissingDependencyError):
        compile_cuda(SCALE, "sm_86")


def test_missing_library(compiler, monkeypatch):
    from cuda.bindings import nvrtc

    def refuse():
        raise RuntimeError("libnvrtc.so.12 not found\nsearched everywhere")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", refuse)
    with refuses(MissingDependencyError):
        compile_cuda(SCALE, "sm_86")

"""CUDA C for other compilers as text, and what its cubins need; compilers themselves: tests/e2e/test_export_cuda.py."""

import pytest

from anatune.export.cuda.portable import make_portable
from anatune.export.cuda.requirements import requirements_of
from anatune.templates.gpu.kernel import CudaKernel

SOURCE = """\
typedef long long int64_t;
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ A_ptr) {
  __shared__ alignas(64) float smem_ptr[32];
  int cse_v1 = (((int)threadIdx.x) >> 5);
  int cse_v2 = (cse_v1 * 4);
  int cse_v12 = (((int)threadIdx.x) & 31);
  A_ptr[cse_v12] = max(smem_ptr[cse_v12], -0x1.fffffep+127f/*-3.402823e+38*/) + 0x0p+0f/*0.000000e+00*/;
}
"""


def test_everything_lies_in_a_namespace_and_nothing_is_unused():
    kernel = make_portable(CudaKernel("", "main_kernel", SOURCE, "sm_86", (), "A", 1, 32), "mine")
    assert kernel.name == "mine"
    lines = kernel.source.splitlines()
    assert (lines[0], lines[-1]) == ("namespace anatune_mine {", "}  // namespace anatune_mine")
    assert " mine(float*" in kernel.source
    assert "main_kernel" not in kernel.source
    assert "__shared__ __align__(64) float smem_ptr[32];" in kernel.source
    assert "max(smem_ptr[cse_v12], -3.40282347e+38f) + 0.0f;" in kernel.source
    assert "cse_v1 " not in kernel.source  # what only an unused one used
    assert "cse_v2" not in kernel.source
    assert kernel.source.count("cse_v12") == 3


@pytest.mark.parametrize(
    ("arch", "compiler", "capability", "others", "cuda", "linux"),
    [
        ("sm_75", (12, 9), "7.5", True, 12000, 525),
        ("sm_86", (13, 0), "8.6", True, 13000, 580),
        ("sm_89", (11, 8), "8.9", True, 11080, 520),
        ("sm_90a", (12, 4), "9.0", False, 12000, 525),
        ("sm_100", (12, 9), "10.0", True, 12080, 570),
        ("sm_121", (12, 9), "12.1", True, 12090, 575),
        ("sm_86", (14, 1), "8.6", True, 14000, None),
    ],
)
def test_a_cubin_needs_its_compilers_major_version_or_its_architectures_first(
    arch, compiler, capability, others, cuda, linux
):
    needs = requirements_of(arch, compiler)
    assert (needs.compute_capability, needs.other_minors) == (capability, others)
    assert (needs.driver_cuda, needs.driver_linux) == (cuda, linux)
    assert f"CUDA {cuda // 1000}." in needs.drivers()
    assert ("Linux" in needs.drivers()) == (linux is not None)
    assert needs.capabilities().endswith("only") != others

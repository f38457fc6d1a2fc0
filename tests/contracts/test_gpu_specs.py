"""What every GPU's spec must be good for: plans of ordinary and awkward workloads, code where it is NVIDIA's."""

import pytest

import anatune
from anatune.core.hardware.files import load_spec_file
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import BuildError
from anatune.resources import data_folder
from tests.wording import refuses

GPUS = [
    spec for path in sorted(data_folder("hwspecs").glob("*.toml")) if isinstance(spec := load_spec_file(path), GpuSpec)
]
NVIDIA = {spec.arch: spec for spec in GPUS if spec.vendor == "nvidia"}
AMD = [spec for spec in GPUS if spec.vendor == "amd"]
MATMUL, CONV = anatune.matmul(512, 4096, 1024), anatune.conv2d(1, 512, 7, 7, 512, 3, 3, padding=1)


@pytest.mark.parametrize("spec", GPUS, ids=lambda spec: spec.name)
def test_plans(spec):
    for workload in (MATMUL, CONV):
        plan = anatune.plan(workload, spec, 1)
        assert plan.guarantee.kind in ("certified", "exhaustive")
        least = workload.flop / spec.compute.fp32_peak_flop_per_s
        assert least < plan.predictions[0].time_s < 1000 * least + spec.launch.overhead_s
        assert plan.best.check() == plan.best


@pytest.mark.parametrize("arch", [arch for arch, spec in NVIDIA.items() if spec.compute_capability >= 8.0])
def test_code_of_its_first_choice_compiles(arch):
    """Beside the architectures of other tests: sm_87 and sm_120. One that NVRTC does not know is one line."""
    pytest.importorskip("tvm")
    nvrtc = pytest.importorskip("anatune.codegen.cuda.nvrtc")
    pytest.importorskip("cuda.bindings.nvrtc", reason="compiling CUDA C needs cuda-bindings")
    from anatune.codegen.cuda.lower import cuda_kernel

    source = cuda_kernel(anatune.plan(anatune.matmul(128, 128, 128), NVIDIA[arch], 1).best).source
    if arch not in nvrtc.known_archs():
        with refuses(BuildError) as caught:
            nvrtc.compile_cuda(source, arch)
        assert "\n" not in str(caught.value)
        return
    facts = nvrtc.compile_cuda(source, arch).facts
    assert facts.registers <= 255
    assert facts.spill_bytes == 0


@pytest.mark.parametrize("spec", AMD, ids=lambda spec: spec.name)
def test_code_for_amd_is_refused_in_one_line(spec):
    lower = pytest.importorskip("anatune.codegen.cuda.lower")
    pytest.importorskip("tvm")
    best = anatune.plan(anatune.matmul(128, 128, 128), spec, 1).best
    with refuses(BuildError) as no:
        lower.cuda_kernel(best)
    assert "\n" not in str(no.value)

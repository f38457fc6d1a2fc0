"""``anatune.compile`` for GPUs that are not here: cubins in the library, outputs on an emulated GPU, one line else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import anatune
from anatune import api
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.operators import batch_matmul, conv2d, matmul
from anatune.errors import BuildError, DeviceError, RunError, SpaceError
from anatune.measure import verify as verifying
from anatune.measure.run.correctness import Verification
from anatune.network.compiling.planning import strip_epilogue
from anatune.network.compiling.targets.gpu_planning import choose_graph, lay_out_both_orders, transposes_s
from anatune.network.graph.summary import ModelSummary
from anatune.network.relax.gpu_kernels import gpu_kernels
from anatune.records.store import RecordStore
from tests.unit.network.compiling import folders, models
from tests.unit.network.graph import graphs as g
from tests.wording import refuses

pytest.importorskip("tvm")
pytest.importorskip("cuda.bindings.nvrtc")

GPU = "rtx3090"


@pytest.fixture(scope="module")
def network():
    pytest.importorskip("torch")
    module, x = models.residual_network()
    return module, x, anatune.compile(module, x, hw=GPU)


def test_the_library_holds_cubins_and_no_cuda_c(network, tmp_path):
    compiled = network[2]
    compiled.save(tmp_path / "model")
    (library,) = (path.read_bytes() for path in (tmp_path / "model").glob("*.so"))
    assert b"__global__" not in library
    own = {kernel.schedule for kernel in compiled.summary.kernels}
    assert library.count(b"\x05\0\0\0\0\0\0\0cubin") == len(own) + 1  # TVM's kernels are one module
    summary = msgspec.convert(folders.contents(tmp_path / "model")["model"], ModelSummary)
    assert (summary.device, summary.hardware, summary.arch) == ("gpu", GPU, "sm_86")
    assert summary == compiled.summary


def test_products_are_planned_with_what_is_fused_and_the_compiler_says_their_registers(network):
    summary = network[2].summary
    assert sum(kernel.count for kernel in summary.kernels) == 7
    assert {kernel.template for kernel in summary.kernels} <= {"cuda", "pipelined"}  # float32 is not rounded
    assert [kernel.epilogue for kernel in summary.kernels if "add" in kernel.epilogue] == [
        ("bias", "add", "relu"), ("bias", "add", "relu"),
    ]  # fmt: skip
    assert all(kernel.registers > 0 and kernel.shared_bytes > 0 for kernel in summary.kernels)
    report = network[2].report()
    assert "there was no such GPU" in report
    assert "registers" in report
    assert "thread" not in report.splitlines()[0]


def test_what_needs_the_gpu_says_in_one_line_that_there_is_none(network, tmp_path):
    _, x, compiled = network
    compiled.save(tmp_path / "model")
    for call in (lambda: anatune.load(tmp_path / "model"), lambda: compiled(x), compiled.benchmark, compiled.profile):
        with refuses(RunError) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"threads": 2}, SpaceError),
        ({"trials": 3}, DeviceError),
        ({"hw": "mi50"}, SpaceError),
        ({"hw": "k20"}, BuildError),
    ],
)
def test_options_that_mean_nothing_are_refused_before_the_model_is_read(options, error):
    with refuses(error):
        anatune.compile("there_is_no_such.onnx", **{"hw": GPU, **options})


@pytest.mark.slow
def test_the_emulator_runs_every_kernel_where_it_is_asked_to(network, monkeypatch):
    module, x, _ = network
    seen = []

    def verify(schedule):
        seen.append(schedule.key)
        return Verification(len(seen) < 4, 1e-7 * len(seen), "" if len(seen) < 4 else "C[0] is 1 instead of 2", 1e-5)

    monkeypatch.setattr(verifying, "verify", verify)
    with refuses(RunError):
        anatune.compile(module, x, hw=GPU, check=True)
    monkeypatch.setattr(verifying, "verify", lambda schedule: Verification(True, 3e-7, "", 1e-5))
    compiled = anatune.compile(module, x, hw=GPU, check=True)
    assert compiled.summary.emulated == 3e-7
    assert "was run in the emulator" in compiled.report()


@pytest.mark.slow
def test_records_of_that_gpu_are_used(network, tmp_path):
    module, x, compiled = network
    kernel = max(compiled.summary.kernels, key=lambda one: one.flop)
    sum_ = strip_epilogue(Schedule.from_json(kernel.schedule).workload)
    other = api.plan(sum_, GPU, 40, template="cuda").schedules[-1]
    rounding = api.plan(sum_, GPU, 1, template="triton").schedules[0]
    with RecordStore(tmp_path / "records.sqlite") as store:
        session = store.new_session(sum_, other.hardware, 1, "model", 0)
        store.append(session, Trial(other, Measurement(Outcome.OK, times_s=(1e-6,)), 0, "model", 1e-6))
        store.append(session, Trial(rounding, Measurement(Outcome.OK, times_s=(1e-7,)), 1, "model", 1e-6))
    again = anatune.compile(module, x, hw=GPU, records=tmp_path / "records.sqlite")
    found = Schedule.from_json(next(one for one in again.summary.kernels if one.workload == kernel.workload).schedule)
    assert (found.template, found.tiles) == ("cuda", other.tiles)  # Triton's kernels are none of TVM's module
    assert found.tiles != Schedule.from_json(kernel.schedule).tiles


def emulated(tmp_path, *arguments):
    """Return what `tests.emulated_gpu.run` says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulated_gpu.run", arguments[0], str(tmp_path), *arguments[1:]],
        cwd=Path(__file__).parents[5], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_order_of_dimensions_is_the_one_with_the_least_predicted_time():
    x = g.source(1, 32, 16, 16)
    graph = g.graph(g.relu(g.convolution(g.convolution(x, 32, 3, padding=1), 64, 1)), inputs=[x])
    both = lay_out_both_orders(graph)
    device = api.hardware(GPU)
    alone = [choose_graph([one], device) for one in both]
    assert [transposes_s(one, device) > 0 for one in both] == [False, True]
    best = choose_graph(both, device)
    assert best.graph in both
    quick = [one.time_s for one in alone]
    assert best.time_s == min(quick) or best.time_s == pytest.approx(min(quick), rel=0.2)
    assert [one.workload.attribute["layout"] for one in alone[1].kernels] == ["NHWC", "NHWC"]


def test_products_are_never_tritons_which_no_module_of_tvm_holds():
    x = g.source(256, 256)
    graph = g.graph(g.matmul(x, g.constant(256, 256)), inputs=[x])
    for accuracy in ("standard", "relaxed"):
        planned = choose_graph([lay_out_both_orders(graph)[0]], api.hardware("a100"), accuracy)
        assert planned.kernels[0].schedule.template in ("cuda", "pipelined", "thin")


@pytest.mark.parametrize("arguments", [("residual_network",), ("transformer_block", "a100")])
@pytest.mark.slow
def test_a_saved_model_is_right_on_an_emulated_gpu(arguments, tmp_path):
    """The whole way: the library that was saved, TVM's own CUDA runtime, launches, weights; kernels are emulated."""
    pytest.importorskip("torch")
    if not (shutil.which("cc") and shutil.which("g++")):
        pytest.skip("no C and C++ compilers")
    told = emulated(tmp_path, *arguments)
    assert told["problems"] == []
    assert max(told["errors"]) <= 1e-5
    own = [name for name, *_ in told["launches"] if name.startswith("anatune_")]
    assert len(own) >= 2 * 7
    assert {name for name in told["profile"] if name.startswith("anatune_")}


@pytest.mark.slow
def test_a_saved_model_whose_reductions_are_split_is_right_on_an_emulated_gpu(tmp_path):
    """Several launches a product, the workspace from TVM's memory."""
    pytest.importorskip("torch")
    if not (shutil.which("cc") and shutil.which("g++")):
        pytest.skip("no C and C++ compilers")
    told = emulated(tmp_path, "residual_network", "rtx3090", "standard", "2")
    assert told["problems"] == []
    assert max(told["errors"]) <= 1e-6
    own = [name for name, *_ in told["launches"] if name.startswith("anatune_")]
    behind = [name for name in own if name.endswith("_kernel_1")]
    assert len(behind) >= 2 * 3
    # each follows what it adds up the parts of
    assert all(own[at - 1] == name.removesuffix("_1") for at, name in enumerate(own) if name in behind)


def test_shared_memory_beyond_what_can_be_declared_is_asked_for_at_the_launch():
    schedules = api.space(matmul(4096, 4096, 4096), "a100", template="pipelined").sample(50, 0)
    unsplit = (one for one in schedules if one.options.get("split", 1) == 1)
    large = next(one for one in unsplit if cuda_kernel(one).dynamic_shared_bytes)
    kernel = gpu_kernels({"product": large}, 1)["product"]
    assert str(kernel.kernel.dynamic_shared_bytes) in str(kernel.function)
    assert kernel.facts.shared_bytes >= kernel.kernel.dynamic_shared_bytes


_KINDS = {
    "stem 7x7": conv2d(n=1, c=3, h=32, w=32, k=16, r=7, s=7, stride=2, padding=3, epilogue=("bias", "relu")),
    "stem 3x3": conv2d(n=1, c=3, h=31, w=31, k=16, r=3, s=3, stride=2, epilogue=("bias", "relu")),
    "3x3": conv2d(n=1, c=16, h=14, w=14, k=32, r=3, s=3, padding=1, epilogue=("bias", "relu")),
    "3x3 stride 2": conv2d(
        n=1, c=16, h=14, w=14, k=32, r=3, s=3, stride=2, padding=1, epilogue=("bias", "add", "relu")
    ),
    "1x1": conv2d(n=1, c=32, h=7, w=7, k=64, r=1, s=1, epilogue=("bias", "add", "relu")),
    "1x1 stride 2": conv2d(n=1, c=32, h=14, w=14, k=64, r=1, s=1, stride=2, epilogue=("bias",)),
    "1x1 linear": conv2d(n=1, c=24, h=14, w=14, k=40, r=1, s=1, epilogue=("bias", "relu6")),
    "5x5": conv2d(n=1, c=16, h=9, w=9, k=16, r=5, s=5, padding=2, epilogue=("bias", "relu")),
    "1x7": conv2d(n=1, c=16, h=17, w=17, k=16, r=1, s=7, padding=(0, 3), epilogue=("bias", "relu")),
    "7x1": conv2d(n=1, c=16, h=17, w=17, k=16, r=7, s=1, padding=(3, 0), epilogue=("bias", "relu")),
    "depthwise": conv2d(n=1, c=32, h=14, w=14, k=32, r=3, s=3, padding=1, groups=32, epilogue=("bias", "relu6")),
    "depthwise 2": conv2d(
        n=1, c=32, h=14, w=14, k=32, r=3, s=3, stride=2, padding=1, groups=32, epilogue=("bias", "relu6")
    ),
    "classifier": matmul(1, 40, 64, epilogue=("bias",)),
    "dense": matmul(16, 48, 32, epilogue=("bias",)),
    "dense gelu": matmul(16, 64, 32, epilogue=("bias", "gelu")),
    "dense tanh": matmul(16, 64, 32, epilogue=("bias", "gelu_tanh")),
    "dense sum": matmul(16, 32, 64, epilogue=("bias", "add")),
    "scores": batch_matmul(4, 16, 16, 8),
}
"""Each kind of product of ResNets, VGG, MobileNet-V2, Inception-v3, BERT and GPT-2, small."""


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.slow
def test_each_kind_of_product_of_the_seven_models_is_right_in_the_emulator(kind):
    pytest.importorskip("tvm")
    workload, device = _KINDS[kind], api.hardware(GPU)
    schedule = api.plan(workload, device, 1, template="pipelined", correction="none").schedules[0]
    found = anatune.verify(schedule)
    assert found.ok, found.message

"""The GPU benchmark without a GPU: the dry run through all stages, going on, one-line ends; a driver that pretends."""

import argparse
import math

import msgspec
import pytest

import anatune
from anatune.errors import DeviceError, RunError
from anatune.measure.cuda.driver import KernelFaultError
from bench.gpu import device as device_gpu
from bench.gpu import timing
from bench.gpu.dry_run import DrySystem
from bench.gpu.layers import LAYERS
from bench.gpu.state import BEST, CHOICES, State
from bench.gpu.system import FaultedError, Found
from bench.layers import EXTRA, Matmul
from tests.wording import refuses


def call(folder, *arguments):
    device_gpu.main(["--dry-run", "--state", str(folder), "--rounds", "2", *arguments])
    return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)


@pytest.mark.slow
def test_dry_run_through_all_stages(tmp_path, capsys):
    stages = ",".join(device_gpu.STAGES)
    state = call(tmp_path, "--stage", stages, "--layers", "M0,R2", "--dtypes", "bfloat16")
    out = capsys.readouterr().out
    assert set(state.layers) == {"M0", "R2", "M0:bfloat16", "R2:bfloat16"}
    assert state.calibrated
    entry = state.layers["M0"]
    assert set(entry.schedules) == {"plan", "16", "64"}
    assert set(entry.samples["warm"]) >= {"anatune:plan", "anatune:16", "anatune:64", "torch:mm", "triton:matmul"}
    assert state.layers["M0:bfloat16"].schedules["plan"].template == "triton"
    assert "aims" in out
    assert "Winograd" in out
    assert "mean nothing" in (tmp_path / "table.txt").read_text()
    results = msgspec.json.decode((tmp_path / "results.json").read_bytes())
    assert len(results["rows"]) == 8
    assert anatune.hardware(str(tmp_path / "spec.toml")).arch == "sm_90"


def test_dry_run_of_the_stage_triton(tmp_path, capsys):
    """Every dtype has its layout, every layer its dtypes; predictions stand beside what was measured."""
    state = call(tmp_path, "--stage", "triton", "--layers", "L1,C3,W0", "--dtypes", "float16,tfloat32,int8")
    assert set(state.layers) == {f"{n}:{d}" for n in ("L1", "C3") for d in ("float16", "tfloat32")} | {
        "L1:int8",
        "W0:int8",
    }
    entry = state.layers["L1:float16"]
    assert set(entry.schedules) == {*CHOICES, BEST}
    assert {schedule.template for schedule in entry.schedules.values()} == {"triton"}
    assert list(entry.predicted_s) == list(CHOICES)
    assert entry.predicted_s["plan"] == min(entry.predicted_s.values()) > 0
    wide = state.layers["W0:int8"].schedules["plan"].workload
    assert min(math.prod(access.shape) for access in (wide.reads[0], wide.write)) > 2**31
    assert not any(s.options.get("descriptors") for s in state.layers["W0:int8"].schedules.values())
    assert wide.reads[1].shape == (2056, 4104)
    told = msgspec.json.decode((tmp_path / "triton.json").read_bytes())
    assert [one["dtype"] for one in told["by_dtype"]] == ["float16", "tfloat32", "int8"]
    assert all(one["right"] == one["kernels"] == 16 for one in told["by_dtype"])
    assert told["choices"][0]["library_s"] > 0
    assert "its place" in capsys.readouterr().out


def test_calls_continue_each_other(tmp_path, capsys):
    state = call(tmp_path, "--stage", "plan,tune16,anchors", "--layers", "M0,M2", "--seconds", "0")
    assert "call again" in capsys.readouterr().out
    assert not any(entry.schedules for entry in state.layers.values())
    state = call(tmp_path, "--stage", "plan", "--layers", "M0,M2")
    first = state.layers["M0"].plan_s
    state = call(tmp_path, "--stage", "plan,anchors", "--layers", "M0,M2")
    assert state.layers["M0"].plan_s == first
    assert state.layers["M2"].samples["flush"]["anatune:plan"]
    with refuses(SystemExit):
        call(tmp_path, "--hw", "rtx3090")


class Trouble(DrySystem):
    """A machine on which something goes wrong."""

    def __init__(self, problem):
        super().__init__(anatune.hardware("h200"))
        self.problem, self.benched = problem, []

    def bench(self, layer, dtype, schedules, notes):
        self.benched.append((layer.name, sorted(schedules)))
        if layer.name == "M0" and "16" in schedules:
            raise self.problem
        return super().bench(layer, dtype, schedules, notes)

    def tune(self, layer, dtype, spec, trials, records, budget_s):
        other = anatune.plan(layer.workload(), spec, 2, distinct=True).schedules[1]
        return Found(other, trials, 0)


def trouble(tmp_path, problem):
    options = device_gpu._parser().parse_args(["--state", str(tmp_path), "--layers", "M0,M2", "--rounds", "1"])
    assert isinstance(options, argparse.Namespace)
    system = Trouble(problem)
    return system, device_gpu.Run(system, options)


def test_a_failing_layer_is_noted_and_the_others_go_on(tmp_path, capsys):
    _, run = trouble(tmp_path, RunError("no memory"))
    run.stages(["plan", "tune16", "anchors"])
    assert run.state.layers["M0"].notes == ["M0 float32 anchors: no memory"]
    assert run.state.layers["M2"].samples["warm"]
    assert "no memory" in capsys.readouterr().out


@pytest.mark.parametrize("problem", [DeviceError("the GPU is gone"), KernelFaultError("it is gone")])
def test_a_device_that_disappears_ends_the_call_and_keeps_what_is_known(tmp_path, problem):
    _, run = trouble(tmp_path, problem)
    with pytest.raises(type(problem), match="gone"):
        run.stages(["plan", "tune16", "anchors"])
    assert State.open(run.path, run.state.device, "sm_90").layers["M2"].schedules


def test_a_layer_that_ends_the_process_twice_is_left_out(tmp_path, capsys):
    """A kernel that hangs leaves nothing but the attempt in the state; the other layers go on."""
    system, run = trouble(tmp_path, RunError("no memory"))
    run.stages(["plan"])
    run.state.layers["M0"].attempts = 2
    run.stages(["anchors"])
    assert [name for name, _ in system.benched] == ["M2"]
    assert "M0 float32: ended the process 2 times, left out" in capsys.readouterr().err


def test_a_kernel_that_breaks_the_device_is_left_out_from_then_on(tmp_path):
    system, run = trouble(tmp_path, FaultedError("anatune:16", "illegal address"))
    with refuses(SystemExit):
        run.stages(["plan", "tune16", "anchors"])
    again = device_gpu.Run(system, run._options)
    again.stages(["anchors"])
    assert system.benched == [("M0", ["16", "plan"]), ("M0", ["plan"]), ("M2", ["16", "plan"])]


SMALL = Matmul("S0", EXTRA, 32, 64, 16)


def false_cubin(schedule, folder, fault=""):
    """As `build_schedule`: the cubin holds the CUDA C, the launch computes the product."""
    from anatune.codegen.cuda.artifact import write_artifact
    from anatune.codegen.cuda.lower import cuda_kernel
    from anatune.codegen.cuda.nvrtc import Cubin
    from anatune.core.compiler_facts import CompilerFacts
    from tests.unit.measure.fake_cuda import image_of, seconds_of

    kernel = cuda_kernel(schedule)
    image = image_of(kernel, seconds_of(schedule), fault=fault, workload=schedule.workload.to_json())
    return write_artifact(kernel, Cubin(kernel.name, kernel.arch, image, CompilerFacts(32)), folder)


@pytest.fixture
def pretended(monkeypatch):
    """Return a `RealSystem` whose driver and compiler pretend; cubins hold the CUDA C."""
    pytest.importorskip("tvm")
    from anatune.measure.cuda.driver import GpuDevice
    from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
    from bench.gpu import system as system_gpu
    from tests.unit.measure.fake_cuda import FakeCuda

    monkeypatch.setattr(system_gpu, "open_device", lambda index: GpuDevice(CudaBindings(FakeCuda()), index))
    monkeypatch.setattr(system_gpu, "spinner", lambda device: lambda seconds: lambda: None)
    monkeypatch.setattr(system_gpu, "build_schedule", false_cubin)
    return system_gpu.RealSystem(rivals=False)


def test_our_kernels_are_checked_and_timed(pretended):
    from tests.unit.measure.fake_cuda import seconds_of

    ((schedule, predicted_s),) = pretended.choices(SMALL, "float32", anatune.hardware("h200"), 1)
    assert predicted_s > 0
    notes = []
    bench = pretended.bench(SMALL, "float32", {"plan": schedule}, notes)
    assert not notes
    assert bench.errors["anatune:plan"] < 1e-6
    samples = timing.interleave(bench.methods, pretended.clock, 2)
    for mode in timing.MODES:
        assert samples[mode]["anatune:plan"] == pytest.approx([seconds_of(schedule)] * 2)
    bench.close()
    assert pretended.versions()["backend"] == "cuda-bindings"
    pretended.close()


@pytest.mark.parametrize(("fault", "ends"), [("wrong", False), ("refused", False), ("illegal", True)])
def test_what_our_kernels_do_wrong(pretended, monkeypatch, fault, ends):
    from bench.gpu import system as system_gpu

    monkeypatch.setattr(system_gpu, "build_schedule", lambda schedule, folder: false_cubin(schedule, folder, fault))
    schedules = {"16": pretended.choices(SMALL, "float32", anatune.hardware("h200"), 1)[0][0]}
    notes = []
    if ends:
        with refuses(FaultedError):
            pretended.bench(SMALL, "float32", schedules, notes)
        return
    bench = pretended.bench(SMALL, "float32", schedules, notes)
    if fault == "wrong":
        assert bench.errors["anatune:16"] > 1e-3
    else:
        assert not bench.methods
        assert bench.errors["anatune:16"] == math.inf
        assert "LAUNCH_OUT_OF_RESOURCES" in notes[0]


def with_triton(schedules, hardware, folder, *, limits=None):
    """As `build_schedules`, with what pretends to be Triton; one schedule is refused."""
    from anatune.core.trial import Measurement, Outcome
    from tests.unit.measure.fake_cuda import build_reference, build_triton

    yield build_reference(hardware, folder)
    for place, schedule in enumerate(schedules):
        yield schedule, Measurement(Outcome.BUILD_ERROR, message="no") if place == 2 else build_triton(schedule, folder)


@pytest.mark.parametrize("spot", [False, True])
def test_the_stage_triton_with_a_driver_that_pretends(pretended, monkeypatch, tmp_path, spot):
    """Kernels with scratch memory and several launches are compared, in some rows or whole, timed, and let go again."""
    pytest.importorskip("triton", reason="the template's builds name its version")
    from bench.gpu import system as system_gpu

    monkeypatch.setattr(system_gpu, "build_schedules", with_triton)
    if spot:
        monkeypatch.setattr(system_gpu, "_WHOLE_FLOP", 0)
        monkeypatch.setattr(system_gpu, "_SPOT_ROWS", 7)
        assert {0, SMALL.m - 1} < set(system_gpu.spot_rows(SMALL, 0).tolist())
    monkeypatch.setitem(LAYERS, "S0", SMALL)
    options = device_gpu._parser().parse_args(
        ["--state", str(tmp_path), "--layers", "S0", "--rounds", "1", "--dtypes", "float16", "--hw", "h200"]
    )
    driver = pretended._device
    blocks = len(driver._backend._driver.memory)
    run = device_gpu.Run(pretended, options)
    run.stages(["triton"])
    entry = State.open(run.path, run.state.device, "sm_90").layers["S0:float16"]
    assert entry.errors["anatune:plan"] < 1e-2
    assert entry.errors["anatune:choice3"] is None
    assert [note for note in entry.notes if "choice3" in note] == ["S0 float16 anatune:choice3: no"]
    assert "anatune:choice3" not in entry.samples["flush"]
    fastest = min(entry.samples["warm"].values())
    assert entry.samples["warm"]["anatune:8"] == pytest.approx(fastest, rel=1e-9)  # a sum of launches' seconds
    assert len(driver._backend._driver.memory) <= blocks + 1  # what flushes the L2 stays
    pretended.bench = None
    run.stages(["triton"])  # what failed is not tried again


def test_triton_kernels_are_built_without_a_gpu(tmp_path):
    """By the real compiler, in builder processes; the folder need not be there."""
    pytest.importorskip("triton")
    pytest.importorskip("cuda.bindings")
    from anatune.tuning.manifest import read_manifest
    from bench.gpu.build import build_layers

    told = []
    assert build_layers([(SMALL, "float16", 1)], "h100_sxm", tmp_path / "new", 48.0, told.append) == []
    assert "1 of 1 kernels" in told[0]
    (entry,) = read_manifest(tmp_path / "new" / "S0-float16").entries
    assert entry.artifact.scratch_bytes is not None


def test_a_layer_of_which_nothing_was_built_is_built_again(tmp_path):
    """A folder without kernels would be taken for done."""
    from anatune.core.trial import Measurement, Outcome
    from bench.gpu.build import build_layers

    def failing(workload, spec, target, **options):
        target.mkdir()
        (target / "manifest.json").touch()
        late = argparse.Namespace(artifact=None, failure=Measurement(Outcome.BUILD_TIMEOUT, message="too late"))
        return argparse.Namespace(entries=[late])

    told = []
    for _ in range(2):
        assert build_layers([(SMALL, "float16", 1)], "h100_sxm", tmp_path, 48.0, told.append, failing) == ["S0-float16"]
    assert [line for line in told if "too late" in line] == [
        "build S0-float16: 0 of 1 kernels, 0.0 MB altogether; too late"
    ] * 2


def test_kernels_built_elsewhere(pretended, monkeypatch, tmp_path, capsys):
    """The build fills folders up to its limit; there, plan and tuning take what is in them."""
    from anatune.tuning.manifest import build_manifest
    from bench.gpu import build as build_gpu
    from bench.gpu import system as system_gpu
    from tests.unit.measure.fake_cuda import build_reference

    def builds(schedules, hardware, folder, *, limits=None):
        yield build_reference(hardware, folder)
        for schedule in schedules:
            yield schedule, false_cubin(schedule, folder)

    def built(*arguments, **options):
        return build_manifest(*arguments, builds=builds, **options)

    pytest.importorskip("cuda.bindings")
    wanted = [(SMALL, "float32", 3), (LAYERS["M0"], "float32", 3), (LAYERS["M2"], "float32", 3)]
    told = []
    assert build_gpu.build_layers(wanted[:1], "h200", tmp_path, 48.0, told.append, built) == []
    assert "3 of 3 kernels" in told[0]
    assert build_gpu.build_layers(wanted, "h200", tmp_path, 1e-6, told.append, built) == ["M0-float32", "M2-float32"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["S0-float32"]
    with refuses(SystemExit):
        build_gpu.build_layers(wanted, "ryzen_7950x", tmp_path, 1.0, told.append, built)

    monkeypatch.setattr(system_gpu, "build_schedule", None)
    system = system_gpu.RealSystem(rivals=False, kernels=tmp_path)
    spec = system.spec()
    assert spec == anatune.hardware("h200")
    chosen = system.choices(SMALL, "float32", spec, 2)
    plan = chosen[0][0]
    assert [seconds for _, seconds in chosen] == sorted(seconds for _, seconds in chosen)
    bench = system.bench(SMALL, "float32", {"plan": plan}, [])
    assert bench.errors["anatune:plan"] < 1e-6
    asked = {}

    def tune(workload, hw, **options):
        asked.update(options, workload=workload)
        return argparse.Namespace(trials=[], best=plan)

    monkeypatch.setattr(anatune, "tune", tune)
    assert system.tune(SMALL, "float32", spec, 16, tmp_path / "records.sqlite", 30.0) == Found(plan, 0, 0)
    assert asked["manifest"] == tmp_path / "S0-float32"
    assert asked["trials"] == 16
    assert asked["resume"]
    empty = system_gpu.RealSystem(rivals=False, kernels=tmp_path / "nothing")
    with refuses(anatune.AnatuneError):
        empty.spec()

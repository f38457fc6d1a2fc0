"""The GPU benchmark without a GPU: layers, ratios, tables, the dry run through all stages, going on, one-line ends."""

import argparse

import msgspec
import numpy as np
import pytest

import anatune
from anatune.errors import DeviceError, RunError
from anatune.measure.cuda.driver import KernelFaultError
from anatune.measure.run.correctness import expected, random_inputs
from bench.gpu import device as device_gpu
from bench.gpu import rivals as rivals_gpu
from bench.gpu import tables as tables_gpu
from bench.gpu import timing
from bench.gpu.dry_run import DrySystem
from bench.gpu.layers import LAYERS
from bench.gpu.state import LayerState, State, entry_name
from bench.gpu.system import FaultedError, Found
from bench.layers import EXTRA, Matmul, choose


def test_layers_are_those_of_the_papers():
    for name, layer in LAYERS.items():
        if layer.group != EXTRA:
            assert layer.workload("NCHW") == anatune.layer(f"{layer.group}:{name}")
    assert len(choose(None, LAYERS)) == 6 + 13 + 11
    assert [layer.name for layer in choose("l0, R1?,m0", LAYERS)] == ["M0", "R10", "R11", "R12", "L0"]
    with pytest.raises(SystemExit, match="'R99' is unknown"):
        choose("R99", LAYERS)


class StillClock:
    """A clock that counts what it is asked for."""

    def __init__(self, times):
        self.times, self.asked = times, []

    def sample(self, method, mode, seconds):
        self.asked.append((method, mode))
        return self.times[method] * (2.0 if mode == "flush" else 1.0)


def test_methods_take_turns():
    clock = StillClock({len: 1e-3, abs: 2e-3, max: 3e-3})
    found = timing.interleave({"a": len, "b": abs, "c": max}, clock, 4)
    assert found["warm"] == {"a": [1e-3] * 4, "b": [2e-3] * 4, "c": [3e-3] * 4}
    assert found["flush"]["b"] == [4e-3] * 4
    firsts = [clock.asked[3 + 6 * turn][0] for turn in range(4)]
    assert firsts == [len, abs, max, len]


def test_ratios_and_errors():
    assert timing.paired_ratio([1.0, 2.0, 10.0], [2.0, 4.0, 10.0]) == 2.0
    assert timing.geometric_mean([]) is None
    assert timing.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert timing.relative_error([1.0, np.nan], [1.0, 1.0]) == float("inf")
    assert timing.relative_error([3.0, 4.0], [3.0, 4.0]) == 0.0


class CountingDevice:
    """What `timing.Clock` uses of a device."""

    attributes: dict[str, int] = {"L2_CACHE_SIZE": 1 << 20}  # noqa: RUF012

    def __init__(self):
        self.calls, self.filled = [], 0

    def activate(self):
        pass

    def allocate(self, num_bytes):
        assert num_bytes == 2 << 20
        return "buffer"

    def fill(self, buffer, byte=0):
        self.filled += 1

    def time_calls(self, call, *, samples=1, launches=1, before=None):
        for _ in range(samples):
            before()
        self.calls.append((samples, launches))
        return [1e-5] * samples


def test_the_clock_flushes_and_hides():
    device, spins = CountingDevice(), []
    clock = timing.Clock(device, lambda seconds: spins.append(seconds) or (lambda: None))
    assert clock.sample(print, "flush", 1e-5) == 1e-5
    assert device.calls == [(32, 1)]
    assert device.filled == 32
    assert clock.sample(print, "warm", 1e-5) == pytest.approx(1e-5)
    assert device.calls[1] == (3, 64)
    assert device.filled == 32
    assert spins[1] >= 64 * timing.HOST_S
    clock.sample(print, "warm", 1.0)
    assert device.calls[2] == (1, 2)


# ---- tables ----------------------------------------------------------------------------------------------------------


def state_with(**entries):
    state = State("GPU", "sm_90", anatune.hardware("h200"))
    for name, (dtype, samples, kernels, errors) in entries.items():
        entry = LayerState(name, dtype, name, 10**9)
        entry.samples, entry.kernels, entry.errors = {"flush": samples}, kernels, errors
        state.layers[entry_name(name, dtype)] = entry
    return state


def test_rows_and_aims():
    samples = {
        "anatune:plan": [2e-5] * 3,
        "anatune:16": [1.6e-5] * 3,
        "anatune:64": [1.5e-5] * 3,
        "torch:nchw": [1.2e-5] * 3,
        "torch:nhwc": [1.8e-5] * 3,
    }
    matmul = {"anatune:plan": [1e-5] * 3, "torch:mm": [1.3e-5] * 3, "triton:matmul": [2e-5] * 3}
    state = state_with(
        R2=("float32", samples, {"torch:nchw": ["cudnn_winograd_nonfused"]}, {}),
        M1=("float32", matmul, {"torch:mm": ["sgemm"]}, {"anatune:plan": 1e-6}),
        M2=("bfloat16", matmul, {}, {"torch:mm": 0.5}),
    )
    winograd, exact, wrong = tables_gpu.rows_of(state)
    assert winograd.library == "torch:nchw"
    assert not winograd.same_arithmetic
    assert winograd.plan_of_best == pytest.approx(0.75)
    assert winograd.over_library == pytest.approx(0.8)
    assert exact.over_library == pytest.approx(1.3)
    assert exact.over_triton == pytest.approx(2.0)
    assert exact.plan_of_best is None
    assert exact.flop_per_s == pytest.approx(1e14)
    assert wrong.over_library is None
    found = {aim.text: aim for aim in tables_gpu.aims([winograd, exact, wrong])}
    assert found["flush: fp32, plan's first choice over the best found"].reached == pytest.approx(0.75)
    assert found["flush: fp32, tuned over cuBLAS/cuDNN, same arithmetic"].layers == 1
    assert found["warm: fp32, tuned over cuBLAS/cuDNN, same arithmetic"].reached is None


def test_a_wrong_result_is_not_compared():
    samples = {"anatune:plan": [1e-5], "anatune:16": [1e-6], "torch:mm": [1e-5]}
    state = state_with(M1=("float32", samples, {}, {"anatune:16": 0.1}))
    (row,) = tables_gpu.rows_of(state)
    assert "16" not in row.times_s
    assert row.over_library == pytest.approx(1.0)


def test_the_peak_is_the_measured_one():
    state = state_with()
    spec = anatune.hardware("h200")
    assert tables_gpu.peak_of(state, "float32") == spec.compute.fp32_peak_flop_per_s * spec.compute.reachable_fraction
    assert tables_gpu.peak_of(state, "tfloat32") == 494.7e12
    state.numbers = DrySystem(spec).calibrate(1.0).numbers
    assert tables_gpu.peak_of(state, "float32") == pytest.approx(0.95 * spec.compute.fp32_peak_flop_per_s)


# ---- the whole way ---------------------------------------------------------------------------------------------------


def call(folder, *arguments):
    device_gpu.main(["--dry-run", "--state", str(folder), "--rounds", "2", *arguments])
    return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)


def test_dry_run_through_all_stages(tmp_path, capsys):
    stages = ",".join(device_gpu.STAGES)
    state = call(tmp_path, "--stage", stages, "--layers", "M0,R2", "--dtypes", "bfloat16")
    out = capsys.readouterr().out
    assert set(state.layers) == {"M0", "R2", "M0:bfloat16", "R2:bfloat16"}
    assert state.calibrated
    entry = state.layers["M0"]
    assert set(entry.schedules) == {"plan", "16", "64"}
    assert set(entry.samples["warm"]) >= {"anatune:plan", "anatune:16", "anatune:64", "torch:mm", "triton:matmul"}
    assert state.layers["M0:bfloat16"].schedules["plan"].template == "tensorcore"
    assert "aims" in out
    assert "Winograd" in out
    assert "mean nothing" in (tmp_path / "table.txt").read_text()
    results = msgspec.json.decode((tmp_path / "results.json").read_bytes())
    assert len(results["rows"]) == 8
    assert anatune.hardware(str(tmp_path / "spec.toml")).arch == "sm_90"


def test_calls_continue_each_other(tmp_path, capsys):
    state = call(tmp_path, "--stage", "plan,tune16,anchors", "--layers", "M0,M2", "--seconds", "0")
    assert "call again" in capsys.readouterr().out
    assert not any(entry.schedules for entry in state.layers.values())
    state = call(tmp_path, "--stage", "plan", "--layers", "M0,M2")
    first = state.layers["M0"].plan_s
    state = call(tmp_path, "--stage", "plan,anchors", "--layers", "M0,M2")
    assert state.layers["M0"].plan_s == first
    assert state.layers["M2"].samples["flush"]["anatune:plan"]
    with pytest.raises(SystemExit, match="is of NVIDIA H200"):
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


def test_a_kernel_that_breaks_the_device_is_left_out_from_then_on(tmp_path):
    system, run = trouble(tmp_path, FaultedError("anatune:16", "illegal address"))
    with pytest.raises(SystemExit, match="left out from now on"):
        run.stages(["plan", "tune16", "anchors"])
    again = device_gpu.Run(system, run._options)
    again.stages(["anchors"])
    assert system.benched == [("M0", ["16", "plan"]), ("M0", ["plan"]), ("M2", ["16", "plan"])]


@pytest.mark.parametrize("arguments", [["--stage", "rest"], ["--dtypes", "int4"], ["--layers", "Q1", "--dry-run"]])
def test_unknown_words_are_one_line(arguments, tmp_path):
    with pytest.raises(SystemExit, match="is unknown, expected"):
        device_gpu.main(["--state", str(tmp_path), *arguments])


def test_without_a_gpu_it_ends_with_one_line(monkeypatch, tmp_path):
    from bench.gpu import system as system_gpu

    def nothing(index):
        raise DeviceError("no GPU can be used here: no driver")

    monkeypatch.setattr(system_gpu, "open_device", nothing)
    with pytest.raises(SystemExit, match=r"^bench.gpu.device: no GPU can be used here: no driver$"):
        device_gpu.main(["--state", str(tmp_path)])


def test_a_damaged_state_is_one_line(tmp_path):
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(SystemExit, match="remove it or name another folder"):
        call(tmp_path)


@pytest.mark.parametrize(("name", "dtype"), [("M0", "float32"), ("R4", "float32"), ("M2", "bfloat16")])
def test_rivals_compute_the_layer(name, dtype):
    """PyTorch on the CPU computes what anatune's layer says, in its layout."""
    pytest.importorskip("torch")
    layer, notes = LAYERS[name], []
    workload = layer.workload(dtype)
    inputs = random_inputs(workload, 0)
    want = expected(workload, inputs).result
    methods = rivals_gpu.Rivals("cpu").methods(layer, dtype, inputs, notes)
    assert {method.split(":")[0] for method in methods} == {"torch"}
    for method, read in methods.values():
        method()
        error = timing.relative_error(read().reshape(want.shape), want)
        assert error < (1e-5 if dtype == "float32" else 1e-2)
    assert not [note for note in notes if "triton" not in note]  # which says so where it finds no GPU


def test_winograd_is_told_from_its_name():
    assert rivals_gpu.is_same_arithmetic(["ampere_sgemm_128x64_tn"])
    assert not rivals_gpu.is_same_arithmetic(["void cudnn::winograd::generateWinogradTilesKernel"])


# ---- the real machine's way, on a driver that pretends ---------------------------------------------------------------

SMALL = Matmul("S0", EXTRA, 32, 64, 16)


def false_cubin(schedule, folder, fault=""):
    """As `build_schedule`: the cubin holds the CUDA C, the launch computes the product."""
    from anatune.codegen.cuda.artifact import write_artifact
    from anatune.codegen.cuda.lower import cuda_kernel
    from anatune.codegen.cuda.nvrtc import Cubin
    from anatune.core.compiler_facts import CompilerFacts
    from tests.unit.measure.fake_cuda import image_of, seconds_of

    kernel = cuda_kernel(schedule)
    image = image_of(kernel, seconds_of(schedule), fault=fault, product=True)
    return write_artifact(kernel, Cubin(kernel.name, kernel.arch, image, CompilerFacts(32)), folder)


@pytest.fixture
def pretended(monkeypatch):
    """Return a `RealSystem` whose driver and compiler pretend; cubins hold the CUDA C."""
    pytest.importorskip("tvm")
    from anatune.measure.cuda.cuda_bindings import CudaBindings
    from anatune.measure.cuda.driver import GpuDevice
    from bench.gpu import system as system_gpu
    from tests.unit.measure.fake_cuda import FakeCuda

    monkeypatch.setattr(system_gpu, "open_device", lambda index: GpuDevice(CudaBindings(FakeCuda()), index))
    monkeypatch.setattr(system_gpu, "spinner", lambda device: lambda seconds: lambda: None)
    monkeypatch.setattr(system_gpu, "build_schedule", false_cubin)
    return system_gpu.RealSystem(rivals=False)


def test_our_kernels_are_checked_and_timed(pretended):
    from tests.unit.measure.fake_cuda import seconds_of

    schedule = pretended.plan(SMALL, "float32", anatune.hardware("h200"))
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
    schedules = {"16": pretended.plan(SMALL, "float32", anatune.hardware("h200"))}
    notes = []
    if ends:
        with pytest.raises(FaultedError, match="anatune:16: the kernel failed on the GPU"):
            pretended.bench(SMALL, "float32", schedules, notes)
        return
    bench = pretended.bench(SMALL, "float32", schedules, notes)
    if fault == "wrong":
        assert bench.errors["anatune:16"] > 1e-3
    else:
        assert not bench.methods
        assert "LAUNCH_OUT_OF_RESOURCES" in notes[0]


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
    with pytest.raises(SystemExit, match="is a CPU"):
        build_gpu.build_layers(wanted, "ryzen_7950x", tmp_path, 1.0, told.append, built)

    monkeypatch.setattr(system_gpu, "build_schedule", None)
    system = system_gpu.RealSystem(rivals=False, kernels=tmp_path)
    spec = system.spec()
    assert spec == anatune.hardware("h200")
    plan = system.plan(SMALL, "float32", spec)
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
    with pytest.raises(anatune.AnatuneError, match="build them with --build"):
        empty.spec()

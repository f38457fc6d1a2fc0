"""Calibration of a GPU on a false one: numbers found again, what is wrong left out, the spec that comes of it."""

import msgspec
import pytest

from anatune.core.hardware.files import hardware, load_spec_file, spec_to_toml
from anatune.errors import DeviceError
from anatune.measure.cuda.calibration import calibrate as module
from anatune.measure.cuda.calibration.calibrate import calibrate_gpu, calibrated_gpu_spec
from anatune.measure.cuda.calibration.numbers import GpuNumbers, Median
from anatune.measure.cuda.calibration.probe_set import probe_set
from anatune.report.devices import gpu_calibration_lines
from tests.unit.measure.false_gpu import CLOCK_HZ, LATENCY_CYCLES, LAUNCH_S, FalseBackend
from tests.wording import refuses


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Less memory and no warming up: nothing has to get warm."""
    monkeypatch.setattr("anatune.measure.cuda.calibration.machine.WARM_UP_S", 0.0)
    monkeypatch.setattr("anatune.measure.cuda.calibration.probe_set._LEAST_DRAM_BYTES", 1 << 24)
    monkeypatch.setattr("anatune.measure.cuda.calibration.probe_set._DRAM_LINES", 1 << 17)


def false_spec():
    """An H200 with the false device's four SMs, whose doubts are the packaged ones."""
    spec = hardware("h200")
    compute = msgspec.structs.replace(spec.compute, num_sms=4, fp32_peak_flop_per_s=2 * 4 * 128 * 1.98e9)
    cores = msgspec.structs.replace(spec.tensor_cores, float16_flop_per_s=30e12, bfloat16_flop_per_s=30e12)
    return msgspec.structs.replace(spec, compute=compute, tensor_cores=cores)


def calibrate(backend, **options):
    """Calibrate; whatever was allocated is given back, but for what a refused launch or too little memory left."""
    found = calibrate_gpu(
        hardware=false_spec(), device=backend.device(), compiler=backend.compile, minutes=1e-3, **options
    )
    if not backend.broken and not backend.wrong and backend.free_bytes > 1 << 30:
        assert not [memory for memory in backend.memory.values() if memory.nbytes > 1 << 20]
    return found


def test_the_numbers_are_found_again(tmp_path):
    stages = []
    found = calibrate(FalseBackend(), progress=lambda stage, share: stages.append((stage, share)))
    spec, numbers = found.spec, found.numbers
    assert numbers.refused == {}
    assert numbers.clock_hz == pytest.approx(CLOCK_HZ, rel=1e-3)
    assert spec.compute.clock_hz == pytest.approx(CLOCK_HZ, rel=1e-3)
    assert spec.compute.reachable_fraction == pytest.approx(120 / 128, rel=1e-3)
    assert spec.compute.fma_latency_cycles == pytest.approx(4.0, rel=1e-3)
    assert spec.compute.fp16_rate == pytest.approx(2.0, rel=1e-3)
    assert spec.compute.int8_rate == pytest.approx(2.0, rel=1e-3)
    assert spec.shared_memory.bytes_per_cycle_per_sm == pytest.approx(124, rel=1e-3)
    assert spec.l2.bandwidth_bytes_per_s == pytest.approx(5e12, rel=1e-3)
    assert spec.dram.bandwidth_bytes_per_s == 4.8e12
    assert spec.dram.reachable_fraction == pytest.approx(4 / 4.8, rel=1e-3)
    assert spec.launch.overhead_s == pytest.approx(LAUNCH_S, rel=1e-3)
    for level, group in (("shared", spec.shared_memory), ("l1", spec.l1), ("l2", spec.l2), ("dram", spec.dram)):
        assert group.latency_cycles == pytest.approx(LATENCY_CYCLES[level], rel=1e-2), level
    assert numbers.best_matrix("bfloat16")[1].value == pytest.approx(2 * 2048 * 4 * CLOCK_HZ, rel=1e-3)
    assert spec.tensor_cores.mma_sync_fraction == pytest.approx(2 * 2048 * 4 * CLOCK_HZ / 30e12, rel=1e-3)
    assert spec.tensor_cores.latency_cycles == pytest.approx(33, rel=1e-3)
    assert numbers.fma_per_cycle["1x4"].value == pytest.approx(32, rel=1e-3)
    assert numbers.rates["dram_copy"].value == pytest.approx(3.8e12, rel=1e-3)
    assert {stage for stage, _ in stages} >= {"building probes", "sampling"}
    assert "76 % of the" in found.notes[0]
    for group in (spec.compute, spec.shared_memory, spec.l1, spec.l2, spec.dram, spec.launch):
        assert "anatune hw calibrate" in group.source
    assert spec.compute.unverified == ()
    assert spec.dram.unverified == ("bandwidth_bytes_per_s",)
    path = tmp_path / "spec.toml"
    path.write_text(spec_to_toml(spec))
    assert load_spec_file(path) == spec
    text = "\n".join(gpu_calibration_lines(spec, numbers))
    for expected in (
        "1.500 GHz",
        "94 % of 1.536 TFLOP/s",
        "mma.sync",
        ": 2.000 us",
        "latencies in cycles: fma 4, mma 33",
    ):
        assert expected in text


def test_what_computes_nothing_is_left_out():
    """A probe whose result is wrong is not believed, nor those that need it; the spec keeps what it said."""
    found = calibrate(FalseBackend(wrong=("read_global", "matrix_unit", "chase_shared")))
    assert {name.split("_")[0] for name in found.numbers.refused} == {"matrix", "mma", "l2", "dram", "shared"}
    assert "expected" in found.numbers.refused["l2_read"]
    assert "dram_read" in found.numbers.refused["dram_copy"]
    assert "dram_read" in found.numbers.refused["dram_latency"]
    assert found.spec.shared_memory.latency_cycles == false_spec().shared_memory.latency_cycles
    assert found.spec.l2.bandwidth_bytes_per_s == false_spec().l2.bandwidth_bytes_per_s
    assert "bandwidth_bytes_per_s" in found.spec.l2.unverified
    assert found.spec.dram == false_spec().dram
    assert any(note.startswith("the probe l2_read was not used") for note in found.notes)


def test_little_memory_and_refused_launches():
    found = calibrate(FalseBackend(memory=1 << 23, broken=("read_shared",)))
    assert "OUT_OF_MEMORY" in found.numbers.refused["dram_read"]
    assert "LAUNCH_FAILED" in found.numbers.refused["shared_16"]
    assert found.spec.compute.reachable_fraction == pytest.approx(120 / 128, rel=1e-3)


def test_noise_leaves_numbers_unverified():
    found = calibrate(FalseBackend(noise=0.2))
    assert "reachable_fraction" in found.spec.compute.unverified
    assert any("varies by" in note for note in found.notes)


def test_without_a_timer_the_clock_of_the_spec_counts():
    found = calibrate(FalseBackend(timer=False))
    assert found.numbers.clock_hz == 0.0
    assert found.spec.compute.clock_hz == false_spec().compute.clock_hz


def test_an_old_architecture_has_fewer_probes():
    found = calibrate(FalseBackend(capability=(6, 0)))
    assert not [name for name in found.numbers.rates if "matrix" in name or "int8" in name]


def measured(value, spread=0.0):
    return Median(value, spread, 9)


def numbers(**changes):
    empty = GpuNumbers(0.0, {}, {}, {}, {}, {}, None, {})
    return msgspec.structs.replace(empty, **changes)


def test_implausible_numbers_are_not_taken_over():
    spec, notes = calibrated_gpu_spec(
        false_spec(), numbers(launch_s=measured(3.0), rates={"l2_read": measured(1e3)}), "2026-11-22"
    )
    assert spec.launch.overhead_s == false_spec().launch.overhead_s
    assert spec.l2.bandwidth_bytes_per_s == false_spec().l2.bandwidth_bytes_per_s
    assert any("launch.overhead_s stays 2.5e-06: got 3.0" in note for note in notes)


def test_numbers_far_from_the_spec_stay_unverified():
    spec, notes = calibrated_gpu_spec(false_spec(), numbers(latency_cycles={"shared": measured(290.0)}), "2026-11-22")
    assert spec.shared_memory.latency_cycles == 290.0
    assert "latency_cycles" in spec.shared_memory.unverified
    assert any("far from the expected 29" in note for note in notes)


def test_a_faster_memory_and_more_lanes_than_the_spec_says():
    rates = {"fma_8_32": measured(2 * 4 * 250 * 1.5e9), "dram_read": measured(5e12)}
    spec, notes = calibrated_gpu_spec(false_spec(), numbers(clock_hz=1.5e9, rates=rates), "2026-11-22")
    assert spec.dram.bandwidth_bytes_per_s == 5e12
    assert spec.dram.reachable_fraction == 1.0
    assert spec.compute.fp32_lanes_per_sm == 256
    assert isinstance(spec.compute.fp32_lanes_per_sm, int)
    assert any("256 lanes instead of 128" in note for note in notes)


def test_tensor_cores_that_nobody_described():
    unknown = msgspec.structs.replace(false_spec(), tensor_cores=None)
    rates = {f"matrix_{dtype}_4_8": measured(2e13) for dtype in ("float16", "bfloat16", "tfloat32")}
    found = numbers(rates=rates, latency_cycles={"mma": measured(18.0)})
    spec, _ = calibrated_gpu_spec(unknown, found, "2026-11-22")
    assert spec.tensor_cores.tf32_flop_per_s == 2e13
    assert spec.tensor_cores.mma_sync_fraction == 1.0
    assert spec.tensor_cores.latency_cycles == 18.0
    assert calibrated_gpu_spec(unknown, numbers(), "2026-11-22")[0].tensor_cores is None


def test_without_a_gpu(monkeypatch):
    def nothing(index):
        raise DeviceError("no GPU can be used here: none")

    monkeypatch.setattr(module, "open_device", nothing)
    with refuses(DeviceError):
        calibrate_gpu()


def test_a_device_nobody_describes_is_closed_again(monkeypatch):
    backend = FalseBackend()
    monkeypatch.setattr(module, "open_device", lambda index: backend.device())
    monkeypatch.setattr(module, "gpu_detection", lambda: ([], "cuda-bindings is missing"))
    with refuses(DeviceError):
        calibrate_gpu()
    assert not backend.is_open


def test_names_of_probes_are_those_the_numbers_read():
    names = set(probe_set("sm_90", 132, 2048, 50 << 20))
    assert {"fma_latency", "shared_16", "l2_read", "dram_read", "dram_copy", "l1_latency", "dram_latency"} <= names

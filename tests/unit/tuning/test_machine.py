"""Threads, cores, and whether a spec is of this machine."""

import msgspec
import pytest

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import DeviceError, SpaceError
from anatune.tuning.machine import check_cpu, check_gpu, choose_threads, usable_cores
from tests.wording import refuses

CPU = anatune.hardware("xeon_gold_6230r")
CORES = CPU.compute.num_cores


@pytest.mark.parametrize("threads", [1, 2, CORES - 1])
def test_fewer_cores_have_less_of_everything(threads):
    part = CPU.with_threads(threads)
    assert part.compute.num_cores == threads
    assert part.compute.fp32_peak_flop_per_s == pytest.approx(CPU.compute.fp32_peak_flop_per_s * threads / CORES)
    assert CPU.dram.core_bandwidth_bytes_per_s <= part.dram.bandwidth_bytes_per_s <= CPU.dram.bandwidth_bytes_per_s
    assert part.l3.shared_by_cores <= threads
    assert part.l2 == CPU.l2
    assert msgspec.json.decode(msgspec.json.encode(part), type=type(part)) == part


def test_all_cores_are_the_cpu_itself():
    assert CPU.with_threads(CORES) is CPU


def test_threads_by_default_and_by_choice():
    assert choose_threads(CPU, None, usable=4) == 4
    assert choose_threads(CPU, None, usable=1000) == CORES
    assert choose_threads(CPU, 3, usable=4) == 3
    for wrong in (0, 5, True, "2", 1.0):
        with refuses(SpaceError):
            choose_threads(CPU, wrong, usable=4)
    assert usable_cores() >= 1


def test_a_quota_counts_by_default_and_not_against_a_choice(monkeypatch):
    monkeypatch.setattr("anatune.tuning.machine.usable_cores", lambda: 2)
    monkeypatch.setattr("anatune.tuning.machine.allowed_cores", lambda: 6)
    assert choose_threads(CPU, None) == 2
    assert choose_threads(CPU, 6) == 6
    with refuses(SpaceError):
        choose_threads(CPU, 7)


def test_machines():
    assert check_cpu(CPU, CPU) is CPU
    with refuses(DeviceError):
        check_cpu(CPU, anatune.hardware("graviton3"))
    older = msgspec.structs.replace(
        CPU,
        compute=msgspec.structs.replace(
            CPU.compute, isa="avx2", simd_bits=256, fp32_peak_flop_per_s=CPU.compute.fp32_peak_flop_per_s / 2
        ),
    )
    with refuses(DeviceError):
        check_cpu(older, CPU)
    with refuses(DeviceError):
        check_cpu(msgspec.structs.replace(older, name="mine"), CPU)


def test_gpus():
    h200 = anatune.hardware("h200")
    assert isinstance(h200, GpuSpec)
    assert check_gpu(h200, h200) is h200
    other = msgspec.structs.replace(h200, name="mine", dram=msgspec.structs.replace(h200.dram, latency_cycles=500.0))
    assert check_gpu(other, h200) is other
    with refuses(DeviceError):
        check_gpu(h200, anatune.hardware("h100_sxm"))
    with refuses(DeviceError):
        check_gpu(h200, anatune.hardware("rtx3090"))
    assert choose_threads(h200, None) == 1
    with refuses(SpaceError):
        choose_threads(h200, 4)


def test_only_nvidia_gpus_can_be_measured_on():
    with refuses(DeviceError):
        check_gpu(anatune.hardware("mi50"))


def test_no_gpu(monkeypatch):
    from anatune.measure.cuda import detect as detect_gpu

    monkeypatch.setattr(detect_gpu, "gpu_detection", lambda _: ([], "no driver"))
    with refuses(DeviceError):
        check_gpu(anatune.hardware("h200"))
    with refuses(DeviceError):
        check_gpu(anatune.hardware("h200"), built=True)

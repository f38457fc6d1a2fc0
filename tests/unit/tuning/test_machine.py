"""Threads, cores, and whether a spec is of this machine."""

import msgspec
import pytest

import anatune
from anatune.errors import DeviceError, SpaceError
from anatune.tuning.machine import check_machine, choose_threads, usable_cores, with_threads
from tests.naive_gpu import gpu

CPU = anatune.hardware("xeon_gold_6230r")
CORES = CPU.compute.num_cores


@pytest.mark.parametrize("threads", [1, 2, CORES - 1])
def test_fewer_cores_have_less_of_everything(threads):
    part = with_threads(CPU, threads)
    assert part.compute.num_cores == threads
    assert part.compute.fp32_peak_flop_per_s == pytest.approx(CPU.compute.fp32_peak_flop_per_s * threads / CORES)
    assert CPU.dram.core_bandwidth_bytes_per_s <= part.dram.bandwidth_bytes_per_s <= CPU.dram.bandwidth_bytes_per_s
    assert part.l3.shared_by_cores <= threads
    assert part.l2 == CPU.l2
    assert msgspec.json.decode(msgspec.json.encode(part), type=type(part)) == part


def test_all_cores_are_the_cpu_itself():
    assert with_threads(CPU, CORES) is CPU


def test_threads_by_default_and_by_choice():
    assert choose_threads(CPU, None, usable=4) == 4
    assert choose_threads(CPU, None, usable=1000) == CORES
    assert choose_threads(CPU, 3, usable=4) == 3
    for wrong in (0, 5, True, "2", 1.0):
        with pytest.raises(SpaceError, match="expected an integer from 1 to 4"):
            choose_threads(CPU, wrong, usable=4)
    assert usable_cores() >= 1


def test_machines():
    assert check_machine(CPU, CPU) is CPU
    with pytest.raises(DeviceError, match="rtx3090 is a GPU"):
        check_machine(gpu("rtx3090"))
    with pytest.raises(DeviceError, match="tune there"):
        check_machine(CPU, anatune.hardware("graviton3"))
    older = msgspec.structs.replace(
        CPU,
        compute=msgspec.structs.replace(
            CPU.compute, isa="avx2", simd_bits=256, fp32_peak_flop_per_s=CPU.compute.fp32_peak_flop_per_s / 2
        ),
    )
    with pytest.raises(DeviceError, match="avx2"):
        check_machine(older, CPU)

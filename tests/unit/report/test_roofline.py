import pytest

import anatune
from anatune.report.roofline import peak_flop_per_s, roofline


def test_floors_of_a_large_product():
    workload, hardware = anatune.matmul(4096, 4096, 4096), anatune.hardware("rtx3090")
    floors = roofline(workload, hardware)
    assert floors.fma_s == pytest.approx(2 * 4096**3 / 35581.44e9)
    assert floors.fma_reachable_s == pytest.approx(floors.fma_s / hardware.compute.reachable_fraction)
    assert floors.dram_s == pytest.approx(3 * 4096**2 * 4 / 936e9)
    assert floors.fma_s > floors.dram_s


def test_floors_of_a_copy():
    floors = roofline(anatune.elementwise((1024, 1024)), anatune.hardware("xeon_gold_6230r"))
    assert floors.dram_s > floors.fma_s


def test_peak_follows_the_dtype():
    gpu, cpu = anatune.hardware("rtx3090"), anatune.hardware("xeon_gold_6230r")
    assert peak_flop_per_s(gpu, "int8") == gpu.compute.int8_rate * peak_flop_per_s(gpu, "float32")
    assert peak_flop_per_s(gpu, "float16") == gpu.compute.fp16_rate * peak_flop_per_s(gpu, "float32")
    assert peak_flop_per_s(cpu, "float32") == cpu.compute.fp32_peak_flop_per_s
    assert peak_flop_per_s(cpu, "int8") == cpu.vpdpbusd.rate * cpu.compute.fp32_peak_flop_per_s
    assert peak_flop_per_s(cpu, "bfloat16") == peak_flop_per_s(cpu, "float32")  # Cascade Lake has no VDPBF16PS

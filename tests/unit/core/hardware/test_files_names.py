"""Devices as their drivers, lspci and /proc/cpuinfo call them: each spec is known by that, and no other device is."""

import pytest

from anatune.core.hardware.files import _products, hardware, list_hardware
from anatune.errors import UnknownNameError
from tests.wording import refuses

DRIVERS = {
    "a10": ["NVIDIA A10"],
    "a100_pcie": ["NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"],
    "a100_sxm": ["NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"],
    "a100_sxm_80gb": ["NVIDIA A100-SXM4-80GB"],
    "a30": ["NVIDIA A30"],
    "a6000": ["NVIDIA RTX A6000", "RTX A6000"],
    "apple_m1": ["Apple M1"],
    "apple_m3": ["Apple M3"],
    "b100": ["NVIDIA B100"],
    "b200": ["NVIDIA B200"],
    "b300": ["NVIDIA B300"],
    "cortex_a53": ["Cortex-A53"],
    "cortex_a55": ["Cortex-A55"],
    "cortex_a57": ["Cortex-A57"],
    "cortex_a72": ["Cortex-A72"],
    "epyc_7763": ["AMD EPYC 7763 64-Core Processor"],
    "epyc_9575f": ["AMD EPYC 9575F 64-Core Processor"],
    "gb10": ["NVIDIA GB10"],
    "gb200": ["NVIDIA GB200"],
    "gb300": ["NVIDIA GB300"],
    "gh200": ["NVIDIA GH200 480GB"],
    "graviton3": ["Neoverse-V1", "AWS Graviton3"],
    "gtx1080ti": ["NVIDIA GeForce GTX 1080 Ti", "GeForce GTX 1080 Ti"],
    "gtx1650": ["NVIDIA GeForce GTX 1650"],
    "h100_pcie": ["NVIDIA H100 PCIe"],
    "h100_sxm": ["NVIDIA H100 80GB HBM3", "NVIDIA_H100_80GB_HBM3"],
    "h20": ["NVIDIA H20"],
    "h200": ["NVIDIA H200"],
    "i5_1035g1": ["Intel(R) Core(TM) i5-1035G1 CPU @ 1.00GHz"],
    "i7_3770": ["Intel(R) Core(TM) i7-3770 CPU @ 3.40GHz"],
    "jetson_nano": ["NVIDIA Jetson Nano"],
    "jetson_thor": ["NVIDIA Thor", "NVIDIA Jetson AGX Thor"],
    "k20": ["Tesla K20c", "Tesla K20m"],
    "k80": ["Tesla K80", "NVIDIA Tesla K80"],
    "kunpeng_920": ["Kunpeng 920", "Huawei Kunpeng 920"],
    "l4": ["NVIDIA L4"],
    "l40s": ["NVIDIA L40S"],
    "mi100": ["AMD Instinct MI100"],
    "mi210": ["AMD Instinct MI210"],
    "mi250x": ["AMD Instinct MI250X"],
    "mi300x": ["AMD Instinct MI300X"],
    "mi325x": ["AMD Instinct MI325X"],
    "mi350x": ["AMD Instinct MI350X"],
    "mi355x": ["AMD Instinct MI355X"],
    "mi50": ["AMD Instinct MI50", "AMD Radeon Instinct MI50"],
    "neoverse_n1": ["Neoverse-N1", "AWS Graviton2"],
    "neoverse_n2": ["Neoverse-N2"],
    "orin": ["Orin", "NVIDIA Jetson AGX Orin"],
    "p100": ["Tesla P100-PCIE-12GB"],
    "radeon_8060s": ["AMD Radeon 8060S"],
    "raspberry_pi_5": ["Raspberry Pi 5"],
    "rk3588": ["Rockchip RK3588"],
    "rtx2070s": ["NVIDIA GeForce RTX 2070 SUPER"],
    "rtx2080ti": ["NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"],
    "rtx3060_laptop": ["NVIDIA GeForce RTX 3060 Laptop GPU"],
    "rtx3080": ["NVIDIA GeForce RTX 3080"],
    "rtx3090": ["NVIDIA GeForce RTX 3090"],
    "rtx4070": ["NVIDIA GeForce RTX 4070"],
    "rtx4080": ["NVIDIA GeForce RTX 4080"],
    "rtx4090": ["NVIDIA GeForce RTX 4090"],
    "rtx5080": ["NVIDIA GeForce RTX 5080"],
    "rtx5090": ["NVIDIA GeForce RTX 5090"],
    "rtx_pro_6000": ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition"],
    "rtx_pro_6000_max_q": ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"],
    "rtx_pro_6000_server": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"],
    "rx7900xtx": ["AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"],
    "ryzen_3700x": ["AMD Ryzen 7 3700X 8-Core Processor"],
    "ryzen_7950x": ["AMD Ryzen 9 7950X 16-Core Processor"],
    "ryzen_9950x": ["AMD Ryzen 9 9950X 16-Core Processor"],
    "t4": ["Tesla T4", "NVIDIA Tesla T4", "NVIDIA T4"],
    "thunderx2": ["Marvell ThunderX2 CN9980"],
    "titan_rtx": ["NVIDIA TITAN RTX", "TITAN RTX"],
    "titanx_maxwell": ["NVIDIA GeForce GTX TITAN X", "GeForce GTX TITAN X"],
    "titanx_pascal": ["NVIDIA TITAN X (Pascal)", "TITAN X (Pascal)"],
    "tx2": ["NVIDIA Tegra X2"],
    "v100_pcie": ["Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"],
    "v100_sxm2": ["Tesla V100-SXM2-16GB", "NVIDIA Tesla V100-SXM2-32GB"],
    "xeon_8124m": ["Intel(R) Xeon(R) Platinum 8124M CPU @ 3.00GHz"],
    "xeon_8480": ["Intel(R) Xeon(R) Platinum 8480+"],
    "xeon_gold_5220": ["Intel(R) Xeon(R) Gold 5220 CPU @ 2.20GHz"],
    "xeon_gold_6130": ["Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz"],
    "xeon_gold_6230r": ["Intel(R) Xeon(R) Gold 6230R CPU @ 2.10GHz"],
}
OTHERS = """
NVIDIA A10G, NVIDIA A100 80GB PCIe, NVIDIA A100-SXM4-40GB MIG 1g.5gb, NVIDIA A2, NVIDIA L40, NVIDIA T400, NVIDIA H100
NVL, NVIDIA H200 NVL, NVIDIA H20-3e, NVIDIA GH200 144G HBM3e, NVIDIA RTX 6000 Ada Generation, NVIDIA GeForce RTX 3080
Laptop GPU, NVIDIA GeForce RTX 3080 Ti, NVIDIA GeForce RTX 3080 Ti Laptop GPU, NVIDIA GeForce RTX 3060, NVIDIA GeForce
RTX 3090 Ti, NVIDIA GeForce RTX 4070 SUPER, NVIDIA GeForce RTX 4070 Ti, NVIDIA GeForce RTX 4080 SUPER, NVIDIA GeForce
RTX 4090 D, NVIDIA GeForce RTX 4090 Laptop GPU, NVIDIA GeForce RTX 5090 D, NVIDIA GeForce RTX 5090 Laptop GPU, NVIDIA
GeForce RTX 2070, NVIDIA GeForce RTX 2070 with Max-Q Design, NVIDIA GeForce RTX 2080, NVIDIA GeForce GTX 1650 SUPER,
NVIDIA GeForce GTX 1650 with Max-Q Design, NVIDIA GeForce GTX 1080, NVIDIA TITAN Xp, NVIDIA TITAN V, Tesla
V100-SXM3-32GB, Tesla V100S-PCIE-32GB, Tesla V100-FHHL-16GB, Tesla P100-PCIE-16GB, Tesla P100-SXM2-16GB, Tesla K20Xm,
NVIDIA Tegra X1, AMD Radeon RX 7900 XT, AMD Radeon Graphics, AMD Instinct MI300A, AMD Instinct MI250, AMD GeForce GTX
1080 Ti, NVIDIA Radeon RX 7900 XTX, Intel EPYC 7763, AMD EPYC 7763P 64-Core Processor, AMD EPYC-Milan Processor, AMD
EPYC 7R13 Processor, AMD Ryzen 9 7950X3D 16-Core Processor, AMD Ryzen 9 7950 16-Core Processor, AMD Ryzen 7 3700U with
Radeon Vega Mobile Gfx, Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz, Intel(R) Xeon(R) Platinum 8480C, Intel(R)
Xeon(R) Gold 6230 CPU @ 2.10GHz, Intel(R) Xeon(R) Gold 5220R CPU @ 2.20GHz, Intel(R) Core(TM) i7-3770K CPU @ 3.50GHz,
Intel(R) Core(TM) i7-3770S CPU @ 3.10GHz, Intel(R) Xeon(R) Processor @ 2.10GHz, Intel Xeon Processor (Skylake; IBRS),
Apple M3 Max, Apple M3 Pro, Apple M1 Max, Cortex-A76,
Neoverse-V2, NVIDIA, AMD, Intel(R), Tesla, CPU, Processor
"""


def test_every_spec_has_a_driver_s_name():
    assert set(DRIVERS) == {spec.name for spec in list_hardware()}


@pytest.mark.parametrize(("name", "driver"), [(name, one) for name, said in DRIVERS.items() for one in said])
def test_a_driver_s_name_is_the_device(name, driver):
    for text in (driver, driver.upper(), driver.replace(" ", "_"), f" {driver} "):
        assert hardware(text).name == name


@pytest.mark.parametrize("text", [text.strip() for text in OTHERS.split(",")])
def test_other_devices_are_unknown(text):
    with refuses(UnknownNameError):
        hardware(text)


def test_no_two_specs_have_a_product_in_common():
    owner = {}
    for spec in list_hardware():
        for product in _products(spec):
            assert owner.setdefault(product, spec.name) == spec.name


def test_near_names_are_those_of_near_products():
    with refuses(UnknownNameError):
        hardware("NVIDIA GeForce RTX 3060 Ti Laptop GPU")
    with refuses(UnknownNameError):
        hardware("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz")

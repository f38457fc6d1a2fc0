"""What logs say about devices: targets, tags, drivers' names; which spec that is, and when it is nobody's guess."""

import msgspec
import pytest

from anatune.adapters.logs.devices import DeviceResolver, parse_device_name, parse_target
from anatune.core.hardware.files import hardware
from anatune.records.traces import UnfitError
from tests.wording import refuses


@pytest.mark.parametrize(
    ("text", "kind", "vendor", "name", "arch", "family"),
    [
        ("cuda", "gpu", "nvidia", "", "", ""),
        ("cuda -keys=cuda,gpu -max_num_threads=1024 -model=unknown", "gpu", "nvidia", "", "", ""),
        ("cuda -keys=cuda,gpu -arch=sm_75 -model=1080ti", "gpu", "nvidia", "1080ti", "sm_75", ""),
        ("rocm -model=gfx906", "gpu", "amd", "", "gfx906", ""),
        ("opencl -device=mali -model=rk3399", "gpu", "mali", "rk3399", "", ""),
        ("llvm -mcpu=skylake-avx512", "cpu", "", "", "skylake-avx512", ""),
        ("llvm -device=arm_cpu -model=pynq -mtriple=armv7a-linux-eabi -mattr=+neon", "cpu", "", "pynq", "", "arm"),
        ("nvidia/geforce-rtx-3090", "", "nvidia", "geforce-rtx-3090", "", ""),
        ('{"kind": "cuda", "arch": "sm_86", "tag": "", "keys": ["cuda"]}', "gpu", "nvidia", "", "sm_86", ""),
        ({"kind": "cuda", "tag": "nvidia/nvidia-a100"}, "gpu", "nvidia", "nvidia-a100", "", ""),
        ("hexagon", "hexagon", "", "", "", ""),
    ],
)
def test_targets(text, kind, vendor, name, arch, family):
    said = parse_target(text)
    assert said[1:] == (kind, vendor, name, arch, family)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA_A100-PCIE-40GB", "a100_pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100_sxm"),
        ("Tesla V100-SXM2-16GB", "v100_sxm2"),
        ("Tesla V100-PCIE-32GB", "v100_pcie"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "rtx3060_laptop"),
        ("NVIDIA TITAN RTX", "titan_rtx"),
        ("NVIDIA TITAN X (Pascal)", "titanx_pascal"),
        ("GeForce GTX TITAN X", "titanx_maxwell"),
        ("NVIDIA RTX A6000", "a6000"),
        ("Tesla K20c", "k20"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA GeForce RTX 2070 SUPER", "rtx2070s"),
        ("Intel(R) Core(TM) i7-3770 CPU", "i7_3770"),
    ],
)
def test_names_that_drivers_give(name, spec):
    assert DeviceResolver(None).resolve(parse_device_name(name)).name == spec
    assert DeviceResolver(hardware(spec)).resolve(parse_device_name(name)).name == spec


@pytest.mark.parametrize(
    "name",
    [
        "A100",
        "Tesla V100",
        "h100",
        "titanx",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA GeForce RTX 3060",
        "NVIDIA GeForce RTX 2070",
        "TITAN Xp",
        "gfx906:sramecc+:xnack-",
        "",
    ],
)
def test_names_that_are_no_spec_are_not_guessed(name):
    with refuses(UnfitError):
        DeviceResolver(None).resolve(parse_device_name(name))


@pytest.mark.parametrize("name", ["l4", "a10", "h20", "mi250x"])
def test_a_name_is_no_beginning_of_a_longer_word(name):
    assert DeviceResolver(None).resolve(parse_device_name(name)).name == name  # and not one of l40s, a100_sxm, h200


def test_a_name_of_several_narrows_what_is_given():
    assert DeviceResolver(hardware("v100_pcie")).resolve(parse_device_name("Tesla V100")).name == "v100_pcie"
    with refuses(UnfitError):
        DeviceResolver(hardware("rtx3090")).resolve(parse_device_name("Tesla V100"))
    assert DeviceResolver(hardware("mi50")).resolve(parse_device_name("gfx906:sramecc+:xnack-")).name == "mi50"


def test_an_architecture_narrows_a_name():
    assert DeviceResolver(None).resolve(parse_target("cuda -arch=sm_61 -model=titanx")).name == "titanx_pascal"
    with refuses(UnfitError):
        DeviceResolver(None).resolve(parse_target("cuda -arch=sm_70 -model=v100"))


def test_an_architecture_never_identifies():
    with refuses(UnfitError):
        DeviceResolver(None).resolve(parse_target("cuda -arch=sm_87"))  # the Orin is the only spec that has it


def test_a_spec_of_the_users_own_goes_by_its_alias():
    mine = msgspec.structs.replace(hardware("cortex_a72"), name="mine", aliases=("bcm2837",))
    said = parse_target("llvm -device=arm_cpu -model=bcm2837 -mtriple=armv7l-linux-gnueabihf")
    assert DeviceResolver(mine).resolve(said) is mine
    assert DeviceResolver(None, [mine]).resolve(said) is mine


@pytest.mark.parametrize(
    ("target", "spec", "text"),
    [
        ("llvm -mcpu=skylake-avx512", "xeon_gold_6230r", ""),
        ("llvm -mcpu=core-avx2", "xeon_8124m", ""),
        ("llvm", "cortex_a72", ""),
        ("llvm -mcpu=skylake-avx512", "ryzen_3700x", "avx2 at most"),
        ("llvm -mcpu=skylake-avx512", "cortex_a72", "compiled for skylake-avx512"),
        ("llvm -mcpu=cortex-a72", "xeon_8124m", "compiled for cortex-a72"),
        ("llvm -mtriple=aarch64-linux-gnu", "xeon_8124m", "compiled for arm"),
        ("cuda", "mi50", "device of nvidia"),
        ("hexagon", "xeon_8124m", "target 'hexagon'"),
    ],
)
def test_processors_that_code_runs_on(target, spec, text):
    devices = DeviceResolver(hardware(spec))
    if not text:
        assert devices.resolve(parse_target(target)).name == spec
        return
    with refuses(UnfitError):
        devices.resolve(parse_target(target))

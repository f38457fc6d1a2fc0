"""Names of files, as the servers' own loaders have them (tried against vLLM 0.33 and SGLang 0.5.23 on 2026-11-25)."""

import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError, UnknownNameError
from anatune.servers.names import check_version, device_name, file_name, folder_version, parse_name, version_folder
from anatune.servers.shapes import Experts, Product
from tests.wording import refuses

SCALED = Experts(256, 256, 7168, 8, "fp8_w8a8", (128, 128))
PACKED = Experts(384, 256, 7168, 8, "int4_w4a16", group=32)


@pytest.mark.parametrize(
    ("server", "shape", "device", "name"),
    [
        ("vllm", Experts(8, 7168, 4096, 2), "NVIDIA_L40S", "E=8,N=7168,device_name=NVIDIA_L40S.json"),
        (
            "vllm", SCALED, "NVIDIA_H200_NVL",
            "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
        (
            "sglang", SCALED, "NVIDIA_H200_NVL",
            "E=256,N=256,device_name=NVIDIA_H200_NVL,dtype=fp8_w8a8,block_shape=[128, 128].json",
        ),
        (
            "vllm", Product(1536, 7168), "NVIDIA_B200",
            "N=1536,K=7168,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
        ("vllm", PACKED, "NVIDIA_H200", "E=384,N=256,device_name=NVIDIA_H200,dtype=int4_w4a16.json"),
        ("sglang", PACKED, "NVIDIA_H200", "E=384,N=128,device_name=NVIDIA_H200,dtype=int4_w4a16.json"),
    ],
)  # fmt: skip
def test_names(server, shape, device, name):
    assert file_name(server, shape, device) == name
    said = parse_name(name)
    assert said["device"] in device
    assert ("experts" in said) == isinstance(shape, Experts)
    assert ("block_n" in said) == (shape.block is not None)


def test_a_file_of_the_down_product():
    assert file_name("sglang", SCALED, "X", down=True).endswith("block_shape=[128, 128]_down.json")


def test_devices_are_called_as_their_driver_calls_them():
    assert device_name(hardware("h100_sxm")) == "NVIDIA_H100_80GB_HBM3"
    assert device_name(hardware("rtx_pro_6000")) == "NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition"
    assert device_name(hardware("h200"), "NVIDIA H200 NVL") == "NVIDIA_H200_NVL"
    with refuses(UnknownNameError):
        device_name(hardware("gtx1080ti"))


@pytest.mark.parametrize(
    ("version", "numbers", "folder"),
    [
        ("3.6.0", (3, 6), "3_6_0"),
        ("3.4.0+git0b5f1f2e", (3, 4), "3_4_0+git0b5f1f2e"),
        ("3.4.0+gitf7888497.rocm", (3, 4), "3_4_0+gitf7888497_rocm"),
        ("2.1.0.post1", (2, 1), "2_1_0_post1"),
        ("3.0.0.dev20240101", (3, 0), "3_0_0_dev20240101"),
        ("3.7.0a0", (3, 7), "3_7_0a0"),
        ("3.7.0rc2+cu130", (3, 7), "3_7_0rc2+cu130"),
    ],
)
def test_versions_of_triton_as_it_says_them(version, numbers, folder):
    assert check_version(version) == numbers
    assert version_folder(version) == f"configs/triton_{folder}"
    assert folder_version(f"triton_{folder}") == version


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3.6",
        "3.6.0/../x",
        "3.6.0+",
        "3.6.0+a/b",
        "v3.6.0",
        "3.6.0 ",
        "3.6.0\n",
        "3.6.0+" + "a" * 200,
        "\u0663.6.0",
    ],
)
def test_what_is_no_version(text):
    with refuses(SpaceError):
        check_version(text)
    assert folder_version(text) is None
    assert folder_version(f"triton_{text}") is None


def test_what_is_no_name():
    assert version_folder("3.6.0") == "configs/triton_3_6_0"
    for call, argument in ((version_folder, "3.6"), (parse_name, "config.json")):
        with pytest.raises(SpaceError):
            call(argument)

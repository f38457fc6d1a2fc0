"""What servers call devices and files of configurations.

Source: the loaders of vLLM 0.33 (``fused_moe.get_config_file_name``, ``fp8_utils.get_w8a8_block_fp8_configs``) and
SGLang 0.5.23 (``fused_moe_triton_config.get_config_file_name``), as their packages have them.
"""

from __future__ import annotations

import re
from typing import Literal

from anatune.adapters.serving.shapes import Experts, Product
from anatune.arguments import shown
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpaceError, UnknownNameError

__all__ = ["Server", "check_version", "device_name", "file_name", "folder_version", "parse_name", "version_folder"]

Server = Literal["vllm", "sglang"]

_DRIVER_NAMES = {
    "a10": "NVIDIA A10",
    "a100_pcie": "NVIDIA A100-PCIE-40GB",
    "a100_sxm": "NVIDIA A100-SXM4-40GB",
    "a100_sxm_80gb": "NVIDIA A100-SXM4-80GB",
    "a30": "NVIDIA A30",
    "a6000": "NVIDIA RTX A6000",
    "b200": "NVIDIA B200",
    "gh200": "NVIDIA GH200 480GB",
    "h100_pcie": "NVIDIA H100 PCIe",
    "h100_sxm": "NVIDIA H100 80GB HBM3",
    "h20": "NVIDIA H20",
    "h200": "NVIDIA H200",
    "l4": "NVIDIA L4",
    "l40s": "NVIDIA L40S",
    "mi300x": "AMD Instinct MI300X",
    "mi325x": "AMD Instinct MI325X",
    "rtx3080": "NVIDIA GeForce RTX 3080",
    "rtx3090": "NVIDIA GeForce RTX 3090",
    "rtx4070": "NVIDIA GeForce RTX 4070",
    "rtx4080": "NVIDIA GeForce RTX 4080",
    "rtx4090": "NVIDIA GeForce RTX 4090",
    "rtx5080": "NVIDIA GeForce RTX 5080",
    "rtx5090": "NVIDIA GeForce RTX 5090",
    "rtx_pro_6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
"""Our device -> what its driver calls it."""
_NAME = re.compile(
    r"(?:E=(?P<experts>\d+),N=(?P<n>\d+)|N=(?P<rows>\d+),K=(?P<k>\d+)),device_name=(?P<device>[^,]+)"
    r"(?:,dtype=(?P<dtype>[^,]+))?(?:,block_shape=\[(?P<block_n>\d+), ?(?P<block_k>\d+)\])?"
    r"(?:,per_channel_quant=True)?(?P<down>_down)?\.json"
)


def device_name(spec: GpuSpec, given: str | None = None) -> str:
    """Return a device's name in files: as its driver says it, or as `given`, with "_" for blanks.

    Raises
    ------
    UnknownNameError
        What the driver calls it is not known, and none is given.
    """
    name = given or _DRIVER_NAMES.get(spec.name)
    if name is None:
        raise UnknownNameError(
            f"{spec.name}: what its driver calls it is not known here; say --device-name NAME, as torch.cuda."
            "get_device_name() or `nvidia-smi -L` prints it"
        )
    return re.sub(r"[\s/]+", "_", name.strip())


def file_name(server: Server, shape: Experts | Product, device: str, *, down: bool = False) -> str:
    """Return the name of the file that a server looks for; `device`: of `device_name`.

    Groups of scales are in no name. SGLang counts the bytes of a row of 4-bit weights, so that N is half their number.
    """
    blank = " " if server == "sglang" else ""
    block = shape.block
    blocks = f",block_shape=[{block[0]},{blank}{block[1]}]" if block else ""
    if isinstance(shape, Product):
        return f"N={shape.n},K={shape.k},device_name={device},dtype={shape.dtype}{blocks}.json"
    if server == "vllm" and "H200" in device.split("_"):
        device = "NVIDIA_H200"  # vLLM does so with files of experts, not with those of block-scaled products
    kind = "" if shape.dtype == "auto" else f",dtype={shape.dtype}"
    end = "_down" if down else ""
    packed = 2 if server == "sglang" and shape.dtype == "int4_w4a16" else 1
    return f"E={shape.experts},N={shape.intermediate // packed},device_name={device}{kind}{blocks}{end}.json"


def version_folder(version: str) -> str:
    """Return SGLang's folder of a version of Triton, below that of SGLANG_MOE_CONFIG_DIR.

    Raises
    ------
    SpaceError
        It is no version, such as 3.6.0.
    """
    check_version(version)
    return f"configs/triton_{version.replace('.', '_')}"


def check_version(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version of Triton.

    Raises
    ------
    SpaceError
        It is no version, such as 3.6.0.
    """
    if not re.fullmatch(r"\d{1,4}\.\d{1,4}\.\d{1,4}", version):
        raise SpaceError(f"--triton-version is {shown(version)}, expected what triton.__version__ says, such as 3.6.0")
    major, minor, _ = map(int, version.split("."))
    return major, minor


def folder_version(folder: str) -> str | None:
    """Return the version of Triton that a folder of SGLang's is called after; None: it is none of these."""
    found = re.fullmatch(r"triton_(\d+)_(\d+)_(\d+)", folder)
    return ".".join(found.groups()) if found else None


def parse_name(name: str) -> dict[str, str]:
    """Return what a file's name says: experts and n, or rows (its N) and k; device, dtype, block_n, block_k, down.

    Raises
    ------
    SpaceError
        It is no name of a configuration file.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise SpaceError(
            f"{shown(name)} is no name of a configuration file, expected E=..,N=..,device_name=..[,dtype=..].json or "
            "N=..,K=..,device_name=..,dtype=..,block_shape=[..].json"
        )
    return {key: value for key, value in found.groupdict().items() if value is not None}

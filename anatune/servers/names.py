"""The servers' names of devices and of files of configurations.

Source: the loaders of vLLM 0.33 (``fused_moe.get_config_file_name``, ``fp8_utils.get_w8a8_block_fp8_configs``) and
SGLang 0.5.23 (``fused_moe_triton_config.get_config_file_name``), as in their packages.
"""

from __future__ import annotations

import re
from typing import Literal

from anatune.arguments import quote
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpaceError, UnknownNameError
from anatune.servers.shapes import Experts, Product

Server = Literal["vllm", "sglang"]
TITLES: dict[Server, str] = {"vllm": "vLLM", "sglang": "SGLang"}
"""The servers' names in their own spelling."""

_DRIVER_NAMES = {
    "a100_pcie": "NVIDIA A100-PCIE-40GB",
    "a100_sxm": "NVIDIA A100-SXM4-40GB",
    "a100_sxm_80gb": "NVIDIA A100-SXM4-80GB",
    "a30": "NVIDIA A30",
    "gh200": "NVIDIA GH200 480GB",
    "h100_pcie": "NVIDIA H100 PCIe",
    "h100_sxm": "NVIDIA H100 80GB HBM3",
    "h20": "NVIDIA H20",
    "h200": "NVIDIA H200",
    "rtx3080": "NVIDIA GeForce RTX 3080",
}
"""The drivers' names of devices."""
_AS_MODEL = (
    "a10", "a6000", "b200", "l4", "l40s", "mi300x", "mi325x", "rtx3090", "rtx4070", "rtx4080", "rtx4090", "rtx5080",
    "rtx5090", "rtx_pro_6000",
)  # fmt: skip
"""The devices whose driver's name is the model in the spec."""
_NAME = re.compile(
    r"(?:E=(?P<experts>\d+),N=(?P<n>\d+)|N=(?P<rows>\d+),K=(?P<k>\d+)),device_name=(?P<device>[^,]+)"
    r"(?:,dtype=(?P<dtype>[^,]+))?(?:,block_shape=\[(?P<block_n>\d+), ?(?P<block_k>\d+)\])?"
    r"(?:,per_channel_quant=True)?(?P<down>_down)?\.json"
)
_VERSION = re.compile(
    r"(?!.{100})(\d{1,4})\.(\d{1,4})\.\d{1,4}(?:[-._]?(?:a|alpha|b|beta|c|rc)\d{0,9})?(?:[-._]?post\d{0,9})?"
    r"(?:[-._]?dev\d{0,9})?(?:\+[a-z0-9]+(?:[-._][a-z0-9]+)*)?",
    re.ASCII | re.IGNORECASE,
)
"""A release, pre-release, post-release or build of Triton: 3.6.0, 3.6.0rc1, 3.4.0+git0b5f1f2e. Source: PEP 440."""


def device_name(spec: GpuSpec, given: str | None = None) -> str:
    """Return a device's name in files: the driver's name or `given`, with "_" for blanks.

    Raises
    ------
    UnknownNameError
        The driver's name is not known and not given.
    """
    name = given or (spec.model if spec.name in _AS_MODEL else _DRIVER_NAMES.get(spec.name))
    if name is None:
        raise UnknownNameError(
            f"{spec.name}: the driver's name of this device is not known; give it with --device-name NAME, as "
            "torch.cuda.get_device_name() or `nvidia-smi -L` prints it"
        )
    return re.sub(r"[\s/]+", "_", name.strip())


def file_name(server: Server, shape: Experts | Product, device: str, *, down: bool = False) -> str:
    """Return the name of the file that a server reads; `device` is the result of `device_name`.

    Names do not contain groups of scales. SGLang's N is the number of bytes in a row of 4-bit weights, half the size.
    """
    blank = " " if server == "sglang" else ""
    block = shape.block
    blocks = f",block_shape=[{block[0]},{blank}{block[1]}]" if block else ""
    if isinstance(shape, Product):
        return f"N={shape.n},K={shape.k},device_name={device},dtype={shape.dtype}{blocks}.json"
    if server == "vllm" and "H200" in device.split("_"):
        device = "NVIDIA_H200"  # in vLLM only for files of experts
    kind = "" if shape.dtype == "auto" else f",dtype={shape.dtype}"
    end = "_down" if down else ""
    packed = 2 if server == "sglang" and shape.dtype == "int4_w4a16" else 1
    return f"E={shape.experts},N={shape.intermediate // packed},device_name={device}{kind}{blocks}{end}.json"


def version_folder(version: str) -> str:
    """Return SGLang's folder for a version of Triton (in full), below that of SGLANG_MOE_CONFIG_DIR.

    Raises
    ------
    SpaceError
        The text is not a version such as 3.6.0.
    """
    check_version(version)
    return f"configs/triton_{version.replace('.', '_')}"


def check_version(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version of Triton.

    Raises
    ------
    SpaceError
        The text is not a version such as 3.6.0.
    """
    hit = _VERSION.fullmatch(version)
    if hit is None:
        raise SpaceError(f"--triton-version is {quote(version)}, expected a value of triton.__version__ as 3.6.0")
    return int(hit[1]), int(hit[2])


def folder_version(folder: str) -> str | None:
    """Return the version of Triton in the name of one of SGLang's folders, or None for other folders."""
    version = folder.removeprefix("triton_").replace("_", ".")
    return version if folder.startswith("triton_") and _VERSION.fullmatch(version) else None


def parse_name(name: str) -> dict[str, str]:
    """Return the fields of a file's name: experts and n, or rows (its N) and k; device, dtype, block_n, block_k, down.

    Raises
    ------
    SpaceError
        The name is not that of a configuration file.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise SpaceError(
            f"{quote(name)} is not a name of configurations, expected E=..,N=..,device_name=..[,dtype=..].json or "
            "N=..,K=..,device_name=..,dtype=..,block_shape=[..].json"
        )
    return {key: value for key, value in match.groupdict().items() if value is not None}

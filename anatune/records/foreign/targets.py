"""What a TVM target or a device's name in a log says: kind, vendor, name, architecture."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from anatune.records.traces import Json

__all__ = ["DeviceStatement", "device_name", "parse_target"]

_KINDS = {
    "cuda": ("gpu", "nvidia"), "nvptx": ("gpu", "nvidia"), "rocm": ("gpu", "amd"), "hip": ("gpu", "amd"),
    "opencl": ("gpu", ""), "vulkan": ("gpu", ""), "metal": ("gpu", ""), "webgpu": ("gpu", ""), "llvm": ("cpu", ""),
    "c": ("cpu", ""),
}  # fmt: skip
"""Kind of a TVM target -> kind of device, vendor."""
_ARCH = re.compile(r"(sm_\d+[a-z]?|gfx[0-9a-f]{3,4})\b")
_OTHER_GPUS = ("mali", "bifrost", "intel_graphics", "adreno")
"""TVM's -device of GPUs of other vendors."""
_NAMELESS = ("", "unknown", "generic", "none", "null")


class DeviceStatement(NamedTuple):
    """What is said about a device; "" is not said.

    Attributes
    ----------
    text : str
        As the log has it.
    kind : str
        "gpu", "cpu", or the kind of a target that is neither.
    vendor : str
        "nvidia", "amd".
    name : str
        A product's name; anything that people call it.
    arch : str
        Architecture of a GPU ("sm_86", "gfx906"), processor of a CPU as LLVM calls it ("skylake-avx512").
    family : str
        Instruction set of a CPU: "x86" or "arm".
    """

    text: str
    kind: str = ""
    vendor: str = ""
    name: str = ""
    arch: str = ""
    family: str = ""


def parse_target(value: Json) -> DeviceStatement:
    """Return what a TVM target says: "cuda -model=1080ti", "nvidia/geforce-rtx-3090", {"kind": "cuda", "arch": ..}.

    Raises
    ------
    ValueError
        It is no target.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = msgspec.json.decode(value)
    if isinstance(value, dict):
        given = {str(key): str(one) for key, one in value.items() if isinstance(one, str | int)}
        shown = [f"-{key}={given[key]}" for key in ("tag", "arch", "mcpu", "model") if given.get(key)]
        text = " ".join([given.get("kind", ""), *shown])
        words = [given.get("kind", "")]
    elif isinstance(value, str):
        text, words = value, value.split() or [""]
        given = dict(word[1:].partition("=")[::2] for word in words[1:] if word.startswith("-"))
    else:
        raise ValueError("no target")
    first = words[0]
    if "/" in first:  # a tag of TVM's: vendor/product
        return DeviceStatement(text, "", first.partition("/")[0], first.partition("/")[2])
    kind, vendor = _KINDS.get(first, (first, ""))
    name = given.get("tag", "").partition("/")[2] or given.get("model", "")
    arch = given.get("arch") or given.get("mcpu", "")
    if found := _ARCH.match(name):  # TopHub: rocm -model=gfx906
        name, arch = "", found[0]
    if kind == "gpu" and not vendor and given.get("device") in _OTHER_GPUS:
        vendor = given["device"]
    triple = given.get("mtriple", "") or given.get("target", "")
    family = ""
    if kind == "cpu":
        is_arm = given.get("device") == "arm_cpu" or re.match(r"(arm|aarch64)", triple)
        family = "arm" if is_arm else "x86" if triple.startswith("x86_64") else ""
    return DeviceStatement(text, kind, vendor, "" if name.lower() in _NAMELESS else name, arch, family)


def device_name(name: Json) -> DeviceStatement | None:
    """Return what a device's name as drivers give it says, None where there is none."""
    text = str(name or "").replace("_", " ").strip()
    if text.lower() in _NAMELESS:
        return None
    if found := _ARCH.match(text):  # ROCm's OpenCL calls a device "gfx906:sramecc+:xnack-"
        return DeviceStatement(text, "gpu", arch=found[0])
    return DeviceStatement(text, name=text)

"""The device of a log: the statement in the log (a TVM target or a name), and the spec that it means.

A statement is checked against the device that the user gives. A device is never guessed.

A name means the spec with this name, alias or product name. If other specs' names begin with it ("v100" for the SXM2
and the PCIe card), the user has to give the device. An architecture excludes specs but never selects one, not even if
only one spec has it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anatune.core.hardware.files import list_hardware
from anatune.core.hardware.spec import CpuSpec, HardwareSpec
from anatune.records.traces import Json, UnfitError

_KINDS = {
    "cuda": ("gpu", "nvidia"), "nvptx": ("gpu", "nvidia"), "rocm": ("gpu", "amd"), "hip": ("gpu", "amd"),
    "opencl": ("gpu", ""), "vulkan": ("gpu", ""), "metal": ("gpu", ""), "webgpu": ("gpu", ""), "llvm": ("cpu", ""),
    "c": ("cpu", ""),
}  # fmt: skip
"""The kind of a TVM target -> kind of device, vendor."""
_ARCH = re.compile(r"(sm_\d+[a-z]?|gfx[0-9a-f]{3,4})\b")
_OTHER_GPUS = ("mali", "bifrost", "intel_graphics", "adreno")
"""The values of TVM's -device for GPUs of other vendors."""
_NAMELESS = ("", "unknown", "generic", "none", "null")


class DeviceStatement(NamedTuple):
    """The statement of a log about its device; an attribute is "" if the log does not state it.

    Attributes
    ----------
    text : str
        The text in the log.
    kind : str
        "gpu", "cpu", or the kind of a target that is neither.
    vendor : str
        "nvidia" or "amd".
    name : str
        The name of the product, in any spelling.
    arch : str
        The architecture of a GPU ("sm_86", "gfx906"), or LLVM's name of a CPU's processor ("skylake-avx512").
    family : str
        The instruction set of a CPU: "x86" or "arm".
    """

    text: str
    kind: str = ""
    vendor: str = ""
    name: str = ""
    arch: str = ""
    family: str = ""


def parse_target(value: Json) -> DeviceStatement:
    """Read a TVM target: "cuda -model=1080ti", "nvidia/geforce-rtx-3090", or {"kind": "cuda", "arch": ..}.

    Raises
    ------
    ValueError
        The value is not a target.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = msgspec.json.decode(value)
    if isinstance(value, dict):
        options = {str(key): str(option) for key, option in value.items() if isinstance(option, str | int)}
        option_texts = [f"-{key}={options[key]}" for key in ("tag", "arch", "mcpu", "model") if options.get(key)]
        text = " ".join([options.get("kind", ""), *option_texts])
        words = [options.get("kind", "")]
    elif isinstance(value, str):
        text, words = value, value.split() or [""]
        options = dict(word[1:].partition("=")[::2] for word in words[1:] if word.startswith("-"))
    else:
        raise ValueError("no target")
    first = words[0]
    if "/" in first:  # one of TVM's tags: vendor/product
        return DeviceStatement(text, "", first.partition("/")[0], first.partition("/")[2])
    kind, vendor = _KINDS.get(first, (first, ""))
    name = options.get("tag", "").partition("/")[2] or options.get("model", "")
    arch = options.get("arch") or options.get("mcpu", "")
    if arch_match := _ARCH.match(name):  # TopHub: rocm -model=gfx906
        name, arch = "", arch_match[0]
    if kind == "gpu" and not vendor and options.get("device") in _OTHER_GPUS:
        vendor = options["device"]
    triple = options.get("mtriple", "") or options.get("target", "")
    family = ""
    if kind == "cpu":
        is_arm = options.get("device") == "arm_cpu" or re.match(r"(arm|aarch64)", triple)
        family = "arm" if is_arm else "x86" if triple.startswith("x86_64") else ""
    return DeviceStatement(text, kind, vendor, "" if name.lower() in _NAMELESS else name, arch, family)


def parse_device_name(name: Json) -> DeviceStatement | None:
    """Read the name of a device as drivers report it; return None if there is none."""
    text = str(name or "").replace("_", " ").strip()
    if text.lower() in _NAMELESS:
        return None
    if arch_match := _ARCH.match(text):  # ROCm's OpenCL calls a device "gfx906:sramecc+:xnack-"
        return DeviceStatement(text, "gpu", arch=arch_match[0])
    return DeviceStatement(text, name=text)


NO_DEVICE = "the log does not say on which device it was measured; name the device with --hw NAME"
_VENDOR_WORDS = {
    "nvidia",
    "amd",
    "ati",
    "intel",
    "geforce",
    "tesla",
    "quadro",
    "radeon",
    "instinct",
    "gpu",
    "cpu",
    "r",
    "tm",
}
"""The words of product names that do not help to identify a device."""
_X86_LEVELS = ("sse", "avx", "avx2", "avx512")
_X86 = {
    "x86-64": "sse", "x86-64-v2": "sse", "nehalem": "sse", "westmere": "sse", "corei7": "sse", "sandybridge": "avx",
    "ivybridge": "avx", "corei7-avx": "avx", "core-avx-i": "avx", "haswell": "avx2", "broadwell": "avx2",
    "skylake": "avx2", "core-avx2": "avx2", "alderlake": "avx2", "x86-64-v3": "avx2", "znver1": "avx2",
    "znver2": "avx2", "znver3": "avx2", "skylake-avx512": "avx512", "cannonlake": "avx512", "cascadelake": "avx512",
    "cooperlake": "avx512", "icelake-client": "avx512", "icelake-server": "avx512", "rocketlake": "avx512",
    "tigerlake": "avx512", "sapphirerapids": "avx512", "emeraldrapids": "avx512", "graniterapids": "avx512",
    "x86-64-v4": "avx512", "knl": "avx512", "znver4": "avx512", "znver5": "avx512",
}  # fmt: skip
"""The widest vectors of LLVM's processors. Source: LLVM's X86.td (features of each processor)."""
_ARM = re.compile(r"(cortex|neoverse|apple|thunderx|a64fx|carmel|kryo|exynos|ampere|grace|falkor|tsv110)")


class DeviceResolver:
    """Finds the specs of the devices that a log states; reads all specs once.

    Parameters
    ----------
    given : HardwareSpec, optional
        The device that the user names for the log.
    specs : sequence of HardwareSpec, optional
        All known specs, by default `list_hardware()`.
    """

    def __init__(self, given: HardwareSpec | None, specs: Sequence[HardwareSpec] | None = None) -> None:
        self._given = given
        self._specs = specs
        self._resolved_specs: dict[DeviceStatement | None, HardwareSpec | str] = {}

    def resolve(self, stated: DeviceStatement | None) -> HardwareSpec:
        """Return the spec of a stated device.

        Raises
        ------
        UnfitError
            It is not the given device, it is unknown, or several specs fit. The text says which.
        """
        if stated not in self._resolved_specs:
            try:
                self._resolved_specs[stated] = self._resolve(stated)
            except UnfitError as reason:
                self._resolved_specs[stated] = str(reason)
        matches = self._resolved_specs[stated]
        if isinstance(matches, str):
            raise UnfitError(matches)
        return matches

    def _resolve(self, stated: DeviceStatement | None) -> HardwareSpec:
        given = self._given
        if given is not None:
            if stated is not None:
                if stated.name and given not in self._find(stated) and _canonical(stated.name) not in _all_names(given):
                    raise UnfitError(f"measured on {stated.name!r}, not on --hw {given.name}")
                _check_kind(stated, given)
            return given
        if stated is None or not stated.name:
            raise UnfitError(NO_DEVICE if stated is None else f"{stated.text!r}: {NO_DEVICE}")
        matches = self._find(stated)
        if not matches:
            raise UnfitError(f"device {stated.name!r} has no spec; name one of `anatune hw list` with --hw")
        if len(matches) > 1:  # the architecture may exclude all but one
            matches = [spec for spec in matches if _is_consistent(stated, spec)] or matches
        if len(matches) > 1:
            names = " or ".join(spec.name for spec in matches)
            raise UnfitError(f"device {stated.name!r} may be {names}; import again with --hw and the right name")
        _check_kind(stated, matches[0])
        return matches[0]

    def _find(self, stated: DeviceStatement) -> list[HardwareSpec]:
        """Return the specs that the stated name may mean."""
        if self._specs is None:
            self._specs = list_hardware()
        wanted = _canonical(stated.name)
        named = [spec for spec in self._specs if wanted in map(_canonical, (spec.name, *spec.aliases))]
        if not named:
            return [spec for spec in self._specs if wanted in _all_names(spec)]
        others = [spec for spec in self._specs if spec not in named and wanted in _short_forms(spec.name)]
        return named + others


def _canonical(name: str) -> str:
    """Return a name in lower case without vendors, spaces and punctuation; "16 GB" becomes "16gb"."""
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in _VENDOR_WORDS]


def _short_forms(name: str) -> set[str]:
    """Return the short forms of a name: "v100" and "v100sxm2" for v100_sxm2, but not "l4" for l40s."""
    return set(itertools.accumulate(_words(name)))


def _all_names(spec: HardwareSpec) -> set[str]:
    return {_canonical(name) for name in (spec.name, *spec.aliases, spec.model, spec.model.partition("(")[0])}


def _is_consistent(stated: DeviceStatement, spec: HardwareSpec) -> bool:
    try:
        _check_kind(stated, spec)
    except UnfitError:
        return False
    return True


def _check_kind(stated: DeviceStatement, spec: HardwareSpec) -> None:
    """Raise UnfitError if the statement contradicts the spec."""
    if stated.kind not in ("", spec.kind):
        raise UnfitError(f"measured with target {stated.text.split()[0]!r}, but {spec.name} is a {spec.kind.upper()}")
    if spec.kind == "gpu":
        if stated.vendor not in ("", spec.vendor):
            raise UnfitError(f"measured on a device of {stated.vendor}, but {spec.name} is of {spec.vendor}")
        if stated.arch and stated.arch != spec.arch:
            raise UnfitError(f"measured on {stated.arch}, but {spec.name} has {spec.arch}")
    else:
        _check_cpu(stated, spec)


def _check_cpu(stated: DeviceStatement, spec: CpuSpec) -> None:
    """Raise UnfitError if code for the stated processor cannot run on the CPU."""
    family = "arm" if spec.compute.isa in ("neon", "sve") else "x86"
    level = _X86.get(stated.arch)
    named_family = stated.family or ("x86" if level else "arm" if _ARM.match(stated.arch) else "")
    if named_family not in ("", family):
        raise UnfitError(f"compiled for {stated.arch or named_family}, but {spec.name} has {spec.arch}")
    if level and _X86_LEVELS.index(level) > _X86_LEVELS.index(spec.compute.isa):
        raise UnfitError(f"compiled for {stated.arch} ({level}), but {spec.name} has at most {spec.compute.isa}")

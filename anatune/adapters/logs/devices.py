"""Which device a log is of: what it says, in a TVM target or a name, and which spec that is.

What a log states is believed, checked against the device given, and never guessed.

A name means the spec that has it (as name, alias or product), unless it is also the beginning of other specs' names
("v100": of the SXM2 and the PCIe card): then the device has to be given. An architecture narrows and never identifies,
not even where only one spec has it.
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


NO_DEVICE = "the log does not say which device it was measured on: give it with --hw NAME"
_MAKERS = {"nvidia", "amd", "ati", "intel", "geforce", "tesla", "quadro", "radeon", "instinct", "gpu", "cpu", "r", "tm"}
"""Words of product names that say nothing more about a device."""
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
"""LLVM's processors -> widest vectors. Source: LLVM's X86.td (features of each processor)."""
_ARM = re.compile(r"(cortex|neoverse|apple|thunderx|a64fx|carmel|kryo|exynos|ampere|grace|falkor|tsv110)")


class Devices:
    """Resolves what a log says about devices; the specs are read once.

    Parameters
    ----------
    given : HardwareSpec, optional
        The device that the user names for the log.
    specs : sequence of HardwareSpec, optional
        What there is, `list_hardware()` by default.
    """

    def __init__(self, given: HardwareSpec | None, specs: Sequence[HardwareSpec] | None = None) -> None:
        self._given = given
        self._specs = specs
        self._known: dict[DeviceStatement | None, HardwareSpec | str] = {}

    def resolve(self, statement: DeviceStatement | None) -> HardwareSpec:
        """Return the spec of a stated device.

        Raises
        ------
        UnfitError
            It is another one than the given, unknown, or several may be meant; the text says which.
        """
        if statement not in self._known:
            try:
                self._known[statement] = self._resolved(statement)
            except UnfitError as reason:
                self._known[statement] = str(reason)
        meant = self._known[statement]
        if isinstance(meant, str):
            raise UnfitError(meant)
        return meant

    def _resolved(self, said: DeviceStatement | None) -> HardwareSpec:
        given = self._given
        if given is not None:
            if said is not None:
                if said.name and given not in self._named(said) and _canonical(said.name) not in _own_names(given):
                    raise UnfitError(f"measured on {said.name!r}, not on --hw {given.name}")
                _check_kind(said, given)
            return given
        if said is None or not said.name:
            raise UnfitError(NO_DEVICE if said is None else f"{said.text!r}: {NO_DEVICE}")
        meant = self._named(said)
        if not meant:
            raise UnfitError(f"device {said.name!r} has no spec: see `anatune hw list`, or add one with that alias")
        if len(meant) > 1:  # an architecture beside the name may settle it
            meant = [spec for spec in meant if _fits(said, spec)] or meant
        if len(meant) > 1:
            names = " or ".join(spec.name for spec in meant)
            raise UnfitError(f"device {said.name!r} may be {names}: import again with --hw and the right one")
        _check_kind(said, meant[0])
        return meant[0]

    def _named(self, said: DeviceStatement) -> list[HardwareSpec]:
        """Return the specs that a name may mean."""
        if self._specs is None:
            self._specs = list_hardware()
        wanted = _canonical(said.name)
        named = [spec for spec in self._specs if wanted in map(_canonical, (spec.name, *spec.aliases))]
        if not named:
            return [spec for spec in self._specs if wanted in _own_names(spec)]
        others = [spec for spec in self._specs if spec not in named and wanted in _beginnings(spec.name)]
        return named + others


def _canonical(name: str) -> str:
    """Return a name without makers' words, punctuation and case; "16 GB" is "16gb"."""
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in _MAKERS]


def _beginnings(name: str) -> set[str]:
    """Return what a name may be shortened to: "v100" and "v100sxm2" for v100_sxm2, but not "l4" for l40s."""
    return set(itertools.accumulate(_words(name)))


def _own_names(spec: HardwareSpec) -> set[str]:
    return {_canonical(name) for name in (spec.name, *spec.aliases, spec.model, spec.model.partition("(")[0])}


def _fits(said: DeviceStatement, spec: HardwareSpec) -> bool:
    try:
        _check_kind(said, spec)
    except UnfitError:
        return False
    return True


def _check_kind(said: DeviceStatement, spec: HardwareSpec) -> None:
    """Raise UnfitError if a statement contradicts a spec."""
    if said.kind not in ("", spec.kind):
        raise UnfitError(f"measured with target {said.text.split()[0]!r}, but {spec.name} is a {spec.kind.upper()}")
    if spec.kind == "gpu":
        if said.vendor not in ("", spec.vendor):
            raise UnfitError(f"measured on a device of {said.vendor}, but {spec.name} is of {spec.vendor}")
        if said.arch and said.arch != spec.arch:
            raise UnfitError(f"measured on {said.arch}, but {spec.name} is of {spec.arch}")
    else:
        _check_cpu(said, spec)


def _check_cpu(said: DeviceStatement, spec: CpuSpec) -> None:
    """Raise UnfitError if code for the stated processor cannot run on a CPU."""
    family = "arm" if spec.compute.isa in ("neon", "sve") else "x86"
    level = _X86.get(said.arch)
    stated = said.family or ("x86" if level else "arm" if _ARM.match(said.arch) else "")
    if stated not in ("", family):
        raise UnfitError(f"compiled for {said.arch or stated}, but {spec.name} is of {spec.arch}")
    if level and _X86_LEVELS.index(level) > _X86_LEVELS.index(spec.compute.isa):
        raise UnfitError(f"compiled for {said.arch} ({level}), but {spec.name} has {spec.compute.isa} at most")

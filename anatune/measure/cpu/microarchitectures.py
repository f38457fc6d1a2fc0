"""Microarchitectures: their names in LLVM, features and pipelines, and the choice of the one of a machine.

Features are more reliable than names, because a hypervisor may report the family and model of an older processor, or
hide features. So a microarchitecture that lacks a reported feature is excluded. Of the others, that of the family and
model is chosen, else the one of the vendor with the fewest features that are not reported.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from anatune.decoding import convert
from anatune.errors import DeviceError
from anatune.measure.cpu.features import missing_features

_NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"},
    "avx2": {"avx2", "fma"},
    "avx": {"avx"},
    "sse": set[str](),
}
"""Instruction set -> features that its vectors need."""
MICRO_KEYS: tuple[str, ...] = (
    "fma_per_cycle",
    "num_vector_registers",
    "loads_per_cycle",
    "stores_per_cycle",
    "vector_ops_per_cycle",
    "issue_width",
)
"""Keys of `CpuCompute` that are taken from a microarchitecture."""
_SKYLAKE_SERVER = 85
"""Model number of Skylake-SP and two successors, of which some products have only one AVX-512 unit."""
_ONE_UNIT = r"Gold 5(?!122)\d\d\d|Silver|Bronze"
_ANY_PART = -1


class Numbered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPUID numbers of processors: single models, or the first and last one of a range."""

    vendor: str
    family: int
    models: tuple[int | tuple[int, int], ...]

    def has(self, vendor: str, family: int, model: int) -> bool:
        """Return whether a processor has these numbers."""
        ranges = (entry if isinstance(entry, tuple) else (entry, entry) for entry in self.models)
        return (self.vendor, self.family) == (vendor, family) and any(low <= model <= high for low, high in ranges)


class Micro(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A microarchitecture; numbers per cycle are for whole vectors of `simd_bits`."""

    title: str
    llvm: str
    """The value of LLVM's -mcpu."""
    features: frozenset[str]
    """x86: the features of that name in LLVM that matter to generated code: those that LLVM uses by itself (as
    `codegen.cpu.features`), and AMX. Others need intrinsics that anatune does not use, or do nothing if they are
    not offered (PREFETCHW). Linux has no flag for AMX products of float16. Source: LLVM 22, X86TargetParser.cpp and
    X86.td; a test compares with the LLVM of TVM."""
    isa: Literal["avx512", "avx2", "avx", "sse", "neon", "sve"]
    simd_bits: int
    fma: float
    fma_latency: float
    registers: int
    loads: float
    stores: float
    vector_ops: float
    """Number of vector instructions of any kind."""
    issue: int
    fill: tuple[float, float, float]
    """Bytes per cycle and core from L1, L2, L3."""
    latency: tuple[float, float, float]
    """Cycles to L1, L2, L3."""
    core_gb_per_s: float
    """DRAM bandwidth of one core, 1e9 bytes/s."""
    socket_gb_per_s: float
    most_l3_mb: float = math.inf
    """Largest L3 of its products in 2**20 bytes, if that distinguishes it from a successor of the same features."""
    processors: tuple[Numbered, ...] = ()
    """x86: the processors that have it; empty if only features count."""
    parts: tuple[tuple[int, int], ...] = ()
    """Arm: implementers and parts; part -1 stands for all others of an implementer."""

    @property
    def vendors(self) -> set[str]:
        """Vendors of such processors in CPUID; empty for any vendor."""
        return {numbered.vendor for numbered in self.processors}

    def is_named(self, vendor: str, family: int, model: int) -> bool:
        """Return whether CPUID numbers are those of its processors."""
        return any(numbered.has(vendor, family, model) for numbered in self.processors)


class KnownCores(NamedTuple):
    """The contents of ``microarchitectures.toml``.

    Attributes
    ----------
    x86, arm : tuple of Micro
        Microarchitectures in the order of the file; the first of equally good ones is chosen, and the last one for Arm
        is for unknown cores.
    vendors : dict of str to str
        CPUID name of a vendor, or Arm implementer ("0x41") -> vendor in a spec.
    """

    x86: tuple[Micro, ...]
    arm: tuple[Micro, ...]
    vendors: dict[str, str]


class Processor(NamedTuple):
    """The detected processor of a machine, with its unverified numbers.

    Attributes
    ----------
    micro : Micro
        Its microarchitecture, with the vectors that the machine offers.
    vendor, why : str
        Its vendor; the reason for the choice of the microarchitecture.
    flags : frozenset of str
        x86: the flags that the system reports.
    hidden : tuple of str
        LLVM features of `micro` that are not among the flags.
    doubts : tuple of str
        Keys of `CpuCompute` that are guesses.
    """

    micro: Micro
    vendor: str
    why: str
    flags: frozenset[str] = frozenset()
    hidden: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@functools.cache
def known_cores() -> KnownCores:
    """Return all known microarchitectures; the file is read at the first call."""
    tree = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    sets: dict[str, list[str]] = tree["features"]

    def features(names: list[str]) -> set[str]:
        return set[str]().union(*(features(sets[name]) if name in sets else {name} for name in names))

    def cores(kind: str) -> tuple[Micro, ...]:
        by_title: dict[str, dict[str, object]] = {}
        micros = []
        for entry in tree[kind]:
            fields = {"processors": (), "parts": (), **entry}
            core = {**by_title.get(fields.pop("like", ""), {}), **fields}
            by_title[entry["title"]] = core
            micros.append(convert({**core, "features": features(core["features"])}, Micro))
        return tuple(micros)

    return KnownCores(cores("x86"), cores("arm"), tree["vendors"])


def processor_of(lines: dict[str, str], *, l3_bytes: int = 0) -> Processor:
    """Return the processor that some lines of /proc/cpuinfo describe.

    Parameters
    ----------
    lines : dict of str to str
        Lines of one logical CPU, with keys in lower case.
    l3_bytes : int
        Size of its L3; 0 if unknown.

    Raises
    ------
    DeviceError
        The lines contain neither x86 flags nor an Arm part.
    """
    if "cpu implementer" in lines:
        return _arm(integer(lines["cpu implementer"]), integer(lines.get("cpu part")))
    flags = frozenset(lines.get("flags", lines.get("features", "")).split())
    vendor = lines.get("vendor_id", "")
    if not flags:
        raise DeviceError(
            f"/proc/cpuinfo contains neither x86 flags nor an Arm part (vendor {vendor or 'unnamed'!r}); "
            "write a spec yourself, starting from a file in hwspecs/, and pass its path"
        )
    numbers = (vendor, integer(lines.get("cpu family"), -1), integer(lines.get("model"), -1))
    cores = known_cores()
    described = frozenset[str]().union(*(micro.features for micro in cores.x86))
    offered = described - set(missing_features(described, flags))

    def misfit(micro: Micro) -> tuple[int, bool, bool, int]:
        beyond, unseen = len(_beyond(micro, offered, l3_bytes)), len(micro.features - offered)
        return beyond, not micro.is_named(*numbers), not micro.processors, unseen

    fitting = [core for core in cores.x86 if not core.processors or vendor in core.vendors]
    micro = min((core for core in fitting if _usable_isa(core, offered)), key=misfit)
    where, doubts = f"family {numbers[1]}, model {numbers[2]}", MICRO_KEYS
    named = next((core for core in cores.x86 if core.is_named(*numbers)), None)
    if not micro.processors:
        why = f"unknown microarchitecture ({where}): conservative numbers"
    elif micro.is_named(*numbers):
        is_server = numbers[2] == _SKYLAKE_SERVER
        why, doubts = f"{micro.title} ({where})", ("fma_per_cycle",) if is_server else ()
        if is_server and re.search(_ONE_UNIT, lines.get("model name", "")):
            micro, why = replace(micro, fma=1.0), f"{why}, one AVX-512 FMA unit by its name"
    elif named is not None:
        beyond = ", ".join(_beyond(named, offered, l3_bytes))
        instead = f"has no {beyond}" if beyond else "has other vectors"
        why = f"{micro.title} by its features ({where} is {named.title}, which {instead})"
    else:
        why = f"{micro.title} by its features ({where})"
    hidden = tuple(sorted(micro.features - offered))
    if micro.isa == "avx512" and _usable_isa(micro, offered) == "avx2":
        micro = replace(micro, isa="avx2", simd_bits=256, fma=2.0, registers=16, loads=2.0, stores=1.0, vector_ops=3.0)
        why = f"{why}, AVX-512 not offered here"
        doubts = tuple(dict.fromkeys((*doubts, "fma_per_cycle", "loads_per_cycle", "stores_per_cycle")))
    return Processor(micro, cores.vendors.get(vendor, "unknown"), why, flags, hidden, doubts)


def _usable_isa(micro: Micro, offered: Collection[str]) -> str | None:
    """Return the offered instruction set of a microarchitecture: AVX2 instead of AVX-512; None if there is none."""
    sets = ("avx512", "avx2") if micro.isa == "avx512" else (micro.isa,)
    return next((isa for isa in sets if _NEEDED[isa] <= set(offered)), None)


def _beyond(micro: Micro, offered: Collection[str], l3_bytes: int) -> list[str]:
    """Return the features that the machine has and a microarchitecture lacks."""
    large = [f"{l3_bytes / 2**20:.0f} MB of L3"] if l3_bytes > micro.most_l3_mb * 2**20 else []
    return sorted(set(offered) - micro.features) + large


def _arm(implementer: int, part: int) -> Processor:
    cores = known_cores()
    by_part = {number: core for core in cores.arm for number in core.parts}
    vendor = cores.vendors.get(f"{implementer:#x}", "arm")
    micro = by_part.get((implementer, part)) or by_part.get((implementer, _ANY_PART))
    if micro:
        return Processor(micro, vendor, f"{micro.title} (part {part:#x})")
    why = f"unknown Arm core, part {part:#x}: conservative numbers"
    return Processor(cores.arm[-1], vendor, why, doubts=MICRO_KEYS)


def integer(text: str | None, default: int = 0) -> int:
    """Return the integer in a text of the system; `default` if it is none."""
    try:
        return int((text or "").strip(), 0)
    except ValueError:
        return default

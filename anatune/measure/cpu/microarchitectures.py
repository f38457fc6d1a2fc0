"""Microarchitectures: what LLVM calls them, which features and pipelines they have, and which one a machine's is.

What a processor does says more than what it is called: a hypervisor may give its guests the family and model of an
older processor, or hide features. So a microarchitecture that lacks a feature which the machine shows is not the
machine's; of those that are left it is the one of the family and model, else the one of the vendor with the fewest
features that are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple

from anatune.errors import DeviceError
from anatune.measure.cpu.features import missing_features

__all__ = ["APPLE", "MICRO_KEYS", "X86", "Micro", "Processor", "processor_of"]

_V2 = frozenset({"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"})
_AVX = _V2 | {"avx"}
_F16 = _AVX | {"f16c"}
_V3 = _F16 | {"avx2", "bmi", "bmi2", "fma", "lzcnt", "movbe"}
_AMD_V3 = _V3 | {"sse4a"}
_GOLDEN_COVE = _V3 | {"avxvnni", "gfni"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_VNNI = _V4 | {"avx512vnni"}
_SUNNY_COVE = _VNNI | {"avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vpopcntdq", "gfni"}
_AMX = _SUNNY_COVE | {"avx512bf16", "avx512fp16", "avxvnni", "amx-tile", "amx-int8", "amx-bf16"}
_AMD_V4 = _SUNNY_COVE | {"avx512bf16", "sse4a"}
_NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"},
    "avx2": {"avx2", "fma"},
    "avx": {"avx"},
    "sse": set[str](),
}
"""Instruction set -> what has to be offered for its vectors to be used."""


class Micro(NamedTuple):
    """A microarchitecture; loads, stores and FMAs per cycle are of whole vectors of `simd_bits`."""

    title: str
    llvm: str
    """LLVM's -mcpu."""
    features: frozenset[str]
    """Of x86: LLVM's features of that name that matter to code: what LLVM uses by itself (as
    `codegen.cpu.export.features`), and AMX. Others need intrinsics that nothing here has, or do nothing where they are
    not offered (PREFETCHW). Linux names no flag for AMX's float16 products. Source: LLVM 22, X86TargetParser.cpp and
    X86.td; a test asks the LLVM of TVM."""
    isa: Literal["avx512", "avx2", "avx", "sse", "neon", "sve"]
    simd_bits: int
    fma: float
    fma_latency: float
    registers: int
    loads: float
    stores: float
    issue: int
    fill: tuple[float, float, float]
    """Bytes per cycle and core from L1, L2, L3."""
    latency: tuple[float, float, float]
    """Cycles to L1, L2, L3."""
    core_gb_per_s: float
    """What one core reaches from DRAM, 1e9 bytes/s."""
    socket_gb_per_s: float
    most_l3_mb: float = float("inf")
    """2**20 bytes: the largest L3 of its products, where that tells it from a successor of the same features."""


class Known(NamedTuple):
    """The numbers that CPUID gives processors of a microarchitecture; an empty vendor: whoever shows the features."""

    vendor: str
    family: int
    models: Collection[int]
    micro: Micro


class Processor(NamedTuple):
    """What a machine's processor is, and how sure that is.

    Attributes
    ----------
    micro : Micro
        With the vectors that the machine offers.
    vendor, why : str
        Who made it; what it was taken for, and by what.
    flags : frozenset of str
        Of x86: what the system says the processor has.
    hidden : tuple of str
        LLVM's features of `micro` that they do not show.
    doubts : tuple of str
        Keys of `CpuCompute` that are guesses.
    """

    micro: Micro
    vendor: str
    why: str
    flags: frozenset[str] = frozenset()
    hidden: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


# The same numbers as the packaged specs of these microarchitectures, and with the same doubts: ports from the
# sources named there, Agner Fog's tables and LLVM's scheduling models; the fills of Skylake-SP are measured.
_SKX = Micro(
    "Skylake-SP", "skylake-avx512", _V4, "avx512", 512, 2, 4, 32, 2, 1, 4, (111, 41, 9.4), (5, 14, 70), 12, 128
)
_CLX = _SKX._replace(title="Cascade Lake", llvm="cascadelake", features=_VNNI, socket_gb_per_s=140.8)
_CPX = _CLX._replace(title="Cooper Lake", llvm="cooperlake", features=_VNNI | {"avx512bf16"})
_HASWELL = Micro("Haswell", "haswell", _V3, "avx2", 256, 2, 5, 16, 2, 1, 4, (64, 32, 16), (5, 12, 45), 12, 50)
_SKYLAKE = _HASWELL._replace(title="Skylake client", llvm="skylake", fma_latency=4, socket_gb_per_s=38)
_ALDER = _SKYLAKE._replace(
    title="Alder Lake", llvm="alderlake", features=_GOLDEN_COVE, loads=3, issue=6, socket_gb_per_s=76
)
_IVY = _HASWELL._replace(
    title="Ivy Bridge", llvm="ivybridge", features=_F16, isa="avx", fma=1, fma_latency=3, loads=1, stores=0.5,
    fill=(32, 24, 16), socket_gb_per_s=25.6,
)  # fmt: skip
_ICL = _SKX._replace(
    title="Ice Lake client", llvm="icelake-client", features=_SUNNY_COVE, fma=1, issue=5, fill=(120, 48, 16),
    latency=(5, 13, 36), core_gb_per_s=20, socket_gb_per_s=51.2, most_l3_mb=24,
)  # fmt: skip
_ICX = _ICL._replace(
    title="Ice Lake server", llvm="icelake-server", fma=2, socket_gb_per_s=204.8, most_l3_mb=_SKX.most_l3_mb
)
_SPR = _SKX._replace(
    title="Sapphire Rapids", llvm="sapphirerapids", features=_AMX, issue=6, fill=(128, 48, 8), latency=(5, 15, 120),
    core_gb_per_s=13, socket_gb_per_s=307.2, most_l3_mb=112.5,
)  # fmt: skip
_EMR = _SPR._replace(title="Emerald Rapids", llvm="emeraldrapids", most_l3_mb=320)
_GNR = _SPR._replace(title="Granite Rapids", llvm="graniterapids", socket_gb_per_s=614, most_l3_mb=504)
_ZEN2 = Micro("Zen 2", "znver2", _AMD_V3, "avx2", 256, 2, 5, 16, 2, 1, 6, (64, 32, 20), (4, 12, 40), 20, 51.2)
_ZEN1 = _ZEN2._replace(title="Zen", llvm="znver1", fma=1, loads=1, stores=0.5, fill=(32, 32, 16))
_ZEN3 = _ZEN2._replace(title="Zen 3", llvm="znver3", fma_latency=4, latency=(4, 12, 46))
_ZEN4 = Micro("Zen 4", "znver4", _AMD_V4, "avx512", 512, 1, 4, 32, 1, 0.5, 6, (64, 32, 20), (5, 14, 50), 30, 83.2)
_ZEN5 = Micro(
    "Zen 5", "znver5", _AMD_V4 | {"avxvnni"}, "avx512", 512, 2, 4, 32, 2, 1, 8, (128, 64, 24), (4, 14, 50), 40, 89.6
)
_ZEN5_MOBILE = _ZEN5._replace(title="Zen 5 mobile", fma=1, loads=1, stores=0.5, fill=(64, 32, 20))
_PLAIN = _HASWELL._replace(title="an unknown x86 core", fma=1, loads=1, stores=0.5, fill=(32, 16, 8))

X86: tuple[Known, ...] = (
    Known("GenuineIntel", 6, (85,), _SKX),
    Known("GenuineIntel", 6, (85,), _CLX),
    Known("GenuineIntel", 6, (85,), _CPX),
    Known("GenuineIntel", 6, (125, 126), _ICL),
    Known("GenuineIntel", 6, (140, 141), _ICL._replace(title="Tiger Lake", llvm="tigerlake")),
    Known("GenuineIntel", 6, (167,), _ICL._replace(title="Rocket Lake", llvm="rocketlake")),
    Known("GenuineIntel", 6, (106, 108, 134), _ICX),  # 134: QEMU's Icelake-Server
    Known("GenuineIntel", 6, (143,), _SPR),
    Known("GenuineIntel", 6, (207,), _EMR),
    Known("GenuineIntel", 6, (173, 174), _GNR),
    Known("GenuineIntel", 6, (60, 63, 69, 70), _HASWELL),
    Known("GenuineIntel", 6, (61, 71, 79, 86), _HASWELL._replace(title="Broadwell", llvm="broadwell")),
    Known("GenuineIntel", 6, (78, 94, 142, 158, 165, 166), _SKYLAKE),
    Known(
        "GenuineIntel", 6, (190,), _PLAIN._replace(title="Gracemont", llvm="gracemont", features=_GOLDEN_COVE, issue=5)
    ),
    Known("GenuineIntel", 6, (151, 154, 170, 172, 197, 198), _ALDER),  # Meteor and Arrow Lake as well
    Known("GenuineIntel", 6, (183, 186, 191), _ALDER._replace(title="Raptor Lake", llvm="raptorlake")),
    Known(
        "GenuineIntel", 6, (42, 45),
        _IVY._replace(title="Sandy Bridge", llvm="sandybridge", features=_AVX, socket_gb_per_s=21.3),
    ),
    Known("GenuineIntel", 6, (58, 62), _IVY),
    Known("AuthenticAMD", 23, range(0x30), _ZEN1),
    Known("HygonGenuine", 24, range(0x100), _ZEN1),
    Known("AuthenticAMD", 23, range(0x30, 0x100), _ZEN2),
    Known("AuthenticAMD", 25, (*range(0x10), *range(0x20, 0x60)), _ZEN3),
    Known("AuthenticAMD", 25, (*range(0x10, 0x20), *range(0x60, 0x100)), _ZEN4),
    Known("AuthenticAMD", 26, (*range(0x20, 0x40), *range(0x60, 0x70)), _ZEN5_MOBILE),
    Known("AuthenticAMD", 26, (*range(0x20), *range(0x40, 0x60), *range(0x70, 0x100)), _ZEN5),
    Known(
        "", 0, (),
        _PLAIN._replace(
            llvm="x86-64", features=frozenset(), isa="sse", simd_bits=128, fill=(16, 16, 8)
        ),
    ),
    Known("", 0, (), _PLAIN._replace(llvm="sandybridge", features=_AVX, isa="avx")),
    Known("", 0, (), _PLAIN._replace(llvm="x86-64-v3")),
    Known(
        "", 0, (),
        _PLAIN._replace(
            llvm="x86-64-v4", features=_V4, isa="avx512", simd_bits=512, registers=32, fill=(64, 32, 8)
        ),
    ),
)  # fmt: skip
"""Of microarchitectures that fit as well, the first one counts: older and slower ones stand before."""

_A72 = Micro("Cortex-A72", "cortex-a72", frozenset(), "neon", 128, 1, 7, 32, 1, 1, 3, (16, 8, 6), (4, 21, 50), 4, 12.8)
_N1 = _A72._replace(
    title="Neoverse N1", llvm="neoverse-n1", fma=2, fma_latency=4, loads=2, issue=4, fill=(32, 24, 10),
    latency=(4, 11, 80), core_gb_per_s=15, socket_gb_per_s=200,
)  # fmt: skip
_N2 = _N1._replace(title="Neoverse N2", llvm="neoverse-n2", loads=3, stores=2, issue=5)
_V1 = _N1._replace(
    title="Neoverse V1", llvm="neoverse-v1", fma=4, loads=3, stores=2, issue=8, fill=(48, 32, 12),
    latency=(4, 13, 90), core_gb_per_s=20, socket_gb_per_s=307.2,
)  # fmt: skip
_TX2 = _N1._replace(
    title="ThunderX2", llvm="thunderx2t99", fma_latency=6, fill=(32, 20, 10), latency=(4, 12, 70), core_gb_per_s=12,
    socket_gb_per_s=170.6,
)  # fmt: skip
APPLE = _V1._replace(
    title="Apple M1", llvm="apple-m1", fill=(48, 32, 16), latency=(3, 18, 60), core_gb_per_s=60, socket_gb_per_s=68
)
_ARM: dict[tuple[int, int], Micro] = {
    (0x41, 0xD08): _A72,
    (0x41, 0xD07): _A72._replace(title="Cortex-A57", llvm="cortex-a57"),
    (0x41, 0xD03): _A72._replace(title="Cortex-A53", llvm="cortex-a53", fma=0.5, fma_latency=4, issue=2),
    (0x41, 0xD0B): _N1._replace(title="Cortex-A76", llvm="cortex-a76", socket_gb_per_s=17),
    (0x41, 0xD0C): _N1,
    (0x41, 0xD40): _V1,
    (0x41, 0xD49): _N2,
    (0x6D, 0xD49): _N2,
    (0x41, 0xD4F): _V1._replace(title="Neoverse V2", llvm="neoverse-v2", core_gb_per_s=30, socket_gb_per_s=500),
    (0x43, 0x0AF): _TX2,
    (0x42, 0x516): _TX2,
}
"""Implementer and part -> microarchitecture."""
_ARM_VENDORS = {
    0x41: "arm", 0x42: "broadcom", 0x43: "cavium", 0x46: "fujitsu", 0x51: "qualcomm", 0x61: "apple", 0x6D: "microsoft",
}  # fmt: skip
_X86_VENDORS = {
    "GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "hygon", "CentaurHauls": "zhaoxin",
    "Shanghai": "zhaoxin",
}  # fmt: skip
MICRO_KEYS: tuple[str, ...] = (
    "fma_per_cycle",
    "num_vector_registers",
    "loads_per_cycle",
    "stores_per_cycle",
    "issue_width",
)
"""Keys of `CpuCompute` that come from a microarchitecture."""
_SKYLAKE_SERVER = 85
"""Model of Skylake-SP and two that followed: some of their products have one unit for AVX-512, as their names say."""
_ONE_UNIT = r"Gold 5(?!122)\d\d\d|Silver|Bronze"
_ALL = frozenset[str]().union(*(known.micro.features for known in X86))


def processor_of(lines: dict[str, str], *, l3_bytes: int = 0) -> Processor:
    """Return what the processor of some lines of /proc/cpuinfo is.

    Parameters
    ----------
    lines : dict of str to str
        Of one logical CPU, keys in lower case.
    l3_bytes : int
        Size of its L3; 0: not told.

    Raises
    ------
    DeviceError
        They name neither x86 flags nor an Arm part.
    """
    if "cpu implementer" in lines:
        return _arm(_integer(lines["cpu implementer"]), _integer(lines.get("cpu part")))
    flags = frozenset(lines.get("flags", lines.get("features", "")).split())
    vendor = lines.get("vendor_id", "")
    if not flags:
        raise DeviceError(
            f"/proc/cpuinfo tells neither x86 flags nor an Arm part (vendor {vendor or 'unnamed'!r}); "
            "write a spec by hand from a file of hwspecs/ and pass its path"
        )
    family, model = _integer(lines.get("cpu family"), -1), _integer(lines.get("model"), -1)
    offered = _ALL - set(missing_features(_ALL, flags))

    def is_named(known: Known) -> bool:
        return (known.vendor, known.family) == (vendor, family) and model in known.models

    def misfit(known: Known) -> tuple[int, bool, bool, int]:
        beyond, unseen = len(_beyond(known.micro, offered, l3_bytes)), len(known.micro.features - offered)
        return beyond, not is_named(known), not known.vendor, unseen

    usable = [known for known in X86 if known.vendor in (vendor, "") and _usable_isa(known.micro, offered)]
    best = min(usable, key=misfit)
    micro, where, doubts = best.micro, f"family {family}, model {model}", MICRO_KEYS
    named = next((known.micro for known in X86 if is_named(known)), None)
    if not best.vendor:
        why = f"unknown microarchitecture ({where}): conservative numbers"
    elif is_named(best):
        why, doubts = f"{micro.title} ({where})", ("fma_per_cycle",) if model == _SKYLAKE_SERVER else ()
        if model == _SKYLAKE_SERVER and re.search(_ONE_UNIT, lines.get("model name", "")):
            micro, why = micro._replace(fma=1), f"{why}, one AVX-512 FMA unit by its name"
    elif named is not None:
        beyond = ", ".join(_beyond(named, offered, l3_bytes))
        instead = f"has no {beyond}" if beyond else "has other vectors"
        why = f"{micro.title} by its features ({where} is {named.title}, which {instead})"
    else:
        why = f"{micro.title} by its features ({where})"
    hidden = tuple(sorted(micro.features - offered))
    if micro.isa == "avx512" and _usable_isa(micro, offered) == "avx2":
        micro = micro._replace(isa="avx2", simd_bits=256, fma=2, registers=16, loads=2, stores=1)
        why = f"{why}, AVX-512 not offered here"
        doubts = tuple(dict.fromkeys((*doubts, "fma_per_cycle", "loads_per_cycle", "stores_per_cycle")))
    return Processor(micro, _X86_VENDORS.get(vendor, "unknown"), why, flags, hidden, doubts)


def _usable_isa(micro: Micro, offered: Collection[str]) -> str | None:
    """Return the instruction set of a microarchitecture that is offered: AVX2 instead of AVX-512; None: neither."""
    sets = ("avx512", "avx2") if micro.isa == "avx512" else (micro.isa,)
    return next((isa for isa in sets if _NEEDED[isa] <= set(offered)), None)


def _beyond(micro: Micro, offered: Collection[str], l3_bytes: int) -> list[str]:
    """Return what is there that a microarchitecture has not."""
    large = [f"{l3_bytes / 2**20:.0f} MB of L3"] if l3_bytes > micro.most_l3_mb * 2**20 else []
    return sorted(set(offered) - micro.features) + large


def _arm(implementer: int, part: int) -> Processor:
    known = _ARM.get((implementer, part)) or (APPLE if implementer == 0x61 else None)
    vendor = _ARM_VENDORS.get(implementer, "arm")
    if known:
        return Processor(known, vendor, f"{known.title} (part {part:#x})")
    micro = _A72._replace(title="an unknown Arm core", llvm="generic", fma_latency=4)
    return Processor(micro, vendor, f"unknown Arm core, part {part:#x}: conservative numbers", doubts=MICRO_KEYS)


def _integer(text: str | None, default: int = 0) -> int:
    try:
        return int((text or "").strip(), 0)
    except ValueError:
        return default

"""What CPU the present machine has, with every doubt listed.

The CPU is read from ``/proc/cpuinfo`` and ``/sys`` (macOS: ``sysctl``) and looked up in a table of
microarchitectures, since no file tells ports and latencies. What is not known is filled in conservatively and
named in `unverified`; ``anatune hw calibrate`` replaces such numbers by measured ones.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from anatune.core.hardware.cpu_groups import CacheLevel, CpuCompute, CpuDram, DotInstruction
from anatune.core.hardware.spec import CpuSpec
from anatune.errors import DeviceError
from anatune.measure.cpu.hidden import hidden_features

__all__ = ["detect_cpu"]

_Isa = Literal["avx512", "avx2", "avx", "sse", "neon", "sve"]


class _Micro(NamedTuple):
    """A microarchitecture; loads, stores and FMAs per cycle are of whole vectors of `simd_bits`."""

    title: str
    llvm: str
    isa: _Isa
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


# The same numbers as the packaged specs of these microarchitectures, and with the same doubts: ports from the
# sources named there, Agner Fog's tables and LLVM's scheduling models; the fills of Skylake-SP are measured.
_SKX = _Micro("Skylake-SP", "skylake-avx512", "avx512", 512, 2, 4, 32, 2, 1, 4, (111, 41, 9.4), (5, 14, 70), 12, 128)
_CLX = _SKX._replace(title="Cascade Lake", llvm="cascadelake", socket_gb_per_s=140.8)
_HASWELL = _Micro("Haswell", "haswell", "avx2", 256, 2, 5, 16, 2, 1, 4, (64, 32, 16), (5, 12, 45), 12, 50)
_SKYLAKE = _HASWELL._replace(title="Skylake client", llvm="skylake", fma_latency=4, socket_gb_per_s=38)
_ALDER = _SKYLAKE._replace(title="Alder Lake", llvm="alderlake", loads=3, issue=6, socket_gb_per_s=76)
_IVY = _HASWELL._replace(
    title="Ivy Bridge", llvm="ivybridge", isa="avx", fma=1, fma_latency=3, loads=1, stores=0.5,
    fill=(32, 24, 16), socket_gb_per_s=25.6,
)  # fmt: skip
_ICL = _SKX._replace(
    title="Ice Lake client", llvm="icelake-client", fma=1, issue=5, fill=(120, 48, 16), latency=(5, 13, 36),
    core_gb_per_s=20, socket_gb_per_s=51.2,
)  # fmt: skip
_ICX = _ICL._replace(title="Ice Lake server", llvm="icelake-server", fma=2, socket_gb_per_s=204.8)
_SPR = _SKX._replace(
    title="Sapphire Rapids", llvm="sapphirerapids", issue=6, fill=(128, 48, 8), latency=(5, 15, 120),
    core_gb_per_s=13, socket_gb_per_s=307.2,
)  # fmt: skip
_ZEN2 = _Micro("Zen 2", "znver2", "avx2", 256, 2, 5, 16, 2, 1, 6, (64, 32, 20), (4, 12, 40), 20, 51.2)
_ZEN1 = _ZEN2._replace(title="Zen", llvm="znver1", fma=1, loads=1, stores=0.5, fill=(32, 32, 16))
_ZEN3 = _ZEN2._replace(title="Zen 3", llvm="znver3", fma_latency=4, latency=(4, 12, 46))
_ZEN4 = _Micro("Zen 4", "znver4", "avx512", 512, 1, 4, 32, 1, 0.5, 6, (64, 32, 20), (5, 14, 50), 30, 83.2)
_ZEN5 = _Micro("Zen 5", "znver5", "avx512", 512, 2, 4, 32, 2, 1, 8, (128, 64, 24), (4, 14, 50), 40, 89.6)
_ZEN5_MOBILE = _ZEN5._replace(title="Zen 5 mobile", fma=1, loads=1, stores=0.5, fill=(64, 32, 20))
_A72 = _Micro("Cortex-A72", "cortex-a72", "neon", 128, 1, 7, 32, 1, 1, 3, (16, 8, 6), (4, 21, 50), 4, 12.8)
_N1 = _Micro("Neoverse N1", "neoverse-n1", "neon", 128, 2, 4, 32, 2, 1, 4, (32, 24, 10), (4, 11, 80), 15, 200)
_V1 = _Micro("Neoverse V1", "neoverse-v1", "neon", 128, 4, 4, 32, 3, 2, 8, (48, 32, 12), (4, 13, 90), 20, 307.2)
_TX2 = _Micro("ThunderX2", "thunderx2t99", "neon", 128, 2, 6, 32, 2, 1, 4, (32, 20, 10), (4, 12, 70), 12, 170.6)
_APPLE = _Micro("Apple M1", "apple-m1", "neon", 128, 4, 4, 32, 3, 2, 8, (48, 32, 16), (3, 18, 60), 60, 68)

# x86: (vendor, family) -> (models, microarchitecture); the first range that holds the model counts.
_X86: dict[tuple[str, int], tuple[tuple[Collection[int], _Micro], ...]] = {
    ("GenuineIntel", 6): (
        ((85,), _SKX),
        ((106, 108), _ICX),
        ((125, 126), _ICL),
        ((140, 141), _ICL._replace(title="Tiger Lake", llvm="tigerlake")),
        ((167,), _ICL._replace(title="Rocket Lake", llvm="rocketlake")),
        ((143,), _SPR),
        ((207,), _SPR._replace(title="Emerald Rapids", llvm="emeraldrapids")),
        ((173, 174), _SPR._replace(title="Granite Rapids", llvm="graniterapids", socket_gb_per_s=614)),
        ((151, 154), _ALDER),
        ((183, 186, 191), _ALDER._replace(title="Raptor Lake", llvm="raptorlake")),
        ((60, 63, 69, 70), _HASWELL),
        ((61, 71, 79, 86), _HASWELL._replace(title="Broadwell", llvm="broadwell")),
        ((78, 94, 142, 158, 165, 166), _SKYLAKE),
        ((58, 62), _IVY),
        ((42, 45), _IVY._replace(title="Sandy Bridge", llvm="sandybridge", socket_gb_per_s=21.3)),
    ),
    ("AuthenticAMD", 23): (
        (range(0x30), _ZEN1),
        (range(0x30, 0x100), _ZEN2),
    ),
    ("AuthenticAMD", 25): (
        ((*range(0x10, 0x20), *range(0x60, 0xB0)), _ZEN4),
        (range(0x60), _ZEN3),
    ),
    ("AuthenticAMD", 26): (
        ((*range(0x20, 0x40), *range(0x60, 0x70)), _ZEN5_MOBILE),
        (range(0x100), _ZEN5),
    ),
}
# Arm: (implementer, part) -> microarchitecture.
_ARM: dict[tuple[int, int], _Micro] = {
    (0x41, 0xD08): _A72,
    (0x41, 0xD07): _A72._replace(title="Cortex-A57", llvm="cortex-a57"),
    (0x41, 0xD03): _A72._replace(title="Cortex-A53", llvm="cortex-a53", fma=0.5, fma_latency=4, issue=2),
    (0x41, 0xD0B): _N1._replace(title="Cortex-A76", llvm="cortex-a76", socket_gb_per_s=17),
    (0x41, 0xD0C): _N1,
    (0x41, 0xD40): _V1,
    (0x41, 0xD49): _N1._replace(title="Neoverse N2", llvm="neoverse-n2", loads=3, stores=2, issue=5),
    (0x41, 0xD4F): _V1._replace(title="Neoverse V2", llvm="neoverse-v2", core_gb_per_s=30, socket_gb_per_s=500),
    (0x43, 0x0AF): _TX2,
    (0x42, 0x516): _TX2,
}
_ARM_VENDORS = {
    0x41: "arm",
    0x42: "broadcom",
    0x43: "cavium",
    0x46: "fujitsu",
    0x51: "qualcomm",
    0x61: "apple",
}
_X86_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
# Instruction -> (the system's flag for it, instruction set whose vectors it takes, elements of a group).
_DOTS: tuple[tuple[str, str, _Isa, int], ...] = (
    ("vdpbf16ps", "avx512_bf16", "avx512", 2),
    ("vfmaddph", "avx512_fp16", "avx512", 2),
    ("vpdpbusd", "avx512_vnni", "avx512", 4),
    ("vpdpbusd", "avx_vnni", "avx2", 4),
    ("vpdpbssd", "avx_vnni_int8", "avx2", 4),
)
_DOT_LATENCY_CYCLES = 5.0
_MICRO_KEYS = ("fma_per_cycle", "num_vector_registers", "loads_per_cycle", "stores_per_cycle", "issue_width")
_BY_HAND = "write a spec by hand from a file of hwspecs/ and pass its path"
_LEVEL_DOUBTS = ("bandwidth_bytes_per_cycle", "latency_cycles")


class _Found(NamedTuple):
    """A microarchitecture and how sure it is."""

    micro: _Micro
    vendor: str
    why: str
    doubts: tuple[str, ...]
    flags: frozenset[str] = frozenset()
    """Of x86: what the system says the CPU has."""


# ---- CPU ---------------------------------------------------------------------------------------------------


def detect_cpu(root: str | Path = "/", *, allowed: Collection[int] | None = None) -> CpuSpec:
    """Return the spec of the present machine's CPU, named "host".

    Cores are physical cores of one socket that this process may use (affinity mask, container quota); of a
    hybrid CPU only the fast ones. The clock, and with it the peak, is what the system says, hence unverified.

    Parameters
    ----------
    root
        Where ``proc`` and ``sys`` are; another folder holds a copy of another machine's files.
    allowed
        Logical CPUs that count; by default those this process may run on (all of them for another `root`).

    Raises
    ------
    DeviceError
        The system tells nothing usable about its CPU.
    """
    root = Path(root)
    here = root == Path("/")
    if here and platform.system() == "Darwin":
        return _macos_cpu(_sysctl)
    entries = _cpuinfo(root / "proc" / "cpuinfo")
    if allowed is None:
        allowed = os.sched_getaffinity(0) if here and hasattr(os, "sched_getaffinity") else set(entries)
    usable = sorted(cpu for cpu in entries if cpu in set(allowed)) or sorted(entries)
    folder = root / "sys" / "devices" / "system" / "cpu"
    fast = _fast_cpus(root, folder, usable, entries)
    cores = _one_socket(folder, entries, fast)
    first = entries[min(min(cpus) for cpus in cores.values())]
    quota = _quota(root)
    num_cores = max(1, min(len(cores), int(quota))) if quota else len(cores)
    clock_hz, clock_from = _clock(folder, entries, fast)
    found = _microarchitecture(first)
    model = first.get("model name", "").strip() or first.get("hardware", "").strip() or found.micro.title
    return _cpu_spec(found, model, num_cores, clock_hz, clock_from, _caches(folder, cores))


def _cpu_spec(
    found: _Found,
    model: str,
    num_cores: int,
    clock_hz: float,
    clock_from: str,
    caches: dict[int, dict[str, int]],
) -> CpuSpec:
    micro = found.micro
    doubts = {"clock_hz", "fma_latency_cycles", "reachable_fraction", *found.doubts}
    compute = CpuCompute(
        num_cores=num_cores,
        clock_hz=clock_hz,
        isa=micro.isa,
        simd_bits=micro.simd_bits,
        fma_per_cycle=float(micro.fma),
        fma_latency_cycles=float(micro.fma_latency),
        num_vector_registers=micro.registers,
        loads_per_cycle=float(micro.loads),
        stores_per_cycle=float(micro.stores),
        issue_width=micro.issue,
        fp32_peak_flop_per_s=2.0 * num_cores * clock_hz * micro.fma * (micro.simd_bits // 32),
        source=f"detected: {found.why}; clock from {clock_from}",
        unverified=tuple(key for key in CpuCompute.__struct_fields__ if key in doubts),
    )
    core_rate = micro.core_gb_per_s * 1e9
    spec = CpuSpec(
        schema_version=1,
        name="host",
        vendor=found.vendor,
        model=model,
        arch=micro.llvm,
        hidden_features=_hidden(found),
        compute=compute,
        l1=_level(caches.get(1), micro, 0, 32 * 1024),
        l2=_level(caches.get(2), micro, 1, 512 * 1024),
        l3=_level(caches[3], micro, 2, 0) if 3 in caches else None,
        dram=CpuDram(
            bandwidth_bytes_per_s=max(core_rate, min(core_rate * num_cores, micro.socket_gb_per_s * 1e9)),
            core_bandwidth_bytes_per_s=core_rate,
            latency_s=1e-7,
            source="not readable; typical of the microarchitecture, at most what the cores can ask for",
            unverified=("bandwidth_bytes_per_s", "core_bandwidth_bytes_per_s", "latency_s"),
        ),
    )
    return msgspec.structs.replace(spec, **_dot_instructions(found))


def _hidden(found: _Found) -> tuple[str, ...] | msgspec.UnsetType:
    """Return what an x86 machine hides; left out where that is nothing. Nobody asks other processors."""
    return (hidden_features(found.micro.llvm, found.flags) if found.flags else ()) or msgspec.UNSET


def _dot_instructions(found: _Found) -> dict[str, DotInstruction]:
    """Return the instructions that sum products of neighbours; no file tells how often one starts."""
    return {
        name: DotInstruction(
            rate=float(group),
            latency_cycles=_DOT_LATENCY_CYCLES,
            source=f"flag {flag} of the system; assumed to start as often as a float32 multiply-add",
            unverified=("rate", "latency_cycles"),
        )
        for name, flag, isa, group in _DOTS
        if flag in found.flags and found.micro.isa == isa
    }


def _level(cache: dict[str, int] | None, micro: _Micro, index: int, default_bytes: int) -> CacheLevel:
    doubts = set(_LEVEL_DOUBTS)
    if cache is None:
        cache = {"size": default_bytes, "ways": 8, "line": 64, "shared": 1}
        doubts |= {"size_bytes", "ways", "line_bytes", "shared_by_cores"}
        source = "not told by the system: a common size"
    else:
        source = "sizes from the system"
    ways, line = cache["ways"], cache["line"] or 64
    if ways <= 0 or cache["size"] % (ways * line):
        ways = next(number for number in (16, 12, 11, 8, 4, 2, 1) if cache["size"] % (number * line) == 0)
        doubts.add("ways")
    return CacheLevel(
        size_bytes=cache["size"],
        ways=ways,
        line_bytes=line,
        shared_by_cores=cache["shared"],
        bandwidth_bytes_per_cycle=float(micro.fill[index]),
        latency_cycles=float(micro.latency[index]),
        source=f"{source}; bandwidth and latency typical of {micro.title}",
        unverified=tuple(key for key in CacheLevel.__struct_fields__ if key in doubts),
    )


def _cpuinfo(path: Path) -> dict[int, dict[str, str]]:
    """Return logical CPU -> its lines of /proc/cpuinfo (keys in lower case)."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DeviceError(f"cannot read {path} ({error.strerror}); {_BY_HAND}") from None
    entries: dict[int, dict[str, str]] = {}
    common: dict[str, str] = {}
    current: dict[str, str] | None = None
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip().lower(), value.strip()
        if key == "processor" and value.isdigit():
            current = entries.setdefault(int(value), {})
        elif not key:
            current = None
        elif colon:
            (current if current is not None else common)[key] = value
    if not entries:
        raise DeviceError(f"{path} names no processor; {_BY_HAND}")
    return {cpu: common | lines for cpu, lines in entries.items()}


def _integer(text: str | None, default: int = 0) -> int:
    try:
        return int((text or "").strip(), 0)
    except ValueError:
        return default


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _cpu_list(text: str | None) -> set[int]:
    """Parse "0-3,8" of sysfs."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            cpus.update(range(int(first), _integer(last, int(first)) + 1))
    return cpus


def _fast_cpus(root: Path, folder: Path, usable: list[int], entries: dict[int, dict[str, str]]) -> list[int]:
    """Drop the efficiency cores of a hybrid CPU, unless only those are allowed."""
    fast = _cpu_list(_read(root / "sys" / "devices" / "cpu_core" / "cpus"))
    if not fast and "cpu implementer" in entries[usable[0]]:
        capacity = {cpu: _integer(_read(folder / f"cpu{cpu}" / "cpu_capacity")) for cpu in usable}
        fast = {cpu for cpu, value in capacity.items() if value >= 0.8 * max(capacity.values())}
    return [cpu for cpu in usable if cpu in fast] or usable


def _core_of(folder: Path, entries: dict[int, dict[str, str]], cpu: int) -> tuple[int, int, int]:
    """Return (socket, die or cluster, core) of a logical CPU."""
    topology, lines = folder / f"cpu{cpu}" / "topology", entries.get(cpu, {})
    socket = _integer(_read(topology / "physical_package_id") or lines.get("physical id"))
    die = _integer(_read(topology / "die_id"))
    siblings = _cpu_list(_read(topology / "thread_siblings_list"))
    if siblings:
        return socket, die, min(siblings)
    return socket, die, _integer(_read(topology / "core_id") or lines.get("core id"), cpu)


def _one_socket(
    folder: Path, entries: dict[int, dict[str, str]], cpus: list[int]
) -> dict[tuple[int, int, int], list[int]]:
    """Return physical core -> its logical CPUs, for the socket that has the most of them."""
    cores: dict[tuple[int, int, int], list[int]] = {}
    for cpu in cpus:
        cores.setdefault(_core_of(folder, entries, cpu), []).append(cpu)
    sockets = [core[0] for core in cores]
    best = max(sorted(set(sockets)), key=sockets.count)
    return {core: members for core, members in cores.items() if core[0] == best}


def _quota(root: Path) -> float | None:
    """Return how many CPUs a container's quota is worth, None without one."""
    group = root / "sys" / "fs" / "cgroup"
    words = (_read(group / "cpu.max") or "").split()
    if len(words) != 2:
        words = [_read(group / "cpu" / f"cpu.cfs_{key}_us") or "" for key in ("quota", "period")]
    quota, period = (_integer(word) for word in words)
    return quota / period if quota > 0 and period > 0 else None


def _clock(folder: Path, entries: dict[int, dict[str, str]], cpus: list[int]) -> tuple[float, str]:
    best = max(_integer(_read(folder / f"cpu{cpu}" / "cpufreq" / "cpuinfo_max_freq")) for cpu in cpus) * 1e3
    if 1e8 <= best <= 1e10:
        return best, "cpufreq's maximum (one core's boost; vector code of all cores may run slower)"
    texts = [entries[cpu].get("cpu mhz", "") for cpu in cpus]
    now = [float(text) * 1e6 for text in texts if re.fullmatch(r"\d+(\.\d+)?", text)]
    if now and 1e8 <= max(now) <= 1e10:
        return max(now), "/proc/cpuinfo's present value (a virtual machine shows its nominal clock)"
    named = re.search(r"@ *(\d+\.\d+) *GHz", entries[cpus[0]].get("model name", ""))
    if named:
        return float(named.group(1)) * 1e9, "the model's name"
    return 2e9, "nowhere: the system does not tell, 2 GHz assumed"


def _caches(folder: Path, cores: dict[tuple[int, int, int], list[int]]) -> dict[int, dict[str, int]]:
    """Return level -> size (bytes), ways, line (bytes), shared (cores of this process on one such cache)."""
    first = min(min(cpus) for cpus in cores.values())
    caches: dict[int, dict[str, int]] = {}
    for index in sorted((folder / f"cpu{first}" / "cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size") or "")
        if (_read(index / "type") or "") not in ("Data", "Unified") or size is None or size.group(1) == "0":
            continue
        shared = _cpu_list(_read(index / "shared_cpu_list"))
        caches[_integer(_read(index / "level"))] = {
            "size": int(size.group(1)) * 1024 ** ("", "K", "M", "G").index(size.group(2)),
            "ways": _integer(_read(index / "ways_of_associativity")),
            "line": _integer(_read(index / "coherency_line_size"), 64),
            "shared": max(1, sum(not shared.isdisjoint(cpus) for cpus in cores.values())),
        }
    return caches


def _microarchitecture(lines: dict[str, str]) -> _Found:
    if "cpu implementer" in lines:
        implementer, part = _integer(lines["cpu implementer"]), _integer(lines.get("cpu part"))
        vendor = _ARM_VENDORS.get(implementer, "arm")
        known = _ARM.get((implementer, part)) or (_APPLE if implementer == 0x61 else None)
        if known:
            return _Found(known, vendor, f"{known.title} (part {part:#x})", ())
        micro = _A72._replace(title="an unknown Arm core", llvm="generic", fma_latency=4)
        return _Found(micro, vendor, f"unknown Arm core, part {part:#x}: conservative numbers", _MICRO_KEYS)
    vendor_id = lines.get("vendor_id", "")
    vendor = _X86_VENDORS.get(vendor_id, "unknown")
    family, model = _integer(lines.get("cpu family"), -1), _integer(lines.get("model"), -1)
    flags = set(lines.get("flags", lines.get("features", "")).split())
    if not flags:
        raise DeviceError(
            f"/proc/cpuinfo tells neither x86 flags nor an Arm part (vendor {vendor_id or 'unnamed'!r}); {_BY_HAND}"
        )
    where = f"family {family}, model {model}"
    for models, micro in _X86.get((vendor_id, family), ()):
        if model in models:
            return _fit_to_flags(_variant(micro, lines), flags, vendor, where)
    return _unknown_x86(flags, vendor, where)


def _variant(micro: _Micro, lines: dict[str, str]) -> _Found:
    """Tell apart what shares family and model: Skylake-SP's successors, and parts with one AVX-512 unit."""
    if micro is not _SKX:
        return _Found(micro, "", micro.title, ())
    stepping, name = _integer(lines.get("stepping")), lines.get("model name", "")
    if stepping >= 5:
        micro = _CLX if stepping < 10 else _CLX._replace(title="Cooper Lake", llvm="cooperlake")
    if re.search(r"Gold 5\d\d\d|Silver|Bronze", name) and "5122" not in name:
        return _Found(micro._replace(fma=1), "", f"{micro.title}, one AVX-512 FMA unit by its name", ("fma_per_cycle",))
    return _Found(micro, "", micro.title, ("fma_per_cycle",))


def _fit_to_flags(found: _Found, flags: set[str], vendor: str, where: str) -> _Found:
    """Keep to what the system offers: a virtual machine may hide AVX-512 or more."""
    micro, doubts = found.micro, found.doubts
    why = f"{found.why} ({where})"
    if micro.isa == "avx512" and "avx512f" not in flags:
        micro = micro._replace(isa="avx2", simd_bits=256, fma=2, registers=16, loads=2, stores=1)
        why, doubts = (
            f"{why}, AVX-512 not offered here",
            ("fma_per_cycle", "loads_per_cycle", "stores_per_cycle"),
        )
    if micro.isa == "avx2" and not {"avx2", "fma"} <= flags:
        return _unknown_x86(flags, vendor, f"{where}, {micro.title} without AVX2 and FMA")
    return _Found(micro, vendor, why, doubts, frozenset(flags))


def _unknown_x86(flags: set[str], vendor: str, where: str) -> _Found:
    """Return conservative numbers from the instruction set alone."""
    base = _HASWELL._replace(title="an unknown x86 core", fma=1, loads=1, stores=0.5, fill=(32, 16, 8))
    if "avx512f" in flags:
        micro = base._replace(llvm="x86-64-v4", isa="avx512", simd_bits=512, registers=32, fill=(64, 32, 8))
    elif {"avx2", "fma"} <= flags:
        micro = base._replace(llvm="x86-64-v3")
    elif "avx" in flags:
        micro = base._replace(llvm="sandybridge", isa="avx")
    else:
        micro = base._replace(llvm="x86-64", isa="sse", simd_bits=128, fill=(16, 16, 8))
    why = f"unknown microarchitecture ({where}): conservative numbers"
    return _Found(micro, vendor, why, _MICRO_KEYS, frozenset(flags))


def _sysctl(key: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        raise DeviceError(f"cannot run sysctl ({error.strerror}); {_BY_HAND}") from None
    return done.stdout.strip()


def _macos_cpu(sysctl: Callable[[str], str]) -> CpuSpec:
    """Return the spec of a Mac's performance cores; not tried on a Mac so far."""
    brand = sysctl("machdep.cpu.brand_string")
    apple = re.match(r"Apple (M\d+)", brand)
    if apple is None:
        raise DeviceError(f"CPU {brand or 'unnamed'!r} on macOS is not detected; {_BY_HAND}")
    level = "hw.perflevel0."
    num_cores = max(1, _integer(sysctl(level + "physicalcpu") or sysctl("hw.physicalcpu"), 1))
    line = _integer(sysctl("hw.cachelinesize"), 128)
    sharing = max(1, min(num_cores, _integer(sysctl(level + "cpusperl2"), num_cores)))
    caches = {
        1: {
            "size": _integer(sysctl(level + "l1dcachesize"), 128 * 1024),
            "ways": 8,
            "line": line,
            "shared": 1,
        },
        2: {
            "size": _integer(sysctl(level + "l2cachesize"), 12 << 20),
            "ways": 16,
            "line": line,
            "shared": sharing,
        },
    }
    clock_hz = {"M1": 3.2e9, "M2": 3.5e9, "M3": 4.05e9, "M4": 4.4e9}.get(apple.group(1), 3.2e9)
    llvm = f"apple-{apple.group(1).lower()}" if apple.group(1) in ("M1", "M2", "M3", "M4") else "apple-m1"
    found = _Found(_APPLE._replace(title=brand, llvm=llvm), "apple", f"{brand}, pipes as in M1", _MICRO_KEYS)
    return _cpu_spec(found, brand, num_cores, clock_hz, "a table by generation", caches)

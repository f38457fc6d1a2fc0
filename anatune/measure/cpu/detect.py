"""Detection of this machine's CPU, with a list of unverified numbers.

The CPU is read from ``/proc/cpuinfo`` and ``/sys`` (macOS: ``sysctl``) and looked up among the known microarchitectures
(`microarchitectures`), because the system does not report ports and latencies. Unknown numbers are conservative guesses
and listed in `unverified`; ``anatune hw detect`` and ``calibrate`` replace them by measured ones.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from anatune.core.hardware.cpu_groups import CacheLevel, CpuCompute, CpuDram, DotInstruction
from anatune.core.hardware.dot import DOT_FEATURES, TILE_FEATURES, WIDENED, dot_operands
from anatune.core.hardware.spec import CpuSpec
from anatune.errors import DeviceError
from anatune.measure.cpu.features import missing_features
from anatune.measure.cpu.microarchitectures import MICRO_KEYS, Micro, Processor, integer, processor_of

_MOST_CPUS = 1 << 16
"""Largest number of logical CPUs, beyond which a list of CPUs is damaged."""

_DOT_LATENCY_CYCLES = 5.0
_FP16_TILES = ("graniterapids",)
"""LLVM's names of processors whose AMX tiles multiply float16, for which there is no flag."""
_BY_HAND = "write a spec yourself, starting from a file in hwspecs/, and pass its path"
_LEVEL_DOUBTS = ("bandwidth_bytes_per_cycle", "latency_cycles")


# ---- CPU ---------------------------------------------------------------------------------------------------


def detect_cpu(root: str | Path = "/", *, allowed: Collection[int] | None = None) -> CpuSpec:
    """Return the spec of this machine's CPU, named "host".

    Cores are physical cores of one socket that this process may use (affinity mask, container quota); of a
    hybrid CPU only the fast ones. The clock is that reported by the system, so that it and the peak are unverified.

    Parameters
    ----------
    root
        Folder that contains ``proc`` and ``sys``; another folder may hold a copy of another machine's files.
    allowed
        Logical CPUs to use; by default those on which this process may run (all of them for another `root`).

    Raises
    ------
    DeviceError
        The system reports no usable data about its CPU.
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
    caches = _caches(folder, cores)
    processor = processor_of(first, l3_bytes=caches.get(3, {}).get("size", 0))
    model = first.get("model name", "").strip() or first.get("hardware", "").strip() or processor.micro.title
    return _cpu_spec(processor, model, num_cores, clock_hz, clock_from, caches)


def _cpu_spec(
    cpu: Processor, model: str, num_cores: int, clock_hz: float, clock_from: str, caches: dict[int, dict[str, int]]
) -> CpuSpec:
    micro = cpu.micro
    doubts = {"clock_hz", "fma_latency_cycles", "reachable_fraction", *cpu.doubts}
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
        vector_ops_per_cycle=float(micro.vector_ops),
        issue_width=micro.issue,
        fp32_peak_flop_per_s=2.0 * num_cores * clock_hz * micro.fma * (micro.simd_bits // 32),
        source=f"detected: {cpu.why}; clock from {clock_from}",
        unverified=tuple(key for key in CpuCompute.__struct_fields__ if key in doubts),
    )
    core_rate = micro.core_gb_per_s * 1e9
    spec = CpuSpec(
        schema_version=1,
        name="host",
        vendor=cpu.vendor,
        model=model,
        arch=micro.llvm,
        hidden_features=cpu.hidden or msgspec.UNSET,
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
    return msgspec.structs.replace(spec, **_dot_instructions(cpu), **_tiles(cpu))


def _dot_instructions(processor: Processor) -> dict[str, DotInstruction]:
    """Return the instructions that sum products of neighbours, with assumed rates.

    Those on widened operands are left out if others multiply four of the same numbers at once.
    """
    micro, instructions = processor.micro, {}
    shown = {name: feature for (isa, name), feature in DOT_FEATURES.items() if isa == micro.isa}
    for name, feature in shown.items():
        if missing_features([feature], processor.flags) or (name in WIDENED and "vpdpbusd" in instructions):
            continue
        share, latency, how = 1.0, _DOT_LATENCY_CYCLES, "assumed to start as often as a float32 multiply-add"
        if name in WIDENED:
            share, latency = min(1.0, micro.vector_ops / (2.0 * micro.fma)), 1.0
            how = "with the addition that follows it, as often as the vector units start two instructions"
        instructions[name] = DotInstruction(
            rate=dot_operands(name).size * share,
            latency_cycles=latency,
            source=f"the system shows {feature}; {how}",
            unverified=("rate", "latency_cycles"),
        )
    return instructions


def _tiles(processor: Processor) -> dict[str, tuple[str, ...]]:
    """Return the AMX instructions, if there are any."""
    names = tuple(
        name
        for name, feature in TILE_FEATURES.items()
        if processor.flags
        and not missing_features(["amx-tile", feature], processor.flags)
        and (feature != "amx-fp16" or processor.micro.llvm in _FP16_TILES)
    )
    return {"amx": names} if names else {}


def _level(cache: dict[str, int] | None, micro: Micro, index: int, default_bytes: int) -> CacheLevel:
    doubts = set(_LEVEL_DOUBTS)
    if cache is None:
        cache = {"size": default_bytes, "ways": 8, "line": 64, "shared": 1}
        doubts |= {"size_bytes", "ways", "line_bytes", "shared_by_cores"}
        source = "not reported by the system: a common size"
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
        raise DeviceError(f"{path} describes no processor; {_BY_HAND}")
    return {cpu: common | lines for cpu, lines in entries.items()}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def cpu_list(text: str | None) -> set[int]:
    """Return the logical CPUs in a list such as "0-3,8", as sysfs and /proc write it."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            cpus.update(range(int(first), min(integer(last, int(first)), _MOST_CPUS) + 1))
    return cpus


def _fast_cpus(root: Path, folder: Path, usable: list[int], entries: dict[int, dict[str, str]]) -> list[int]:
    """Drop the efficiency cores of a hybrid CPU, unless only those are allowed."""
    fast = cpu_list(_read(root / "sys" / "devices" / "cpu_core" / "cpus"))
    if not fast and "cpu implementer" in entries[usable[0]]:
        capacity = {cpu: integer(_read(folder / f"cpu{cpu}" / "cpu_capacity")) for cpu in usable}
        fast = {cpu for cpu, value in capacity.items() if value >= 0.8 * max(capacity.values())}
    return [cpu for cpu in usable if cpu in fast] or usable


def _core_of(folder: Path, entries: dict[int, dict[str, str]], cpu: int) -> tuple[int, int, int]:
    """Return (socket, die or cluster, core) of a logical CPU."""
    topology, lines = folder / f"cpu{cpu}" / "topology", entries.get(cpu, {})
    socket = integer(_read(topology / "physical_package_id") or lines.get("physical id"))
    die = integer(_read(topology / "die_id"))
    siblings = cpu_list(_read(topology / "thread_siblings_list"))
    if siblings:
        return socket, die, min(siblings)
    return socket, die, integer(_read(topology / "core_id") or lines.get("core id"), cpu)


def _one_socket(
    folder: Path, entries: dict[int, dict[str, str]], cpus: list[int]
) -> dict[tuple[int, int, int], list[int]]:
    """Return physical core -> its logical CPUs, for the socket with the most CPUs."""
    cores: dict[tuple[int, int, int], list[int]] = {}
    for cpu in cpus:
        cores.setdefault(_core_of(folder, entries, cpu), []).append(cpu)
    sockets = [core[0] for core in cores]
    best = max(sorted(set(sockets)), key=sockets.count)
    return {core: members for core, members in cores.items() if core[0] == best}


def _quota(root: Path) -> float | None:
    """Return the CPU quota of the container, in CPUs; None without one."""
    group = root / "sys" / "fs" / "cgroup"
    words = (_read(group / "cpu.max") or "").split()
    if len(words) != 2:
        words = [_read(group / "cpu" / f"cpu.cfs_{key}_us") or "" for key in ("quota", "period")]
    quota, period = (integer(word) for word in words)
    return quota / period if quota > 0 and period > 0 else None


def _clock(folder: Path, entries: dict[int, dict[str, str]], cpus: list[int]) -> tuple[float, str]:
    best = max(integer(_read(folder / f"cpu{cpu}" / "cpufreq" / "cpuinfo_max_freq")) for cpu in cpus) * 1e3
    if 1e8 <= best <= 1e10:
        return best, "cpufreq's maximum (one core's boost; vector code of all cores may run slower)"
    texts = [entries[cpu].get("cpu mhz", "") for cpu in cpus]
    now = [float(text) * 1e6 for text in texts if re.fullmatch(r"\d+(\.\d+)?", text)]
    if now and 1e8 <= max(now) <= 1e10:
        return max(now), "/proc/cpuinfo's present value (a virtual machine shows its nominal clock)"
    named = re.search(r"@ *(\d+\.\d+) *GHz", entries[cpus[0]].get("model name", ""))
    if named:
        return float(named.group(1)) * 1e9, "the model's name"
    return 2e9, "an assumption of 2 GHz, because the system does not report it"


def _caches(folder: Path, cores: dict[tuple[int, int, int], list[int]]) -> dict[int, dict[str, int]]:
    """Return level -> size (bytes), ways, line (bytes), shared (cores of this process that share one such cache)."""
    first = min(min(cpus) for cpus in cores.values())
    caches: dict[int, dict[str, int]] = {}
    for index in sorted((folder / f"cpu{first}" / "cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size") or "")
        if (_read(index / "type") or "") not in ("Data", "Unified") or size is None or size.group(1) == "0":
            continue
        shared = cpu_list(_read(index / "shared_cpu_list"))
        caches[integer(_read(index / "level"))] = {
            "size": int(size.group(1)) * 1024 ** ("", "K", "M", "G").index(size.group(2)),
            "ways": integer(_read(index / "ways_of_associativity")),
            "line": integer(_read(index / "coherency_line_size"), 64),
            "shared": max(1, sum(not shared.isdisjoint(cpus) for cpus in cores.values())),
        }
    return caches


def _sysctl(key: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        raise DeviceError(f"cannot run sysctl ({error.strerror}); {_BY_HAND}") from None
    return done.stdout.strip()


def _macos_cpu(sysctl: Callable[[str], str]) -> CpuSpec:
    """Return the spec of a Mac's performance cores; never run on a Mac so far."""
    brand = sysctl("machdep.cpu.brand_string")
    apple = re.match(r"Apple (M\d+)", brand)
    if apple is None:
        raise DeviceError(f"the CPU {brand or 'unnamed'!r} on macOS is not supported by detection; {_BY_HAND}")
    level = "hw.perflevel0."
    num_cores = max(1, integer(sysctl(level + "physicalcpu") or sysctl("hw.physicalcpu"), 1))
    line = integer(sysctl("hw.cachelinesize"), 128)
    sharing = max(1, min(num_cores, integer(sysctl(level + "cpusperl2"), num_cores)))
    caches = {
        1: {"size": integer(sysctl(level + "l1dcachesize"), 128 * 1024), "ways": 8, "line": line, "shared": 1},
        2: {"size": integer(sysctl(level + "l2cachesize"), 12 << 20), "ways": 16, "line": line, "shared": sharing},
    }
    clock_hz = {"M1": 3.2e9, "M2": 3.5e9, "M3": 4.05e9, "M4": 4.4e9}.get(apple.group(1), 3.2e9)
    llvm = f"apple-{apple.group(1).lower()}" if apple.group(1) in ("M1", "M2", "M3", "M4") else "apple-m1"
    base = processor_of({"cpu implementer": "0x61"})
    micro = msgspec.structs.replace(base.micro, title=brand, llvm=llvm)
    processor = base._replace(micro=micro, why=f"{brand}, pipes as in M1", doubts=MICRO_KEYS)
    return _cpu_spec(processor, brand, num_cores, clock_hz, "a table by generation", caches)

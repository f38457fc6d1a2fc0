import itertools
import os
import platform
import types
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatune.core.hardware.files import check_spec_file, hardware, load_spec_file
from anatune.core.hardware.spec import DOT_INSTRUCTIONS, CpuSpec, GpuSpec
from anatune.errors import DeviceError
from anatune.measure.cpu import detect
from anatune.measure.cpu.detect import detect_cpu
from anatune.measure.cpu.host_files import write_host_spec
from anatune.measure.cuda.detect import gpu_detection
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from tests.wording import refuses

LINUX = pytest.mark.skipif(platform.system() != "Linux", reason="reads this machine's /proc and /sys")
AVX2 = "fpu sse sse2 avx avx2 fma"
AVX512 = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def cache(root: Path, cpu: int, index: int, level: int, size: str, ways: int, shared: str, kind: str) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    for name, value in (
        ("level", level),
        ("size", size),
        ("type", kind),
        ("ways_of_associativity", ways),
        ("coherency_line_size", 64),
        ("shared_cpu_list", shared),
    ):
        write(folder / name, value)


def x86(
    root: Path,
    *,
    vendor: str,
    family: int,
    model: int,
    name: str,
    flags: str,
    stepping: int = 7,
    sockets: int = 1,
    cores: int = 2,
    threads: int = 1,
    caches: tuple[tuple[int, str, int], ...] = (),
    khz: int = 0,
) -> Path:
    """Write the files of an x86 machine; logical CPUs count sockets x cores first, then second threads."""
    physical = sockets * cores
    lines = []
    for cpu in range(physical * threads):
        core = cpu % physical
        socket = core // cores
        lines.append(
            f"processor\t: {cpu}\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
            f"model name\t: {name}\nstepping\t: {stepping}\ncpu MHz\t\t: 2100.000\nphysical id\t: {socket}\n"
            f"core id\t\t: {core % cores}\nflags\t\t: {flags}\n"
        )
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        siblings = ",".join(str(core + physical * thread) for thread in range(threads))
        write(folder / "topology/physical_package_id", socket)
        write(folder / "topology/thread_siblings_list", siblings)
        if khz:
            write(folder / "cpufreq/cpuinfo_max_freq", khz)
        socket_cpus = ",".join(str(c) for c in range(physical * threads) if c % physical // cores == socket)
        for index, (level, size, ways) in enumerate(caches):
            shared = siblings if level < 3 else socket_cpus
            cache(root, cpu, index, level, size, ways, shared, "Data" if level == 1 else "Unified")
        if caches:
            cache(root, cpu, 9, 1, "32K", 8, siblings, "Instruction")
    write(root / "proc/cpuinfo", "\n".join(lines))
    return root


def cascade_lake(root: Path, **changes: object) -> Path:
    values = {
        "vendor": "GenuineIntel",
        "family": 6,
        "model": 85,
        "name": "Intel(R) Xeon(R) Gold 6230R CPU @ 2.10GHz",
        "flags": f"{AVX512} avx512_vnni",
        "sockets": 2,
        "cores": 26,
        "threads": 2,
        "caches": ((1, "32K", 8), (2, "1024K", 16), (3, "36608K", 11)),
        "khz": 4000000,
    }
    return x86(root, **(values | changes))


def arm(root: Path, parts: list[int], implementer: int = 0x41, capacity: list[int] | None = None) -> Path:
    lines = [
        f"processor\t: {cpu}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd\nCPU implementer\t: {implementer:#x}\n"
        f"CPU architecture: 8\nCPU part\t: {part:#x}\n"
        for cpu, part in enumerate(parts)
    ]
    write(root / "proc/cpuinfo", "\n".join(lines) + "\nHardware\t: BCM2835\n")
    for cpu, value in enumerate(capacity or []):
        write(root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", value)
    return root


# ---- this machine ----


@LINUX
def test_this_machine_round_trips(tmp_path):
    spec = detect_cpu()
    path = write_host_spec(tmp_path / "deep" / "folder")
    assert path.name == "host.toml"
    assert os.listdir(path.parent) == ["host.toml"]
    again = load_spec_file(path)
    assert isinstance(again, CpuSpec)
    assert again.compute.num_cores == spec.compute.num_cores
    assert hardware("host", user_folder=path.parent) == again
    assert [finding for finding in check_spec_file(path) if finding.level == "error"] == []
    assert spec.compute.num_cores <= len(os.sched_getaffinity(0))
    assert "clock_hz" in spec.compute.unverified


OTHER = msgspec.structs.replace(hardware("i7_3770"), name="host")


@LINUX
def test_written_spec_replaces_the_old_one(tmp_path):
    spec = detect_cpu()
    first = write_host_spec(tmp_path, spec)
    assert load_spec_file(first) == spec
    write_host_spec(tmp_path, OTHER)
    assert load_spec_file(first) == OTHER
    assert os.listdir(tmp_path) == ["host.toml"]
    assert write_host_spec(tmp_path, hardware("cortex_a72")) == tmp_path / "cortex_a72.toml"  # a board's


def test_unwritable_folder_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with refuses(DeviceError):
        write_host_spec(tmp_path / "file" / "below", OTHER)


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_host_spec(tmp_path, OTHER)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("anatune.files.os.replace", refuse)
    with refuses(DeviceError):
        write_host_spec(tmp_path, msgspec.structs.replace(hardware("ryzen_3700x"), name="host"))
    assert load_spec_file(tmp_path / "host.toml") == OTHER
    assert os.listdir(tmp_path) == ["host.toml"]


# ---- other machines ----


def test_cascade_lake_with_two_sockets_and_two_threads(tmp_path):
    spec = detect_cpu(cascade_lake(tmp_path))
    packaged = hardware("xeon_gold_6230r")
    assert isinstance(packaged, CpuSpec)
    compute = spec.compute
    assert spec.arch == packaged.arch == "cascadelake"
    assert spec.vendor == "intel"
    assert compute.num_cores == 26
    assert compute.clock_hz == 4e9
    for key in ("isa", "simd_bits", "fma_per_cycle", "num_vector_registers", "loads_per_cycle"):
        assert getattr(compute, key) == getattr(packaged.compute, key)
    assert (spec.l1.size_bytes, spec.l1.ways, spec.l1.shared_by_cores) == (32768, 8, 1)
    assert (spec.l2.size_bytes, spec.l2.shared_by_cores) == (1 << 20, 1)
    assert spec.l3 is not None
    assert (spec.l3.size_bytes, spec.l3.ways, spec.l3.shared_by_cores) == (36608 * 1024, 11, 26)
    assert compute.fp32_peak_flop_per_s == pytest.approx(26 * 4e9 * 64)


def test_affinity_counts_physical_cores(tmp_path):
    root = cascade_lake(tmp_path)
    spec = detect_cpu(root, allowed={0, 1, 52, 53})
    assert spec.compute.num_cores == 2
    assert spec.l3 is not None
    assert spec.l3.shared_by_cores == 2
    assert detect_cpu(root, allowed={0, 26, 27}).compute.num_cores == 2


def test_container_quota(tmp_path):
    root = cascade_lake(tmp_path)
    write(root / "sys/fs/cgroup/cpu.max", "350000 100000")
    assert detect_cpu(root).compute.num_cores == 3
    write(root / "sys/fs/cgroup/cpu.max", "50000 100000")
    assert detect_cpu(root).compute.num_cores == 1
    write(root / "sys/fs/cgroup/cpu.max", "max 100000")
    assert detect_cpu(root).compute.num_cores == 26
    (root / "sys/fs/cgroup/cpu.max").unlink()
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert detect_cpu(root).compute.num_cores == 4
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    assert detect_cpu(root).compute.num_cores == 26


def test_gold_5000_has_one_avx512_unit_and_says_it_is_a_guess(tmp_path):
    compute = detect_cpu(cascade_lake(tmp_path, name="Intel(R) Xeon(R) Gold 5220 CPU @ 2.20GHz")).compute
    assert compute.fma_per_cycle == 1
    assert "fma_per_cycle" in compute.unverified
    older = detect_cpu(cascade_lake(tmp_path, flags=AVX512, name="Intel(R) Xeon(R) Gold 6130 CPU"))
    assert older.arch == "skylake-avx512"
    assert older.compute.fma_per_cycle == 2


def test_hidden_avx512_is_not_used(tmp_path):
    compute = detect_cpu(cascade_lake(tmp_path, flags="sse2 avx avx2 fma")).compute
    assert (compute.isa, compute.simd_bits, compute.fma_per_cycle) == ("avx2", 256, 2)
    assert compute.num_vector_registers == 16


def test_ivy_bridge(tmp_path):
    root = x86(
        tmp_path, vendor="GenuineIntel", family=6, model=58, name="Intel(R) Core(TM) i7-3770 CPU @ 3.40GHz",
        flags="sse2 avx", cores=4, threads=2, caches=((1, "32K", 8), (2, "256K", 8), (3, "8192K", 16)),
    )  # fmt: skip
    spec, packaged = detect_cpu(root), hardware("i7_3770")
    assert isinstance(packaged, CpuSpec)
    assert spec.arch == packaged.arch
    for key in ("isa", "simd_bits", "fma_per_cycle", "loads_per_cycle", "stores_per_cycle", "num_cores"):
        assert getattr(spec.compute, key) == getattr(packaged.compute, key)
    assert spec.compute.clock_hz == 2.1e9


@pytest.mark.parametrize(
    ("family", "model", "arch", "packaged"),
    [
        (23, 1, "znver1", None),
        (23, 113, "znver2", "ryzen_3700x"),
        (25, 1, "znver3", "epyc_7763"),
        (25, 97, "znver4", "ryzen_7950x"),
        (25, 17, "znver4", None),
        (26, 2, "znver5", "epyc_9575f"),
        (26, 68, "znver5", "ryzen_9950x"),
        (26, 36, "znver5", None),
    ],
)
def test_zen(tmp_path, family, model, arch, packaged):
    root = x86(
        tmp_path, vendor="AuthenticAMD", family=family, model=model, name="AMD",
        flags=AVX512 if arch in ("znver4", "znver5") else AVX2,
        caches=((1, "32K", 8), (2, "512K", 8), (3, "16384K", 16)),
    )  # fmt: skip
    spec = detect_cpu(root)
    assert (spec.arch, spec.vendor) == (arch, "amd")
    if packaged:
        other = hardware(packaged)
        assert isinstance(other, CpuSpec)
        assert other.arch == arch
        for key in ("isa", "simd_bits", "fma_per_cycle", "num_vector_registers", "issue_width"):
            assert getattr(spec.compute, key) == getattr(other.compute, key)


def test_unknown_x86_is_conservative_and_doubts_everything(tmp_path):
    spec = detect_cpu(x86(tmp_path, vendor="SomeoneElse", family=99, model=1, name="New CPU @ 2.75GHz", flags=AVX512))
    compute = spec.compute
    assert (spec.arch, spec.vendor, compute.isa) == ("x86-64-v4", "unknown", "avx512")
    assert compute.fma_per_cycle == 1
    assert {"clock_hz", "fma_per_cycle", "loads_per_cycle", "issue_width"} <= set(compute.unverified)
    assert {"size_bytes", "ways"} <= set(spec.l1.unverified)
    assert spec.l3 is None


@pytest.mark.parametrize(
    ("flags", "isa", "bits"), [("avx2 fma avx", "avx2", 256), ("avx", "avx", 256), ("sse2", "sse", 128)]
)
def test_instruction_sets_of_unknown_x86(tmp_path, flags, isa, bits):
    root = x86(tmp_path, vendor="X", family=1, model=1, name="X", flags=flags)
    compute = detect_cpu(root).compute
    assert (compute.isa, compute.simd_bits) == (isa, bits)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (f"{AVX512} avx512_bf16 avx512_vnni avx_vnni", {"vdpbf16ps": 2.0, "vpdpbusd": 4.0}),
        (f"{AVX512} avx_vnni", {"vpmaddwd": 1.5}),  # one unit multiplies, one and a half add
        ("avx2 fma avx avx_vnni avx_vnni_int8 avx512_vnni", {"vpdpbusd": 4.0, "vpdpbssd": 4.0}),
        (f"{AVX512} avx512_fp16", {"vfmaddph": 2.0, "vpmaddwd": 1.5}),
        ("avx2 fma avx avx512_fp16", {"vpmaddwd": 1.5}),
        ("avx", {}),
    ],
)
def test_instructions_that_sum_products(tmp_path, flags, found):
    spec = detect_cpu(x86(tmp_path, vendor="X", family=1, model=1, name="X", flags=flags))
    names = itertools.chain(*DOT_INSTRUCTIONS.values())
    rates = {name: own.rate for name in names if (own := spec.dot_instruction(name))}
    assert rates == found
    assert all(spec.dot_instruction(name).unverified == ("rate", "latency_cycles") for name in found)
    assert spec.peak_flop_per_s("bfloat16") == spec.peak_flop_per_s("float32") * found.get("vdpbf16ps", 1.0)


def test_intel_hybrid_counts_performance_cores(tmp_path):
    root = x86(tmp_path, vendor="GenuineIntel", family=6, model=183, name="i7-13700", flags="avx avx2 fma", cores=8)
    write(root / "sys/devices/cpu_core/cpus", "0-3")
    assert detect_cpu(root).compute.num_cores == 4
    assert detect_cpu(root, allowed={5, 6}).compute.num_cores == 2


def test_cortex_a72(tmp_path):
    root = arm(tmp_path, [0xD08] * 4)
    for cpu in range(4):
        cache(root, cpu, 0, 1, "32K", 2, str(cpu), "Data")
        cache(root, cpu, 1, 2, "1024K", 16, "0-3", "Unified")
        write(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", 1500000)
    spec, packaged = detect_cpu(root), hardware("cortex_a72")
    assert isinstance(packaged, CpuSpec)
    assert spec.compute.fp32_peak_flop_per_s == packaged.compute.fp32_peak_flop_per_s
    assert (spec.arch, spec.model, spec.vendor) == ("cortex-a72", "BCM2835", "arm")
    assert (spec.l2.size_bytes, spec.l2.shared_by_cores, spec.l3) == (1 << 20, 4, None)


def test_big_little_keeps_the_big_cores(tmp_path):
    root = arm(tmp_path, [0xD03] * 4 + [0xD08] * 2, capacity=[400] * 4 + [1024] * 2)
    spec = detect_cpu(root)
    assert (spec.arch, spec.compute.num_cores) == ("cortex-a72", 2)


@pytest.mark.parametrize(
    ("implementer", "part", "arch"),
    [(0x41, 0xD40, "neoverse-v1"), (0x43, 0x0AF, "thunderx2t99"), (0x61, 0x22, "apple-m1"), (0x41, 1, "generic")],
)
def test_arm_parts(tmp_path, implementer, part, arch):
    spec = detect_cpu(arm(tmp_path, [part] * 2, implementer))
    assert spec.arch == arch
    assert spec.compute.isa == "neon"
    assert ("fma_per_cycle" in spec.compute.unverified) == (arch == "generic")


def test_odd_cache_numbers_are_doubted(tmp_path):
    root = x86(
        tmp_path, vendor="GenuineIntel", family=6, model=63, name="X", flags="avx avx2 fma",
        caches=((1, "32K", 0), (2, "256K", 7)),
    )  # fmt: skip
    spec = detect_cpu(root)
    assert "ways" in spec.l1.unverified
    assert "ways" in spec.l2.unverified
    assert spec.l1.size_bytes % (spec.l1.ways * 64) == 0


@pytest.mark.parametrize("text", ["", "nonsense\n\n", "processor : 0\nmodel name : X\n"])
def test_useless_cpuinfo(tmp_path, text):
    write(tmp_path / "proc/cpuinfo", text)
    with refuses(DeviceError):
        detect_cpu(tmp_path)


def test_missing_cpuinfo(tmp_path):
    with refuses(DeviceError):
        detect_cpu(tmp_path)


@given(text=st.text(st.sampled_from("processor: 0123\nflags avx2 fma model name cpu MHz family -@\t"), max_size=400))
def test_any_cpuinfo_gives_a_spec_or_a_clear_error(tmp_path_factory, text):
    root = tmp_path_factory.mktemp("machine")
    write(root / "proc/cpuinfo", "processor : 0\nflags : avx2 fma\n" + text)
    try:
        spec = detect_cpu(root)
    except DeviceError:
        return
    assert spec.compute.num_cores >= 1


def test_mac():
    answers = {
        "machdep.cpu.brand_string": "Apple M3",
        "hw.perflevel0.physicalcpu": "4",
        "hw.perflevel0.cpusperl2": "4",
        "hw.cachelinesize": "128",
        "hw.perflevel0.l1dcachesize": "131072",
        "hw.perflevel0.l2cachesize": "16777216",
    }
    spec, packaged = detect._macos_cpu(lambda key: answers.get(key, "")), hardware("apple_m3")
    assert isinstance(packaged, CpuSpec)
    assert spec.arch == packaged.arch
    assert spec.compute.fp32_peak_flop_per_s == pytest.approx(packaged.compute.fp32_peak_flop_per_s)
    assert (spec.l1.size_bytes, spec.l2.size_bytes) == (packaged.l1.size_bytes, packaged.l2.size_bytes)
    with refuses(DeviceError):
        detect._macos_cpu(lambda key: "")


# ---- GPUs ----

RTX3090 = {
    "MULTIPROCESSOR_COUNT": 82,
    "CLOCK_RATE": 1695000,
    "MEMORY_CLOCK_RATE": 9751000,
    "GLOBAL_MEMORY_BUS_WIDTH": 384,
    "L2_CACHE_SIZE": 6291456,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 102400,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 101376,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 1536,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 16,
    "WARP_SIZE": 32,
    "COMPUTE_CAPABILITY_MAJOR": 8,
    "COMPUTE_CAPABILITY_MINOR": 6,
}


def fake_driver(*devices: tuple[str, dict[str, int]]) -> CudaBindings:
    names = {f"CU_DEVICE_ATTRIBUTE_{name}": name for name in RTX3090}
    driver = types.SimpleNamespace(
        CUdevice_attribute=types.SimpleNamespace(**names),
        cuInit=lambda _: (0,),
        cuDeviceGetCount=lambda: (0, len(devices)),
        cuDeviceGet=lambda index: (0, index),
        cuDeviceGetName=lambda size, index: (0, devices[index][0].encode().ljust(size, b"\0")),
        cuDeviceGetAttribute=lambda name, index: (0, devices[index][1][name]),
    )
    return CudaBindings(driver)


def test_known_gpu():
    (spec,), reason = gpu_detection(fake_driver(("NVIDIA GeForce RTX 3090", RTX3090)))
    packaged = hardware("rtx3090")
    assert isinstance(packaged, GpuSpec)
    assert "1 found" in reason
    assert (spec.name, spec.model, spec.arch) == ("rtx3090", "NVIDIA GeForce RTX 3090", "sm_86")
    assert spec.dram.bandwidth_bytes_per_s == pytest.approx(936e9, rel=1e-3)
    assert "bandwidth_bytes_per_s" not in spec.dram.unverified
    assert spec.l2.bandwidth_bytes_per_s == packaged.l2.bandwidth_bytes_per_s
    assert spec.compute.fp32_peak_flop_per_s == pytest.approx(packaged.compute.fp32_peak_flop_per_s)


def test_attributes_win_and_other_devices_get_their_own_name():
    ada = RTX3090 | {"COMPUTE_CAPABILITY_MINOR": 9, "MULTIPROCESSOR_COUNT": 24, "L2_CACHE_SIZE": 25165824}
    new = RTX3090 | {"COMPUTE_CAPABILITY_MAJOR": 13, "COMPUTE_CAPABILITY_MINOR": 0, "MEMORY_CLOCK_RATE": 0}
    specs, _ = gpu_detection(fake_driver(("NVIDIA GeForce RTX 4060", ada), ("NVIDIA Something New", new)))
    assert [spec.name for spec in specs] == ["nvidia_geforce_rtx_4060", "nvidia_something_new"]
    assert [spec.arch for spec in specs] == ["sm_89", "sm_130"]
    assert specs[0].l2.size_bytes == 25165824
    assert "bandwidth_bytes_per_s" in specs[0].l2.unverified
    assert "fp32_lanes_per_sm" in specs[1].compute.unverified
    assert specs[1].compute.max_warps_per_sm == 48


@pytest.mark.parametrize(
    ("product", "minor", "major", "sms", "name"),
    [
        ("Tesla V100-SXM2-16GB", 0, 7, 80, "v100_sxm2"),
        ("Tesla V100-PCIE-16GB", 0, 7, 80, "v100_pcie"),
        ("NVIDIA A100-SXM4-40GB", 0, 8, 108, "a100_sxm"),
        ("NVIDIA A100-PCIE-40GB", 0, 8, 108, "a100_pcie"),
        ("NVIDIA H100 80GB HBM3", 0, 9, 132, "h100_sxm"),
        ("NVIDIA H100 PCIe", 0, 9, 114, "h100_pcie"),
        ("NVIDIA H200", 0, 9, 132, "h200"),
        ("Tesla T4", 5, 7, 40, "t4"),
        ("NVIDIA GeForce RTX 2070 SUPER", 5, 7, 40, "rtx2070s"),
        ("NVIDIA GeForce GTX 1080 Ti", 1, 6, 28, "gtx1080ti"),
        ("NVIDIA TITAN X (Pascal)", 1, 6, 28, "titanx_pascal"),
        ("GeForce GTX TITAN X", 2, 5, 24, "titanx_maxwell"),
    ],
)
def test_products_the_driver_names(product, minor, major, sms, name):
    said = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor, "MULTIPROCESSOR_COUNT": sms}
    (spec,), _ = gpu_detection(fake_driver((product, RTX3090 | said)))
    assert spec.name == name


def test_no_gpu_is_no_error(monkeypatch):
    assert gpu_detection(fake_driver()) == ([], "the NVIDIA driver reports no device")

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    found, why = gpu_detection()
    assert found == []
    assert "pip install cuda-bindings" in why

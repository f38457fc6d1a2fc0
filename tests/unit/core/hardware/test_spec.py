import math
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatune.core.hardware.cpu_groups import CpuLaunch, MicrokernelTable
from anatune.core.hardware.files import (
    check_spec_file,
    hardware,
    list_hardware,
    load_spec_file,
    spec_to_toml,
    user_spec_folder,
)
from anatune.core.hardware.gpu_groups import GpuLaunch
from anatune.core.hardware.groups import SpecGroup, value_problem
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import SpecError, UnknownNameError
from anatune.printable import printable
from anatune.resources import data_folder
from tests.cases import each
from tests.wording import refuses

FILES = sorted(data_folder("hwspecs").glob("*.toml"))
GPUS = [spec for spec in map(load_spec_file, FILES) if isinstance(spec, GpuSpec)]
CPUS = [spec for spec in map(load_spec_file, FILES) if isinstance(spec, CpuSpec)]
NAMES = [
    "gtx1080ti", "titanx_maxwell", "titanx_pascal", "gtx1650", "v100_sxm2", "v100_pcie", "t4",
    "rtx2070s", "rtx2080ti", "titan_rtx", "a100_sxm", "a100_sxm_80gb", "a100_pcie", "rtx3060_laptop", "rtx3080",
    "rtx3090", "a6000", "rtx4090", "h100_sxm", "h100_pcie", "h200", "b200", "k20", "k80", "p100",
    "tx2", "jetson_nano", "mi50", "l4", "l40s", "a10", "a30", "rtx4080", "rtx4070", "rtx5090", "rtx5080",
    "rtx_pro_6000", "h20", "gh200", "b100", "orin", "mi100", "mi210", "mi250x", "mi300x", "rx7900xtx",
    "mi325x", "mi350x", "mi355x", "xeon_gold_6230r", "xeon_gold_5220", "xeon_gold_6130",
    "xeon_8124m", "i7_3770", "i5_1035g1", "ryzen_3700x", "epyc_7763", "ryzen_7950x", "ryzen_9950x",
    "epyc_9575f", "xeon_8480", "thunderx2", "cortex_a72", "graviton3", "apple_m3",
    "gb10", "gb200", "b300", "gb300", "jetson_thor", "rtx_pro_6000_server", "rtx_pro_6000_max_q", "radeon_8060s",
    "raspberry_pi_5", "rk3588", "cortex_a53", "cortex_a55", "cortex_a57", "kunpeng_920", "neoverse_n1", "neoverse_n2",
    "apple_m1",
]  # fmt: skip

# arch: smem/SM KB, smem/block KB, reserved B, granularity B, blocks/SM, warps/SM, registers/SM,
# registers/block, sub-partitions; warp size and registers allocated at once, where they are not 32 and 256.
# From cuda_occupancy.h (CUDA 13.5); Kepler and 5.2: programming guide; AMD: ROCm's table, LLVM's AMDGPU target.
OCCUPANCY = {
    "sm_35": (48, 48, 0, 256, 16, 64, 65536, 65536, 4),
    "sm_37": (112, 48, 0, 256, 16, 64, 131072, 65536, 4),
    "sm_52": (96, 48, 0, 256, 32, 64, 65536, 65536, 4),
    "sm_53": (64, 48, 0, 256, 32, 64, 65536, 32768, 4),
    "sm_60": (64, 48, 0, 256, 32, 64, 65536, 65536, 2),
    "sm_61": (96, 48, 0, 256, 32, 64, 65536, 65536, 4),
    "sm_62": (64, 48, 0, 256, 32, 64, 65536, 32768, 4),
    "sm_70": (96, 96, 0, 256, 32, 64, 65536, 65536, 4),
    "sm_75": (64, 64, 0, 256, 16, 32, 65536, 65536, 4),
    "sm_80": (164, 163, 1024, 128, 32, 64, 65536, 65536, 4),
    "sm_86": (100, 99, 1024, 128, 16, 48, 65536, 65536, 4),
    "sm_87": (164, 163, 1024, 128, 16, 48, 65536, 65536, 4),
    "sm_89": (100, 99, 1024, 128, 24, 48, 65536, 65536, 4),
    "sm_90": (228, 227, 1024, 128, 32, 64, 65536, 65536, 4),
    "sm_100": (228, 227, 1024, 128, 32, 64, 65536, 65536, 4),
    "sm_103": (228, 227, 1024, 128, 32, 64, 65536, 65536, 4),
    "sm_110": (228, 227, 1024, 128, 32, 64, 65536, 65536, 4),
    "sm_120": (100, 99, 1024, 128, 24, 48, 65536, 65536, 4),
    "sm_121": (100, 99, 1024, 128, 24, 48, 65536, 65536, 4),
    "gfx906": (64, 64, 0, 512, 40, 40, 65536, 65536, 4, 64, 256),
    "gfx908": (64, 64, 0, 512, 40, 40, 65536, 65536, 4, 64, 256),
    "gfx90a": (64, 64, 0, 512, 32, 32, 131072, 131072, 4, 64, 512),
    "gfx942": (64, 64, 0, 512, 32, 32, 131072, 131072, 4, 64, 512),
    "gfx950": (160, 160, 0, 1280, 32, 32, 131072, 131072, 4, 64, 512),
    "gfx1100": (64, 64, 0, 1024, 32, 32, 98304, 98304, 2, 32, 768),
    "gfx1151": (64, 64, 0, 1024, 32, 32, 98304, 98304, 2, 32, 768),
}
# SMs, lanes, boost GHz, DRAM GB/s, L2 MiB, peak GFLOP/s: the device table of the recorded measurements.
MEASURED_DEVICES = {
    "k20": ("sm_35", 13, 192, 0.706, 208.0, 1.25, 3524.4),
    "k80": ("sm_37", 13, 192, 0.875, 240.0, 1.5, 4368.0),
    "tx2": ("sm_62", 2, 128, 1.302, 59.7, 0.5, 666.6),
    "1080ti": ("sm_61", 28, 128, 1.582, 484.0, 2.75, 11339.8),
    "p100": ("sm_60", 56, 64, 1.303, 549.0, 3.0, 9339.9),
    "titan_rtx": ("sm_75", 72, 64, 1.77, 672.0, 6.0, 16312.3),
    "rtx3080": ("sm_86", 68, 128, 1.71, 760.0, 5.0, 29767.7),
    "rtx3090": ("sm_86", 82, 128, 1.695, 936.0, 6.0, 35581.4),
    "mi50": ("gfx906", 60, 64, 1.746, 1024.0, 4.0, 13409.3),
}


@pytest.fixture(autouse=True, scope="module")
def _no_specs_of_the_user(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


def with_keys(spec, **groups):
    """Return a spec with some keys of its groups replaced; calibration of the files then disturbs no test."""
    replaced = {name: msgspec.structs.replace(getattr(spec, name), **keys) for name, keys in groups.items()}
    return msgspec.structs.replace(spec, **replaced)


def sample(name: str):
    """Return a packaged spec whose calibrated numbers are fixed here."""
    if name == "rtx3090":
        return with_keys(
            hardware(name),
            compute={"reachable_fraction": 0.75},
            shared_memory={"bytes_per_cycle_per_sm": 128.0, "latency_cycles": 29.0},
            l1={"latency_cycles": 39.0},
            l2={"bandwidth_bytes_per_s": 2604e9, "latency_cycles": 217.0},
            dram={"bandwidth_bytes_per_s": 936e9, "latency_cycles": 470.0},
            launch={"overhead_s": 2.5e-6, "source": "back-to-back launches", "unverified": ("overhead_s",)},
        )
    return with_keys(
        hardware(name),
        l1={"bandwidth_bytes_per_cycle": 111.0, "latency_cycles": 5.0},
        l2={"bandwidth_bytes_per_cycle": 41.0, "latency_cycles": 14.0},
        l3={"bandwidth_bytes_per_cycle": 9.4, "latency_cycles": 70.0},
        dram={"core_bandwidth_bytes_per_s": 12e9},
    )


def edited(tmp_path: Path, *changes: tuple[str, str], source: str = "rtx3090") -> Path:
    """Write a sample spec with pieces of text replaced and return the path."""
    text = spec_to_toml(sample(source))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "edited.toml"
    path.write_text(text)
    return path


def message(path: str | Path) -> str:
    with pytest.raises(SpecError) as caught:
        hardware(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert printable(str(path)) in text
    return text


# ---- the packaged specs ----


def test_all_promised_devices_are_there():
    assert sorted(spec.name for spec in [*GPUS, *CPUS]) == sorted(NAMES)


@each("path", FILES)
def test_packaged_file(path):
    spec = load_spec_file(path)
    assert path.stem in (spec.name, f"{spec.vendor}_{spec.name}")
    assert [str(finding) for finding in check_spec_file(path) if finding.level != "note"] == []
    assert hardware(spec.name) is spec
    assert "/work" not in path.read_text()


@each("spec", GPUS)
def test_gpu_peak_and_limits(spec):
    compute = spec.compute
    peak = 2 * compute.num_sms * compute.fp32_lanes_per_sm * compute.clock_hz
    assert compute.fp32_peak_flop_per_s == pytest.approx(peak, rel=0.02)
    shared, registers = spec.shared_memory, spec.registers
    expected = OCCUPANCY[spec.arch]
    assert (
        shared.per_sm_bytes // 1024,
        shared.per_block_bytes // 1024,
        shared.reserved_per_block_bytes,
        shared.granularity_bytes,
        compute.max_blocks_per_sm,
        compute.max_warps_per_sm,
        registers.per_sm,
        registers.per_block,
        registers.num_sub_partitions,
        compute.warp_size,
        registers.allocation_unit,
    ) == (expected if len(expected) > 9 else (*expected, 32, 256))
    assert compute.max_threads_per_block == 1024


@each("spec", CPUS)
def test_cpu_peak(spec):
    compute = spec.compute
    peak = 2 * compute.num_cores * compute.clock_hz * compute.fma_per_cycle * compute.simd_bits / 32
    assert compute.fp32_peak_flop_per_s == pytest.approx(peak, rel=0.02)
    assert spec.fp32_lanes * 32 == compute.simd_bits


@pytest.mark.parametrize("name", MEASURED_DEVICES)
def test_gpu_agrees_with_the_recorded_measurements_device_table(name):
    spec = hardware(name)
    arch, *numbers = MEASURED_DEVICES[name]
    assert isinstance(spec, GpuSpec)
    assert spec.arch == arch
    compute = spec.compute
    assert [
        compute.num_sms,
        compute.fp32_lanes_per_sm,
        compute.clock_hz / 1e9,
        spec.dram.bandwidth_bytes_per_s / 1e9,
        spec.l2.size_bytes / 2**20,
        compute.fp32_peak_flop_per_s / 1e9,
    ] == pytest.approx(numbers, rel=1e-4)


def test_published_peaks():
    published = {
        "rtx3090": 35.58,
        "rtx4090": 82.58,
        "a100": 19.49,
        "h100": 66.91,
        "v100": 15.67,
        "rtx2080ti": 13.45,
        "l4": 30.3,
        "l40s": 91.6,
        "a10": 31.2,
        "a30": 10.3,
        "rtx4080": 48.7,
        "rtx4070": 29.1,
        "rtx5090": 104.8,
        "rtx5080": 56.3,
        "rtx_pro_6000": 125.0,
        "gh200": 67.0,
        "orin": 5.3,
        "mi100": 23.1,
        "mi210": 22.6,
        "mi250x": 47.9 / 2,
        "mi300x": 163.4,
        "mi325x": 163.4,
        "mi350x": 144.2,
        "mi355x": 157.3,
        "rx7900xtx": 61.4,
    }
    got = {name: hardware(name).compute.fp32_peak_flop_per_s / 1e12 for name in published}
    assert got == pytest.approx(published, rel=0.01)
    assert hardware("b100").compute.fp32_peak_flop_per_s / 1e12 == pytest.approx(60.0, rel=0.02)
    assert "44" in hardware("h20").compute.source  # which no clock of its 78 SMs gives
    assert "fp32_peak_flop_per_s" in hardware("h20").compute.unverified


def test_published_rates_of_matrix_units():
    """float16, tf32, 8-bit floats, int8: dense TFLOP/s of the data sheets."""
    published = {
        "a100": (312, 156, None, 624),
        "h100": (989.4, 494.7, 1978.9, 1978.9),
        "l40s": (362.05, 183, 733, 733),
        "rtx3090": (71.2, 35.6, None, 284),
        "rtx4090": (165.2, 82.6, 330.3, 660.6),
        "b200": (2250, 1125, 4500, 4500),
        "mi210": (181, None, None, 181),
        "mi300x": (1307.4, 653.7, 2614.9, 2614.9),
        "mi355x": (2516.6, None, 5033.2, 5033.2),
    }
    dtypes = ("float16", "float32", "float8_e4m3fn", "int8")
    for name, rates in published.items():
        got = [hardware(name).tensor_flop_per_s(dtype) for dtype in dtypes]
        assert got == [None if rate is None else pytest.approx(rate * 1e12) for rate in rates], name
    assert hardware("h100").tensor_flop_per_s("float8_e5m2") == 1978.9e12
    assert hardware("h100").tensor_flop_per_s("uint8") == 1978.9e12
    assert hardware("mi300x").tensor_flop_per_s("uint8") is None  # mfma knows signed ones only
    assert hardware("h100").tensor_flop_per_s("int32") is None
    assert hardware("k80").tensor_flop_per_s("float16") is None


@each("spec", [spec for spec in GPUS if spec.tensor_cores is not None])
def test_rates_of_matrix_units_agree_with_the_architecture(spec):
    units, compute = spec.tensor_cores, spec.compute
    assert units.float16_flop_per_s == units.bfloat16_flop_per_s
    has_fp8 = (spec.compute_capability or 0) >= 8.9 or spec.arch in ("gfx942", "gfx950")
    assert (units.fp8_flop_per_s is not msgspec.UNSET) == has_fp8
    assert (units.tf32_flop_per_s is not msgspec.UNSET) == (spec.vendor == "nvidia" or spec.arch == "gfx942")
    most = 4 if "float32" in units.source or spec.name.startswith("rtx") else 2  # GeForce halves sums in float32
    narrow = {"gfx90a": 1, "sm_103": 0.06}.get(spec.arch, 2)  # Blackwell Ultra has few units for int8
    assert narrow * 0.99 <= units.int8_flop_per_s / units.float16_flop_per_s <= most * 1.02
    per_cycle = units.float16_flop_per_s / (2 * compute.num_sms * compute.clock_hz)
    assert 200 < per_cycle < 4200


def test_a_rate_that_a_device_has_not_is_left_out_of_json():
    assert "tf32_flop_per_s" not in msgspec.to_builtins(hardware("mi210"))["tensor_cores"]
    assert "fp8_flop_per_s" not in msgspec.to_builtins(hardware("a100"))["tensor_cores"]
    assert msgspec.json.decode(msgspec.json.encode(hardware("a100")), type=GpuSpec) == hardware("a100")


def test_names_and_aliases_are_unique():
    per_spec = [{word.replace("_", "") for word in (spec.name, *spec.aliases)} for spec in [*GPUS, *CPUS]]
    words = [word for words in per_spec for word in words]
    assert len(words) == len(set(words))


@each("spec", [*GPUS, *CPUS])
def test_aliases_resolve(spec):
    for alias in spec.aliases:
        assert hardware(alias) is spec


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("v100", "v100_sxm2"),
        ("A100", "a100_sxm"),
        ("A100-SXM4-80GB", "a100_sxm_80gb"),
        ("h100", "h100_sxm"),
        ("GeForce GTX 1080 Ti", "gtx1080ti"),
        ("titanx", "titanx_maxwell"),
        ("Titan X Pascal", "titanx_pascal"),
        ("k80s", "k80"),
        ("nvidia_rtx3090", "rtx3090"),
        ("RTX-3090", "rtx3090"),
        ("Xeon Gold 6230R", "xeon_gold_6230r"),
        ("NVIDIA L4", "l4"),
        ("H20", "h20"),
        ("jetson-agx-orin", "orin"),
        ("RTX PRO 6000 Blackwell", "rtx_pro_6000"),
        ("Radeon RX 7900 XTX", "rx7900xtx"),
    ],
)
def test_spellings(text, name):
    assert hardware(text).name == name


def test_list_is_sorted(tmp_path):
    names = [spec.name for spec in list_hardware(user_folder=tmp_path)]
    assert names == sorted(names)
    assert set(names) == set(NAMES)


def test_compute_capability():
    assert hardware("rtx3090").compute_capability == 8.6
    assert hardware("b200").compute_capability == 10.0
    assert hardware("rtx5090").compute_capability == 12.0
    assert hardware("mi50").compute_capability is None


# ---- writing ----


@each("spec", [*GPUS, *CPUS])
def test_round_trip_through_toml(spec, tmp_path):
    path = tmp_path / f"{spec.name}.toml"
    path.write_text(spec_to_toml(spec), encoding="utf-8")
    assert load_spec_file(path) == spec


positive = st.floats(1e9, 1e14, allow_nan=False)


@given(bandwidth=positive, latency=st.floats(1.0, 4000.0), text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_number_and_text_survives_writing(bandwidth, latency, text):
    spec = hardware("rtx3090")
    dram = msgspec.structs.replace(
        spec.dram, bandwidth_bytes_per_s=bandwidth, latency_cycles=latency, source=f"from {text}"
    )
    spec = msgspec.structs.replace(spec, dram=dram, model=text)
    assert msgspec.convert(msgspec.toml.decode(spec_to_toml(spec)), GpuSpec) == spec


# ---- errors ----


def test_unknown_name_lists_close_ones():
    with refuses(UnknownNameError) as caught:
        hardware("rtx390")
    assert "\n" not in str(caught.value)
    with refuses(LookupError):
        hardware("")


def test_host_without_a_saved_spec(tmp_path):
    with refuses(UnknownNameError):
        hardware("host", user_folder=tmp_path)


def test_missing_file_and_directory(tmp_path):
    assert "no such file" in message(tmp_path / "absent.toml")
    assert "is a folder" in message(tmp_path)
    assert check_spec_file(tmp_path)[0].level == "error"
    assert "null" in message("a\0b.toml")
    assert check_spec_file("a\0b.toml")[0].level == "error"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("clock_hz = 1.695e9", "clock_hz = 1695"), ["compute.clock_hz: got 1695", "MHz", "1695000000"]),
        (("clock_hz = 1.695e9", "clock_hz = 1.695"), ["compute.clock_hz: got 1.695", "GHz"]),
        (("clock_hz = 1.695e9", "clock_mhz = 1695"), ["compute.clock_mhz: unknown key", "write clock_hz"]),
        (("= 936e9", "= 936"), ["dram.bandwidth_bytes_per_s: got 936", "GB/s", "9.36e+11"]),
        (("bandwidth_bytes_per_s = 936e9", "bandwidth_gbs = 936"), ["dram.bandwidth_gbs", "bandwidth_bytes_per_s"]),
        (("= 35581.44e9", "= 35.58"), ["compute.fp32_peak_flop_per_s: got 35.58", "TFLOP/s"]),
        (("= 102400", "= 100"), ["shared_memory.per_sm_bytes: got 100", "KiB", "102400"]),
        (("size_bytes = 6291456", "size_bytes = 6"), ["l2.size_bytes: got 6", "MiB", "6291456"]),
        (("overhead_s = 2.5e-06", "overhead_s = 2.5"), ["launch.overhead_s: got 2.5", "us"]),
        (("num_sms = 82", "num_sms = 80"), ["compute.fp32_peak_flop_per_s", "2 %"]),
        (("num_sms = 82", "num_sms = 84"), ["compute.fp32_peak_flop_per_s", "2 %"]),
        (("num_sms = 82\n", ""), ["compute.num_sms: is missing", "whole number"]),
        (("num_sms = 82", 'num_sms = "82"'), ["compute.num_sms: got '82'", "whole number"]),
        (("num_sms = 82", "num_sms = 82.5"), ["compute.num_sms: got 82.5", "whole number"]),
        (("num_sms = 82", "num_sms = true"), ["compute.num_sms: got True", "whole number"]),
        (("num_sms = 82", "num_sms = 0"), ["compute.num_sms: got 0", "expected 1 to"]),
        (("= 936e9", "= nan"), ["dram.bandwidth_bytes_per_s: got nan"]),
        (("= 936e9", "= inf"), ["dram.bandwidth_bytes_per_s: got inf"]),
        (("reachable_fraction = 0.75", "reachable_fraction = 75"), ["compute.reachable_fraction", "per cent"]),
        (("num_sms = 82", "num_sm = 82"), ["compute.num_sm: unknown key", "num_sms"]),
        (('kind = "gpu"\n', ""), ["kind: got 'nothing'", "'gpu' or 'cpu'"]),
        (('kind = "gpu"', "kind = []"), ["kind: got []"]),
        (("schema_version = 1", "schema_version = 2"), ["schema_version: got 2, expected 1"]),
        (('arch = "sm_86"', 'arch = "8.6"'), ["arch is '8.6'", "sm_86"]),
        (('vendor = "nvidia"', 'vendor = "intel"'), ["vendor: got 'intel'", "'nvidia' or 'amd'"]),
        (('name = "rtx3090"', 'name = "RTX 3090"'), ["'RTX 3090'", "lower-case"]),
        (("[launch]", "[lunch]"), ["lunch: unknown key", "launch"]),
        (("[launch]\n", "[compute]\n"), ["not valid TOML"]),
        (("aliases = [", "launch = 3\naliases = ["), ["not valid TOML"]),
        (('source = "back', 'source = 3 # "back'), ["launch.source: got 3", "text"]),
        (('source = "back', 'source = "" # "back'), ["source is empty", "launch"]),
        (('unverified = ["overhead_s"]', 'unverified = ["overheads"]'), ["overheads", "launch"]),
        (("per_block_bytes = 101376", "per_block_bytes = 202752"), ["shared_memory.per_block_bytes", "at most"]),
        (("per_block = 65536", "per_block = 131072"), ["registers.per_block", "at most"]),
    ],
    ids=lambda value: value[1].replace("\n", " ") if isinstance(value, tuple) else "",
)
def test_wrong_content_gives_one_line(tmp_path, change, words):
    path = edited(tmp_path, change)
    text = message(path)
    for word in words:
        assert word in text
    assert "error" in {finding.level for finding in check_spec_file(path)}


def test_table_that_is_no_table(tmp_path):
    path = edited(tmp_path, ("[launch]\noverhead_s = 2.5e-06\n", "[l3]\n"))
    assert "l3: unknown key" in message(path)
    path.write_text('kind = "cpu"\nl1 = 32768\n')
    found = {finding.key: finding.text for finding in check_spec_file(path)}
    assert "expected a table with source, unverified, size_bytes" in found["l1"]
    assert "is missing" in found["compute"]
    assert "l3" not in found


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00k", b"kind = 'gpu\n", b"", b"[" * 5000, b"a = 1\na = 2\n", b"\x00\x01\x02"]
)
def test_damaged_file(tmp_path, content):
    path = tmp_path / "damaged.toml"
    path.write_bytes(content)
    assert message(path)
    assert check_spec_file(path)[0].level == "error"


@given(cut=st.integers(0, 4000), noise=st.binary(max_size=8))
def test_no_damage_escapes_as_another_error(tmp_path_factory, cut, noise):
    raw = (data_folder("hwspecs") / "intel_i7_3770.toml").read_bytes()
    path = tmp_path_factory.mktemp("damage") / "cut.toml"
    path.write_bytes(raw[:cut] + noise + raw[cut + len(noise) :])
    if any(finding.level == "error" for finding in check_spec_file(path)):
        message(path)
    else:
        load_spec_file(path)


def test_cpu_cross_rules(tmp_path):
    core = ("core_bandwidth_bytes_per_s = 12e9", "core_bandwidth_bytes_per_s = 200e9")
    path = edited(tmp_path, core, source="xeon_gold_6230r")
    assert "core_bandwidth_bytes_per_s is 2e+11" in message(path)
    path = edited(tmp_path, ("simd_bits = 512", "simd_bits = 500"), source="xeon_gold_6230r")
    assert "simd_bits" in message(path)


def test_check_warns_about_doubtful_numbers(tmp_path):
    path = edited(
        tmp_path,
        ("bandwidth_bytes_per_s = 2604e9", "bandwidth_bytes_per_s = 500e9"),
        ("per_block_bytes = 101376", "per_block_bytes = 102400"),
        ("latency_cycles = 217.0", "latency_cycles = 900.0"),
    )
    warned = {finding.key for finding in check_spec_file(path) if finding.level == "warning"}
    assert warned == {"name", "l2.bandwidth_bytes_per_s", "shared_memory.per_block_bytes", "dram.latency_cycles"}
    path = edited(
        tmp_path,
        ("size_bytes = 1048576", "size_bytes = 1000000"),
        ("bandwidth_bytes_per_cycle = 111.0", "bandwidth_bytes_per_cycle = 300.0"),
        ("size_bytes = 37486592", "size_bytes = 11264"),
        source="xeon_gold_6230r",
    )
    warned = {finding.key for finding in check_spec_file(path) if finding.level == "warning"}
    assert warned == {"name", "l1.bandwidth_bytes_per_cycle", "l2.size_bytes", "l3.size_bytes"}
    assert all(str(finding).startswith(finding.level) for finding in check_spec_file(path))


# ---- the user's own specs ----


def test_user_specs_go_first_and_are_found_by_name_and_alias(tmp_path):
    mine = edited(tmp_path, ('model = "', 'model = "my '), ('aliases = ["3090"', 'aliases = ["bigone"'))
    mine.rename(tmp_path / "rtx3090.toml")
    assert hardware("rtx3090", user_folder=tmp_path).model.startswith("my ")
    assert hardware("Big-One", user_folder=tmp_path).model.startswith("my ")
    assert len([s for s in list_hardware(user_folder=tmp_path) if s.name == "rtx3090"]) == 1
    assert not hardware("rtx3090", user_folder=tmp_path / "none").model.startswith("my ")


def test_an_alias_that_a_shipped_spec_has_too_is_no_answer(tmp_path):
    text = spec_to_toml(hardware("rtx3090")).replace('name = "rtx3090"', 'name = "mygpu"')
    path = tmp_path / "nvidia_mygpu.toml"
    path.write_text(text)
    with refuses(SpecError):
        hardware("3090", user_folder=tmp_path)
    assert [hardware(name, user_folder=tmp_path).name for name in ("mygpu", "rtx3090")] == ["mygpu", "rtx3090"]
    (warning,) = (finding for finding in check_spec_file(path) if finding.key == "aliases")
    assert "3090, geforce_rtx_3090 is also a name of the shipped spec rtx3090" in warning.text
    path.write_text(text.replace('aliases = ["3090", "geforce_rtx_3090"]', "aliases = []"))
    assert hardware("3090", user_folder=tmp_path).name == "rtx3090"
    assert not [finding for finding in check_spec_file(path) if finding.key == "aliases"]


def test_host_is_a_users_spec(tmp_path):
    spec = msgspec.structs.replace(hardware("ryzen_3700x"), name="host")
    (tmp_path / "host.toml").write_text(spec_to_toml(spec))
    assert hardware("host", user_folder=tmp_path) == spec


def test_changed_file_is_read_again(tmp_path):
    path = edited(tmp_path, ('model = "', 'model = "first '))
    assert hardware(path).model.startswith("first ")
    path = edited(tmp_path, ('model = "', 'model = "the second '))
    assert hardware(str(path)).model.startswith("the second ")


def test_damaged_user_spec_spoils_nothing_else(tmp_path):
    (tmp_path / "broken.toml").write_text("kind = ")
    assert hardware("v100", user_folder=tmp_path).name == "v100_sxm2"
    with refuses(UnknownNameError):
        hardware("nothing_like_it", user_folder=tmp_path)
    with refuses(SpecError):
        hardware("broken", user_folder=tmp_path)
    with refuses(SpecError):
        list_hardware(user_folder=tmp_path)


def test_user_spec_folder(tmp_path, monkeypatch):
    assert user_spec_folder(tmp_path) == tmp_path / "anatune" / "hwspecs"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "x"))
    assert user_spec_folder() == tmp_path / "x" / "anatune" / "hwspecs"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert user_spec_folder() == Path.home() / ".config" / "anatune" / "hwspecs"


def test_without_a_home_folder_the_packaged_specs_remain(monkeypatch):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", classmethod(homeless))
    assert hardware("rtx3090").name == "rtx3090"
    with refuses(SpecError):
        user_spec_folder()


# ---- the schema ----


def test_every_number_of_the_schema_has_a_plausible_range():
    judged = [
        (group.__name__, field.name)
        for group in SpecGroup.__subclasses__()
        for field in msgspec.structs.fields(group)
        if {int, float} & {field.type, *typing.get_args(field.type)}
    ]
    assert ("Dram", "bandwidth_bytes_per_s") in judged
    assert ("CpuLaunch", "parallel_start_s") in judged
    assert ("TensorCores", "fp8_flop_per_s") in judged
    for group, key in judged:
        assert value_problem(group, key, -1.0), (group, key)
        assert value_problem(group, key, math.nan), (group, key)


def test_construction_checks_too():
    with refuses(SpecError):
        GpuLaunch(source="test", overhead_s=3e6)
    with refuses(SpecError):
        GpuLaunch(source="test", overhead_s=3e-6, unverified=("clock_hz",))


def test_specs_are_hashable_and_frozen():
    spec = hardware("rtx3090")
    assert hash(spec) == hash(msgspec.structs.replace(spec))
    with pytest.raises(AttributeError):
        spec.name = "other"


def calibrated_cpu():
    """A packaged CPU with the groups that `anatune hw calibrate` adds, or once added."""
    spec = hardware("ryzen_7950x")
    return msgspec.structs.replace(
        spec,
        compute=msgspec.structs.replace(spec.compute, broadcasts_per_cycle=2.0),
        launch=CpuLaunch(parallel_start_s=2e-6, function_call_s=2e-7, microkernel_call_cycles=9.5, source="measured"),
        microkernels=MicrokernelTable(
            depth=256, tiles=((14, 2, 1, 0.99), (14, 2, 2, 0.981), (8, 3, 1, 0.97)), source="measured"
        ),
    )


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ('hidden_features = ["avx512_bf16"]', ["'avx512_bf16'", "LLVM's name of a feature, as 'avx512bf16'"]),
        ('hidden_features = ["-avxvnni"]', ["'-avxvnni'", "LLVM's name"]),
        ('hidden_features = "avxvnni"', ["hidden_features: got 'avxvnni'", "a list of texts"]),
        ('hidden_features = ["avx512fp16"]', ["hidden_features: names 'avx512fp16'", "an instruction", "leave one"]),
        ('hidden_features = ["amx-int8"]', ["hidden_features: names 'amx-int8'", "an instruction", "leave one"]),
    ],
)
def test_hidden_features_are_names_of_llvms_that_no_instruction_needs(tmp_path, key, words):
    text = spec_to_toml(hardware("xeon_8480"))
    path = tmp_path / "xeon_8480.toml"
    path.write_text(text.replace("aliases", 'hidden_features = ["avxvnni"]\naliases'))
    assert load_spec_file(path).hidden_features == ("avxvnni",)
    path.write_text(text.replace("aliases", f"{key}\naliases"))
    first = message(path)
    assert all(word in first for word in words), first


def test_measured_groups_round_trip(tmp_path):
    spec = calibrated_cpu()
    path = tmp_path / "ryzen_7950x.toml"
    path.write_text(spec_to_toml(spec))
    assert load_spec_file(path) == spec
    assert hash(spec) != hash(hardware("ryzen_7950x"))
    assert "  [14, 2, 1, 0.99], [14, 2, 2, 0.981],\n  [8, 3, 1, 0.97],\n" in path.read_text()
    assert not [finding for finding in check_spec_file(path) if finding.level != "note"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0.97]", "'good']", ["microkernels.tiles", "lists of numbers"]),
        ("[8, 3, 1, 0.97]", "[8, 0, 1, 0.97]", ["tiles: got [8, 0, 1, 0.97]", "counts of 1 to 1024"]),
        ("[8, 3, 1, 0.97]", "[8, 3, 1, 97.0]", ["tiles: got [8, 3, 1, 97.0]", "a share like 0.95"]),
        ("broadcasts_per_cycle = 2.0", "broadcasts_per_cycle = 'two'", ["compute.broadcasts_per_cycle", "a number"]),
        ("parallel_start_s = 2e-06", "parallel_start_s = 2.0", ["launch.parallel_start_s", "us"]),
    ],
)
def test_measured_groups_are_checked(tmp_path, old, new, words):
    path = tmp_path / "ryzen_7950x.toml"
    text = spec_to_toml(calibrated_cpu())
    assert old in text
    path.write_text(text.replace(old, new))
    first = str(check_spec_file(path)[0])
    assert first.startswith("error: ")
    assert all(word in first for word in words), first

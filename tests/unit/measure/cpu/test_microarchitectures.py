"""What a machine's processor is taken for, by what /proc/cpuinfo says of real ones, of guests, and of masked guests."""

import msgspec
import pytest

from anatune.codegen.cpu.features import code_features
from anatune.core.hardware.files import load_spec_file, spec_to_toml
from anatune.measure.cpu.detect import detect_cpu
from anatune.measure.cpu.features import missing_features
from anatune.measure.cpu.microarchitectures import known_cores, processor_of
from tests.unit.codegen.cpu.test_features import FLAGS
from tests.unit.measure.cpu.test_detect import arm, cache, x86

OLD = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 mmx fxsr sse sse2 syscall nx lm pni"
V2 = f"{OLD} pclmulqdq ssse3 cx16 sse4_1 sse4_2 x2apic popcnt aes xsave lahf_lm"
IVY = f"{V2} avx f16c rdrand fsgsbase smep erms"
HASWELL = f"{IVY} fma movbe abm bmi1 avx2 bmi2 invpcid"
SKYLAKE = f"{HASWELL} 3dnowprefetch rdseed adx smap clflushopt xsaveopt xsavec xgetbv1 xsaves"
ALDER = f"{SKYLAKE} avx_vnni sha_ni umip gfni vaes vpclmulqdq rdpid movdiri movdir64b fsrm serialize"
SKYLAKE_SP = f"{SKYLAKE} clwb avx512f avx512dq avx512cd avx512bw avx512vl"
CASCADE = f"{SKYLAKE_SP} avx512_vnni"
ICE = (
    f"{CASCADE} avx512ifma sha_ni avx512vbmi umip avx512_vbmi2 gfni vaes vpclmulqdq avx512_bitalg avx512_vpopcntdq "
    "rdpid fsrm"
)
AMX = f"{ICE} avx_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8 cldemote movdiri movdir64b serialize tsxldtrk"
ZEN2 = f"{HASWELL} 3dnowprefetch sse4a misalignsse adx rdseed smap clflushopt clwb sha_ni clzero rdpru wbnoinvd umip"
ZEN3 = f"{ZEN2} vaes vpclmulqdq fsrm"
ZEN4 = (
    f"{ZEN3} avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512vbmi avx512_vbmi2 gfni "
    "avx512_vnni avx512_bitalg avx512_vpopcntdq"
)
ZEN5 = f"{ZEN4} avx_vnni avx512_vp2intersect movdiri movdir64b"


def without(flags, *beginnings):
    return " ".join(flag for flag in flags.split() if not flag.startswith(beginnings))


INTEL, AMD = "GenuineIntel", "AuthenticAMD"
NO_AVX512 = without(AMX, "avx512", "amx")
# The system's name of a processor: vendor, family, model, flags, MB of L3; LLVM's name, vectors, multiply-adds a cycle,
# features that are hidden
MACHINES = {
    "Granite Rapids as Rocket Lake": (INTEL, 6, 167, AMX, 480, "graniterapids avx512 2 0"),
    "Sapphire Rapids as Rocket Lake": (INTEL, 6, 167, AMX, 105, "sapphirerapids avx512 2 0"),
    "Emerald Rapids as Cascade Lake": (INTEL, 6, 85, AMX, 260, "emeraldrapids avx512 2 0"),
    "Sapphire Rapids": (INTEL, 6, 143, AMX, 105, "sapphirerapids avx512 2 0"),
    "Emerald Rapids": (INTEL, 6, 207, AMX, 260, "emeraldrapids avx512 2 0"),
    "Granite Rapids": (INTEL, 6, 173, AMX, 480, "graniterapids avx512 2 0"),
    "Emerald Rapids without AMX and half precision": (INTEL, 6, 207, ICE, 260, "emeraldrapids avx512 2 6"),
    "Sapphire Rapids without AVX-512": (INTEL, 6, 143, NO_AVX512, 105, "sapphirerapids avx2 2 16"),
    "Ice Lake server": (INTEL, 6, 106, ICE, 54, "icelake-server avx512 2 0"),
    "Ice Lake client": (INTEL, 6, 126, ICE, 6, "icelake-client avx512 1 0"),
    "QEMU Icelake-Server": (INTEL, 6, 134, ICE, 16, "icelake-server avx512 2 0"),
    "Tiger Lake": (INTEL, 6, 140, ICE, 12, "tigerlake avx512 1 0"),
    "Rocket Lake": (INTEL, 6, 167, ICE, 16, "rocketlake avx512 1 0"),
    "Ice Lake as Skylake-SP": (INTEL, 6, 85, ICE, 16, "icelake-client avx512 1 0"),
    "Cascade Lake": (INTEL, 6, 85, CASCADE, 35.75, "cascadelake avx512 2 0"),
    "Cascade Lake, Intel(R) Xeon(R) Gold 5220": (INTEL, 6, 85, CASCADE, 24.75, "cascadelake avx512 1 0"),
    "Cooper Lake": (INTEL, 6, 85, f"{CASCADE} avx512_bf16", 35.75, "cooperlake avx512 2 0"),
    "Skylake-SP": (INTEL, 6, 85, SKYLAKE_SP, 24.75, "skylake-avx512 avx512 2 0"),
    "QEMU Skylake-Server": (INTEL, 6, 85, SKYLAKE_SP, 16, "skylake-avx512 avx512 2 0"),
    "Skylake-SP without AVX-512": (INTEL, 6, 85, SKYLAKE, 16, "skylake-avx512 avx2 2 5"),
    "Skylake client": (INTEL, 6, 94, SKYLAKE, 8, "skylake avx2 2 0"),
    "Skylake Pentium": (INTEL, 6, 94, V2, 3, "x86-64 sse 1 0"),
    "Alder Lake": (INTEL, 6, 151, ALDER, 25, "alderlake avx2 2 0"),
    "Raptor Lake": (INTEL, 6, 183, ALDER, 30, "raptorlake avx2 2 0"),
    "Alder Lake-N": (INTEL, 6, 190, ALDER, 6, "gracemont avx2 1 0"),
    "Alder Lake with AVX-512": (INTEL, 6, 151, without(AMX, "amx"), 25, "sapphirerapids avx512 2 3"),
    "Haswell": (INTEL, 6, 63, HASWELL, 30, "haswell avx2 2 0"),
    "Broadwell": (INTEL, 6, 79, HASWELL, 45, "broadwell avx2 2 0"),
    "Haswell without AVX2": (INTEL, 6, 63, without(HASWELL, "avx2"), 16, "ivybridge avx 1 0"),
    "Ivy Bridge": (INTEL, 6, 58, IVY, 8, "ivybridge avx 1 0"),
    "Haswell as Sandy Bridge": (INTEL, 6, 42, HASWELL, 16, "haswell avx2 2 0"),
    "Knights Landing": (INTEL, 6, 87, f"{HASWELL} avx512f avx512pf avx512er avx512cd", 0, "skylake-avx512 avx2 2 3"),
    "an Intel of tomorrow": (INTEL, 6, 999, f"{AMX} avx10_2", 200, "emeraldrapids avx512 2 0"),
    "Zen": (AMD, 23, 1, without(ZEN2, "clwb", "wbnoinvd"), 8, "znver1 avx2 1 0"),
    "QEMU EPYC on Zen 2": (AMD, 23, 1, ZEN2, 8, "znver1 avx2 1 0"),
    "Zen 2": (AMD, 23, 49, ZEN2, 16, "znver2 avx2 2 0"),
    "Zen 3": (AMD, 25, 1, ZEN3, 32, "znver3 avx2 2 0"),
    "Zen 4": (AMD, 25, 17, ZEN4, 32, "znver4 avx512 1 0"),
    "Zen 4 without bfloat16": (AMD, 25, 97, without(ZEN4, "avx512_bf16"), 32, "znver4 avx512 1 1"),
    "Zen 4 without AVX-512": (AMD, 25, 17, without(ZEN4, "avx512", "gfni"), 32, "znver4 avx2 2 13"),
    "Zen 4 as Zen": (AMD, 23, 1, ZEN4, 16, "znver4 avx512 1 0"),
    "Zen 4 as Zen 3": (AMD, 25, 1, ZEN4, 32, "znver4 avx512 1 0"),
    "Zen 5": (AMD, 26, 2, ZEN5, 32, "znver5 avx512 2 0"),
    "Zen 5 mobile": (AMD, 26, 36, ZEN5, 16, "znver5 avx512 1 0"),
    "an AMD of tomorrow": (AMD, 27, 0, f"{ZEN5} avx512_fp16", 32, "znver5 avx512 1 0"),
    "qemu64": (AMD, 15, 107, OLD, 16, "x86-64 sse 1 0"),
    "kvm64": (INTEL, 15, 6, OLD, 16, "x86-64 sse 1 0"),
    "kvm64 with AVX2": (INTEL, 15, 6, HASWELL, 16, "haswell avx2 2 0"),
    "Hygon": ("HygonGenuine", 24, 1, ZEN2, 8, "znver1 avx2 1 0"),
    "Zhaoxin": ("  Shanghai  ", 7, 91, HASWELL, 32, "x86-64-v3 avx2 1 0"),
    "Zhaoxin with AVX only": ("CentaurHauls", 7, 59, without(IVY, "f16c"), 4, "sandybridge avx 1 0"),
    "somebody's AVX-512": ("SomeoneElse", 99, 1, SKYLAKE_SP, 0, "x86-64-v4 avx512 1 0"),
}  # fmt: skip


def machine(root, name):
    """Write a machine's files and return its spec."""
    vendor, family, model, flags, l3_mb, _ = MACHINES[name]
    x86(root, vendor=vendor, family=family, model=model, name=name, flags=flags)
    if l3_mb:
        cache(root, 0, 3, 3, f"{int(1024 * l3_mb)}K", 16, "0-1", "Unified")
    return detect_cpu(root)


@pytest.mark.parametrize("name", MACHINES)
def test_processors_and_guests(tmp_path, name):
    spec = machine(tmp_path, name)
    compute, hidden = spec.compute, len(spec.hidden_features or ())
    assert f"{spec.arch} {compute.isa} {compute.fma_per_cycle:g} {hidden}" == MACHINES[name][-1]
    (tmp_path / "host.toml").write_text(spec_to_toml(spec))
    assert load_spec_file(tmp_path / "host.toml") == spec


def test_everything_that_is_used_is_offered(tmp_path):
    for name, told in MACHINES.items():
        spec, flags = machine(tmp_path / name.replace(" ", "_"), name), told[3].split()
        assert not set(spec.hidden_features or ()) - set(missing_features(spec.hidden_features or (), flags)), name
        features = next(known.features for known in known_cores().x86 if known.llvm == spec.arch)
        left = features - set(spec.hidden_features or ())
        assert not missing_features(left, flags), name
        assert ("tdpbf16ps" in (spec.amx or ())) == ("amx_bf16" in flags), name
        assert (spec.vfmaddph is not msgspec.UNSET) == ("avx512_fp16" in flags), name


def test_why_says_what_excludes_the_family(tmp_path):
    source = machine(tmp_path, "Granite Rapids as Rocket Lake").compute.source
    assert "Granite Rapids by its features (family 6, model 167 is Rocket Lake, which has no amx-bf16, " in source


def test_numbers_of_a_processor_that_its_features_alone_name_are_doubted(tmp_path):
    named = machine(tmp_path / "a", "Zen 4")
    guessed = machine(tmp_path / "b", "Zen 4 as Zen")
    assert "loads_per_cycle" not in named.compute.unverified
    assert {"fma_per_cycle", "loads_per_cycle"} <= set(guessed.compute.unverified)


@pytest.mark.parametrize(
    ("implementer", "part", "title", "units"),
    [
        (0x41, 0xD0C, "Neoverse N1", 2),
        (0x41, 0xD40, "Neoverse V1", 4),
        (0x41, 0xD49, "Neoverse N2", 2),
        (0x6D, 0xD49, "Neoverse N2", 2),
        (0x41, 0xD4F, "Neoverse V2", 4),
        (0x61, 0x22, "Apple M1", 4),
        (0x48, 0xD01, "an unknown Arm core", 1),
    ],
)
def test_arm_processors(tmp_path, implementer, part, title, units):
    spec = detect_cpu(arm(tmp_path, [part] * 2, implementer))
    assert processor_of({"cpu implementer": hex(implementer), "cpu part": hex(part)}).micro.title == title
    assert (spec.compute.isa, spec.compute.fma_per_cycle, spec.hidden_features) == ("neon", units, msgspec.UNSET)


def test_names_are_linux_flags_but_for_punctuation():
    names = set().union(*(known.features for known in known_cores().x86))
    flags = FLAGS | {name: name.replace("amx-", "amx_") for name in names if name.startswith("amx")}
    flags |= {name: f"avx512_{name[6:]}" for name in ("avx512bitalg", "avx512vbmi2", "avx512vpopcntdq")}
    flags |= {name: name for name in ("avx512ifma", "avx512vbmi")}
    assert names <= set(flags)
    assert missing_features(names, [flags[name] for name in names]) == ()
    for name in names:
        assert missing_features(names, [flags[other] for other in names - {name}]) == (name,)


def test_features_are_those_that_llvm_gives_code_for_each_processor():
    tvm = pytest.importorskip("tvm")
    from anatune.codegen.compat import list_features

    for known in known_cores().x86:
        target = tvm.target.Target({"kind": "llvm", "mcpu": known.llvm, "mtriple": "x86_64-linux-gnu"})
        given = list_features(target)
        tiles = {name for name in given if name.startswith("amx")} - {"amx-fp16"}  # Linux has no flag for it
        assert known.features == {*code_features(given, "x86_64"), *tiles}, known.title

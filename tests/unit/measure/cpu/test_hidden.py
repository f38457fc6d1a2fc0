"""What a machine hides of its processor: by the flags of three machines, and by LLVM's own lists."""

import msgspec
import pytest

from anatune.codegen.cpu.export.features import code_features
from anatune.core.hardware.files import load_spec_file, spec_to_toml
from anatune.measure.cpu import detect
from anatune.measure.cpu.detect import detect_cpu
from anatune.measure.cpu.hidden import _FEATURES, hidden_features
from tests.unit.codegen.cpu.export.test_features import FLAGS
from tests.unit.measure.cpu.test_detect import arm, cascade_lake, x86

SERVER = """fpu sse sse2 ht syscall nx rdtscp lm pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 x2apic movbe popcnt aes
xsave avx f16c rdrand lahf_lm abm 3dnowprefetch fsgsbase bmi1 avx2 smep bmi2 erms invpcid avx512f
avx512dq rdseed adx smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec
xgetbv1 xsaves avx512vbmi umip avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg
avx512_vpopcntdq rdpid fsrm""".replace("\n", " ")
SAPPHIRE_RAPIDS = f"{SERVER} avx_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8 cldemote waitpkg serialize"
ZEN4 = f"{SERVER} sse4a misalignsse avx512_bf16 clzero rdpru wbnoinvd"
NEW = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni")


def intel(root, model, flags):
    return detect_cpu(x86(root, vendor="GenuineIntel", family=6, model=model, name="Xeon", flags=flags))


def test_a_guest_of_emerald_rapids_lacks_what_its_hypervisor_hides(tmp_path):
    spec = intel(tmp_path, 207, f"{SERVER} hypervisor")
    assert (spec.arch, spec.hidden_features) == ("emeraldrapids", NEW)
    assert (spec.vdpbf16ps, spec.vfmaddph) == (msgspec.UNSET, msgspec.UNSET)
    (tmp_path / "host.toml").write_text(spec_to_toml(spec))
    assert load_spec_file(tmp_path / "host.toml") == spec


def test_whole_processors_hide_nothing_and_their_specs_say_nothing_of_it(tmp_path):
    sapphire = intel(tmp_path / "intel", 143, SAPPHIRE_RAPIDS)
    zen4 = detect_cpu(x86(tmp_path / "amd", vendor="AuthenticAMD", family=25, model=97, name="AMD", flags=ZEN4))
    assert (sapphire.arch, zen4.arch) == ("sapphirerapids", "znver4")
    for spec in (sapphire, zen4, detect_cpu(arm(tmp_path / "arm", [0xD40] * 2))):
        assert spec.hidden_features is msgspec.UNSET
        assert "hidden" not in spec_to_toml(spec)


def test_a_zen_4_without_bfloat16(tmp_path):
    flags = ZEN4.replace(" avx512_bf16", "")
    spec = detect_cpu(x86(tmp_path, vendor="AuthenticAMD", family=25, model=97, name="AMD", flags=flags))
    assert spec.hidden_features == ("avx512bf16",)


def test_vectors_that_are_hidden_are_no_feature_either(tmp_path):
    spec = detect_cpu(cascade_lake(tmp_path, flags=" ".join(f for f in SERVER.split() if "avx512" not in f)))
    assert spec.compute.isa == "avx2"
    assert spec.hidden_features == ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "avx512vnni")


def known():
    """Return LLVM's names of all x86 processors that are detected."""
    micros = [micro for rows in detect._X86.values() for _, micro in rows]
    return {*(micro.llvm for micro in (*micros, detect._CLX)), "cooperlake", "x86-64", "x86-64-v3", "x86-64-v4"}


def test_names_are_linux_flags_but_for_punctuation():
    names = set().union(*_FEATURES.values())
    flags = FLAGS | {name: name.replace("amx-", "amx_") for name in names if name.startswith("amx")}
    flags |= {name: f"avx512_{name[6:]}" for name in ("avx512bitalg", "avx512vbmi2", "avx512vpopcntdq")}
    flags |= {name: name for name in ("avx512ifma", "avx512vbmi")}
    assert names <= set(flags)
    for arch, features in _FEATURES.items():
        assert hidden_features(arch, [flags[name] for name in features]) == ()
        for name in features:
            assert hidden_features(arch, [flags[other] for other in features - {name}]) == (name,)


def test_features_are_those_that_llvm_gives_code_for_each_processor():
    tvm = pytest.importorskip("tvm")
    from anatune.codegen.compat import features_of

    assert known() == set(_FEATURES)
    for arch, features in _FEATURES.items():
        target = tvm.target.Target({"kind": "llvm", "mcpu": arch, "mtriple": "x86_64-linux-gnu"})
        given = features_of(target)
        tiles = {name for name in given if name.startswith("amx")} - {"amx-fp16"}  # Linux has no flag for it
        assert features == {*code_features(given, "x86_64"), *tiles}, arch

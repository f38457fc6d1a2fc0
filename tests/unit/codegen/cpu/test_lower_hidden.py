"""Code has no instruction that the machine hides, whatever its processor is known for."""

import re

import msgspec
import pytest

import anatune
from anatune.core.hardware.spec import CpuSpec

pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen.compat import compile_module, list_features, target_of
from anatune.codegen.cpu.features import code_features
from anatune.codegen.cpu.lower import lower

HIDDEN = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni")
WHOLE = anatune.hardware("xeon_8480")
assert isinstance(WHOLE, CpuSpec)
PLAIN = msgspec.structs.replace(WHOLE, amx=msgspec.UNSET, vdpbf16ps=msgspec.UNSET, vfmaddph=msgspec.UNSET)
"""Without words for schedules about the instructions: LLVM finds uses for them by itself."""
MASKED = msgspec.structs.replace(PLAIN, hidden_features=HIDDEN)
OF_HIDDEN = re.compile(r"\b(?!vcvtps2ph\b)(vcvtph2psx|vcvtps2phx|vcvtne2?ps2?bf16|vdpbf16ps|tdp\w+|v\w+[ps]h)\b")
"""Instructions of AVX512_BF16, AVX512_FP16 and AMX; VCVTPS2PH is of F16C."""


def assembly_of(workload, hardware):
    lowered = lower(anatune.plan(workload, hardware, top_k=1, correction="none").best)
    return str(compile_module(lowered.module, lowered.target).mod.inspect_source("asm"))


@pytest.mark.parametrize(("dtype", "offering"), [("float16", PLAIN), ("bfloat16", WHOLE)])
def test_conversions_use_nothing_that_is_hidden(dtype, offering):
    workload = anatune.matmul(32, 64, 48, dtype=dtype, epilogue=("bias", "relu"))
    assert OF_HIDDEN.search(assembly_of(workload, offering))
    assert not OF_HIDDEN.search(assembly_of(workload, MASKED))


def test_the_target_keeps_its_processor_and_loses_the_features():
    target, whole = target_of(MASKED), target_of(PLAIN)
    assert str(target.attrs["mcpu"]) == "sapphirerapids"
    assert {f"-{name}" for name in HIDDEN} <= set(map(str, target.attrs["mattr"]))
    assert list_features(whole) - list_features(target) == set(HIDDEN)
    assert set(code_features(list_features(whole), "x86_64")) - set(code_features(list_features(target), "x86_64")) == {
        "avx512bf16", "avx512fp16", "avxvnni",
    }  # fmt: skip


def test_wide_vectors_may_be_hidden():
    cut = msgspec.structs.replace(
        anatune.hardware("ryzen_3700x"), arch="cascadelake", hidden_features=("avx512f", "avx512vl", "avx512vnni")
    )
    features = code_features(list_features(target_of(cut)), "x86_64")
    assert {"avx2", "fma", "f16c"} <= set(features)
    assert not [name for name in features if name.startswith("avx512")]
    text = assembly_of(anatune.matmul(16, 32, 24), cut)
    assert "%ymm" in text
    assert not re.search(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]\b", text)


def test_targets_of_other_specs_are_as_they_were():
    arm = target_of(anatune.hardware("cortex_a72"))
    assert not [name for name in map(str, arm.attrs.get("mattr", ())) if name.startswith("-")]
    assert not [name for name in map(str, target_of(WHOLE).attrs.get("mattr", ())) if name.startswith("-")]

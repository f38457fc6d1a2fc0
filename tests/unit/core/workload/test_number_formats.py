"""Dtypes of operands and results, the word that says them, the steps behind 8-bit products, zero points."""

import msgspec
import pytest

import anatune
from anatune.core.workload.nest import Workload
from anatune.core.workload.number_formats import (
    FACTOR_STEPS,
    OPERAND_PAIRS,
    format_word,
    parse_formats,
    result_dtypes,
    step_dtypes,
)
from anatune.core.workload.text import parse_workload, workload_to_text
from anatune.errors import SpaceError, WorkloadError
from anatune.templates import get_template
from tests.wording import refuses

TEXTS = [
    "matmul 8x9x10 --dtype uint8xint8",
    "matmul 8x9x10 --dtype int8 --epilogue bias,relu,requantize --output-zero-point=-3",
    "matmul 8x9x10 --dtype int8:uint8 --epilogue scale,bias,requantize --input-zero-point=-128 --output-zero-point 255",
    "matmul 8x9x10 --dtype uint8xint8 --epilogue scale,add,relu",
    "matmul 8x9x10 --dtype bfloat16:float32 --transpose-b --epilogue bias",
    "batch_matmul 2x8x9x10 --dtype float16:float32",
    "conv1d 1x4x30 16x4x5 --padding 2 --dtype uint8xint8 --input-zero-point 7",
    "conv2d 1x4x9x9 8x4x3x3 --padding 1 --layout NHWC --dtype uint8xint8 --epilogue bias,requantize "
    "--input-zero-point 128",
    "conv3d 1x4x6x6x6 8x4x3x3x3 --padding 1 --dtype int8",
    "depthwise_conv2d 1x8x9x9 8x1x3x3 --dtype uint8xint8:int8 --epilogue requantize --output-zero-point 4",
    "matmul 8x9x10 --dtype int8:float16 --epilogue scale,bias,relu",
    "matmul 8x9x10 --dtype float8_e4m3fn",
    "matmul 8x9x10 --dtype float8_e4m3fn:float32 --epilogue scale,bias,silu",
    "batch_matmul 2x8x9x10 --dtype float8_e4m3fnxfloat8_e5m2:float16 --epilogue bias,gelu",
    "conv2d 1x4x9x9 8x4x3x3 --padding 1 --layout NHWC --dtype float8_e5m2fnuz --epilogue scale,relu6",
    "conv1d 1x4x30 16x4x5 --dtype float8_e4m3fnuzxfloat8_e5m2fnuz",
    "matmul 8x9x10 --dtype bfloat16xint8 --transpose-b --epilogue scale,add",
    "conv3d 1x4x6x6x6 8x4x3x3x3 --dtype float16xfloat8_e4m3fn:float32",
    "einsum bij,bjk->bik 2x4x5 2x5x6 --dtype float8_e4m3fn:float16",
    "einsum ij,jk->ik 4x4 4x4 --dtype uint8xint8",
    "einsum ij,kj->ik 4x4 4x4 --dtype bfloat16xint8:float32",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_json_both_ways(text: str) -> None:
    workload = parse_workload(text)
    again = parse_workload(workload_to_text(workload))
    assert again == workload
    assert Workload.from_json(workload.to_json()) == workload
    assert Workload.from_json(workload.to_json()).key == workload.key
    assert workload.formats in workload.describe()


def test_dtypes_of_every_tensor() -> None:
    def dtypes(word: str, *steps: str) -> list[str]:
        return [access.dtype for access in anatune.matmul(4, 4, 4, dtype=word, epilogue=steps).tensors]

    assert dtypes("uint8xint8") == ["uint8", "int8", "int32"]
    assert dtypes("int8xint8") == ["int8", "int8", "int32"]
    assert dtypes("bfloat16:float32", "bias") == ["bfloat16", "bfloat16", "float32", "float32"]
    assert dtypes("int8", "bias", "scale", "relu") == ["int8", "int8", "int32", "float32", "float32"]
    assert dtypes("int8", "scale", "bias") == ["int8", "int8", "float32", "float32", "float32"]
    assert dtypes("uint8xint8", "add", "requantize") == ["uint8", "int8", "int32", "float32", "uint8"]
    assert dtypes("int8:bfloat16", "bias", "scale", "add") == [
        "int8",
        "int8",
        "int32",
        "float32",
        "bfloat16",
        "bfloat16",
    ]
    assert dtypes("float8_e5m2", "bias") == ["float8_e5m2", "float8_e5m2", "bfloat16", "bfloat16"]
    assert dtypes("float8_e4m3fnxfloat8_e5m2:float32") == ["float8_e4m3fn", "float8_e5m2", "float32"]
    assert dtypes("float8_e4m3fn", "bias", "scale", "add")[2:] == ["float32", "float32", "bfloat16", "bfloat16"]
    assert dtypes("float16xint8", "scale", "bias") == ["float16", "int8", "float32", "float16", "float16"]
    assert dtypes("bfloat16xfloat8_e4m3fn:float32", "bias")[2:] == ["float32", "float32"]
    assert dtypes("uint8xint8:int8", "scale", "bias", "requantize")[2:] == ["float32", "float32", "float32", "int8"]


def test_the_shortest_word_means_the_same() -> None:
    words = ["x".join(dict.fromkeys(pair)) for pair in OPERAND_PAIRS]
    assert len(words) == len(set(words)) == 5 + 8 + 10
    for word in (*words, "float16:float32", "bfloat16:float32"):
        for steps in ((), ("bias",), ("scale",), ("bias", "requantize"), ("scale", "gelu")):
            found = parse_formats(word, steps)
            if isinstance(found, str):
                assert "8" not in word or ":" in word or "requantize" in steps or "gelu" in steps
                continue
            for result in result_dtypes(found[:2], steps):
                again = format_word(found[:2], result, steps)
                assert parse_formats(again, steps) == (found.left, found.right, result)
    assert format_word(("int8", "int8"), "int32", ()) == "int8"


def test_stages() -> None:
    assert step_dtypes(("int8", "int8"), "uint8", ("bias", "relu", "scale", "bias", "requantize")) == (
        "int32", "", "float32", "float32", "float32", "float32",
    )  # fmt: skip
    assert step_dtypes(("bfloat16", "bfloat16"), "bfloat16", ("bias", "relu")) == ("bfloat16", "", "bfloat16")
    assert set(FACTOR_STEPS) == {"scale", "requantize"}


def test_scaled_products_of_pytorch_have_a_word() -> None:
    """torch._scaled_mm: fp8 x fp8 (one scale a column), a bias of the result's dtype, bfloat16 out."""
    workload = anatune.matmul(16, 32, 64, dtype="float8_e4m3fn:bfloat16", transpose_b=True, epilogue=("scale", "bias"))
    assert workload.formats == workload.attribute["dtype"] == "float8_e4m3fn"  # bfloat16 is what it is anyway
    assert workload.compulsory_bytes == 16 * 64 + 32 * 64 + 32 * 4 + 32 * 2 + 16 * 32 * 2


def test_what_was_there_keeps_its_key_and_its_json() -> None:
    workload = anatune.conv2d(1, 4, 8, 8, 8, 3, 3, padding=1, dtype="int8", epilogue=("bias",))
    assert "zero_point" not in workload.to_json()
    assert anatune.matmul(512, 64, 1024, dtype="int8").key == "052ee7381c95aa98"
    assert anatune.matmul(512, 64, 1024, epilogue=("bias", "relu")).key == "0b5359e1f22fa3c7"


@pytest.mark.parametrize(
    "text",
    [
        "matmul 8x8x8 --dtype uint8",
        "matmul 8x8x8 --dtype int8xuint8",
        "matmul 8x8x8 --dtype int8:float32",
        "matmul 8x8x8 --dtype float32:bfloat16",
        "matmul 8x8x8 --dtype bfloat16 --epilogue scale",
        "matmul 8x8x8 --dtype float8_e4m3fn --epilogue scale,requantize",
        "matmul 8x8x8 --dtype float8_e4m3fn:int8",
        "matmul 8x8x8 --dtype float8_e4m3fnxfloat8_e5m2fnuz",
        "matmul 8x8x8 --dtype int8xbfloat16",
        "matmul 8x8x8 --dtype float32xint8",
        "matmul 8x8x8 --dtype int8:float16",
        "matmul 8x8x8 --dtype int8:float16 --epilogue scale,silu",
        "matmul 8x8x8 --dtype float8_e4m3fn --input-zero-point 3",
        "matmul 8x8x8 --dtype bfloat16xint8 --input-zero-point 3",
        "matmul 8x8x8 --dtype fp8",
        "matmul 8x8x8 --dtype e4m3xe5m2:bf16",
        "matmul 8x8x8 --dtype bfloat16:fp32",
        "relu 8x8 --dtype fp16",
        "relu 8x8 --dtype float8_e5m2",
        "max_pool2d 1x4x8x8 2x2 --dtype float8_e5m2",
        "max_pool2d 1x4x8x8 2x2 --dtype e5m2",
        "einsum ij->i 4x4 --dtype float8_e5m2",
        "einsum i,j->ij 4 4 --dtype float8_e5m2",
        "matmul 8x8x8 --dtype int8 --epilogue requantize,relu",
        "matmul 8x8x8 --dtype int8 --epilogue requantize,scale",
        "matmul 8x8x8 --input-zero-point 3",
        "matmul 8x8x8 --dtype int8 --output-zero-point 3",
        "matmul 8x8x8 --dtype int8 --input-zero-point 128",
        "matmul 8x8x8 --dtype uint8xint8 --input-zero-point=-1",
        "max_pool2d 1x4x8x8 2x2 --dtype uint8",
        "einsum ij,jk,kl->il 4x4 4x4 4x4 --dtype uint8xint8",
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(text: str) -> None:
    with refuses(WorkloadError) as error:
        parse_workload(text)
    assert "\n" not in str(error.value)


def test_nests_of_other_hands_keep_to_the_same_rules() -> None:
    for dtype in ("float8_e4m3fn", "bfloat16xint8"):
        text = anatune.matmul(4, 4, 4, dtype=dtype).to_json()
        with pytest.raises(WorkloadError):
            Workload.from_json(text.replace('"tensor":"A",', '"tensor":"A","zero_point":1,'))
    good = anatune.matmul(4, 4, 4, dtype="uint8xint8").to_json()
    for old, new in (
        ('"dtype":"int8"', '"dtype":"uint8"'),  # uint8 x uint8
        ('"dtype":"int32"', '"dtype":"float32"'),
        ('"tensor":"B",', '"tensor":"B","zero_point":3,'),
        ('"tensor":"C",', '"tensor":"C","zero_point":3,'),
        ('"tensor":"A",', '"tensor":"A","zero_point":256,'),
    ):
        assert old in good
        with pytest.raises(WorkloadError):
            Workload.from_json(good.replace(old, new))


FOR_CPUS = ["uint8xint8", "bfloat16:float32", "int8"]
FOR_GPUS = [
    "int8:float16",
    "float8_e4m3fn",
    "float8_e4m3fnuzxfloat8_e5m2fnuz:float32",
    "bfloat16xint8",
    "float16xfloat8_e5m2",
]


def product_of(word: str) -> Workload:
    """A product whose int8 sums have a factor."""
    return anatune.matmul(8, 64, 64, dtype=word, epilogue=("scale",) if word.startswith("int8") else ())


@pytest.mark.parametrize("word", [*FOR_CPUS, *FOR_GPUS])
@pytest.mark.parametrize("template", ["cuda", "pipelined", "thin"])
def test_gpu_templates_refuse_what_they_do_not_compute(word: str, template: str) -> None:
    with refuses(SpaceError) as error:
        anatune.plan(product_of(word), "nvidia_a100_sxm", template=template)
    assert "\n" not in str(error.value)
    assert f"matmul: {word} " in str(error.value)
    assert not get_template(template).takes(product_of(word), anatune.hardware("nvidia_a100_sxm"))


@pytest.mark.parametrize("word", FOR_GPUS)
@pytest.mark.parametrize("template", ["cpu", "winograd", "fp16_accumulation"])
def test_cpu_templates_refuse_what_they_do_not_compute(word: str, template: str) -> None:
    with refuses(SpaceError) as error:
        anatune.plan(product_of(word), "xeon_8480", template=template, accuracy="relaxed")
    assert "\n" not in str(error.value)
    assert not get_template(template).takes(product_of(word), anatune.hardware("xeon_8480"))


@pytest.mark.parametrize("word", FOR_GPUS)
@pytest.mark.parametrize("hardware", ["nvidia_rtx2080ti", "amd_mi50", "xeon_8480"])
def test_defaults_say_why_and_schedules_of_theirs_are_refused_too(word: str, hardware: str) -> None:
    workload = product_of(word)
    with refuses(SpaceError):
        anatune.plan(workload, hardware)
    plain = anatune.plan(anatune.matmul(8, 64, 64, dtype="float16"), hardware, 1).best
    own = msgspec.structs.replace(plain, workload=workload)
    for ask in (own.check, lambda: anatune.predict(workload, hardware, [own]), lambda: anatune.verify(own)):
        with refuses(SpaceError) as error:
            ask()
        assert "\n" not in str(error.value)
    with refuses(SpaceError):
        anatune.Schedule.from_json(own.to_json())

"""Dtypes of operands and results, the word that says them, the steps behind 8-bit products, zero points."""

import pytest

import anatune
from anatune.core.workload.nest import Workload
from anatune.core.workload.number_formats import FACTOR_STEPS, format_word, formats_of, result_dtypes, stage_dtypes
from anatune.core.workload.text import parse_workload, workload_to_text
from anatune.errors import SpaceError, WorkloadError

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
    assert dtypes("uint8xint8:int8", "scale", "bias", "requantize")[2:] == ["float32", "float32", "float32", "int8"]


def test_the_shortest_word_means_the_same() -> None:
    for word in ("float32", "float16:float32", "bfloat16", "bfloat16:float32", "int8", "uint8xint8"):
        for steps in ((), ("bias",), ("scale",), ("bias", "requantize")):
            found = formats_of(word, steps)
            if isinstance(found, str):
                assert "int" not in word or ":" in word or "requantize" in steps
                continue
            for result in result_dtypes(found.left, steps):
                again = format_word(found[:2], result, steps)
                assert formats_of(again, steps) == (found.left, found.right, result)
    assert format_word(("int8", "int8"), "int32", ()) == "int8"


def test_stages() -> None:
    assert stage_dtypes("int8", "uint8", ("bias", "relu", "scale", "bias", "requantize")) == (
        "int32", "", "float32", "float32", "float32", "float32",
    )  # fmt: skip
    assert stage_dtypes("bfloat16", "bfloat16", ("bias", "relu")) == ("bfloat16", "", "bfloat16")
    assert set(FACTOR_STEPS) == {"scale", "requantize"}


def test_what_was_there_keeps_its_key_and_its_json() -> None:
    workload = anatune.conv2d(1, 4, 8, 8, 8, 3, 3, padding=1, dtype="int8", epilogue=("bias",))
    assert "zero_point" not in workload.to_json()
    assert anatune.matmul(512, 64, 1024, dtype="int8").key == "052ee7381c95aa98"
    assert anatune.matmul(512, 64, 1024, epilogue=("bias", "relu")).key == "0b5359e1f22fa3c7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matmul 8x8x8 --dtype uint8", "expected one of float32"),
        ("matmul 8x8x8 --dtype int8xuint8", "expected one of float32"),
        ("matmul 8x8x8 --dtype int8:float32", "a result of int32"),
        ("matmul 8x8x8 --dtype float32:bfloat16", "a result of float32"),
        ("matmul 8x8x8 --dtype bfloat16 --epilogue scale", "int8 or uint8xint8"),
        ("matmul 8x8x8 --dtype int8 --epilogue requantize,relu", "requantize as the last step"),
        ("matmul 8x8x8 --dtype int8 --epilogue requantize,scale", "requantize as the last step"),
        ("matmul 8x8x8 --input-zero-point 3", "nothing is quantised"),
        ("matmul 8x8x8 --dtype int8 --output-zero-point 3", "nothing is quantised"),
        ("matmul 8x8x8 --dtype int8 --input-zero-point 128", "from -128 to 127"),
        ("matmul 8x8x8 --dtype uint8xint8 --input-zero-point=-1", ">= 0"),
        ("max_pool2d 1x4x8x8 2x2 --dtype uint8", "expected one of float32"),
        ("einsum ij,jk->ik 4x4 4x4 --dtype uint8xint8", "expected one of float32"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse_workload(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_nests_of_other_hands_keep_to_the_same_rules() -> None:
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


@pytest.mark.parametrize("word", ["uint8xint8", "bfloat16:float32", "int8"])
@pytest.mark.parametrize("template", ["cuda", "tensorcore"])
def test_gpu_templates_refuse_what_they_do_not_compute(word: str, template: str) -> None:
    steps = ("scale",) if word == "int8" else ()
    with pytest.raises(SpaceError) as error:
        anatune.plan(anatune.matmul(64, 64, 64, dtype=word, epilogue=steps), "nvidia_a100_sxm", template=template)
    assert "\n" not in str(error.value)

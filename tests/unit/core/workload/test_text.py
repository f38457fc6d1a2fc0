from __future__ import annotations

import msgspec
import pytest

from anatune.core.workload import operators as ops
from anatune.core.workload.layers import layer, layer_names
from anatune.core.workload.nest import Workload
from anatune.core.workload.text import operator_words, parse_workload, workload_to_text
from anatune.errors import AnatuneError, UnknownNameError, WorkloadError
from tests.wording import refuses

CANONICAL: dict[str, Workload] = {
    "matmul 512x4096x1024": ops.matmul(512, 4096, 1024),
    "matmul 2x3x4 --dtype int8 --transpose-b --epilogue bias,relu": ops.matmul(
        2, 3, 4, dtype="int8", transpose_b=True, epilogue=("bias", "relu")
    ),
    "batch_matmul 16x512x64x512": ops.batch_matmul(16, 512, 64, 512),
    "conv2d 1x64x56x56 64x64x3x3 --padding 1": ops.conv2d(1, 64, 56, 56, 64, 3, 3, padding=1),
    "conv2d 1x64x56x56 32x32x3x1 --stride 2,1 --groups 2 --layout NHWC": ops.conv2d(
        1, 64, 56, 56, 32, 3, 1, stride=(2, 1), groups=2, layout="NHWC"
    ),
    "conv2d 1x4x6x6 4x4x3x3 --stride 2 --padding 0,0,1,1": ops.conv2d(1, 4, 6, 6, 4, 3, 3, 2, "SAME"),
    "conv2d 1x4x2x2 4x4x3x3 --padding 1 --dilation 1": ops.conv2d(1, 4, 2, 2, 4, 3, 3, padding=1),
    "conv1d 1x4x9 6x4x3 --dilation 2": ops.conv1d(1, 4, 9, 6, 3, dilation=2),
    "conv3d 1x4x5x6x7 6x4x3x2x1 --layout NDHWC": ops.conv3d(1, 4, 5, 6, 7, 6, 3, 2, 1, layout="NHWC"),
    "depthwise_conv2d 1x32x112x112 64x1x3x3": ops.depthwise_conv2d(1, 32, 112, 112, 3, 3, 2),
    "conv2d 1x32x9x9 48x32x3x3 --layout NCHW16c": ops.conv2d(1, 32, 9, 9, 48, 3, 3, layout="nchw16C"),
    "conv2d 1x3x9x9 48x3x3x3 --layout NCHW:NCHW8c": ops.conv2d(1, 3, 9, 9, 48, 3, 3, layout="NCHW:NCHW8c"),
    "depthwise_conv2d 1x32x9x9 32x1x3x3 --layout NCHW16c": ops.depthwise_conv2d(1, 32, 9, 9, 3, 3, layout="NCHW16c"),
    "max_pool2d 1x64x112x112 3x3 --stride 2 --padding 1": ops.max_pool2d(1, 64, 112, 112, 3, 3, 2, 1),
    "avg_pool1d 1x4x9 3": ops.avg_pool1d(1, 4, 9, 3),
    "avg_pool3d 1x4x9x8x7 3x2x1": ops.avg_pool3d(1, 4, 9, 8, 7, 3, 2, 1),
    "sum 1024x4096 --axes 1": ops.reduction((1024, 4096), axes=1),
    "max 3x4x5 --axes 0,2": ops.reduction((3, 4, 5), (0, 2), "max"),
    "mean 7 --axes 0": ops.reduction((7,), kind="mean"),
    "relu 1024x1024": ops.elementwise((1024, 1024)),
    "add 10 --dtype float16": ops.elementwise((10,), "add", "float16"),
    "einsum 'bij,bjk->bik' 16x32x64 16x64x128": ops.einsum("bij,bjk->bik", ((16, 32, 64), (16, 64, 128))),
}


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical_text_both_ways(text: str) -> None:
    workload = CANONICAL[text]
    assert parse_workload(text) == workload
    assert workload_to_text(workload) == text.removesuffix(" --dilation 1")


def test_layers_have_text() -> None:
    for name in layer_names():
        assert parse_workload([name]) == layer(name)
        assert parse_workload(workload_to_text(layer(name))) == layer(name)


def test_layers_take_layout_dtype_and_epilogue() -> None:
    workload = parse_workload(["ResNet18:c2"], layout="NHWC", dtype="float16", epilogue="bias,relu")
    assert workload == ops.conv2d(
        1, 64, 56, 56, 64, 3, 3, padding=1, layout="NHWC", dtype="float16", epilogue=("bias", "relu")
    )


def test_options_as_keywords_in_text_or_values() -> None:
    words = ["conv2d", "1x4x9x9", "4x4x3x3"]
    expected = ops.conv2d(1, 4, 9, 9, 4, 3, 3, stride=2, padding=(1, 0))
    assert parse_workload(words, stride="2", padding="1,0") == expected
    assert parse_workload(words, stride=[2], padding=(1, 0)) == expected
    assert parse_workload(words, stride=(2, 2), padding="1x0") == expected
    assert parse_workload([*words, "--stride=2", "--padding", "1,0"], epilogue=(), axes=None) == expected
    assert parse_workload(words, padding="same") == ops.conv2d(1, 4, 9, 9, 4, 3, 3, padding=1)
    assert parse_workload(["sum", "3x4"], axes="-1") == ops.reduction((3, 4), 1)
    assert parse_workload(["matmul", "2x3x4"], transpose_a=True) == ops.matmul(2, 3, 4, transpose_a=True)


def test_words_without_a_kind_have_one() -> None:
    assert parse_workload("reduction 3x4 --axes 0") == ops.reduction((3, 4), 0, "sum")
    assert parse_workload("elementwise 3x4") == ops.elementwise((3, 4), "relu")
    assert "einsum" in operator_words()


BAD: dict[str, str] = {
    "": "workload is empty",
    "matmul": "got 0 words of extents",
    "matmul 512xabc": "'abc' is no extent, expected MxNxK in decimal digits; write for example matmul 512x",
    "matmul 512x4096": "got 2 extents, expected MxNxK",
    "matmul 512x4096x1024x2": "got 4 extents, expected MxNxK",
    "matmul 1x2x3 4": "got 2 words of extents",
    "matmul 512x0x4": "n is 0, expected an integer >= 1",
    "matmul 512x-1x4": "'-1' is no extent",
    "matmul 5_1x1x4": "'5_1' is no extent",
    "matmul +5x1x4": "'.5' is no extent",
    "matmul 1.5x1x4": "'1.5' is no extent",
    "matmul 512X1X4": "'512X1X4' is no extent",
    "matmul 512xx4": "'' is no extent",
    "matmul ٣x1x1": "is no extent",
    f"matmul {'9' * 5000}x1x1": "is no extent",
    "matmul 1x2x3 --stride 2": "matmul: option --stride does not apply, expected some of --dtype, --tr",
    "matmul 1x2x3 --foo 2": "option --foo is unknown",
    "matmul 1x2x3 --dtype": "wrong number of values",
    "matmul 1x2x3 --transpose-a=1": "wrong number of values",
    "matmul 1x2x3 --dtype int8 --dtype int8": "is given twice",
    "matmul 'a": "No closing quotation",
    "conv2d 1x64x56x56 64x32x3x3": "weight has 32 input channels, data has 64",
    "conv2d 1x64x56x56 64x32x3x3 --groups 3": "weight has 32 input channels",
    "conv2d 1x64x56x56 64x64x3x3 --groups 0": "groups is 0",
    "conv2d 1x64x56x56": "got 1 words of extents",
    "conv2d 1x64x56x56 64x64x3": "got 3 extents, expected KxC/groupsxRxS",
    "conv2d 1x64x56x56 64x64x3x3 --stride -1": "stride is -1, expected an integer >= 1",
    "conv2d 1x64x56x56 64x64x3x3 --stride 1,,2": "stride is",
    "conv2d 1x64x56x56 64x64x3x3 --axes 1": "--axes does not apply",
    "conv2d 1x64x2x2 64x64x3x3": "output is empty",
    "depthwise_conv2d 1x32x9x9 33x1x3x3": "expected .channels x multiplier.x1xRxS",
    "depthwise_conv2d 1x32x9x9 32x2x3x3": "expected .channels x multiplier.x1xRxS",
    "depthwise_conv2d 1x0x9x9 32x1x3x3": "expected .channels x multiplier.x1xRxS",
    "sum 3x4 --axes 2": "axes is .2,., expected dimensions of a shape of rank 2",
    "sum 3x4 --axes a": "axes is 'a'",
    "einsum ij": "got 1 words",
    "einsum ij 2xa": "'a' is no extent",
    "einsum ij,jk->ik 2x3 4x5": "j is 3 in one operand and 4 in B",
    "resnet18:C2 1x2": "expected the layer's name alone",
    "resnet18:C2 --stride 2": "--stride does not apply",
    "bert:M0 --layout NHWC": "--layout does not apply",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_one_clear_line(text: str) -> None:
    with refuses(WorkloadError) as caught:
        parse_workload(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["mathmul 1x1x1", "512x512x512", "resnet18:C99"])
def test_unknown_names(text: str) -> None:
    with refuses(UnknownNameError) as caught:
        parse_workload(text.split())
    assert "\n" not in str(caught.value)


def test_examples_of_every_operator_parse() -> None:
    for operator in operator_words():
        with pytest.raises(AnatuneError) as caught:
            parse_workload([operator])
        example = str(caught.value).split("write for example ")[1]
        assert parse_workload(example).flop >= 0


def test_hand_made_workloads_have_no_text() -> None:
    with refuses(WorkloadError):
        workload_to_text(msgspec.structs.replace(ops.matmul(2, 2, 2), attributes=()))
    with refuses(WorkloadError):
        workload_to_text(msgspec.structs.replace(ops.matmul(2, 2, 2), operator="mine"))


@pytest.mark.parametrize(
    ("operator", "hint"),
    [("matmull", "did you mean matmul?"), ("mlp", "; write for example matmul 512x4096x1024")],  # not multiply
)
def test_an_unknown_operator_has_a_hint_where_a_name_is_close(operator, hint):
    with pytest.raises(UnknownNameError) as told:
        parse_workload([operator, "8x8x8"])
    assert hint in str(told.value)

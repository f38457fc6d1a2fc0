"""Which workloads are 3x3 convolutions that tiles can be made of; what is read off their accesses."""

import msgspec
import pytest

import anatune
from anatune.errors import SpaceError
from anatune.templates.winograd.convolution3x3 import convolution3x3
from tests.wording import refuses


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_numbers_are_those_of_the_accesses(layout):
    workload = anatune.conv2d(2, 5, 9, 11, 7, 3, 3, padding=(1, 0, 2, 3), layout=layout)
    convolution = convolution3x3(workload)
    assert (convolution.batch, convolution.filters, convolution.rows, convolution.columns, convolution.channels) == (
        2,
        7,
        10,
        12,
        5,
    )
    assert (convolution.height, convolution.width, convolution.top, convolution.left) == (9, 11, 1, 0)
    if layout == "NHWC":
        assert convolution.data == {"n": 495, "y": 55, "ry": 55, "x": 5, "rx": 5, "c": 1}
        assert convolution.weight == {"ry": 105, "rx": 35, "c": 7, "f": 1}
        assert convolution.output == {"n": 840, "y": 84, "x": 7, "f": 1}
    else:
        assert convolution.data == {"n": 495, "c": 99, "y": 11, "ry": 11, "x": 1, "rx": 1}
        assert convolution.weight == {"f": 45, "c": 9, "ry": 3, "rx": 1}
        assert convolution.output == {"n": 840, "f": 120, "y": 12, "x": 1}
    assert convolution.channels_last == convolution.filters_last == (layout == "NHWC")
    assert (convolution.num_tiles(2), convolution.num_tiles(4)) == (2 * 5 * 6, 2 * 3 * 3)


def test_operands_of_8_bits():
    convolution = convolution3x3(
        anatune.conv2d(1, 1827, 9, 9, 4, 3, 3, layout="NHWC", dtype="uint8xint8", input_zero_point=7)
    )
    assert (convolution.is_integer, convolution.zero_point, convolution.group) == (True, 7, 2)
    assert (convolution.transformed, convolution.summed) == ("int16", "int32")
    plain = convolution3x3(anatune.conv2d(1, 4, 9, 9, 4, 3, 3))
    assert (plain.is_integer, plain.group, plain.transformed, plain.summed) == (False, 1, "float32", "float32")


def test_the_operators_name_means_nothing():
    workload = msgspec.structs.replace(anatune.conv2d(1, 4, 6, 6, 4, 3, 3), operator="mine")
    assert convolution3x3(workload).channels == 4


@pytest.mark.parametrize(
    "workload",
    [
        anatune.conv2d(1, 4, 9, 9, 4, 3, 3, stride=2),
        anatune.conv2d(1, 4, 9, 9, 4, 3, 3, dilation=2),
        anatune.conv2d(1, 4, 9, 9, 4, 3, 3, groups=2),
        anatune.depthwise_conv2d(1, 4, 9, 9, 3, 3),
        anatune.conv2d(1, 4, 9, 9, 4, 5, 5),
        anatune.conv2d(1, 4, 9, 9, 4, 3, 1),
        anatune.conv2d(1, 4, 9, 9, 4, 3, 3, dtype="int8"),
        anatune.conv2d(1, 1828, 9, 9, 4, 3, 3, layout="NHWC", dtype="uint8xint8"),
        anatune.conv2d(1, 4, 9, 9, 4, 3, 3, dtype="float16"),
        anatune.conv1d(1, 4, 9, 4, 3),
        anatune.conv3d(1, 4, 9, 9, 9, 4, 3, 3, 3),
        anatune.matmul(4, 4, 4),
        anatune.max_pool2d(1, 4, 9, 9, 3, 3),
    ],
)
def test_others_are_refused_in_one_line(workload):
    with refuses(SpaceError) as caught:
        convolution3x3(workload)
    assert "leave out the template winograd" in str(caught.value)
    assert "\n" not in str(caught.value)

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import CONSTRUCTORS, conv1d, conv2d, conv3d, depthwise_conv2d
from anatune.errors import WorkloadError
from tests.naive_workload import convolve, evaluate, random_arrays
from tests.wording import refuses


def expected_output(workload: Workload, arrays: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Convolve channels first, by slicing, and return the result in the workload's layout."""
    own = workload.attribute
    data, weight = arrays["data"], arrays["weight"]
    last = str(own["layout"]).endswith("C")
    if last:
        data = np.moveaxis(data, -1, 1)
        weight = np.moveaxis(weight, (-1, -2), (0, 1))
    rank = data.ndim - 2
    padding = own["padding"]
    assert isinstance(padding, tuple)
    groups = own.get("groups", own["c"])
    result = convolve(data, weight, own["stride"], padding[:rank], padding[-rank:], own["dilation"], groups)  # type: ignore[arg-type]
    return np.moveaxis(result, 1, -1) if last else result


def check(workload: Workload) -> None:
    arrays = random_arrays(workload)
    np.testing.assert_array_equal(evaluate(workload, arrays), expected_output(workload, arrays))
    assert CONSTRUCTORS[workload.operator](**workload.attribute) == workload


@pytest.mark.parametrize(
    ("layout", "groups", "stride", "padding", "dilation"),
    [
        *itertools.product(("NCHW", "NHWC"), (1, 2), (1, 2), (0, 1), (1,)),
        ("NCHW", 1, (2, 1), (0, 2), (1, 2)),
        ("NHWC", 2, (1, 3), (2, 1), (2, 1)),
        ("NCHW", 1, 2, "SAME", 1),
        ("NHWC", 1, 3, "same", 2),
        ("NCHW", 1, 2, "VALID", 1),
        ("NCHW", 1, 1, (0, 1, 2, 0), 1),
    ],
)
def test_conv2d_is_the_convolution(layout: str, groups: int, stride: object, padding: object, dilation: object) -> None:
    check(conv2d(2, 4, 5, 6, 2, 3, 2, stride, padding, dilation, groups, layout))  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_conv1d_and_conv3d_are_convolutions(layout: str) -> None:
    check(conv1d(2, 4, 9, 6, 3, stride=2, padding=1, dilation=2, groups=2, layout=layout))
    check(conv3d(1, 2, 4, 3, 5, 2, 2, 3, 2, stride=(1, 2, 2), padding=(1, 1, 0), dilation=(2, 1, 1), layout=layout))


@pytest.mark.parametrize(("layout", "multiplier"), list(itertools.product(("NCHW", "NHWC"), (1, 2))))
def test_depthwise_is_a_convolution_of_every_channel(layout: str, multiplier: int) -> None:
    workload = depthwise_conv2d(1, 3, 5, 4, 3, 3, multiplier, padding=1, layout=layout)
    assert workload.extents["g"] == 3
    assert workload.extents["f"] == multiplier
    assert workload.extents["rc"] == 1
    check(workload)
    check(depthwise_conv2d(1, 1, 5, 4, 3, 3, multiplier, layout=layout))


def _plain(array: NDArray[np.float64], order: str) -> NDArray[np.float64]:
    """Return data or a result with its channels first."""
    if order.endswith("c"):
        blocks = np.moveaxis(array, -1, 2)
        return blocks.reshape(blocks.shape[0], -1, *blocks.shape[3:])
    return np.moveaxis(array, -1, 1) if order.endswith("C") else array


def _plain_weight(array: NDArray[np.float64], data: str, result: str, outputs: int) -> NDArray[np.float64]:
    """Return the weight as [k, c, ...]."""
    if result.endswith("C"):
        taps = array.ndim - (3 if data.endswith("c") else 2)
        return np.moveaxis(array.reshape(*array.shape[:taps], -1, outputs), (-1, -2), (0, 1))
    if result.endswith("c"):
        array = np.moveaxis(array, -1, 1).reshape(outputs, *array.shape[1:-1])
    if data.endswith("c") and array.ndim > 4:
        array = np.moveaxis(array, -1, 2).reshape(outputs, -1, *array.shape[2:-1])
    return array


@pytest.mark.parametrize("result", ["NCHW", "NHWC", "NCHW3c"])
@pytest.mark.parametrize("data", ["NCHW", "NHWC", "NCHW2c"])
@pytest.mark.parametrize("groups", [1, 2])
def test_data_and_result_lie_in_any_two_orders(data: str, result: str, groups: int) -> None:
    steps = ("bias", "add", "relu")
    workload = conv2d(
        2, 8, 5, 4, 12, 3, 2, stride=(2, 1), padding=1, groups=groups, layout=f"{data}:{result}", epilogue=steps
    )
    assert CONSTRUCTORS[workload.operator](**workload.attribute) == workload
    arrays = random_arrays(workload)
    source, weight = _plain(arrays["data"], data), _plain_weight(arrays["weight"], data, result, 12)
    sums = convolve(source, weight, (2, 1), (1, 1), (1, 1), (1, 1), groups)
    bias = arrays["bias"].reshape(-1)[:, None, None]
    expected = np.maximum(sums + bias + _plain(arrays["residual"], result), 0)
    np.testing.assert_array_equal(_plain(evaluate(workload, arrays), result), expected)


@pytest.mark.parametrize("layout", ["NCHW4c", "NHWC:NCHW4c", "NCHW4c:NHWC", "NCHW:NCHW4c"])
def test_depthwise_convolutions_have_blocks_of_groups(layout: str) -> None:
    workload = depthwise_conv2d(1, 8, 5, 4, 3, 3, padding=1, layout=layout, epilogue=("bias",))
    assert (workload.extents["g"], workload.extents["gi"]) == (2, 4)
    arrays = random_arrays(workload)
    data, _, result = workload.attribute["layout"].partition(":")  # type: ignore[union-attr]
    blocks = arrays["weight"]
    weight = np.moveaxis(blocks, -1, 1).reshape(8, 1, 3, 3) if blocks.ndim == 5 else np.moveaxis(blocks, -1, 0)
    weight = weight.reshape(8, 1, 3, 3)
    sums = convolve(_plain(arrays["data"], data), weight, (1, 1), (1, 1), (1, 1), (1, 1), 8)
    expected = sums + arrays["bias"].reshape(-1)[:, None, None]
    np.testing.assert_array_equal(_plain(evaluate(workload, arrays), result or data), expected)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (conv2d, {"c": 6, "k": 8, "layout": "NCHW4c"}),
        (conv2d, {"c": 8, "k": 6, "layout": "NHWC:NCHW4c"}),
        (conv2d, {"c": 8, "k": 8, "groups": 4, "layout": "NCHW4c"}),
        (depthwise_conv2d, {"c": 6, "layout": "NCHW4c"}),
        (depthwise_conv2d, {"c": 8, "layout": "NCHW4c:NCHW8c"}),
    ],
)
def test_blocks_that_do_not_fit_are_refused(operator: Any, arguments: dict[str, Any]) -> None:
    with refuses(WorkloadError):
        operator(n=1, h=5, w=5, r=3, s=3, **arguments)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_epilogue_bias_runs_along_the_output_channels(layout: str) -> None:
    workload = conv2d(1, 4, 4, 4, 6, 1, 1, groups=2, layout=layout, epilogue=("bias", "add", "relu"))
    arrays = random_arrays(workload)
    bias = arrays["bias"] if layout == "NHWC" else arrays["bias"][:, None, None]
    expected = np.maximum(expected_output(workload, arrays) + bias + arrays["residual"], 0)
    np.testing.assert_array_equal(evaluate(workload, arrays), expected)


def test_axes_shapes_and_names_are_those_of_tvm_records() -> None:
    workload = conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, stride=1, padding=1, layout="NCHW")
    assert list(workload.extents.items()) == [
        ("n", 1), ("f", 64), ("y", 56), ("x", 56), ("rc", 64), ("ry", 3), ("rx", 3),
    ]  # fmt: skip
    assert [access.tensor for access in workload.reads] == ["data", "weight"]
    assert workload.reads[0].offsets == (0, 0, -1, -1)
    assert workload.write.shape == (1, 64, 56, 56)
    assert list(conv2d(1, 4, 1, 1, 4, 1, 1, groups=2).extents) == ["n", "g", "f", "y", "x", "rc", "ry", "rx"]
    assert list(conv3d(1, 1, 2, 2, 2, 1, 1, 1, 1).extents) == ["n", "f", "z", "y", "x", "rc", "rz", "ry", "rx"]
    assert list(conv1d(1, 1, 2, 1, 1).extents) == ["n", "f", "x", "rc", "rx"]


def test_equal_workloads_in_other_words() -> None:
    plain = conv2d(1, 8, 9, 9, 8, 3, 3, stride=2, padding=1)
    assert plain == conv2d(1, 8, 9, 9, 8, 3, 3, stride=[2, 2], padding="SAME", layout="nchw")
    assert plain.key == conv2d(1, 8, 9, 9, 8, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)).key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stride": 0}, "stride is 0, expected an integer >= 1"),
        ({"stride": -1}, "stride is -1, expected an integer >= 1"),
        ({"stride": (1, 2, 3)}, "stride is .1, 2, 3., expected 2 integers"),
        ({"stride": "2"}, "stride is '2'"),
        ({"dilation": True}, "dilation is True"),
        ({"padding": -1}, "padding is -1, expected an integer >= 0"),
        ({"padding": "FULL"}, "padding is 'FULL', expected SAME, VALID"),
        ({"groups": 3}, "c is 4 with groups 3"),
        ({"groups": 4}, "k is 6 with groups 4"),
        ({"layout": "CHWN"}, "layout is 'CHWN', expected NCHW"),
        ({"layout": "NCHW0c"}, "layout is 'NCHW0c', expected NCHW"),
        ({"layout": "NCHW:NHWC:NCHW"}, "layout is 'NCHW:NHWC:NCHW', expected NCHW"),
        ({"r": 6}, "output is empty along h: input 5"),
        ({"dilation": (1, 5)}, "output is empty along w"),
        ({"k": 0}, "k is 0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"n": 1, "c": 4, "h": 5, "w": 5, "k": 6, "r": 3, "s": 3, **arguments}
    with refuses(WorkloadError) as caught:
        conv2d(**given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)

"""Windows over images, as ONNX's reference computes them."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from tests.unit.network.graph.onnx.evaluated import check, computed
from tests.wording import refuses

IMAGE = np.random.default_rng(0).standard_normal((2, 3, 7, 6)).astype(np.float32)
WINDOWS = [
    {"kernel_shape": [3, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [0, 1, 1, 0], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3, 2], "auto_pad": "VALID"},
    {"kernel_shape": [2, 2], "dilations": [2, 3], "strides": [2, 1]},
]


def of_windows(reduce, attributes, data=IMAGE):
    """Return what a function makes of the elements that each window has in the image, and how many it may have."""
    rank = data.ndim - 2
    window, strides = attributes["kernel_shape"], attributes.get("strides", [1] * rank)
    steps, padding = attributes.get("dilations", [1] * rank), attributes.get("pads", [0] * 2 * rank)
    outputs = []
    for d, size in enumerate(data.shape[2:]):
        room = size + padding[d] + padding[rank + d] - (window[d] - 1) * steps[d] - 1
        outputs.append((-(-room // strides[d]) if attributes.get("ceil_mode") else room // strides[d]) + 1)
    result = np.zeros((*data.shape[:2], *outputs))
    for index in np.ndindex(*outputs):
        position = [index[d] * strides[d] - padding[d] + np.arange(window[d]) * steps[d] for d in range(rank)]
        inside = [one[(one >= 0) & (one < size)] for one, size in zip(position, data.shape[2:], strict=True)]
        padded = [
            (one < size + padding[rank + d]).sum()
            for d, (one, size) in enumerate(zip(position, data.shape[2:], strict=True))
        ]
        part = data[(slice(None), slice(None), *np.ix_(*inside))].reshape(*data.shape[:2], -1)
        result[(..., *index)] = reduce(part, np.prod(padded))
    return result


@pytest.mark.parametrize("attributes", WINDOWS)
def test_largest_elements(attributes):
    graph = check("MaxPool", IMAGE, **attributes)
    assert [node.op for node in graph.nodes()] == ["nn.max_pool2d"]


@pytest.mark.parametrize("attributes", [one for one in WINDOWS if "auto_pad" not in one])
def test_means(attributes):
    for counts in (0, 1):
        want = of_windows(lambda part, padded: part.sum(-1) / (padded if counts else part.shape[-1]), attributes)  # noqa: B023
        check("AveragePool", IMAGE, want=[want.astype(np.float32)], count_include_pad=counts, **attributes)


@pytest.mark.parametrize("attributes", [one for one in WINDOWS if "auto_pad" not in one])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_norms(attributes, power):
    want = of_windows(lambda part, _: (np.abs(part) ** power).sum(-1) ** (1 / power), attributes)
    check("LpPool", IMAGE, want=[want.astype(np.float32)], p=power, **attributes)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16])
def test_largest_elements_of_other_dtypes(dtype):
    image = np.arange(60).reshape(1, 2, 6, 5).astype(dtype)[..., ::-1].copy()
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    graph = check(
        "MaxPool", image, want=[of_windows(lambda part, _: part.max(-1), attributes, image).astype(dtype)], **attributes
    )
    assert any(node.op.startswith("nn.") for node in graph.nodes()) == (dtype != np.float16)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("attributes", [WINDOWS[1], WINDOWS[2], WINDOWS[6]])
def test_places_of_largest_elements(attributes, order):
    """Elements are different, so that their places follow from them; padding is no place."""
    image = -np.random.default_rng(1).permutation(IMAGE.size).reshape(IMAGE.shape).astype(np.float32)
    want = of_windows(lambda part, _: part.max(-1), attributes, image).astype(np.float32)
    column_major = image.reshape(2, 3, 7, 6).swapaxes(2, 3) if order else image
    flat = np.argsort(column_major, axis=None)
    places = flat[np.searchsorted(column_major.reshape(-1)[flat], want)]
    check("MaxPool", image, want=[want, places], outputs=2, storage_order=order, **attributes)


def test_images_without_windows():
    for op, reduce in (("GlobalMaxPool", np.max), ("GlobalAveragePool", np.mean)):
        check(op, IMAGE, want=[reduce(IMAGE, axis=(2, 3), keepdims=True)])
    check("GlobalLpPool", IMAGE, p=2, want=[np.sqrt((IMAGE**2).sum((2, 3), keepdims=True))])


@pytest.mark.parametrize("sizes", [None, [1, 1, 5, 4]])
def test_places_are_filled_again(sizes):
    x, places = np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]])
    want = np.zeros((1, 1, 4, 4), np.float32)
    want.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    want = want if sizes is None else np.pad(want, [(0, 0), (0, 0), (0, 1), (0, 0)])
    operands = [x, places, *([] if sizes is None else [np.array(sizes)])]
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check("MaxUnpool", *operands, unknown=(0, 1), want=[want], **attributes)


def test_windows_that_are_none_are_refused():
    with refuses(WorkloadError):
        computed("MaxPool", IMAGE, kernel_shape=[2])
    with refuses(WorkloadError):
        computed("MaxPool", IMAGE, kernel_shape=[2, 0])

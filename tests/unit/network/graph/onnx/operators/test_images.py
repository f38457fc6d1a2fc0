"""Operators that change the sizes of images, and those that add up blocks of them."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from tests.unit.network.graph.onnx.one_node import check, found, model_of, read
from tests.wording import refuses

IMAGE = np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32)
NONE = np.zeros(0, np.float32)


def floats(*numbers):
    return np.array(numbers, np.float32)


def ints(*numbers):
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize(
    "word", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
def test_coordinates(mode, word):
    for scales in (floats(1, 1, 0.6, 2.3), floats(1, 1, 0.2, 1)):
        check("Resize", IMAGE, NONE, scales, mode=mode, coordinate_transformation_mode=word)


@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        *(((NONE, floats(1, 1, 0.7, 1.6)), {"nearest_mode": word})
          for word in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
        *(((NONE, floats(1, 1, 0.4, 1.5)), {"mode": mode, "antialias": 1}) for mode in ("linear", "cubic")),
        *(((NONE, floats(1, 1, 0.4, 1.5)), {"mode": mode, "exclude_outside": 1, "antialias": flag})
          for mode in ("linear", "cubic") for flag in (0, 1)),
        ((NONE, floats(1, 1, 2, 2)), {"mode": "cubic", "cubic_coeff_a": -0.5}),
        ((floats(0.1, -0.4, 0.9, 1.2), None, ints(4, 6)), {
            "axes": [2, 3], "mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 9.0}),
        *(((NONE, None, ints(8, 6)), {"axes": [2, 3], "keep_aspect_ratio_policy": word})
          for word in ("stretch", "not_larger", "not_smaller")),
    ],
)  # fmt: skip
def test_as_the_reference_evaluator(operands, attributes):
    check("Resize", IMAGE, *operands, **attributes)


def test_whole_numbers_are_rounded():
    check("Resize", (40 * IMAGE).astype(np.int8), NONE, floats(1, 1, 2, 2), mode="cubic")


def test_older_versions_have_scales_alone_and_round_down():
    want = [IMAGE.repeat(2, 2)[..., [0, 0, 1, 2, 2, 3]]]
    check("Resize", IMAGE, floats(1, 1, 2, 1.5), mode="nearest", opset=10, want=want)
    check("Upsample", IMAGE, floats(1, 1, 2, 1.5), mode="nearest", opset=9, want=want)
    check("Upsample", IMAGE, scales=[1.0, 1.0, 2.0, 1.5], mode="nearest", opset=7, want=want)
    middle = (IMAGE[..., :-1] + IMAGE[..., 1:]) / 2
    (linear,) = read(model_of("Upsample", IMAGE, floats(1, 1, 1, 2), mode="linear", opset=9)).outputs
    np.testing.assert_allclose(linear.array[..., 1:-1:2], middle, rtol=1e-5)


def test_few_elements_are_summed_and_many_are_a_product():
    for scale, word in ((2, "take"), (0.2, "matmul")):
        attributes = {"mode": "linear", "antialias": 1}
        nodes = read(model_of("Resize", IMAGE, NONE, floats(1, 1, scale, 1), unknown=(0,), **attributes)).nodes()
        assert word in {node.op for node in nodes}
        assert ("matmul" in {node.op for node in nodes}) == (word == "matmul")


def test_too_few_scales_are_refused():
    with refuses(WorkloadError):
        read(model_of("Resize", IMAGE, NONE, floats(2, 2)))


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("flag", [0, 1])
def test_images_of_no_elements(mode, flag):
    attributes = {"mode": mode, **({"antialias": 1} if flag and mode != "nearest" else {})}
    point, empty = IMAGE[:, :, :1, :1], IMAGE[:, :, :0]
    for image, operands, shape in (
        (point, (NONE, floats(1, 1, 2, 0.5)), (1, 2, 2, 0)),
        (empty, (NONE, floats(1, 1, 2, 2)), (1, 2, 0, 8)),
        (IMAGE, (NONE, None, ints(1, 2, 0, 4)), (1, 2, 0, 4)),
        (empty, (NONE, None, ints(1, 2, 0, 8)), (1, 2, 0, 8)),
    ):
        check("Resize", image, *operands, want=[np.zeros(shape, "float32")], **attributes)
    with refuses(WorkloadError):
        read(model_of("Resize", empty, NONE, None, ints(1, 2, 3, 4), **attributes))


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 2], "pads": [1, 0, 1, 1], "dilations": [1, 2]}])
def test_columns_add_up_to_images(attributes):
    columns = 12 if not attributes else 6
    data = np.random.default_rng(1).standard_normal((2, 12, columns)).astype(np.float32)
    size = ints(5, 4) if not attributes else ints(4, 4)
    check("Col2Im", data, size, ints(2, 2), **attributes)


def test_sizes_of_scales_are_those_of_float32():
    (output,) = found("Resize", np.arange(3, dtype=np.float32), None, np.array([10 / 3], np.float32))
    assert output.shape == (10,)


def test_scales_of_the_first_version():
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    want = [x.repeat(2, axis=2).repeat(3, axis=3)]
    check("Upsample", x, want=want, opset=6, height_scale=2.0, width_scale=3.0, mode="nearest")

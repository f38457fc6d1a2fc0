from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import (
    CONSTRUCTORS,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    pool2d,
)
from anatune.errors import WorkloadError
from tests.naive_workload import evaluate, random_arrays
from tests.wording import refuses


def expected_output(workload: Workload, data: NDArray[np.float64]) -> NDArray[np.float64]:
    own = workload.attribute
    last = str(own["layout"]).endswith("C")
    image = np.moveaxis(data, -1, 1) if last else data
    rank = image.ndim - 2
    stride, dilation, padding = own["stride"], own["dilation"], own["padding"]
    assert isinstance(stride, tuple)
    assert isinstance(dilation, tuple)
    assert isinstance(padding, tuple)
    kernel = [own[name] for name in "trs"[3 - rank :]]
    largest = workload.body == "max"
    edges = list(zip(padding[:rank], padding[-rank:], strict=True))
    padded = np.pad(image, [(0, 0), (0, 0), *edges], constant_values=-np.inf if largest else 0.0)  # type: ignore[list-item]
    places = []
    for tap in itertools.product(*(range(int(extent)) for extent in kernel)):  # type: ignore[arg-type]
        slices = tuple(
            slice(at * step, size - (taps - 1 - at) * step, jump)
            for at, step, size, taps, jump in zip(tap, dilation, padded.shape[2:], kernel, stride, strict=True)
        )
        places.append(padded[(slice(None), slice(None), *slices)])
    result = np.max(places, axis=0) if largest else np.mean(places, axis=0)
    return np.moveaxis(result, 1, -1) if last else result


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "workload_of",
    [
        lambda layout: max_pool2d(2, 3, 7, 6, 3, 2, stride=2, padding=1, layout=layout),
        lambda layout: avg_pool2d(2, 3, 7, 6, 3, 2, stride=(1, 2), padding="SAME", dilation=(2, 1), layout=layout),
        lambda layout: max_pool1d(1, 2, 9, 3, stride=2, padding=2, layout=layout),
        lambda layout: avg_pool1d(1, 2, 9, 3, layout=layout),
        lambda layout: max_pool3d(1, 2, 4, 5, 3, 2, 2, 3, stride=2, padding=1, layout=layout),
        lambda layout: avg_pool3d(1, 2, 4, 5, 3, 2, 2, 3, layout=layout),
    ],
)
def test_pooling_takes_the_largest_or_mean_of_each_window(workload_of: object, layout: str) -> None:
    workload = workload_of(layout)  # type: ignore[operator]
    arrays = random_arrays(workload)
    np.testing.assert_allclose(evaluate(workload, arrays), expected_output(workload, arrays["data"]), rtol=1e-15)
    assert CONSTRUCTORS[workload.operator](**workload.attribute) == workload


def test_pool2d_is_one_of_both() -> None:
    assert pool2d(1, 2, 4, 4, 2, 2) == max_pool2d(1, 2, 4, 4, 2, 2)
    assert pool2d(1, 2, 4, 4, 2, 2, kind="average", stride=2) == avg_pool2d(1, 2, 4, 4, 2, 2, stride=2)
    assert list(max_pool2d(1, 2, 4, 4, 2, 2).extents) == ["n", "c", "y", "x", "ry", "rx"]
    with refuses(WorkloadError):
        pool2d(1, 2, 4, 4, 2, 2, kind="min")


def test_int8_keeps_its_dtype_only_in_max() -> None:
    assert max_pool2d(1, 2, 4, 4, 2, 2, dtype="int8").write.dtype == "int8"
    assert avg_pool2d(1, 2, 4, 4, 2, 2, dtype="int8").write.dtype == "int32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding": 2}, "padding along h is 2 for a window of 2"),
        ({"dilation": 5, "padding": 4}, "dilation along h is 5 for a padded input of 4"),
        ({"r": 5}, "output is empty along h"),
        ({"c": 0}, "c is 0"),
        ({"layout": "X"}, "layout is 'X'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"n": 1, "c": 2, "h": 4, "w": 4, "r": 2, "s": 2, **arguments}
    with refuses(WorkloadError):
        max_pool2d(**given)  # type: ignore[arg-type]

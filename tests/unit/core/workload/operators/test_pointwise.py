from __future__ import annotations

import numpy as np
import pytest

from anatune.core.workload.operators import CONSTRUCTORS, elementwise, reduction
from anatune.errors import WorkloadError
from tests.naive_workload import evaluate, random_arrays
from tests.wording import refuses


@pytest.mark.parametrize("axes", [None, 0, 2, -1, (0, 2), [1], (0, 1, 2)])
@pytest.mark.parametrize(("kind", "numpy_function"), [("sum", np.sum), ("max", np.max), ("mean", np.mean)])
def test_reductions_agree_with_numpy(axes: object, kind: str, numpy_function: object) -> None:
    workload = reduction((3, 4, 2), axes, kind)  # type: ignore[arg-type]
    arrays = random_arrays(workload)
    where = tuple(axes) if isinstance(axes, list) else axes
    expected = numpy_function(arrays["data"], axis=where)  # type: ignore[operator]
    np.testing.assert_allclose(evaluate(workload, arrays), expected, rtol=1e-15)
    assert CONSTRUCTORS[workload.operator](**workload.attribute) == workload


def test_reduced_axes_come_last_and_keep_their_dimension_names() -> None:
    workload = reduction((3, 4, 2), axes=(0, 2))
    assert workload.extents == {"d1": 4, "d0": 3, "d2": 2}
    assert [axis.name for axis in workload.reduction_axes] == ["d0", "d2"]


@pytest.mark.parametrize(
    ("op", "numpy_function"), [("add", np.add), ("multiply", np.multiply), ("maximum", np.maximum)]
)
def test_binary_elementwise_agrees_with_numpy(op: str, numpy_function: np.ufunc) -> None:
    workload = elementwise((3, 4), op)
    arrays = random_arrays(workload)
    np.testing.assert_array_equal(evaluate(workload, arrays), numpy_function(arrays["A"], arrays["B"]))
    assert workload.reduction_axes == ()
    assert workload.flop == 12
    assert CONSTRUCTORS[workload.operator](**workload.attribute) == workload


def test_unary_elementwise() -> None:
    for op, flop in (("relu", 12), ("copy", 0)):
        workload = elementwise((3, 4), op, dtype="int8")
        arrays = random_arrays(workload)
        expected = np.maximum(arrays["data"], 0) if op == "relu" else arrays["data"]
        np.testing.assert_array_equal(evaluate(workload, arrays), expected)
        assert (workload.flop, workload.write.dtype) == (flop, "int8")


@pytest.mark.parametrize(
    "call",
    [
        lambda: reduction((3, 4), 2),
        lambda: reduction((3, 4), -3),
        lambda: reduction((3, 4), (1, -1)),
        lambda: reduction((3, 4), ()),
        lambda: reduction((3, 4), kind="min"),
        lambda: reduction(()),
        lambda: reduction("3x4"),
        lambda: elementwise((3, 0)),
        lambda: elementwise((3,), "tanh"),
        lambda: elementwise(7),
    ],
)
def test_bad_arguments_are_named(call: object) -> None:
    with refuses(WorkloadError) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)

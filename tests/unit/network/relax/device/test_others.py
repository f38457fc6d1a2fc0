"""How tokens get to experts: the largest of few numbers, and which rows each expert has, in Triton's interpreter."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels run in Triton's interpreter")

from anatune.measure.emulate.triton_interpreter import interpret
from anatune.network.graph.building import scatter, top_indices
from anatune.network.graph.experts.passes import select_in_rounds
from anatune.network.relax.device.others import route_program
from tests.unit.network.relax.device.running import graph_of, lower, run

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("rows", "experts"), [(1, 1), (2, 8), (48, 4), (9000, 5), (1024, 128)])
def test_rows_of_each_expert_stay_in_order(rows, experts):
    chosen = RNG.integers(0, experts, rows)
    chosen[chosen == 1] = 0  # nobody chooses the second one
    routed = interpret(route_program(rows, experts), {"chosen": chosen})["routed"]
    lead = -(-experts // 4) * 4
    np.testing.assert_array_equal(routed[:experts], np.bincount(chosen, minlength=experts).cumsum())
    np.testing.assert_array_equal(routed[lead:], np.argsort(chosen, kind="stable"))


@pytest.mark.parametrize(("shape", "count", "largest"), [((5, 7), 3, True), ((2, 3, 128), 8, False), ((4, 1), 1, True)])
def test_the_largest_of_equal_numbers_is_the_first(shape, count, largest):
    graph = graph_of(lambda x: top_indices(x, count, -1, largest=largest), (shape, "float32"))
    x = RNG.integers(0, 9, shape).astype(np.float32)
    (got,) = run(graph, lower(select_in_rounds(graph)), [x])
    np.testing.assert_array_equal(got, np.argsort(-x if largest else x, axis=-1, kind="stable")[..., :count])


def test_few_elements_are_put_one_after_the_other():
    graph = graph_of(
        lambda x, at, new: scatter(x, at, new, 1, "update"),
        ((5, 9), "float32"), ((5, 3), "int64"), ((5, 3), "float32"),
    )  # fmt: skip
    x, new = RNG.standard_normal((5, 9)).astype(np.float32), RNG.standard_normal((5, 3)).astype(np.float32)
    at = np.argsort(RNG.standard_normal((5, 9)))[:, :3]
    (got,) = run(graph, lower(select_in_rounds(graph)), [x, at, new])
    np.put_along_axis(x, at, new, 1)
    np.testing.assert_allclose(got, x, rtol=1e-2)  # put numbers have 16 bits in no memory, given ones float32

"""Sums by Einstein's notation, against NumPy's."""

import numpy as np
import pytest

from anatune.network.graph.einsums import einsum, product
from anatune.network.graph.nodes import Graph, Input, TensorType
from tests import naive_graph
from tests.wording import refuses

CASES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
    ("bhqd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 3, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 6)),
    ("i...,i...->...", (3, 2, 4), (3, 4)),
    ("ii->i", (4, 4)),
    ("iij->j", (3, 3, 2)),
    ("ii", (4, 4)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij,kl->ijkl", (2, 3), (4, 5)),
    ("i,i->i", (4,), (4,)),
    ("i,i->", (4,), (4,)),
    ("ij,j,jk->ik", (2, 3), (3,), (3, 4)),
    ("ij,ik,il->jkl", (4, 2), (4, 3), (4, 5)),
    ("ijk,kl->lj", (2, 3, 4), (4, 5)),
    ("ba,cb", (2, 3), (4, 2)),
    ("ij,ij->ij", (2, 1), (2, 3)),
]


@pytest.mark.parametrize(("equation", "shapes"), [(one[0], one[1:]) for one in CASES])
def test_as_numpy(equation, shapes):
    arrays = [np.random.default_rng(place).standard_normal(shape) for place, shape in enumerate(shapes)]
    inputs = tuple(Input(f"x{place}", TensorType(shape, "float64")) for place, shape in enumerate(shapes))
    outcome = einsum(equation, inputs)
    want = np.einsum(equation, *arrays)
    assert outcome.type.shape == want.shape
    (got,) = naive_graph.run(Graph(inputs, (outcome,), is_tuple=False), *arrays)
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize(
    ("equation", "shapes"), [("ij,jk->ik", [(2, 3)]), ("ij->i", [(2, 3, 4)]), ("ij,jk->ik", [(2, 3), (4, 5)])]
)
def test_what_does_not_fit_is_refused(equation, shapes):
    with refuses(ValueError):
        einsum(equation, [Input("x", TensorType(shape, "float32")) for shape in shapes])


def test_vectors_are_matrices_meanwhile():
    row, matrix = Input("x", TensorType((3,), "float32")), Input("y", TensorType((3, 4), "float32"))
    outcome = product(row, matrix)
    (node,) = (one for one in Graph((row, matrix), (outcome,), is_tuple=False).nodes() if one.op == "matmul")
    assert (node.type.shape, outcome.type.shape) == ((1, 4), (4,))

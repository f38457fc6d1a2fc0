from __future__ import annotations

import numpy as np
import pytest

from anatune.core.workload.operators import CONSTRUCTORS, einsum
from anatune.errors import WorkloadError
from tests.naive_workload import evaluate, random_arrays
from tests.wording import refuses


@pytest.mark.parametrize(
    ("subscripts", "shapes", "body", "flop_per_point"),
    [
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), "multiply_add", 2),
        ("ij,jk", ((3, 4), (4, 5)), "multiply_add", 2),
        ("ba", ((3, 4),), "copy", 0),
        ("ij->ji", ((3, 4),), "copy", 0),
        ("ij->", ((3, 4),), "add", 1),
        ("ij->i", ((3, 4),), "add", 1),
        ("i,j->ij", ((3,), (4,)), "multiply", 1),
        ("i,i->i", ((3,), (3,)), "multiply", 1),
        ("ij,jk,kl->il", ((2, 3), (3, 2), (2, 4)), "multiply_add", 3),
        (" abc , ad -> cd ", ((2, 3, 2), (2, 4)), "multiply_add", 2),
    ],
)
def test_einsum_agrees_with_numpy(subscripts: str, shapes: object, body: str, flop_per_point: int) -> None:
    workload = einsum(subscripts, shapes)  # type: ignore[arg-type]
    arrays = random_arrays(workload)
    expected = np.einsum(subscripts.strip(), *(arrays[access.tensor] for access in workload.reads))
    np.testing.assert_array_equal(evaluate(workload, arrays), expected)
    assert (workload.body, workload.flop_per_point) == (body, flop_per_point)
    assert CONSTRUCTORS["einsum"](**workload.attribute) == workload


def test_extents_by_letter_are_the_same_as_shapes() -> None:
    by_letter = einsum("bij,bjk->bik", {"b": 2, "i": 3, "j": 4, "k": 5})
    assert by_letter == einsum("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)))
    assert [axis.name for axis in by_letter.axes] == ["b", "i", "k", "j"]
    assert [access.tensor for access in (*by_letter.reads, by_letter.write)] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ii->i", ((2, 2),)),
        ("ij->ii", ((2, 2),)),
        ("...i->i", ((2, 2),)),
        ("ij,jk->il", ((2, 3), (3, 4))),
        ("ij,jk->ik", ((2, 3), (4, 5))),
        ("ij,jk->ik", ((2, 3),)),
        ("ij->i", ((2, 3, 4),)),
        ("ij->i", {"i": 2}),
        ("ij->i", {"i": 2, "j": 0}),
        ("i1->i", ((2, 3),)),
        ("", ()),
        (5, ()),
        ("->", ()),
    ],
)
def test_bad_arguments_are_named(subscripts: object, shapes: object) -> None:
    with refuses(WorkloadError) as caught:
        einsum(subscripts, shapes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("einsum: ")

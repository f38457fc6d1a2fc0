"""What is no schedule of the template triton is one line."""

import pytest

import anatune
from anatune.errors import SpaceError


@pytest.mark.parametrize(
    ("hw", "options", "message"),
    [
        ("h100", {"split_k": 9}, "option split_k is 9, expected at most 8, the steps of k"),
        ("mi300x", {"matrix_instr_nonkdim": 17}, "option matrix_instr_nonkdim is 17, expected one of 0, 16, 32"),
        ("h100", {"num_warps": 3}, "option num_warps is 3, expected a power of two"),
        ("h100", {"persistent": 1, "split_k": 2}, "persistent and split_k are both set, expected one"),
    ],
)
def test_wrong_options(hw, options, message):
    space = anatune.space(anatune.matmul(512, 512, 512, dtype="float16"), hw, template="triton")
    with pytest.raises(SpaceError, match=message):
        space.schedule({"m": 64, "n": 64, "k": 64}, **options)


def test_allowed_options():
    space = anatune.space(anatune.matmul(512, 512, 512, dtype="float16"), "mi300x", template="triton")
    made = space.schedule({"m": 64, "n": 64, "k": 64}, split_k=8, matrix_instr_nonkdim=16)
    assert "matrix_instr_nonkdim=16" in made.describe()
    assert "unroll" not in made.describe()
    assert "waves_per_eu" not in made.describe()

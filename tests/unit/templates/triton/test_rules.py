"""A schedule that breaks a rule of the template triton is refused in one line."""

import pytest

import anatune
from anatune.errors import SpaceError
from tests.wording import refuses


@pytest.mark.parametrize(
    ("hw", "options"),
    [
        ("h100", {"split_k": 9}),
        ("mi300x", {"matrix_instr_nonkdim": 17}),
        ("h100", {"num_warps": 3}),
        ("h100", {"persistent": 1, "split_k": 2}),
        ("h100", {"warp_specialize": 1}),
        ("mi300x", {"warp_specialize": 0}),
        ("b200", {"warp_specialize": 1, "descriptors": 1}),
    ],
)
def test_wrong_options(hw, options):
    space = anatune.space(anatune.matmul(512, 512, 512, dtype="float16"), hw, template="triton")
    with refuses(SpaceError):
        space.schedule({"m": 64, "n": 64, "k": 64}, **options)


@pytest.mark.parametrize(
    ("hw", "product", "has"),
    [
        ("b200", {"dtype": "bfloat16"}, True),
        ("b200", {"dtype": "float8_e4m3fn"}, True),
        ("b200", {"dtype": "float32", "transpose_b": True}, True),
        ("b200", {"dtype": "float32"}, False),  # the right operand is turned by warps
        ("h100", {"dtype": "bfloat16"}, False),
        ("rtx5090", {"dtype": "bfloat16"}, False),
        ("a100", {"dtype": "bfloat16"}, False),
    ],
)
def test_warps_are_specialised_only_where_tensor_memory_holds_sums(hw, product, has):
    space = anatune.space(anatune.matmul(512, 512, 512, **product), hw, template="triton")
    assert ("warp_specialize" in space.columns) == has


def test_allowed_options():
    space = anatune.space(anatune.matmul(512, 512, 512, dtype="float16"), "mi300x", template="triton")
    schedule = space.schedule({"m": 64, "n": 64, "k": 64}, split_k=8, matrix_instr_nonkdim=16)
    assert "matrix_instr_nonkdim=16" in schedule.describe()
    assert "unroll" not in schedule.describe()
    assert "waves_per_eu" not in schedule.describe()

"""A schedule that breaks a rule of the template triton is refused in one line."""

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
        ("h100", {"warp_specialize": 1}, r"option warp_specialize: h100\w* \(sm_90\) has no specialised warps"),
        ("mi300x", {"warp_specialize": 0}, "option warp_specialize: .* expected tcgen05"),
        (
            "b200",
            {"warp_specialize": 1, "descriptors": 1},
            "expected the options persistent and descriptors set with it",
        ),
    ],
)
def test_wrong_options(hw, options, message):
    space = anatune.space(anatune.matmul(512, 512, 512, dtype="float16"), hw, template="triton")
    with pytest.raises(SpaceError, match=message):
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

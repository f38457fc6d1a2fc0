"""Plans for a range beside plans of single shapes of all templates: none loses more than it says."""

import pytest

import anatune
from anatune.core.workload.ranges import parse_ranged_workload

CASES = [
    ("rtx4090", "matmul 24,64x64x64", "float16"),
    ("rtx4090", "matmul 24,60x32x64", "float32"),
    ("a100", "matmul 17..32:8x64x256", "bfloat16"),
    ("h100", "matmul 20,50x32x64", "int8"),
    ("h100", "matmul 20,50x32x64", "float8_e4m3fn"),
    ("b200", "batch_matmul 1,3x32x32x32", "float16"),
    ("mi300x", "matmul 30,90x64x64", "float16"),
    ("rtx4090", "conv2d 1,2x16x4x4 16x16x3x3", "float16"),
    ("rtx3090", "matmul 1,8x64x64", "float32"),  # thin has no programs for ranges
    ("rtx4090", "matmul 64x16,32x64", "float16"),  # nor has triton where rows of B have that length
    ("epyc_7763", "matmul 3,8x32x16", "float32"),
    ("epyc_7763", "conv2d 1,2x8x8x8 8x8x3x3", "float32"),  # nor has winograd
]


@pytest.mark.parametrize(("hw", "words", "dtype"), CASES)
def test_a_range_loses_no_more_than_it_says_or_says_what_it_leaves_out(hw, words, dtype):
    many = parse_ranged_workload(words.split(), dtype=dtype)
    ranged = anatune.plan_range(many, hw, kernels=min(2, len(many.extents)))
    for interval in ranged.intervals:
        for extent, seconds in ((interval.first, interval.first_s), (interval.last, interval.last_s)):
            single = anatune.plan(many.at(extent), hw, top_k=1, correction="none")
            assert set(single.templates) <= {*ranged.templates, *ranged.left_out}
            if single.best.template not in ranged.left_out:
                assert seconds <= (1 + ranged.loss) * single.predictions[0].time_s * (1 + 1e-9)

"""Shared memory of random programs as Triton 3.9 compiled them, all of them exact."""

import pytest

from anatune.core.hardware.files import hardware
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import resources
from anatune.templates.triton.tiles import Tiles

COMPILED = [  # spec, operands, (m, n, k, warps, stages, descriptors), a along k, b along n, bytes
    ("a100_sxm", "float16", (128, 256, 16, 8, 2, 0), True, True, 12288),  # results need more than one buffer has
    ("a100_sxm", "float8_e5m2", (64, 16, 256, 8, 1, 0), True, True, 16384),  # one after the other
    ("a100_sxm", "int8", (16, 64, 64, 2, 5, 0), False, False, 17408),  # the left one is not piped
    ("h100_sxm", "float16", (128, 256, 16, 8, 2, 0), True, True, 32768),
    ("h100_sxm", "float16", (256, 128, 32, 4, 3, 1), False, False, 73784),  # two rings of barriers
    ("h100_sxm", "float8_e5m2", (64, 128, 128, 4, 3, 1), True, True, 73776),  # turned through a copy
    ("h100_sxm", "float8_e5m2", (128, 16, 128, 4, 2, 0), True, True, 34816),
    ("h100_sxm", "mixed", (128, 32, 32, 4, 4, 0), True, True, 37888),
    ("b200", "float16", (128, 256, 16, 8, 2, 0), True, True, 24592),
    ("b200", "tf32", (128, 128, 16, 8, 6, 1), True, True, 114752),
    ("b200", "mixed", (64, 16, 64, 4, 6, 1), True, False, 56432),
    ("rtx5090", "bfloat16", (32, 64, 256, 4, 1, 1), True, True, 32776),
    ("mi300x", "float16", (128, 256, 16, 8, 2, 0), True, True, 12288),
    ("mi300x", "float8_e5m2", (128, 32, 64, 16, 4, 0), True, False, 28672),
    ("mi355x", "float16", (128, 256, 16, 8, 2, 0), True, True, 25648),  # rows are padded
    ("mi355x", "float16", (128, 256, 64, 8, 2, 0), True, True, 102832),
    ("mi355x", "float8_e5m2", (256, 32, 32, 8, 3, 0), True, True, 27840),  # the right one is too small for that
]


@pytest.mark.parametrize(("spec", "operands", "tile", "a_along_k", "b_along_n", "expected"), COMPILED)
def test_shared_bytes_are_those_of_the_compiler(spec, operands, tile, a_along_k, b_along_n, expected):
    dtype, right = ("bfloat16", 1) if operands == "mixed" else (operands, 0)
    problem = MatmulProblem(
        4096, 4096, 4096, dtype, 4 if dtype == "tf32" else 2, a_along_k, b_along_n, right_bytes=right
    )
    tiles = Tiles.of([(*tile[:5], 1, 8, tile[5], 0)])
    assert resources(problem, tiles, hardware(spec)).shared_bytes.tolist() == [expected]


def test_sizes_that_are_no_powers_of_two_are_left_to_the_rules():
    tiles = Tiles.of([(96, 100, 32, 4, 3, 1, 8), (8, 64, 32, 3, 3, 1, 8)])
    need = resources(MatmulProblem(512, 512, 512), tiles, hardware("h100_sxm"))
    assert need.rule.tolist() == [1, 0]
    assert (need.shared_bytes > 0).all()

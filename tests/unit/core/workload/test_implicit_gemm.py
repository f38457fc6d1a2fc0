"""Workloads as matrix products: roles of axes and operands, vector widths, and what is none."""

from __future__ import annotations

import pytest

import anatune
from anatune.core.workload.implicit_gemm import implicit_gemm, pattern_of, vector_width
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from tests.wording import refuses


def test_matmul() -> None:
    gemm = implicit_gemm(anatune.matmul(512, 4096, 1024, dtype="bfloat16"))
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == ((), ("i",), ("j",), ("k",))
    assert gemm.extents == {"batch": 1, "m": 512, "n": 4096, "k": 1024}
    assert (gemm.left.access.tensor, gemm.left.along_k, gemm.left.width) == ("A", True, 8)
    assert (gemm.right.access.tensor, gemm.right.along_k, gemm.right.width) == ("B", False, 8)


def test_transposed_operands_turn_around() -> None:
    gemm = implicit_gemm(anatune.matmul(64, 64, 64, dtype="float16", transpose_a=True, transpose_b=True))
    assert (gemm.left.along_k, gemm.right.along_k) == (False, True)


@pytest.mark.parametrize(("size", "width"), [(64, 8), (36, 4), (30, 2), (33, 1)])
def test_rows_of_odd_length_allow_narrow_vectors_only(size: int, width: int) -> None:
    gemm = implicit_gemm(anatune.matmul(16, size, 64, dtype="float16"))
    assert gemm.right.width == width


def test_batch_axes_are_those_of_all_three_tensors() -> None:
    gemm = implicit_gemm(anatune.batch_matmul(12, 128, 100, 64, dtype="float16"))
    assert gemm.batch == ("b",)
    assert gemm.extents["batch"] == 12


def test_channels_last_convolution_walks_channels_innermost() -> None:
    gemm = implicit_gemm(anatune.conv2d(1, 64, 56, 56, 32, 3, 3, padding=1, dtype="float16", layout="NHWC"))
    assert (gemm.m, gemm.n, gemm.k) == (("n", "y", "x"), ("f",), ("ry", "rx", "rc"))
    assert (gemm.left.access.tensor, gemm.left.along_k, gemm.left.width) == ("data", True, 8)
    assert gemm.left.guarded == (False, True, True, False)
    assert pattern_of(gemm.left.access, gemm.k, anatune.conv2d(1, 64, 56, 56, 32, 3, 3, layout="NHWC")).step == 1


def test_channels_first_convolution_puts_the_weights_on_the_left() -> None:
    gemm = implicit_gemm(anatune.conv2d(1, 64, 56, 56, 32, 3, 3, padding=1, dtype="float16"))
    assert (gemm.m, gemm.n, gemm.k) == (("f",), ("n", "y", "x"), ("rc", "ry", "rx"))
    assert (gemm.left.access.tensor, gemm.left.width) == ("weight", 8)
    assert (gemm.right.access.tensor, gemm.right.along_k, gemm.right.width) == ("data", False, 1)


def test_pointwise_convolution_fuses_the_image() -> None:
    workload = anatune.conv2d(1, 64, 56, 56, 32, 1, 1, dtype="float16")
    gemm = implicit_gemm(workload)
    assert gemm.right.width == 8
    assert pattern_of(gemm.right.access, gemm.n, workload).run == 56 * 56


def test_groups_are_a_batch() -> None:
    gemm = implicit_gemm(anatune.conv2d(1, 64, 14, 14, 64, 3, 3, padding=1, groups=4, dtype="float16", layout="NHWC"))
    assert gemm.batch == ("g",)
    assert gemm.extents["k"] == 9 * 16


def test_depthwise_convolution_is_a_batch_of_single_rows() -> None:
    gemm = implicit_gemm(anatune.depthwise_conv2d(1, 32, 14, 14, 3, 3, dtype="float16"))
    assert gemm.extents == {"batch": 32, "m": 1, "n": 144, "k": 9}


def test_vectors_do_not_cross_padding() -> None:
    workload = anatune.conv2d(1, 8, 16, 16, 8, 3, 3, padding=1, dtype="float16")
    assert vector_width(workload.reads[0], ("y", "x"), workload, 8) == 1


@pytest.mark.parametrize(
    "workload",
    [
        anatune.matmul(1, 1, 64, dtype="float16"),
        anatune.max_pool2d(1, 8, 8, 8, 2, 2),
        anatune.reduction((8, 8), axes=(1,)),
        anatune.elementwise((8, 8)),
    ],
)
def test_what_is_no_matrix_product(workload: Workload) -> None:
    with refuses(SpaceError) as caught:
        implicit_gemm(workload)
    assert "\n" not in str(caught.value)

"""The least time of a server's products."""

import pytest

from anatune.core.hardware.files import hardware
from anatune.core.workload.routing import make_balanced_routing
from anatune.servers.choose import bound_of
from anatune.templates.triton.grouped.layer import ExpertLayer
from anatune.templates.triton.problem import MatmulProblem

H200 = hardware("h200")


def layer(tokens, **more):
    return ExpertLayer(tokens, 2048, 768, 128, 8, make_balanced_routing(tokens, 128, 8), **more)


def test_weights_come_from_memory_once():
    found = bound_of(layer(64), H200)
    moved = 128 * 3 * 768 * 2048 * 2  # up, gate and down of all experts; rows stay in L2
    assert found.bound_by == "dram"
    assert found.time_s == pytest.approx(moved / H200.dram.bandwidth_bytes_per_s + 2 * H200.launch.overhead_s)
    packed = bound_of(layer(64, right_bytes=0.5), H200)
    assert packed.time_s == pytest.approx(moved / 4 / H200.dram.bandwidth_bytes_per_s + 2 * H200.launch.overhead_s)


def test_many_rows_are_bound_by_the_matrix_units():
    found = bound_of(layer(65536), H200)
    flop = 2.0 * 65536 * 8 * 3 * 768 * 2048
    assert found.bound_by == "mma"
    assert found.time_s == pytest.approx(
        flop / H200.tensor_flop_per_s("bfloat16") + 2 * H200.launch.overhead_s, rel=1e-3
    )


def test_small_products_are_bound_by_the_launch():
    found = bound_of(MatmulProblem(1, 64, 64, "fp8", out_bytes=2), H200)
    assert found.bound_by == "launch"
    assert found.time_s == pytest.approx(H200.launch.overhead_s, rel=1e-2)

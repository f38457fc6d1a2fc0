"""Collective operations take longer for more bytes, and never less than their bytes over the link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.servers.serving.collectives import collective_s, nccl_s
from tests.wording import refuses

OPERATIONS = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
SPECS = st.sampled_from(["a100", "h100", "b200", "l40s", "mi300x"]).map(hardware)


@given(OPERATIONS, SPECS, st.integers(2, 8), st.floats(0, 1e10), st.floats(0, 1e10))
def test_more_bytes_never_take_less(operation, spec, gpus, size, more):
    assert collective_s(operation, spec, gpus, size) <= collective_s(operation, spec, gpus, size + more)


@given(OPERATIONS, SPECS, st.integers(2, 8), st.floats(0, 1e10))
def test_no_operation_is_faster_than_its_bytes(operation, spec, gpus, size):
    least = (gpus - 1) / gpus * size / spec.link.bandwidth_bytes_per_s
    assert least < collective_s(operation, spec, gpus, size) <= nccl_s(operation, spec, gpus, size)


def test_one_gpu_takes_no_time():
    assert collective_s("all_reduce", hardware("k80"), 1, 1e6) == 0


def test_wrong_arguments_are_refused():
    h100 = hardware("h100")
    for operation, spec, gpus, size in [
        ("broadcast", h100, 2, 1e6),
        ("all_reduce", h100, 0, 1e6),
        ("all_reduce", h100, 16, 1e6),
        ("all_reduce", h100, 2, -1.0),
        ("all_gather", hardware("k80"), 2, 1e6),
    ]:
        with refuses(SpaceError):
            collective_s(operation, spec, gpus, size)


def test_a_large_sum_comes_close_to_measured_ones():
    assert collective_s("all_reduce", hardware("h100"), 4, 2 * 536.871e6) == pytest.approx(4.53e-3, rel=0.2)

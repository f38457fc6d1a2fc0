"""Proposed configurations: what the kernel can do decides what is proposed."""

import pytest

from anatune.adapters.triton import configs_for
from anatune.errors import SpaceError
from anatune.templates.triton.problem import DTYPES
from tests.wording import refuses

BYTES = [name for name, size in DTYPES.items() if size == 1]
NAMES = {"block_m": "BM", "block_n": "BN", "block_k": "BK"}


def proposed(names, m=4096, n=4096, k=4096, hw="h100", **said):
    return configs_for(m, n, k, hw=hw, names=NAMES | names, make=lambda meta, **_: meta, **said)


def test_options_are_proposed_where_the_kernel_has_a_parameter():
    found = proposed({"descriptors": "USE_TMA", "persistent": "PERSISTENT"}, keep=20)
    assert all(type(meta["USE_TMA"]) is type(meta["PERSISTENT"]) is bool for meta in found)
    assert {meta["USE_TMA"] for meta in proposed({"descriptors": "USE_TMA"}, hw="a100", keep=20)} == {False}
    assert all(set(meta) == set(NAMES.values()) for meta in proposed({"descriptors": True, "persistent": True}))


def test_rows_that_cannot_have_descriptors():
    assert not any(meta["USE_TMA"] for meta in proposed({"descriptors": "USE_TMA"}, k=4095))
    with refuses(SpaceError):
        proposed({"descriptors": True}, k=4095)


def test_persistent_blocks_do_not_split_k():
    found = proposed({"persistent": "P", "split_k": "S"}, 64, 64, 65536, keep=10_000)
    assert any(meta["S"] > 1 for meta in found)
    assert not any(meta["S"] > 1 and meta["P"] for meta in found)


@pytest.mark.parametrize("dtype", [*BYTES, ("bfloat16", "int8"), ("float16", "fp8")])
def test_types_of_8_bits(dtype):
    hw = "mi300x" if str(dtype).endswith("fnuz") else "h100"  # AMD's own, which no other device has
    assert len(proposed({}, dtype=dtype, hw=hw)) == 8


@pytest.mark.parametrize("dtype", [None, ("int8", "float16")])
def test_bad_types(dtype):
    with refuses(SpaceError):
        proposed({}, dtype=dtype)

"""Templates have one name, and errors say which there are."""

import pytest

import anatune
from anatune.errors import SpaceError

MATMUL = anatune.matmul(64, 64, 64)


def test_messages_have_words():
    with pytest.raises(
        SpaceError, match="expected one of cpu, winograd, scaled, fp16_accumulation, amx for xeon_gold_6130"
    ):
        anatune.plan(MATMUL, anatune.hardware("intel_xeon_gold_6130"), template="gpu_pipelined")
    with pytest.raises(SpaceError, match="template is 'cpu', expected one of cuda, pipelined, thin, triton for a100"):
        anatune.prune(MATMUL, anatune.hardware("a100"), template="cpu")
    with pytest.raises(SpaceError, match="template is 7, expected one of cuda"):
        anatune.space(MATMUL, anatune.hardware("a100"), template=7)
    with pytest.raises(SpaceError, match=r"template pipelined: .* use the template cuda"):
        anatune.plan(MATMUL, anatune.hardware("mi50"), template="pipelined")

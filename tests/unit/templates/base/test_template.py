"""Templates have one name, and errors say which there are."""

import anatune
from anatune.errors import SpaceError
from tests.wording import refuses

MATMUL = anatune.matmul(64, 64, 64)


def test_messages_have_words():
    with refuses(SpaceError):
        anatune.plan(MATMUL, anatune.hardware("intel_xeon_gold_6130"), template="gpu_pipelined")
    with refuses(SpaceError):
        anatune.prune(MATMUL, anatune.hardware("a100"), template="cpu")
    with refuses(SpaceError):
        anatune.space(MATMUL, anatune.hardware("a100"), template=7)
    with refuses(SpaceError):
        anatune.plan(MATMUL, anatune.hardware("mi50"), template="pipelined")

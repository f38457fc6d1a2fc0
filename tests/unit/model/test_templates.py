"""Templates have one name; what files and callers said before means the same."""

import pytest

import anatune
from anatune.core.templates import TEMPLATES, former_names, template_of
from anatune.errors import SpaceError

MATMUL = anatune.matmul(64, 64, 64)


@pytest.mark.parametrize("word", ["cuda", "pipelined", "tensorcore"])
def test_a_caller_may_still_use_the_former_name(word):
    hardware = anatune.hardware("a100")
    (former,) = former_names(word)
    assert former == {"cuda": "gpu"}.get(word, f"gpu_{word}")
    assert template_of(former, hardware) == template_of(word, hardware) == TEMPLATES[word]
    assert anatune.space(MATMUL, hardware, template=former).template == word
    assert anatune.plan(MATMUL, hardware, 1, template=former).best.template == word


def test_messages_have_words():
    with pytest.raises(SpaceError, match="expected one of cpu, winograd, halfsums for xeon_gold_6130"):
        anatune.plan(MATMUL, anatune.hardware("intel_xeon_gold_6130"), template="gpu_pipelined")
    with pytest.raises(
        SpaceError, match="template is 'cpu', expected one of cuda, pipelined, tensorcore, thin for a100"
    ):
        anatune.prune(MATMUL, anatune.hardware("a100"), template="cpu")
    with pytest.raises(SpaceError, match="template is 7, expected one of cuda"):
        anatune.space(MATMUL, anatune.hardware("a100"), template=7)
    with pytest.raises(SpaceError, match=r"template pipelined: .* use the template cuda"):
        anatune.plan(MATMUL, anatune.hardware("mi50"), template="pipelined")

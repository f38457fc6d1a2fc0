"""Words for templates: both names are accepted everywhere, messages have the words."""

import pytest

import anatune
from anatune.errors import SpaceError
from anatune.model.templates import TEMPLATES, template_of

MATMUL = anatune.matmul(64, 64, 64)


@pytest.mark.parametrize("word", ["cuda", "pipelined", "tensorcore"])
def test_both_names_mean_the_same(word):
    hardware = anatune.hardware("a100")
    assert template_of(word, hardware) == template_of(TEMPLATES[word], hardware) == TEMPLATES[word]
    spaces = [anatune.space(MATMUL, hardware, template=name) for name in (word, TEMPLATES[word])]
    assert spaces[0].template == spaces[1].template == TEMPLATES[word]


def test_messages_have_words():
    with pytest.raises(SpaceError, match="template is 'pipelined', expected one of cpu for xeon_gold_6130"):
        anatune.plan(MATMUL, anatune.hardware("intel_xeon_gold_6130"), template="gpu_pipelined")
    with pytest.raises(SpaceError, match="template is 'cpu', expected one of cuda, pipelined, tensorcore for a100"):
        anatune.prune(MATMUL, anatune.hardware("a100"), template="cpu")
    with pytest.raises(SpaceError, match="template is 7, expected one of cuda"):
        anatune.space(MATMUL, anatune.hardware("a100"), template=7)
    with pytest.raises(SpaceError, match=r"template pipelined: .* use the template cuda"):
        anatune.plan(MATMUL, anatune.hardware("mi50"), template="pipelined")

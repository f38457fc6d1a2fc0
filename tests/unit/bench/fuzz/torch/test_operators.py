"""Every core operator of PyTorch's that is read has a generator, or a reason why it has none."""

import itertools

import pytest

from anatune.network.graph.torch.operators import READERS

pytest.importorskip("torch")

from bench.fuzz.builder import Skip
from bench.fuzz.torch.cases import TorchBuilder
from bench.fuzz.torch.operators import ALSO, NO_GENERATOR, OPERATORS


def test_every_operator_is_drawn_or_says_why_not():
    drawn = {name.split()[0] for name in OPERATORS} | set(itertools.chain(*ALSO.values()))
    assert set(ALSO) <= set(OPERATORS)
    assert drawn - set(READERS) == set()
    assert set(READERS) - drawn == set(NO_GENERATOR)
    assert all(NO_GENERATOR.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_every_generator_adds_a_step(part):
    for name in sorted(OPERATORS)[part::4]:
        for seed in range(40):
            builder = TorchBuilder(seed)
            try:
                OPERATORS[name](builder)
            except Skip:
                continue
            if builder.steps:
                break
        else:
            pytest.fail(f"{name}: {builder.refusal}")

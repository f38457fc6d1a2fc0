"""Every operator that is read has a generator, or a reason why it has none."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from anatune.network.graph.onnx.operators import READERS
from bench.fuzz.builder import Skip
from bench.fuzz.onnx.cases import OnnxBuilder
from bench.fuzz.onnx.operators import NO_GENERATOR, OPERATORS


def test_every_operator_is_drawn_or_says_why_not():
    drawn = {name.split()[0] for name in OPERATORS}
    read = {op for _, op in READERS}
    assert drawn - read == set()
    assert read - drawn == set(NO_GENERATOR)
    assert all(NO_GENERATOR.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(6))
def test_every_generator_adds_its_operator(part):
    for name in sorted(OPERATORS)[part::6]:
        for seed in range(60):
            builder = OnnxBuilder(seed)
            try:
                OPERATORS[name](builder)
            except Skip:
                continue
            assert builder.steps, name
            operators = {step.op for step in builder.steps}
            assert name.split()[0] in operators or "domain" in name, name
            assert all(isinstance(one, np.ndarray) for one in builder.arrays.values())
            break
        else:
            pytest.fail(f"{name}: {builder.refusal}")


@pytest.mark.filterwarnings("ignore")
def test_hard_swish_is_not_drawn_in_float64():
    """Whether its sixth is one of float32 is open."""
    for seed in range(60):
        builder = OnnxBuilder(seed)
        builder.dtype = "float64"
        for name in ("Conv", "HardSwish"):
            try:
                OPERATORS[name](builder)
            except Skip:
                continue
        assert "HardSwish" not in {step.op for step in builder.steps}

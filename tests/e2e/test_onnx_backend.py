"""A fixed sample of the ONNX standard's own tests; all of them: ``python -m bench.onnx_backend``."""

import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnx")

from bench.onnx_backend import KINDS, outcome_of, sampled
from tests.tiers import slow_from

_SAMPLE = 300
_PART = 20


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", slow_from(1, range(_SAMPLE // _PART)))
def test_what_the_standard_says(part):
    cases = sampled(KINDS[:-1], _SAMPLE)[part * _PART : (part + 1) * _PART]
    assert len(cases) == _PART
    assert {
        one.name: (one.state, one.why) for one in (outcome_of(*case) for case in cases) if one.state != "right"
    } == {}

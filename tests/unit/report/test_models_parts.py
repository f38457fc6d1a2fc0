import msgspec
import pytest

from anatune.report.models import LEFT, kernel_bound, kernel_kind, model_parts
from tests.unit.records.making import CPU
from tests.unit.report.compiled import DENSE, MEASURED, gpu_summary, summary


def test_parts_add_up_to_the_model():
    parts = {part.name: part for part in model_parts(summary(), MEASURED)}
    assert list(parts) == ["products, NHWC", LEFT, "products", "softmax"]
    assert parts["products, NHWC"][1:] == (3, pytest.approx(45e-6), 60e-6)
    assert parts[LEFT][1:] == (1, 1e-6, pytest.approx(5e-6))
    assert sum(part.measured_s for part in parts.values()) == pytest.approx(sum(MEASURED.values()))
    assert kernel_kind(summary().rows[0]) == "softmax"


def test_what_is_not_known_is_none():
    (left,) = [part for part in model_parts(gpu_summary()) if part.name == LEFT]
    assert left[1:] == (2, None, None)


def test_the_bound_is_that_of_one_call():
    one = summary().kernels[1]
    assert kernel_bound(one).time_s >= DENSE.flop / CPU.peak_flop_per_s("float32")
    assert kernel_bound(msgspec.structs.replace(one, schedule="")) is None  # an attention
    assert kernel_bound(msgspec.structs.replace(one, schedule='{"of": "another version"}')) is None

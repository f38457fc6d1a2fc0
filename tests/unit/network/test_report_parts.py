import msgspec
import pytest

from anatune.network.graph.summary import LayoutSummary, RangeSummary
from anatune.network.report import (
    LEFT,
    kernel_bound,
    kernel_kind,
    model_lines,
    model_parts,
    model_sentences,
    tuning_text,
)
from anatune.report import units
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


@pytest.mark.parametrize(
    ("measured_s", "times", "whole_s"), [(None, (45e-6, 3e-6), 48e-6), (MEASURED, (60e-6, 4e-6), 71e-6)]
)
def test_shares_are_of_the_times_beside_them(measured_s, times, whole_s):
    """A profile's shares are of what was measured, TVM's functions among it; others are of the prediction."""
    rows = [line.text for line in model_lines(summary(), measured_s, width=200)][-2:]
    for time_s, row in zip(times, rows, strict=True):
        assert f" {units.percent(time_s / whole_s)} " in row


def test_bounds_above_what_was_measured_are_called_too_high():
    slow = summary().tuning
    assert tuning_text(slow).endswith("; together they take 1.56 times the model's lower bounds")
    fast = msgspec.structs.replace(slow, kernels=(msgspec.structs.replace(slow.kernels[0], measured_s=4.5e-6),))
    assert tuning_text(fast).endswith(" 0.50 times the model's lower bounds; this machine is faster than its spec says")


def test_times_of_layouts_say_whose_they_are_where_sizes_vary():
    """Orders are chosen with kernels of the planned sizes; the model has others, which take any."""
    layouts = LayoutSummary(
        layouts={"NHWC": 3}, transposes=1, predicted_s=1e-3, channels_last_s=None, channels_first_s=None, gap=0.0
    )
    for ranges, words in (
        ({}, "; predicted 1.000 ms"),
        ({"n": RangeSummary(1, 4, 3)}, "; predicted for planned sizes 1.000 ms"),
    ):
        told = model_sentences(summary(layouts=layouts, ranges=ranges))
        assert any(f"{words} with them" in one for one in told)

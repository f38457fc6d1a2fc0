"""bench.models_cpu: medians and ratios of given samples, and the aims."""

import pytest

from bench.cpu.probes import Reading
from bench.cpu.quiet import Sample
from bench.models_cpu import ModelResult, aims, result_of

HIGH = Reading(100e9, 90e9)


def samples(*times_s):
    return [Sample(number, time_s, HIGH, HIGH) for number, time_s in enumerate(times_s)]


def test_the_fastest_rival_is_chosen_by_its_median_and_compared_within_rounds():
    taken = {"anatune": samples(1.0, 2.0, 1.0), "onnxruntime": samples(1.5, 3.0, 1.5), "eager": samples(4.0, 8.0, 4.0)}
    found = result_of(taken, ["openvino is left out"])
    assert found.times_s == {"anatune": 1.0, "onnxruntime": 1.5, "eager": 4.0}
    assert found.best("anatune").value == pytest.approx(1.5)
    assert found.over["anatune"]["eager"].value == pytest.approx(4.0)
    assert found.best("tuned") is None
    assert (found.samples, found.quiet) == (3, True)


def result(ratio, compile_s=None):
    found = result_of({"anatune": samples(1.0, 1.0, 1.0), "eager": samples(*3 * [ratio])}, [])
    return ModelResult(found.times_s, found.spreads, found.over, [], 3, True, compile_s)


def test_aims_name_the_model_that_misses():
    found = {one.text: one for one in aims({"resnet50": result(1.5, 30.0), "vgg16": result(0.9)}, 1)}
    assert found["0 trials / fastest rival, geometric mean"].met
    least = found["0 trials / fastest rival, smallest"]
    assert (least.met, least.value) == (False, pytest.approx(0.9))
    assert "below: vgg16" in least.note
    assert not found["compiling resnet50, CPU s"].met
    assert not [name for name in found if name.startswith("tuned")]

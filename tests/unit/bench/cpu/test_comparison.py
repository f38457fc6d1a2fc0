"""Rows, ratios and aims of the CPU benchmark."""

import math

import pytest

import anatune
from bench.cpu import comparison
from bench.cpu.layers import LAYERS
from bench.cpu.probes import Reading
from bench.cpu.quiet import Sample, Thresholds
from bench.layers import Matmul

FAST, SLOW = Reading(100e9, 90e9), Reading(98e9, 60e9)  # the FMA probe alone would call the second one quiet
LIMITS = Thresholds(93e9, 80e9)


def sample(number, seconds, before=FAST, after=FAST):
    return Sample(number, seconds, before, after)


def result_of(name, **seconds):
    layer = LAYERS[name]
    unit = layer.flop / 100e9  # seconds at the peak
    samples = {
        method.replace("_", ":"): [sample(i, unit * factor) for i in range(4)] for method, factor in seconds.items()
    }
    return comparison.LayerResult(layer, samples)


def test_rows_and_aims():
    first = result_of("R1", anatune_plan=1.25, anatune_16=1.0, onednn_nhwc=1.2, onednn_blocked=1.1, torch_nhwc=1.5)
    first.same = {"anatune:32": "anatune:16", "anatune:64": "anatune:16"}
    first.tune_s, first.num_trials, first.num_failed = 16.0, 64, 2
    second = result_of("M0", anatune_plan=1.25, anatune_32=1.25, anatune_64=1.25, mkl_packed=1.0, onednn_conv=1.3)
    rows = [comparison.row_of(result, LIMITS) for result in (first, second)]
    assert rows[0].ratios["better"].value == rows[0].ratios["onednn"].value == pytest.approx(1.1)
    assert rows[0].variants["onednn"] == "blocked"
    assert rows[0].ratios["mkl"] is None
    assert rows[0].plan_over_best.value == pytest.approx(0.8)
    assert rows[0].shares["anatune:32"] == pytest.approx(1.0)
    assert rows[1].ratios["better"].value == rows[1].ratios["mkl"].value == pytest.approx(0.8)
    found = {target.text: target for target in comparison.targets([first, second], rows, 100e9)}
    both = found["after 32 trials / better of oneDNN kernel and MKL, geometric mean"]
    assert both.value == pytest.approx(math.sqrt(1.1 * 0.8))
    assert not both.met
    least = found["after 32 trials / better of both, smallest"]
    assert least.value == pytest.approx(0.8)
    assert least.note == "M0; below: M0"
    assert found["after 32 trials / PyTorch end to end, geometric mean"].met
    assert found["share of the probed peak, matmuls and 3x3, geometric mean"].value == pytest.approx(math.sqrt(0.8))
    trials = found["wall time of a trial, s"]
    assert trials.value == pytest.approx(0.25)
    assert trials.met
    comparison.print_tables(rows, list(found.values()), "32")


def test_a_layer_without_our_kernels_still_has_a_row():
    row = comparison.row_of(result_of("R4", onednn_nhwc=1.0, torch_nhwc=1.2), LIMITS)
    assert set(row.rates) == {"onednn", "torch"}
    assert not row.ratios
    assert comparison.targets([], [row], 100e9) == []


def test_bandwidth_bound_comes_from_the_smallest_level_that_holds_everything():
    hardware = anatune.hardware("intel_xeon_gold_6230r")
    small = Matmul("small", "test", 64, 64, 64)
    assert comparison.bandwidth_bound_s(small, hardware, 1) == 0.0
    large = LAYERS["Y10"]  # 150 MB
    seconds = large.compulsory_bytes / hardware.dram.core_bandwidth_bytes_per_s
    assert comparison.bandwidth_bound_s(large, hardware, 1) == pytest.approx(seconds)
    assert comparison.bandwidth_bound_s(large, hardware, 2) == pytest.approx(seconds / 2)

"""The pure parts of the CPU benchmark: no device, no PyTorch, no TVM, no C compiler."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anatune
from anatune.core.trial import Measurement, Outcome, Trial
from bench.cpu import comparison, metaschedule, rivals, tuned
from bench.cpu import quiet as quiet_cpu
from bench.cpu.layers import LAYERS
from bench.cpu.probes import Reading
from bench.cpu.quiet import Sample, Thresholds
from bench.layers import Matmul, choose

FAST, SLOW = Reading(100e9, 90e9), Reading(98e9, 60e9)  # the FMA probe alone would call the second one quiet
LIMITS = Thresholds(93e9, 80e9)


def sample(number, seconds, before=FAST, after=FAST):
    return Sample(number, seconds, before, after)


def test_layers_are_those_of_the_anchors():
    chosen = choose(None, LAYERS)
    assert [layer.name for layer in chosen] == [
        *(f"M{i}" for i in range(6)),
        *(f"R{i}" for i in range(12)),
        *(f"Y{i}" for i in range(11)),
    ]
    for layer in (*chosen, LAYERS["MX"]):
        for layout in ("NHWC", "NCHW"):
            workload = layer.workload(layout)
            assert workload.flop == layer.flop
            assert workload.compulsory_bytes == layer.compulsory_bytes, layer.name


def test_choosing_layers():
    assert [layer.name for layer in choose("r8, R1,M*,mx", LAYERS)] == [
        *(f"M{i}" for i in range(6)),
        "R1",
        "R8",
        "MX",
    ]
    assert len(choose("yolo9000", LAYERS)) == 11
    with pytest.raises(SystemExit, match="'R99' is unknown"):
        choose("R99", LAYERS)


def test_products_with_padding():
    layers = LAYERS
    assert layers["R11"].in_bounds == pytest.approx((19 / 21) ** 2)  # 7 outputs, 3 taps, one outside at either end
    assert layers["R9"].in_bounds == pytest.approx((20 / 21) ** 2)  # stride 2: outside on one side only
    assert layers["R2"].in_bounds == layers["M0"].in_bounds == 1.0


def test_quiet_needs_both_probes_on_both_sides():
    assert LIMITS.quiet(sample(0, 1.0))
    assert not LIMITS.quiet(sample(0, 1.0, before=SLOW))
    assert not LIMITS.quiet(sample(0, 1.0, after=SLOW))
    assert not LIMITS.quiet(sample(0, 1.0, after=Reading(92e9, 90e9)))
    assert not LIMITS.quiet(Sample(0, 1.0, FAST, FAST, running=0.5))  # another process had the core in between


def test_thresholds_are_relative_to_the_runs_own_best():
    samples = [sample(i, 1.0) for i in range(50)] + [sample(50, 1.0, before=SLOW, after=SLOW)]
    limits = Thresholds.of(samples)
    assert limits == Thresholds(pytest.approx(93e9), pytest.approx(0.93 * 90e9))
    assert sum(map(limits.quiet, samples)) == 50
    assert Thresholds.of([]) == Thresholds(0.0, 0.0)


def test_too_few_quiet_samples_are_named():
    quiet, noisy = [sample(i, 1.0) for i in range(3)], [sample(i, 2.0, before=SLOW) for i in range(3, 9)]
    assert quiet_cpu.quiet_or_all(quiet + noisy, LIMITS) == (quiet, True)
    assert quiet_cpu.quiet_or_all(quiet[:2] + noisy, LIMITS) == (quiet[:2] + noisy, False)


@pytest.fixture
def busy(monkeypatch):
    """The stand-ins for methods do nothing: let their CPU time count as all of their time."""
    monkeypatch.setattr(quiet_cpu, "RUNNING_SHARE", 0.0)


values = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)


@given(values)
def test_geometric_mean(x):
    assert quiet_cpu.geometric_mean(x) == pytest.approx(math.prod(x) ** (1 / len(x)), rel=1e-9)


def test_geometric_mean_of_nothing():
    assert math.isnan(quiet_cpu.geometric_mean([]))
    assert quiet_cpu.geometric_mean([2.0, 8.0, math.nan]) == pytest.approx(4.0)


@given(values, st.floats(0, 1))
def test_percentile_lies_between(x, share):
    assert min(x) <= quiet_cpu.percentile(x, share) <= max(x)
    assert quiet_cpu.percentile(x, 0.0) == min(x)
    assert quiet_cpu.percentile(x, 1.0) == max(x)


def test_ratios_are_taken_within_rounds():
    ours = [sample(i, 1.0 * 2**i) for i in range(4)]  # the machine slows down by 2 each round
    theirs = [sample(i, 1.5 * 2**i) for i in range(4)]
    ratio = quiet_cpu.paired_ratio(ours, list(reversed(theirs)), LIMITS)
    assert ratio == quiet_cpu.Ratio(1.5, 1.5, 1.5, 4, True)


def test_ratios_leave_out_rounds_that_were_not_quiet_on_both_sides():
    ours = [sample(i, 1.0) for i in range(5)]
    theirs = [sample(i, 1.2) for i in range(3)] + [sample(3, 9.0, before=SLOW), sample(4, 9.0, after=SLOW)]
    assert quiet_cpu.paired_ratio(ours, theirs, LIMITS).value == pytest.approx(1.2)
    unquiet = quiet_cpu.paired_ratio(ours, theirs[1:], LIMITS)
    assert not unquiet.quiet
    assert unquiet.rounds == 4
    assert quiet_cpu.paired_ratio(ours, [sample(77, 1.0)], LIMITS) is None


def test_share_of_peak_uses_the_probe_beside_the_sample():
    slow = Reading(50e9, 50e9)
    samples = [sample(0, 1.0), sample(1, 2.0, before=slow, after=slow), sample(2, 1.0)]
    assert quiet_cpu.share_of_peak(samples, 80_000_000_000) == pytest.approx(0.8)


def test_methods_take_turns_until_enough_are_quiet(busy):
    asked = []
    readings = iter([SLOW] * 3 + [FAST] * 100)
    methods = {name: lambda name=name: asked.append(name) or 1.0 for name in "ab"}
    samples = quiet_cpu.interleave(methods, lambda: next(readings), rounds=3, known=[sample(0, 1.0)] * 50)
    assert asked == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 4, "b": 4}
    readings = iter([SLOW] * 100)
    samples = quiet_cpu.interleave(methods, lambda: next(readings), 3, most_rounds=5, known=[sample(0, 1.0)] * 50)
    assert [len(taken) for taken in samples.values()] == [5, 5]


def test_rounds_wait_for_a_quiet_machine_but_not_for_ever(monkeypatch, busy):
    monkeypatch.setattr(quiet_cpu, "WAIT_S", 0.001)
    readings = iter([SLOW] * 5 + [FAST] * 100)
    known = [sample(0, 1.0)] * 50
    samples = quiet_cpu.interleave({"a": lambda: 1.0}, lambda: next(readings), 2, known=known, patience_s=1.0)
    assert [taken.before for taken in samples["a"]] == [FAST, FAST]
    samples = quiet_cpu.interleave({"a": lambda: 1.0}, lambda: SLOW, 2, most_rounds=2, known=known, patience_s=0.003)
    assert [taken.before for taken in samples["a"]] == [SLOW, SLOW]


PRINTED = """onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)
onednn_verbose,v1,primitive,create:cache_miss,cpu,convolution,brg_conv_fwd:avx512_core,forward,src:f32,,,mb1,1.10791
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32 dst:f32,attr-scratchpad:user,,1x64x56x56,0.0688477
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward,src:f32,,alg:x,mb1_ic64,1.09302
onednn_verbose,primitive,exec,cpu,inner_product,brg_matmul:avx512_core,forward,src:f32,,,mb512ic1024oc1024,15.998
MKL_VERBOSE SGEMM_PACK(A,T,1024,512,1024,0x7ffd,0x7fee,1024,0x7fee) 2.85us CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:1
MKL_VERBOSE SGEMM_COMPUTE(P,N,1024,512,1024,0x7f,1024,0x7f,1024,0x7f,0x55,1024) 11.41ms CNR:OFF Dyn:0 FastMM:1 TID:0
"""


def test_kernel_times_leave_out_reorders_packing_and_creation():
    assert [(name, pytest.approx(seconds)) for name, seconds in rivals.kernel_times_s(PRINTED)] == [
        ("brg_conv_fwd:avx512_core", 1.09302e-3),
        ("brg_matmul:avx512_core", 15.998e-3),
        ("mkl", 11.41e-3),
    ]


def test_variants_far_from_the_best_of_their_kind_are_dropped():
    times = {"torch:nhwc": 1.0, "torch:nchw": 2.0, "onednn:nhwc": 0.9, "onednn:blocked": 0.95, "mkl:packed": 5.0}
    methods = {name: lambda seconds=seconds: seconds for name, seconds in times.items()}
    assert set(rivals.best_variants(methods)) == set(times) - {"torch:nchw"}


def test_metaschedule_shapes_hold_every_element():
    for layer in LAYERS.values():
        elements = sum(map(math.prod, metaschedule.shapes(layer)))
        if isinstance(layer, Matmul):
            assert 4 * elements == layer.compulsory_bytes
        else:
            assert math.prod(metaschedule.shapes(layer)[2]) == layer.filters * layer.output_size**2


def trial(number, outcome, *pairs):
    workload = anatune.matmul(4 + number, 4, 4)
    schedule = anatune.space(workload, anatune.hardware("intel_xeon_gold_6230r")).schedule({})
    times, references = zip(*pairs, strict=True) if pairs else ((), ())
    return Trial(schedule, Measurement(outcome, times_s=times, reference_times_s=references), number)


def test_best_after_counts_relative_to_the_reference_kernel():
    trials = [
        trial(0, Outcome.BUILD_ERROR),
        trial(1, Outcome.OK, (2.0, 2.0)),  # a slow minute: relative 1.0
        trial(2, Outcome.OK, (1.5, 1.0)),  # relative 1.5
        trial(3, Outcome.OK, (0.9, 1.0)),
    ]
    assert tuned.best_after(trials, 1) is None
    assert tuned.best_after(trials, 3) == trials[1].schedule
    assert tuned.best_after(trials, 64) == trials[3].schedule


def test_file_of_schedules_goes_both_ways_and_belongs_to_one_machine(tmp_path):
    path = tmp_path / "folder" / "schedules.json"
    file = tuned.TunedFile.open(path, "host", 1, "NHWC")
    best = trial(1, Outcome.OK, (1.0, 1.0)).schedule
    file.layers["M0"] = tuned.Tuned("M0", "matmul", plan=best, after={"16": best}, num_trials=16)
    file.save(path)
    again = tuned.TunedFile.open(path, "host", 1, "NHWC")
    assert again == file
    assert list(again.layers["M0"].schedules) == ["plan", "16"]
    with pytest.raises(SystemExit, match="name another file"):
        tuned.TunedFile.open(path, "host", 2, "NHWC")
    path.write_text("{")
    with pytest.raises(SystemExit, match="remove it"):
        tuned.TunedFile.open(path, "host", 1, "NHWC")


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

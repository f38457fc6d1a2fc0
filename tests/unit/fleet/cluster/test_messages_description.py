import msgspec
import pytest

import anatune
from anatune.fleet.cluster.messages import WorkerDescription, code_digest
from anatune.fleet.cluster.roster import refusal, requirements_of
from anatune.records.environment import environment
from tests.unit.fleet.cluster.pretended import HARDWARE, describe, other
from tests.wording import check_texts

H200, H100 = anatune.hardware("h200"), anatune.hardware("h100_sxm")


def wanted(*joined, hardware=HARDWARE, threads=1):
    return requirements_of(hardware, threads, joined)


def spec(hardware, group, **changes):
    return msgspec.structs.replace(hardware, **{group: msgspec.structs.replace(getattr(hardware, group), **changes)})


def test_a_description_survives_json():
    one = describe("a")
    assert msgspec.json.decode(msgspec.json.encode(one), type=WorkerDescription) == one


def test_the_same_device_and_versions_are_taken():
    assert refusal(describe("a"), wanted(describe("a"))) is None
    assert refusal(describe("b", device=None, peak=None), wanted(describe("a"))) is None
    assert refusal(describe("g", device=H200, peak=None), wanted(hardware=H200)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"code": "0123456789abcdef"}, "(0123456789abcdef, "),
        ({"environment": {"anatune": "0.0.9"}}, "anatune 0.0.9, "),
        ({"environment": {"tvm": "0.20"}}, "TVM 0.20, expected"),
        ({"device": anatune.hardware("ryzen_7950x")}, "a znver4 with avx512, the session tunes for a skylake-avx512"),
        ({"device": H200}, "a GPU (NVIDIA H200"),
        ({"environment": {"cpu": "Another CPU"}}, "Another CPU, the session measures on "),
        ({"environment": {"cores": 2}}, "2 cores, "),
        ({"device": None, "builders": 0}, "has neither a device nor builders"),
        ({"device": msgspec.structs.replace(HARDWARE, hidden_features=("avx512cd",))}, "avx512cd"),
        ({"peak_flop_per_s": 0.39e11}, "multiply-adds reach 39.0 GFLOP/s, 39% of the expected 100.0"),
        ({"peak_flop_per_s": 2.6e11}, "260% of the expected"),
    ],
)
def test_another_one_is_refused_in_one_line(changes, said):
    changes = {
        name: other(environment(), **value) if isinstance(value, dict) else value for name, value in changes.items()
    }
    many = other(environment(), cores=64)
    usual = [other(describe(name), environment=many) for name in "abc"]
    line = refusal(other(usual[0], **changes), wanted(*usual, threads=4))
    assert line is not None
    assert said in line
    assert "\n" not in line
    check_texts([line])


def test_of_processors_that_only_names_tell_apart_the_specs_own_counts_else_the_most():
    few, many = other(environment(), cpu=HARDWARE.model), other(environment(), cpu="Another CPU")
    joined = [other(describe(name), environment=one) for name, one in zip("abc", (many, few, many), strict=True)]
    assert [refusal(one, wanted(*joined)) is None for one in joined] == [False, True, False]
    unnamed = msgspec.structs.replace(HARDWARE, model="as in a data sheet")
    assert [refusal(one, wanted(*joined, hardware=unnamed)) is None for one in joined] == [True, False, True]


def test_gpus_of_another_memory_are_not_the_same():
    assert "one with 33" in refusal(describe("a", device=H100, peak=None), wanted(hardware=H200))


def test_the_usual_peak_is_the_median_of_those_that_fit():
    joined = [describe(name, peak=peak) for name, peak in (("a", 1e11), ("b", 1.02e11), ("c", 0.3e11))]
    strangers = [describe(name, device=H200, peak=9e13) for name in "xyz"]
    asked = wanted(*joined, *strangers)
    assert asked.peak_flop_per_s == 1e11
    assert [refusal(one, asked) is None for one in joined] == [True, True, False]


def test_a_calibrated_spec_says_the_peak_itself():
    measured = spec(HARDWARE, "compute", source="anatune hw calibrate, 2026-11-22")
    peak = measured.compute.fp32_peak_flop_per_s / measured.compute.num_cores
    asked = wanted(describe("a", peak=0.3 * peak), hardware=measured)
    assert asked.peak_flop_per_s == peak
    assert "30% of the expected" in refusal(describe("a", peak=0.3 * peak), asked)
    gpu = spec(H200, "compute", source="anatune hw calibrate, 2026-11-22", reachable_fraction=0.9)
    assert wanted(hardware=gpu).peak_flop_per_s == pytest.approx(0.9 * gpu.compute.fp32_peak_flop_per_s)


@pytest.mark.parametrize("share", [0.5, 0.77, 1.23, 2.0])
def test_the_same_machine_is_taken_whatever_its_clock_was_when_it_was_calibrated(share):
    measured = spec(HARDWARE, "compute", source="anatune hw calibrate, 2026-11-22")
    peak = measured.compute.fp32_peak_flop_per_s / measured.compute.num_cores
    again = describe("a", peak=share * peak)
    assert refusal(again, wanted(again, hardware=measured)) is None


@pytest.mark.parametrize(("share", "taken"), [(0.95, True), (0.8, False), (1.2, False)])
def test_clocks_of_gpus_stay(share, taken):
    gpu = spec(H200, "compute", source="anatune hw calibrate, 2026-11-22")
    peak = gpu.compute.fp32_peak_flop_per_s * gpu.compute.reachable_fraction
    one = describe("a", device=H200, peak=share * peak)
    assert (refusal(one, wanted(one, hardware=gpu)) is None) == taken


def test_the_digest_is_of_all_source_files():
    assert len(code_digest()) == 16
    assert int(code_digest(), 16) >= 0

"""What many processes say of a plan."""

import math
import shutil

import pytest

import anatune
from bench.cpu import spread
from bench.cpu.probes import Reading
from bench.cpu.quiet import Sample
from tests.wording import refuses

QUIET, BUSY = Reading(100e9, 90e9), Reading(100e9, 50e9)


def sample(seconds, reading=QUIET):
    return Sample(0, seconds, reading, reading)


def test_a_process_counts_with_the_best_of_its_quiet_samples():
    answers = [
        {"R1": [sample(2.0), sample(1.0), sample(0.9, BUSY)]},
        {"R1": [sample(1.1), sample(1.5)]},
        {"R1": [sample(1.7, BUSY), sample(1.6, BUSY)]},  # none is quiet: all count
    ]
    luck = spread.luck_of(answers)["R1"]
    assert luck.times_s == (1.0, 1.1, 1.6)
    assert luck.num_quiet == 2
    assert luck.spread == pytest.approx(0.6)


def test_layers_of_other_processes_are_kept_apart():
    found = spread.luck_of([{"R1": [sample(1.0)], "M0": [sample(3.0)]}, {"R1": [sample(1.02)]}])
    assert found["R1"].spread == pytest.approx(0.02)
    assert found["M0"].times_s == (3.0,)
    assert spread.luck_of([]) == {}
    assert math.isnan(spread.Luck((), 0).spread)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler: the probes are C")
def test_processes_run_what_was_built_once(tmp_path):
    pytest.importorskip("tvm", reason="code generation needs apache-tvm")
    schedule = anatune.plan(anatune.matmul(16, 32, 8), anatune.hardware("host"), top_k=1).best
    (built,) = spread.build_all({"M0": schedule}, tmp_path)
    library = tmp_path / f"{schedule.key}_1.so"
    made = library.stat().st_mtime_ns
    assert spread.build_all({"M0": schedule}, tmp_path) == [built]
    assert library.stat().st_mtime_ns == made
    answers = list(spread.processes_say(tmp_path, ["M0"], 2, rounds=2, sample_s=1e-4))
    assert [len(answer["M0"]) for answer in answers] == [2, 2]
    assert all(0 < sample.time_s < 1 for answer in answers for sample in answer["M0"])


def test_a_process_that_fails_is_named(tmp_path):
    with refuses(SystemExit):
        list(spread.processes_say(tmp_path / "nothing", ["M0"], 1))

"""The best after so many trials, and the file that keeps it."""

import anatune
from anatune.core.trial import Measurement, Outcome, Trial
from bench.cpu import tuned
from tests.wording import refuses


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
    with refuses(SystemExit):
        tuned.TunedFile.open(path, "host", 2, "NHWC")
    path.write_text("{")
    with refuses(SystemExit):
        tuned.TunedFile.open(path, "host", 1, "NHWC")

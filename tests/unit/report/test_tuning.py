"""Tuning as text."""

import dataclasses
import re

import msgspec
import pytest

import anatune
from anatune.core.trial import Outcome
from anatune.report import units
from anatune.report.plans import template_text
from anatune.report.records import rate_text
from anatune.report.session_words import report_dict, session_facts
from anatune.report.sessions import session_views
from anatune.report.text import join_lines
from anatune.report.tuning import measured_rate, model_progress_text, progress_text, result_lines
from anatune.tuning.result import ModelProgress, TuningProgress
from tests.unit.tuning.fakes import failed, ran, session

MATMUL = anatune.matmul(64, 64, 64)


def flat(lines):
    return " ".join(join_lines(lines).split())


def test_progress():
    seen = []
    # two that are too close to call take turns in the end
    script = {0: ran(1e-3), 1: ran(1.001e-3), 2: failed(Outcome.RUN_TIMEOUT, "not finished after 10 s")}
    session(4, script=script, progress=seen.append).run()
    texts = [progress_text(one) for one in seen]
    assert "ranking" in texts[0]
    assert texts.pop(1).startswith("about ")  # tests/unit/tuning/test_cost.py
    assert texts[1].startswith("trial 1/4; ")
    assert texts[1].endswith("FLOP/s; best: the first trial; 0 failed")
    assert "FLOP/s, 0.999 x as fast as the first; best: the first trial; 0 failed" in texts[2]
    assert "run_timeout (not finished after 10 s)" in texts[3]
    assert texts[3].endswith("s left")
    assert "1 failed" in texts[3]
    assert "in turn" in texts[-1]
    assert "no successful trial" in progress_text(TuningProgress("measure", 1, 4, 1))


def test_what_is_said_of_the_best_never_gets_worse_though_the_machine_slows():
    """Trials are compared over the reference beside them; what is printed of the best is what they are compared by."""
    seen, slow = [], (1.0, 1.5, 2.0, 3.0)  # the machine's time
    script = {}
    for number, pace in enumerate(slow):
        kernel_s = 1e-3 * (1.0 - 0.05 * number)
        times = {"times_s": (pace * kernel_s,) * 3, "reference_times_s": (pace * 1e-3,) * 3}
        script[number] = msgspec.structs.replace(ran(1.0), **times)
    session(4, script=script, progress=seen.append).run()
    texts = [progress_text(one) for one in seen if one.stage == "measure"]
    rates = [float(re.search(r"; ([\d.]+) .FLOP/s", text)[1]) for text in texts]
    told = [float(re.search(r"FLOP/s, ([\d.]+) x as fast as the first", text)[1]) for text in texts[1:]]
    assert [rate / rates[0] for rate in rates[1:]] == pytest.approx(told, rel=2e-3)
    bests = [one.best_s for one in seen if one.stage == "measure"]
    assert bests == sorted(bests, reverse=True)
    speeds = [
        float(found[1])
        for text in texts
        if (found := re.search(r"best: trial \d, ([\d.]+) x as fast as the first", text))
    ]
    assert speeds == [1.053, 1.111, 1.176]


def test_one_time_of_the_best_everywhere():
    """As text, JSON, in pages and their reports; it agrees with the first choice's time and the speedup over that."""
    slow = {number: msgspec.structs.replace(ran(2e-3), reference_times_s=(2e-3,) * 3) for number in range(1, 6)}
    result = session(6, script=slow).run()
    best_s = result.plan_first.measurement.time_s / result.compare.speedup
    tree, [view] = result.to_dict(), session_views(result)
    first, *others = (trial["time_s"] for trial in tree["trials"])
    assert first == pytest.approx(view.plan_first.measurement.time_s) == pytest.approx(best_s * result.compare.speedup)
    assert others == pytest.approx([1e-3] * 5)  # not 2e-3, which they took while the machine was slow
    assert tree["trials"][1]["measurement"]["times_s"] == (2e-3,) * 3
    assert "machine's speed during the first trial" in flat(result_lines(result))
    assert tree["best_s"] == result.best_s == view.best_s == report_dict(view)["best_s"]
    assert best_s == pytest.approx(result.best_s)
    assert tree["share_of_bound"] == result.bound.time_s / result.best_s
    assert f"best: trial {result.best_trial.number}, " in flat(result_lines(result))
    rate = measured_rate(result.hardware, result.best_trial, result.best_s)
    told = f"{units.duration(result.best_s)}, {rate}"
    assert told in flat(result_lines(result))
    assert session_facts(view)[0] == ("best", *told.split(", ", 1))


def test_progress_of_a_model():
    told = ModelProgress("matmul 8x8x8", 3, 12, 0.002, 0.003, 6.0, 18.2)
    expected = "trial 3/12; all kernels: 2.000 ms predicted, 3.000 ms with measured times; 18 s left; matmul 8x8x8"
    assert model_progress_text(told) == expected
    before = model_progress_text(ModelProgress("matmul 8x8x8", 0, 12, 0.002, 0.003, 0.0))
    assert before == "trial 0/12; all kernels: 2.000 ms predicted; matmul 8x8x8"  # nothing was measured yet


def test_summary():
    result = session(6).run()
    text = flat(result_lines(result, ["all trials: tuning.sqlite"], width=80))
    assert "matmul i=48 j=64 k=36" in text
    assert "1 thread" in text
    assert "template: cpu 6 trials" in text
    assert "6 trials in" in text
    assert f"best: trial {result.best_trial.number}" in text
    assert "plan's first choice" in text
    assert text.endswith("all trials: tuning.sqlite")
    assert all(len(line.text) <= 80 for line in result_lines(result, width=80))
    corrected = dataclasses.replace(result, correction="mine")
    assert "the learned correction mine" in flat(result_lines(corrected))
    assert "corrected" not in text


@pytest.mark.parametrize(
    ("workload", "hw", "template", "text"),
    [
        (
            MATMUL,
            "a100",
            "cuda",
            "template: cuda (plan's default); others for --template: pipelined (tune's default), ",
        ),
        (MATMUL, "a100", "pipelined", "template: pipelined (tune's default); others for --template: cuda (plan's"),
        (MATMUL, "mi50", "cuda", "template: cuda"),
        (MATMUL, "xeon_gold_6230r", "cpu", "template: cpu"),
        (anatune.elementwise((64, 64)), "a100", "cuda", "template: cuda"),
    ],
)
def test_which_template_and_how_to_get_others(workload, hw, template, text):
    said = template_text(workload, anatune.hardware(hw), template)
    assert said.startswith(text)
    assert ("triton" in said) == (workload is MATMUL and hw == "a100")  # which others do not have, or not for it


def test_how_the_plan_did():
    result = session(6).run()
    comparison = result.compare

    def said(**changes):
        return flat(result_lines(dataclasses.replace(result, **changes)))

    def compared(**changes):
        return said(compare=msgspec.structs.replace(comparison, **changes))

    assert "1.250 times as fast (95 % confidence: 1.200 to 1.300)" in compared(best=2, speedup=1.25, low=1.2, high=1.3)
    assert "no significant difference" in compared(best=2, speedup=1.01, low=0.9, high=1.1)
    assert "first choice is the fastest" in compared(best=0, speedup=1.0, low=1.0, high=1.0)
    slowest = max(result.trials, key=lambda trial: trial.measurement.time_s)
    said_of_two = said(plan_first=slowest, compare=None)
    assert "times as fast as the plan's first choice, judged by one trial of each" in said_of_two
    assert "was not measured" in said(plan_first=None, compare=None)
    assert "first choice failed" in said(plan_first=as_failed(result.plan_first), compare=None)


def as_failed(trial):
    return msgspec.structs.replace(trial, measurement=failed())


def test_nothing_ran():
    result = session(2, script=dict.fromkeys(range(2), failed())).run()
    text = flat(result_lines(result))
    assert "2 build_error" in text
    assert "best" not in text


def test_no_share_of_a_peak_is_above_a_hundred_per_cent():
    assert rate_text(83e9, 166e9).endswith("GFLOP/s, 50 % of peak")
    beaten = rate_text(217e9, 166e9)
    assert "%" not in beaten
    assert "above the peak of 166" in beaten

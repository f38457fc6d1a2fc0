"""Tuning as text."""

import dataclasses

import pytest

import anatune
from anatune.core.trial import Outcome
from anatune.report.templates import template_text
from anatune.report.text import plain
from anatune.report.tuning import best_text, model_progress_text, progress_text, result_lines
from anatune.tuning.result import ModelProgress, TuningProgress
from tests.unit.tuning.fakes import failed, ran, session

MATMUL = anatune.matmul(64, 64, 64)


def flat(lines):
    return " ".join(plain(lines).split())


def test_progress():
    seen = []
    # two that are too close to call take turns in the end
    script = {0: ran(1e-3), 1: ran(1.001e-3), 2: failed(Outcome.RUN_TIMEOUT, "not finished after 10 s")}
    session(4, script=script, progress=seen.append).run()
    texts = [progress_text(one) for one in seen]
    assert texts[0] == "planning"
    assert texts.pop(1).startswith("about ")  # tests/unit/tuning/test_cost.py
    assert texts[1].startswith("trial 1/4; ")
    assert "of peak; 0 failed" in texts[1]
    assert "run_timeout (not finished after 10 s)" in texts[3]
    assert texts[3].endswith("s left")
    assert "1 failed" in texts[3]
    assert "in turn" in texts[-1]
    assert "nothing ran yet" in progress_text(TuningProgress("measure", 1, 4, 1))


def test_progress_of_a_model():
    told = ModelProgress("matmul 8x8x8", 3, 12, 0.002, 0.003, 6.0, 18.2)
    expected = "trial 3/12; kernels predicted 2.000 ms, measured 3.000 ms; 18 s left; matmul 8x8x8"
    assert model_progress_text(told) == expected


def test_summary():
    result = session(6).run()
    text = flat(result_lines(result, ["all trials: tuning.sqlite"], width=80))
    assert "matmul i=48 j=64 k=36" in text
    assert "1 thread" in text
    assert "template: cpu 6 trials" in text
    assert "6 trials in" in text
    assert f"best: trial {result.best_trial.number}" in text
    assert "plan's own first choice" in text
    assert text.endswith("all trials: tuning.sqlite")
    assert all(len(line.text) <= 80 for line in result_lines(result, width=80))
    corrected = dataclasses.replace(result, correction="mine")
    assert "started from is corrected by mine" in flat(result_lines(corrected))
    assert "corrected" not in text


@pytest.mark.parametrize(
    ("workload", "hw", "template", "text"),
    [
        (
            MATMUL,
            "a100",
            "cuda",
            "template: cuda (plan's default); --template names others: pipelined (tune's default), ",
        ),
        (MATMUL, "a100", "pipelined", "template: pipelined (tune's default); --template names others: cuda (plan's"),
        (MATMUL, "mi50", "cuda", "template: cuda (the default); --template names others: tensorcore"),
        (MATMUL, "xeon_gold_6230r", "cpu", "template: cpu"),
        (anatune.elementwise((64, 64)), "a100", "cuda", "template: cuda (the default); "),
    ],
)
def test_which_template_and_how_to_get_others(workload, hw, template, text):
    assert template_text(workload, anatune.hardware(hw), template).startswith(text)


def test_how_the_plan_did():
    result = session(6).run()
    comparison = result.compare

    def said(**changes):
        return flat(result_lines(dataclasses.replace(result, **changes)))

    def compared(**changes):
        import msgspec

        return said(compare=msgspec.structs.replace(comparison, **changes))

    assert "1.250 times as fast (95 % confidence: 1.200 to 1.300)" in compared(best=1, speedup=1.25, low=1.2, high=1.3)
    assert "no difference that measuring could show" in compared(best=1, speedup=1.01, low=0.9, high=1.1)
    assert "stays ahead" in compared(best=0, speedup=1.0, low=1.0, high=1.0)
    assert "the plan's own first choice: " in said(compare=None)
    assert "was not measured" in said(plan_first=None, compare=None)
    assert "did not run" in said(plan_first=as_failed(result.plan_first), compare=None)


def as_failed(trial):
    import msgspec

    return msgspec.structs.replace(trial, measurement=failed())


def test_nothing_ran():
    result = session(2, script=dict.fromkeys(range(2), failed())).run()
    text = flat(result_lines(result))
    assert "2 build_error" in text
    assert "best" not in text
    assert best_text(None) == "nothing ran yet"

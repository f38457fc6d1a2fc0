"""Two builds of a model that take turns: the tuned one is kept unless it is slower; the report says so."""

import msgspec
import pytest

from anatune.network.compiling import tuning
from anatune.network.compiling.session import compile as compile_model
from anatune.network.compiling.targets import cpu
from anatune.network.compiling.tuning import choose_faster, measure_latency
from anatune.network.graph.summary import Latency
from anatune.network.report import model_dict
from tests.unit.network.compiling import models
from tests.wording import refuses


class Clock:
    """Time that passes only when a model runs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Model:
    def __init__(self, clock, *times):
        self.clock, self.times, self.runs = clock, times, 0

    def random_inputs(self):
        return []

    def prepared(self):
        def call():
            self.clock.now += self.times[min(self.runs, len(self.times) - 1)]
            self.runs += 1

        return call


def test_the_faster_build_is_kept():
    clock = Clock()
    quick, slow = Model(clock, 1 / 64), Model(clock, 1 / 32)
    assert choose_faster(quick, slow, clock) == Latency(1 / 64, 1 / 32, True)
    assert choose_faster(slow, quick, clock) == Latency(1 / 64, 1 / 32, False)
    assert quick.runs == slow.runs


def test_a_machine_that_slows_down_judges_neither():
    clock = Clock()
    tuned, plan = Model(clock, *[0.09] * 3, *[0.9] * 20), Model(clock, *[0.1] * 3, *[1.0] * 20)
    assert choose_faster(tuned, plan, clock).is_tuned


def test_long_models_run_a_few_times():
    clock = Clock()
    model = Model(clock, 100.0)
    assert measure_latency(model, clock) == Latency(pytest.approx(100.0))
    assert model.runs == 6


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("tvm")
    pytest.importorskip("onnx")
    models.onnx_network(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def other_schedules(planned, hardware, threads, *_):
    """Return kernels with other schedules than the plan's."""
    from anatune import api

    return [
        one._replace(schedule=api.plan(one.workload, hardware.with_threads(threads), 4, distinct=True).schedules[-1])
        for one in planned
    ]


@pytest.mark.parametrize("is_tuned", [True, False])
def test_what_is_kept_is_what_runs_and_the_report_says_it(path, tmp_path, monkeypatch, is_tuned):
    chosen = {}

    def tuned(planned, *given):
        chosen["plan"], chosen["tuned"] = planned, other_schedules(planned, *given)
        return chosen["tuned"], None

    monkeypatch.setattr(tuning, "tune_kernels", tuned)
    monkeypatch.setattr(tuning, "choose_faster", lambda tuned, plan: Latency(1e-3, 2e-3, is_tuned))
    compiled = compile_model(path, threads=1, trials=4)
    (want,) = chosen["tuned" if is_tuned else "plan"]
    assert compiled.summary.kernels[0].schedule == want.schedule.to_json()
    assert chosen["plan"][0].schedule != chosen["tuned"][0].schedule
    words = " ".join(compiled.report().split())
    assert "measured when it was compiled: 1.000 ms a run with the " in words
    assert ("with the best measured kernels, which are kept" in words) == is_tuned
    assert compiled.summary.check.error < 1e-5  # of the one that is kept
    assert model_dict(compiled.summary)["latency"]["is_tuned"] == is_tuned
    summary = compiled.summary
    assert msgspec.json.decode(msgspec.json.encode(summary), type=type(summary)) == summary


def test_a_tuned_kernel_that_is_wrong_is_named(path, monkeypatch):
    from anatune.errors import RunError

    good = cpu.model_kernel
    planned = {}

    def tuned(given, *more):
        planned["tuned"] = other_schedules(given, *more)
        return planned["tuned"], None

    def model_kernel(name, schedule, threads, span=None):
        if planned and schedule == planned["tuned"][0].schedule:
            wrong = anatune_conv(schedule.workload, epilogue=("relu",))
            schedule = msgspec.structs.replace(schedule, workload=wrong)
        return good(name, schedule, threads)

    monkeypatch.setattr(tuning, "tune_kernels", tuned)
    monkeypatch.setattr(tuning, "choose_faster", lambda tuned, plan: Latency(1.0, 2.0, True))
    monkeypatch.setattr(cpu, "model_kernel", model_kernel)
    with refuses(RunError) as caught:
        compile_model(path, threads=1, trials=4)
    assert planned["tuned"][0].schedule.describe() in str(caught.value)


def anatune_conv(workload, **changes):
    from anatune.core.workload.operators import CONSTRUCTORS

    return CONSTRUCTORS["conv2d"](**{**workload.attribute, **changes})


def test_tuning_that_changes_nothing_measures_the_model(path, tmp_path):
    compiled = compile_model(path, threads=1, records=tmp_path / "none.sqlite")
    assert compiled.summary.latency.other_s is None
    assert "the best measured kernels are those of the plan" in " ".join(compiled.report().split())
    assert compile_model(path, threads=1).summary.latency is None

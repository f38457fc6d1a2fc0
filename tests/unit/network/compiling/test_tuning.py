"""Tuning of a model's kernels on a measurer that computes its times: who is measured, how often, what is kept."""

import msgspec
import pytest

from anatune.errors import RecordError, SpaceError
from anatune.measure.place import WorkerState
from anatune.model.bound import time_bound
from anatune.network.compiling.planning import ProductPlanner, plan_products, strip_epilogue
from anatune.network.compiling.request import TRIALS_PER_TURN, CompileRequest, Listeners, MeasuringOptions
from anatune.network.compiling.tuning import tune_kernels
from anatune.network.report import tuning_text
from anatune.records.store import RecordStore
from anatune.templates.cpu.model.order import TIE_SHARE
from anatune.tuning.result import TuningInterrupted
from anatune.tuning.session import StandIns
from tests.unit.network.graph import graphs as g
from tests.unit.tuning.fakes import HOST, FakeMeasurer, key_of, ran
from tests.wording import refuses


def planned():
    """Three equal products, one with what is fused; a large one; one of two inputs."""
    x, y = g.source(16, 32), g.source(32, 16, name="y")
    first = g.matmul(x, g.constant(32, 32))
    second = g.matmul(first, g.constant(32, 32, seed=1))
    third = g.matmul(second, g.constant(32, 32, seed=2))
    large = g.matmul(third, g.constant(32, 512))
    graph = g.prepared(g.graph(large, g.matmul(third, y), inputs=[x, y]))
    return plan_products(graph, ProductPlanner(graph, HOST.with_threads(1)))


class Machine:
    """Fakes, and what was measured on them."""

    def __init__(self, script=None):
        self.made, self.script = [], script

    @property
    def measured(self):
        return [(one.workload, len(one.measured)) for one in self.made]

    def stand_ins(self, **clock):
        def measurer(*given, **settings):
            self.made.append(FakeMeasurer(*given, script=self.script, ahead=1, **settings))
            return self.made[-1]

        return StandIns(host=HOST, measurer=measurer, program_key=key_of, **clock)

    def tune(self, *given, **more):
        return self.tuned(*given, **more).kernels

    def tuned(self, kernels, trials, path=None, *, progress=None, clock=None, **budget):
        measuring = MeasuringOptions(trials=trials, records=path, **budget)
        given = CompileRequest(measuring=measuring, listeners=Listeners(tuning_progress=progress))
        stand_ins = self.stand_ins(**({} if clock is None else {"clock": clock}))
        return tune_kernels(kernels, HOST, 1, given, stand_ins)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning.sqlite"


def test_equal_kernels_are_tuned_once_and_get_the_fastest_schedule(path):
    kernels, machine = planned(), Machine()
    found = machine.tune(kernels, 2 * TRIALS_PER_TURN, path)
    workloads = [workload for workload, _ in machine.measured]
    assert len(workloads) == len(set(workloads)) == 2
    assert sum(number for _, number in machine.measured) == 2 * TRIALS_PER_TURN
    with RecordStore(path) as store:
        for before, after in zip(kernels, found, strict=True):
            best = store.best(strip_epilogue(before.workload), HOST.name, 1)
            if best is None:
                assert after is before
                continue
            assert after.schedule.tiles == best.trial.schedule.tiles
            assert after.workload == before.workload == after.schedule.workload
            least_s = before.prediction.time_s * (1.0 - TIE_SHARE)  # the plan was the model's first choice
            assert after.prediction.time_s >= least_s


def test_products_of_two_inputs_keep_their_plan():
    kernels, machine = planned(), Machine()
    found = machine.tune(kernels, 8)
    assert found[-1] is kernels[-1]
    assert kernels[-1].workload not in [workload for workload, _ in machine.measured]


def test_what_takes_most_above_its_bound_comes_first():
    kernels, machine = planned(), Machine()
    machine.tune(kernels, 1)
    gaps = {}
    for one in kernels[:-1]:
        workload = strip_epilogue(one.workload)
        gap_s = max(0.0, one.prediction.time_s - time_bound(workload, HOST.with_threads(1)).time_s)
        gaps[workload] = gaps.get(workload, 0.0) + len(one.nodes) * gap_s
    assert machine.measured == [(max(gaps, key=gaps.get), 1)]


def test_a_second_call_measures_nothing_and_finds_the_same(path):
    kernels = planned()
    first = Machine().tune(kernels, 10, path)
    machine = Machine()
    again = machine.tune(kernels, 10, path, resume=True)
    assert machine.made == []
    assert [one.schedule for one in again] == [one.schedule for one in first]
    assert [one.schedule for one in machine.tune(kernels, 0, path)] == [one.schedule for one in first]
    assert machine.made == []


def test_weights_of_large_models_come_from_memory(path, monkeypatch):
    kernels, warm = planned(), Machine()
    warm.tune(kernels, 2 * TRIALS_PER_TURN, path)
    assert {one.cold for one in warm.made} == {None}  # 78 kB: any cache
    monkeypatch.setattr("anatune.network.compiling.tuning.weight_bytes", lambda nodes: 1e9)
    cold = Machine()
    found = cold.tune(kernels, 2 * TRIALS_PER_TURN, path)
    assert {one.cold for one in cold.made} == {"dram"}  # what was measured warm does not count
    with RecordStore(path) as store:
        sessions = store.sessions(strip_epilogue(kernels[0].workload))
        assert [one.settings.get("cold") for one in sessions] == [None, "dram"]
        best = store.best(sessions[1].workload, session=sessions[1])
    assert found[0].schedule.tiles == best.trial.schedule.tiles
    assert found[0].prediction.parts["dram_s"] > 0.0


def test_what_others_measured_on_this_device_is_taken_unless_it_is_off(path):
    kernels = planned()
    Machine().tune(kernels, 4, path.with_name("own.sqlite"))
    with RecordStore(path.with_name("own.sqlite")) as store:
        trial = store.trials(outcome="ok")[-1].trial
    workload = trial.schedule.workload
    (kernel,) = [at for at, one in enumerate(kernels) if strip_epilogue(one.workload) == workload][:1]
    with RecordStore(path) as store:
        there = store.new_session(workload, msgspec.structs.replace(HOST, arch="znver9"), 1, "random", 0)
        store.append(there, trial)
    assert [one.schedule for one in Machine().tune(kernels, 0, path)] == [one.schedule for one in kernels]
    with RecordStore(path) as store:  # of another strategy: nothing that a session here would go on with
        store.append(store.new_session(workload, HOST, 1, "random", 0), trial)
    machine = Machine()
    found = machine.tune(kernels, 0, path)
    assert machine.made == []
    assert found[kernel].schedule.tiles == trial.schedule.tiles
    without = machine.tune(kernels, 0, path, reuse=False)
    assert [one.schedule for one in without] == [one.schedule for one in kernels]


def test_an_interrupted_call_loses_nothing(path):
    kernels = planned()
    with pytest.raises(TuningInterrupted):
        Machine({5: KeyboardInterrupt()}).tune(kernels, 16, path)
    machine = Machine()
    machine.tune(kernels, 16, path)
    assert sum(number for _, number in machine.measured) == 16 - 5


def test_time_ends_it():
    machine, now = Machine(), iter(range(10_000))
    machine.tune(planned(), 64, clock=lambda: next(now), time_limit_s=30.0)
    assert 0 < sum(number for _, number in machine.measured) < 64


def test_kernels_end_early_and_their_trials_go_to_others(path):
    steady = dict.fromkeys(range(99), ran(1e-3))  # the first trial of each kernel is the best
    machine = Machine(steady)
    summary = machine.tuned(planned(), 64, path, patience=3).summary
    assert (summary.ended, summary.trials, summary.new_trials) == ("kernels", 8, 8)
    assert [(one.trials, one.ended, one.measured_s) for one in summary.kernels] == [(4, "patience", 1e-3)] * 2
    assert all(one.bound_s <= one.predicted_s for one in summary.kernels)
    text = tuning_text(summary)
    assert text.startswith("kernels were measured in 8 trials, 8 of them in this call, ended early")
    assert text.endswith(" times the model's lower bounds")
    again = Machine(steady)
    resumed = again.tuned(planned(), 64, path, patience=3).summary
    assert (again.made, resumed.ended, resumed.trials, resumed.new_trials) == ([], "kernels", 8, 0)
    further = Machine(steady).tuned(planned(), 64, path, patience=5).summary
    assert [one.trials for one in further.kernels] == [6, 6]


def test_kernels_that_are_near_their_bound_get_no_more(path):
    summary = Machine().tuned(planned(), 20, path, stop_at=1e-9).summary  # one trial is near enough for that
    assert [(one.trials, one.ended) for one in summary.kernels] == [(1, "stop_at")] * 2
    with refuses(SpaceError):
        MeasuringOptions(patience=3)
    with refuses(SpaceError):
        MeasuringOptions(trials=3, stop_at=95)


def test_progress_says_what_is_tuned_and_the_models_times():
    seen, kernels = [], planned()
    Machine().tune(kernels, 2 * TRIALS_PER_TURN, progress=seen.append)
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert seen[-1].done == seen[-1].total == 2 * TRIALS_PER_TURN
    assert len({one.kernel for one in seen}) == 2
    predicted = sum(len(one.nodes) * one.prediction.time_s for one in kernels)
    assert [one.predicted_s for one in seen] == pytest.approx([predicted] * len(seen))
    assert seen[-1].measured_s == pytest.approx(4 * 1e-3, rel=0.5)  # fakes take 1 to 2 ms a call
    assert seen[-1].left_s == 0


def test_who_measured_is_told_over_all_parts(monkeypatch):
    """A part is a session, whose workers count from nothing."""
    monkeypatch.setattr(
        FakeMeasurer, "workers", lambda self: (WorkerState("box", trials=len(self.measured), failed=1),)
    )
    seen = []
    Machine().tune(planned(), 2 * TRIALS_PER_TURN, progress=seen.append)
    counts = [one.workers[0].trials for one in seen if one.workers]
    assert counts == sorted(counts)
    assert counts[-1] == 2 * TRIALS_PER_TURN
    assert seen[-1].workers[0].failed == 2
    assert seen[-1].trials_per_s > 0


def test_bad_budgets_are_one_line(tmp_path):
    with refuses(RecordError):
        MeasuringOptions(records=tmp_path / "none.sqlite", resume=True)
    with refuses(SpaceError):
        MeasuringOptions(resume=True)
    with refuses(SpaceError):
        MeasuringOptions(trials=-1)


def test_who_measures_is_checked_before_anything_is_planned(path):
    with refuses(SpaceError):
        MeasuringOptions(cluster="tcp://127.0.0.1:8786")
    with refuses(SpaceError):
        MeasuringOptions(trials=1, cluster="tcp://127.0.0.1:8786", tracker="127.0.0.1:9190", key="pi4")
    with refuses(SpaceError):
        MeasuringOptions(trials=1, tracker="127.0.0.1:9190")
    with refuses(SpaceError):
        MeasuringOptions(trials=1, reuse=1)

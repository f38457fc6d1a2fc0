"""Sessions that share their trials between several templates, and what of them is handed out at which accuracy."""

import msgspec
import pytest

import anatune
from anatune import templates
from anatune.core.accuracy import RELAXED, STANDARD, accuracy_of
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.errors import SpaceError
from anatune.records.store import RecordStore
from tests.contracts import trial_template
from tests.unit.tuning.fakes import HOST, WORKLOAD, session
from tests.wording import refuses

HERE = HOST.with_threads(1)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """Register a template that joins, and is predicted to be a little faster than the default."""
    monkeypatch.setitem(templates.TEMPLATES, trial_template.JOINED.name, trial_template.JOINED)
    best = {name: anatune.plan(WORKLOAD, HERE, 1, template=name).predictions[0].time_s for name in ("cpu", "joined")}
    faster = trial_template.JoinedModel.per_cycle * 1.02 * best["joined"] / best["cpu"]
    monkeypatch.setattr(trial_template.JoinedModel, "per_cycle", faster)


def keys(result):
    return [trial.schedule.key for trial in result.trials]


def test_the_plans_best_comes_first_and_all_templates_have_their_turn():
    result = session(16).run()
    assert result.trials[0].schedule == anatune.plan(WORKLOAD, HERE, 1).best
    assert result.trials[0].source == "plan"
    assert {trial.schedule.template for trial in result.trials} == {"cpu", "joined"}
    assert {accuracy_of(trial.schedule) for trial in result.trials} == {STANDARD}
    assert (result.templates, result.accuracy) == (("cpu", "joined"), STANDARD)
    assert all(trial.predicted_s > 0 for trial in result.trials)
    table = anatune.predict(WORKLOAD, HERE, [trial.schedule for trial in result.trials])
    assert table["time_s"].tolist() == [trial.predicted_s for trial in result.trials]


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_resumed_session_goes_on_where_it_was(tmp_path, ahead):
    whole = session(12, ahead=ahead).run()
    path = tmp_path / "tuning.sqlite"
    session(5, ahead=ahead, records=path).run()
    resumed = session(12, ahead=ahead, records=path, resume=True).run()
    assert resumed.num_resumed == 5
    if ahead == 1:  # what is asked ahead of the fifth answer is not what is asked behind it
        assert keys(resumed) == keys(whole)
    assert len(set(keys(resumed))) == 12


def test_one_template_alone_and_searches_as_they_were_published():
    for template in ("cpu", "joined"):
        assert {trial.schedule.template for trial in session(6, template=template).run().trials} == {template}
    assert {one.schedule.template for one in session(6, strategy="nose", start="paper").run().trials} == {"cpu"}
    walked = session(12, strategy="nose").run()
    assert {one.schedule.template for one in walked.trials} == {"cpu", "joined"}
    with refuses(SpaceError):
        session(3, template="cuda").run()


def test_sessions_that_differ_in_what_is_asked_for_are_not_resumed(tmp_path):
    path = tmp_path / "tuning.sqlite"
    session(3, records=path, accuracy="relaxed").run()
    assert session(3, records=path, resume=True).run().num_resumed == 0
    assert session(3, records=path, resume=True, template="cpu").run().num_resumed == 0
    assert session(3, records=path, resume=True, accuracy="relaxed").run().num_resumed == 3
    with refuses(SpaceError):
        session(3, accuracy="best")


def test_sessions_of_earlier_versions_were_of_the_default_at_standard_accuracy(tmp_path):
    path = tmp_path / "tuning.sqlite"
    whole = session(6, template="cpu").run()
    with RecordStore(path) as store:
        old = store.new_session(WORKLOAD, HOST, 1, "model", 0, {"trials": 3, "start": "model"})
        for trial in whole.trials[:3]:
            store.append(old, trial)
    assert session(6, records=path, resume=True, template="cpu").run().num_resumed == 3
    assert session(6, records=path, resume=True).run().num_resumed == 0


def timed(time_s):
    return Measurement(Outcome.OK, times_s=(time_s,) * 3)


def test_what_needs_relaxed_arithmetic_is_handed_only_to_who_asked_for_it(tmp_path):
    space = anatune.space(WORKLOAD, HERE, template="joined")
    plain, exact, loose = anatune.space(WORKLOAD, HERE).schedule({}), space.schedule({}, 2), space.schedule({}, 4)
    path = tmp_path / "tuning.sqlite"
    with RecordStore(path) as store:
        made = store.new_session(WORKLOAD, HERE, 1, "model", 0)
        for number, (schedule, time_s) in enumerate([(loose, 1e-3), (exact, 2e-3), (plain, 3e-3)]):
            store.append(made, Trial(schedule, timed(time_s), number))
        assert store.best(WORKLOAD).trial.schedule == exact
        assert store.best(WORKLOAD, accuracy=RELAXED).trial.schedule == loose
        assert store.best(WORKLOAD, template="cpu", accuracy=RELAXED).trial.schedule == plain
        assert [one.trial.schedule for one in store.bests()] == [exact]
        with refuses(SpaceError):
            store.bests(accuracy="any")
    relaxed = session(8, accuracy="relaxed").run()
    assert accuracy_of(relaxed.best) in (STANDARD, RELAXED)
    assert RELAXED in {accuracy_of(trial.schedule) for trial in relaxed.trials}
    tree = msgspec.json.decode(relaxed.to_json())
    assert (tree["templates"], tree["accuracy"]) == (["cpu", "joined"], "relaxed")

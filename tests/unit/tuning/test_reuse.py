"""Sessions begin with what the records have of the workload and device, measured anew."""

from msgspec.structs import replace

from anatune.core.trial import Outcome
from anatune.records.store import RecordStore
from anatune.tuning.questions import RECORDED
from anatune.tuning.reuse import MOST_REUSED, recorded_leaders, same_device
from tests.postgres import PASSWORD
from tests.unit.tuning.fakes import HOST, WORKLOAD, failed, ran, session


def test_what_was_best_is_measured_again_after_the_plans_first_choice(tmp_path):
    path = tmp_path / "tuning.sqlite"
    assert session(12, strategy="random", records=path).run().num_reused == 0
    with RecordStore(path, read_only=True) as store:
        best = store.best(WORKLOAD).trial.schedule
        leaders = recorded_leaders(store, WORKLOAD, HOST, 1, 9)
        assert [record.trial.schedule for record in leaders] == [best]  # of a session that ended: its winner
    made = []
    result = session(12, made, strategy="random", seed=9, records=path).run()
    assert result.num_reused == 1
    sources = [trial.source for trial in result.trials]
    known = best.key == result.trials[0].schedule.key
    assert sources == ["plan"] + ([] if known else [RECORDED]) + ["random"] * (11 if known else 10)
    assert best in made[0].measured[:2]
    assert len({trial.schedule.key for trial in result.trials}) == 12
    assert result.to_dict()["num_reused"] == 1
    without = session(12, strategy="random", seed=9, records=path, reuse=False).run()
    assert without.num_reused == 0
    assert RECORDED not in [trial.source for trial in without.trials]
    resumed = session(14, strategy="random", seed=9, records=path, resume=True, reuse=False).run()
    assert resumed.num_resumed == 12


def test_only_of_this_device_and_what_is_legal(tmp_path):
    path = tmp_path / "tuning.sqlite"
    result = session(6, strategy="random", records=tmp_path / "other.sqlite").run()
    elsewhere = replace(HOST, model="another processor")
    slow = result.trials[1].schedule
    illegal = replace(slow, tiles={axis: (1, 1, 1, 7, 1) for axis in slow.tiles})
    foreign = replace(slow, template="unheard of")
    with RecordStore(path) as store:
        there = store.new_session(WORKLOAD, elsewhere, 1, "random", 0)
        store.append(there, replace(result.trials[2], measurement=ran(1e-6)))
        here = store.new_session(WORKLOAD, replace(HOST, dram=replace(HOST.dram, latency_s=1e-7)), 1, "random", 0)
        store.append(here, replace(result.trials[1], measurement=ran(5e-3)))
        for number, schedule in enumerate((illegal, foreign)):
            store.append(here, replace(result.trials[3], schedule=schedule, number=9 + number, measurement=ran(1e-5)))
        store.append(here, replace(result.trials[4], measurement=failed(Outcome.WRONG_RESULT)))
        found = recorded_leaders(store, WORKLOAD, HOST, 1, 9)
        assert {record.trial.schedule.key for record in found} == {illegal.key, foreign.key, slow.key}
    made = []
    result = session(16, made, strategy="random", seed=5, records=path).run()
    assert result.num_reused == 1
    assert made[0].measured[1].tiles == slow.tiles


def test_how_many(tmp_path):
    path = tmp_path / "tuning.sqlite"
    trials = session(12, strategy="random", records=tmp_path / "other.sqlite").run().trials
    with RecordStore(path) as store:
        imported = store.new_session(WORKLOAD, HOST, 1, "random", 0)
        for trial in trials[1:]:
            store.append(imported, trial)
    for count, expected in ((1, 0), (2, 1), (8, 2), (40, MOST_REUSED)):
        assert session(count, strategy="random", records=path, seed=count).run().num_reused == min(
            expected, MOST_REUSED
        )


def test_the_same_device():
    assert same_device(HOST, replace(HOST, name="mine", dram=replace(HOST.dram, latency_s=1e-7)))
    assert not same_device(HOST, replace(HOST, arch="znver9"))


def test_records_on_a_server(postgres):
    url, seen = postgres.database(), []
    result = session(8, strategy="random", records=url, progress=seen.append).run()
    told = f"{result} {result.to_json()} {result.records} {seen}"
    assert PASSWORD not in told
    assert result.records == url.replace(f":{PASSWORD}", "")
    assert session(12, strategy="random", records=url, resume=True).run().num_resumed == 8
    with RecordStore(url, read_only=True) as store:
        assert len(store.sessions()) == 1
        assert store.best(WORKLOAD, HOST.name, 1) is not None

"""The search reads few trials and finds what the rule over all of them says."""

import random

import msgspec
import pytest

from anatune.core.trial import Outcome
from anatune.records.lookup import WantedTrials, best_of_session
from anatune.records.store import RecordStore
from anatune.records.tables import trials
from tests.unit.records.making import CPU, MATMUL, failed, ok, schedule, session_of, trial


def filled(store, chance):
    """Record sessions with and without comparisons, references, wrong results; few schedules, many ties."""
    for _ in range(chance.randrange(1, 6)):
        session = session_of(store)
        kept = [made(chance, number) for number in range(chance.randrange(1, 12))]
        for one in kept:
            store.append(session, one)
        ran = list({one.schedule.key: one for one in kept if one.measurement.outcome is Outcome.OK}.values())
        if ran and chance.random() < 0.6:
            for one in chance.sample(ran, min(3, len(ran))):
                store.append(
                    session, msgspec.structs.replace(made(chance, 50), schedule=one.schedule, source="compare")
                )
            if chance.random() < 0.2:
                store.append(session, made(chance, 60))


def made(chance, number):
    kind = chance.random()
    if kind < 0.1:
        measurement = failed(chance.choice([Outcome.WRONG_RESULT, Outcome.BUILD_ERROR]))
    else:
        times = tuple(chance.choice([1, 2, 3, 4, 5, 7]) * 1e-3 for _ in range(chance.randrange(1, 5)))
        references = () if chance.random() < 0.3 else tuple(chance.choice([1, 2]) * 1e-3 for _ in times)
        measurement = ok(times, references, stopped_early=chance.random() < 0.2)
    return trial(number, measurement, schedule=schedule(chance.randrange(1, 9)))


@pytest.mark.parametrize("seed", range(60))
def test_the_same_as_reading_everything(tmp_path, seed):
    with RecordStore(tmp_path / "a.sqlite") as store:
        filled(store, random.Random(seed))
        everything = trials.c.id > 0
        expected = best_of_session(store._reader, everything, WantedTrials(None, "standard", None))
        assert store.bests() == expected
        assert ([store.best(MATMUL, CPU, 1)] if expected else []) == expected


def test_leaders(tmp_path):
    with RecordStore(tmp_path / "a.sqlite") as store:
        first, second = session_of(store), session_of(store)
        for number, time_s in enumerate((5e-3, 2e-3, 3e-3, 4e-3)):
            store.append(first, trial(number, ok((time_s,), (1e-3,))))
        store.append(second, trial(6, ok((1e-3,))))
        store.append(second, trial(7, failed(Outcome.WRONG_RESULT)))
        found = store.leaders(MATMUL, CPU, 1, 3)
        assert [record.trial.number for record in found] == [6, 1, 2]
        assert found[0] == store.best(MATMUL, CPU, 1)
        assert len(store.leaders(MATMUL, CPU.name, 1, 9)) == 5
        assert store.leaders(MATMUL, CPU, 1, 9, template="none") == store.leaders(MATMUL, CPU, 2, 9) == []
        for number in (2, 3):  # a final comparison: the others of its session are out
            again = msgspec.structs.replace(trial(number, ok((number * 1e-3,), (1e-3,))), source="compare")
            store.append(first, again)
        assert [record.trial.schedule.unroll for record in store.leaders(MATMUL, CPU, 1, 9)] == [7, 3]


def test_few_rows_of_many_are_read(tmp_path):
    chance = random.Random(0)
    with RecordStore(tmp_path / "a.sqlite") as store:
        session = session_of(store)
        for number in range(1500):
            time_s = chance.uniform(1e-3, 9e-3)
            store.append(session, trial(number, ok((time_s,) * 3, (1e-3,) * 3)))
        read = []
        real = store._database.read
        store._database.read = lambda *asked: read.append(len(found := real(*asked))) or found
        best = store.best(MATMUL, CPU, 1, template="cpu")
        assert sum(read) < 100
        assert best == min(store.trials(), key=lambda record: record.trial.measurement.time_s)


def test_templates_and_accuracies(tmp_path):
    with RecordStore(tmp_path / "a.sqlite") as store:
        session = session_of(store)
        other = msgspec.structs.replace(schedule(1), template="elsewhere")
        store.append(session, trial(0, ok((1e-3,)), schedule=other))
        own = store.append(session, trial(1, ok((2e-3,))))
        assert store.best(MATMUL).trial.number == 0
        assert store.best(MATMUL, template="cpu").id == own
        assert store.best(MATMUL, template="cpu", session=session).id == own
        assert store.best(MATMUL, template="none") is None


def test_groups_in_the_order_of_their_first_trials(tmp_path):
    with RecordStore(tmp_path / "a.sqlite") as store:
        ids = [store.append(session_of(store, threads=threads), trial(0, threads=threads)) for threads in (3, 1, 2)]
        assert [record.id for record in store.bests()] == ids
        assert [record.id for record in store.bests(MATMUL, CPU.name, threads=1)] == [ids[1]]

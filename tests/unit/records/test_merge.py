"""What one store has into another: in any direction, once, as it is."""

import sqlite3

import msgspec
import pytest

from anatune.errors import RecordError
from anatune.records.merge import merge
from anatune.records.store import RecordStore
from tests.unit.records.making import CONV, schedule, session_of, trial
from tests.wording import refuses


@pytest.fixture(params=["sqlite-sqlite", "sqlite-postgresql", "postgresql-sqlite", "postgresql-postgresql"])
def places(request, tmp_path):
    """Return the places of two stores."""
    return [
        tmp_path / f"{number}.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres").database()
        for number, kind in enumerate(request.param.split("-"))
    ]


def contents(store):
    return sorted((record.created_utc, msgspec.structs.replace(record, id=0)) for record in store.trials())


def test_two_stores(places):
    with RecordStore(places[0]) as one, RecordStore(places[1]) as two:
        first, second = session_of(one), session_of(one, workload=CONV, threads=2)
        for number in range(5):
            one.append(first, trial(number))
            one.append(second, trial(number, schedule=schedule(1, CONV), threads=2))
        empty = session_of(one, seed=3)
        own = session_of(two)
        two.append(own, trial(0))
        told = []
        assert merge(one, two, progress=lambda *done: told.append(done)) == (3, 10, 0)
        assert told == [(10, 10)]
        assert merge(one, two) == (0, 0, 10)
        assert [record.trial for record in two.trials(session=first)] == [
            record.trial for record in one.trials(session=first)
        ]
        assert [one.id for one in two.sessions()] == [own.id, first.id, second.id, empty.id]
        one.append(first, trial(5))
        assert merge(one, two) == (0, 1, 10)
        assert merge(two, one) == (1, 1, 11)
        assert contents(one) == contents(two)
        assert [record.trial.schedule for record in one.bests()] == [record.trial.schedule for record in two.bests()]


def test_cut_off_and_gone_on_with(places, monkeypatch):
    monkeypatch.setattr("anatune.records.merge._BATCH", 4)
    with RecordStore(places[0]) as one, RecordStore(places[1]) as two:
        session = session_of(one)
        for number in range(10):
            one.append(session, trial(number))

        def stop(done, total):
            if done == 8:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            merge(one, two, progress=stop)
        assert len(two.trials()) == 8
        assert merge(one, two) == (0, 2, 8)
        assert contents(one) == contents(two)


def test_a_session_with_other_contents(places):
    with RecordStore(places[0]) as one, RecordStore(places[1]) as two:
        session = session_of(one)
        one.append(session, trial(0))
        two.insert([msgspec.structs.replace(session, seed=8)])
        with refuses(RecordError):
            merge(one, two)
        assert two.trials() == []


def test_into_itself_and_damaged_rows(tmp_path):
    path = tmp_path / "a.sqlite"
    with RecordStore(path) as store:
        session = session_of(store)
        for number in range(3):
            store.append(session, trial(number))
        with RecordStore(path, read_only=True) as same, refuses(RecordError):
            merge(same, store)
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER trials_UPDATE")
    connection.execute("UPDATE trials SET digest = 'x' WHERE id = 2")
    connection.commit()
    connection.close()
    told = []
    with RecordStore(path, read_only=True) as store, RecordStore(tmp_path / "b.sqlite") as into:
        with refuses(RecordError):
            merge(store, into)
        assert merge(store, into, on_damage=told.append) in [(0, 2, 0), (1, 2, 0)]
        assert [record.trial.number for record in into.trials()] == [0, 2]
    assert len(told) == 1


def test_other_forms_of_the_name_are_one_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RecordStore("a.sqlite") as one, RecordStore(tmp_path / "a.sqlite") as two, pytest.raises(RecordError):
        merge(one, two)

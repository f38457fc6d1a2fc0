"""Stores of made-up trials are stores: whole rows, groups of several devices, and the search finds their best."""

from sqlalchemy import true

from anatune.records.lookup import WantedTrials, best_of_session
from anatune.records.store import RecordStore
from bench import records_lookup


def check(place, capsys):
    records_lookup.fill(place, 1200, 1)
    assert "trials in" in capsys.readouterr().out
    with RecordStore(place) as store:
        assert 500 < store.num_trials() < 1300
        assert len(store.trials()) == store.num_trials()  # every digest is right
        assert len(store.bests()) == 4
        assert store.bests() == best_of_session(store._reader, true(), WantedTrials(None, "standard", None))
        session = store.sessions()[-1]
        assert [record.trial.number for record in store.trials(session=session)] == list(
            range(sum(store.counts(session).values()))
        )


def test_a_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(records_lookup, "_OFTEN", 40)
    monkeypatch.setattr(records_lookup, "_SCHEDULES", 60)
    check(str(tmp_path / "made.sqlite"), capsys)


def test_a_server(postgres, capsys, monkeypatch):
    monkeypatch.setattr(records_lookup, "_OFTEN", 40)
    monkeypatch.setattr(records_lookup, "_SCHEDULES", 60)
    check(postgres.database(), capsys)

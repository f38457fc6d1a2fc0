"""Record files of older versions.

version_1.sqlite.gz: two sessions of 12 trials (times are made up), the one with id 11 damaged afterwards;
version_1.jsonl: what `anatune.records.export.json_lines` wrote of it before. Commit 7391b1d.
"""

import gzip
import os
import sqlite3
from pathlib import Path

import pytest

from anatune.errors import RecordError
from anatune.records.export import import_json_lines, json_lines
from anatune.records.schema import SCHEMA_VERSION
from anatune.records.store import RecordStore
from tests.unit.records.making import CONV, MATMUL, session_of, trial

HERE = Path(__file__).parent
LINES = (HERE / "version_1.jsonl").read_text().splitlines(keepends=True)
DAMAGED = 11


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "tuning.sqlite"
    found.write_bytes(gzip.decompress((HERE / "version_1.sqlite.gz").read_bytes()))
    return found


def version(path):
    connection = sqlite3.connect(path)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


@pytest.mark.parametrize("read_only", [False, True])
def test_everything_is_there_and_the_damaged_row_is_named(path, read_only):
    before = path.read_bytes()
    assert version(path) == 1
    with RecordStore(path, read_only=read_only) as store:
        told = []
        found = store.trials(on_damage=told.append)
        assert [record.id for record in found] == [number for number in range(1, 13) if number != DAMAGED]
        assert len(told) == 1
        assert f"trial with id {DAMAGED} is damaged" in told[0]
        with pytest.raises(RecordError, match=f"trial with id {DAMAGED} is damaged"):
            store.trials()
        kept = [line for line in LINES if f'"id":{DAMAGED},' not in line]
        assert list(json_lines(found)) == kept
        assert [record.id for record in store.bests()] == [8, 10]
        assert store.best(CONV).trial.number == 1
        assert len(store.trials(MATMUL, "xeon_8124m", threads=1)) == 8
    if read_only:
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]
    else:
        assert version(path) == SCHEMA_VERSION


def test_it_goes_on(path):
    with RecordStore(path) as store:
        session = store.sessions(MATMUL)[0]
        assert store.append(session, trial(7)) == 13
        assert store.append(session_of(store), trial(0)) == 14
        assert import_json_lines(store, [line for line in LINES if f'"id":{DAMAGED},' not in line]) == (0, 0)
        assert import_json_lines(store, LINES) == (0, 1)  # the damaged one, whole
    connection = sqlite3.connect(path)
    for statement in ("UPDATE trials SET time_s = 1", "DELETE FROM parts", "DELETE FROM sessions"):
        with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
            connection.execute(statement)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert not names & {"parts_1", "sessions_1", "trials_1"}
    connection.close()


def test_a_migration_that_is_cut_off_leaves_the_file_as_it_was(path, monkeypatch):
    def fail(session_id, created, trial):
        raise KeyboardInterrupt

    monkeypatch.setattr("anatune.records.migration.trial_columns", fail)
    with pytest.raises(KeyboardInterrupt):
        RecordStore(path)
    monkeypatch.undo()
    assert version(path) == 1
    with RecordStore(path) as store:
        assert len(store.trials(on_damage=lambda text: None)) == 11

"""Servers that cannot be reached or go away: one clear line, nothing lost, nothing twice, no password anywhere."""

import logging
import os
import socket
import threading
import time
import traceback

import pytest

from anatune.core.trial import Outcome
from anatune.errors import RecordError
from anatune.records.schema import SCHEMA_VERSION
from anatune.records.store import RecordStore
from anatune.tuning.settings import TuningSettings
from tests.postgres import PASSWORD, USER
from tests.unit.records.making import failed, session_of, trial
from tests.wording import refuses


@pytest.fixture
def url(postgres):
    """Return the URL of a store with 5 trials."""
    found = postgres.database()
    with RecordStore(found) as store:
        session = session_of(store)
        for number in range(5):
            store.append(session, trial(number))
    return found


def database_of(url):
    return url.rpartition("/")[2]


def refused(url, *parts, secret=PASSWORD, **options):
    """Open `url`, which must fail with one line that has these parts, and with the secret nowhere."""
    with pytest.raises(RecordError) as caught:
        RecordStore(url, **options)
    text = str(caught.value)
    assert text.startswith("postgresql://")
    assert "\n" not in text
    for part in parts:
        assert part in text
    assert secret not in told(caught.value)
    return text


def told(error):
    """Return all that an error can tell: its text, the traceback, the variables of our frames and those it rests on."""
    found = ["".join(traceback.format_exception(error)), repr(error)]
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "/tests/" not in frame.f_code.co_filename and "/_pytest/" not in frame.f_code.co_filename:
                found += map(repr, frame.f_locals.values())
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(found)


def test_rows_are_never_rewritten(postgres, url):
    import psycopg

    with postgres.connect(database_of(url), autocommit=True) as connection:
        for statement in (
            "UPDATE trials SET time_s = 1", "DELETE FROM trials", "DELETE FROM sessions", "DELETE FROM parts",
            "TRUNCATE trials CASCADE", "UPDATE parts SET json = ''",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.RaiseException, match="never rewritten"):
                connection.execute(statement)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_any_form_of_the_url(postgres, url, scheme, monkeypatch, tmp_path):
    name = database_of(url)
    with RecordStore(url.replace("postgresql", scheme)) as store:
        assert len(store.trials()) == 5
        assert repr(store) == f"RecordStore('postgresql://{USER}@127.0.0.1:{postgres.port}/{name}')"
    short = f"{scheme}://{USER}@127.0.0.1:{postgres.port}/{name}"
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert_found(short)
    monkeypatch.delenv("PGPASSWORD")
    (tmp_path / "pgpass").write_text(f"127.0.0.1:{postgres.port}:*:{USER}:{PASSWORD}\n")
    (tmp_path / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    assert_found(short)
    monkeypatch.delenv("PGPASSFILE")
    (tmp_path / "services").write_text(
        f"[lab]\nhost=127.0.0.1\nport={postgres.port}\nuser={USER}\npassword={PASSWORD}\ndbname={name}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert_found(f"{scheme}://?service=lab")
    monkeypatch.setenv("PGSERVICE", "lab")
    assert_found(f"{scheme}://")
    assert_found(f"{scheme}:///{name}?host={postgres.folder}&port={postgres.port}&user={USER}")  # its socket


def assert_found(url):
    with RecordStore(url, read_only=True) as store:
        assert len(store.trials()) == 5


def test_what_is_wrong_with_a_server(postgres, url, monkeypatch):
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    name = database_of(url)
    refused(
        postgres.url(name, password="s3cret-wrong"),
        "password authentication failed",
        "PGPASSWORD",
        secret="s3cret-wrong",
    )
    refused(postgres.url(name, password="s3cr%40t-wrong"), "password authentication failed", secret="s3cr@t-wrong")
    refused(postgres.url("nowhere"), 'database "nowhere" does not exist')
    refused(f"postgresql://{USER}@127.0.0.1:{postgres.port}/{name}", "no password supplied")
    monkeypatch.setenv("PGPASSWORD", "s3cret-other")
    refused(
        f"postgresql://{USER}@127.0.0.1:{postgres.port}/{name}", "password authentication failed", secret="s3cret-other"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # nobody else can listen there as long as it is held
        refused(f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/x", "refused", "check that the server is running")
        refused(f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/x?nonsense=1", "nonsense")
    refused(f"postgresql://{USER}:{PASSWORD}@nowhere.invalid/x", "nowhere.invalid")
    refused("postgresql://?service=none", "none")


def test_no_password_in_a_log(postgres, url, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    with RecordStore(url) as store:
        store.append(session_of(store), trial(0))
        assert PASSWORD not in f"{store} {vars(store)} {vars(store._database)}"
    refused(postgres.url("nowhere"), "does not exist")
    settings = TuningSettings(records=url)
    assert PASSWORD not in f"{settings} {settings.records} {settings.records!r}"
    assert PASSWORD not in caplog.text
    assert all(PASSWORD not in f"{record.__dict__}" for record in caplog.records)


def test_tables_of_others(postgres):
    url = postgres.database()
    with postgres.connect(database_of(url), autocommit=True) as connection:
        connection.execute("CREATE TABLE studies (id int)")
    refused(url, "has no tables of records", "anatune tune", read_only=True)
    with postgres.connect(database_of(url), autocommit=True) as connection:
        connection.execute("CREATE TABLE trials (id int)")
        connection.execute("CREATE SCHEMA lab")
    refused(url, "tables of another program (trials)", "csearch_path")
    with RecordStore(f"{url}?options=-csearch_path%3Dlab") as store:
        store.append(session_of(store), trial(0))
    with postgres.connect(database_of(url)) as connection:
        assert connection.execute("SELECT count(*) FROM lab.trials").fetchone() == (1,)


def test_newer_version_and_other_encodings(postgres, url):
    with postgres.connect(database_of(url), autocommit=True) as connection:
        connection.execute(f"UPDATE anatune_records SET version = {SCHEMA_VERSION + 1}")
        connection.execute("CREATE DATABASE latin ENCODING 'SQL_ASCII' TEMPLATE template0")
    refused(url, f"schema version {SCHEMA_VERSION + 1}", "update anatune")
    refused(url, f"schema version {SCHEMA_VERSION + 1}", read_only=True)
    refused(postgres.url("latin"), "SQL_ASCII", "UTF8")


def test_rights(postgres, url):
    name = database_of(url)
    with postgres.connect(name, autocommit=True) as connection:
        connection.execute(f"CREATE USER reader_{name} PASSWORD '{PASSWORD}'")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader_{name}")
    theirs = postgres.url(name, user=f"reader_{name}")
    with RecordStore(theirs, read_only=True) as store:
        assert len(store.trials()) == 5
    with RecordStore(theirs) as store, refuses(RecordError):
        store.append(store.sessions()[0], trial(9))
    refused(postgres.url(postgres.database().rpartition("/")[2], user=f"reader_{name}"), "GRANT")


def test_a_damaged_row_is_named_and_the_others_are_read(postgres, url):
    with postgres.connect(database_of(url), autocommit=True) as connection:
        connection.execute("ALTER TABLE trials DISABLE TRIGGER ALL")
        connection.execute("""UPDATE trials SET result = replace(result, '"number":2,', '"number":7,')""")
    with RecordStore(url, read_only=True) as store:
        with refuses(RecordError):
            store.trials()
        damaged = []
        assert [record.trial.number for record in store.trials(on_damage=damaged.append)] == [0, 1, 3, 4]
        assert len(damaged) == 1


def test_odd_texts(url):
    with RecordStore(url) as store:
        message = "\0 zero, \udc80, é 漢 \t"
        store.append(store.sessions()[0], trial(5, failed(Outcome.RUN_ERROR, message)))
        assert store.trials()[-1].trial.measurement.message == message.replace("\udc80", "?")


def test_held_by_another(postgres, url):
    with RecordStore(url, timeout_s=0.3) as store, postgres.connect(database_of(url)) as holder:
        session = store.sessions()[0]
        holder.execute("SELECT pg_advisory_xact_lock(1634623860)")
        assert len(store.trials()) == 5
        with refuses(RecordError):
            store.append(session, trial(5))
        holder.rollback()
        store.append(session, trial(5))
        assert len(store.trials()) == 6


def test_a_server_that_stays_away(postgres):
    with RecordStore(postgres.database(), timeout_s=0.5) as store:
        session = session_of(store)
        store.append(session, trial(0))
        postgres.kill()
        try:
            with refuses(RecordError) as caught:
                store.append(session, trial(1))
            assert PASSWORD not in told(caught.value)
        finally:
            postgres.start()
        store.append(session, trial(1))
        assert [record.trial.number for record in store.trials()] == [0, 1]


def test_killed_and_restarted_in_the_middle_of_appends(postgres):
    """Several writers in several processes, the server killed again and again: none lost, none twice, in order."""
    url = postgres.database()
    with RecordStore(url) as store:
        begun = [session_of(store) for _ in range(3)]
    stop, answered = threading.Event(), [[] for _ in begun]

    def write(session, numbers):
        with RecordStore(url, timeout_s=60) as store:
            number = 0
            while not stop.is_set():
                store.append(session, trial(number))
                numbers.append(number)
                number += 1

    writers = [threading.Thread(target=write, args=pair) for pair in zip(begun, answered, strict=True)]
    for one in writers:
        one.start()
    for _ in range(4):
        before = sum(map(len, answered))
        deadline = time.monotonic() + 60
        while sum(map(len, answered)) < before + 20 and time.monotonic() < deadline:
            time.sleep(0.005)
        postgres.kill()
        postgres.start()
    stop.set()
    for one in writers:
        one.join(90)
    with RecordStore(url, read_only=True) as store:
        for session, numbers in zip(begun, answered, strict=True):
            assert len(numbers) > 10
            assert (
                [record.trial.number for record in store.trials(session=session)]
                == numbers
                == list(range(len(numbers)))
            )


def test_an_answer_to_a_commit_that_is_lost(url, monkeypatch):
    """The trial is there, only the answer is not: the second try finds it."""
    import psycopg

    real, lost = psycopg.Connection.commit, []

    def cut(connection):
        real(connection)
        if len(lost) < 2:
            lost.append(connection)
            connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    with RecordStore(url) as store:
        session = store.sessions()[0]
        monkeypatch.setattr(psycopg.Connection, "commit", cut)
        assert store.append(session, trial(5)) == 6
        begun = session_of(store)
        monkeypatch.undo()
        assert len(lost) == 2
        assert [record.trial.number for record in store.trials()] == list(range(6))
        assert store.sessions() == [session, begun]

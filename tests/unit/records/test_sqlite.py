"""Files that cannot be used or written: one clear line that names the file, and nothing is lost."""

import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text as sql

from anatune.errors import RecordError
from anatune.records import sqlite
from anatune.records.schema import APPLICATION_ID, SCHEMA_VERSION
from anatune.records.sqlite import SqliteDatabase
from anatune.records.store import RecordStore
from tests.unit.records.making import MATMUL, session_of, trial
from tests.wording import refuses

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path):
    """Return a record file with 40 trials."""
    with RecordStore(tmp_path / "tuning.sqlite") as store:
        session = session_of(store)
        for number in range(40):
            store.append(session, trial(number))
    return tmp_path / "tuning.sqlite"


def refused(path, *parts, **options):
    """Open `path`, which must fail with one line that names it and has these parts."""
    with pytest.raises(RecordError) as caught:
        RecordStore(path, **options)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    for part in parts:
        assert part in text
    return text


def test_settings_of_the_file(path):
    store = SqliteDatabase(path)
    assert store.read(sql("PRAGMA journal_mode")) == [("wal",)]
    assert store.read(sql("PRAGMA synchronous")) == [(2,)]
    assert store.read(sql("PRAGMA user_version")) == [(SCHEMA_VERSION,)]
    store.close()
    assert os.listdir(path.parent) == [path.name]


def test_rows_are_never_rewritten(path):
    with sqlite3.connect(path) as connection:
        for statement in (
            "UPDATE trials SET time_s = 1",
            "DELETE FROM trials",
            "DELETE FROM sessions",
            "DELETE FROM parts",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
                connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
@pytest.mark.parametrize(
    ("version", "step"), [(SCHEMA_VERSION + 1, "update anatune"), (1, "with the anatune that wrote it")]
)
def test_other_versions(path, options, version, step):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    before = path.read_bytes()
    refused(path, f"schema version {version}", step, **options)
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_files_of_others(tmp_path, options):
    path = tmp_path / "optuna.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE studies (id)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    refused(path, "another program (tables: studies)", "name another file", **options)
    path.write_text("trial,time\n" * 1000)
    refused(path, "no SQLite file", **options)
    assert path.read_text() == "trial,time\n" * 1000
    path.write_bytes(before)
    refused(path, "another program", **options)
    assert os.listdir(tmp_path) == ["optuna.db"]


def test_our_mark_without_tables(tmp_path):
    path = tmp_path / "half.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.close()
    before = path.read_bytes()
    refused(path, "is damaged")
    assert path.read_bytes() == before


def test_empty_files(tmp_path):
    path = tmp_path / "empty.sqlite"
    path.touch()  # what a process leaves that is killed right after making the file
    refused(path, "is empty", read_only=True)
    with RecordStore(path) as store:
        session_of(store)
        assert len(store.sessions()) == 1


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_truncated(path, options):
    whole = path.read_bytes()
    for left in (whole[: len(whole) // 2 + 100], whole[:50]):
        path.write_bytes(left)
        refused(path, "damaged", **options)
        assert path.read_bytes() == left


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_overwritten_pages(path, options):
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page : 4096 * page + 64] = b"\xa5" * 64
    path.write_bytes(data)
    refused(path, "damaged", "recover", **options)
    assert path.read_bytes() == data


def test_a_damaged_schema_is_one_line(path):
    data = path.read_bytes()
    lines = []
    for place in range(data.index(b"CREATE TRIGGER"), data.index(b"CREATE TRIGGER") + 320, 32):
        path.write_bytes(data[:place] + b"SE\x97\xcd" + data[place + 4 :])
        try:
            RecordStore(path, read_only=True).close()
        except RecordError as error:  # bytes within a message of a trigger damage nothing
            lines.append(str(error))
    assert len(lines) >= 5
    assert all("is damaged" in line and "recover" in line and "\n" not in line for line in lines)


def test_a_damaged_row_is_named_and_the_others_are_read(path):
    data = path.read_bytes()
    assert data.count(b'"number":17,') == 1
    path.write_bytes(data.replace(b'"number":17,', b'"number":\xff1,'))
    with RecordStore(path, read_only=True) as store:
        with refuses(RecordError):
            store.trials()
        told = []
        found = list(store.iterate(on_damage=told.append))
        assert [record.trial.number for record in found] == [number for number in range(40) if number != 17]
        assert len(told) == 1
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER parts_UPDATE")
    connection.execute("UPDATE parts SET json = replace(json, 'matmul', 'matmol')")
    connection.commit()
    connection.close()
    with RecordStore(path) as store, refuses(RecordError):
        store.trials()
    told = []
    with RecordStore(path) as store:
        assert store.trials(MATMUL, on_damage=told.append) == []
    assert len(told) == 1


@pytest.mark.parametrize("damage", ["result = CAST(x'ff' AS TEXT)", "result = '{}'", "schedule = '7'", "digest = 'x'"])
def test_the_best_of_those_that_can_be_read(path, damage):
    with RecordStore(path) as store:
        best = store.best(MATMUL)
        others = [record for record in store.trials(outcome="ok") if record.id != best.id]
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER trials_UPDATE")
    connection.execute(f"UPDATE trials SET {damage} WHERE id = ?", (best.id,))
    connection.commit()
    connection.close()
    with RecordStore(path, read_only=True) as store:
        with refuses(RecordError):
            store.best(MATMUL)
        told = []
        found = store.best(MATMUL, on_damage=told.append)
        assert found in others
        assert len(told) == 1
        assert len(store.trials(on_damage=told.append)) == 39


def test_a_damaged_session_is_named_and_the_others_are_read(path):
    with RecordStore(path) as store:
        whole = session_of(store)
        store.append(whole, trial(40))
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER sessions_UPDATE")
    connection.execute("UPDATE sessions SET seed = seed + 1 WHERE number = 1")
    connection.commit()
    connection.close()
    with RecordStore(path, read_only=True) as store:
        with refuses(RecordError):
            store.sessions()
        told = []
        assert store.sessions(on_damage=told.append) == [whole]
        assert len(told) == 1
        assert [record.trial.number for record in store.iterate(on_damage=told.append)] == [40]


def test_places_that_are_no_files(tmp_path):
    refused(tmp_path, "is a folder")
    refused(tmp_path / "none" / "tuning.sqlite", "does not exist", "make this folder")
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "tuning.sqlite", "expected a record file")
    refused(tmp_path / "missing.sqlite", "no such file", "anatune tune", read_only=True)
    assert os.listdir(tmp_path) == ["file"]
    refused(Path("/dev/null"), "no regular file")


def test_odd_names(tmp_path):
    path = tmp_path / "a b%20?mode=ro#1.sqlite"
    with RecordStore(path) as store:
        session_of(store)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("replace", [False, True])
def test_removed_while_in_use(path, replace):
    with RecordStore(path) as store:
        session = store.sessions()[0]
        moved = path.with_name("moved")
        path.rename(moved)
        if replace:
            shutil.copy(moved, path)
        with refuses(RecordError):
            store.append(session, trial(40))


def test_held_by_another(path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with RecordStore(path, timeout_s=0.2) as store:
        session = store.sessions()[0]
        assert len(store.trials()) == 40
        with refuses(RecordError):
            store.append(session, trial(40))
        holder.execute("ROLLBACK")
        store.append(session, trial(40))
        assert len(store.trials()) == 41
    holder.close()


def test_interrupted_in_a_transaction(path):
    store = SqliteDatabase(path)
    row = sql("INSERT INTO parts VALUES ('k', 'workload', 'n', '{}')")
    found = sql("SELECT * FROM parts WHERE key = 'k'")

    def interrupted(connection):
        connection.execute(row)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(interrupted, "nothing")
    assert store.read(found) == []
    store.write(lambda connection: connection.execute(row), "nothing")
    assert len(store.read(found)) == 1
    store.close()


def test_codes_of_errors_without_codes():
    """Python 3.10 gives only SQLite's text."""
    assert sqlite._code(sqlite3.OperationalError("database or disk is full")) == 13
    assert sqlite._code(sqlite3.OperationalError("database is locked")) == 5
    assert sqlite._code(sqlite3.DatabaseError("file is not a database")) == 26
    assert sqlite._code(sqlite3.OperationalError("near x: syntax error")) == 0


# ---- disks that are full, limited, read-only --------------------------------------------------------------------

FILL = """
import sys
from anatune.errors import RecordError
from anatune.records.store import RecordStore
from tests.unit.records.making import ok, session_of, trial
number = 0
with RecordStore(sys.argv[1]) as store:
    session = session_of(store)
    try:
        for number in range(10_000):
            store.append(session, trial(number, ok(times=tuple(i * 1.1 for i in range(200)))))
    except RecordError as error:
        print(number, error)
    recorded = [record.trial.number for record in store.trials()]
    assert recorded == list(range(number)), (number, recorded)
    if len(sys.argv) > 2:  # space again: the same store goes on
        import os
        os.remove(sys.argv[2])
        store.append(session, trial(number))
with RecordStore(sys.argv[1]) as store:
    print(len(store.trials()))
"""


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def in_namespace(script):
    """Run a shell script in a mount namespace of its own; skip where that is not allowed."""
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-m", "-r", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")
    return run([unshare, "-m", "-r", "sh", "-ec", script])


def test_full_disk(tmp_path):
    (tmp_path / "fill.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{FILL}")
    folder = tmp_path / "small"
    folder.mkdir()
    first, second = in_namespace(
        f"mount -t tmpfs -o size=1m tmpfs '{folder}'; head -c 200000 /dev/zero > '{folder}/ballast'; "
        f"'{sys.executable}' '{tmp_path}/fill.py' '{folder}/tuning.sqlite' '{folder}/ballast'"
    )
    number, _, text = first.partition(" ")
    assert int(number) > 5
    pattern = rf"{re.escape(str(folder))}/tuning\.sqlite: the disk is full \(\d+ KiB free\), trial {number} was not"
    assert re.match(pattern, text), text
    assert int(second) == int(number) + 1


def test_no_space_at_all(tmp_path):
    (tmp_path / "fill.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{FILL}")
    folder = tmp_path / "small"
    folder.mkdir()
    lines = in_namespace(
        f"mount -t tmpfs -o size=64k tmpfs '{folder}'; head -c 65536 /dev/zero > '{folder}/ballast' || true; "
        f"'{sys.executable}' '{tmp_path}/fill.py' '{folder}/tuning.sqlite' 2>&1 | tail -1"
    )
    assert "anatune.errors.RecordError: " in lines[0]
    assert "tuning.sqlite: the disk is full" in lines[0]


def test_limited_file_size(tmp_path):
    lines = run(
        [sys.executable, "-c", FILL, str(tmp_path / "tuning.sqlite")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
    )
    number, _, text = lines[0].partition(" ")
    assert int(number) > 5
    assert f"trial {number} was not recorded; everything recorded before is kept" in text
    assert "ulimit -f" in text
    assert lines[1] == number


READ = """
import sys
sys.path.insert(0, sys.argv[2])
from anatune.errors import RecordError
from anatune.records.store import RecordStore
with RecordStore(sys.argv[1], read_only=True) as store:
    print(len(store.trials()))
try:
    RecordStore(sys.argv[1])
except RecordError as error:
    print(error)
try:
    RecordStore(sys.argv[1] + ".new")
except RecordError as error:
    print(error)
"""


def test_folder_that_cannot_be_written(path, tmp_path):
    (tmp_path / "read.py").write_text(READ)
    count, old, new = in_namespace(
        f"mount -t tmpfs tmpfs /mnt; cp '{path}' '{tmp_path}/read.py' /mnt; mount -o remount,ro /mnt; "
        f"'{sys.executable}' -B /mnt/read.py /mnt/tuning.sqlite '{ROOT}'"
    )
    assert count == "40"
    assert old.startswith("/mnt/tuning.sqlite: the file or its folder cannot be written")
    assert new.startswith("/mnt/tuning.sqlite.new: the file or its folder cannot be written")
    assert "name another file" in new

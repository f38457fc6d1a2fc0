"""``anatune`` with records on a PostgreSQL server: as with a file, and no password comes back."""

import json
import re

import pytest

from anatune.records.store import RecordStore
from tests.postgres import PASSWORD, USER
from tests.unit.records.making import ok, session_of, trial


@pytest.fixture
def url(postgres):
    """Return the URL of a store with 3 trials."""
    found = postgres.database()
    with RecordStore(found) as store:
        session = session_of(store)
        for number in range(3):
            store.append(session, trial(number, ok(worker="box2" if number else "")))
    return found


def test_as_with_a_file(anatune, postgres, url, tmp_path):
    for words in (["list"], ["list", "--sessions"], ["best"], ["export"], ["list", "--json"]):
        done = anatune("records", *words, "--records", url)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout
        assert PASSWORD not in done.stdout
    short = f"postgres://{USER}@127.0.0.1:{postgres.port}/{url.rpartition('/')[2]}"
    done = anatune("records", "list", short, "matmul", "64x48x32", PGPASSWORD=PASSWORD)
    lines = done.stdout.splitlines()  # those below a trial, and further ones of a session, are indented
    assert sum(not line.startswith("  ") for line in lines) == 5
    assert "worker" in done.stdout
    done = anatune("records", "list", "--records", url, "--worker", "box2", "--json")
    assert [row["number"] for row in json.loads(done.stdout)] == [1, 2]
    assert {row["worker"] for row in json.loads(done.stdout)} == {"box2"}
    done = anatune("records", "export", "--records", url, "--worker", "nobody", "--format", "csv")
    assert len(done.stdout.splitlines()) == 1
    (tmp_path / "lines.jsonl").write_text(anatune("records", "export", "--records", url).stdout)
    done = anatune("records", "import", tmp_path / "lines.jsonl", "--records", postgres.database())
    assert "added 1 sessions and 3 trials" in done.stdout
    assert PASSWORD not in done.stdout


def test_merge(anatune, postgres, url, tmp_path):
    file, third = tmp_path / "own.sqlite", postgres.database()
    with RecordStore(file) as store:
        store.append(session_of(store), trial(0))
    done = anatune("records", "merge", file, url, third)
    assert done.returncode == 0
    own, theirs = done.stdout.splitlines()
    assert re.fullmatch(rf"postgresql://\S+: added 1 sessions and 1 trials from {re.escape(str(file))}", own)
    assert re.fullmatch(r"postgresql://\S+: added 1 sessions and 3 trials from postgresql://\S+", theirs)
    done = anatune("records", "merge", third, file, "--json")
    (told,) = json.loads(done.stdout)
    assert (told["sessions"], told["trials"], told["known"]) == (1, 3, 1)
    assert PASSWORD not in done.stdout
    assert "0 sessions and 0 trials from" in anatune("records", "merge", third, file).stdout
    done = anatune("records", "merge", file, file)
    assert (done.returncode, done.stdout) == (1, "")
    assert "merged into itself" in done.stderr
    done = anatune("records", "merge", tmp_path / "none.sqlite", tmp_path / "new.sqlite")
    assert done.returncode == 1
    assert not (tmp_path / "new.sqlite").exists()
    assert anatune("records", "merge", file).returncode == 2


def test_no_password_in_what_is_printed(anatune, postgres, url):
    wrong = postgres.url(url.rpartition("/")[2], password="s3cret-wrong")
    for command in (
        ["records", "list"], ["records", "best"], ["records", "export"], ["records", "train"],
        ["export", "matmul", "64x48x32"],
    ):  # fmt: skip
        done = anatune(*command, "--records", wrong)
        assert done.returncode == 1, command
        assert done.stderr.count("\n") == 1
        assert re.match(r"error: postgresql://tuner@127.0.0.1:\d+/", done.stderr)
        assert "s3cret" not in done.stdout + done.stderr
    for bad in (url.replace("@", "/x@"), "mysql://me:s3cret@host/db", "postgresql://me:s3cret/db"):
        for words in (["list", "--records", bad], ["list", bad], ["merge", bad, "x.sqlite"]):
            done = anatune("records", *words)
            assert done.returncode == 2
            assert "s3cret" not in done.stdout + done.stderr
            assert done.stderr.count("\n") == 1

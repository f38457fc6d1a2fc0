"""Names of places: files, servers, and what is neither. No password of a URL comes back."""

import pickle
from pathlib import Path

import pytest

from anatune.errors import RecordError
from anatune.records.place import ServerAddress, is_missing, record_place
from tests.wording import refuses


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://", "postgresql://"),
        ("postgres://me:s3cret@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgresql+psycopg://me:s3cret@host/db", "postgresql://me@host/db"),
        ("POSTGRESQL://me:s3cr%40t@host/db?sslmode=require", "postgresql://me@host/db"),
        ("postgresql://:s3cret@host/db", "postgresql://host/db"),
        ("postgresql:///db?host=/run/socket&password=s3cret&port=1", "postgresql:///db?host=/run/socket&port=1"),
        ("postgresql://?service=lab&sslpassword=s3cret", "postgresql://?service=lab"),
        ("postgresql://me:s3cret@one:1,two:2/db", "postgresql://me@one:1,two:2/db"),
        ("postgresql://me:s3cret@[::1]:5432/db", "postgresql://me@[::1]:5432/db"),
        ("postgresql://host/db?pasword=s3cret", "postgresql://host/db"),
    ],
)
def test_servers(url, shown):
    found = record_place(url)
    assert (str(found), repr(found)) == (shown, f"ServerAddress({shown!r})")
    assert "s3cr" not in f"{found} {found!r}"
    again = pickle.loads(pickle.dumps(found))
    assert again == found == record_place(found)
    assert len({again, found}) == 1
    assert again.reveal() == "postgresql://" + url.partition("://")[2]
    assert not is_missing(found)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3/cret@host/db", "postgresql://me:s3@cret@host/db", "postgresql://me:s3cret/db",
        "postgresql://me:s3?cret@host/db", "postgresql://me:5?s3cret@host/db", "postgresql://me:5/s3cret@host/db",
        "postgresql://me:s3 cret@host/db", "postgresql://me:s3cret\n@host/db", "postgresql:/me:s3cret@host/db",
        "mysql://me:s3cret@host/db", "sqlite:///s3cret.sqlite",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_not_repeated(url):
    with pytest.raises(RecordError) as caught:
        record_place(url)
    text = str(caught.value)
    assert "cret" not in text
    assert "expected" in text or "pass it as a string" in text
    assert "\n" not in text


def test_what_the_server_says_is_cleaned():
    address = ServerAddress("postgresql://me:s3cr%40t@host/db?sslpassword=0ther")
    assert address.hide_secrets("s3cr@t s3cr%40t 0ther fine") == "*** *** *** fine"
    assert ServerAddress("postgresql://me@host/db").hide_secrets("fine") == "fine"


def test_files(tmp_path):
    assert record_place("tuning.sqlite") == Path("tuning.sqlite")
    assert record_place(tmp_path / "a b%20?mode=ro#1.sqlite").name == "a b%20?mode=ro#1.sqlite"
    assert is_missing(tmp_path / "new.sqlite")
    assert not is_missing(tmp_path)
    assert not is_missing(tmp_path / "none" / "new.sqlite")  # opening it says why
    for name in (":memory:", "file:x"):
        with refuses(RecordError):
            record_place(name)
    with refuses(RecordError):
        record_place(Path("postgresql://me:s3cret@host/db"))
    with refuses(RecordError):
        record_place(7)

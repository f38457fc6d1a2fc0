"""Certificates of a lab: those of the page can be used, and what is said of what cannot be."""

import datetime
import shutil
import stat

import pytest

pytest.importorskip("cryptography", reason="pip install '.[cluster]'")

from anatune.errors import SecurityError
from anatune.fleet.cluster.certificates import CERTIFICATE_FILES, read_certificates
from tests.certificates import make_certificates
from tests.wording import check_texts, refuses

UTC = datetime.timezone.utc


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("made") / "tls", days=30)


def test_a_set_is_three_files_and_the_key_is_its_owners_alone(made):
    assert sorted(path.name for path in made.iterdir()) == sorted(CERTIFICATE_FILES)
    assert stat.S_IMODE((made / "key.pem").stat().st_mode) == 0o600
    assert b"PRIVATE KEY" not in (made / "ca.pem").read_bytes()
    assert [path.name for path in made.parent.iterdir()] == [made.name], "the authority's key is not kept"


def test_the_end_is_read_back(made):
    left = read_certificates(made).expires - datetime.datetime.now(UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)


@pytest.mark.parametrize("name", CERTIFICATE_FILES)
def test_a_file_that_is_missing(made, tmp_path, name):
    shutil.copytree(made, tmp_path / "tls")
    (tmp_path / "tls" / name).unlink()
    with refuses(SecurityError):
        read_certificates(tmp_path / "tls")


@pytest.mark.parametrize("name", CERTIFICATE_FILES)
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff" * 50, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_that_is_damaged(made, tmp_path, name, content):
    shutil.copytree(made, tmp_path / "tls")
    (tmp_path / "tls" / name).write_bytes(content)
    with refuses(SecurityError):
        read_certificates(tmp_path / "tls")


def test_no_folder(tmp_path):
    with refuses(SecurityError):
        read_certificates(tmp_path / "none")
    with refuses(SecurityError):
        read_certificates(b"x")


def test_files_of_two_sets(made, tmp_path):
    other = tmp_path / "other"
    make_certificates(other)
    for names in (["key.pem"], ["key.pem", "cert.pem"]):
        mixed = tmp_path / names[-1]
        shutil.copytree(made, mixed)
        for name in names:
            shutil.copy(other / name, mixed / name)
        with refuses(SecurityError):
            read_certificates(mixed)


def test_before_and_after_its_time(made, caplog):
    now = datetime.datetime.now(UTC)
    read_certificates(made, now=now + datetime.timedelta(days=10))
    assert not caplog.messages
    read_certificates(made, now=now + datetime.timedelta(days=20))
    assert "these certificates expire on" in caplog.messages[0]
    with refuses(SecurityError):
        read_certificates(made, now=now + datetime.timedelta(days=31))
    with refuses(SecurityError):
        read_certificates(made, now=now - datetime.timedelta(days=2))


def test_a_key_that_others_can_read_is_said(made, tmp_path, caplog):
    shutil.copytree(made, tmp_path / "tls")
    (tmp_path / "tls" / "key.pem").chmod(0o640)
    read_certificates(tmp_path / "tls")
    check_texts(caplog.messages[:1])

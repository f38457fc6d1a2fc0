"""Files that a user names: read, or refused in words, never waited for."""

import os
import socket
import sys

import pytest

from anatune.cli import main
from anatune.files import open_file, read_file, read_lines, reason, replace_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are POSIX's")


def refused(path, **others):
    with pytest.raises(OSError) as caught:  # noqa: PT011
        read_file(path, **others)
    return reason(caught.value)


def test_regular_files(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo \xc3\xa9\nthree")
    assert read_file(path) == read_file(str(path)) == path.read_bytes()
    assert list(read_lines(path)) == ["one\n", "two é\n", "three"]
    assert list(read_lines(path, most_bytes=3)) == ["one", "\n", "two", " é", "\n", "thr", "ee"]
    with open_file(path) as stream:
        assert stream.read(3) == b"one"


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "is a pipe, expected a regular file"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        assert refused(tmp_path / "s") == "is a socket, expected a regular file"
    assert refused("/dev/zero") == "is a device, expected a regular file"
    assert refused(tmp_path) == "is a folder, expected a regular file"


def test_paths_that_name_nothing(tmp_path):
    assert refused(tmp_path / "none") == "no such file or directory"
    assert "name too long" in refused("a" * 300)
    assert "null byte" in refused("a\0b")
    assert "is no path" in refused("\ud800")
    assert refused("") == "no such file or directory"
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in refused(tmp_path / "loop")


def test_files_that_are_too_large(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    assert refused(path) == "has 1,099,511,627,776 bytes, expected at most 67,108,864"
    assert "expected at most 10" in refused("/proc/self/status", most_bytes=10)  # says that it has 0 bytes


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def pieces():
        yield b"new"
        raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        replace_file(path, pieces())
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])
    replace_file(path, (b"n", b"ew"))
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["file"])
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "file", b"")


def test_a_written_file_has_the_rights_of_any_other(tmp_path):
    replace_file(tmp_path / "one", b"")
    (tmp_path / "two").write_bytes(b"")
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "two").stat().st_mode


@pytest.mark.parametrize(
    "words",
    [
        "plan --hw {}/x.toml matmul 8x8x8",
        "prune --hw {}/x.toml matmul 8x8x8",
        "tune --hw {}/x.toml matmul 8x8x8",
        "tune --manifest {}/x",
        "tune --hw host --records {}/x --output {}/out matmul 8x8x8",
        "export {}/x",
        "export --records {}/x matmul 8x8x8",
        "export --hw {}/x.toml matmul 8x8x8",
        "hw show {}/x.toml",
        "hw check {}/x",
        "records list {}/x",
        "records best {}/x",
        "records export {}/x",
        "records train {}/x",
        "records import {}/x --records {}/new",
        "records import {}/x --hw rtx3090 --records {}/new",
        "plan --hw rtx3090 --model {} matmul 8x8x8",
    ],
)
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
def test_commands_do_not_wait_for_what_is_no_file(tmp_path, capsys, words, kind):
    for name in ("x", "x.toml", "card.json"):
        path = tmp_path / name
        if kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
    assert main.main(words.format(*[tmp_path] * 3).split()) == 1
    captured = capsys.readouterr()
    assert captured.err.count("error: ") == captured.err.count("\n") - captured.err.count("note: ") == 1
    assert any(
        text in captured.err + captured.out for text in (kind, "no regular file", "not a directory", "no folder")
    )

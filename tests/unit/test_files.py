"""Files that a user names: read, or refused in words, never waited for."""

import os
import random
import socket
import stat
import sys
import threading
import time

import pytest

from anatune.cli import main
from anatune.files import (
    _PIECE_BYTES,
    Output,
    OutputKind,
    check_folder,
    make_folder,
    make_key_check,
    open_file,
    read_file,
    read_lines,
    reason,
    replace_file,
    replace_folder,
)
from tests.wording import refuses

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
    assert "is not a valid path" in refused("\ud800")
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
        text in captured.err + captured.out
        for text in (kind, "no regular file", "not a directory", "no folder", "expected a folder")
    )


# ---- outputs ----------------------------------------------------------------------------------------------------

OURS = OutputKind("one of ours", lambda path: path.read_bytes().startswith(b"ours"))


def not_written(path, kind=OURS):
    with pytest.raises(OSError) as caught:  # noqa: PT011
        Output(path, kind).write(b"ours, new")
    return reason(caught.value)


@pytest.mark.parametrize("size", [0, 1, _PIECE_BYTES, 2 * _PIECE_BYTES + 3])
def test_content_of_any_size_is_written_whole(tmp_path, size):
    content = random.Random(size).randbytes(size)
    for number, pieces in enumerate((content, (memoryview(content),), (b"a", content, memoryview(content)))):
        replace_file(tmp_path / str(number), pieces)
        expected = pieces if isinstance(pieces, bytes) else b"".join(pieces)
        assert (tmp_path / str(number)).read_bytes() == expected


def test_an_output_is_new_empty_or_replaced_by_its_like(tmp_path):
    path = tmp_path / "file"
    for before in (None, b"", b"ours, old"):
        if before is not None:
            path.write_bytes(before)
        target = Output(path, OURS)
        assert (path.read_bytes() if path.exists() else None) == before  # looked at only
        target.write((b"ours, ", b"new"))
        assert (path.read_bytes(), os.listdir(tmp_path)) == (b"ours, new", ["file"])


def test_an_output_takes_no_other_file_s_place(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"yours")
    assert not_written(path).startswith("is something else, expected a new file or one of ours; name another place")
    path.write_bytes(b"\xff[")
    assert "something else" in not_written(path, OutputKind("JSON", make_key_check("a")))
    path.write_bytes(b"[" * 100_000)
    assert "something else" in not_written(path, OutputKind("JSON", make_key_check("a")))
    (tmp_path / "link").symlink_to(path)
    assert "something else" in not_written(tmp_path / "link")
    assert path.read_bytes() == b"[" * 100_000
    target = Output(tmp_path / "late", OURS)
    (tmp_path / "late").write_bytes(b"yours")  # while the answer was searched for
    with pytest.raises(FileExistsError):
        target.write(b"ours")
    assert (tmp_path / "late").read_bytes() == b"yours"


def test_an_output_follows_links(tmp_path):
    (tmp_path / "target").write_bytes(b"ours, old")
    for name, target in (("link", "target"), ("dangling", "made")):
        (tmp_path / name).symlink_to(target)
        Output(tmp_path / name, OURS).write(b"ours, new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_bytes() == b"ours, new"


def test_where_no_output_can_be(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not_written(tmp_path / "pipe") == "is a pipe that nobody reads; start its reader first"
    assert not_written(tmp_path) == "is a folder, expected the name of a file"
    assert "none does not exist; make it" in not_written(tmp_path / "none" / "file")
    assert not_written("/dev/full") == "no space left on device"
    assert "null byte" in not_written("a\0b")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        assert not_written(tmp_path / "s") == "is a socket, expected the name of a file"


def test_a_pipe_is_written_to_not_replaced(tmp_path):
    path, found = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: found.append(path.read_text()), daemon=True)
    reader.start()
    while True:
        try:
            target = Output(path, OURS)
            break
        except OSError:  # the reader has not begun
            time.sleep(0.01)
    target.write((b"a", b"b"))
    reader.join(10)
    assert found == ["ab"]
    assert stat.S_ISFIFO(path.stat().st_mode)
    Output("/dev/null", OURS).write(b"ab")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the system lets root write everywhere")
def test_what_may_not_be_written(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot be written to" in not_written(tmp_path / "locked" / "file")
    (tmp_path / "kept").write_bytes(b"ours, old")
    (tmp_path / "kept").chmod(0o400)
    assert "something else" in not_written(tmp_path / "kept")


def test_a_folder_is_replaced_by_its_like_as_a_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "folder"
    own = lambda _, names: set(names) & {"a"}  # noqa: E731
    for text in ("first", "second"):
        check_folder(folder, "ours", own)
        with replace_folder(folder) as made:
            (made / "a").write_text(text)
        assert ((folder / "a").read_text(), os.listdir(tmp_path)) == (text, ["folder"])
    with pytest.raises(RuntimeError), replace_folder(folder) as made:  # noqa: PT012
        (made / "a").write_text("third")
        raise RuntimeError
    assert ((folder / "a").read_text(), os.listdir(tmp_path)) == ("second", ["folder"])
    (tmp_path / "link").symlink_to(folder)
    with replace_folder(tmp_path / "link") as made:
        (made / "a").write_text("fourth")
    assert (folder / "a").read_text() == "fourth"
    (folder / "notes.txt").touch()
    with refuses(FileExistsError):
        check_folder(folder, "ours", own)
    for place, said in ((folder / "a", "is not a folder"), (tmp_path / "none" / "x", "does not exist; make it")):
        with pytest.raises(OSError, match=said):
            check_folder(place, "ours", own)
        with pytest.raises(OSError, match=said):
            make_folder(place)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc, which nobody can write to")
def test_a_place_that_root_cannot_write_to_either_is_refused_before_the_work():
    for look in (
        lambda: check_folder("/proc/x", "ours", lambda _, names: names),
        lambda: check_folder("/proc/self", "ours", lambda _, names: names),
        lambda: make_folder("/proc/x"),
        lambda: make_folder("/proc/self"),
        lambda: Output("/proc/x", OutputKind("ours", lambda _: True)),
    ):
        with pytest.raises(PermissionError, match=r"the folder.* cannot be written to; name another"):
            look()

"""Entries of caches: the content that was written under a key, or nothing, whatever happened to the files."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatune.disk_cache import DiskCache, sources_of

KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
MOST_BYTES = 1 << 20


def path_of(cache, key):
    return cache.folder / key[:2] / f"{key}{cache._suffix}"


def swap(first, second, _):
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def copy(first, second, _):
    shutil.copy(first, second)


def cut(first, _, place):
    first.write_bytes(first.read_bytes()[: place % max(1, first.stat().st_size)])


def lengthen(first, _, place):
    first.write_bytes(first.read_bytes() + bytes(1 + place % 40))


def flip_a_bit(first, _, place):
    content = bytearray(first.read_bytes())
    content[place % len(content)] ^= 1 << place % 8
    first.write_bytes(content)


def write_as_before(first, second, _):
    """Write another entry in the first format, whose digest knew no key."""
    payload = second.read_bytes()[32:]
    first.write_bytes(hashlib.sha256(payload).digest() + payload)


def take_from_another_kind(first, second, _):
    """Put the entry of a cache of another kind there, of the same key."""
    other = DiskCache(first.parents[1] / "others", ".other", MOST_BYTES)
    other.write(first.stem, second.read_bytes()[32:])
    shutil.copy(path_of(other, first.stem), first)


def exchange_for(make):
    def exchange(first, _, place):
        first.unlink()
        make(first)

    return exchange


DAMAGES = [
    swap, copy, cut, lengthen, flip_a_bit, write_as_before, take_from_another_kind, exchange_for(Path.mkdir),
    exchange_for(lambda path: path.symlink_to("nowhere")), exchange_for(lambda path: path.write_bytes(b"")),
    *([exchange_for(os.mkfifo)] if hasattr(os, "mkfifo") else []),
]  # fmt: skip


@given(
    contents=st.lists(st.binary(max_size=70), min_size=len(KEYS), max_size=len(KEYS)),
    damages=st.lists(
        st.tuples(
            st.sampled_from(DAMAGES),
            st.sampled_from(KEYS),
            st.sampled_from(KEYS),
            st.integers(min_value=0, max_value=999),
        ),
        max_size=4,
    ),
)
def test_an_entry_is_what_was_written_under_its_key_or_none(tmp_path_factory, contents, damages):
    cache = DiskCache(tmp_path_factory.mktemp("cache"), ".entry", MOST_BYTES)
    written = dict(zip(KEYS, contents, strict=True))
    for key, content in written.items():
        cache.write(key, content[:3], memoryview(content)[3:])
    touched = set()
    for damage, first, second, place in damages:
        paths = path_of(cache, first), path_of(cache, second)
        if first != second and all(path.is_file() and path.stat().st_size for path in paths):
            damage(*paths, place)
            touched |= {first, second}
    for key, content in written.items():
        assert cache.read(key) in ((None, content) if key in touched else (content,))
        cache.write(key, content)
        if not path_of(cache, key).is_dir():
            assert cache.read(key) == content


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_noticed(tmp_path, damage):
    cache = DiskCache(tmp_path, ".entry", MOST_BYTES)
    for key in KEYS:
        cache.write(key, key.encode())
    damage(path_of(cache, KEYS[0]), path_of(cache, KEYS[1]), 17)
    entries = [cache.read(key) for key in KEYS[:2]]
    assert None in entries
    assert set(entries) <= {None, KEYS[0].encode(), KEYS[1].encode()}
    assert entries[0] in (None, KEYS[0].encode())
    assert entries[1] in (None, KEYS[1].encode())


def test_a_larger_entry_than_the_folder_may_hold_is_not_read(tmp_path):
    DiskCache(tmp_path, ".entry", MOST_BYTES).write(KEYS[0], bytes(500))
    assert DiskCache(tmp_path, ".entry", 499).read(KEYS[0]) is None
    assert DiskCache(tmp_path, ".entry", 500).read(KEYS[0]) == bytes(500)


@pytest.mark.parametrize("kind", ["a file", "nothing may be written", "under a file", "no folder"])
def test_where_nothing_can_be_kept_nothing_is_raised(tmp_path, kind):
    folder = tmp_path / "cache"
    if kind == "a file":
        folder.write_bytes(b"")
    elif kind == "nothing may be written":
        folder.mkdir(mode=0o500)
    elif kind == "under a file":
        (tmp_path / "file").write_bytes(b"")
        folder = tmp_path / "file" / "cache"
    cache = DiskCache(None if kind == "no folder" else folder, ".entry", MOST_BYTES)
    cache.write(KEYS[0], b"content")
    cache.clean()
    assert cache.read(KEYS[0]) in (None, b"content")  # who may write anywhere writes there, too


WRITER = """
import sys
from pathlib import Path
from anatune.disk_cache import DiskCache, sources_of
cache = DiskCache(Path(sys.argv[1]), ".entry", 1 << 20)
for number in range(60):
    key = f"{number % 3:064x}"
    cache.write(key, key.encode() * 50, sys.argv[2].encode())
    content = cache.read(key)
    assert content is None or content[:-1] == key.encode() * 50, content
"""


def test_writers_at_the_same_time(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], env=environment, stderr=subprocess.PIPE)
        for name in "abc"
    ]
    with contextlib.ExitStack() as stack:
        for process in running:
            stack.enter_context(process)
        assert [process.communicate()[1].decode() for process in running] == ["", "", ""]
    assert sorted(path.suffix for path in tmp_path.glob("*/*")) == [".entry"] * 3


def test_sources_of_a_folder_that_moved_are_an_error():
    """Else a digest of nothing would answer with what was compiled from other sources."""
    assert sources_of("codegen") != sources_of("search")
    with pytest.raises(FileNotFoundError, match="no folder of anatune"):
        sources_of("codegen", "compiling")

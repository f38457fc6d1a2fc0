import ctypes
import os
import platform
import subprocess
import sys

import pytest

pytest.importorskip("tvm")

from anatune.fleet.boards.errands import PAGE_BYTES, build_errands

HERE = platform.machine()
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or HERE not in ("x86_64", "aarch64"), reason="errands are for Linux"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("errands") / "errands.so"
    build_errands(HERE, path)
    return path


@pytest.fixture(scope="module")
def errands(library):
    import tvm

    return tvm.runtime.load_module(str(library))


def test_memory_is_given_filled_and_told_apart(errands):
    address = errands["allocate"](4096)
    assert address
    assert address % PAGE_BYTES == 0
    errands["fill"](address, 0xFF, 4096)
    memory = (ctypes.c_ubyte * 4096).from_address(address)
    assert bytes(memory) == b"\xff" * 4096
    before = errands["digest"](address, 512)
    for place in (0, 1777, 4095):
        memory[place] ^= 1
        assert errands["digest"](address, 512) != before
        memory[place] ^= 1
    assert errands["digest"](address, 512) == before
    errands["fill"](address + 8, 0, 16)
    assert bytes(memory)[:32] == b"\xff" * 8 + b"\0" * 16 + b"\xff" * 8
    errands["release"](address)


def test_more_memory_than_there_is(errands):
    assert errands["allocate"](1 << 60) == 0


def test_files_are_read_in_parts(errands, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    path = ctypes.create_string_buffer(str(file).encode())
    content = ctypes.create_string_buffer(16)
    read = lambda start, count: errands["read"](ctypes.addressof(path), ctypes.addressof(content), start, count)  # noqa: E731
    assert read(0, 16) == 10
    assert content.raw[:10] == b"0123456789"
    assert (read(8, 4), content.raw[:2]) == (2, b"89")
    assert read(10, 4) == 0
    file.unlink()
    assert read(0, 16) == -1


def test_variables_and_the_processor(errands, monkeypatch):
    name, value = (ctypes.create_string_buffer(text) for text in (b"ANATUNE_ERRAND", b"7"))
    assert errands["variable"](ctypes.addressof(name), ctypes.addressof(value)) == 0
    found = ctypes.CDLL(None).getenv
    found.restype = ctypes.c_char_p
    assert found(b"ANATUNE_ERRAND") == b"7"
    assert errands["capability"](6) == os.sysconf("SC_PAGE_SIZE")  # AT_PAGESZ
    assert (errands["processor"]() != 0) is (HERE == "aarch64")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["time.sleep(30)", "os.kill(os.getpid(), 11)", "ctypes.string_at(0)", "os.abort()"])
def test_a_limited_process_ends_with_success_whatever_ends_it(library, end):
    script = f"import ctypes, os, time, tvm; tvm.runtime.load_module({str(library)!r})['limit'](1); {end}"
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_is_generated_for_the_other_processor(tmp_path):
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[HERE]
    from anatune.errors import BuildError

    try:
        build_errands(other, tmp_path / "errands.so")
    except BuildError as error:
        pytest.skip(str(error))
    number = {"x86_64": 0x3E, "aarch64": 0xB7}[other]
    assert int.from_bytes((tmp_path / "errands.so").read_bytes()[18:20], "little") == number

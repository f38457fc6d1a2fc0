"""Cubins on disk: found again, damaged ones rebuilt, never too many, many processes at once."""

import os
import subprocess
import sys

import pytest

from anatune.codegen.cuda import build_cache
from anatune.codegen.cuda.build_cache import BuildCache, cache_key, compile_kernel, default_folder
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
from anatune.errors import BuildError
from anatune.templates.gpu.kernel import CudaKernel
from tests.wording import refuses

KERNEL = CudaKernel("", "main_kernel", "source", "sm_86", (), "C", 1, 64)
CUBIN = Cubin("main_kernel", "sm_86", bytes(range(256)) * 40, CompilerFacts(40, 1024), "log")


@pytest.fixture
def compiled(monkeypatch):
    """What was compiled, by a compiler that always says the same."""
    sources = []

    def compile_cuda(source, arch, *, name):
        sources.append(source)
        return CUBIN

    monkeypatch.setattr(build_cache, "compile_cuda", compile_cuda)
    monkeypatch.setattr(build_cache, "compiler_version", lambda: "NVRTC 0")
    return sources


def entries(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_compiled_once(tmp_path, compiled):
    cache = BuildCache(tmp_path / "made")
    assert compile_kernel(KERNEL, cache) == CUBIN
    assert compile_kernel(KERNEL, BuildCache(tmp_path / "made")) == CUBIN
    assert compiled == ["source"]
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize("damage", [b"", b"short", lambda content: content[:-1], lambda content: b"x" + content[1:]])
def test_damaged_entry_is_rebuilt(tmp_path, compiled, damage):
    cache = BuildCache(tmp_path)
    compile_kernel(KERNEL, cache)
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole) if callable(damage) else damage)
    assert compile_kernel(KERNEL, cache) == CUBIN
    assert len(compiled) == 2
    assert entry.read_bytes() == whole


def test_key_holds_everything(compiled, monkeypatch):
    keys = {cache_key("source", "sm_86", "main_kernel"), cache_key("source", "sm_89", "main_kernel")}
    keys |= {cache_key("source ", "sm_86", "main_kernel"), cache_key("source", "sm_86", "other")}
    monkeypatch.setattr(build_cache, "compiler_version", lambda: "NVRTC 1")
    keys.add(cache_key("source", "sm_86", "main_kernel"))
    monkeypatch.setattr(build_cache, "FLAGS", ("--use_fast_math",))
    keys.add(cache_key("source", "sm_86", "main_kernel"))
    assert len(keys) == 6


def test_failures_are_not_kept(tmp_path, compiled, monkeypatch):
    def refuse(source, arch, *, name):
        raise BuildError("no")

    monkeypatch.setattr(build_cache, "compile_cuda", refuse)
    with refuses(BuildError):
        compile_kernel(KERNEL, BuildCache(tmp_path))
    assert entries(tmp_path) == []


def test_oldest_go_first(tmp_path):
    entry_bytes = len(CUBIN.image) + 200
    cache = BuildCache(tmp_path, most_bytes=10 * entry_bytes)
    keys = [f"{number:064x}" for number in range(12)]
    for number, key in enumerate(keys):
        cache.store(key, CUBIN)
        (path,) = tmp_path.rglob(f"{key}.cubin")
        os.utime(path, (number, number))
    assert cache.load(keys[0]) == CUBIN  # used now: no longer the oldest
    cache.clean()
    left = {path.stem for path in entries(tmp_path)}
    assert 6 <= len(left) <= 9
    assert keys[0] in left
    assert keys[1] not in left
    assert keys[-1] in left


def test_folder_that_cannot_be_used(tmp_path, compiled):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for cache in (BuildCache(blocked), BuildCache(None)):
        assert compile_kernel(KERNEL, cache) == CUBIN
        assert cache.load("0" * 64) is None
    assert len(compiled) == 2


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "anatune" / "cubins"


_WRITER = """
import sys
from pathlib import Path
from anatune.codegen.cuda.build_cache import BuildCache
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
cache = BuildCache(Path(sys.argv[1]), most_bytes=200_000)
for number in range(60):
    key = f"{number % 7:064x}"
    cache.store(key, Cubin("k", "sm_86", bytes([number % 7]) * 30_000, CompilerFacts(number % 7)))
    found = cache.load(key)
    assert found is None or found.image == bytes([found.facts.registers]) * 30_000, number
    cache.clean()
"""


def test_many_processes(tmp_path):
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    processes = [subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) for _ in "123"]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert not list(tmp_path.rglob("*.part"))

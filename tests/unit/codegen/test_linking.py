"""What TVM and the linker say, in one line."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from anatune.codegen import linking
from anatune.codegen.linking import link_library
from anatune.errors import BuildError
from tests.wording import refuses


@pytest.mark.parametrize(
    "said",
    [
        "Compilation error:\n/usr/bin/ld: final link failed: No space left on device\ncollect2: error\n\n"
        "Command line: g++ -shared",
        "ld: unknown symbol\nCommand line: g++ -shared",
        "",
    ],
)
def test_a_link_that_fails_is_one_line_with_the_reason(tmp_path, said):
    def export_library(path, fcompile):
        raise RuntimeError(said)

    with refuses(BuildError) as caught:
        link_library(SimpleNamespace(export_library=export_library), tmp_path / "a.so")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_the_linker_is_called_itself_and_a_compiler_where_that_fails(tmp_path, monkeypatch):
    pytest.importorskip("tvm")
    (tmp_path / "a.c").write_text("__int128 f(__int128 a, __int128 b) { return a / b; }")
    subprocess.run(["gcc", "-fPIC", "-c", "a.c"], cwd=tmp_path, check=True)
    called = []

    def export_library(path, fcompile):
        fcompile(path, [str(tmp_path / "a.o")])

    def compiler(output, objects, **options):
        called.append(output)
        subprocess.run(["gcc", "-shared", "-o", output, *objects], check=True)

    monkeypatch.setattr("tvm.support.cc.create_shared", compiler)
    link_library(SimpleNamespace(export_library=export_library), tmp_path / "one.so")
    monkeypatch.setattr(linking, "_find_linker", lambda: ("false", "-lgcc"))
    link_library(SimpleNamespace(export_library=export_library), tmp_path / "two.so")
    assert called[-1] == str(tmp_path / "two.so")
    for name in ("one.so", "two.so"):  # what libgcc has is inside
        said = subprocess.run(["nm", "-D", "--undefined-only", name], cwd=tmp_path, capture_output=True, text=True)
        assert "__divti3" not in said.stdout


def test_a_compiler_that_is_not_installed_is_named(tmp_path, monkeypatch):
    pytest.importorskip("tvm")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "a.o").write_bytes(b"")
    objects, path = [str(tmp_path / "a.o")], tmp_path / "a.so"
    module = SimpleNamespace(export_library=lambda path, fcompile: fcompile(path, objects))
    linking._find_linker.cache_clear()
    try:
        for link in (lambda: linking.link_objects(objects, path, {}), lambda: link_library(module, path)):
            with refuses(BuildError) as caught:
                link()
            assert "\n" not in str(caught.value)
    finally:
        linking._find_linker.cache_clear()

"""Functions as object files: compiled once, whatever they are called, in whatever model."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import anatune
from anatune.codegen.compat import parse_program, target_of
from anatune.errors import BuildError
from anatune.measure.cpu.blocks import ArgumentBlock
from anatune.network.relax import objects
from anatune.network.relax.kernels import kernel_function
from anatune.network.relax.objects import compile_objects
from tests.wording import refuses

pytest.importorskip("tvm")

TARGET = target_of(anatune.hardware("host"))
TEXT = """
@T.prim_func(s_tir=True)
def f(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in range(16):
        with T.sblock("block"):
            v = T.axis.spatial(16, i)
            y[v] = x[v] + T.float32(%s)
"""


def function(name, number, *, is_kernel=False):
    if is_kernel:
        return kernel_function(TEXT.replace('"block', f'"{name}_block') % number, "", name, "kind")
    return parse_program(TEXT % number, "").with_attr("global_symbol", name)


@pytest.fixture
def compiled(monkeypatch):
    """Return the symbols that are compiled."""
    made, real = [], objects.object_of
    monkeypatch.setattr(objects, "object_of", lambda symbol, *rest: made.append(symbol) or real(symbol, *rest))
    return made


def results(found, *names):
    library = found.load()
    values = []
    for name in names:
        x, y = ArgumentBlock("float32", (16,)), ArgumentBlock("float32", (16,))
        x.array[...] = 1.0
        library[name](x.tensor, y.tensor)
        values.append(float(y.array[3]))
    return values


@pytest.mark.parametrize("is_kernel", [False, True])
def test_names_are_aliases_of_what_is_compiled_once(tmp_path, compiled, is_kernel):
    functions = {f"anatune_{n}_f": function(f"anatune_{n}_f", n % 2, is_kernel=is_kernel) for n in range(4)}
    assert results(compile_objects(functions, TARGET, tmp_path), *functions) == [1.0, 2.0, 1.0, 2.0]
    assert len(compiled) == 2
    others = {"anatune_7_g": function("anatune_7_g", 1, is_kernel=is_kernel), "other": function("other", 5)}
    assert results(compile_objects(others, TARGET, tmp_path), "anatune_7_g", "other") == [2.0, 6.0]
    assert len(compiled) == 3


def test_what_an_object_depends_on_is_asked(tmp_path, compiled, monkeypatch):
    functions = {"f": function("f", 1)}
    compile_objects(functions, TARGET, tmp_path)
    compile_objects(functions, target_of(anatune.hardware("xeon_gold_6230r")), tmp_path)
    for name in ("sources_of", "versions_of"):
        with monkeypatch.context() as patched:
            patched.setattr(objects, name, lambda *_: "others")
            compile_objects(functions, TARGET, tmp_path)
    assert len(compiled) == len(set(compiled)) == 4
    compile_objects(functions, TARGET, tmp_path)
    assert len(compiled) == 4


def test_sources_that_make_objects_are_in_the_digest():
    """What `objects` imports of packages that write or change code lies in the folders whose edits it sees."""
    nodes = ast.walk(ast.parse(Path(objects.__file__).read_bytes()))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    makers = {name for name in modules if re.match(r"anatune\.(codegen|emit|measure|network|templates)\.", name)}
    assert makers
    folders = tuple(f"anatune.{folder.replace('/', '.')}." for folder in objects.FOLDERS)
    assert all(module.startswith(folders) for module in makers), makers


def test_names_inside_functions_of_others_do_not_matter_to_them(tmp_path):
    """A function of TVM's that is called like an operator in it is not taken for another one called like its own."""
    texts = {name: (TEXT % 1).replace("x[v] + T.float32(1)", f"T.{name}(x[v])") for name in ("exp", "log")}
    functions = {name: parse_program(text, "").with_attr("global_symbol", name) for name, text in texts.items()}
    assert results(compile_objects(functions, TARGET, tmp_path), "exp", "log") == [pytest.approx(np.e), 0.0]


def test_kernels_that_only_their_names_make_alike_are_told_apart():
    """A kernel's name is left out of what it is found by, but not that something stood there."""
    functions = {
        name: kernel_function((TEXT % 1).replace('"block', f'"{block}'), "", name, "kind")
        for name, block in (("first", "block"), ("block", "blockblock"), ("second", "secondblock"))
    }
    keys = [objects._key(name, one, TARGET) for name, one in functions.items()]
    assert len(set(keys)) == len(keys)


def test_objects_contain_each_function_once(tmp_path):
    """TVM's entry for programs would be a second copy of the function."""
    (content,) = compile_objects({"f": function("f", 1)}, TARGET, tmp_path).contents.values()
    assert b"__tvm_ffi_anatune_" in content or b"__tvm_ffi_f" in content
    assert b"__tvm_ffi_main" not in content


def test_damaged_objects_are_compiled_again(tmp_path, compiled):
    functions = {"f": function("f", 1)}
    compile_objects(functions, TARGET, tmp_path)
    (entry,) = tmp_path.rglob("*.o")
    entry.write_bytes(entry.read_bytes()[:-3])
    assert results(compile_objects(functions, TARGET, tmp_path), "f") == [2.0]
    assert len(compiled) == 2
    compile_objects({"g": function("g", 2)}, TARGET, tmp_path)
    (foreign,) = set(tmp_path.rglob("*.o")) - {entry}
    entry.write_bytes(foreign.read_bytes())
    assert results(compile_objects(functions, TARGET, tmp_path), "f") == [2.0]
    assert len(compiled) == 4


def test_all_that_is_refused_is_named(tmp_path, monkeypatch):
    def refused(symbol, *_):
        raise BuildError("no code for that")

    monkeypatch.setattr(objects, "object_of", refused)
    with refuses(BuildError):
        compile_objects({"first": function("first", 1), "second": function("second", 2)}, TARGET, tmp_path)


def test_none_are_no_library(tmp_path):
    assert compile_objects({}, TARGET, tmp_path).load() is None

"""Every command, and every part of a program, in README.md and docs/ runs, or is parsed where its page says so."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import anatune as package
from anatune.cli.main import load_all_commands
from tests import documents
from tests.documents import PAGES, PROGRAM, ROOT, Doing, blocks, commands

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

INSTALLERS = ("pip", "pytest", "mkdocs")
"""Programs that the tests have run already, or are."""
ELSEWHERE = (
    "ssh", "scp", "unzip", "python", "board/board", "aarch64-linux-gnu-gcc", "umask", "mkdir", "openssl", "printf",
    "rm",
)  # fmt: skip
"""Programs in blocks that are parsed only, of which nothing can be parsed here."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def pages(*languages):
    return [page for page in PAGES if any(block.language in languages for block in blocks(page))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the ONNX file that the tutorial writes."""
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("model")
    text = next(block.text for block in blocks(ROOT / "docs" / "tutorial.md") if "small.onnx" in block.text)
    exec(compile(text.replace('"small.onnx"', f"{str(folder / 'small.onnx')!r}"), "tutorial.md", "exec"), {})
    return folder / "small.onnx"


@pytest.fixture
def folder(tmp_path, monkeypatch, environment, request):
    """Return a folder with what pages take for granted, where their commands run."""
    monkeypatch.chdir(tmp_path)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 32, 32), "float32"))
    return tmp_path


OPTIONAL = (
    *("export", "fleets", "helion", "inductor", "kernel_tuner", "metaschedule", "models", "optuna", "pages", "rtx4090"),
    *("servers", "serving", "triton"),
)
"""Pages of optional packages; README and tutorial show each of the most used ones."""
LONG = ("budget", "gpus", "index", "json", "records", "tuning")
"""Pages that tune or compile for long; README and tutorial plan, tune, prune and export in the fast tier."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem in (*OPTIONAL, *LONG) else ())
        for page in pages("sh", "console", "python")
    ],
    ids=documents.name,
)
def test_a_page_runs(page, folder, anatune, request):
    found = blocks(page)
    if any("resnet50.onnx" in block.text for block in found):
        shutil.copy(request.getfixturevalue("model"), folder / "resnet50.onnx")
    for package_name in {"tvm", "onnx"} if page.name in ("tutorial.md", "README.md", "models.md", "pages.md") else ():
        pytest.importorskip(package_name)
    names = {"__name__": "page"}
    for block in found:
        if block.language == "python":
            run_part(block, names)
        elif block.language in ("sh", "console"):
            for command in commands(block):
                if block.doing in (Doing.PARSE, Doing.INSTALLED) or command.words[0] in INSTALLERS:
                    parse(command.words, block)
                else:
                    run(command, block, anatune)


def run(command, block, anatune):
    program, *words = command.words
    if program == "$EDITOR":
        assert block.doing is Doing.EDITED, f"{block}: {command.words}"
        edit(Path(words[0]))
        return
    assert program == "anatune", f"{block}: tests know how to run anatune only, not {program}"
    done = anatune(*words)
    assert done.returncode == 0, f"{block}: {command.words}\n{done.stderr}"
    if command.into:
        Path(command.into).write_text(done.stdout)
    if command.output is not None and block.doing is Doing.RUN:
        assert not (text := documents.differs(command.output, done.stdout)), f"{block}: {text}"


def edit(path):
    """Do what the page asks the reader to do in an editor."""
    text = path.read_text()
    assert 'name = "rtx3090"' in text
    path.write_text(text.replace('name = "rtx3090"', 'name = "mygpu"'))


def run_part(block, names):
    """Run a part of a page's program after those before it, or look at it where the page says so."""
    if block.text.startswith(PROGRAM):
        return  # test_programs.py
    code = compile(block.tested_text, str(block), "exec")
    if block.doing is Doing.PARSE:
        know_names(block)
    else:
        exec(code, names)


# ---- parsed only -------------------------------------------------------------------------------------------


def parse(words, block):
    """Check that a command could run elsewhere: options and values, extras, modules."""
    program, *rest = words
    if program == "anatune":
        parse_anatune(rest)
    elif program in INSTALLERS:
        extras = {extra for word in words for group in re.findall(r"\[([\w,-]+)\]", word) for extra in group.split(",")}
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert extras <= set(known), f"{block}: {extras - set(known)}"
    elif program == "eval":
        parse(shlex.split(rest[0].removeprefix("$(").removesuffix(")")), block)
    elif program == "python" and rest[:1] == ["-m"] and rest[1].startswith("bench."):
        parse_bench(rest[1], rest[2:], block)
    else:
        assert program in ELSEWHERE or "=" in program, f"{block}: {words}"


def parse_anatune(words):
    command, called, context = load_all_commands(), "anatune", None
    while True:
        context = command.make_context(called, list(words), parent=context)
        if not hasattr(command, "commands"):
            return
        called, *words = words
        assert called in command.commands, called
        command = command.commands[called]


def parse_bench(module, words, block):
    """Check that a bench is there and knows the options."""
    place = ROOT / module.replace(".", "/")
    source = (place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__main__.py").read_text()
    for option in (word.split("=")[0] for word in words if word.startswith("--")):
        assert f'"{option}"' in source or option.lstrip("-").replace("-", "_") in source, f"{block}: {module} {option}"


def know_names(block):
    """Check that what a part takes from anatune is there."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anatune"):
            found = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(found, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}"), block
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "anatune":
            assert node.attr in package.__all__ or importlib.util.find_spec(f"anatune.{node.attr}"), (
                f"{block}: {node.attr}"
            )


# ---- nothing is left out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=documents.name)
def test_every_block_says_what_it_is(page):
    for block in blocks(page):
        assert block.language in ("sh", "console", "python") or documents.is_shown_only(block), block
        assert block.doing is not None
        if documents.is_shown_only(block):
            assert not re.search(r"^(\w*\$ |anatune |pip )", block.text, re.MULTILINE), (
                f"{block}: commands that no test runs"
            )
    outside = documents.outside_of_blocks(page)
    assert not re.search(r"^(    |\t)(\$|anatune|pip|python) ", outside, re.MULTILINE), "commands outside of blocks"

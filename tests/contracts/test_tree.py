"""The tests' tree shows the package's: where a module's tests lie follows from where the module lies."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import anatune
from anatune.core.workload import operators

PACKAGE = Path(anatune.__file__).parent
UNIT = PACKAGE.parent / "tests" / "unit"
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
MODULES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = {*anatune.__all__, *operators.__all__, "parse_workload", "build_manifest"}
"""Calls with as many parameters, and as long a docstring, as what they say needs."""


@pytest.mark.skipif(not UNIT.exists(), reason="an installed package has no tests beside it")
def test_unit_tests_lie_as_what_they_test():
    """``test_NAME.py`` or ``test_NAME_more.py`` in the folder of the module or package NAME (``_NAME``, too)."""
    lost = []
    for path in UNIT.rglob("test_*.py"):
        place = path.relative_to(UNIT)
        folder = PACKAGE / place.parent if place.parts[0] != "bench" else PACKAGE.parent / place.parent
        words = place.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        known = {found.stem.removeprefix("_") for found in folder.glob("*") if found.suffix == ".py" or found.is_dir()}
        if not known.intersection(names):
            lost.append(f"{place}: nothing in {folder.relative_to(PACKAGE.parent)} is called {' or '.join(names)}")
    assert not lost


def functions(path):
    """Yield the functions of a module that are neither compiled by numba nor commands that typer reads."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, FUNCTION) and not re.search(
            r"jit|\.command", "".join(map(ast.unparse, node.decorator_list))
        ):
            yield node


def test_folders_and_files_are_small():
    """16 modules a folder, 450 lines a file; 80 lines and 8 parameters a function that is no public call."""
    too_large = [f"{name}: {count} modules" for name, count in Counter(p.parent for p in MODULES).items() if count > 16]
    for path in MODULES:
        if (lines := path.read_bytes().count(b"\n")) > 450:
            too_large.append(f"{path}: {lines} lines")
        for node in functions(path):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            parameters = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
            if node.name not in PUBLIC and (lines > 80 or len(set(parameters) - {"self", "cls"}) > 8):
                too_large.append(f"{path}: {node.name} has {lines} lines, {len(parameters)} parameters")
    assert not too_large


def aliases_of_any():
    """Return, for each module, the names that stand for ``Any`` in it: assigned at the top, or imported."""
    trees = {path: ast.parse(path.read_bytes()) for path in MODULES}
    dotted = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    names = {path: {"Any"} for path in MODULES}
    before = 0
    while before != (before := sum(map(len, names.values()))):
        for path, tree in trees.items():
            for node in tree.body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Name):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if node.value.id in names[path]:
                        names[path] |= {target.id for target in targets if isinstance(target, ast.Name)}
            for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)):
                source = dotted.get(node.module, dotted.get(f"{node.module}.__init__"))
                taken = names.get(source, set()) - {"Any"}
                names[path] |= {alias.asname or alias.name for alias in node.names if alias.name in taken}
    return names


def test_types_are_named():
    """``Any`` and its aliases stand where a caller's own object passes through, on few lines."""
    named = sum(
        len(re.findall(rf"^.*\b(?:{'|'.join(names)})\b.*$", path.read_text(), re.MULTILINE))
        for path, names in aliases_of_any().items()
    )
    assert named <= 740


def test_values_of_graphs_are_keys_themselves():
    """``id(node)`` outlives its node, and then names another one; nodes compare by identity as they are."""
    used = [
        f"{path}:{node.lineno}"
        for path in (PACKAGE / "network").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Name) and node.id == "id"
    ]
    assert not used

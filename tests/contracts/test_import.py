"""The package's public names, and which packages may be imported where."""

import ast
import re
from graphlib import TopologicalSorter
from importlib import import_module
from inspect import isfunction, signature
from pathlib import Path
from pkgutil import iter_modules

import anatune
from tests.cases import each
from tests.wording import refuses

SOURCES = sorted(Path(anatune.__file__).parent.rglob("*.py"))
COMMANDS = ("cli/", "export/cli/", "fleet/cli.py", "network/cli/", "servers/cli.py", "servers/serving/cli.py")
OWNERS = {  # package -> the only places that may import it
    "numba": ("numerics/",),
    "pandas": ("api.py", "model/plan.py"),
    "typer": COMMANDS,
    "rich": COMMANDS,
}


@each("name", anatune.__all__)
def test_public_names_exist(name):
    assert getattr(anatune, name) is not None
    assert name in dir(anatune)


def test_unknown_name_lists_the_public_ones():
    with refuses(AttributeError):
        _ = anatune.matmull


@each("path", SOURCES)
def test_packages_are_imported_only_by_their_owners(path):
    place = path.relative_to(Path(anatune.__file__).parent).as_posix()
    for package in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE):
        assert place.startswith(OWNERS.get(package, ("",))), f"{place} imports {package}"


def test_all_modules_name_their_exports():
    for path in SOURCES:
        place = path.relative_to(Path(anatune.__file__).parent.parent)
        name = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
        if name.endswith("__main__") or "__all__" not in path.read_text():
            continue
        module = import_module(name)
        assert all(hasattr(module, exported) for exported in module.__all__), name


def test_hardware_and_limits_of_time_have_one_name_in_all_calls():
    adapters = {module.name for module in iter_modules([str(SOURCES[0].parent / "adapters")])}
    adapters -= {"import_command", "logs", "tvm_tiles"}  # nothing that users call
    modules = ["api", "tuning.session", "measure.verify", *(f"adapters.{name}" for name in adapters)]
    seen = set()
    for module in (import_module(f"anatune.{name}") for name in modules):
        for name in getattr(module, "__all__", ()):
            if isfunction(function := getattr(module, name)):
                seen |= signature(function).parameters.keys()
    assert {"hw", "time_limit_s"} <= seen
    assert not seen & {"hardware", "budget_s", "time_limit"}


def test_modules_import_each_other_in_no_circle():
    """Strings that name a module count, too: import-linter sees imports alone."""
    root = Path(anatune.__file__).parent
    names = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        names[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for name, path in names.items():
        graph[name] = seen = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                within = {f"{node.module}.{alias.name}" for alias in node.names}
                seen |= within if within <= names.keys() else within | {node.module}
            elif isinstance(node, ast.Import):
                seen |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and str(node.value).startswith("anatune."):
                seen.add(str(node.value).partition(":")[0])
        # messages name the package that a module lies in
        graph[name] = {other for other in seen if other in names and not f"{name}.".startswith(f"{other}.")}
    assert len(list(TopologicalSorter(graph).static_order())) > 500

"""What anatune promises its users, as text: names, parameters and defaults of Python, commands and options.

``public/*.pyi`` and ``public/command_line.txt`` hold the promise, `test_public_names.py` compares. After a change
that is meant:

    python -m tests.contracts.public_names --write
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
import msgspec
import typer

from anatune.cli.main import app

FOLDER = Path(__file__).parent / "public"
COMMANDS = "command_line.txt"
MODULES = (
    *("anatune", "anatune.errors", "anatune.plots", "anatune.pages"),
    *(f"anatune.adapters.{name}" for name in ("jobqueue", "kernel_tuner", "kernel_tuner_files", "metaschedule")),
    *(f"anatune.adapters.{name}" for name in ("optuna", "torch", "triton")),
)
"""Modules whose ``__all__`` is for users. `anatune.adapters.relax` needs TVM to be imported, and has its own tests."""
MADE_BY_USERS = ("Limits", "Schedule")
"""Classes whose constructors users call; results, spaces and workloads come from functions."""
_PROTOCOLS = ("__call__", "__len__", "__iter__", "__getitem__", "__contains__", "__enter__", "__exit__")


def python_text(module_name: str) -> str:
    """Return what a module promises as a stub: names in order, with signatures, defaults and types as written."""
    module = import_module(module_name)
    lines = ["from __future__ import annotations"]
    for name in sorted(name for name in getattr(module, "__all__", ()) if name != "__version__"):
        lines += ["", *_lines_of(name, getattr(module, name))]
    return "\n".join(lines) + "\n"


def _lines_of(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__ if base is not object and not base.__name__.startswith("_")]
        yield f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
        yield from (f"    {line}" for line in [*_members(value)] or ["..."])
    elif callable(value) and not isinstance(value, type) and hasattr(value, "__name__"):
        yield f"def {name}{_signature(value)}: ..."
    else:
        yield f"{name}: {type(value).__name__}"


def _members(kind: type) -> Iterator[str]:
    """Yield the public attributes, properties and methods of a class, those of its bases in anatune included."""
    found: dict[str, str] = {}
    if kind.__name__ in MADE_BY_USERS:
        found["__init__"] = f"def __init__{_signature(kind, bound=True)}: ..."
    for base in kind.__mro__:
        if not base.__module__.startswith("anatune"):
            continue
        for name, member in _written(base).members.items():
            if name in found or (name.startswith("_") and name not in _PROTOCOLS) or member.is_class:
                continue
            if member.is_attribute:
                found[name] = _attribute(name, member, base)
            elif member.is_function:
                kept = inspect.getattr_static(base, name)
                mark = {staticmethod: "@staticmethod ", classmethod: "@classmethod "}.get(type(kept), "")
                function = getattr(kept, "__func__", kept)
                found[name] = f"{mark}def {name}{_signature(function)}: ..."
    for name in sorted(found, key=lambda name: (found[name].lstrip("@").startswith("def"), name)):
        mark, _, rest = found[name].rpartition(" def ")
        yield from [mark, f"def {rest}"] if mark else [found[name]]


def _attribute(name: str, member: Any, kind: type) -> str:
    """Return an attribute with its type; with its default where it is a field that has one."""
    text = f"{name}: {member.annotation or 'Any'}"
    if name in getattr(kind, "__struct_fields__", ()):
        field = next(field for field in msgspec.structs.fields(kind) if field.name == name)
        if field.default is not msgspec.NODEFAULT:
            return f"{text} = {_shown(field.default)}"
        return f"{text} = ..." if field.default_factory is not msgspec.NODEFAULT else text
    return text


@cache
def _source(module_name: str) -> Any:
    path = Path(str(inspect.getsourcefile(sys.modules[module_name])))
    return griffe.visit(module_name, filepath=path, code=path.read_text(encoding="utf-8"))


def _written(kind: type) -> Any:
    """Return a class as its source has it: attributes that ``__init__`` makes are seen only there."""
    return _source(kind.__module__)[kind.__qualname__]


def _signature(function: Any, *, bound: bool = False) -> str:
    """Return parameters and result, with types as they are written and defaults as values."""
    given = inspect.signature(function)
    parameters = [
        parameter.replace(
            default=parameter.default if parameter.default is parameter.empty else _Text(_shown(parameter.default)),
            annotation=_Text(_type(parameter.annotation))
            if parameter.annotation is not parameter.empty
            else parameter.empty,
        )
        for parameter in given.parameters.values()
    ]
    if bound:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [first, *parameters]
    result = given.return_annotation
    text = str(inspect.Signature(parameters))
    return text if result is inspect.Signature.empty or bound else f"{text} -> {_type(result)}"


class _Text:
    """Is shown as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("anatune.", "").strip("'")


def _shown(value: Any) -> str:
    """Return a default as Python that can be read again."""
    text = repr(value)
    return text if re.fullmatch(r"None|True|False|-?[\d.e+-]+|'[^']*'|\(\)|\{\}|\[\]|\([\d., ]*\)", text) else "..."


def command_lines() -> list[str]:
    """Return a line for each argument and option of each command."""
    command = typer.main.get_command(app)
    with command.make_context("anatune", ["plan"]) as context:
        return sorted(_options(command, context))


def _options(command: Any, context: Any) -> Iterator[str]:
    path = context.command_path
    if not getattr(command, "commands", None):
        yield path
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.opts[0].startswith("-"):  # versions of typer differ in what is around choices
            words = re.sub(r"[<\[]([\w.-]+(\|[\w.-]+)*)[>\]]$", r"\1", parameter.get_help_record(context)[0])
        else:
            words = parameter.metavar or parameter.name.upper()
        default = parameter.default
        said = "optional" if default in (None, False, (), []) or callable(default) else f"default {default}"
        repeated = ", repeatable" if getattr(parameter, "multiple", False) else ""
        yield f"{path} {words}: {'required' if parameter.required else said}{repeated}"
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _options(below, type(context)(below, info_name=name, parent=context))


def stubs() -> dict[str, str]:
    """Return file name -> text of every public module."""
    return {f"{name}.pyi": python_text(name) for name in MODULES}


def kept() -> dict[str, str]:
    """Return file name -> text as promised."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.pyi"))}


def broken_calls(before: str, after: str) -> list[str]:
    """Return what callers of `before` cannot rely on any more in `after`, two stubs of one module."""
    old, new = (griffe.visit("it", filepath=Path("it.pyi"), code=text) for text in (before, after))
    told = []
    for breakage in griffe.find_breaking_changes(old, new):
        place = str(breakage.as_dict()["object_path"]).removeprefix("it.")
        was, now = breakage.old_value, breakage.new_value
        parameter = f"({was.name})" if isinstance(was, griffe.Parameter) else ""
        changed = breakage.kind is griffe.BreakageKind.PARAMETER_CHANGED_DEFAULT
        values = f": {was.default} -> {now.default}" if changed else ""
        told.append(f"{place}{parameter}: {breakage.kind.value.lower()}{values}")
    return told


def broken_commands(before: list[str], after: list[str]) -> list[str]:
    """Return lines of commands and options that are gone or changed."""
    return sorted(set(before) - set(after))


def public_functions() -> Iterator[tuple[str, Any]]:
    """Yield the name and the object of every public function and method."""
    for module_name in MODULES:
        module: ModuleType = import_module(module_name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            yield f"{module_name}.{name}", value
            if inspect.isclass(value):
                yield from (
                    (f"{module_name}.{name}.{key}", found) for key, found in vars(value).items() if callable(found)
                )


def write() -> None:
    """Write the promise anew, and say what it breaks."""
    FOLDER.mkdir(exist_ok=True)
    present, promised = stubs(), kept()
    for name in sorted(promised):
        for text in broken_calls(promised[name], present.get(name, "")):
            sys.stderr.write(f"breaks callers: {name.removesuffix('.pyi')} {text}; CHANGELOG.md, Changed or Removed\n")
    path = FOLDER / COMMANDS
    lines = command_lines()
    for text in broken_commands(path.read_text().splitlines() if path.exists() else [], lines):
        sys.stderr.write(f"breaks scripts: {text}; CHANGELOG.md, Changed or Removed\n")
    for name in promised.keys() - present.keys():
        (FOLDER / name).unlink()
    for name, text in present.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.contracts.public_names --write")
    write()

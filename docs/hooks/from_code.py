"""A hook of mkdocs: what pages say of the code is taken from the code when the site is built.

``<!-- every command -->``
    The help of each command, as printed.
``<!-- constants of MODULE: NAME NAME -->``
    A table of a module's constants: name, value and the words under it; without names all that have words.
``[[MODULE:NAME]]``
    The value of one.
``<!-- bench/README.md -->``
    The index of benches, with links to their pages beside this one.
``<!-- every source -->``
    What formulas are cited from: `anatune/references.toml`. Elsewhere ``[Key]`` becomes a link to it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from anatune.cli.main import load_all_commands

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"\[\[([\w.]+):(\w+)\]\]")
_TABLE = re.compile(r"<!-- constants of ([\w.]+)(?:: ([\w ]+?))? -->")
_CITED = re.compile(r"\[([\w-]+)\](?![(\[])")
_SOURCES = "reference/papers.md"


class _Constant(NamedTuple):
    value: object
    words: str


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what the code says in the place of the comments."""
    text = _TABLE.sub(lambda found: "\n".join(_rows(found[1], found[2])), markdown)
    text = _VALUE.sub(lambda found: _shown(_constants(found[1])[found[2]].value), text)
    place = page.file.src_uri
    if place.startswith("explanations/"):
        up = "../" * place.count("/")
        parts = _FENCE.split(text)
        parts[::2] = (_CITED.sub(lambda found: _cited(found, up), part) for part in parts[::2])
        text = "".join(parts)
    text = text.replace("<!-- every source -->", "\n".join(_sources()))
    text = text.replace("<!-- bench/README.md -->", _benches())
    return text.replace("<!-- every command -->", "\n".join(_commands()))


# ---- commands ----------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    command = load_all_commands()
    with command.make_context("anatune", ["plan"]) as context:
        yield from _command(command, context)


def _command(command: Any, context: Any) -> Iterator[str]:
    """Yield the Markdown of a command and of those below it."""
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _command(below, type(context)(below, info_name=name, parent=context, max_content_width=100))


# ---- benches -----------------------------------------------------------------------------------------------


def _benches() -> str:
    """Return the index of benches with links as a page of docs/bench has them."""
    text = (_ROOT / "bench" / "README.md").read_text()
    return text.replace("](../docs/bench/", "](").replace("](../docs/", "](../")


# ---- constants ---------------------------------------------------------------------------------------------


@cache
def _constants(module: str) -> dict[str, _Constant]:
    """Return the constants of a module that are written as numbers or tuples of them, in order."""
    tree = ast.parse((_ROOT / (module.replace(".", "/") + ".py")).read_text())
    found = {}
    for at, line in enumerate(tree.body):
        if not (isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)):
            continue
        try:
            value = ast.literal_eval(line.value)
        except ValueError:
            continue
        below = tree.body[at + 1] if at + 1 < len(tree.body) else None
        words = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            words = " ".join(below.value.value.split())
        found[line.targets[0].id] = _Constant(value, words)
    return found


def _rows(module: str, names: str | None) -> Iterator[str]:
    constants = _constants(module)
    yield "| constant | value | meaning |\n|---|---|---|"
    for name in names.split() if names else [name for name, constant in constants.items() if constant.words]:
        words = constants[name].words.replace("|", "\\|")
        yield f"| `{name}` | {_shown(constants[name].value)} | {words} |"


def _shown(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"{value:,.0f}"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


# ---- sources -----------------------------------------------------------------------------------------------


@cache
def _references() -> dict[str, dict[str, Any]]:
    return tomllib.loads((_ROOT / "anatune" / "references.toml").read_text())


def _cited(found: re.Match[str], up: str) -> str:
    key = found[1]
    return f"[{key}]({up}{_SOURCES}#{key.lower()})" if key in _references() else found[0]


def _sources() -> Iterator[str]:
    for key, source in _references().items():
        where = f"https://doi.org/{source['doi']}" if "doi" in source else source.get("url", "")
        title = f"[{source['title']}]({where})" if where else source["title"]
        rest = ", ".join(str(source[part]) for part in ("venue", "year", "note") if part in source)
        yield f"### {key} {{ #{key.lower()} }}\n\n{', '.join(source['authors'])}: {title}. {rest}.\n"

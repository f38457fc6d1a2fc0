"""A hook of mkdocs: where a page says ``<!-- every command -->``, the help of each command follows, as printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from anatune.cli.main import app

_PLACE = "<!-- every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help of all commands in the place of the comment."""
    return markdown.replace(_PLACE, "\n".join(_sections())) if _PLACE in markdown else markdown


def _sections() -> Iterator[str]:
    command = typer.main.get_command(app)
    with command.make_context("anatune", ["plan"]) as context:
        yield from _section(command, context)


def _section(command: Any, context: Any) -> Iterator[str]:
    """Yield the Markdown of a command and of those below it."""
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _section(below, type(context)(below, info_name=name, parent=context, max_content_width=100))

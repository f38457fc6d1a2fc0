"""Whether the person's shell completes anatune's words: its start-up file then has what `anatune completion` prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from anatune.doctor.findings import Finding

__all__ = ["shell_findings"]

_FILES = {
    "bash": (".bashrc", 'add to ~/.bashrc: eval "$(anatune completion bash)"'),
    "zsh": (".zshrc", 'add to ~/.zshrc, after compinit: eval "$(anatune completion zsh)"'),
    "fish": (
        ".config/fish/completions/anatune.fish",
        "anatune completion fish > ~/.config/fish/completions/anatune.fish",
    ),
}
"""Shell -> the file below the home folder that has it, and how it gets there."""


def shell_findings() -> Iterator[Finding]:
    """Yield one line on the shell that SHELL names, if it is one that can complete, and there is a home folder."""
    shell = PurePosixPath(os.environ.get("SHELL", "")).name
    if shell not in _FILES:
        return
    name, fix = _FILES[shell]
    try:
        path = Path.home() / name
        wanted = "anatune" if shell == "fish" else "anatune completion"
        found = wanted in path.read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):
        found = False
    if found:
        yield Finding("This machine", "ok", "completion", f"{shell} completes anatune's words (~/{name})")
    else:
        yield Finding("This machine", "note", "completion", f"{shell} does not complete anatune's words", "", fix)

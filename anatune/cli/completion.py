"""``anatune completion``: shell completion of commands, options, devices, layers, templates and strategies.

Completion imports neither numba nor TVM.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer

from anatune.cli.output import print_text

_VARIABLE = "_ANATUNE_COMPLETE"
"""The environment variable by which the shell scripts ask for completions."""
_BASH = """\
_anatune_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" words count
    read -ra words <<< "$line"
    count=${#words[@]}
    [[ $line == *[[:space:]] ]] || count=$((count - 1))
    local word="${words[count]:-}" IFS=$'\\n'
    COMPREPLY=( $(COMP_WORDS="$line" COMP_CWORD=$count _ANATUNE_COMPLETE=complete_bash "$1") )
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then  # bash takes a colon for the end of a word
        COMPREPLY=( "${COMPREPLY[@]#"${word%"${word##*:}"}"}" )
    fi
}
complete -o default -F _anatune_completion anatune
"""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print a script that makes a shell complete commands, options and names.

    bash: add `eval "$(anatune completion bash)"` to ~/.bashrc. zsh: add `eval "$(anatune completion zsh)"` to ~/.zshrc,
    after compinit. fish: `anatune completion fish > ~/.config/fish/completions/anatune.fish`.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell == "bash":
        print_text(_BASH.rstrip("\n"))
    else:
        print_text(get_completion_script(prog_name="anatune", complete_var=_VARIABLE, shell=shell))


def complete(command: Any) -> int | None:
    """Print completions if a shell requests them, and return the exit status; else return None."""
    instruction = os.environ.get(_VARIABLE)
    if not instruction:
        return None
    from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]

    completion_init()
    return shell_complete(command, {}, "anatune", _VARIABLE, instruction)


def device_names(incomplete: str) -> list[str]:
    """Return the names and aliases of devices that begin with `incomplete`."""
    from anatune.core.hardware.files import list_hardware
    from anatune.errors import SpecError

    try:
        specs = list_hardware()
    except SpecError:  # a damaged spec file of the user, which commands report
        return [name for name in _HOST if name.startswith(incomplete)]
    names = {name for spec in specs for name in (spec.name, *spec.aliases)} | set(_HOST)
    return sorted(name for name in names if name.startswith(incomplete))


_HOST = ("host", "host_gpu")


def layer_and_operator_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the operators and named layers that begin with `incomplete`, for the first word of a workload."""
    from anatune.core.workload.layers import layer_names
    from anatune.core.workload.operators import CONSTRUCTORS

    if context.params.get("words"):
        return []
    return sorted(name for name in (*layer_names(), *CONSTRUCTORS) if name.startswith(incomplete))


def template_names(incomplete: str) -> list[str]:
    """Return the templates that begin with `incomplete`."""
    from anatune.templates import TEMPLATES

    return [name for name in TEMPLATES if name.startswith(incomplete)]


def strategy_names(incomplete: str) -> list[str]:
    """Return the search strategies that begin with `incomplete`."""
    from anatune.search.base import STRATEGIES

    return [name for name in STRATEGIES if name.startswith(incomplete)]

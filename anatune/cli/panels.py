"""Command groups, and the headings under which the help of commands with many options lists them."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from anatune.named import entries, load

_ORDER = (
    *("plan", "prune", "tune", "export", "compile", "run", "serving", "worker"),
    *("doctor", "completion", "configs", "hw", "records", "cluster"),
)
"""The order of the commands in the help; other commands follow."""

_GROUPS = {
    "Workload": "--stride --padding --dilation --groups --layout --dtype --transpose-a --transpose-b --epilogue "
    "--input-zero-point --output-zero-point --axes --causal --window --page-size --scales --group "
    "--zero-points --rounded --routing --expanded --activation",
    "Layer": "--experts --intermediate --hidden --n --k --tp --ep --block-shape --group-size --power-law",
    "Device and kernels": "--hw --template --accuracy --threads --target --fallback",
    "Sizes and state of a model": "--input-shape --size --state",
    "Precision of a model": "--precision --calibrate --percentile",
    "Load": "--isl --osl --concurrency --cache --expert-parallel --engine --ttft --tpot",
    "Ranges of extents": "--kernels --loss --mean",
    "Predictions": "--model --plain --compile --compare --price",
    "Search": "--strategy --start --seed --keep --no-diverse",
    "When it ends": "--trials --time-limit --stop-at --patience",
    "Records": "--records --resume --no-reuse --session --outcome --worker --limit",
    "Where and how it is measured": "--cluster --tls --tracker --key --device --backend --build-only --manifest --l2 "
    "--check --measure",
    "Servers": "--rows --device-name --triton-version --down --against --force",
    "Answer": "--top-k --distinct --for --most --format --sessions --name --output --json --explain --html",
}
GROUPS = {option: title for title, options in _GROUPS.items() for option in options.split()}
"""Option -> its heading in the help."""


def subcommands(help: str) -> typer.Typer:
    """Return an application for the subcommands of a command such as "hw", "records" or "cluster"."""
    return typer.Typer(help=help, no_args_is_help=False, rich_markup_mode=None, add_completion=False)


class Grouped(TyperCommand):
    """A command whose help lists options under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options of each group, then all other options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{name: [] for name in _GROUPS}, "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                titles = (GROUPS[name] for name in parameter.opts if name in GROUPS)
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[next(titles, kind)].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Commands(TyperGroup):
    """The commands of the core and of optional packages, which are imported when they are used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        names = [*super().list_commands(ctx), *entries("commands")]
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is no command of that name."""
        if cmd_name not in self.commands and cmd_name in entries("commands"):
            self.commands[cmd_name] = _load_command(cmd_name)
        return super().get_command(ctx, cmd_name)


def _load_command(name: str) -> TyperCommand | TyperGroup:
    """Return the command or command group that a package registers."""
    registered = load("commands", name)
    app = subcommands("")
    app.callback()(lambda: None)  # without a callback a single command has no name
    if isinstance(registered, typer.Typer):
        app.add_typer(registered, name=name)
    else:
        app.command(name, cls=Grouped, no_args_is_help=False)(registered)
    command = typer.main.get_group(app).commands[name]
    assert isinstance(command, (TyperCommand, TyperGroup))
    return command

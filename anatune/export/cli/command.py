"""``anatune export``: a schedule as a compiled library for C programs, as CUDA C and a cubin, or as a TVM module."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anatune.cli.options import AsJson, spread
from anatune.cli.output import note, print_json, print_text
from anatune.cli.outputs import MANIFEST, move_export
from anatune.cli.workload import WorkloadOptions
from anatune.export.cli.source import ExportSource, find_range, find_schedule
from anatune.files import Output, make_folder, temporary_folder

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from anatune.export.cli.files import Manifest

_KEYWORDS = """
alignas alignof and asm auto bool break case catch char class compl concept const constexpr continue decltype default
delete do double else enum explicit export extern false float for friend goto if inline int long main mutable namespace
new noexcept not nullptr operator or private protected public register requires restrict return short signed sizeof
static struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile
while xor
"""
"""The keywords of C and C++, which cannot be names of functions."""

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|WORKLOAD...",
        help="A schedule (a file of `anatune tune`, the JSON of plan or prune, a manifest), a plan for a range of "
        "extents on a CPU, or with --records or --hw a workload as for `anatune plan`.",
    ),
]


def _check_name(value: str | None) -> str | None:
    if value is not None and (not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value) or value in _KEYWORDS.split()):
        raise typer.BadParameter(f"got {value!r}, expected a C identifier")
    return value


@spread
def export(
    options: WorkloadOptions,
    source: ExportSource,
    words: _Words = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")] = Path("."),
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", callback=_check_name, help="The C function's name.  [default: chosen]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the kernel of a schedule for other programs, with a manifest that describes how to call it."""
    from anatune.export.cli.files import write_range, write_schedule

    write: Callable[[Path], Manifest]
    if plan := find_range(source, words or [], options):
        extents = plan.workload.extents
        title = name or f"{_identifier(plan.programs[-1].schedule)}_{plan.workload.axis}_{extents[0]}_to_{extents[-1]}"
        write = functools.partial(write_range, plan, title, source.form or "so", source.threads)
    else:
        schedule, threads = find_schedule(source, words or [], options)
        title = name or _identifier(schedule)
        write = functools.partial(write_schedule, schedule, title, source.form or "so", source.threads or threads)
    make_folder(output)
    Output(output / f"{title}.json", MANIFEST)  # check the output before building
    with temporary_folder(output) as scratch:
        manifest = write(scratch)
        _note_replaced(output / f"{title}.json", manifest)
        path = move_export(scratch, output, title, manifest)
    if manifest["arithmetic"].multiplied_as != manifest["arithmetic"].operands:
        note(f"note: {manifest['arithmetic'].sentences()} Use --accuracy standard to refuse such kernels.")
    if as_json:
        print_json({**manifest, "manifest": str(path)})
        return
    files = [manifest[key] for key in ("source", "cubin", "library", "header", "module") if key in manifest]
    files += [file for key in ("files", "images") for file in manifest.get(key, ())]
    lines = [f"wrote {output / str(file)}" for file in files]
    lines.append(f"wrote {path}: how to call it")
    lines += [str(function["prototype"]) for function in manifest["functions"] if "prototype" in function]
    lines += [str(manifest[key]) for key in ("supported",) if key in manifest]
    print_text("\n".join(lines))


def _identifier(schedule: Schedule) -> str:
    """Return a C identifier made of the workload and the type that operands are rounded to."""
    from anatune.codegen.arithmetic import find_arithmetic
    from anatune.records.export import workload_text

    arithmetic = find_arithmetic(schedule)
    rounded = "" if arithmetic.multiplied_as == arithmetic.operands else f"_{arithmetic.multiplied_as}"
    return re.sub(r"[^A-Za-z0-9]+", "_", workload_text(schedule.workload)).strip("_") + rounded


def _note_replaced(path: Path, manifest: Manifest) -> None:
    """Print a note if an export of the same name for another device is replaced."""
    import msgspec

    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        former = msgspec.json.decode(path.read_bytes()).get("hardware")
        if former not in (None, manifest["hardware"]):
            note(f"note: this replaces the export for {former} in {path.parent}; choose another name with --name")

"""``anatune export``: a schedule as a compiled library for C programs, as CUDA C and a cubin, or as a TVM module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anatune.cli.output import UsageError, note_once, print_json, print_text, write_text

if TYPE_CHECKING:
    from anatune.core.hardware import CpuSpec, GpuSpec
    from anatune.core.schedule import Schedule

__all__ = ["export"]

FORMATS = ("so", "tvm")
TARGETS = ("cpu", "cuda")


def _check_format(value: str) -> str:
    if value not in FORMATS:
        raise typer.BadParameter(f"got {value!r}, expected one of {', '.join(FORMATS)}")
    return value


def _check_target(value: str | None) -> str | None:
    if value is not None and value not in TARGETS:
        raise typer.BadParameter(f"got {value!r}, expected one of {', '.join(TARGETS)}")
    return value


def _check_threads(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise typer.BadParameter(f"got {value}, expected an integer >= 1")
    return value


def _check_name(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value):
        raise typer.BadParameter(f"got {value!r}, expected a C identifier")
    return value


def export(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|WORKLOAD...",
            help="A schedule file (what `anatune tune` writes), or with --records or --hw a workload as for "
            "`anatune plan`.",
        ),
    ] = None,
    records: Annotated[
        Path | None, typer.Option("--records", metavar="PATH", help="Take the best schedule of this record file.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="so|tvm",
            callback=_check_format,
            help="so: a compiled kernel and a C header; tvm: an IRModule as JSON.",
        ),
    ] = "so",
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="cpu|cuda",
            callback=_check_target,
            help="cuda: CUDA C, a cubin and a C header that launches it; no GPU is needed.  [default: the schedule's]",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder; made if it is missing.")] = Path("."),
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", callback=_check_name, help="C function.  [default: from the workload]"),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="T",
            callback=_check_threads,
            help="Threads of parallel loops; with --records only what was measured with so many.  "
            "[default: what it was tuned for]",
        ),
    ] = None,
    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME",
            help="With --records: what was measured on this hardware. Without: the plan's first choice for it.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> None:
    """Write a schedule's kernel for other programs, with a manifest that says how to call it."""
    given = words or []
    if records is not None:
        schedule, tuned_threads = _from_records(given, records, hw, threads)
    else:
        schedule, tuned_threads = _from_file(given) if hw is None else _from_plan(given, hw, target, threads)
    _check_kind(schedule.hardware, target, threads)
    title = name or _identifier(schedule)
    output.mkdir(parents=True, exist_ok=True)
    if form == "tvm":
        manifest = _write_module(schedule, title, output, threads or tuned_threads)
    elif _is_gpu(schedule):
        manifest = _write_cuda(schedule, title, output)
    else:
        manifest = _write_library(schedule, title, output, threads or tuned_threads)
    path = output / f"{title}.json"
    _write_manifest(path, manifest)
    if as_json:
        print_json({**manifest, "manifest": str(path)})
        return
    files = ("source", "cubin", "library", "header", "module")
    lines = [f"wrote {output / str(file)}" for key, file in manifest.items() if key in files]
    lines.append(f"wrote {path}: how to call it")
    lines += [str(function["prototype"]) for function in manifest["functions"] if "prototype" in function]
    print_text("\n".join(lines))


def _is_gpu(schedule: Schedule) -> bool:
    from anatune.core.hardware import GpuSpec

    return isinstance(schedule.hardware, GpuSpec)


def _check_kind(hardware: GpuSpec | CpuSpec, target: str | None, threads: int | None) -> None:
    """Raise UsageError where --target or --threads do not go with the hardware."""
    from anatune.core.hardware import GpuSpec

    kind = "cuda" if isinstance(hardware, GpuSpec) else "cpu"
    if target is not None and target != kind:
        raise UsageError(f"--target {target}: the schedule is for {hardware.name}; leave it out or say {kind}")
    if kind == "cuda" and threads is not None:
        raise UsageError("--threads is for CPU schedules; a GPU schedule has its own launch configuration")


def _cores(schedule: Schedule) -> int:
    from anatune.core.hardware import CpuSpec

    return schedule.hardware.compute.num_cores if isinstance(schedule.hardware, CpuSpec) else 1


def _from_plan(words: list[str], hw: str, target: str | None, threads: int | None) -> tuple[Schedule, int]:
    """Return the plan's first choice, and the cores that it was planned for."""
    from anatune.api import hardware, plan
    from anatune.codegen.compat import gpu_target_of
    from anatune.codegen.nvrtc import check_arch
    from anatune.core.hardware import GpuSpec
    from anatune.core.workload_text import parse_workload
    from anatune.errors import SpaceError

    if not words:
        raise UsageError("the workload is missing; write for example anatune export --hw rtx3090 matmul 512x4096x1024")
    workload = parse_workload(words)
    spec = hardware(hw)
    _check_kind(spec, target, threads)  # better before a search than after it
    if isinstance(spec, GpuSpec):
        gpu_target_of(spec)
        check_arch(spec.arch)
    schedules = plan(workload, spec, top_k=1).schedules
    if not schedules:
        raise SpaceError(f"no schedule of {workload.describe()} is legal on {spec.name}; `anatune plan` says why")
    return schedules[0], _cores(schedules[0])


def _from_file(words: list[str]) -> tuple[Schedule, int]:
    """Return the schedule of a file, and the cores that it was planned for."""
    from anatune.core.schedule import Schedule
    from anatune.errors import SpaceError
    from anatune.files import read_file

    if len(words) != 1:
        got = f"got {' '.join(words)!r}" if words else "it is missing"
        raise UsageError(
            f"expected a schedule file, {got}; write anatune export FILE.json, or --records PATH WORKLOAD, "
            "or --hw NAME WORKLOAD"
        )
    path = Path(words[0])
    try:
        schedule = Schedule.from_json(read_file(path))
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None
    return schedule, _cores(schedule)


def _from_records(words: list[str], records: Path, hw: str | None, threads: int | None) -> tuple[Schedule, int]:
    """Return the best recorded schedule of a workload, and the threads it was measured with."""
    from anatune.core.workload_text import parse_workload
    from anatune.errors import RecordError
    from anatune.records.store import RecordStore

    if not words:
        raise UsageError("the workload is missing; write for example anatune export --records PATH matmul 64x64x64")
    workload = parse_workload(words)
    with RecordStore(records, read_only=True) as store:
        best = store.best(workload, hw, threads, on_damage=note_once())
    if best is None:
        only = [f"on {hw!r}"] * (hw is not None) + [f"with --threads {threads}"] * (threads is not None)
        raise RecordError(
            f"{records}: has no trial of {' '.join([workload.describe(), *only])} that ran; "
            f"`anatune records list {records}` shows those it has"
        )
    return best.trial.schedule, best.trial.threads


def _identifier(schedule: Schedule) -> str:
    """Return a C identifier that says what the workload is."""
    from anatune.records.export import workload_text

    return re.sub(r"[^A-Za-z0-9]+", "_", workload_text(schedule.workload)).strip("_")


def _write_library(schedule: Schedule, name: str, folder: Path, threads: int) -> dict[str, Any]:
    from anatune.codegen.export import ALIGNMENT_BYTES, prototype, write_c_library

    made = write_c_library(schedule, name, folder, threads=threads)
    functions = [
        {"name": one.name, "purpose": one.purpose, "prototype": f"{prototype(one)};", "arguments": one.arguments}
        for one in made.functions
    ]
    return {
        "format": "so",
        "library": made.library,
        "header": made.header,
        "threads": made.threads,
        "needs_openmp": made.openmp,
        "alignment_bytes": ALIGNMENT_BYTES,
        **_about(schedule, functions),
    }


def _write_cuda(schedule: Schedule, name: str, folder: Path) -> dict[str, Any]:
    import msgspec

    from anatune.codegen.export_cuda import write_cuda

    made = write_cuda(schedule, name, folder)
    kernel = made.kernel
    arguments = ", ".join(f"CUdeviceptr {one.tensor}" for one in made.arguments)
    launch = f"CUresult {name}_launch(CUfunction kernel, CUstream stream, {arguments});"
    main = {"name": name, "purpose": "launches the kernel", "prototype": launch, "arguments": made.arguments}
    return {
        "format": "cuda",
        "source": made.source,
        "cubin": made.cubin,
        "header": made.header,
        "launch": {
            "kernel": kernel.name,
            "grid": [kernel.grid, 1, 1],
            "block": [kernel.block, 1, 1],
            "shared_bytes": kernel.shared_bytes,
            "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
            "parameters": [parameter.tensor for parameter in kernel.parameters],
        },
        "compiler": msgspec.structs.asdict(made.facts),
        **_about(schedule, [main]),
    }


def _write_module(schedule: Schedule, name: str, folder: Path, threads: int) -> dict[str, Any]:
    import msgspec

    from anatune.codegen.export import tvm_module_json

    text, target = tvm_module_json(schedule, threads=threads)
    file = f"{name}.tvm.json"
    write_text(folder / file, text)
    tensors = (*schedule.workload.reads, *schedule.workload.epilogue_reads, schedule.workload.write)
    arguments = [{"tensor": one.tensor, "dtype": one.dtype, "shape": one.shape} for one in tensors]
    main = {"name": "main", "purpose": "all tensors in the workload's own layouts", "arguments": arguments}
    return {
        "format": "tvm",
        "module": file,
        "load": f"tvm.ir.load_json(open({file!r}).read())",
        "target": msgspec.json.decode(target),
        "threads": threads,
        **_about(schedule, [main]),
    }


def _about(schedule: Schedule, functions: list[dict[str, Any]]) -> dict[str, Any]:
    from anatune.records.export import workload_text
    from anatune.version import __version__

    return {
        "functions": functions,
        "workload": workload_text(schedule.workload),
        "hardware": schedule.hardware.name,
        "arch": schedule.hardware.arch,
        "anatune": __version__,
        "schedule": schedule,
    }


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    import msgspec

    write_text(path, msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode() + "\n")

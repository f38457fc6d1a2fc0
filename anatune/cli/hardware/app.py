"""``anatune hw``: list devices, show and check their specs, detect and calibrate this machine."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anatune.cli.hardware.calibrations import (
    calibration_s,
    learn_nests,
    print_calibration,
    print_spec_summary,
    write_detected_spec,
)
from anatune.cli.options import AsJson, BoardKey, Tracker
from anatune.cli.output import UsageError, note, print_json, print_lines, print_text
from anatune.cli.panels import subcommands
from anatune.cli.progress import Progress
from anatune.named import load

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.tuning.calibration import Learned

app = subcommands("List, show, check, detect and calibrate hardware specs.")


def _has_board(tracker: str | None, key: str | None) -> bool:
    """Return whether the options name a board.

    Raises
    ------
    UsageError
        One of ``--tracker`` and ``--key`` is missing.
    """
    if (tracker is None) != (key is None):
        given, missing = ("--tracker", "--key") if key is None else ("--key", "--tracker")
        raise UsageError(f"{given} is given without {missing}; a board needs both")
    return tracker is not None


@app.command("list")
def list_devices(as_json: AsJson = False) -> None:
    """List all devices that have a spec, including your own specs."""
    from anatune.core.hardware.files import list_hardware
    from anatune.report import devices

    specs = list_hardware()
    if not as_json:
        print_lines(devices.hardware_lines(specs))
        return
    print_json(
        [
            {
                **{name: getattr(spec, name) for name in ("name", "kind", "vendor", "model", "arch", "aliases")},
                "fp32_peak_flop_per_s": spec.compute.fp32_peak_flop_per_s,
                "dram_bandwidth_bytes_per_s": spec.dram.bandwidth_bytes_per_s,
                "unverified": devices.unverified_keys(spec),
            }
            for spec in specs
        ]
    )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A device's name or alias, host, or a spec file.")],
    as_json: AsJson = False,
) -> None:
    """Print the spec of a device; unverified numbers (without a checked source or measurement) are marked."""
    from anatune import api
    from anatune.report import devices

    spec = api.hardware(name)
    if as_json:
        print_json(spec)
    else:
        print_text(devices.marked_toml(spec).rstrip("\n"))


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A spec file (TOML).")], as_json: AsJson = False
) -> None:
    """Check a spec file and print all findings; the exit status is 1 if the file cannot be used."""
    from anatune.core.hardware.files import check_spec_file
    from anatune.errors import SpecError

    findings = check_spec_file(file)
    num_errors = sum(finding.level == "error" for finding in findings)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        verdict = [] if num_errors else [f"{file}: usable; run `anatune plan --hw {file} matmul 512x512x512`"]
        print_text("\n".join([*map(str, findings), *verdict]))
    if num_errors:
        raise SpecError(f"{file}: {num_errors} error{'s' * (num_errors > 1)}, the file cannot be used; see above")


@app.command("detect")
def detect(
    print_only: Annotated[bool, typer.Option("--print", help="Print the spec and write no file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace calibrated specs as well.")] = False,
    tracker: Tracker = None,
    key: BoardKey = None,
    as_json: AsJson = False,
) -> None:
    """Write the specs of this machine: its CPU for ``--hw host``, its GPUs for ``--hw host_gpu``.

    The clock of the CPU and its multiply-adds per cycle are measured, which takes about a second; ``anatune hw
    calibrate`` measures the rest. With ``--tracker`` and ``--key`` write the spec of a board's CPU, for ``--hw KEY``.
    """
    if print_only and force:
        raise UsageError("--print writes no file, but --force replaces files; leave one of them out")
    if _has_board(tracker, key):
        load("boards", "detect", "--tracker")(
            str(tracker), str(key), print_only=print_only, force=force, as_json=as_json
        )
        return
    import msgspec

    from anatune.errors import BuildError, MissingDependencyError
    from anatune.measure.cpu.detect import detect_cpu
    from anatune.measure.cuda.detect import present_gpus
    from anatune.report.devices import detected_cpu_lines

    spec = detect_cpu()
    try:
        from anatune.measure.cpu.calibration.peak import measured_peak

        spec = measured_peak(spec)
    except (MissingDependencyError, BuildError) as error:
        note(f"note: the clock of the CPU and its multiply-adds per cycle were not measured: {error}")
    gpus, gpu_note = present_gpus()
    gpus = [msgspec.structs.replace(gpu, name=f"host_gpu{index or ''}", aliases=()) for index, gpu in enumerate(gpus)]
    specs: list[GpuSpec | CpuSpec] = [] if print_only else [spec, *gpus]
    path = None
    for device in specs:
        written = write_detected_spec(device, force=force)
        path = written if device is spec else path
    if as_json:
        print_json({"path": str(path) if path else None, "cpu": spec, "gpus": gpus, "gpu_note": gpu_note})
        return
    gpu_lines = [f"GPU: {gpu.model} ({gpu.arch}); use --hw {gpu.name}" for gpu in gpus] or [f"GPU: none: {gpu_note}"]
    summary = gpu_lines if print_only else [*detected_cpu_lines(spec), *gpu_lines]
    print_spec_summary(spec, path, summary, print_only=print_only, kept="use the CPU's spec")


@app.command("calibrate")
def calibrate(
    what: Annotated[
        str, typer.Argument(metavar="[host|host_gpu|host_gpu1...]", help="The CPU of this machine, or one of its GPUs.")
    ] = "host",
    print_only: Annotated[bool, typer.Option("--print", help="Print the spec and write no file.")] = False,
    as_json: AsJson = False,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.01, help="The longest time it may take.  [default: 3 for a CPU, 1 for a GPU]"),
    ] = None,
    nests: Annotated[
        bool,
        typer.Option("--nests/--no-nests", help="CPU: also learn a correction of the model from generated kernels."),
    ] = True,
    tracker: Tracker = None,
    key: BoardKey = None,
) -> None:
    """Measure the CPU of this machine or one of its GPUs: clock, arithmetic, caches, memory; write the spec.

    On a CPU, generated kernels are measured as well, and a correction of the analytical model is learned from them.
    Plans use it only if it ranks kernels better on workloads that were left out of its training. With ``--tracker``
    and ``--key`` calibrate a board, for ``--hw KEY``.
    """
    if _has_board(tracker, key):
        if what != "host":
            raise UsageError(f"only the CPU of a board can be calibrated, got {what!r} with --tracker; leave it out")
        load("boards", "calibrate", "--tracker")(
            str(tracker), str(key), print_only=print_only, as_json=as_json, minutes=minutes or 3.0, nests=nests
        )
        return
    index = _gpu_index(what)
    if index is not None:
        _calibrate_gpu(index, print_only=print_only, as_json=as_json, minutes=minutes or 1.0)
        return
    began, minutes = time.monotonic(), minutes or 3.0
    from anatune.measure.cpu.calibration.calibrate import calibrate as measure
    from anatune.measure.cpu.host_files import check_host_spec, write_host_spec

    learned: Learned | None = None
    writes = not print_only
    if writes:
        check_host_spec("host")
    takes_s = calibration_s("this machine's CPU", minutes * (1.0 if writes and nests else 1 / 3), "cpu")
    with Progress(ticking=False) as progress:  # a thread that redraws would disturb the measurement
        show = progress.stages("calibrate", takes_s)
        result = measure(minutes=minutes / 3, progress=show)
        spec = result.spec
        path = write_host_spec(spec=spec) if writes else None
        if path is not None and nests:
            learned = learn_nests(spec, path, 60 * minutes - (time.monotonic() - began), show)
    print_calibration(result, path, learned, print_only=print_only, as_json=as_json)


def _gpu_index(what: str) -> int | None:
    """Return the number of the GPU to calibrate; None for the CPU."""
    name = what.lower()
    if name == "host":
        return None
    number = re.fullmatch(r"(?:host_)?gpu(\d{0,3})", name)
    if number is None:
        raise UsageError(f"{what!r} cannot be calibrated, expected host (the CPU), host_gpu, host_gpu1 and so on")
    return int(number[1] or 0)


def _calibrate_gpu(index: int, *, print_only: bool, as_json: bool, minutes: float) -> None:
    """Measure a GPU and write its spec."""
    import msgspec

    from anatune.measure.cpu.host_files import check_host_spec, write_host_spec
    from anatune.measure.cuda.calibration.calibrate import calibrate_gpu
    from anatune.report.devices import gpu_calibration_lines

    name = f"host_gpu{index or ''}"
    if not print_only:
        check_host_spec(name)
    with Progress(ticking=False) as progress:

        @functools.cache
        def announce() -> Callable[[str, float], None]:
            """Print how long it takes, once a GPU is found; return the progress callback."""
            return progress.stages("calibrate", calibration_s(f"GPU {index} of this machine", minutes))

        result = calibrate_gpu(index, minutes=minutes, progress=lambda stage, share: announce()(stage, share))
    spec = msgspec.structs.replace(result.spec, name=name, aliases=())
    path = None if print_only else write_host_spec(spec=spec)
    if as_json:
        print_json(
            {"path": str(path) if path else None, "gpu": spec, "measured": result.numbers, "notes": result.notes}
        )
        return
    summary = [*gpu_calibration_lines(spec, result.numbers), *result.notes]
    print_spec_summary(spec, path, summary, print_only=print_only)

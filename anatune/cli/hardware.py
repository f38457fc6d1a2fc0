"""``anatune hw``: the known devices, one device's spec, checking a spec file, detecting the present machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anatune.cli.output import note, print_json, print_lines, print_text

__all__ = ["app"]

app = typer.Typer(
    help="Show, check and detect hardware specs.",
    no_args_is_help=False,
    rich_markup_mode=None,
    add_completion=False,
)
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_devices(as_json: _Json = False) -> None:
    """List all devices that have a spec, the user's own ones included."""
    from anatune.core.hardware_files import list_hardware
    from anatune.report import tables

    specs = list_hardware()
    if not as_json:
        print_lines(tables.hardware_lines(specs))
        return
    print_json(
        [
            {
                "name": spec.name,
                "kind": spec.__struct_config__.tag,
                "vendor": spec.vendor,
                "model": spec.model,
                "arch": spec.arch,
                "aliases": spec.aliases,
                "fp32_peak_flop_per_s": spec.compute.fp32_peak_flop_per_s,
                "dram_bandwidth_bytes_per_s": spec.dram.bandwidth_bytes_per_s,
                "unverified": tables.unverified_keys(spec),
            }
            for spec in specs
        ]
    )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A name or alias, host, or a TOML file.")],
    as_json: _Json = False,
) -> None:
    """Print one device's spec; numbers that nobody has verified are marked."""
    from anatune import api
    from anatune.report import tables

    spec = api.hardware(name)
    if as_json:
        print_json(spec)
    else:
        print_text(tables.marked_toml(spec).rstrip("\n"))


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A spec file (TOML).")], as_json: _Json = False
) -> None:
    """Check a spec file and say everything there is to say about it; exit status 1 if it cannot be used."""
    from anatune.core.hardware_files import check_spec_file
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
    print_only: Annotated[bool, typer.Option("--print", help="Print the spec, write nothing.")] = False,
    as_json: _Json = False,
) -> None:
    """Write the specs of the present machine: its CPU for ``--hw host``, its GPUs for ``--hw host_gpu``."""
    import msgspec

    from anatune.core.hardware_files import spec_to_toml
    from anatune.measure.detect import detect_cpu
    from anatune.measure.detect_gpu import gpu_detection
    from anatune.measure.host_files import write_host_spec
    from anatune.report import tables, units

    spec = detect_cpu()
    gpus, gpu_note = gpu_detection()
    gpus = [msgspec.structs.replace(gpu, name=f"host_gpu{index or ''}", aliases=()) for index, gpu in enumerate(gpus)]
    path = None if print_only else write_host_spec(spec=spec)
    if not print_only:
        for gpu in gpus:
            write_host_spec(spec=gpu)
    if as_json:
        print_json({"path": str(path) if path else None, "cpu": spec, "gpus": gpus, "gpu_note": gpu_note})
        return
    gpu_lines = [f"GPU: {gpu.model} ({gpu.arch}); use --hw {gpu.name}" for gpu in gpus] or [f"GPU: none, {gpu_note}"]
    if print_only:
        print_text(spec_to_toml(spec).rstrip("\n"))
        for line in gpu_lines:
            note(line)
        return
    compute = spec.compute
    caches = ", ".join(
        f"{level} {units.size(cache.size_bytes)}"
        for level, cache in (("L1", spec.l1), ("L2", spec.l2), ("L3", spec.l3))
        if cache is not None
    )
    doubtful = len(tables.unverified_keys(spec))
    print_text(
        "\n".join(
            [
                f"wrote {path}; use it as --hw host",
                f"CPU: {spec.model} ({spec.arch}), {compute.num_cores} cores, "
                f"{compute.isa} of {compute.simd_bits} bits, {units.flop_rate(compute.fp32_peak_flop_per_s)}, {caches}",
                f"unverified: {doubtful} numbers, marked by `anatune hw show host`",
                *gpu_lines,
            ]
        )
    )

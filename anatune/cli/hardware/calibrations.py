"""Parts that calibrations of this machine and of boards share: learning from nests, printing the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anatune.cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, HardwareSpec
    from anatune.measure.cpu.calibration.calibrate import Calibration
    from anatune.tuning.calibration import Learned

_BUILD_S = 15.0
"""Seconds for building the probes, added to the given minutes."""


def calibration_s(what: str, minutes: float, compiled: str = "") -> float:
    """Print how long a calibration will take before it begins, and return the seconds.

    Parameters
    ----------
    minutes : float
        How long it measures.
    compiled : str
        Module of ``anatune/numerics`` that it needs, which is compiled now unless an earlier run has cached it.
    """
    from anatune.errors import MissingDependencyError
    from anatune.model.learned.residual import import_lightgbm
    from anatune.numerics._jit import first_compilation_s

    try:
        import_lightgbm()
    except MissingDependencyError as error:
        note(f"note: no correction of the analytical model will be learned: {error}")
    seconds = 60 * minutes + _BUILD_S + (first_compilation_s(compiled) if compiled else 0.0)
    duration_text = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    note(f"calibrate: {what}, about {duration_text} (--minutes changes that); other programs on the machine disturb it")
    return seconds


def learn_nests(
    spec: CpuSpec, path: Path, left_s: float, progress: Callable[[str, float], None], **elsewhere: Any
) -> Learned | None:
    """Learn from generated kernels in the seconds that are left; return None if a package for that is missing.

    Parameters
    ----------
    elsewhere
        `make` and `ran_under` of `anatune.tuning.calibration.learn_from_nests`.
    """
    from anatune.errors import MissingDependencyError
    from anatune.tuning.calibration import learn_from_nests

    try:
        records = path.with_name(f"{spec.name}_nests.sqlite")
        return learn_from_nests(spec, records, budget_s=left_s, progress=progress, **elsewhere)
    except MissingDependencyError:  # `calibration_s` has reported it
        return None


def print_calibration(
    result: Calibration, path: Path | None, learned: Learned | None, *, print_only: bool, as_json: bool
) -> None:
    """Print the results of a calibration and the file that holds them."""
    from anatune.report.devices import cpu_calibration_lines, nest_lines, prediction_lines

    spec = result.spec
    if as_json:
        agreements = {"all": result.agreement, "fitting": result.fitting}
        print_json(
            {
                "path": str(path) if path else None,
                "cpu": spec,
                "measured": result.numbers,
                "tiles": [{**entry._asdict(), "tile": list(entry.tile)} for entry in result.tiles],
                "prediction": {
                    name: {
                        "precision": a.precision,
                        "recall": a.recall,
                        "good": a.num_good,
                        "predicted": a.num_predicted,
                    }
                    for name, a in agreements.items()
                },
                "quiet_share": result.quiet_share,
                "nests": None if learned is None else learned.summary,
                "notes": result.notes,
            }
        )
        return
    summary = [*cpu_calibration_lines(spec), *result.notes, *prediction_lines(result)]
    if learned is not None:
        summary += nest_lines(learned)
    print_spec_summary(spec, path, summary, print_only=print_only)


def write_detected_spec(spec: HardwareSpec, *, force: bool) -> Path | None:
    """Write a detected spec and return the file; if a calibrated spec is there, keep it, note that and return None."""
    from anatune.measure.cpu.host_files import calibrated_file, write_host_spec

    kept = None if force else calibrated_file(spec)
    if kept is None:
        return write_host_spec(spec=spec)
    note(f"note: {kept} holds calibrated numbers and was not replaced; --force replaces it")
    return None


def print_spec_summary(
    spec: HardwareSpec, path: Path | None, summary: list[str], *, print_only: bool, kept: str = "use it"
) -> None:
    """Print the file that holds a spec, or with `print_only` the spec itself, and a summary.

    Parameters
    ----------
    kept : str
        The words to print if an earlier file was kept.
    """
    from anatune.core.hardware.files import spec_to_toml

    if print_only:
        print_text(spec_to_toml(spec).rstrip("\n"))
        for line in summary:
            note(line)
        return
    where = kept if path is None else f"wrote {path}; use it"
    print_text("\n".join([f"{where} as --hw {spec.name}", *summary]))

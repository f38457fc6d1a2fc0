"""What calibrations of CPUs share, of this machine's and of boards': learning from nests, telling what came of it."""

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
"""What building probes takes, beside the minutes that are given."""


def calibration_s(what: str, minutes: float, compiled: str = "") -> float:
    """Say how long a calibration will take, before it begins; return the seconds.

    Parameters
    ----------
    minutes : float
        That it measures.
    compiled : str
        Room of ``anatune/numerics`` that it needs: compiled now, where no earlier run left the code.
    """
    from anatune.errors import MissingDependencyError
    from anatune.model.learned.residual import import_lightgbm
    from anatune.numerics._jit import first_compilation_s

    try:
        import_lightgbm()
    except MissingDependencyError as error:
        note(f"note: no correction of the model will be learned: {error}")
    seconds = 60 * minutes + _BUILD_S + (first_compilation_s(compiled) if compiled else 0.0)
    took = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    note(f"calibrate: {what}, about {took} (--minutes gives it more or less); whatever else runs here disturbs it")
    return seconds


def learn_nests(
    spec: CpuSpec, path: Path, left_s: float, progress: Callable[[str, float], None], **elsewhere: Any
) -> Learned | None:
    """Learn from generated kernels in the seconds that are left; None where a package for that is missing.

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
    except MissingDependencyError:  # which was said before anything was measured
        return None


def tell_calibration(
    result: Calibration, path: Path | None, learned: Learned | None, *, print_only: bool, as_json: bool
) -> None:
    """Print what a calibration measured, and the file that holds it."""
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
    tell_spec(spec, path, summary, print_only=print_only)


def write_detected(spec: HardwareSpec, *, force: bool) -> Path | None:
    """Write what was detected and return the file; None, and a note, where calibrated numbers are kept."""
    from anatune.measure.cpu.host_files import calibrated_file, write_host_spec

    kept = None if force else calibrated_file(spec)
    if kept is None:
        return write_host_spec(spec=spec)
    note(f"{kept} holds calibrated numbers and was kept; --force replaces it")
    return None


def tell_spec(
    spec: HardwareSpec, path: Path | None, summary: list[str], *, print_only: bool, kept: str = "use it"
) -> None:
    """Print the file that holds a spec, or with `print_only` the spec, and what is to be said of it.

    Parameters
    ----------
    kept : str
        What is said where an earlier file was kept and none was written.
    """
    from anatune.core.hardware.files import spec_to_toml

    if print_only:
        print_text(spec_to_toml(spec).rstrip("\n"))
        for line in summary:
            note(line)
        return
    where = kept if path is None else f"wrote {path}; use it"
    print_text("\n".join([f"{where} as --hw {spec.name}", *summary]))

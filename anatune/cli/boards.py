"""``anatune hw detect|calibrate`` for a board behind TVM's RPC tracker."""

from __future__ import annotations

from anatune.cli.output import UsageError, note, print_json, print_text

__all__ = ["detect_board", "has_board"]


def has_board(tracker: str | None, key: str | None) -> bool:
    """Return whether a board is meant.

    Raises
    ------
    UsageError
        Half of what names one is missing.
    """
    if (tracker is None) != (key is None):
        given, missing = ("--tracker", "--key") if key is None else ("--key", "--tracker")
        raise UsageError(f"{given} is given without {missing}; boards are found by both")
    return tracker is not None


def detect_board(tracker: str, key: str, *, print_only: bool, force: bool, as_json: bool) -> None:
    """Write the spec of a board's CPU, called after its key."""
    from anatune.core.hardware.files import spec_to_toml
    from anatune.measure.boards.asking import ask_board
    from anatune.measure.cpu.host_files import calibrated_file, write_host_spec
    from anatune.report.calibration import detected_cpu_lines

    warn_of(tracker)
    board = ask_board(tracker, key)
    spec, path = board.hardware, None
    kept = None if force or print_only else calibrated_file(spec)
    if kept is not None:
        note(f"{kept} holds calibrated numbers and was kept; --force replaces it")
    elif not print_only:
        path = write_host_spec(spec=spec)
    if as_json:
        print_json({"path": str(path) if path else None, "cpu": spec, "board": board.name, "boards": board.boards})
        return
    lines = [
        *detected_cpu_lines(spec),
        f"board {board.name}, {board.boards} of key {key}; {board.environment.platform}",
    ]
    if print_only:
        print_text(spec_to_toml(spec).rstrip("\n"))
        for line in lines:
            note(line)
        return
    where = f"wrote {path}; use it as --hw {spec.name}" if path else f"use it as --hw {spec.name}"
    print_text("\n".join([where, *lines]))


def warn_of(tracker: str) -> None:
    """Say what it means that a tracker is on another machine."""
    from anatune.measure.boards.tracker import open_warning, tracker_of

    if warning := open_warning(tracker_of(tracker)):
        note(warning)

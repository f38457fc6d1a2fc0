"""``anatune hw detect|calibrate`` for a board behind TVM's RPC tracker."""

from __future__ import annotations

import time

from anatune.cli.hardware.calibrations import learn_nests, print_calibration, print_spec_summary, write_detected_spec
from anatune.cli.output import note, print_json
from anatune.cli.progress import Progress


def detect_board(tracker: str, key: str, *, print_only: bool, force: bool, as_json: bool) -> None:
    """Write the spec of a board's CPU under the name of its key."""
    from anatune.fleet.boards.description import ask_board
    from anatune.report.devices import detected_cpu_lines

    _warn_if_open(tracker)
    board = ask_board(tracker, key)
    spec = board.hardware
    path = None if print_only else write_detected_spec(spec, force=force)
    if as_json:
        print_json({"path": str(path) if path else None, "cpu": spec, "board": board.name, "boards": board.boards})
        return
    lines = [
        *detected_cpu_lines(spec),
        f"board {board.name}, {board.boards} with key {key}; {board.environment.platform}",
    ]
    print_spec_summary(spec, path, lines, print_only=print_only)


def calibrate_board_cpu(
    tracker: str, key: str, *, print_only: bool, as_json: bool, minutes: float, nests: bool
) -> None:
    """Calibrate a board's CPU, write its spec under the name of the key, and learn from kernels that run there."""
    import functools

    from anatune.fleet.boards.calibration import calibrate_board
    from anatune.fleet.boards.measurer import BoardMeasurer
    from anatune.measure.cpu.host_files import check_host_spec, write_host_spec

    if not print_only:
        check_host_spec(key)
    began = time.monotonic()
    _warn_if_open(tracker)
    most = minutes * (1.0 if nests and not print_only else 1 / 3)
    note(f"calibrate: a board with key {key}; up to {most:.3g} min of measurements, and time to build and send probes")
    board, result = calibrate_board(tracker, key, minutes / 3)
    path, learned = None if print_only else write_host_spec(spec=result.spec), None
    if path is not None and nests:
        make = functools.partial(BoardMeasurer, tracker=tracker, key=key, device=board.hardware, boards=board.boards)
        left_s = 60 * minutes - (time.monotonic() - began)
        with Progress(ticking=False) as progress:
            tell = progress.stages("calibrate", left_s)
            learned = learn_nests(result.spec, path, left_s, tell, make=make, ran_under=board.environment)
    print_calibration(result, path, learned, print_only=print_only, as_json=as_json)


def _warn_if_open(tracker: str) -> None:
    """Print a warning if the tracker is on another machine."""
    from anatune.fleet.boards.tracker import open_warning, tracker_of

    if warning := open_warning(tracker_of(tracker)):
        note(warning)

"""Output of ``anatune tune``: progress while it measures, the answer, and the file of the best schedule."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from anatune.cli.output import line_width, note, print_json, print_lines
from anatune.cli.progress import Progress
from anatune.errors import AnatuneError, RecordError
from anatune.files import Output, reason
from anatune.named import load

if TYPE_CHECKING:
    from typing import Self

    from anatune.measure.place import WorkerState
    from anatune.tuning.result import TuningProgress, TuningResult

_EXPORT = {
    "cpu": "--format so --output DIR` writes a shared library of it",
    "gpu": "--target cuda --output DIR` writes its CUDA C source and cubin",
}


def _export_hint(result: TuningResult, written: Path | None) -> str:
    """Return the command that exports the best schedule, from its file or else from the records."""
    how = _EXPORT[result.hardware.kind]
    if written is not None:
        return f"best schedule: {written}; `anatune export {shlex.quote(str(written))} {how}"
    from anatune.core.accuracy import STANDARD
    from anatune.records.export import workload_text

    words = [f"--records {shlex.quote(str(result.records))}", f"--hw {shlex.quote(result.hardware.name)}"]
    words += [f"--threads {result.threads}"] if result.hardware.most_threads else []
    words += [f"--accuracy {result.accuracy}"] if result.accuracy != STANDARD else []
    return f"best schedule: `anatune export {' '.join(words)} {workload_text(result.workload)} {how}"


def show_result(result: TuningResult, target: Output | None, as_json: bool) -> None:
    """Print the result of a session, and write the best schedule to its file if one was named.

    Raises
    ------
    RecordError
        The file cannot be written; the result was printed.
    """
    from anatune.report.tuning import result_lines

    hints: list[str] = []
    written, failure = None, ""
    if result.best_trial is not None:
        if target is not None:
            try:
                target.write(f"{result.best.to_json()}\n".encode())
                written = target.path
            except OSError as error:  # the result is printed first
                failure = reason(error)
        hints.append(_export_hint(result, written))
    hints.append(f"all trials: {result.records}; `anatune records list --records {result.records}` shows them")
    if as_json:
        print_json({**result.to_dict(), "output": None if written is None else str(written)})
    else:
        print_lines(result_lines(result, hints, width=line_width()))
    if failure and target is not None:
        raise RecordError(
            f"{target.path}: {failure}, the best schedule was not written; it is kept in {result.records}: run "
            f"`anatune export --records {result.records}` with the workload, or name another file with --output"
        )


def write_session(result: TuningResult, target: Output | None, records_place: str | Path) -> None:
    """Write the page of a session if one is asked for; the end times of its trials are read from its records.

    Parameters
    ----------
    records_place : str or Path
        The record file or server as it was given, because results leave out the password of a server.
    """
    if target is None:
        return
    from anatune.cli.outputs import write_page
    from anatune.records.store import RecordStore
    from anatune.report.sessions import result_view

    records = []
    if result.records is not None and result.session is not None:
        try:
            with RecordStore(records_place, read_only=True) as store:
                # The session itself has reported damaged rows.
                records = store.trials(session=result.session, on_damage=lambda text: None)
        except AnatuneError as error:
            note(f"note: the page does not show when trials ended, because their records cannot be read: {error}")
    write_page(load("pages", "session")(result_view(result, records)), target)


class Lines:
    """Progress of a session on stderr: a bar on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self.progress = Progress(compiles=True)
        self._workers: tuple[WorkerState, ...] = ()

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)

    def tell(self, workers: tuple[WorkerState, ...]) -> None:
        """Print each change in the state of the machines that measure once."""
        if workers == self._workers:
            return
        from anatune.report.workers import news

        lines, self._workers = news(self._workers, workers), workers
        for line in lines:
            self.progress.print_above(line)


class Display(Lines):
    """The progress display of one workload, called with each `TuningProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._best: int | None = None

    def __call__(self, progress: TuningProgress) -> None:
        """Show the progress of the session."""
        from anatune.report.tuning import progress_text

        self.tell(progress.workers)
        if progress.stage == "start":
            self.progress.print_above(progress_text(progress))
            return
        best = None if progress.best is None else progress.best.number
        failed = progress.trial is not None and progress.trial.measurement.time_s is None
        news = progress.stage != "measure" or best != self._best or failed or progress.done == progress.total
        # A thread that redraws the bar would disturb the measured kernel.
        self.progress.ticking = progress.stage == "plan"
        if self.progress.show(progress_text(progress), progress.done, progress.total, news=news):
            self._best = best

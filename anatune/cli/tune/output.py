"""What ``anatune tune`` shows: progress while it measures, then the answer, and the file of the best schedule."""

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
    "cpu": "--format so --output DIR` makes a library of it",
    "gpu": "--target cuda --output DIR` writes its CUDA C and cubin",
}


def _export_hint(result: TuningResult, written: Path | None) -> str:
    """Return what makes a library of the best schedule: from its file, else from the records."""
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
    """Say what was found, and write the best schedule to its file, where there is one.

    Raises
    ------
    RecordError
        The file cannot be written; what was found is said all the same.
    """
    from anatune.report.tuning import result_lines

    hints: list[str] = []
    written, failure = None, ""
    if result.best_trial is not None:
        if target is not None:
            try:
                target.write(f"{result.best.to_json()}\n".encode())
                written = target.path
            except OSError as error:  # what was found is said all the same
                failure = reason(error)
        hints.append(_export_hint(result, written))
    hints.append(f"all trials: {result.records}; `anatune records list --records {result.records}` shows them")
    if as_json:
        print_json({**result.to_dict(), "output": None if written is None else str(written)})
    else:
        print_lines(result_lines(result, hints, width=line_width()))
    if failure and target is not None:
        raise RecordError(
            f"{target.path}: {failure}, the best schedule was not written; it is in {result.records}: "
            f"`anatune export --records {result.records}` with the workload, or --output with another place"
        )


def write_session(result: TuningResult, target: Output | None, place: str | Path) -> None:
    """Write the page of a session, where one is asked for; when its trials ended is read from its records.

    Parameters
    ----------
    place : str or Path
        Of the records, as it was given: results leave a server's password out.
    """
    if target is None:
        return
    from anatune.cli.outputs import write_page
    from anatune.records.store import RecordStore
    from anatune.report.sessions import result_view

    records = []
    if result.records is not None and result.session is not None:
        try:
            with RecordStore(place, read_only=True) as store:
                records = store.trials(session=result.session, on_damage=lambda text: None)  # a resumed session said it
        except AnatuneError as error:
            note(f"note: the page has no seconds of the trials: {error}")
    write_page(load("pages", "session")(result_view(result, records)), target)


class Lines:
    """Progress on stderr: a bar on a terminal, lines elsewhere."""

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
        """Say, once, what happened to the machines that measure."""
        if workers == self._workers:
            return
        from anatune.report.workers import news

        lines, self._workers = news(self._workers, workers), workers
        for line in lines:
            self.progress.above(line)


class Display(Lines):
    """Of one workload: called with each `TuningProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._best: int | None = None

    def __call__(self, progress: TuningProgress) -> None:
        """Show how far the session is."""
        from anatune.report.tuning import progress_text

        self.tell(progress.workers)
        if progress.stage == "start":
            self.progress.above(progress_text(progress))
            return
        best = None if progress.best is None else progress.best.number
        failed = progress.trial is not None and progress.trial.measurement.time_s is None
        news = progress.stage != "measure" or best != self._best or failed or progress.done == progress.total
        # A thread that redraws would take time from the kernel that is measured.
        self.progress.ticking = progress.stage == "plan"
        if self.progress.show(progress_text(progress), progress.done, progress.total, news=news):
            self._best = best

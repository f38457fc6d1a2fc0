"""What ``anatune tune`` shows: progress while it measures, then the answer, and the file of the best schedule."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from anatune.cli.output import line_width, note, print_json, print_lines, write_text
from anatune.cli.progress import Progress
from anatune.errors import AnatuneError, RecordError
from anatune.files import reason

if TYPE_CHECKING:
    from typing import Self

    from anatune.core.workload.nest import Workload
    from anatune.measure.place import WorkerState
    from anatune.tuning.result import ModelProgress, TuningProgress, TuningResult

__all__ = ["Display", "ModelDisplay", "schedule_file", "show_result", "write_session"]

_EXPORT = {
    "cpu": "--format so --output DIR` makes a library of it",
    "gpu": "--target cuda --output DIR` writes its CUDA C and cubin",
}


def schedule_file(workload: Workload) -> str:
    """Return the name of the file that the best schedule is written to by default."""
    from anatune.records.export import workload_text

    return f"{re.sub(r'[^A-Za-z0-9.]+', '_', workload_text(workload)).strip('_')}.schedule.json"


def show_result(result: TuningResult, target: Path, as_json: bool) -> None:
    """Write the best schedule to its file and say what was found.

    Raises
    ------
    RecordError
        The file cannot be written; what was found is said all the same.
    """
    from anatune.report.tuning import result_lines

    hints, failure = [], ""
    if result.best_trial is not None:
        try:
            write_text(target, result.best.to_json() + "\n")
        except OSError as error:  # what was found is said all the same
            failure = reason(error)
    if result.best_trial is not None and not failure:
        hints.append(f"best schedule: {target}; `anatune export {target} {_EXPORT[result.hardware.kind]}")
    hints.append(f"all trials: {result.records}; `anatune records list --records {result.records}` shows them")
    if as_json:
        written = result.best_trial is not None and not failure
        print_json({**result.to_dict(), "output": str(target) if written else None})
    else:
        print_lines(result_lines(result, hints, width=line_width()))
    if failure:
        raise RecordError(
            f"{target}: {failure}, the best schedule was not written; it is in {result.records}: "
            f"`anatune export --records {result.records}` with the workload, or --output with another place"
        )


def write_session(result: TuningResult, html: Path | None, place: str | Path) -> None:
    """Write the page of a session, where one is asked for; when its trials ended is read from its records.

    Parameters
    ----------
    place : str or Path
        Of the records, as it was given: results leave a server's password out.
    """
    if html is None:
        return
    from anatune.cli.html import write_page
    from anatune.pages.session import session_page
    from anatune.records.store import RecordStore
    from anatune.report.sessions import result_view

    records = []
    if result.records is not None and result.session is not None:
        try:
            with RecordStore(place, read_only=True) as store:
                records = store.trials(session=result.session, on_damage=lambda text: None)  # a resumed session said it
        except AnatuneError as error:
            note(f"note: the page has no seconds of the trials: {error}")
    write_page(session_page(result_view(result, records)), html)


class _Lines:
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

    def _tell(self, workers: tuple[WorkerState, ...]) -> None:
        """Say, once, what happened to the machines that measure."""
        if workers == self._workers:
            return
        from anatune.report.workers import news

        lines, self._workers = news(self._workers, workers), workers
        for line in lines:
            self.progress.above(line)


class Display(_Lines):
    """Of one workload: called with each `TuningProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._best: int | None = None

    def __call__(self, progress: TuningProgress) -> None:
        """Show how far the session is."""
        from anatune.report.tuning import progress_text

        self._tell(progress.workers)
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


class ModelDisplay(_Lines):
    """Of all kernels of a model: called with each `ModelProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._kernel = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._workers:  # a model has no summary of its trials: who measured is said here
            from anatune.report.workers import share_lines
            from anatune.tuning.result import WorkerShare

            for line in share_lines([WorkerShare(worker) for worker in self._workers], line_width()):
                note(line.text)

    def __call__(self, progress: ModelProgress) -> None:
        """Show how far the model is."""
        from anatune.report.tuning import model_progress_text, worth_text

        self._tell(progress.workers)
        if not self._kernel and progress.bound_s is not None:
            self.progress.above(worth_text(progress.predicted_s, progress.bound_s, "the model's kernels are"))
        news = progress.kernel != self._kernel or progress.done == progress.total
        self._kernel = progress.kernel
        self.progress.ticking = False
        self.progress.show(model_progress_text(progress), progress.done, progress.total, news=news)

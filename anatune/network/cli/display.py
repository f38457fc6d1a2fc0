"""Progress output of ``anatune compile --trials`` while kernels of a network are measured."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from anatune.cli.output import line_width, note
from anatune.cli.tune.output import Lines

if TYPE_CHECKING:
    from anatune.tuning.result import ModelProgress

__all__ = ["ModelDisplay"]


class ModelDisplay(Lines):
    """Displays the progress of a model; it is called with each `ModelProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._kernel = ""

    def begin(self, stage: str) -> None:
        """Display a stage; without animation while kernels are timed, because a drawing thread would disturb them."""
        from anatune.network.compiling.costs import STAGES

        self.progress.ticking = stage != STAGES["tune"]
        if self.progress.ticking:
            self.progress.begin(stage)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._workers:  # the shares of workers are printed here, because a model prints no trials
            from anatune.report.workers import share_lines
            from anatune.tuning.result import WorkerShare

            for line in share_lines([WorkerShare(worker) for worker in self._workers], line_width()):
                note(line.text)

    def __call__(self, progress: ModelProgress) -> None:
        """Display the progress of the model."""
        from anatune.report.tuning import model_progress_text, worth_text

        self.tell(progress.workers)
        if not self._kernel and progress.bound is not None:
            self.progress.print_above(worth_text(progress.predicted_s, progress.bound, "the model's kernels are"))
        news = progress.kernel != self._kernel or progress.done == progress.total
        self._kernel = progress.kernel
        self.progress.ticking = False
        self.progress.show(model_progress_text(progress), progress.done, progress.total, news=news)

"""What ``anatune compile --trials`` shows while it measures the kernels of a network."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from anatune.cli.output import line_width, note
from anatune.cli.tune.output import Lines

if TYPE_CHECKING:
    from anatune.tuning.result import ModelProgress

__all__ = ["ModelDisplay"]


class ModelDisplay(Lines):
    """Of all kernels of a model: called with each `ModelProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._kernel = ""

    def begin(self, stage: str) -> None:
        """Say what goes on; nothing while kernels are timed, which a thread that draws would disturb."""
        from anatune.network.compiling.costs import STAGES

        self.progress.ticking = stage != STAGES["tune"]
        if self.progress.ticking:
            self.progress.begin(stage)

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

        self.tell(progress.workers)
        if not self._kernel and progress.bound is not None:
            self.progress.print_above(worth_text(progress.predicted_s, progress.bound, "the model's kernels are"))
        news = progress.kernel != self._kernel or progress.done == progress.total
        self._kernel = progress.kernel
        self.progress.ticking = False
        self.progress.show(model_progress_text(progress), progress.done, progress.total, news=news)

"""Requests of ``anatune prune``, and the type of its writers: functions from a request to lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from anatune import api
from anatune.core.hardware.spec import GpuSpec, HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.learned.corrections import apply_correction, find_correction
from anatune.model.pruning.diversity import MOST_DIVERSE
from anatune.model.pruning.order import AnalyticalOrder, ChosenOrder, Points
from anatune.model.pruning.subset import RankedSubset, SpaceSubset
from anatune.templates import CUDA, template_of
from anatune.templates.base.model import Model, Progress
from anatune.templates.cuda.model.model import CudaModel


@dataclass(frozen=True)
class PruneRequest:
    """The arguments of one ``anatune prune``.

    Attributes
    ----------
    workload, hardware, keep, template, accuracy, threads, time_limit_s, distinct,
    diverse, correction, progress
        As in `anatune.prune`.
    most : int
        Largest number of schedules to write.
    """

    workload: Workload
    hardware: HardwareSpec
    keep: float = 0.01
    most: int = 1000
    template: str | None = None
    accuracy: str | None = None
    threads: int | None = None
    time_limit_s: float | None = None
    distinct: bool = False
    diverse: bool = True
    correction: str | Path = "auto"
    progress: Progress | None = None

    @property
    def may_end_early(self) -> bool:
        """True if more schedules may be kept than are written."""
        return not isinstance(self.keep, int) or self.keep > self.most

    @property
    def own_template(self) -> str | None:
        """The only template that is ranked; None if several are ranked together."""
        if self.template is not None or self.hardware.kind == "gpu":
            return self.template
        return template_of(None, self.hardware).name

    def may_choose(self, num_kept: int) -> bool:
        """Return whether `model.pruning.diversity` chooses the points, as in `anatune.prune`; CUDA cores only."""
        return self.diverse and self.time_limit_s is None and 0 < num_kept <= MOST_DIVERSE

    def gpu(self, form: str) -> GpuSpec:
        """Return the hardware for a format of GPUs; raise SpaceError if it is a CPU."""
        if self.hardware.kind != "gpu":
            name = self.hardware.name
            raise SpaceError(f"{form}: {name} is no GPU; choose a GPU of `anatune hw list`, or use --for json")
        return self.hardware

    def require_cuda_cores(self, form: str) -> None:
        """Raise unless the template is the one of CUDA cores, for a format that supports no other.

        Raises
        ------
        SpaceError
            Another template was requested.
        """
        template = template_of(self.template, self.hardware)
        if template is not CUDA:
            raise SpaceError(
                f"{form}: template is {template.name}, expected cuda; leave --template out, or use --for json, which "
                "supports all"
            )

    def choose_few(self, plain: Model, used: Model, count: int, express: Callable[[Points], Points]) -> Points | None:
        """Return few points, best first, chosen as in `anatune.prune`; None if fewer than `count` can be expressed.

        Parameters
        ----------
        plain, used
            The analytical model, and the model that predicts, which may be corrected.
        express : callable
            Function from points to those that the format can express.
        """
        order = AnalyticalOrder(plain, distinct=True, progress=self.progress)
        points = ChosenOrder(used, order, count, distinct=self.distinct, express=express).first(count)
        return points if len(points) == count else None  # then read the order itself, which has more

    def subset(self) -> RankedSubset:
        """Return the result of `anatune.prune`.

        Raises
        ------
        SpaceError
            No schedule is legal.
        """
        subset = api.prune(
            self.workload,
            self.hardware,
            self.keep,
            template=self.template,
            accuracy=self.accuracy,
            threads=self.threads,
            time_limit_s=self.time_limit_s,
            distinct=self.distinct,
            diverse=self.diverse,
            correction=self.correction,
            progress=self.progress,
        )
        assert isinstance(subset, RankedSubset)  # not given candidates
        self._check_legal(subset)
        return subset

    def plain_subset(self, plain: CudaModel) -> SpaceSubset:
        """Return the result of `anatune.prune` for divisor tilings without split reductions, as other tuners have.

        Parameters
        ----------
        plain : GpuModel
            Model of a space without masked tiles.

        Raises
        ------
        SpaceError
            No schedule is legal.
        """
        saved = find_correction(self.hardware, CUDA.name, self.correction)
        subset = SpaceSubset(
            apply_correction(plain, saved),
            self.keep,
            time_limit_s=self.time_limit_s,
            distinct=self.distinct,
            diverse=self.diverse,
            progress=self.progress,
        )
        self._check_legal(subset)
        return subset

    def _check_legal(self, subset: RankedSubset) -> None:
        """Raise SpaceError if a subset is empty."""
        if not subset.num_legal:
            what, size = f"{self.workload.describe()} on {self.hardware.name}", f"{subset.space_size:.4g}"
            raise SpaceError(f"{what}: none of {size} schedules is legal; `anatune plan` says which rules reject them")


def write_object_lines(head: object, key: str, entries: Iterable[object]) -> Iterator[str]:
    """Yield a JSON object in lines: the fields of `head`, then a list under `key` with one entry on each line."""
    yield f'{msgspec.json.encode(head).decode()[:-1]}, "{key}": ['
    waiting = ""
    for entry in entries:
        if waiting:
            yield f"{waiting},"
        waiting = msgspec.json.encode(entry).decode()
    yield waiting
    yield "]}"


Writer = Callable[[PruneRequest], Iterator[str]]

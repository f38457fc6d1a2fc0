"""What ``anatune prune`` was asked for: what a writer of a format is given, a function from it to lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from anatune import api
from anatune.core.hardware.spec import GpuSpec, HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.learned.corrections import corrected, find_correction
from anatune.model.pruning.diversity import MOST_DIVERSE
from anatune.model.pruning.order import ChosenOrder, PlainOrder, Points
from anatune.model.pruning.subset import RankedSubset, SpaceSubset
from anatune.templates import CUDA, template_of
from anatune.templates.base.model import Model, Progress
from anatune.templates.cuda.model.model import GpuModel


@dataclass(frozen=True)
class PruneRequest:
    """What was asked of ``anatune prune``.

    Attributes
    ----------
    workload, hardware, keep, template, accuracy, threads, time_limit_s, distinct,
    diverse, correction, progress
        As `anatune.prune`.
    most : int
        Schedules that are written at most.
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
        """Whether more may be kept than are written."""
        return not isinstance(self.keep, int) or self.keep > self.most

    @property
    def own_template(self) -> str | None:
        """The one template that is ranked; None: several together."""
        if self.template is not None or self.hardware.kind == "gpu":
            return self.template
        return template_of(None, self.hardware).name

    def may_choose(self, num_kept: int) -> bool:
        """Whether `model.pruning.diversity` chooses so few, as `anatune.prune` does; CUDA cores only."""
        return self.diverse and self.time_limit_s is None and 0 < num_kept <= MOST_DIVERSE

    def gpu(self, form: str) -> GpuSpec:
        """Return the hardware of a format for GPUs; SpaceError if it is a CPU."""
        if self.hardware.kind != "gpu":
            name = self.hardware.name
            raise SpaceError(f"{form}: {name} is no GPU; name one of `anatune hw list`, or use --for json")
        return self.hardware

    def require_cuda_cores(self, form: str) -> None:
        """Refuse other GPU templates than that of CUDA cores, for a format that knows it only.

        Raises
        ------
        SpaceError
            Another one was asked for.
        """
        template = template_of(self.template, self.hardware)
        if template is not CUDA:
            raise SpaceError(
                f"{form}: template is {template.name}, expected cuda; leave --template out, or use --for json, which "
                "has it"
            )

    def chosen(self, plain: Model, used: Model, count: int, express: Callable[[Points], Points]) -> Points | None:
        """Return few points, best first, chosen as `anatune.prune` chooses them; None where fewer can be expressed.

        Parameters
        ----------
        plain, used
            The analytical model, and the one that predicts: it may be corrected.
        express : callable
            Points -> those that the format can say.
        """
        ahead = PlainOrder(plain, distinct=True, progress=self.progress)
        points = ChosenOrder(used, ahead, count, distinct=self.distinct, express=express).first(count)
        return points if len(points) == count else None  # the order has more of them

    def subset(self) -> RankedSubset:
        """Return what `anatune.prune` says.

        Raises
        ------
        SpaceError
            Nothing is legal.
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
        assert isinstance(subset, RankedSubset)  # of no list
        self._check_legal(subset)
        return subset

    def plain_subset(self, plain: GpuModel) -> SpaceSubset:
        """Return what `anatune.prune` would say of perfect divisors that are not split, which is all that others know.

        Parameters
        ----------
        plain : GpuModel
            Of a plain space.

        Raises
        ------
        SpaceError
            Nothing is legal.
        """
        saved = find_correction(self.hardware, CUDA.name, self.correction)
        subset = SpaceSubset(
            corrected(plain, saved),
            self.keep,
            time_limit_s=self.time_limit_s,
            distinct=self.distinct,
            diverse=self.diverse,
            progress=self.progress,
        )
        self._check_legal(subset)
        return subset

    def _check_legal(self, subset: RankedSubset) -> None:
        """Refuse a subset that holds nothing."""
        if not subset.num_legal:
            what, size = f"{self.workload.describe()} on {self.hardware.name}", f"{subset.space_size:.4g}"
            raise SpaceError(f"{what}: none of {size} schedules is legal; `anatune plan` says which rules reject them")


def object_lines(head: object, key: str, entries: Iterable[object]) -> Iterator[str]:
    """Yield one JSON object in lines: what `head` has, then a list under `key`, one of its entries a line."""
    yield f'{msgspec.json.encode(head).decode()[:-1]}, "{key}": ['
    waiting = ""
    for entry in entries:
        if waiting:
            yield f"{waiting},"
        waiting = msgspec.json.encode(entry).decode()
    yield waiting
    yield "]}"


Writer = Callable[[PruneRequest], Iterator[str]]

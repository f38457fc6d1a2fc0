"""What a template says of itself, in one object; its parts are imported when somebody asks for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.named import resolve

if TYPE_CHECKING:
    from anatune.core.workload.ranges import RangedWorkload
    from anatune.templates.base.family import ProgramFamily
    from anatune.templates.base.model import AnalyticalModel

__all__ = ["Template", "TemplateOf"]

Device = TypeVar("Device", bound=HardwareSpec)
"""Spec of the template's kind of device."""


class TemplateOf(ABC, Generic[Device]):
    """One kind of schedules: its rules, its model with its tile space, its programs.

    Code that holds a schedule, a space or a model asks its template; it does not compare names or types.

    Attributes
    ----------
    name : str
        On the command line, in schedules, JSON, records and cards.
    kind : {"cpu", "gpu"}
        Of the devices that it is for. The first registered template of a kind is its default.
    folder : str
        Folder of ``anatune/templates`` whose compiled code its model runs.
    model_name : str
        Its analytical model as ``module:class`` within its folder; unused where `model_class` chooses.
    factors : mapping of str to tuple of str
        Axis -> names of its factors, where these are the same for all workloads; else it has its own `levels`.
    toolchain : str
        What makes machine code of its programs: the folder of ``anatune/codegen``.
    tensor_cores : bool
        Whether products are made on matrix units: float32 operands are rounded to tf32, sums are cut off.
    widens : str or None
        Template whose schedules it holds, all of them, among more: tuning takes it in its place where it applies.
    joins : bool
        Whether it is ranked and tuned together with its device's default where it applies and nobody names a template.
    has_ranges : bool
        Whether it has programs that take an extent when they are called (`family`).
    accuracies : tuple of str
        Those of `core.accuracy.ACCURACIES` at which it has schedules.
    all_accuracy : str or None
        What its model is made for where nobody says: all schedules that give the same results each time. None: its
        model does not ask, its arithmetic is always "standard".
    is_plain_sum : bool
        Whether its kernels add up the products as the workload says, in whatever order: `error_of` is 0 then.
    is_limited : bool
        Whether its generated kernels have the limits of `core.generation`.
    is_whole : bool
        Whether its model evaluates every point at once: it is ranked first, and others are left out whose every point
        is slower (`model.rank.rank_templates`).
    has_kernels : bool
        Whether it has the bodies that are more than a statement (`core.workload.kernels`).
    learner : {"learned", "ranked"}
        What tunes by default and learns from each trial: the class of `search.strategies.learned` or of `ranked`.
    feature_version : int
        Of the features of its model's points (`base.features`): corrections learned from another are refused.
    corrections : str or None
        Tuner whose kernels the shipped corrections describe that also hold for this template's.
    silent : mapping
        Option, or "unroll" -> value at which it says nothing of a schedule: descriptions leave it out.
    option_meanings : mapping of str to str
        Option, "unroll" or "vector" -> its meaning in a few words, for reports; "order" is for "order.l2" and others.
    diverse : bool
        Whether its model's errors have been measured, so that few are kept by what they differ in
        (`model.pruning.diversity`).
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    folder: ClassVar[str]
    model_name: ClassVar[str]
    factors: ClassVar[Mapping[str, tuple[str, ...]]]
    toolchain: ClassVar[str] = "cpu"
    tensor_cores: ClassVar[bool] = False
    widens: ClassVar[str | None] = None
    joins: ClassVar[bool] = False
    has_ranges: ClassVar[bool] = False
    accuracies: ClassVar[tuple[str, ...]] = ("standard", "relaxed")
    all_accuracy: ClassVar[str | None] = None
    is_plain_sum: ClassVar[bool] = True
    is_limited: ClassVar[bool] = True
    is_whole: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = False
    learner: ClassVar[str] = "learned"
    feature_version: ClassVar[int] = 1
    corrections: ClassVar[str | None] = None
    silent: ClassVar[Mapping[str, object]] = MappingProxyType({})
    option_meanings: ClassVar[Mapping[str, str]] = MappingProxyType({})
    diverse: ClassVar[bool] = False

    @abstractmethod
    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError for what is no schedule of the template; its fields are of the right types already."""

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return axis -> names of its factors, outer to inner."""
        return dict(self.factors)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of a workload's model: ``(workload, hardware)``, and ``accuracy`` if it has several."""
        model: type[AnalyticalModel] = self._import(self.model_name)
        return model

    def _import(self, name: str) -> Any:
        """Return what is called ``module:object`` within the folder: its parts are imported when they are needed."""
        return resolve(f"anatune.templates.{self.folder}.{name}")

    @abstractmethod
    def program(self, *schedule: Any, **how: Any) -> Any:
        """Return what the lowering of its kind of device turns into a TVM module, of a schedule and what that needs."""

    @abstractmethod
    def streaming_s(self, hardware: Device, num_bytes: int, flop: int = 0) -> float:
        """Return the seconds of a call that reads and writes tensors once, whatever computes it."""

    def supports(self, workload: Workload, hardware: Device) -> object:
        """Raise SpaceError for a workload or a device that it does not take."""
        return None

    def takes(self, workload: Workload, hardware: Device) -> bool:
        """Return whether it applies to a workload on a device of its kind.

        A default that does not leaves the answer to those that join it; where none of them applies, its error is told.
        """
        try:
            self.supports(workload, hardware)
        except SpaceError:
            return False
        return True

    def joins_default(self, workload: Workload, hardware: Device, accuracy: str) -> bool:
        """Return whether it is ranked and tuned together with the default for a workload, at an accuracy."""
        return self.joins and accuracy in self.accuracies and self.takes(workload, hardware)

    def model(self, workload: Workload, hardware: Device, accuracy: str | None = None) -> AnalyticalModel:
        """Return the analytical model of a workload on a device, with its tile space as ``.space``.

        Parameters
        ----------
        accuracy : {"standard", "relaxed"}, optional
            What the arithmetic of the space's schedules may need.

        Raises
        ------
        SpaceError
            The template does not apply to the workload or the device.
        """
        limits = {} if self.all_accuracy is None else {"accuracy": accuracy or self.all_accuracy}
        return self.model_class(workload)(workload, hardware, **limits)

    def family(self, workload: RangedWorkload, hardware: Device) -> ProgramFamily:
        """Return the programs for a ranged workload that take an extent when they are called, see `has_ranges`."""
        raise NotImplementedError

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that every schedule of a workload needs at least, as operands are multiplied."""
        return STANDARD

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that the arithmetic of a schedule needs, one of `core.accuracy.ACCURACIES`."""
        return "standard"

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error that rounding explains, over the result's scale, where it is no plain sum's.

        With the margin of `core.accuracy.rounding_error` (11 standard deviations).
        """
        return 0.0

    def multiplied(self, dtype: str, hardware: Device) -> str:
        """Return what operands of a dtype are when its kernels multiply them on a device."""
        return dtype

    def peak_flop_per_s(self, dtype: str, hardware: Device) -> float:
        """Return the theoretical peak for operands of a dtype of the unit that multiplies them, as what it does."""
        return hardware.peak_flop_per_s(self.multiplied(dtype, hardware), tensor_cores=self.tensor_cores)

    def reachable_share(self, hardware: Device) -> float:
        """Return the share of a device's theoretical peak that compiled code of its kernels reaches."""
        return hardware.reachable_share(tensor_cores=self.tensor_cores)

    def products_note(self, schedule: Schedule) -> str:
        """Return by which instruction the kernel multiplies narrow elements; "" where nothing is to be said."""
        return ""

    def program_key(self, schedule: Schedule) -> Hashable:
        """Return a key that schedules share if they become the same program."""
        return schedule.key


Template = TemplateOf[Any]
"""A template of any kind of device, for annotations and as a base; the class that all are of is `TemplateOf`."""

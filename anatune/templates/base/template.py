"""The interface of a template: one object for each template, whose modules are imported when they are first needed."""

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
"""The class of the specs of the devices that a template is for."""


class TemplateOf(ABC, Generic[Device]):
    """A family of schedules: its rules, its model with its tile space, and its programs.

    Code that has a schedule, a space or a model asks its template instead of comparing names or types.

    Attributes
    ----------
    name : str
        Name on the command line, in schedules, JSON, records and cards.
    kind : {"cpu", "gpu"}
        Kind of its devices. The first registered template of a kind is the default.
    folder : str
        Folder in ``anatune/templates`` with the compiled code of its model.
    model_name : str
        Its analytical model as ``module:class`` in its folder. Unused if `model_class` is overridden.
    factors : mapping of str to tuple of str
        Axis -> names of its factors, if they are the same for all workloads. Else `levels` is overridden.
    toolchain : str
        Folder in ``anatune/codegen`` with the code that turns its programs into machine code.
    tensor_cores : bool
        True if matrix units compute the products: float32 operands are rounded to tf32, and sums are truncated.
    widens : str or None
        Template all of whose schedules it contains. Tuning replaces that template by this one if this one applies.
    joins : bool
        True if it is ranked and tuned together with the default of the device, if it applies and the user names no
        template.
    has_ranges : bool
        True if it has programs that take an extent as an argument (`family`).
    accuracies : tuple of str
        Those of `core.accuracy.ACCURACIES` at which it has schedules.
    all_accuracy : str or None
        Accuracy of its model if the caller gives none: all schedules that give the same results each time. None: its
        model takes no accuracy, and its arithmetic is always "standard".
    is_plain_sum : bool
        True if its kernels add the products of the workload in some order. `error_of` is 0 then.
    is_limited : bool
        True if its generated kernels have the limits of `core.generation`.
    is_whole : bool
        True if its model evaluates every point at once. It is then ranked first, and templates are left out if every
        point of theirs is slower (`model.rank.rank_templates`).
    has_kernels : bool
        True if it takes workloads whose body is more than a statement (`core.workload.kernels`).
    learner : {"learned", "ranked"}
        The default strategy of a session that learns from each trial: `search.strategies.learned` or `ranked`.
    feature_version : int
        Version of the features of points (`base.features`). Corrections with another version are refused.
    corrections : str or None
        Tuner whose kernels the shipped corrections describe, if they also hold for this template.
    silent : mapping
        Option, or "unroll" -> value that descriptions of schedules leave out.
    option_meanings : mapping of str to str
        Option, "unroll" or "vector" -> its meaning in a few words, for reports; "order" is for "order.l2" and others.
    diverse : bool
        True if the errors of its model were measured, so that few schedules are kept by how they differ
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
        """Raise SpaceError if this is not a schedule of the template. The types of its fields were checked before."""

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return axis -> names of its factors, outer to inner."""
        return dict(self.factors)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of a workload's model: ``(workload, hardware)``, and ``accuracy`` if it has several."""
        model: type[AnalyticalModel] = self._import(self.model_name)
        return model

    def _import(self, name: str) -> Any:
        """Return the object called ``module:object`` in the folder; the module is imported now."""
        return resolve(f"anatune.templates.{self.folder}.{name}")

    @abstractmethod
    def program(self, *schedule: Any, **how: Any) -> Any:
        """Return the program of a schedule, which the lowering of its kind of device turns into a TVM module."""

    @abstractmethod
    def streaming_s(self, hardware: Device, num_bytes: int, flop: int = 0) -> float:
        """Return the seconds that a call needs at least to read and write tensors of `num_bytes` once."""

    def supports(self, workload: Workload, hardware: Device) -> object:
        """Raise SpaceError if the template does not take the workload or the device."""
        return None

    def takes(self, workload: Workload, hardware: Device) -> bool:
        """Return whether the template applies to a workload on a device of its kind.

        If the default does not apply, the templates that join it answer instead. If none of them applies, the user gets
        the error of the default.
        """
        try:
            self.supports(workload, hardware)
        except SpaceError:
            return False
        return True

    def joins_default(self, workload: Workload, hardware: Device, accuracy: str) -> bool:
        """Return whether it is ranked and tuned together with the default, for a workload and an accuracy."""
        return self.joins and accuracy in self.accuracies and self.takes(workload, hardware)

    def model(self, workload: Workload, hardware: Device, accuracy: str | None = None) -> AnalyticalModel:
        """Return the analytical model of a workload on a device; its tile space is ``.space``.

        Parameters
        ----------
        accuracy : {"standard", "relaxed"}, optional
            The lowest accuracy that schedules of the space may have.

        Raises
        ------
        SpaceError
            The template does not apply to the workload or the device.
        """
        limits = {} if self.all_accuracy is None else {"accuracy": accuracy or self.all_accuracy}
        return self.model_class(workload)(workload, hardware, **limits)

    def family(self, workload: RangedWorkload, hardware: Device) -> ProgramFamily:
        """Return the programs for a ranged workload that take an extent as an argument, see `has_ranges`."""
        raise NotImplementedError

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that every schedule of a workload needs at least to multiply its operands."""
        return STANDARD

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that the arithmetic of a schedule needs, one of `core.accuracy.ACCURACIES`."""
        return "standard"

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error that rounding explains, relative to the scale of the result; 0 for a plain sum.

        It includes the margin of `core.accuracy.rounding_error` (11 standard deviations).
        """
        return 0.0

    def multiplied_dtype(self, dtype: str, hardware: Device) -> str:
        """Return the dtype in which the kernels on a device multiply operands of `dtype`."""
        return dtype

    def peak_flop_per_s(self, dtype: str, hardware: Device) -> float:
        """Return the peak of the unit that multiplies operands of `dtype`, in the dtype in which it multiplies."""
        return hardware.peak_flop_per_s(self.multiplied_dtype(dtype, hardware), tensor_cores=self.tensor_cores)

    def reachable_share(self, hardware: Device) -> float:
        """Return the share of the theoretical peak of a device that compiled kernels of the template reach."""
        return hardware.reachable_share(tensor_cores=self.tensor_cores)

    def products_note(self, schedule: Schedule) -> str:
        """Return a note that names the instruction that multiplies narrow elements; "" if there is nothing to say."""
        return ""

    def program_key(self, schedule: Schedule) -> Hashable:
        """Return a key that is equal for schedules that become the same program."""
        return schedule.key


Template = TemplateOf[Any]
"""A template of any kind of device, for annotations and as a base class. `isinstance` needs `TemplateOf`."""

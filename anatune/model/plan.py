"""The answer of `anatune.plan`: ranked schedules with their predictions and a guarantee."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from anatune.core.accuracy import STANDARD, error_of, is_plain_sum
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.show import duration, html_table
from anatune.core.templates import LATE
from anatune.core.workload.nest import Workload
from anatune.templates.base.model import Guarantee, Rule

if TYPE_CHECKING:
    import pandas as pd

    from anatune.model.compilation import Compilation

MOST_SHOWN = 20
"""Number of schedules of a plan that a notebook shows."""


class AppliedCorrection(msgspec.Struct, frozen=True):
    """A learned correction that was used in a plan.

    Attributes
    ----------
    name : str
        Name of the correction, as on its card.
    shortlist : int
        Number of first schedules of the analytical ranking (one of each predicted time) that were reordered. The
        guarantee covers this shortlist, not its new order.
    support : float
        Share of the correction that was used for the best schedule, in [0, 1]: 1 if training saw similar points.
    folder : str
        Folder of its files.
    """

    name: str
    shortlist: int
    support: float
    folder: str

    def describe(self) -> str:
        """Return the description as one sentence."""
        return (
            f"times and order corrected by {self.name}: the first {self.shortlist} schedules of the analytical ranking "
            "were reordered; the guarantee is about the analytical ranking"
        )


class MeasuredSchedule(msgspec.Struct, frozen=True):
    """The fastest record of a plan's workload, device, threads and template. Immutable; JSON both ways.

    Attributes
    ----------
    schedule : Schedule
        The measured schedule.
    time_s : float
        Median of its samples, s.
    predicted_s : float or None
        Time that the plan's model predicts for it, s; None if it is no point of the plan's spaces.
    created_utc : str
        Time of the record: ISO 8601.
    session : str
        Id of the session that measured it.
    worker : str
        Name of the worker that measured it, on a cluster or a board; otherwise empty.
    records : str
        The record file or server.
    """

    schedule: Schedule
    time_s: float
    predicted_s: float | None
    created_utc: str
    session: str
    worker: str
    records: str

    def describe(self, now_utc: str | None = None) -> str:
        """Return the description as one sentence; with the present time, the record's age is included."""
        time_text = f"at {self.created_utc[:19]} UTC" if now_utc is None else age(self.created_utc, now_utc)
        predicted = "" if self.predicted_s is None else f" (predicted {duration(self.predicted_s)})"
        worker_text = f" by {self.worker}" if self.worker else ""
        return (
            f"measured: {duration(self.time_s)}{predicted} {time_text}{worker_text}, session {self.session[:8]} of "
            f"{self.records}: {self.schedule.describe()}"
        )


def age(then_utc: str, now_utc: str) -> str:
    """Return the age of a time (ISO 8601) in one unit: "3 days ago"."""
    then, now = (datetime.fromisoformat(one.replace("Z", "+00:00")) for one in (then_utc, now_utc))
    seconds = max(0, int((now - then).total_seconds()))
    unit, length = next(
        (pair for pair in (("day", 86400), ("hour", 3600), ("minute", 60)) if seconds >= pair[1]), ("second", 1)
    )
    count = seconds // length
    return f"{count} {unit}{'s' * (count != 1)} ago"


class LeftOut(msgspec.Struct, frozen=True):
    """The reason why a template's space was not searched: none of its schedules can be among those that a plan lists.

    Attributes
    ----------
    floor_s : float
        Lower bound of the predicted times of all schedules of the template, s.
    last_s : float
        Time of the last schedule listed by the templates that were searched before, s; less than `floor_s`.
    """

    floor_s: float
    last_s: float

    def describe(self, template: str) -> str:
        """Return the description as one sentence, without its full stop."""
        return (
            f"the template {template} was not searched, its illegal points not counted: each of its schedules is "
            f"predicted to take {duration(self.floor_s)} or more, and the last listed one takes {duration(self.last_s)}"
        )


class JoinedSpace(msgspec.Struct, frozen=True):
    """The part of one template in a plan that ranks several.

    Attributes
    ----------
    template : str
        Name of the template.
    size, num_legal, rejected, rules, guarantee
        The same as in `Plan`, for the space of this template.
    best_s : float or None
        Predicted time of its best schedule before a correction, s; None if no schedule is legal or was found.
    correction : AppliedCorrection or None
        The correction that changed its times.
    left_out : LeftOut or None
        Why it was not searched, or None.
    """

    template: str
    size: int
    num_legal: int | None
    rejected: dict[str, int] | None
    rules: tuple[Rule, ...]
    guarantee: Guarantee
    best_s: float | None
    correction: AppliedCorrection | None = None
    left_out: LeftOut | None = None


@dataclass(frozen=True, repr=False)
class Plan:
    """The best schedules of one workload on one device, best first: the answer of `anatune.plan`.

    Attributes
    ----------
    schedules, predictions : list
        Schedules and their predictions, in the same order; empty only if no schedule is legal.
    guarantee : Guarantee
        The proof about the order: "exhaustive", "certified", or "best_found" with its gap.
    space_size : int
        Number of points of the space, legal or not (exact).
    num_legal, rejected
        Exact number of legal points, and of points that each rule (id) rejects. None if a time limit ended the count,
        or if a template was not searched because a bound of its times is above those of the others.
    rules : tuple of Rule
        The rules that `rejected` counts, with the device's limits.
    template : str
        Name of the template; if several were ranked together, that of the best schedule.
    num_alike : list of int or None
        For each schedule, the number of other legal schedules with the same predicted time (before a correction), which
        are not listed. None if ties are listed, or something was compiled. On CPUs only ties that the search met are
        counted, and identical loop nests once.
    alike_is_exact : bool
        Whether `num_alike` counts all ties of the space; otherwise there may be more.
    compilation : Compilation or None
        Facts of the compiler, if compiling was requested. Schedules are then ordered by their corrected times, followed
        by those that were not compiled. The guarantee is about the order before.
    correction : AppliedCorrection or None
        The learned correction that changed times and order; of several templates, that of the best schedule.
    accuracy : str
        The requested accuracy (`anatune.core.accuracy`).
    joined : tuple of JoinedSpace
        The part of each template, the device's default first, if several were ranked together. Sizes, counts and rules
        of the plan are then those of all templates.
    plain_best_s : float or None
        Predicted time of the best schedule before a correction, s; None if there is none.
    measured : MeasuredSchedule or None
        The fastest record of the given records; None without records, or if they hold no such record.
    left_out : LeftOut or None
        Why the template was not searched; for the plan of one template among several, see `joined`.
    """

    workload: Workload
    hardware: GpuSpec | CpuSpec
    schedules: list[Schedule]
    predictions: list[Prediction]
    guarantee: Guarantee
    space_size: int
    num_legal: int | None
    rejected: dict[str, int] | None
    rules: tuple[Rule, ...]
    template: str
    num_alike: list[int] | None = None
    alike_is_exact: bool = False
    compilation: Compilation | None = None
    correction: AppliedCorrection | None = None
    accuracy: str = STANDARD
    joined: tuple[JoinedSpace, ...] = ()
    plain_best_s: float | None = None
    measured: MeasuredSchedule | None = None
    left_out: LeftOut | None = None

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the templates that were ranked, the device's default first."""
        return tuple(space.template for space in self.joined) or (self.template,)

    @property
    def searched(self) -> tuple[JoinedSpace, ...]:
        """The parts of those templates whose spaces were searched, if several were ranked together."""
        return tuple(space for space in self.joined if space.left_out is None)

    @property
    def corrections(self) -> tuple[AppliedCorrection, ...]:
        """The learned corrections that changed times and order, at most one for each template."""
        applied = (space.correction for space in self.joined) if self.joined else (self.correction,)
        return tuple(one for one in applied if one is not None)

    @property
    def threads(self) -> int | None:
        """Number of threads that the schedules are for: the cores of `hardware`, or as requested; None for GPUs."""
        return self.hardware.most_threads

    @property
    def best(self) -> Schedule:
        """The schedule with the smallest predicted time.

        Raises
        ------
        anatune.errors.SpaceError
            No point of the space is legal; the message counts the points that each rule rejected.
        """
        if not self.schedules:
            from anatune.errors import SpaceError

            counts = ", ".join(f"{rule}: {count}" for rule, count in (self.rejected or {}).items() if count)
            raise SpaceError(
                f"{self.workload.describe()} on {self.hardware.name}: none of {self.space_size} schedules is legal, "
                f"rejected by rule ({counts}); use a device with higher limits or a smaller workload"
            )
        return self.schedules[0]

    def __repr__(self) -> str:
        summary = "nothing is legal"
        if self.schedules:
            summary = f"{len(self.schedules)} schedules, best {duration(self.predictions[0].time_s)}"
        subject = f"{self.workload.describe()} on {self.hardware.name}"
        return f"Plan({subject}: {summary}, {self.guarantee.describe()})"

    def _repr_html_(self) -> str:
        rows = [
            (
                place,
                duration(prediction.time_s),
                f"{prediction.gflop_per_s:.5g}",
                prediction.bound_by,
                f"{prediction.occupancy:.0%}",
                schedule.describe(),
            )
            for place, (schedule, prediction) in enumerate(zip(self.schedules, self.predictions, strict=True), 1)
        ]
        heading = ("#", "time", "GFLOP/s", "bound by", "occupancy", "schedule")
        return html_table(repr(self), heading, rows[:MOST_SHOWN])

    def explain(self) -> str:
        """Return why the best schedule is the best, one sentence a line, as ``anatune plan --explain`` prints it.

        The text names the binding resource, what a runner-up and other choices do worse, what would have to change for
        a faster kernel, how many schedules each rule rejects, and which numbers of the spec nobody has verified. The
        runner-up is searched among `schedules`; the command ranks at least 64.
        """
        text: str = LATE["explain"](self)  # implemented by anatune.report, a higher layer
        return text

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain dictionaries and lists, the content of `to_json`."""
        extra: dict[str, object] = {"compilation": self.compilation.to_dict()} if self.compilation is not None else {}
        if self.correction is not None:
            extra["correction"] = _correction_tree(self.correction)
        if self.joined or self.accuracy != STANDARD:
            extra["accuracy"] = self.accuracy
        if self.measured is not None:
            extra["measured"] = msgspec.to_builtins(self.measured) | {"schedule": self.measured.schedule.to_dict()}
        if self.joined:
            extra["spaces"] = [space_tree(space) for space in self.joined]
        return extra | {
            "workload": msgspec.to_builtins(self.workload),
            "hardware": {"name": self.hardware.name, "model": self.hardware.model, "arch": self.hardware.arch},
            "template": self.template,
            "threads": self.threads,
            "space": {
                "size": self.space_size,
                "legal": self.num_legal,
                "rejected": self.rejected,
                "rules": [msgspec.to_builtins(rule) for rule in self.rules],
            },
            "guarantee": _guarantee_tree(self.guarantee),
            "num_alike_is_exact": None if self.num_alike is None else self.alike_is_exact,
            "schedules": [
                schedule.to_dict() | {"prediction": msgspec.to_builtins(prediction)} | _error_fields(schedule) | alike
                for schedule, prediction, alike in zip(self.schedules, self.predictions, self._alike(), strict=True)
            ],
        }

    def _alike(self) -> list[dict[str, int]]:
        """Return the fields about ties of each schedule."""
        if self.num_alike is None:
            return [{} for _ in self.schedules]
        return [{"num_alike": count} for count in self.num_alike]

    def first(self, count: int) -> Plan:
        """Return the plan with only its first `count` schedules."""
        return replace(
            self,
            schedules=self.schedules[:count],
            predictions=self.predictions[:count],
            num_alike=None if self.num_alike is None else self.num_alike[:count],
        )

    def to_json(self) -> str:
        """Return one JSON object: workload, hardware, space, guarantee, schedules (best first), compilation if any.

        If several templates were ranked, it has "accuracy" and "spaces", the part of each. Schedules whose arithmetic
        is no plain sum have "error_bound", see `anatune.core.accuracy.error_of`.
        """
        return msgspec.json.encode(self.to_dict()).decode()

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas.DataFrame with one row for each schedule, best first: schedule, time, parts and features."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"schedule": schedule.describe(), "template": schedule.template}
                | prediction_row(prediction)
                | _error_fields(schedule)
                | alike
                for schedule, prediction, alike in zip(self.schedules, self.predictions, self._alike(), strict=True)
            ]
        )


def _error_fields(schedule: Schedule) -> dict[str, float]:
    """Return the error bound of a schedule whose arithmetic is no plain sum, as fields."""
    return {} if is_plain_sum(schedule.template) else {"error_bound": error_of(schedule)}


def _guarantee_tree(guarantee: Guarantee) -> dict[str, object]:
    return {**msgspec.to_builtins(guarantee), "text": guarantee.describe()}


def _correction_tree(correction: AppliedCorrection) -> dict[str, object]:
    return {**msgspec.to_builtins(correction), "text": correction.describe()}


def space_tree(space: JoinedSpace) -> dict[str, object]:
    """Return one template's part of a plan as plain dictionaries and lists."""
    return {
        "template": space.template,
        "size": space.size,
        "legal": space.num_legal,
        "rejected": space.rejected,
        "rules": [msgspec.to_builtins(rule) for rule in space.rules],
        "guarantee": _guarantee_tree(space.guarantee),
        "best_s": space.best_s,
        "left_out": None
        if space.left_out is None
        else {**msgspec.to_builtins(space.left_out), "text": space.left_out.describe(space.template)},
        "correction": None if space.correction is None else _correction_tree(space.correction),
    }


def prediction_row(prediction: Prediction) -> dict[str, object]:
    """Return a prediction as one flat table row; each part and feature becomes a column of its name."""
    flat: dict[str, object] = {"time_s": prediction.time_s, "gflop_per_s": prediction.gflop_per_s}
    flat |= prediction.parts
    flat |= {"bound_by": prediction.bound_by, "occupancy": prediction.occupancy}
    flat |= {"occupancy_limiter": prediction.occupancy_limiter, "waves": prediction.waves}
    flat |= prediction.features
    flat |= {f"traffic_over_bound_{level}": value for level, value in prediction.traffic_over_bound.items()}
    flat |= prediction.resources
    return flat | {"legal": prediction.legal, "rule": prediction.rule}

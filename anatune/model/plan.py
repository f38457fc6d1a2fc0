"""The answer of `anatune.plan`: ranked schedules with their predictions and the guarantee."""

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
"""Schedules that a notebook shows of a plan."""


class AppliedCorrection(msgspec.Struct, frozen=True):
    """A learned correction that ordered a plan.

    Attributes
    ----------
    name : str
        Of the correction, see its card.
    shortlist : int
        First schedules of the analytical ranking (one of each predicted time) that were ordered anew. The guarantee is
        about these, not about their new order.
    support : float
        Share of the correction that was used for the best schedule: 1 where training saw points alike, 0 where none.
    folder : str
        Where its files lie.
    """

    name: str
    shortlist: int
    support: float
    folder: str

    def describe(self) -> str:
        """Return one sentence."""
        return (
            f"times and order corrected by {self.name}: the first {self.shortlist} of the analytical ranking were "
            "ordered anew; the guarantee is about the ranking before"
        )


class MeasuredSchedule(msgspec.Struct, frozen=True):
    """The best that records have of a plan's workload, device, threads and template. Immutable; JSON both ways.

    Attributes
    ----------
    schedule : Schedule
        What was measured.
    time_s : float
        Median of its samples, s.
    predicted_s : float or None
        The plan's model's time of it, s; None where it is no point of the plan's spaces.
    created_utc : str
        When it was recorded: ISO 8601.
    session : str
        Id of the session that asked for it.
    worker : str
        Who measured it, where a cluster or a board did.
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
        """Return one sentence; with the present time, how old it is."""
        when = f"at {self.created_utc[:19]} UTC" if now_utc is None else age(self.created_utc, now_utc)
        predicted = "" if self.predicted_s is None else f" (predicted {duration(self.predicted_s)})"
        who = f" by {self.worker}" if self.worker else ""
        return (
            f"measured: {duration(self.time_s)}{predicted} {when}{who}, session {self.session[:8]} of {self.records}: "
            f"{self.schedule.describe()}"
        )


def age(then_utc: str, now_utc: str) -> str:
    """Return how long ago a time of ISO 8601 was, in one unit: "3 days ago"."""
    then, now = (datetime.fromisoformat(one.replace("Z", "+00:00")) for one in (then_utc, now_utc))
    seconds = max(0, int((now - then).total_seconds()))
    unit, length = next(
        (pair for pair in (("day", 86400), ("hour", 3600), ("minute", 60)) if seconds >= pair[1]), ("second", 1)
    )
    count = seconds // length
    return f"{count} {unit}{'s' * (count != 1)} ago"


class LeftOut(msgspec.Struct, frozen=True):
    """Why a template's space was not searched: no schedule of it can be among those that a plan lists.

    Attributes
    ----------
    floor_s : float
        No schedule of the template is predicted to take less, s.
    last_s : float
        The last schedule that was listed of the templates searched before it takes this, s; less than `floor_s`.
    """

    floor_s: float
    last_s: float

    def describe(self, template: str) -> str:
        """Return one sentence, without its full stop."""
        return (
            f"the template {template} was not searched, its illegal points not counted: none of its schedules takes "
            f"less than {duration(self.floor_s)}, the last one listed of the others {duration(self.last_s)}"
        )


class JoinedSpace(msgspec.Struct, frozen=True):
    """What one template brings to a plan that ranks several.

    Attributes
    ----------
    template : str
    size, num_legal, rejected, rules, guarantee
        As `Plan` has them for all: of its own space.
    best_s : float or None
        Predicted time of its best schedule, before a correction; None where nothing is legal or was found.
    correction : AppliedCorrection or None
        What changed its times.
    left_out : LeftOut or None
        Why it was not searched, where it was not.
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
    """The best schedules of one workload on one device, best first.

    Attributes
    ----------
    schedules, predictions : list
        Same order, same length; empty only if nothing is legal.
    guarantee : Guarantee
        "exhaustive", "certified", or "best_found" with its gap.
    space_size : int
        All points of the space, legal or not (exact).
    num_legal, rejected
        Legal points, and rejected points per rule id (exact counts), or None where a time limit ended the count, or
        a template was not searched, because a floor under all its times is above those of the others.
    rules : tuple of Rule
        What the ids of `rejected` mean, with the device's limits.
    template : str
        What the schedules look like; where several templates were ranked together, of the best one.
    num_alike : list of int or None
        Of each schedule, how many other legal ones have its predicted time (before a correction) and are left out; None
        where ties are listed, or something was compiled. CPUs: how many were met, loop nests that are the same counted
        once.
    alike_is_exact : bool
        Whether these are all that the space has, or there may be more.
    compilation : Compilation or None
        What the compiler said, where it was asked: schedules are then ordered by the corrected times, those that were
        not compiled last. The guarantee is about the order before.
    correction : AppliedCorrection or None
        The learned correction that changed times and order, where one was used; of several templates, the best one's.
    accuracy : str
        What arithmetic was asked for (`anatune.core.accuracy`).
    joined : tuple of JoinedSpace
        Where several templates were ranked together: what each of them brought, the device's default first. Sizes,
        counts and rules are then those of all of them.
    plain_best_s : float or None
        Predicted time of the best schedule before a correction; None where there is none.
    measured : MeasuredSchedule or None
        The best of the records that were named; None without, and where they have none.
    left_out : LeftOut or None
        Of one template of several: why it was not searched; `joined` has it for each of them.
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
        """The templates that were ranked, the device's default first."""
        return tuple(space.template for space in self.joined) or (self.template,)

    @property
    def searched(self) -> tuple[JoinedSpace, ...]:
        """Of several templates, what those brought whose spaces were searched."""
        return tuple(space for space in self.joined if space.left_out is None)

    @property
    def corrections(self) -> tuple[AppliedCorrection, ...]:
        """The learned corrections that changed times and order, one a template at most."""
        applied = (space.correction for space in self.joined) if self.joined else (self.correction,)
        return tuple(one for one in applied if one is not None)

    @property
    def threads(self) -> int | None:
        """Threads that the schedules are for: as many as `hardware` has cores, or was given; None for GPUs."""
        return self.hardware.most_threads

    @property
    def best(self) -> Schedule:
        """The schedule of smallest predicted time.

        Raises
        ------
        anatune.errors.SpaceError
            No point of the space is legal; the message counts the rules that rejected them.
        """
        if not self.schedules:
            from anatune.errors import SpaceError

            counts = ", ".join(f"{rule}: {count}" for rule, count in (self.rejected or {}).items() if count)
            raise SpaceError(
                f"{self.workload.describe()} on {self.hardware.name}: none of {self.space_size} schedules is legal "
                f"({counts}); use a device with higher limits or a smaller workload"
            )
        return self.schedules[0]

    def __repr__(self) -> str:
        found = "nothing is legal"
        if self.schedules:
            found = f"{len(self.schedules)} schedules, best {duration(self.predictions[0].time_s)}"
        where = f"{self.workload.describe()} on {self.hardware.name}"
        return f"Plan({where}: {found}, {self.guarantee.describe()})"

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
        """Return why the best schedule is the best, a sentence a line, as ``anatune plan --explain``.

        What binds, what a runner-up and other choices do worse, what would have to change to be faster, which rules
        reject how many schedules, which numbers of the hardware's spec nobody has verified. The runner-up is looked for
        among `schedules`; the command ranks at least 64.
        """
        text: str = LATE["explain"](self)  # `report` makes the words, which knows plans
        return text

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain dictionaries and lists (what `to_json` writes)."""
        more: dict[str, object] = {"compilation": self.compilation.to_dict()} if self.compilation is not None else {}
        if self.correction is not None:
            more["correction"] = _correction_tree(self.correction)
        if self.joined or self.accuracy != STANDARD:
            more["accuracy"] = self.accuracy
        if self.measured is not None:
            more["measured"] = msgspec.to_builtins(self.measured) | {"schedule": self.measured.schedule.to_dict()}
        if self.joined:
            more["spaces"] = [space_tree(space) for space in self.joined]
        return more | {
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
                schedule.to_dict() | {"prediction": msgspec.to_builtins(prediction)} | _error(schedule) | alike
                for schedule, prediction, alike in zip(self.schedules, self.predictions, self._alike(), strict=True)
            ],
        }

    def _alike(self) -> list[dict[str, int]]:
        """Return what is said of each schedule's ties."""
        if self.num_alike is None:
            return [{} for _ in self.schedules]
        return [{"num_alike": count} for count in self.num_alike]

    def first(self, count: int) -> Plan:
        """Return the plan with its first schedules only."""
        return replace(
            self,
            schedules=self.schedules[:count],
            predictions=self.predictions[:count],
            num_alike=None if self.num_alike is None else self.num_alike[:count],
        )

    def to_json(self) -> str:
        """Return one JSON object: workload, hardware, space, guarantee, schedules (best first), compilation if any.

        Of several templates: "accuracy", and "spaces" with each one's own. A schedule whose arithmetic is no plain sum
        has "error_bound", see `anatune.core.accuracy.error_of`.
        """
        return msgspec.json.encode(self.to_dict()).decode()

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas.DataFrame, one row a schedule, best first: the schedule, its time, parts and features."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"schedule": schedule.describe(), "template": schedule.template}
                | prediction_row(prediction)
                | _error(schedule)
                | alike
                for schedule, prediction, alike in zip(self.schedules, self.predictions, self._alike(), strict=True)
            ]
        )


def _error(schedule: Schedule) -> dict[str, float]:
    """Return what is said of a schedule whose arithmetic is no plain sum."""
    return {} if is_plain_sum(schedule.template) else {"error_bound": error_of(schedule)}


def _guarantee_tree(guarantee: Guarantee) -> dict[str, object]:
    return {**msgspec.to_builtins(guarantee), "text": guarantee.describe()}


def _correction_tree(correction: AppliedCorrection) -> dict[str, object]:
    return {**msgspec.to_builtins(correction), "text": correction.describe()}


def space_tree(space: JoinedSpace) -> dict[str, object]:
    """Return what one template brings as plain dictionaries and lists."""
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
    """Flatten a prediction into one table row (parts and features become columns of their own names)."""
    flat: dict[str, object] = {"time_s": prediction.time_s, "gflop_per_s": prediction.gflop_per_s}
    flat |= prediction.parts
    flat |= {"bound_by": prediction.bound_by, "occupancy": prediction.occupancy}
    flat |= {"occupancy_limiter": prediction.occupancy_limiter, "waves": prediction.waves}
    flat |= prediction.features
    flat |= {f"traffic_over_bound_{level}": value for level, value in prediction.traffic_over_bound.items()}
    flat |= prediction.resources
    return flat | {"legal": prediction.legal, "rule": prediction.rule}

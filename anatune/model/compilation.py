"""What a compiler said about the first schedules of a plan, and what that changes in their predictions."""

from __future__ import annotations

import msgspec

from anatune.core.compiler_facts import CompilerFacts
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome


class CompiledSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One schedule of a plan before and after the compiler. Immutable.

    Attributes
    ----------
    schedule : Schedule
    rank_before : int
        Place in the model's own ranking, from 1.
    before : Prediction
        What the model said by itself.
    outcome : Outcome
        OK, INVALID, BUILD_ERROR or BUILD_TIMEOUT.
    message : str
        Why it failed, in one line.
    seconds : float
        Wall time of generating and compiling.
    facts : CompilerFacts or None
        With the shared memory that the launch asks for; None if it failed.
    after : Prediction or None
        What the model says with these numbers; None if it failed.
    """

    schedule: Schedule
    rank_before: int
    before: Prediction
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0
    facts: CompilerFacts | None = None
    after: Prediction | None = None


class Compilation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first schedules of a plan that are different programs, compiled.

    Attributes
    ----------
    compiler : str
        "NVRTC 12.9 (12.9.86)".
    schedules : tuple of CompiledSchedule
        In the model's order before.
    num_considered : int
        Schedules of the ranking that these are the different programs of.
    left : tuple of int
        Places (from 1) of the programs that a time limit left out.
    seconds : float
        Wall time of all.
    """

    compiler: str
    schedules: tuple[CompiledSchedule, ...]
    num_considered: int
    left: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def ranked(self) -> list[CompiledSchedule]:
        """Those that were compiled, by their time after; equal times keep their order."""
        good = [entry for entry in self.schedules if entry.after is not None]
        return sorted(good, key=lambda entry: entry.after.time_s if entry.after else 0.0)

    @property
    def failed(self) -> list[CompiledSchedule]:
        """Those that were not, in the model's order."""
        return [entry for entry in self.schedules if entry.after is None]

    def to_dict(self) -> dict[str, object]:
        """Return plain dictionaries and lists; each program with its numbers before and after."""
        ranks = {entry.schedule.key: rank for rank, entry in enumerate(self.ranked, start=1)}
        return {
            "compiler": self.compiler,
            "seconds": self.seconds,
            "num_considered": self.num_considered,
            "num_compiled": len(ranks),
            "num_failed": len(self.failed),
            "num_left": len(self.left),
            "programs": [_entry_dict(entry, ranks.get(entry.schedule.key)) for entry in self.schedules],
        }


def _entry_dict(entry: CompiledSchedule, rank: int | None) -> dict[str, object]:
    tree = entry.schedule.to_dict()
    return {
        **{name: tree[name] for name in ("tiles", "unroll", "vector", "options")},
        "schedule": tree,
        "outcome": entry.outcome.value,
        "message": entry.message,
        "seconds": entry.seconds,
        "compiler": {} if entry.facts is None else entry.facts.numbers(),
        "before": _numbers(entry.before, entry.rank_before),
        "after": None if entry.after is None else _numbers(entry.after, rank),
    }


def _numbers(prediction: Prediction, rank: int | None) -> dict[str, object]:
    """Return the numbers of a prediction that a compiler can change."""
    resources = prediction.resources
    return {
        "rank": rank,
        "time_s": prediction.time_s,
        "bound_by": prediction.bound_by,
        "occupancy": prediction.occupancy,
        "occupancy_limiter": prediction.occupancy_limiter,
        "registers": resources.get("registers_per_thread"),
        "spilled_registers": resources.get("spilled_registers"),
        "shared_bytes": resources.get("shared_bytes_per_block"),
    }

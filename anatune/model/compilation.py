"""Compilation of the first schedules of a plan: the compiler's facts, and the predictions with them."""

from __future__ import annotations

import msgspec

from anatune.core.compiler_facts import CompilerFacts
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome


class CompiledSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of a plan before and after compiling. Immutable.

    Attributes
    ----------
    schedule : Schedule
    rank_before : int
        Place in the model's ranking, from 1.
    before : Prediction
        Prediction of the model alone.
    outcome : Outcome
        OK, INVALID, BUILD_ERROR or BUILD_TIMEOUT.
    message : str
        Reason of the failure, in one line.
    seconds : float
        Wall-clock time of generating and compiling.
    facts : CompilerFacts or None
        The compiler's numbers, with the shared memory that the launch requests; None after a failure.
    after : Prediction or None
        Prediction of the model with these numbers; None after a failure.
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
    """The compiled kernels of a plan's first schedules.

    Attributes
    ----------
    compiler : str
        Name and version, for example "NVRTC 12.9 (12.9.86)".
    schedules : tuple of CompiledSchedule
        The compiled schedules, in the model's order; each has another program text.
    num_considered : int
        Number of schedules of the ranking that share these program texts.
    left : tuple of int
        Places (from 1) of the programs that the time limit left out.
    seconds : float
        Wall-clock time of all.
    """

    compiler: str
    schedules: tuple[CompiledSchedule, ...]
    num_considered: int
    left: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def ranked(self) -> list[CompiledSchedule]:
        """The schedules that compiled, by their new predicted time; equal times keep their order."""
        good = [entry for entry in self.schedules if entry.after is not None]
        return sorted(good, key=lambda entry: entry.after.time_s if entry.after else 0.0)

    @property
    def failed(self) -> list[CompiledSchedule]:
        """The schedules that did not compile, in the model's order."""
        return [entry for entry in self.schedules if entry.after is None]

    def to_dict(self) -> dict[str, object]:
        """Return plain dictionaries and lists, with the numbers of each program before and after."""
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

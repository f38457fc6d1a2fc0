"""Plans with more than the model's ranking: numbers from the compiler, and the best recorded trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anatune.arguments import check_function, check_integer
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.joint import find_corrections
from anatune.model.learned.corrections import AUTO, NONE
from anatune.model.plan import Plan
from anatune.model.rank import Constraints, rank_templates
from anatune.templates.base.model import Progress

if TYPE_CHECKING:
    from anatune.records.place import ServerAddress

__all__ = ["Evidence", "plan_with_evidence"]

MOST_COMPILED = 1_000
"""Largest number of kernels that one plan compiles."""
SCHEDULES_A_PROGRAM = 8
"""Number of schedules that are ranked for each kernel to compile, because several schedules often give one kernel."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a plan for evidence besides the model. Immutable; checked when it is made.

    Attributes
    ----------
    compile, records, compile_progress
        As for `anatune.plan`.

    Raises
    ------
    SpaceError
        `compile` is no valid number, or `compile_progress` is no function.
    """

    compile: int = 0
    records: str | Path | ServerAddress | None = None
    compile_progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        count = check_integer("plan: compile", self.compile, 0, MOST_COMPILED)
        msgspec.structs.force_setattr(self, "compile", count)
        check_function("plan: compile_progress", self.compile_progress)


def plan_with_evidence(
    workload: Workload,
    hardware: HardwareSpec,
    top_k: int,
    constraints: Constraints,
    evidence: Evidence,
    correction: str | Path = AUTO,
    progress: Progress | None = None,
) -> Plan:
    """Return a plan whose first kernels are compiled, or with the best recorded trial; raise as `anatune.plan`."""
    names = constraints.templates(workload, hardware)
    if evidence.compile:
        from anatune.measure.cuda.compiler import check_compiler, compiled_plan  # late: of GPUs alone

        check_compiler(hardware, names)
        if str(correction) not in (AUTO, NONE):
            raise SpaceError("plan: compile and correction both change the order; leave one of them out")
        correction = NONE
    corrections = find_corrections(hardware, names, correction)
    if evidence.records is not None:
        from anatune.tuning.reuse import read_best_record, record_corrections

        accuracy = constraints.allowed_accuracy
        measured = read_best_record(workload, hardware, constraints.template, accuracy, evidence.records)
        corrections |= record_corrections(hardware, names if str(correction) == AUTO else (), evidence.records)
    count = max(top_k, SCHEDULES_A_PROGRAM * evidence.compile)
    answer, models = rank_templates(workload, hardware, names, count, constraints, corrections, progress)
    if evidence.compile:
        limit_s, tell = constraints.time_limit_s, evidence.compile_progress
        answer = compiled_plan(answer, models, evidence.compile, limit_s, tell)  # type: ignore[arg-type]
    if evidence.records is not None:
        answer = replace(answer, measured=measured(models))
    return answer.first(top_k)

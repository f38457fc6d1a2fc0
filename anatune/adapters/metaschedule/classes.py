"""The classes of the space generator and the search strategy that MetaSchedule calls."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import Context, RunnerResult, derive_class, run_secs
from anatune.adapters.metaschedule.tasks import Proposals, Settings, check_device, check_target, task_model, task_of
from anatune.codegen.compat import has_same_structure
from anatune.codegen.tvm.kernel import PREDICTED, THREADS, read_annotated_schedule, read_annotation
from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import AnatuneError, WorkloadError
from anatune.untyped import ms, tvm

__all__ = ["search_strategy", "space_generator"]


def space_generator(hardware: HardwareSpec, designs: int) -> ms.SpaceGenerator:
    """Return a ``SpaceGenerator`` of the best predicted schedules."""
    return derive_class(AnatuneSpace, meta_schedule().space_generator.PySpaceGenerator)(hardware, designs)


def search_strategy(hardware: HardwareSpec, settings: Settings, batch: int) -> ms.SearchStrategy:
    """Return a ``SearchStrategy`` that asks a strategy of anatune."""
    return derive_class(AnatuneStrategy, meta_schedule().search_strategy.PySearchStrategy)(hardware, settings, batch)


def _default_context(context: Context) -> ms.TuneContext:
    """Return a context with MetaSchedule's own space and search for the same function."""
    return meta_schedule().TuneContext(
        context.mod,
        target=context.target,
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name=context.task_name,
        rand_state=context.rand_state,
        num_threads=context.num_threads,
    )


class AnatuneSpace:
    """A space of anatune's best predicted schedules, or MetaSchedule's own space for functions unknown to anatune."""

    def __init__(self, hardware: HardwareSpec, designs: int) -> None:
        self.sch_rules: list[ms.ScheduleRule] = []
        self.postprocs: list[ms.Postproc] = []
        self.mutator_probs: dict[ms.Mutator, float] = {}
        self.hardware = hardware
        self.designs = designs
        self.context: ms.TuneContext = None

    def _initialize_with_tune_context(self, context: Context) -> None:
        check_device(context.target, self.hardware)
        self.context = context

    def generate_design_space(self, mod: tvm.IRModule) -> list[tvm.s_tir.Schedule]:
        """Return the traced schedules of a module."""
        try:
            task = task_of(mod, self.context.target, self.hardware)
        except WorkloadError:
            return list(_default_context(self.context).generate_design_space())
        check_target(self.context.target, self.hardware)
        model = task_model(task, self.hardware)
        return [task.schedule(model.space.schedule_of(point)) for point in model.rank(self.designs).points]

    def clone(self) -> ms.SpaceGenerator:
        """Return a copy for the same device."""
        return space_generator(self.hardware, self.designs)


class AnatuneStrategy:
    """A strategy of anatune, or MetaSchedule's own search for functions unknown to anatune."""

    def __init__(self, hardware: HardwareSpec, settings: Settings, batch: int) -> None:
        self.hardware = hardware
        self.settings = settings
        self.batch = batch
        self.context: ms.TuneContext = None
        self.inner: ms.TuneContext = None
        self.proposals: Proposals | None = None

    def _initialize_with_tune_context(self, context: Context) -> None:
        check_device(context.target, self.hardware)
        self.context = context

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: list[tvm.s_tir.Schedule],
        database: ms.Database | None = None,
        cost_model: ms.CostModel | None = None,
    ) -> None:
        """Begin a search with the database's records of the function."""
        try:
            task = task_of(self.context.mod, self.context.target, self.hardware)
        except WorkloadError:
            self.inner = _default_context(self.context)
            self.inner.pre_tuning(max_trials, num_trials_per_iter, list(design_spaces), database, cost_model)
            return
        check_target(self.context.target, self.hardware)
        self.proposals = Proposals(task, self.hardware, self.settings, self.batch)
        self.proposals.trials_left, self.proposals.per_call = int(max_trials), int(num_trials_per_iter)
        for record in database.get_all_tuning_records() if database is not None else ():
            if not has_same_structure(record.workload.mod, self.context.mod):
                continue
            try:
                schedule = read_annotated_schedule(record.trace)
            except AnatuneError:
                continue  # written by an older version; opening the database reported it already
            if schedule is None or read_annotation(record.trace, PREDICTED) is not None:
                continue
            if read_annotation(record.trace, THREADS) == task.threads:
                self.proposals.remember(schedule, run_secs(record))

    def post_tuning(self) -> None:
        """End the search."""
        if self.inner is not None:
            self.inner.post_tuning()
        self.inner = self.proposals = None

    def generate_measure_candidates(self) -> object:
        """Return the next candidates, or None at the end."""
        if self.proposals is None:
            return self.inner.generate_measure_candidates()
        package = meta_schedule()
        candidate, arg_info = package.search_strategy.MeasureCandidate, package.arg_info.ArgInfo
        return [candidate(sch, arg_info.from_entry_func(sch.mod, True)) for sch in self.proposals.next()] or None

    def notify_runner_results(self, measure_candidates: object, results: Sequence[RunnerResult]) -> None:
        """Learn from measurements."""
        if self.proposals is None:
            self.inner.notify_runner_results(measure_candidates, results)
        else:
            self.proposals.learn(list(results))

    def clone(self) -> ms.SearchStrategy:
        """Return a copy for the same device."""
        return search_strategy(self.hardware, self.settings, self.batch)

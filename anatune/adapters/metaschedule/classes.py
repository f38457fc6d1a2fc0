"""Classes that derive from MetaSchedule's: the space generator and the search strategy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import Context, RunnerResult, TvmObject, run_secs
from anatune.adapters.metaschedule.tasks import Proposals, Settings, check_device, check_target, task_model, task_of
from anatune.codegen.compat import import_tvm, same_structure
from anatune.codegen.tvm.kernel import PREDICTED, THREADS, annotated_schedule, annotation
from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import AnatuneError, WorkloadError

__all__ = ["classes"]


@cache
def classes() -> tuple[type, type]:
    """Return the classes of the space generator and of the search strategy: they derive from TVM's."""
    package = meta_schedule()
    tvm = import_tvm()
    derived_object = tvm.ir.utils.derived_object
    generator_base: TvmObject = package.space_generator.PySpaceGenerator
    strategy_base: TvmObject = package.search_strategy.PySearchStrategy
    candidate = package.search_strategy.MeasureCandidate
    arg_info = package.arg_info.ArgInfo

    def own_context(context: Context) -> TvmObject:
        """Return a context with MetaSchedule's own space and search for the same function."""
        return package.TuneContext(
            context.mod,
            target=context.target,
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            task_name=context.task_name,
            rand_state=context.rand_state,
            num_threads=context.num_threads,
        )

    @derived_object
    class AnatuneSpace(generator_base):  # type: ignore[misc]
        def __init__(self, hardware: HardwareSpec, designs: int) -> None:
            super().__init__()
            self.sch_rules: list[TvmObject] = []
            self.postprocs: list[TvmObject] = []
            self.mutator_probs: dict[TvmObject, float] = {}
            self.hardware = hardware
            self.designs = designs
            self.context: TvmObject = None

        def _initialize_with_tune_context(self, context: Context) -> None:
            check_device(context.target, self.hardware)
            self.context = context

        def generate_design_space(self, mod: TvmObject) -> list[TvmObject]:
            try:
                task = task_of(mod, self.context.target, self.hardware)
            except WorkloadError:
                return list(own_context(self.context).generate_design_space())
            check_target(self.context.target, self.hardware)
            model = task_model(task, self.hardware)
            points = model.rank(self.designs).points
            return [task.schedule(model.space.schedule_of(point)) for point in points]

        def clone(self) -> TvmObject:
            return AnatuneSpace(self.hardware, self.designs)

    @derived_object
    class AnatuneStrategy(strategy_base):  # type: ignore[misc]
        def __init__(self, hardware: HardwareSpec, settings: Settings, batch: int) -> None:
            super().__init__()
            self.hardware = hardware
            self.settings = settings
            self.batch = batch
            self.context: TvmObject = None
            self.inner: TvmObject = None
            self.proposals: Proposals | None = None

        def _initialize_with_tune_context(self, context: Context) -> None:
            check_device(context.target, self.hardware)
            self.context = context

        def pre_tuning(
            self,
            max_trials: int,
            num_trials_per_iter: int,
            design_spaces: TvmObject,
            database: TvmObject = None,
            cost_model: TvmObject = None,
        ) -> None:
            module = self.context.mod
            try:
                task = task_of(module, self.context.target, self.hardware)
            except WorkloadError:
                self.inner = own_context(self.context)
                self.inner.pre_tuning(max_trials, num_trials_per_iter, list(design_spaces), database, cost_model)
                return
            check_target(self.context.target, self.hardware)
            self.proposals = Proposals(task, self.hardware, self.settings, self.batch)
            self.proposals.left, self.proposals.per_call = int(max_trials), int(num_trials_per_iter)
            for record in database.get_all_tuning_records() if database is not None else ():
                if not same_structure(record.workload.mod, module):
                    continue
                try:
                    schedule = annotated_schedule(record.trace)
                except AnatuneError:
                    continue  # an older version made it; whoever opened the database was told
                if schedule is None or annotation(record.trace, PREDICTED) is not None:
                    continue
                if annotation(record.trace, THREADS) == task.threads:
                    self.proposals.remember(schedule, run_secs(record))

        def post_tuning(self) -> None:
            if self.inner is not None:
                self.inner.post_tuning()
            self.inner = self.proposals = None

        def generate_measure_candidates(self) -> TvmObject:
            if self.proposals is None:
                return self.inner.generate_measure_candidates()
            found = self.proposals.next()
            return [candidate(sch, arg_info.from_entry_func(sch.mod, True)) for sch in found] or None

        def notify_runner_results(self, measure_candidates: TvmObject, results: Sequence[RunnerResult]) -> None:
            if self.proposals is None:
                self.inner.notify_runner_results(measure_candidates, results)
            else:
                self.proposals.learn(list(results))

        def clone(self) -> TvmObject:
            return AnatuneStrategy(self.hardware, self.settings, self.batch)

    return AnatuneSpace, AnatuneStrategy

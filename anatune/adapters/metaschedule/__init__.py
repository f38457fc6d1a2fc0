"""anatune inside TVM's MetaSchedule: anatune proposes kernels, MetaSchedule builds, runs and records them.

::

    from anatune.adapters import metaschedule

    options = metaschedule.tuning_options(hw="host")
    tvm.s_tir.meta_schedule.tune_tir(mod, target, work_dir, max_trials_global=32, **options)
    with target, metaschedule.open_database(work_dir):  # in this process or any other
        mod = tvm.relax.transform.MetaScheduleApplyDatabase()(mod)

A function with one matrix product or convolution (in any layout, padded, with elementwise steps before and after it)
gets kernels from anatune, for a CPU or an NVIDIA GPU. MetaSchedule itself tunes every other function. `cost_model` and
`postproc` are for MetaSchedule's own design spaces. TVM is imported when these functions are called.
"""

from anatune.adapters.metaschedule.cost import cost_model
from anatune.adapters.metaschedule.database import open_database
from anatune.adapters.metaschedule.kernels import register_database
from anatune.adapters.metaschedule.limits import postproc
from anatune.adapters.metaschedule.plan import plan_model
from anatune.adapters.metaschedule.plugins import builder, space, strategy, tuning_options
from anatune.adapters.metaschedule.repair import repair_database

__all__ = [
    "builder",
    "cost_model",
    "open_database",
    "plan_model",
    "postproc",
    "register_database",
    "repair_database",
    "space",
    "strategy",
    "tuning_options",
]

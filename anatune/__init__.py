"""anatune chooses schedules for tensor kernels on GPUs and CPUs from an analytical model.

Importing the package loads no numba, pandas or command-line code: public names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers; `_PUBLIC` is the same list for run time
    from anatune.api import hardware as hardware
    from anatune.api import plan as plan
    from anatune.api import plan_range as plan_range
    from anatune.api import predict as predict
    from anatune.api import prune as prune
    from anatune.api import space as space
    from anatune.core.hardware.spec import CpuSpec as CpuSpec
    from anatune.core.hardware.spec import GpuSpec as GpuSpec
    from anatune.core.prediction import Prediction as Prediction
    from anatune.core.schedule import Schedule as Schedule
    from anatune.core.trial import Measurement as Measurement
    from anatune.core.trial import Outcome as Outcome
    from anatune.core.trial import Trial as Trial
    from anatune.core.workload.layers import layer as layer
    from anatune.core.workload.nest import Workload as Workload
    from anatune.core.workload.operators import add_rms_norm as add_rms_norm
    from anatune.core.workload.operators import attention as attention
    from anatune.core.workload.operators import avg_pool1d as avg_pool1d
    from anatune.core.workload.operators import avg_pool2d as avg_pool2d
    from anatune.core.workload.operators import avg_pool3d as avg_pool3d
    from anatune.core.workload.operators import batch_matmul as batch_matmul
    from anatune.core.workload.operators import conv1d as conv1d
    from anatune.core.workload.operators import conv2d as conv2d
    from anatune.core.workload.operators import conv3d as conv3d
    from anatune.core.workload.operators import depthwise_conv2d as depthwise_conv2d
    from anatune.core.workload.operators import einsum as einsum
    from anatune.core.workload.operators import elementwise as elementwise
    from anatune.core.workload.operators import grouped_matmul as grouped_matmul
    from anatune.core.workload.operators import layer_norm as layer_norm
    from anatune.core.workload.operators import matmul as matmul
    from anatune.core.workload.operators import max_pool1d as max_pool1d
    from anatune.core.workload.operators import max_pool2d as max_pool2d
    from anatune.core.workload.operators import max_pool3d as max_pool3d
    from anatune.core.workload.operators import pool2d as pool2d
    from anatune.core.workload.operators import quantise_groups as quantise_groups
    from anatune.core.workload.operators import quantise_rows as quantise_rows
    from anatune.core.workload.operators import quantise_tensor as quantise_tensor
    from anatune.core.workload.operators import reduction as reduction
    from anatune.core.workload.operators import rms_norm as rms_norm
    from anatune.core.workload.operators import rotary as rotary
    from anatune.core.workload.operators import scaled_matmul as scaled_matmul
    from anatune.core.workload.operators import silu_multiply as silu_multiply
    from anatune.core.workload.operators import softmax as softmax
    from anatune.core.workload.text import parse_workload as parse_workload
    from anatune.errors import AnatuneError as AnatuneError
    from anatune.measure.cpu.kernel import Kernel as Kernel
    from anatune.measure.cuda.kernel import GpuKernel as GpuKernel
    from anatune.measure.named_hardware import HardwareLike as HardwareLike
    from anatune.measure.run.build_processes import Limits as Limits
    from anatune.measure.verify import Verification as Verification
    from anatune.measure.verify import build as build
    from anatune.measure.verify import inspect as inspect
    from anatune.measure.verify import verify as verify
    from anatune.model.plan import Plan as Plan
    from anatune.model.pruning.subset import Subset as Subset
    from anatune.model.pruning.subset import Verdict as Verdict
    from anatune.model.ranges.plan import RangePlan as RangePlan
    from anatune.network.compiling.compiled import CompiledModel as CompiledModel
    from anatune.network.compiling.divided import load as load
    from anatune.network.compiling.session import compile as compile
    from anatune.network.compiling.targets.comparing import compare as compare
    from anatune.servers.serving.predict import serving as serving
    from anatune.templates.base.model import Guarantee as Guarantee
    from anatune.templates.cpu.space import CpuSpace as CpuSpace
    from anatune.templates.cuda.pipelined_space import PipelinedSpace as PipelinedSpace
    from anatune.templates.cuda.space import GpuSpace as GpuSpace
    from anatune.tuning.result import TuningInterrupted as TuningInterrupted
    from anatune.tuning.result import TuningProgress as TuningProgress
    from anatune.tuning.result import TuningResult as TuningResult
    from anatune.tuning.tune import tune as tune
else:  # hidden from type checkers: with `__getattr__` in sight they would accept every name
    from importlib import import_module

    _PUBLIC = {
        "anatune.api": ("hardware", "plan", "plan_range", "predict", "prune", "space"),
        "anatune.core.hardware.spec": ("CpuSpec", "GpuSpec"),
        "anatune.core.workload.layers": ("layer",),
        "anatune.core.workload.operators": (
            *("avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_matmul", "conv1d", "conv2d", "conv3d"),
            *("depthwise_conv2d", "einsum", "elementwise", "matmul", "max_pool1d", "max_pool2d", "max_pool3d"),
            *("pool2d", "reduction", "softmax", "layer_norm", "rms_norm", "add_rms_norm", "silu_multiply", "rotary"),
            *("quantise_tensor", "quantise_rows", "quantise_groups", "attention"),
            *("scaled_matmul", "grouped_matmul"),
        ),
        "anatune.core.prediction": ("Prediction",),
        "anatune.core.schedule": ("Schedule",),
        "anatune.templates.cpu.space": ("CpuSpace",),
        "anatune.templates.cuda.space": ("GpuSpace",),
        "anatune.templates.cuda.pipelined_space": ("PipelinedSpace",),
        "anatune.core.trial": ("Measurement", "Outcome", "Trial"),
        "anatune.core.workload.nest": ("Workload",),
        "anatune.core.workload.text": ("parse_workload",),
        "anatune.errors": ("AnatuneError",),
        "anatune.measure.run.build_processes": ("Limits",),
        "anatune.measure.cuda.kernel": ("GpuKernel",),
        "anatune.measure.cpu.kernel": ("Kernel",),
        "anatune.measure.named_hardware": ("HardwareLike",),
        "anatune.measure.verify": ("Verification", "build", "inspect", "verify"),
        "anatune.templates.base.model": ("Guarantee",),
        "anatune.model.plan": ("Plan",),
        "anatune.model.ranges.plan": ("RangePlan",),
        "anatune.model.pruning.subset": ("Subset", "Verdict"),
        "anatune.tuning.result": ("TuningInterrupted", "TuningProgress", "TuningResult"),
        "anatune.tuning.tune": ("tune",),
    }
    _MODULE = {name: module for module, names in _PUBLIC.items() for name in names}
    _CALLS = ("CompiledModel", "compare", "compile", "load", "serving")
    """Public names that the optional packages `anatune.network` and `anatune.servers` register."""

    __all__ = sorted([*_MODULE, *_CALLS, "__version__"])

    def _lower(schedule, threads):
        return import_module("anatune.codegen.devices").lower(schedule, threads)

    def _source(schedule, threads):
        return import_module("anatune.codegen.devices").source(schedule, threads)

    def _explain(plan):
        return import_module("anatune.report.explain").explain(plan)

    import_module("anatune.core.templates").LATE.update(
        templates=lambda: import_module("anatune.templates"), lower=_lower, source=_source, explain=_explain
    )

    def __getattr__(name):
        if name in _CALLS:
            globals()[name] = value = import_module("anatune.named").load("calls", name, f"anatune.{name}")
            return value
        if name not in _MODULE:
            public_names = ", ".join(sorted([*_MODULE, *_CALLS]))
            raise AttributeError(f"module 'anatune' has no attribute {name!r}; public names: {public_names}")
        value = getattr(import_module(_MODULE[name]), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted([*globals(), *_MODULE, *_CALLS])

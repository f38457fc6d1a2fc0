"""Logs of other tuners as trials: AutoTVM, Ansor, MetaSchedule, Kernel Tuner (CLBlast's GEMM).

A file a tuner; `reading` puts them together. `devices` decides which spec a log's device is, `parts` what its shapes
say about the workload. What the templates cannot express is counted by reason, never guessed. Failed
measurements become trials with an outcome and no time: the times that these tools write for failures (1e9, 1e10, 1e20)
are not times.
"""

from __future__ import annotations

from anatune.adapters.logs.files import FORMATS, format_of
from anatune.adapters.logs.kernel_tuner import KernelTunerLog, read_kernel_tuner
from anatune.adapters.logs.metaschedule import FunctionReader
from anatune.adapters.logs.parts import Foreign, ForeignTrial, measured
from anatune.adapters.logs.reading import read_foreign

__all__ = [
    "FORMATS",
    "Foreign",
    "ForeignTrial",
    "FunctionReader",
    "KernelTunerLog",
    "format_of",
    "measured",
    "read_foreign",
    "read_kernel_tuner",
]

"""Logs of other tuners as trials: AutoTVM, Ansor, MetaSchedule, Kernel Tuner (CLBlast's GEMM).

There is a module for each tuner, and `reading` joins them. `devices` finds the spec of a log's device, and `parts` the
workload that fits its shapes. Entries that the templates cannot express are counted by reason and never guessed. Failed
measurements become trials with an outcome but no time: the times that these tuners write for failures (1e9, 1e10, 1e20)
are not times.
"""

from __future__ import annotations

from anatune.adapters.logs.files import FORMATS, format_of
from anatune.adapters.logs.kernel_tuner import KernelTunerLog, read_kernel_tuner
from anatune.adapters.logs.metaschedule import FunctionReader
from anatune.adapters.logs.parts import Foreign, ForeignTrial, read_times
from anatune.adapters.logs.reading import read_foreign

__all__ = [
    "FORMATS",
    "Foreign",
    "ForeignTrial",
    "FunctionReader",
    "KernelTunerLog",
    "format_of",
    "read_foreign",
    "read_kernel_tuner",
    "read_times",
]

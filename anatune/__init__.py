"""anatune chooses schedules for tensor kernels on GPUs and CPUs from an analytical model.

Importing the package loads no numba, pandas or command-line code: public names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_OPERATORS = "anatune.core.operators"
_PUBLIC = {
    **dict.fromkeys(
        (
            "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_matmul", "conv1d", "conv2d", "conv3d", "depthwise_conv2d",
            "einsum", "elementwise", "matmul", "max_pool1d", "max_pool2d", "max_pool3d", "pool2d", "reduction",
        ),
        _OPERATORS,
    ),
    "layer": "anatune.core.layers",
    "parse_workload": "anatune.core.workload_text",
    "Workload": "anatune.core.workload",
    "Schedule": "anatune.core.schedule",
    "Prediction": "anatune.core.prediction",
    "AnatuneError": "anatune.errors",
    "hardware": "anatune.api",
    "space": "anatune.api",
    "plan": "anatune.api",
    "predict": "anatune.api",
    "Plan": "anatune.api",
    "prune": "anatune.api",
    "tune": "anatune.tuning.session",
    "TuningResult": "anatune.tuning.result",
    **dict.fromkeys(("build", "inspect", "verify", "Verification"), "anatune.measure.verify"),
    "Kernel": "anatune.measure.kernel",
}  # fmt: skip

__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'anatune' has no attribute {name!r}; public names: {', '.join(sorted(_PUBLIC))}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])

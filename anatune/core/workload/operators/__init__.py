"""Constructors of workloads: each returns a `Workload` or raises `WorkloadError` for impossible arguments."""

from __future__ import annotations

from collections.abc import Callable

from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.attention import attention
from anatune.core.workload.operators.convolution import conv1d, conv2d, conv3d, depthwise_conv2d
from anatune.core.workload.operators.einsum import einsum
from anatune.core.workload.operators.matmul import batch_matmul, matmul
from anatune.core.workload.operators.pointwise import elementwise, reduction
from anatune.core.workload.operators.pooling import (
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    pool2d,
)
from anatune.core.workload.operators.rows import softmax

__all__ = [
    "CONSTRUCTORS",
    "attention",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_matmul",
    "conv1d",
    "conv2d",
    "conv3d",
    "depthwise_conv2d",
    "einsum",
    "elementwise",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pool2d",
    "reduction",
    "softmax",
]

CONSTRUCTORS: dict[str, Callable[..., Workload]] = {
    "matmul": matmul,
    "batch_matmul": batch_matmul,
    "conv1d": conv1d,
    "conv2d": conv2d,
    "conv3d": conv3d,
    "depthwise_conv2d": depthwise_conv2d,
    "max_pool1d": max_pool1d,
    "max_pool2d": max_pool2d,
    "max_pool3d": max_pool3d,
    "avg_pool1d": avg_pool1d,
    "avg_pool2d": avg_pool2d,
    "avg_pool3d": avg_pool3d,
    "reduction": reduction,
    "elementwise": elementwise,
    "einsum": einsum,
    "softmax": softmax,
    "attention": attention,
}
"""Operator -> constructor; ``CONSTRUCTORS[w.operator](**w.attribute)`` builds a workload equal to ``w``."""

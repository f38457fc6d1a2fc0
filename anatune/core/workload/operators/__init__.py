"""Constructors of workloads: each returns a `Workload`, or raises `WorkloadError` for impossible arguments."""

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
from anatune.core.workload.operators.rows import (
    add_rms_norm,
    layer_norm,
    quantise_groups,
    quantise_rows,
    quantise_tensor,
    rms_norm,
    rotary,
    silu_multiply,
    softmax,
)
from anatune.core.workload.operators.scaled import grouped_matmul, scaled_matmul

__all__ = [
    "CONSTRUCTORS",
    "add_rms_norm",
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
    "grouped_matmul",
    "layer_norm",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pool2d",
    "quantise_groups",
    "quantise_rows",
    "quantise_tensor",
    "reduction",
    "rms_norm",
    "rotary",
    "scaled_matmul",
    "silu_multiply",
    "softmax",
]

CONSTRUCTORS: dict[str, Callable[..., Workload]] = {
    constructor.__name__: constructor
    for constructor in (
        *(matmul, batch_matmul, conv1d, conv2d, conv3d, depthwise_conv2d, max_pool1d, max_pool2d, max_pool3d),
        *(avg_pool1d, avg_pool2d, avg_pool3d, reduction, elementwise, einsum, softmax, layer_norm, rms_norm),
        *(add_rms_norm, silu_multiply, rotary, quantise_tensor, quantise_rows, quantise_groups, attention),
        *(scaled_matmul, grouped_matmul),
    )
}
"""Operator -> constructor; ``CONSTRUCTORS[w.operator](**w.attribute)`` builds a workload equal to ``w``."""

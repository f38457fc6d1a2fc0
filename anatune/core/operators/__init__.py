"""Constructors of workloads: each returns a `Workload` and raises `WorkloadError` for arguments that cannot be."""

from __future__ import annotations

from anatune.core.operators.convolution import conv1d, conv2d, conv3d, depthwise_conv2d
from anatune.core.operators.matmul import batch_matmul, matmul

__all__ = ["batch_matmul", "conv1d", "conv2d", "conv3d", "depthwise_conv2d", "matmul"]

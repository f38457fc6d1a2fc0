"""What a recorded table holds, whatever it was recorded on: groups of points with measured times."""

from __future__ import annotations

import abc
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import anatune
from anatune import api
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.features import FeatureTable
from anatune.templates.base.model import Model
from anatune.templates.cuda.model.model import CudaModel

__all__ = ["RecordedGroup", "model_of", "table_files", "workload_of"]

CONV_ID = re.compile(r"conv_n(\d+)_c(\d+)_h(\d+)x(\d+)_k(\d+)_r(\d+)x(\d+)_s(\d+)x(\d+)_o(\d+)x(\d+)")
MATMUL_ID = re.compile(r"mm_m(\d+)_n(\d+)_k(\d+)_([nt])([nt])")


@dataclass(frozen=True)
class RecordedGroup(abc.ABC):
    """All recorded points of one workload on one device in one table."""

    table: str
    kind: str
    """The tuner: "ansor", "autotvm", "clblast" or "tophub" on GPUs, "autotvm_nchwc" or "ansor_x86" on CPUs."""
    device: str
    workload_id: str
    workload: Workload
    hardware: GpuSpec | CpuSpec
    time_s: NDArray[np.float64]
    """(num_points,): NaN where the trial failed."""
    unbiased: NDArray[np.bool_]
    """(num_points,): part of an unbiased sample of the tuner's space."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Return what tells it from all others."""
        return self.table, self.device, self.workload_id

    @abc.abstractmethod
    def predictions(self) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        """Return the analytical model's seconds, and what it calls legal; None: not all are points of a template."""

    @abc.abstractmethod
    def features(self) -> FeatureTable:
        """Return the features of the points, for learned corrections."""


def model_of(workload: Workload, hardware: GpuSpec | CpuSpec) -> Model:
    """Return the analytical model of a space that the recorded tuners share: divisors, of GPUs nothing split."""
    if isinstance(hardware, GpuSpec):
        return CudaModel(workload, hardware, plain=True)
    return api.model(workload, hardware)


def table_files(folder: Path) -> list[Path]:
    """Return the CSV tables of `folder`, compressed or not, in order of their names."""
    return sorted({*folder.glob("*.csv.gz"), *folder.glob("*.csv")})


def workload_of(workload_id: str) -> Workload:
    """Return the workload that an id names; the padding follows from the output size in it.

    Raises
    ------
    ValueError
        The id is of another form (depthwise, batched, ...), or names an impossible workload.
    """
    if match := CONV_ID.fullmatch(workload_id):
        n, c, h, w, k, r, s, sy, sx, oh, ow = map(int, match.groups())
        pads = (
            -(-((out - 1) * stride + window - size) // 2)
            for out, stride, window, size in ((oh, sy, r, h), (ow, sx, s, w))
        )
        return anatune.conv2d(n, c, h, w, k, r, s, stride=(sy, sx), padding=tuple(max(0, p) for p in pads))
    if match := MATMUL_ID.fullmatch(workload_id):
        m, n, k = map(int, match.groups()[:3])
        return anatune.matmul(m, n, k, transpose_a=match[4] == "t", transpose_b=match[5] == "t")
    raise ValueError(f"workload id {workload_id!r} is neither a conv2d nor a matmul")

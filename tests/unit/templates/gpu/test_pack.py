"""Objects become arrays: units, order of axes and tensors, fixed dtypes."""

from __future__ import annotations

import numpy as np
import pytest

import anatune
from anatune.numerics.columns import CHUNK_SIZE
from anatune.templates.cuda.space import staged_tensors
from anatune.templates.gpu.pack import pack_chunk, pack_gpu, pack_nest
from tests.naive_gpu import DEVICES, WORKLOADS, gpu


@pytest.mark.parametrize("device", DEVICES)
def test_bandwidths_are_bytes_a_cycle(device: str) -> None:
    spec = gpu(device)
    packed = pack_gpu(spec, "float32")
    assert packed.dram_bytes_cycle * packed.clock_hz == pytest.approx(
        spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction
    )
    assert packed.l2_bytes_cycle * packed.clock_hz == pytest.approx(spec.l2.bandwidth_bytes_per_s)
    peak = 2 * packed.fma_per_cycle * packed.num_sms * packed.clock_hz
    assert peak == pytest.approx(spec.compute.fp32_peak_flop_per_s * spec.compute.reachable_fraction, rel=0.03)
    assert packed.registers_thread == min(spec.registers.per_thread, spec.compiler.registers_per_thread)


def test_rates_of_dtypes() -> None:
    spec = gpu("rtx3090")
    rates = {dtype: pack_gpu(spec, dtype).fma_per_cycle for dtype in ("float32", "float16", "bfloat16", "int8")}
    assert rates["float16"] / rates["float32"] == spec.compute.fp16_rate
    assert rates["int8"] / rates["float32"] == spec.compute.int8_rate


def test_field_types_are_the_same_for_every_device() -> None:
    """Numba compiles a new signature where one differs."""
    kinds = {tuple(type(value) for value in pack_gpu(gpu(device), "float32")) for device in DEVICES}
    assert len(kinds) == 1
    assert set(next(iter(kinds))) == {int, float, np.ndarray}


def test_matmul() -> None:
    nest = pack_nest(anatune.matmul(6, 8, 10, transpose_b=True, epilogue=("bias",)), staged=True)
    assert (nest.num_spatial, nest.num_reduction, nest.num_operands, nest.staged) == (2, 1, 2, 1)
    assert (nest.element_bytes, nest.result_bytes, nest.epilogue_bytes) == (4, 4, 32.0)
    assert nest.dim_start.tolist() == [0, 2, 4, 6]  # A, B, result
    assert nest.term_axis.tolist() == [0, 2, 1, 2, 0, 1]  # A[i, k], B[j, k], C[i, j]
    assert nest.term_coefficient.tolist() == [1] * 6
    assert nest.dim_size.tolist() == [6, 10, 8, 10, 6, 8]
    assert nest.uses.tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 0]]
    assert nest.inner_axis.tolist() == [-1, -1, 1]  # operands end in k
    assert nest.misaligned.tolist() == [1, 1, 0]  # rows of 10 floats are no whole sectors
    assert nest.tensor_bytes.tolist() == [240.0, 320.0, 192.0]


def test_strided_convolution() -> None:
    nest = pack_nest(anatune.conv2d(1, 4, 16, 16, 8, 3, 3, stride=2, padding=1), staged=True)
    n, f, y, x, rc, ry, rx = range(7)
    data = slice(0, int(nest.term_start[4]))
    assert nest.term_axis[data].tolist() == [n, rc, y, ry, x, rx]
    assert nest.term_coefficient[data].tolist() == [1, 1, 2, 1, 2, 1]
    assert (nest.inner_axis[0], nest.inner_coefficient[0]) == (x, 2)
    assert nest.misaligned[0] == 1  # padding
    assert nest.uses[0].tolist() == [1, 0, 1, 1, 1, 1, 1]
    assert nest.uses[1].tolist() == [0, 1, 0, 0, 1, 1, 1]
    assert f == 1


def test_results_of_int8_are_wider() -> None:
    nest = pack_nest(anatune.matmul(8, 8, 8, dtype="int8"), staged=True)
    assert (nest.element_bytes, nest.result_bytes) == (1, 4)
    assert nest.tensor_bytes.tolist() == [64.0, 64.0, 256.0]


def test_touched_elements_only() -> None:
    nest = pack_nest(anatune.conv2d(1, 4, 16, 16, 8, 1, 1, stride=2), staged=True)
    assert nest.tensor_bytes[0] == 4 * 8 * 8 * 4


def test_a_result_without_axes() -> None:
    nest = pack_nest(anatune.reduction((12,)), staged=True)
    assert (nest.num_spatial, nest.num_reduction) == (0, 1)
    assert nest.inner_axis.tolist() == [-1, -1]


@pytest.mark.parametrize("name", WORKLOADS)
def test_shapes_and_dtypes(name: str) -> None:
    workload = WORKLOADS[name]
    nest = pack_nest(workload, staged=bool(staged_tensors(workload)))
    tensors = [*workload.reads, workload.write]
    assert nest.uses.shape == (len(tensors), len(workload.axes))
    assert nest.dim_start[-1] == sum(len(access.shape) for access in tensors) == len(nest.dim_size)
    assert nest.term_start[-1] == len(nest.term_axis) == len(nest.term_coefficient)
    for value in nest:
        assert type(value) in (int, float, np.ndarray)
        if isinstance(value, np.ndarray):
            assert value.dtype in (np.int64, np.float64)
            assert value.flags.c_contiguous
    chunk = pack_chunk(nest)
    assert chunk.tile.shape == (len(workload.axes), CHUNK_SIZE)
    assert chunk.footprint.shape == (len(workload.reads), CHUNK_SIZE)

"""Tensor-core kernels on the CPU: right for every dtype, layout and edge; faults put into them are found."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm")
import anatune
from anatune import batch_matmul, conv2d, matmul
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.errors import MissingDependencyError, RunError
from anatune.measure.emulate.emulator import compiler
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import expected, random_inputs
from anatune.measure.run.rounding import as_tf32, operands_used
from anatune.templates.gpu.kernel import CudaKernel
from anatune.templates.tensorcore.model import TensorCoreModel
from bench.gpu.mutants import mutants
from tests.naive_gpu import gpu

try:
    compiler()
except MissingDependencyError as error:
    pytest.skip(str(error), allow_module_level=True)

CASES = {
    "bfloat16": (matmul(64, 64, 96, dtype="bfloat16"), {"m": (2, 2), "n": (2, 2), "k": (2,)}, 3),
    "float16 epilogue": (
        matmul(32, 48, 64, dtype="float16", transpose_b=True, epilogue=("bias", "add", "relu")),
        {"m": (1, 2), "n": (2, 3), "k": (1,)},
        4,
    ),
    "tf32": (matmul(48, 40, 56, epilogue=("bias",)), {"m": (2, 1), "n": (2, 2), "k": (2,)}, 2),
    "tf32 transposed": (matmul(32, 32, 32, transpose_a=True), {"m": (1, 2), "n": (1, 4), "k": (4,)}, 1),
    "odd sizes": (matmul(37, 29, 19, dtype="bfloat16", epilogue=("add",)), {"m": (1, 1), "n": (2, 1), "k": (1,)}, 3),
    "batch": (batch_matmul(3, 20, 24, 40, dtype="float16"), {"m": (1, 1), "n": (1, 3), "k": (2,)}, 2),
    "conv NHWC": (
        conv2d(1, 16, 9, 7, 24, 3, 3, stride=2, padding=1, layout="NHWC", dtype="float16", epilogue=("bias", "relu")),
        {"m": (2, 1), "n": (1, 3), "k": (2,)},
        3,
    ),
    "conv NCHW": (
        conv2d(2, 6, 9, 9, 16, 3, 3, padding=2, dilation=2, dtype="bfloat16", epilogue=("bias",)),
        {"m": (1, 1), "n": (2, 4), "k": (2,)},
        3,
    ),
    "conv groups tf32": (conv2d(1, 8, 6, 6, 16, 3, 3, padding=1, groups=2), {"m": (1, 1), "n": (1, 4), "k": (2,)}, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_right(name: str) -> None:
    workload, tiles, stages = CASES[name]
    schedule = TensorCoreModel(workload, gpu("a100")).space.schedule(tiles, stages, 4)
    answer = anatune.verify(schedule)
    assert answer.ok, answer.message


def own_mutants(kernel: CudaKernel) -> Iterator[tuple[str, CudaKernel]]:
    """Faults of tensor-core kernels: what `bench.gpu.mutants` does not know."""
    faults = {
        "not transposed": (".x4.trans.shared", ".x4.shared"),
        "rows of a fragment exchanged": ('"r"(__a0), "r"(__a1)', '"r"(__a1), "r"(__a0)'),
        "halves of k exchanged": ('"r"(__b0), "r"(__b1)', '"r"(__b1), "r"(__b0)'),
        "warp barrier removed": ("__syncwarp();", ";"),
        "group never committed": ("cp.async.commit_group;", ""),
        "results exchanged": ("bf16x2.f32 %0, %1, %2", "bf16x2.f32 %0, %2, %1"),
    }
    for name, (before, after) in faults.items():
        assert before in kernel.source
        yield name, msgspec.structs.replace(kernel, source=kernel.source.replace(before, after, 1))


def test_faults_are_found() -> None:
    workload, tiles, _ = CASES["bfloat16"]
    schedule = TensorCoreModel(workload, gpu("a100")).space.schedule(tiles, 2, 1)
    kernel, inputs = cuda_kernel(schedule), random_inputs(workload, 0)
    want = expected(workload, inputs)
    for name, mutant in (*mutants(kernel), *own_mutants(kernel)):
        try:
            answer = check_kernel(workload, mutant, inputs, want)
        except RunError:
            continue
        assert not answer.ok, name


def test_truncation_instead_of_rounding_is_found() -> None:
    workload, tiles, stages = CASES["tf32"]
    schedule = TensorCoreModel(workload, gpu("a100")).space.schedule(tiles, stages, 1)
    kernel, inputs = cuda_kernel(schedule), random_inputs(workload, 0)
    call = 'asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(__d) : "f"(__a));'
    assert call in kernel.source
    mutant = msgspec.structs.replace(kernel, source=kernel.source.replace(call, "__d = __float_as_uint(__a);"))
    want = expected(workload, operands_used(schedule, inputs))
    assert check_kernel(workload, kernel, inputs, want).ok
    assert not check_kernel(workload, mutant, inputs, want).ok


def test_tf32_rounding() -> None:
    values = np.array([1.0, 1 + 2.0**-11, 1 + 2.0**-10, -(1 + 2.0**-11), 1e-30, np.inf], np.float32)
    rounded = as_tf32(values)
    assert rounded[:4].tolist() == [1.0, 1 + 2.0**-10, 1 + 2.0**-10, -(1 + 2.0**-10)]  # ties away from zero
    assert np.isinf(rounded[5])
    assert abs(rounded[4] / 1e-30 - 1) < 2.0**-11

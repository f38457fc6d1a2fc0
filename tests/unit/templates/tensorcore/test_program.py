"""Tensor-core kernels as text: addresses without bank conflicts, the instructions, refusals."""

from __future__ import annotations

import re

import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.implicit_gemm import implicit_gemm
from anatune.core.workload.nest import Workload
from anatune.errors import BuildError, SpaceError
from anatune.templates import TENSORCORE
from anatune.templates.tensorcore.model import TensorCoreModel
from anatune.templates.tensorcore.program.layout import OperandTile, TileLayout
from tests.naive_gpu import gpu

MATMUL = anatune.matmul(128, 64, 96, dtype="bfloat16", epilogue=("bias",))


def schedule_of(workload: Workload = MATMUL, stages: int = 3, device: str = "a100") -> Schedule:
    space = TensorCoreModel(workload, gpu(device)).space
    return space.schedule({"m": (2, 2), "n": (2, 2), "k": (2,)}, stages, 2)


def address(tile: OperandTile, row: int, chunk: int, within: int = 0) -> int:
    """Evaluate the expression that the kernel uses."""
    text = tile.address(str(row), str(chunk), str(within)).replace("T.bitwise_xor", "xor")
    return int(eval(text, {"xor": lambda a, b: a ^ b}))


def tile_of(row: int, *, element_bytes: int, matrix: bool) -> OperandTile:
    operand = implicit_gemm(MATMUL).left
    return OperandTile(operand, 64, row, 0, 1, matrix, element_bytes)


@pytest.mark.parametrize("row", [16, 32, 48, 64, 80, 96, 112, 128, 192, 256])
def test_ldmatrix_reads_eight_different_bank_groups(row: int) -> None:
    tile = tile_of(row, element_bytes=2, matrix=True)
    for chunk in range(row // 8):
        for first in range(0, 64, 8):
            banks = {address(tile, first + r, chunk) * 2 // 16 % 8 for r in range(8)}
            assert len(banks) == 8


@pytest.mark.parametrize("row", [8, 16, 24, 32, 64, 96, 128, 256])
def test_single_elements_are_read_from_different_banks(row: int) -> None:
    """Lane 4 g + t reads column first + g of row k + t."""
    tile = tile_of(row, element_bytes=4, matrix=False)
    for first in range(0, row, 8):
        for k in range(0, 64, 4):
            columns = [(t, first + g) for t in range(4) for g in range(8)]
            banks = {address(tile, k + t, column // 4, column % 4) % 32 for t, column in columns}
            assert len(banks) == 32


@pytest.mark.parametrize(("row", "bytes_", "matrix"), [(48, 2, True), (128, 2, True), (24, 4, False), (64, 4, False)])
def test_swizzle_is_a_permutation_of_rows(row: int, bytes_: int, matrix: bool) -> None:
    tile = tile_of(row, element_bytes=bytes_, matrix=matrix)
    for r in range(16):
        places = {address(tile, r, column // tile.chunk, column % tile.chunk) for column in range(row)}
        assert places == set(range(r * row, (r + 1) * row))


def test_instructions() -> None:
    text = TENSORCORE.program(schedule_of()).script
    for word in (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
        "cp.async.cg.shared.global",
        'cp.async.wait_group"](1)',
        "cvt.rn.bf16x2.f32",
    ):
        assert word in text
    text = TENSORCORE.program(schedule_of(anatune.matmul(64, 64, 64))).script
    assert "m16n8k8.row.col.f32.tf32.tf32.f32" in text
    assert "cvt.rna.tf32.f32" in text


def test_only_what_may_lie_outside_is_tested() -> None:
    assert "T.Select" not in TENSORCORE.program(schedule_of()).script
    odd = TENSORCORE.program(schedule_of(anatune.matmul(90, 64, 90, dtype="float16"))).script
    assert "< 90" in odd
    padded = anatune.conv2d(1, 16, 8, 8, 16, 3, 3, padding=1, dtype="float16", layout="NHWC")
    assert ">= 0" in TENSORCORE.program(schedule_of(padded)).script


def test_launch_configuration() -> None:
    program = TENSORCORE.program(schedule_of())
    layout = TileLayout(schedule_of())
    assert (program.num_blocks, program.num_threads) == (2 * 2, 128)
    assert program.shared_bytes == layout.shared_bytes == max(3 * (64 + 32) * 32 * 2, 4 * 16 * 24 * 4)
    assert 'scope="shared")' in program.script
    large = TensorCoreModel(anatune.matmul(512, 512, 512, dtype="float16"), gpu("a100")).space
    program = TENSORCORE.program(large.schedule({"m": (2, 4), "n": (2, 8), "k": (4,)}, 4))
    assert program.shared_bytes > 49152
    assert 'scope="shared.dyn")' in program.script


def test_refusals() -> None:
    cuda_cores = anatune.space(MATMUL, gpu("a100")).schedule({})
    with pytest.raises(SpaceError, match="expected a GPU and tensorcore"):
        TENSORCORE.program(cuda_cores)
    huge = anatune.matmul(65536, 8, 65536, dtype="float16")
    with pytest.raises(BuildError, match="at most 2147483647"):
        TENSORCORE.program(schedule_of(huge))


def test_kernel_compiles_for_every_architecture_with_tensor_cores() -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("cuda.bindings")
    from anatune.codegen.cuda.lower import cuda_kernel
    from anatune.codegen.cuda.nvrtc import compile_cuda

    kernel = cuda_kernel(schedule_of())
    assert not re.search(r"#\s*include", kernel.source)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90"):
        facts = compile_cuda(kernel.source, arch).facts
        assert facts.spill_bytes == 0
        assert facts.shared_bytes == kernel.shared_bytes

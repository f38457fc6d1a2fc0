"""Schedules of the template triton as artifacts: files, launches, what checks allow."""

from unittest import mock

import pytest

import anatune
from anatune.codegen.cuda.artifact import read_image
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.triton import artifact as triton
from anatune.core.accuracy import rounding_error
from anatune.core.compiler_facts import CompilerFacts
from anatune.emit.buffer import Buffer
from anatune.errors import SpaceError
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from tests.wording import refuses

SHAPE = (256, 256)
A, B, C = (Buffer(name, "float16", SHAPE) for name in "ABC")
PARTS = Buffer("parts", "float32", (2, *SHAPE))
OPTIONS = {"enable_fp_fusion": True}
KERNELS = (TritonKernel("product", (A, B, PARTS), 8, 8, 3, OPTIONS), TritonKernel("add", (PARTS, C), 64, 4, 1, {}))
PROGRAM = TritonProgram("", "", KERNELS, "C", PARTS)


def schedule(device="h100", workload=None):
    workload = workload or anatune.matmul(256, 256, 256, dtype="float16")
    return anatune.space(workload, device, template="triton").schedule({"m": 128, "n": 128, "k": 64}, num_warps=8)


def compiled(program, kernel, hardware):
    """Stands for the compiler: a product that is specialised has four warps more."""
    facts = CompilerFacts(168, instructions={"wgmma.mma_async": 4})
    is_product = kernel.name == "product"
    threads = hardware.compute.warp_size * (kernel.num_warps + 4 * is_product)
    return Cubin(
        kernel.name, hardware.arch, kernel.name.encode(), facts, "", threads, 98304 * is_product, 384 * is_product
    )


@pytest.fixture(autouse=True)
def _compiler():
    with (
        mock.patch.object(triton, "compile_kernel", compiled),
        mock.patch.object(triton.TRITON, "program", return_value=PROGRAM),
    ):
        yield


def test_each_kernel_is_a_launch_with_a_file_of_its_own(tmp_path):
    made = triton.build_schedule(schedule(), tmp_path)
    product, add = made.launches
    assert (product.name, product.grid, product.block, product.scratch_bytes) == ("product", 8, 384, 384)
    assert (made.shared_bytes, product.dynamic_shared_bytes) == (98304, 98304)
    assert (add.name, add.grid, add.block, add.scratch_bytes, add.shared_bytes) == ("add", 64, 128, 0, 0)
    assert list(made.tensors) == ["A", "B", "C"]
    assert (made.workspace, made.result, made.arch) == (PARTS, "C", "sm_90")
    assert made.scratch_bytes_in_all == 8 * 384
    assert (read_image(made), read_image(add)) == (b"product", b"add")
    moved = made.with_files(lambda path: f"{path}.moved")
    assert moved.image == f"{made.image}.moved"
    assert moved.after[0].image == f"{add.image}.moved"
    assert {path.suffix for path in tmp_path.iterdir()} == {".cubin"}


def test_what_matrix_units_explain(tmp_path):
    half = schedule()
    made = triton.build_schedule(half, tmp_path)
    assert made.error == 4 * rounding_error(half.workload)
    single = schedule(workload=anatune.matmul(256, 256, 256))
    made = triton.build_schedule(single, tmp_path)
    assert made.error == pytest.approx(4 * rounding_error(single.workload) + 2 * 2**-10)


def test_what_no_device_could_launch(tmp_path):
    with refuses(SpaceError):
        triton.build_schedule(schedule("mi300x"), tmp_path)
    with refuses(SpaceError):
        triton.compile_entry(schedule("mi300x"), tmp_path)


def test_facts_have_the_shared_memory_of_the_launch(tmp_path):
    facts = triton.compile_entry(schedule(), tmp_path)
    assert (facts.registers, facts.shared_bytes) == (168, 98304)
    assert facts.numbers()["wgmma.mma_async"] == 4

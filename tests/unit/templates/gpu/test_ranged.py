"""Kernels that take an extent when they are launched: what is launched for which extent, what is refused."""

import msgspec
import pytest

import anatune
from anatune import batch_matmul, conv2d, matmul
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import compile_cuda
from anatune.core.schedule import Schedule
from anatune.errors import BuildError, RunError, SpaceError
from anatune.templates.cuda.program.nest import CudaNest
from anatune.templates.gpu.kernel import CudaKernel
from anatune.templates.gpu.ranged import Growth, Ranged, product
from tests.wording import refuses

GPU = anatune.hardware("rtx3090")
TILES = {"i": (2, 1, 8, 1, 4), "j": (2, 1, 8, 1, 4), "k": (4, 4, 4)}
VECTORS = {"A": 4, "B": 4}


def schedule(workload=None, tiles=None, template="cuda", **options):
    workload = workload or matmul(64, 64, 64)
    return Schedule(workload, GPU, template, tiles or TILES, 64, VECTORS, options).check()


def fetches(ranged, **options):
    return {tile.access.tensor: tile.fetch for tile in CudaNest(schedule(**options), ranged).tiles}


def test_grids_shapes_and_the_argument_follow_from_the_extent():
    kernel = cuda_kernel(schedule(), Ranged("i", 1, 64))
    assert kernel.source.count("float* __restrict__ C_ptr, int extent_i)") == 1
    assert (kernel.grid, kernel.growth) == (4, Growth(2, 32))
    for extent, grid in ((1, 2), (32, 2), (33, 4), (64, 4)):
        bound = kernel.at(extent)
        assert (bound.grid, bound.scalars, bound.source) == (grid, (extent,), kernel.source)
        assert {one.tensor: one.shape for one in bound.parameters} == {
            "A": (extent, 64),
            "B": (64, 64),
            "C": (extent, 64),
        }
    assert kernel.at(7).at(9).scalars == (9,)
    assert msgspec.json.decode(msgspec.json.encode(kernel), type=CudaKernel) == kernel
    with refuses(RunError):
        _ = kernel.scalars
    with refuses(RunError):
        kernel.at(65)
    with refuses(RunError):
        cuda_kernel(schedule()).at(64)
    assert cuda_kernel(schedule()).scalars == ()


def test_a_range_of_the_reduction_has_one_grid():
    kernel = cuda_kernel(schedule(), Ranged("k", 4, 64, 4))
    assert kernel.growth is None
    assert kernel.at(20).grid == kernel.grid == 4
    assert kernel.at(20).parameters == tuple(one.at(20) for one in kernel.parameters)


def test_vectors_and_guards_are_what_all_extents_allow():
    assert fetches(Ranged("i", 1, 64)) == {"A": 4, "B": 4}  # rows vary, which no vector lies along
    assert fetches(Ranged("j", 1, 64)) == {"A": 4, "B": 1}
    assert fetches(Ranged("j", 4, 64, 4)) == {"A": 4, "B": 4}
    assert fetches(Ranged("k", 2, 64, 2)) == {"A": 1, "B": 4}
    assert CudaNest(schedule(), Ranged("j", 4, 64, 4)).guarded_axes == ("j",)
    assert CudaNest(schedule(), Ranged("j", 32, 64, 32)).guarded_axes == ()  # in multiples of the tile
    assert (
        "if (" not in (source := cuda_kernel(schedule(), Ranged("i", 32, 64, 32)).source)[source.index("__global__") :]
    )


def test_split_reductions_have_ranges():
    parts = cuda_kernel(schedule(split=2), Ranged("i", 1, 64))
    assert [(one.grid, one.growth) for one in parts.launches] == [(8, Growth(4, 32)), (4, Growth(2, 32))]
    assert [one.grid for one in parts.at(5).launches] == [4, 2]
    assert parts.source.count("int extent_i)") == 2
    added = cuda_kernel(schedule(split=2, atomic=1), Ranged("i", 1, 64))
    assert [one.growth for one in added.launches] == [Growth(1, 4), Growth(4, 32)]  # zeroing: 4 rows of 64 a block
    assert cuda_kernel(schedule(split=2), Ranged("k", 32, 64)).source.count("int extent_k)") == 2  # even if unused
    with refuses(SpaceError):
        cuda_kernel(schedule(split=4), Ranged("k", 32, 64))
    with refuses(SpaceError):
        cuda_kernel(schedule(split=2, whole=1), Ranged("i", 1, 64))


@pytest.mark.parametrize(
    "ranged",
    [
        Ranged("z", 1, 64),
        Ranged("i", 9, 8),
        Ranged("i", 0, 64),
        Ranged("i", 1, 63),
        Ranged("i", 1, 64, 4),
        Ranged("i", 0, 64, 0),
    ],
)
def test_a_bad_range_is_one_line(ranged):
    with refuses(SpaceError) as caught:
        cuda_kernel(schedule(), ranged)
    assert "\n" not in str(caught.value)


def test_windows_and_streams_have_no_ranges():
    convolution = anatune.space(conv2d(1, 8, 9, 9, 8, 3, 3), GPU).sample(1, 0)[0]
    with refuses(SpaceError):
        cuda_kernel(convolution, Ranged("ry", 1, 3))
    stream = anatune.space(matmul(4, 512, 512), GPU, template="thin").sample(1, 0)[0]
    with refuses(BuildError):
        cuda_kernel(stream, Ranged("j", 1, 512))


def test_products_of_numbers_and_expressions():
    assert product(2, 3) == 6
    assert product("n", 2, 3) == "n * 6"
    assert product("n", 1) == "n"
    assert product() == 1
    assert Growth(3, 4).grid(9) == 9


@pytest.mark.parametrize("axis", ["b", "i", "j", "k"])
def test_the_compiler_takes_them(axis):
    pytest.importorskip("cuda.bindings")
    workload = batch_matmul(8, 64, 64, 64, epilogue=("relu",))
    tiles = TILES | {"b": (4, 1, 1, 1, 2)}
    options = {"stages": 3, "split": 2}
    kernel = cuda_kernel(
        schedule(workload, tiles, "pipelined", **options),
        Ranged(axis, 32 if axis == "k" else 1, workload.extents[axis]),
    )
    assert compile_cuda(kernel.source, kernel.arch).facts.registers


@pytest.mark.parametrize(
    "growth", [Growth(1, 1), Growth(3, 4), Growth(2, 32, 36), Growth(5, 1, 7), Growth(1, 1024, 48)]
)
def test_a_grid_in_words_is_the_grid(growth):
    text = growth.expression("extent", "//")
    for extent in (1, 3, 4, 5, 31, 33, 1000):
        tiles = -(-extent * growth.each // growth.iterations)
        assert eval(text, {"extent": extent}) == growth.grid(extent) == growth.blocks * tiles
    assert growth.expression("n", "/") == text.replace("//", "/").replace("extent", "n")

"""GPU schedules as TVM programs and CUDA C: what is generated, what is refused. No GPU or compiler of NVIDIA's."""

import math
import re

import msgspec
import pytest

import anatune
from anatune.codegen.cuda.lower import cuda_kernel, lower_gpu
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.errors import AnatuneError, BuildError, SpaceError
from anatune.templates.cuda.program.hints import _has_neighbours
from anatune.templates.cuda.program.nest import CudaNest
from anatune.templates.gpu.split import split_of
from tests.wording import refuses

GPU = anatune.hardware("rtx3090")
MATMUL = anatune.matmul(64, 64, 64)
TILES = {"i": (2, 2, 4, 1, 4), "j": (2, 2, 4, 2, 2), "k": (4, 2, 8)}
WORKLOADS = {
    "matmul": MATMUL,
    "transposed": anatune.matmul(32, 48, 64, transpose_a=True, transpose_b=True, epilogue=("bias", "relu")),
    "batch_matmul": anatune.batch_matmul(3, 16, 24, 32),
    "conv2d": anatune.conv2d(n=2, c=8, h=11, w=9, k=8, r=3, s=3, stride=2, padding=1, dilation=2, groups=2),
    "nhwc": anatune.conv2d(n=1, c=8, h=8, w=8, k=16, r=3, s=3, padding=1, layout="NHWC", epilogue=("bias", "add")),
    "pooling": anatune.max_pool2d(1, 4, 9, 9, 3, 3, stride=2, padding=1),
    "reduction": anatune.reduction((8, 16, 32), axes=(1,)),
    "whole": anatune.reduction((8, 16)),
    "elementwise": anatune.elementwise((32, 24), op="add"),
}


def schedule(workload=MATMUL, hardware=GPU, *, tiles=TILES, unroll=64, vector=None, **options):
    built = anatune.space(workload, hardware).schedule(tiles, unroll, vector or {})
    return msgspec.structs.replace(built, template="pipelined", options=options) if options else built


@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_bind_every_tensor_by_name_and_use_the_models_shared_memory(name):
    workload = WORKLOADS[name]
    drawn = anatune.space(workload, GPU).sample(4, seed=3)
    expected = anatune.predict(workload, GPU, drawn)["shared_bytes_per_block"]
    for point, shared_bytes in zip(drawn, expected, strict=True):
        kernel = cuda_kernel(point)
        tensors = [*workload.reads, *workload.epilogue_reads, workload.write]
        assert {(p.tensor, p.dtype, p.shape) for p in kernel.tensors.values()} == {
            (a.tensor, a.dtype, a.shape) for a in tensors
        }
        assert kernel.result == workload.write.tensor
        assert kernel.shared_bytes == shared_bytes
        axes = [axis.name for axis in workload.spatial_axes]
        blocks = split_of(point.options).num_blocks(math.prod(point.tiles[axis][0] for axis in axes))
        assert kernel.grid == blocks
        assert kernel.block == math.prod(point.tiles[axis][2] for axis in axes)
        assert kernel.block == 1 or f"__launch_bounds__({kernel.block})" in kernel.source
        assert kernel.source.count("{") == kernel.source.count("}")


def test_a_schedule_becomes_a_tvm_schedule_that_compiles():
    tvm = pytest.importorskip("tvm")
    applied = schedule().apply()
    assert isinstance(applied, tvm.s_tir.Schedule)
    compiled = tvm.compile(applied.mod, target=lower_gpu(schedule()).target)
    sources = [module.inspect_source() for module in compiled.mod.imports]
    assert any("__global__" in source for source in sources)


def test_aligned_rows_are_copied_and_read_in_vectors():
    source = cuda_kernel(schedule(vector={"A": 4, "B": 4})).source
    assert re.search(r"float4 smem_ptr|\*\(float4\*\)\(smem_ptr", source)
    assert "*(float4*)(A_ptr" in source
    assert "*(float4*)(B_ptr" in source
    assert "*(float2*)(C_ptr" in source  # reg_inner of j is 2


def test_widths_that_rows_do_not_allow_fall_back_to_single_elements():
    workload = anatune.matmul(64, 66, 64)
    tiles = {"i": (2, 2, 4, 1, 4), "j": (11, 1, 6, 1, 1), "k": (4, 2, 8)}
    source = cuda_kernel(schedule(workload, tiles=tiles, vector={"A": 4, "B": 4})).source
    assert "*(float4*)(A_ptr" in source
    assert "*(float4*)(B_ptr" not in source


def test_constants_of_indices_become_bytes_unless_pairs_of_elements_may_be_one_load():
    workload = anatune.conv2d(1, 8, 14, 14, 16, 3, 3, padding=1)
    tiles = {"f": (2, 1, 8, 1, 1), "y": (14, 1, 1, 1, 1), "x": (1, 1, 14, 1, 1), "rc": (2, 4, 1), "rx": (1, 1, 3)}
    body = cuda_kernel(schedule(workload, tiles=tiles)).source
    assert re.search(r"frag_\w+_ptr\[0\] = \(\*\(float\*\)\(\(char\*\)smem_ptr \+ \d+ \+ \(.*\) \* 4\)\);", body)
    assert _has_neighbours("((((int)threadIdx.x) / 7) * 8) + (k1_rc * 2)) + k2_rc")
    assert not _has_neighbours("((((int)threadIdx.x) / 7) * 9) + k2_rc")
    assert not _has_neighbours("((k1_rc * 4) + k2_rx) + (((int)threadIdx.x) & 15)")


def test_loops_beyond_the_unroll_depth_stay_loops():
    tiles = {"i": (1, 1, 1, 1, 64), "j": (1, 1, 1, 1, 64), "k": (8, 2, 4)}
    assert "#pragma unroll 1\n" in cuda_kernel(schedule(tiles=tiles, unroll=0)).source
    assert "#pragma unroll 1\n" not in cuda_kernel(schedule(unroll=0)).source


@pytest.mark.parametrize(("stages", "barriers"), [(1, 2), (2, 1), (3, 1)])
def test_stages_multiply_the_shared_memory_and_save_a_barrier(stages, barriers):
    kernel = cuda_kernel(schedule(vector={"A": 4, "B": 4}, stages=stages))
    assert kernel.shared_bytes == stages * 2 * 32 * 16 * 4
    assert kernel.source.count("__syncthreads()") == barriers
    assert ("cp.async.wait_group" in kernel.source) == (stages > 1)


def test_devices_without_asynchronous_copies_prefetch_into_registers():
    old = anatune.hardware("v100_sxm2")
    kernel = cuda_kernel(schedule(hardware=old, vector={"A": 4, "B": 4}, stages=2))
    assert "cp.async" not in kernel.source
    assert "next_A_ptr" in kernel.source
    assert kernel.source.count("__syncthreads()") <= 2
    with refuses(SpaceError):
        cuda_kernel(schedule(hardware=old, stages=3))


@pytest.mark.parametrize("device", ["rtx3090", "v100_sxm2"])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_compiler_sees_the_shared_memory_that_the_model_counts(device, steps):
    pytest.importorskip("cuda.bindings")
    hardware = anatune.hardware(device)
    space = anatune.space(MATMUL, hardware, template="pipelined")
    for stages in space.stage_counts:
        for pad in space.pads:
            tiles = TILES | {"k": (steps, 8 // steps, 8)}
            point = space.schedule(tiles, 64, {"A": 4, "B": 4}, stages=stages, pad=pad)
            counted = anatune.predict(MATMUL, hardware, [point])["shared_bytes_per_block"][0]
            assert anatune.inspect(point)["shared_bytes"] == counted


def test_blocks_and_steps_inside_copy_and_store_without_tests():
    tiles = {"i": (3, 1, 4, 1, 8), "j": (2, 1, 8, 1, 4), "k": (3, 4, 4)}
    source = cuda_kernel(schedule(anatune.matmul(69, 64, 36), tiles=tiles, vector={"A": 4, "B": 4})).source
    # rows reach behind their end in the last block, k in the last step; columns never do
    assert "((((int)blockIdx.x) < 4) && (step < 2))" in source
    assert source.count("((int)blockIdx.x) < 4)") == 2  # copies, stores
    assert source.count(" * frag_B_ptr") == 1  # arithmetic is written once
    assert "< 69)" in source
    assert "< 64)" not in source
    assert "*(float4*)(A_ptr" in source
    assert source.count("*(float4*)(C_ptr") == 2
    perfect = cuda_kernel(schedule(anatune.matmul(96, 64, 48), tiles=tiles, vector={"A": 4, "B": 4})).source
    assert "if (" not in perfect[perfect.index("__global__") :]


def test_nothing_is_written_twice_where_no_block_lies_inside():
    tiles = {"i": (1, 1, 4, 1, 8), "j": (2, 1, 8, 1, 4), "k": (3, 4, 4)}
    source = cuda_kernel(schedule(anatune.matmul(31, 64, 48), tiles=tiles)).source
    assert "((int)blockIdx.x) <" not in source
    assert source.count("C_ptr[") + source.count("(C_ptr +") == 1
    assert source.count("< 31)") == 2


def test_vectors_stay_whole_at_the_ends_of_guarded_axes():
    tiles = {"i": (2, 1, 4, 1, 8), "j": (2, 1, 8, 1, 4), "k": (3, 4, 4)}
    source = cuda_kernel(schedule(anatune.matmul(64, 62, 46), tiles=tiles, vector={"A": 4, "B": 2})).source
    assert "*(float4*)(A_ptr" not in source
    assert "*(float2*)(B_ptr" in source
    assert "*(float2*)(C_ptr" in source
    assert "*(float4*)(C_ptr" not in source


def test_asynchronous_copies_repeat_the_last_element_where_zeros_could_be_largest():
    tiles = {"d0": (2, 1, 4, 1, 1), "d1": (4, 4, 4)}
    kernel = cuda_kernel(schedule(anatune.reduction((8, 50), axes=1, kind="max"), tiles=tiles, stages=3))
    assert "cp.async" in kernel.source
    assert "src_size" not in kernel.source  # which fills with zeros
    assert ", 49)" in kernel.source


def test_more_than_48_kb_of_shared_memory_are_asked_for_at_the_launch():
    workload = anatune.matmul(256, 256, 64)
    tiles = {"i": (1, 1, 16, 1, 16), "j": (1, 1, 16, 1, 16), "k": (1, 2, 32)}
    with refuses(BuildError):
        cuda_kernel(schedule(workload, tiles=tiles))
    kernel = cuda_kernel(schedule(workload, anatune.hardware("h200"), tiles=tiles))
    assert kernel.dynamic_shared_bytes == kernel.shared_bytes == 131072
    assert "extern __shared__" in kernel.source
    assert "__launch_bounds__(256, 1)" in kernel.source  # the compiler does not see what a launch asks for
    assert cuda_kernel(schedule()).dynamic_shared_bytes == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_narrow_elements_are_summed_in_32_bits(dtype):
    workload = anatune.matmul(64, 64, 64, dtype=dtype, epilogue=("relu",))
    source = cuda_kernel(schedule(workload, vector={"A": 8, "B": 8})).source
    assert ("int acc_ptr" if dtype == "int8" else "float acc_ptr") in source


@pytest.mark.parametrize(
    "problem",
    [
        lambda: schedule(stages=9),
        lambda: schedule(pad=-1),
        lambda: schedule(nonsense=1),
        lambda: msgspec.structs.replace(schedule(), options={"pad": 4}),
        lambda: msgspec.structs.replace(schedule(), vector={"A": "x"}),
        lambda: msgspec.structs.replace(schedule(), unroll=-1),
        lambda: msgspec.structs.replace(schedule(), tiles=None),
        lambda: schedule(anatune.matmul(64, 64, 64, dtype="bfloat16"), anatune.hardware("v100_sxm2")),
        lambda: schedule(hardware=anatune.hardware("mi50")),
        lambda: schedule(tiles={"i": (1, 1, 64, 1, 1), "j": (1, 1, 64, 1, 1), "k": (8, 1, 8)}),
        lambda: msgspec.structs.replace(schedule(), tiles={"i": (2, 2)}),
        lambda: anatune.plan(MATMUL, anatune.hardware("xeon_8124m"), top_k=1).best,
    ],
)
def test_what_cannot_be_generated_is_one_clear_line(problem):
    with refuses(AnatuneError) as caught:
        cuda_kernel(problem())
    assert "\n" not in str(caught.value)


def test_tensors_beyond_32_bit_addresses_are_refused():
    workload = anatune.elementwise((65536, 65536), op="relu")
    with refuses(BuildError):
        CudaNest(anatune.space(workload, GPU).schedule({}))


def test_every_operator_has_a_case_here():
    covered = {workload.operator for workload in WORKLOADS.values()}
    assert {"matmul", "batch_matmul", "conv2d", "max_pool2d", "reduction", "elementwise"} <= covered
    assert covered <= set(CONSTRUCTORS)


def test_the_same_schedule_gives_the_same_source():
    assert cuda_kernel(schedule()).source == cuda_kernel(schedule()).source


def test_schedules_of_another_template_are_refused():
    with refuses(SpaceError):
        CudaNest(msgspec.structs.replace(schedule(), template="cpu"))


def test_a_short_pipeline_is_compiled():
    plain = anatune.space(anatune.reduction((2, 17), (1,)), "rtx3090", template="pipelined").sample(1)[0]
    tiles = {"d0": (1, 1, 1, 2, 1), "d1": (3, 3, 2)}
    options = {"stages": 2, "pad": 0}
    schedule = msgspec.structs.replace(plain, tiles=tiles, unroll=512, vector={"data": 4}, options=options)
    assert "step" in cuda_kernel(schedule.check()).source

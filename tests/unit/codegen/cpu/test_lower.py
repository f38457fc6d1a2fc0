"""Generated kernels compute what the workload says, for schedules drawn from the whole space."""

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.workload.text import parse_workload
from anatune.errors import BuildError, RunError, SpaceError

tvm = pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen.compat import compile_module  # noqa: E402
from anatune.codegen.cpu.lower import assembly_facts, build_schedule, lower  # noqa: E402
from anatune.measure.run.correctness import array_dtype, compare, compute_expected, random_inputs  # noqa: E402
from tests.wording import refuses  # noqa: E402

HOST = anatune.hardware("host")

WORKLOADS = {
    "matmul": anatune.matmul(37, 45, 29),
    "matmul_ta": anatune.matmul(48, 64, 40, transpose_a=True),
    "matmul_tb_epilogue": anatune.matmul(40, 64, 32, transpose_b=True, epilogue=("bias", "relu", "add")),
    "batch_matmul": anatune.batch_matmul(3, 20, 33, 24),
    **{
        f"matmul_{step}": anatune.matmul(20, 33, 24, epilogue=("bias", step))
        for step in ("relu6", "silu", "gelu", "gelu_tanh")
    },
    "conv_nchw_silu": anatune.conv2d(1, 8, 9, 9, 12, 3, 3, padding=1, dtype="float16", epilogue=("add", "silu")),
    "conv_nchw": anatune.conv2d(1, 16, 14, 14, 32, 3, 3, padding=1),
    "conv_nhwc_stride_epilogue": anatune.conv2d(
        2, 8, 9, 11, 24, 3, 3, stride=2, padding=1, layout="NHWC", epilogue=("bias", "add", "relu")
    ),
    "conv_groups_dilation": anatune.conv2d(1, 12, 10, 10, 24, 3, 3, padding=2, dilation=2, groups=3),
    "conv_groups_dilation_nhwc": anatune.conv2d(
        1, 12, 10, 10, 24, 3, 3, padding=2, dilation=2, groups=3, layout="NHWC"
    ),
    "conv_blocks": anatune.conv2d(
        2, 16, 9, 11, 24, 3, 3, stride=2, padding=1, layout="NCHW8c", epilogue=("bias", "add", "relu")
    ),
    "conv_blocks_of_a_row": anatune.conv2d(1, 3, 9, 11, 32, 3, 3, padding=1, layout="NCHW:NCHW16c"),
    "conv_blocks_to_channels_last": anatune.conv2d(1, 32, 9, 9, 24, 1, 1, layout="NCHW16c:NHWC", epilogue=("bias",)),
    "depthwise_blocks": anatune.depthwise_conv2d(1, 32, 12, 12, 3, 3, padding=1, layout="NCHW16c", stride=2),
    "conv_1x1_padded": anatune.conv2d(1, 32, 7, 7, 48, 1, 1, padding=1),
    "conv_7x7": anatune.conv2d(1, 3, 20, 20, 16, 7, 7, stride=2, padding=3, layout="NHWC"),
    "conv1d": anatune.conv1d(1, 8, 30, 16, 5, padding=2),
    "conv3d": anatune.conv3d(1, 4, 6, 6, 6, 8, 3, 3, 3, padding=1),
    "depthwise": anatune.depthwise_conv2d(1, 20, 12, 12, 3, 3, padding=1),
    "depthwise_nhwc": anatune.depthwise_conv2d(1, 20, 12, 12, 3, 3, padding=1, layout="NHWC", stride=2),
    "max_pool": anatune.max_pool2d(1, 12, 13, 13, 3, 3, stride=2, padding=1),
    "average_pool_nhwc": anatune.pool2d(1, 12, 14, 14, 2, 2, kind="average", stride=2, layout="NHWC"),
    "sum_of_all": parse_workload(["sum", "37x65x5"]),
    "sum_of_rows": anatune.reduction((33, 70), axes=(1,)),
    "sum_of_whole_vectors": anatune.reduction((8, 64), axes=(1,)),
    "max_of_whole_vectors": anatune.reduction((8, 64), axes=(1,), kind="max"),
    "mean_of_whole_vectors": anatune.reduction((8, 64), axes=(1,), kind="mean"),
    "matrix_vector": parse_workload(["einsum", "ij,j->i", "8x64", "64"]),
    "dot_products": parse_workload(["einsum", "bi,bi->b", "8x64", "8x64"]),
    "strided_dot": parse_workload(["einsum", "ij,ji->", "13x17", "17x13"]),
    "strided_pool": anatune.max_pool2d(1, 8, 17, 17, 3, 3, stride=4, padding=1),
    "relu": parse_workload(["relu", "33x70"]),
    "einsum": parse_workload(["einsum", "bij,bjk->bik", "3x10x20", "3x20x17"]),
    "einsum_of_three": parse_workload(["einsum", "ij,jk,kl->il", "6x7", "7x8", "8x9"]),
    "float16": anatune.conv2d(1, 8, 9, 9, 16, 3, 3, padding=1, dtype="float16"),
    "bfloat16": anatune.matmul(20, 40, 33, dtype="bfloat16"),
    "bfloat16_pool": anatune.max_pool2d(1, 12, 9, 9, 3, 3, padding=1, dtype="bfloat16"),
    "int8": anatune.matmul(20, 40, 33, dtype="int8"),
    "int8_requantized": anatune.matmul(
        20, 40, 33, dtype="int8", epilogue=("bias", "relu", "requantize"), input_zero_point=-7, output_zero_point=5
    ),
    "int8_scaled_batch": anatune.batch_matmul(
        3, 9, 20, 33, dtype="int8:uint8", epilogue=("scale", "bias", "requantize"), transpose_b=True
    ),
    "uint8_conv_nchw": anatune.conv2d(
        1,
        12,
        9,
        9,
        20,
        3,
        3,
        padding=1,
        dtype="uint8xint8",
        input_zero_point=131,
        epilogue=("bias", "scale", "add", "relu"),
    ),
    "uint8_conv_nhwc": anatune.conv2d(
        1,
        12,
        9,
        9,
        20,
        3,
        3,
        padding=2,
        stride=2,
        dtype="uint8xint8",
        layout="NHWC",
        input_zero_point=3,
        output_zero_point=128,
        epilogue=("bias", "requantize"),
    ),
    "uint8_depthwise": anatune.depthwise_conv2d(
        1, 20, 9, 9, 3, 3, padding=1, dtype="uint8xint8:int8", input_zero_point=9, epilogue=("requantize",)
    ),
    "uint8_conv3d": anatune.conv3d(1, 4, 6, 6, 6, 8, 3, 3, 3, padding=1, dtype="uint8xint8"),
    "bfloat16_sums": anatune.matmul(20, 40, 33, dtype="bfloat16:float32", epilogue=("bias",)),
    "int8_average": anatune.pool2d(1, 12, 9, 9, 3, 3, kind="average", dtype="int8"),
}


def run(schedule, inputs, *, threads=1, prepacked=True):
    """Build, run on an output of NaN and return the result; inputs must stay as they are."""
    workload = schedule.workload
    lowered = lower(schedule, threads=threads, prepacked=prepacked)
    module = compile_module(lowered.module, lowered.target)
    arguments = []
    for access in (*workload.reads, *workload.epilogue_reads):
        source = tvm.runtime.tensor(inputs[access.tensor])
        if access.tensor in lowered.program.packed_sizes:
            size = lowered.program.packed_sizes[access.tensor]
            packed = tvm.runtime.tensor(np.full(size, 7, dtype=array_dtype(access.dtype)))
            module[f"pack_{access.tensor}"](source, packed)
            source = packed
        arguments.append(source)
    before = [argument.numpy() for argument in arguments]
    dtype = array_dtype(workload.write.dtype)
    fill = 99 if np.issubdtype(dtype, np.integer) else np.nan
    result = tvm.runtime.tensor(np.full(workload.write.shape, fill, dtype=dtype))
    module["main"](*arguments, result)
    for argument, array in zip(arguments, before, strict=True):
        assert argument.numpy().tobytes() == array.tobytes()
    return result.numpy()


def check(schedule, **options):
    inputs = random_inputs(schedule.workload, 0)
    outcome = compare(schedule.workload, run(schedule, inputs, **options), compute_expected(schedule.workload, inputs))
    assert outcome.ok, f"{outcome.message}\n{schedule.describe()}"


@pytest.mark.parametrize("name", WORKLOADS)
def test_drawn_schedules_compute_the_workload(name):
    first, second, third = anatune.space(WORKLOADS[name], HOST).sample(3, seed=sum(map(ord, name)))
    check(first)
    check(second, prepacked=False, threads=2)
    check(third)


def schedule_of(workload, hardware=HOST, **tiles):
    calls = tiles.pop("calls", {})
    return anatune.space(workload, hardware).schedule(tiles=tiles, calls=calls)


def test_padding_left_out_in_both_ways_needs_no_copy():
    workload = anatune.conv2d(1, 16, 7, 7, 64, 3, 3, padding=1, layout="NHWC")
    schedule = schedule_of(
        workload, f=(1, 1, 1, 2, 32), y=(1, 1, 1, 7, 1), x=(1, 1, 1, 1, 7), rc=(1, 1, 16, 1), ry=(1, 3, 1), rx=(1, 1, 3)
    )
    program = lower(schedule).program
    assert "data_copy" not in program.main
    (kernel,) = program.kernels
    assert kernel.moving == (0,)
    assert len(kernel.skipped) == 2  # the first tap of the first row, the last of the last
    check(schedule)


def test_a_pair_of_microkernels_covers_17_by_8_and_9():
    workload = anatune.conv2d(1, 16, 17, 17, 32, 3, 3, padding=1, layout="NHWC")
    schedule = schedule_of(
        workload, f=(1, 1, 1, 1, 32), x=(1, 1, 1, 1, 17), y=(1, 1, 1, 17, 1), rx=(1, 3, 1), calls={"x": 2}
    )
    assert sorted({len(kernel.result.rows) for kernel in lower(schedule).program.kernels}) == [8, 9]
    check(schedule)


@pytest.mark.parametrize(
    ("pair", "sizes"), [((2, 11, 1, 12), [11, 12]), ((1, 8, 2, 13), [8, 13]), ((2, 3, 2, 14), [3, 14])]
)
def test_any_two_microkernels_cover_34(pair, sizes):
    """34 = 2 x 11 + 12 is a pair of the space, 8 + 2 x 13 is not: both are right against float64."""
    workload = anatune.conv2d(1, 16, 34, 4, 32, 3, 3, padding=1, layout="NHWC")
    schedule = schedule_of(workload, f=(1, 1, 1, 1, 32), y=(1, 1, 1, 1, 34), x=(1, 1, 1, 4, 1), calls={"y": 3})
    schedule = msgspec.structs.replace(schedule, options={**schedule.options, "pair.y": pair})
    assert sorted({len(kernel.result.rows) for kernel in lower(schedule).program.kernels}) == sizes
    check(schedule)
    product = schedule_of(anatune.matmul(9, 16 * 12 - 3, 20), j=(1, 1, 1, 1, 189), i=(1, 1, 1, 3, 3), calls={"j": 4})
    check(msgspec.structs.replace(product, options={**product.options, "pair.j": (2, 1, 2, 5)}))  # vectors, one masked


@pytest.mark.parametrize("calls", [3, 4])
def test_a_pair_along_the_simd_axis_with_a_masked_end(calls):
    schedule = schedule_of(anatune.matmul(12, 100, 20), j=(1, 1, 1, 1, 100), i=(1, 1, 1, 3, 4), calls={"j": calls})
    check(schedule)


def test_partial_sums_of_float16_stay_wide():
    workload = anatune.matmul(8, 32, 512, dtype="float16")
    schedule = schedule_of(workload, j=(1, 1, 1, 1, 32), i=(1, 1, 1, 1, 8), k=(8, 8, 8, 1))
    assert "C_sums" in lower(schedule).program.main
    check(schedule)


def test_avx2_code_runs_too():
    hardware = anatune.hardware("amd_ryzen_3700x")
    if HOST.compute.isa not in ("avx512", "avx2"):
        pytest.skip("the present machine has no AVX2")
    for schedule in anatune.space(WORKLOADS["conv_nhwc_stride_epilogue"], hardware).sample(2, seed=3):
        check(schedule)


@pytest.mark.parametrize("name", ["aws_graviton3", "amd_ryzen_3700x", "intel_xeon_8480"])
def test_planned_kernels_do_not_spill(name):
    hardware = anatune.hardware(name)
    for workload in (
        anatune.matmul(512, 1024, 1024),
        anatune.conv2d(1, 64, 56, 56, 64, 3, 3, padding=1, layout="NHWC"),
    ):
        facts = anatune.inspect(anatune.plan(workload, hardware, top_k=1, template="cpu").best)
        assert facts["num_instructions"] > 100
        assert facts["spill_ops"] <= 4  # around the loops; a spilling tile has dozens in them


@pytest.mark.parametrize(
    ("rows", "columns", "unroll"), [(14, 32, 6), (14, 32, 24), (9, 48, 16), (31, 16, 4), (10, 32, 8), (14, 32, 8)]
)
def test_tiles_that_fill_the_registers_do_not_spill(rows, columns, unroll):
    hardware = anatune.hardware("intel_xeon_8480")
    schedule = schedule_of(
        anatune.matmul(rows, columns, 768),
        hardware,
        i=(1, 1, 1, 1, rows),
        j=(1, 1, 1, 1, columns),
        k=(1, 1, 768 // unroll, unroll),
    )
    assert anatune.inspect(schedule)["spill_ops"] == 0


def test_spills_are_seen():
    workload = anatune.matmul(64, 256, 64)
    lanes = HOST.compute.simd_bits // 32
    schedule = schedule_of(workload, i=(1, 1, 1, 2, 32), j=(1, 1, 1, 256 // (2 * lanes), 2 * lanes), k=(1, 1, 64, 1))
    facts = anatune.inspect(schedule)
    assert facts["spill_ops"] > 20
    assert facts["spill_bytes"] > 20 * 4 * lanes


@pytest.mark.parametrize(
    ("lines", "spills"),
    [
        (
            ["vmovaps\t%zmm6, 2048(%rbp)", "vfmadd231ps\t64(%rbp,%rax){1to16}, %zmm28, %zmm4"],
            0,
        ),  # a register like others
        (["pushq\t%rbp", "movq\t%rsp, %rbp", "vmovaps\t%zmm6, -64(%rbp)", "vmovups\t(%rdi), %zmm6"], 1),
        (["vmovups\t%zmm6, 128(%rsp)", "vfmadd231ps\t128(%rsp), %zmm28, %zmm4", "movq\t8(%rsp), %rax"], 2),
        (["str\tq0, [x29, #16]", "str\tq1, [sp, #32]"], 1),
        (["stp\tx29, x30, [sp, #-16]!", "mov\tx29, sp", "str\tq0, [x29, #16]"], 1),
    ],
)
def test_a_spill_is_what_the_stack_or_the_frame_holds(lines, spills):
    text = "main_compute_:\n" + "".join(f"\t{line}\n" for line in lines) + ".Lfunc_end0:\n"
    assert assembly_facts(text)["spill_ops"] == spills


def test_library_names_its_arguments(tmp_path):
    schedule = anatune.space(anatune.matmul(16, 32, 8), HOST).schedule(tiles={}, packed=("B",))
    artifact = build_schedule(schedule, tmp_path)
    assert [buffer.tensor for buffer in artifact.arguments] == ["A", "B", "C"]
    assert artifact.facts["flop"] == 2 * 16 * 32 * 8
    module = tvm.runtime.load_module(artifact.library)
    assert module["main"] is not None
    assert {packing.function for packing in artifact.packings} == {"pack_B"}


@pytest.mark.parametrize("name", ["sum_of_whole_vectors", "max_of_whole_vectors", "matrix_vector", "strided_dot"])
def test_the_plans_own_reductions_are_right(name):
    check(anatune.plan(WORKLOADS[name], HOST, top_k=1).best)


def test_results_beyond_32_bit_indices_are_refused():
    schedule = anatune.space(anatune.matmul(65536, 65536, 16), HOST).schedule(tiles={})
    with refuses(BuildError):
        lower(schedule)


def test_wider_vectors_than_the_machine_has_are_refused():
    if HOST.compute.isa not in ("avx2", "avx512"):
        pytest.skip("not an x86 machine")
    schedule = anatune.plan(anatune.matmul(16, 16, 16), anatune.hardware("aws_graviton3"), top_k=1).best
    with refuses(RunError):
        anatune.build(schedule)


def test_gpu_schedules_are_refused():
    workload = anatune.matmul(64, 64, 64)
    with refuses(BuildError):
        lower(anatune.plan(workload, anatune.hardware("rtx3090"), top_k=1).best)


def test_contradicting_schedules_are_refused():
    schedule = anatune.plan(anatune.matmul(64, 64, 64), HOST, top_k=1).best
    tiles = dict(schedule.tiles, i=(1, 1, 1, 1, 63))
    with refuses(SpaceError):
        lower(msgspec.structs.replace(schedule, tiles=tiles))

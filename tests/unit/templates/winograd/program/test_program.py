"""Winograd kernels compute the convolution, at every edge, in every layout, and touch nothing else."""

import ctypes
import shutil

import msgspec
import numpy as np
import pytest

import anatune
from anatune import api
from anatune.core.accuracy import error_of
from anatune.errors import BuildError
from tests.machine import host

tvm = pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen.cpu.lower import lower  # noqa: E402
from anatune.export.cpu.write import write_c_library  # noqa: E402
from anatune.measure.cpu.blocks import ArgumentBlock  # noqa: E402
from anatune.measure.cpu.kernel import build  # noqa: E402
from anatune.measure.run.correctness import compute_expected, random_inputs, tolerance  # noqa: E402
from anatune.templates.winograd.program.program import program_of  # noqa: E402
from tests.wording import refuses  # noqa: E402

HOST = host()
PAIRS = anatune.hardware("epyc_7763").dot_instruction("vpmaddwd")
SHAPES = {
    # name: n, c, h, w, k, padding, epilogue, then tiles of p, f and the unroll factor of c
    "whole_vectors": ((1, 32, 14, 14, 32, 1, ()), (2, 5), (1, 1), 4),
    "odd": ((1, 19, 13, 7, 21, 1, ("bias", "relu")), (3, 3), (1, 2), 2),
    "no_padding": ((1, 16, 14, 14, 16, 0, ("relu",)), (1, 6), (1, 1), 1),
    "wide_padding": ((2, 5, 7, 9, 35, 2, ("bias", "add", "relu")), (2, 4), (2, 1), 1),
    "uneven_padding": ((3, 17, 6, 26, 33, (0, 2, 1, 0), ("add", "bias")), (2, 7), (1, 2), 8),
    "one_output": ((1, 3, 3, 3, 2, 0, ("relu", "bias")), (1, 1), (1, 1), 1),
    "activations": ((1, 6, 9, 9, 18, 1, ("bias", "gelu", "add", "relu6")), (2, 4), (1, 1), 1),
    "long_rows": ((1, 4, 5, 70, 16, 1, ("add", "relu")), (5, 2), (1, 1), 4),
}


def workload_of(name, layout):
    n, c, h, w, k, padding, epilogue = SHAPES[name][0]
    return anatune.conv2d(n, c, h, w, k, 3, 3, padding=padding, epilogue=epilogue, layout=layout)


def schedule_of(name, layout, size, split=None, hardware=HOST):
    _, p, f, unroll = SHAPES[name]
    space = api.model(workload_of(name, layout), hardware, "winograd").space
    return space.schedule({"p": p, "f": f, "c": (min(unroll, space.lanes),)}, size, split)


def checked(schedule, threads=1):
    """Run on a result of NaN between guard zones; return what the check says, and the allowed error."""
    kernel = build(schedule, threads)
    inputs = random_inputs(schedule.workload, seed=3)
    want = compute_expected(schedule.workload, inputs)._replace(tolerance=error_of(schedule))
    return kernel.prepare(inputs, guarded=True).check(schedule.workload, want)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", SHAPES)
def test_results_are_those_of_the_convolution(name, layout, size):
    answer = checked(schedule_of(name, layout, size))
    assert answer.ok, answer.message


INTEGERS = {
    # dtype, zero points of the data and the result, epilogue, and the shape
    "sums": ("uint8xint8", 0, 0, (), "whole_vectors"),
    "requantised": ("uint8xint8", 131, 120, ("bias", "relu", "requantize"), "odd"),
    "signed": ("int8", -128, 127, ("bias", "requantize"), "uneven_padding"),
    "to_signed": ("uint8xint8:int8", 5, -3, ("requantize",), "wide_padding"),
    "floats": ("uint8xint8:float32", 255, 0, ("scale", "bias", "add", "relu"), "no_padding"),
    "added": ("uint8xint8", 3, 9, ("scale", "add", "requantize"), "one_output"),
    "long_rows": ("int8:uint8", 1, 2, ("scale", "bias", "relu", "requantize"), "long_rows"),
}


def integers(name, hardware, split=None):
    dtype, *points, epilogue, shape = INTEGERS[name]
    (n, c, h, w, k, padding, _), p, f, unroll = SHAPES[shape]
    given = dict(zip(("input_zero_point", "output_zero_point"), points, strict=True))
    workload = anatune.conv2d(
        n, c, h, w, k, 3, 3, padding=padding, epilogue=epilogue, layout="NHWC", dtype=dtype,
        **{point: number for point, number in given.items() if number},
    )  # fmt: skip
    return api.model(workload, hardware, "winograd").space.schedule({"p": p, "f": f, "c": (2 * unroll,)}, 2, split)


@pytest.mark.parametrize("name", INTEGERS)
def test_results_of_8_bits_are_exact(name):
    schedule = integers(name, anatune.hardware("epyc_7763"))
    assert error_of(schedule) == 0.0
    lowered = lower(schedule).program
    assert "@llvm.x86.avx2.pmadd.wd" in lowered.llvm
    assert lowered.packed_sizes["weight"] % 32 == 0
    if "avx" not in HOST.compute.isa:
        pytest.skip("needs AVX2")
    for threads, split in ((1, None), (2, "tiles"), (2, "channels")):
        answer = checked(integers(name, schedule.hardware, split), threads)
        assert answer.ok, answer.message


def test_integers_fill_wide_vectors_too():
    """AVX-512 without VNNI: pairs for 16 output channels, 32 input channels a vector."""
    wide = msgspec.structs.replace(anatune.hardware("xeon_gold_6230r"), vpdpbusd=msgspec.UNSET, vpmaddwd=PAIRS)
    schedule = integers("requantised", wide)
    assert schedule.tiles["f"][-1] == 16
    assert "@llvm.x86.avx512.pmaddw.d.512" in lower(schedule).program.llvm
    if HOST.compute.isa == "avx512":
        assert checked(schedule).ok


@pytest.mark.parametrize("split", ["tiles", "channels"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_threads_share_the_work(layout, split):
    schedule = schedule_of("uneven_padding", layout, 2, split)
    parallel = {"tiles": schedule.tiles["p"][0], "channels": schedule.tiles["f"][0]}[split]
    assert parallel > 1
    answer = checked(schedule, threads=2)
    assert answer.ok, answer.message


def test_chunks_of_channels_are_shared():
    schedule = schedule_of("wide_padding", "NHWC", 4, "channels")
    assert schedule.tiles["f"][0] > 1
    assert "T.parallel(2)" in lower(schedule, threads=2).program.main
    assert checked(schedule, threads=2).ok


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_vectors_may_be_narrower(layout):
    hardware = anatune.hardware("amd_ryzen_3700x")
    if "avx" not in HOST.compute.isa:
        pytest.skip("needs AVX2")
    schedule = schedule_of("odd", layout, 4, hardware=hardware)
    assert schedule.tiles["f"][-1] == 8
    assert checked(schedule).ok


@pytest.mark.parametrize("size", [2, 4])
def test_weights_may_be_transformed_in_the_run(size):
    schedule = schedule_of("odd", "NCHW", size)
    workload, inputs = schedule.workload, random_inputs(schedule.workload, seed=1)
    results = []
    for prepacked in (True, False):
        lowered = lower(schedule, threads=1, prepacked=prepacked)
        module = tvm.compile(lowered.module, lowered.target)
        operands = {name: tvm.runtime.tensor(array) for name, array in inputs.items()}
        if prepacked:
            packed = tvm.runtime.tensor(np.full(lowered.program.packed_sizes["weight"], np.nan, dtype="float32"))
            module["pack_weight"](operands["weight"], packed)
            operands["weight"] = packed
        result = tvm.runtime.tensor(np.full(workload.write.shape, np.nan, dtype="float32"))
        module["main"](*(operands[access.tensor] for access in workload.operands), result)
        results.append(result.numpy())
    assert np.array_equal(*results)
    want = compute_expected(workload, inputs)
    assert np.abs(results[0] - want.result).max() <= error_of(schedule) * want.scale


@pytest.mark.parametrize("size", [2, 4])
def test_a_wrong_sum_is_noticed(size):
    """What is allowed is far below what a lost product or a wrong coefficient changes."""
    schedule = schedule_of("whole_vectors", "NHWC", size)
    inputs = random_inputs(schedule.workload, seed=3)
    want = compute_expected(schedule.workload, inputs)
    allowed = error_of(schedule)
    assert tolerance(schedule.workload) <= allowed < 1e-4
    lost = np.abs(inputs["data"]).mean() * np.abs(inputs["weight"]).mean() / want.scale
    assert allowed < lost / 20


@pytest.mark.parametrize(("channels", "streams"), [(64, False), (256, True)])
def test_weights_and_rows_that_leave_their_caches_are_asked_for_ahead(channels, streams):
    workload = anatune.conv2d(1, channels, 14, 14, channels, 3, 3, padding=1, layout="NHWC")
    space = api.model(workload, anatune.hardware("amd_ryzen_7950x"), "winograd").space
    schedule = space.schedule({"p": (1, 20), "f": (1, 1), "c": (1,)}, 2)
    (kernel,) = program_of(schedule).kernels
    tiles, weights = kernel.operands
    assert (weights.ahead is not None) == (tiles.ahead is not None) == streams
    assert ("i32 0, i32 3, i32 1)" in lower(schedule).program.llvm) == streams  # prefetches of what is read


def test_buffers_beyond_32_bits_are_refused():
    workload = anatune.conv2d(64, 512, 512, 512, 64, 3, 3, padding=1, layout="NHWC")
    schedule = api.model(workload, HOST, "winograd").space.schedule({"p": (100_000, 14)}, 4)
    with refuses(BuildError):
        lower(schedule)


def test_a_schedule_is_compiled_for_its_own_processor():
    space = api.model(workload_of("whole_vectors", "NHWC"), anatune.hardware("xeon_gold_6230r"), "winograd").space
    facts = anatune.inspect(space.schedule({"p": (4, 14), "f": (1, 2), "c": (4,)}))
    assert facts["num_instructions"] > 100
    assert facts["registers"] > 28  # 14 rows of two vectors: AVX2 has 16
    assert facts["spill_ops"] == 0


def test_other_schedules_are_not_the_templates():
    schedule = schedule_of("whole_vectors", "NHWC", 2)
    with refuses(anatune.AnatuneError):
        msgspec.structs.replace(schedule, template="cpu").check()


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("objcopy") is None, reason="needs a C compiler")
def test_an_exported_library_computes_it(tmp_path):
    schedule = schedule_of("odd", "NCHW", 4)
    library_files = write_c_library(schedule, "conv", tmp_path, threads=1)
    assert [function.name for function in library_files.functions] == ["conv", "conv_pack_weight", "conv_packed"]
    library = ctypes.CDLL(str(tmp_path / library_files.library))
    inputs = random_inputs(schedule.workload, seed=5)
    want = compute_expected(schedule.workload, inputs)
    blocks = {access.tensor: ArgumentBlock("float32", access.shape) for access in schedule.workload.tensors}
    for name, array in inputs.items():
        blocks[name].array[...] = array
    packed = ArgumentBlock("float32", library_files.functions[1].arguments[1].shape)

    def call(function, *arguments):
        places = [ctypes.c_void_p(block.array.ctypes.data) for block in arguments]
        assert getattr(library, function)(*places) == 0

    others = [blocks[access.tensor] for access in schedule.workload.tensors[2:]]
    call("conv_pack_weight", blocks["weight"], packed)
    for function, weight in (("conv", blocks["weight"]), ("conv_packed", packed)):
        blocks["output"].array[...] = np.nan
        call(function, blocks["data"], weight, *others)
        assert np.abs(blocks["output"].array - want.result).max() <= error_of(schedule) * want.scale

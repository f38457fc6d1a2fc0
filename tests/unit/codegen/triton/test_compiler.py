"""Triton's compiler: what it makes for GPUs that are not there, what it refuses, in one line."""

import re
import sys
from unittest import mock

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

import msgspec

import anatune
from anatune.codegen.cuda.build_cache import BuildCache
from anatune.codegen.triton import compiler
from anatune.codegen.triton.artifact import write_program
from anatune.codegen.triton.compiler import compile_kernel, compiler_version, pointer_type
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError, MissingDependencyError
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.triton import TRITON
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from tests.wording import refuses

SOURCE = """
import triton
import triton.language as tl

N = tl.constexpr(64)


@triton.jit
def product(a, b, c):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i)))
"""
SHAPE = (64, 64)
PARAMETERS = (Buffer("A", "float16", SHAPE), Buffer("B", "float16", SHAPE), Buffer("C", "float32", SHAPE))
KERNEL = TritonKernel("product", PARAMETERS, 1, 4, 1, {"enable_fp_fusion": True})
PROGRAM = TritonProgram("", SOURCE, (KERNEL,), "C")
NOTHING = BuildCache(None)


@pytest.mark.parametrize(
    ("device", "instruction", "threads"),
    [("a100", "mma.sync", 128), ("h100", "wgmma.mma_async", 128), ("mi300x", "v_mfma_f32", 256)],
)
def test_a_kernel_for_a_device_that_is_not_there(device, instruction, threads):
    hardware = anatune.hardware(device)
    image = compile_kernel(PROGRAM, KERNEL, hardware, NOTHING)
    assert image.image[:4] == b"\x7fELF"
    assert (image.name, image.arch, image.threads) == ("product", hardware.arch, threads)
    assert image.scratch_bytes == 0
    assert image.facts.registers > 16
    assert image.facts.code_bytes > 500
    assert any(name.startswith(instruction) for name in image.facts.instructions)
    assert compile_kernel(PROGRAM, KERNEL, hardware, NOTHING).image == image.image
    assert not [name for name in sys.modules if name.startswith("anatune_triton")]


def test_warps_are_specialised_where_tensor_memory_is_and_nowhere_else():
    """What makes the option an axis on sm_100 and sm_103, and none on sm_90."""
    blackwell = anatune.hardware("b200")
    space = anatune.space(anatune.matmul(2048, 2048, 128, dtype="bfloat16"), blackwell, template="triton")
    options = {"descriptors": 1, "persistent": 1, "warp_specialize": 1}
    program = TRITON.program(space.schedule({"m": 128, "n": 64, "k": 64}, **options))
    for hardware, warps in (
        (blackwell, 8),
        (msgspec.structs.replace(blackwell, arch="sm_103"), 8),
        (anatune.hardware("h100"), 4),
    ):
        image = compile_kernel(program, program.kernels[0], hardware, NOTHING)
        assert image.threads == 32 * warps
        assert image.facts.spill_bytes == 0
        assert any(name.startswith("tcgen05.mma") for name in image.facts.instructions) == (warps == 8)


@pytest.mark.parametrize(
    ("device", "options"), [("rtx4090", {}), ("h100", {"descriptors": 1, "persistent": 1}), ("mi300x", {"split_k": 2})]
)
def test_a_kernel_for_a_range_takes_the_extent_behind_its_tensors(device, options, tmp_path):
    workload, hardware = anatune.matmul(2048, 1024, 512, dtype="float16"), anatune.hardware(device)
    schedule = anatune.space(workload, hardware, template="triton").schedule({"m": 64, "n": 64, "k": 32}, **options)
    program = TRITON.program(schedule, Ranged("i", 1, 2048))
    written = []

    def image(built, *more):
        written.append(built.asm.get("ptx", ""))
        return compiled_image(built, *more)

    compiled_image = compiler._make_image
    with mock.patch.object(compiler, "_make_image", image):
        images = [compile_kernel(program, kernel, hardware, NOTHING) for kernel in program.kernels]
    if hardware.vendor == "nvidia":  # the extent, then the two pointers that Triton appends
        taken = re.findall(r"\.param \.(\w+) .*product_param_\d", written[0].split("\n)")[0])
        assert taken == ["u64", "u64", "u64", "u32", "u64", "u64"]
    made = write_program(program, images, hardware, tmp_path)
    single = write_program(TRITON.program(schedule), images, hardware, tmp_path)
    assert made.at(2048).grid == single.grid
    assert made.at(65).grid == (132 if "persistent" in options else 2 * 16 * options.get("split_k", 1))
    assert made.at(65).parameters[0].shape == (65, 512)
    assert made.at(65).scalars == (65,)
    assert all(image.facts.spill_bytes == 0 for image in images)


def test_an_image_is_compiled_once(tmp_path):
    cache, hardware = BuildCache(tmp_path), anatune.hardware("a100")
    first = compile_kernel(PROGRAM, KERNEL, hardware, cache)
    wide = msgspec.structs.replace(hardware.compute, warp_size=64)
    with mock.patch.object(compiler, "_compile", side_effect=AssertionError("it is kept")):
        assert compile_kernel(PROGRAM, KERNEL, hardware, cache) == first
        for other in (
            (PROGRAM, msgspec.structs.replace(KERNEL, num_warps=8), hardware),
            (PROGRAM, msgspec.structs.replace(KERNEL, options={}), hardware),
            (PROGRAM, KERNEL, anatune.hardware("rtx3090")),
            (PROGRAM, KERNEL, msgspec.structs.replace(hardware, compute=wide)),
            (msgspec.structs.replace(PROGRAM, source=SOURCE + "\n"), KERNEL, hardware),
        ):
            with pytest.raises(AssertionError, match="it is kept"):
                compile_kernel(*other, cache)


@pytest.mark.parametrize(
    "changed",
    [
        ("tl.dot(", "tl.dott("),
        ("N = tl.constexpr(64)", "N = tl.constexpr(60)"),
        ("import triton\n", "import nothing_of_the_sort\n"),
        ("def product", "def other"),
    ],
)
def test_what_is_refused_is_one_line(changed):
    broken = msgspec.structs.replace(PROGRAM, source=SOURCE.replace(*changed))
    with refuses(BuildError) as error:
        compile_kernel(broken, KERNEL, anatune.hardware("a100"), NOTHING)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 260


def test_the_first_error_that_somebody_wrote():
    said = "some.mlir dump\n/tmp/x/kernel.py:12:4: error: 'tt.dot' op is no good\nnote: see\nmodule {\n"
    assert compiler._first_error("PassManager::run failed", said) == "'tt.dot' op is no good (line 12)"
    assert compiler._first_error("at 1:2:\n  x = y\n  ^\nname y is unknown", "") == "name y is unknown"
    ptxas = "`ptxas` stderr:\nptxas info : 0 bytes\nptxas fatal   : Unknown target sm_99"
    assert compiler._first_error(ptxas, "") == "ptxas fatal : Unknown target sm_99"
    assert compiler._first_error("", "") == "no message"


def test_versions_that_were_not_tried():
    compiler_version.cache_clear()
    try:
        with mock.patch.object(compiler.metadata, "version", return_value="3.6.1"), refuses(MissingDependencyError):
            compile_kernel(PROGRAM, KERNEL, anatune.hardware("a100"), NOTHING)
        missing = compiler.metadata.PackageNotFoundError("triton")
        with mock.patch.object(compiler.metadata, "version", side_effect=missing), refuses(MissingDependencyError):
            compiler_version()
    finally:
        compiler_version.cache_clear()
    assert compiler_version().startswith("Triton 3.")


def test_what_is_known_of_pointers():
    small, large = PARAMETERS[0], Buffer("L", "float16", (1 << 16, 1 << 14))
    assert compiler._attributes(small, "cuda") == compiler._attributes(large, "hip") == [["tt.divisibility", 16]]
    assert compiler._attributes(small, "hip") == [["tt.divisibility", 16], ["tt.pointer_range", 32]]


def test_types_of_pointers():
    import triton.language as tl

    from anatune.core.workload.nest import DTYPE_BYTES

    words = {word for word in compiler._TYPES.values()}
    assert set(DTYPE_BYTES) <= set(compiler._TYPES)
    assert pointer_type("bfloat16") == "*bf16"
    assert words <= {*tl.dtype.SINT_TYPES, *tl.dtype.UINT_TYPES, *tl.dtype.FP_TYPES, "i1"} | {
        "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "fp16", "bf16", "fp32", "fp64",
    }  # fmt: skip

"""Triton modules of schedules: what stands in them, and nothing that is not needed."""

from __future__ import annotations

import ast
import re

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.access import Access, Axis, Term
from anatune.core.workload.nest import Workload
from anatune.errors import BuildError, SpaceError
from anatune.templates import TRITON
from anatune.templates.triton.program.lines import fold_lines
from tests.wording import refuses


def schedule_of(workload: Workload, device: str = "a100", **options: int) -> Schedule:
    space = anatune.space(workload, anatune.hardware(device), template="triton")
    return space.schedule({"m": 64, "n": 64, "k": 32}, **options)


def source_of(workload: Workload, device: str = "a100", **options: int) -> str:
    return TRITON.program(schedule_of(workload, device, **options)).source


def test_a_program_names_its_kernel_and_its_tensors() -> None:
    program = TRITON.program(schedule_of(anatune.matmul(1000, 520, 264, dtype="float16")))
    (kernel,) = program.kernels
    functions = [node for node in ast.parse(program.source).body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == [kernel.name]
    assert [argument.arg for argument in functions[0].args.args] == ["A_ptr", "B_ptr", "C_ptr"]
    assert kernel.grid == 16 * 9
    assert kernel.options == {"enable_fp_fusion": True}
    assert [parameter.tensor for parameter in kernel.parameters] == ["A", "B", "C"]
    assert list(program.tensors) == ["A", "B", "C"]


def test_it_imports_triton_alone_and_says_what_it_is() -> None:
    tree = ast.parse(source_of(anatune.matmul(128, 64, 96, dtype="bfloat16")))
    imports = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    assert imports == ["triton", "triton.language"]
    told = ast.get_docstring(tree) or ""
    assert "a100_sxm (sm_80)" in told
    assert "matmul i=128 j=64 k=96 bfloat16" in told
    assert "num_warps=4, num_stages=3, enable_fp_fusion=True" in told


def test_tiles_that_divide_have_no_masks_and_constants_are_used() -> None:
    source = source_of(anatune.matmul(128, 64, 96, dtype="float16"))
    assert "mask" not in source
    for name in re.findall(r"^(\w+) = tl\.constexpr", source, re.M):
        assert len(re.findall(rf"\b{name}\b", source)) > 1, name
    masked = source_of(anatune.matmul(129, 64, 97, dtype="float16"))
    assert "m[:, None] < M" in masked
    assert "lane_k[None, :] < K - first_k" in masked
    assert "< N" not in masked


def test_parts_of_sums_lie_as_the_result_does_and_are_added_in_order() -> None:
    program = TRITON.program(schedule_of(anatune.matmul(128, 64, 4096, dtype="float16", epilogue=("relu",)), split_k=4))
    first, second = program.kernels
    assert program.workspace is not None
    assert (program.workspace.dtype, program.workspace.shape) == ("float32", (4, 128, 64))
    assert first.parameters[-1] == program.workspace == second.parameters[0]
    assert first.grid == 2 * 4
    assert second.grid == 128 * 64 // 1024
    principal, adding = program.source.split("def add_parts")
    assert "tl.maximum" not in principal
    assert "tl.maximum" in adding
    assert list(program.tensors) == ["A", "B", "C"]


def test_a_result_with_gaps_has_no_parts() -> None:
    i, j, k = (Axis(name, 64, kind) for name, kind in (("i", "spatial"), ("j", "spatial"), ("k", "reduction")))
    plain = ((Term("i"),), (Term("k"),)), ((Term("k"),), (Term("j"),)), ((Term("i"),), (Term("j", 2),))
    shapes = (64, 64), (64, 64), (64, 128)
    accesses = [
        Access(name, "float16", shape, indices, (0, 0))
        for name, shape, indices in zip("ABC", shapes, plain, strict=True)
    ]
    workload = Workload("gaps", (i, j, k), (accesses[0], accesses[1]), accesses[2], "multiply_add", 2)
    assert "parts" not in source_of(workload)
    with refuses(BuildError):
        source_of(workload, split_k=2)


def test_descriptors_are_for_aligned_matrices_only() -> None:
    words = r"(\w+) = tl\.make_tensor_descriptor"
    aligned = source_of(anatune.matmul(128, 64, 96, dtype="float16", transpose_a=True), "h100", descriptors=1)
    assert re.findall(words, aligned) == ["A_tiles", "B_tiles", "C_tiles"]
    assert "A_tiles.load([first_k, first_m]).T" in aligned
    odd = anatune.matmul(128, 65, 96, dtype="float16")
    images = anatune.conv2d(2, 64, 14, 14, 64, 3, 3, padding=1, dtype="float16", layout="NHWC")
    for workload, device in ((odd, "h100"), (images, "h100"), (anatune.matmul(64, 64, 64, dtype="float16"), "a100")):
        with refuses(SpaceError):
            source_of(workload, device, descriptors=1)
        assert "descriptors" not in anatune.space(workload, device, template="triton").columns


def test_a_persistent_program_starts_no_more_than_the_device_has_processors() -> None:
    workload = anatune.matmul(2048, 2048, 64, dtype="float16")
    program = TRITON.program(schedule_of(workload, "h100", persistent=1))
    assert program.kernels[0].grid == 132
    assert "tl.range(tl.program_id(0), PROGRAMS, tl.num_programs(0), flatten=True)" in program.source
    few = TRITON.program(schedule_of(anatune.matmul(128, 128, 64, dtype="float16"), "h100", persistent=1))
    assert few.kernels[0].grid == 4
    assert "tl.range" not in few.source


def test_specialised_warps_are_asked_for_on_the_loop_over_tiles() -> None:
    options = {"persistent": 1, "descriptors": 1}
    workload = anatune.matmul(2048, 2048, 64, dtype="float16")
    loops = [
        next(
            line
            for line in source_of(workload, "b200", warp_specialize=on, **options).splitlines()
            if "tl.range" in line
        )
        for on in (0, 1)
    ]
    assert loops[1].replace(", warp_specialize=True", "") == loops[0]
    assert "flatten=True, warp_specialize=True)" in loops[1]
    few = source_of(anatune.matmul(128, 128, 64, dtype="float16"), "b200", warp_specialize=1, **options)
    assert "warp_specialize" not in few  # there is no loop over tiles


def test_channels_that_a_step_divides_leave_one_window_position_a_step() -> None:
    """Then positions in the window are numbers, not vectors, and addresses are the same in each step."""
    source = source_of(anatune.conv2d(2, 64, 14, 14, 64, 3, 3, padding=1, dtype="float16", layout="NHWC"))
    assert "k_ry = first_k // 192" in source
    assert "k_rx = first_k // 64 % 3" in source
    assert "place1_data = row1_data + k_ry" in source


def test_amd_has_its_own_options() -> None:
    workload = anatune.matmul(256, 256, 64, dtype="float16")
    program = TRITON.program(schedule_of(workload, "mi300x", waves_per_eu=2, matrix_instr_nonkdim=16))
    options = {"enable_fp_fusion": True, "waves_per_eu": 2, "matrix_instr_nonkdim": 16}
    assert program.kernels[0].options == options
    assert "tl.assume(first_m >= 0)" in program.source
    assert TRITON.program(schedule_of(workload, "mi300x")).kernels[0].options == {"enable_fp_fusion": True}


def test_what_does_not_fit_a_line_is_spread_over_several() -> None:
    long = f"    left = tl.load(A_ptr + {'a' * 60} + f(b, c), mask=(m[:, None] < M) & (n < N), other=0.0)"
    assert fold_lines(long).splitlines() == [
        "    left = tl.load(",
        f"        A_ptr + {'a' * 60} + f(b, c),",
        "        mask=(m[:, None] < M) & (n < N),",
        "        other=0.0,",
        "    )",
    ]
    assert fold_lines("    x = tl.load(A_ptr, mask=m)\n") == "    x = tl.load(A_ptr, mask=m)\n"


def test_neighbouring_programs_compute_the_groups_of_the_same_pixels():
    grouped = {"k": 24, "r": 3, "s": 3, "padding": 1, "groups": 3, "dtype": "float16"}
    for layout, line in (("NHWC", "batch = program % BATCH"), ("NCHW", "batch = program // TILES")):
        workload = anatune.conv2d(1, 24, 6, 6, layout=layout, **grouped)
        schedule = anatune.plan(workload, "rtx4090", 1, template="triton").schedules[0]
        assert line in TRITON.program(schedule).source
        assert anatune.verify(schedule).ok

"""Programs of many extents: every extent of a range against float64, with guard zones around all tensors."""

import itertools

import pytest

import anatune
from anatune import api
from anatune.core.space.cpu_ranges import most_elements, schedule_at
from anatune.errors import SpaceError

pytest.importorskip("tvm")
from anatune.codegen.compat import compile_module, import_tvm, parse_program, target_of
from anatune.codegen.cpu.ranged import ranged_program
from anatune.measure.cpu.blocks import Block, tensor_of
from anatune.measure.run.correctness import check_runs, expected, random_inputs

HW = api.hardware("host")
LANES = HW.compute.simd_bits // 32


def compiled(schedule, axis, least, threads):
    """Return (packing functions, the function) of a program."""
    program = ranged_program(schedule, axis, least, threads=threads)
    functions = {"main": parse_program(program.main, program.llvm)}
    functions |= {f"pack_{tensor}": parse_program(text, "") for tensor, text in program.packing.items()}
    module = compile_module(import_tvm().IRModule(functions), target_of(HW, threads=threads))
    packers = {tensor: (module[f"pack_{tensor}"], size) for tensor, size in program.packed_sizes.items()}
    return packers, module["main"]


def runs_right(schedule, axis, extents, threads=1):
    """Run a program at each extent, constants packed once, and compare with float64."""
    packers, main = compiled(schedule, axis, min(extents), threads)
    packed = {}
    for extent in extents:
        workload = schedule_at(schedule, axis, extent).check().workload
        inputs = random_inputs(workload, extent) | {name: data for name, (data, _) in packed.items()}
        want = expected(workload, inputs)
        blocks = {}
        for access in workload.operands:
            data = inputs[access.tensor]
            if access.tensor not in packers:
                blocks[access.tensor] = Block(access.dtype, access.shape, guarded=True)
                blocks[access.tensor].array[...] = data
            elif access.tensor not in packed:
                pack, size = packers[access.tensor]
                block = Block(access.dtype, (size,), guarded=True)
                block.bytes[:] = 0
                pack(tensor_of(data), block.tensor)
                packed[access.tensor] = data, block
        blocks |= {name: block for name, (_, block) in packed.items()}
        result = Block(workload.write.dtype, workload.write.shape, guarded=True)

        def run(byte, result=result, blocks=blocks, workload=workload):
            result.bytes[:] = byte
            main(*(blocks[access.tensor].tensor for access in workload.operands), result.tensor)
            return result.array

        answer = check_runs(workload, want, run, lambda result=result: "" if result.intact else "wrote outside")
        assert answer.ok, f"{workload.describe()}: {answer.message}"
        assert all(block.intact for block in blocks.values())


def rows(most, largest, columns=3 * LANES, depth=24, **tiles):
    """Return a schedule of a matrix product whose calls have at most so many rows."""
    calls = -(-largest // most)
    workload = anatune.matmul(largest, columns, depth)
    space = anatune.space(workload, HW, threads=tiles.pop("threads", None))
    if largest % calls:
        return space.schedule({"i": (1, 1, 1, 1, largest), **tiles}, calls={"i": calls}, parallel="j" in tiles)
    return space.schedule({"i": (1, 1, 1, calls, largest // calls), **tiles}, parallel="j" in tiles)


@pytest.mark.parametrize("most", [1, 5, 6])
def test_every_number_of_rows(most):
    runs_right(rows(most, 40), "i", range(1, 41))


def test_threads_share_columns_and_sums_are_completed_in_several_calls():
    schedule = rows(7, 70, 4 * LANES, k=(1, 3, 2, 4), j=(2, 1, 1, 2, LANES))
    runs_right(schedule, "i", range(1, 71), threads=2)


def test_a_range_need_not_begin_at_one():
    schedule = rows(7, 23)
    program = ranged_program(schedule, "i", 15)
    assert {kernel.result.rows[-1] // (3 * LANES) + 1 for kernel in program.kernels} == {4, 5, 6}
    runs_right(schedule, "i", range(15, 24))


@pytest.mark.parametrize(("level", "parallel"), [*itertools.product((0, 2, 3), (False, True))])
def test_batches_are_loops_of_single_iterations(level, parallel):
    workload = anatune.batch_matmul(6, 5, LANES, 7)
    tiles = {
        "b": tuple(6 if place == level else 1 for place in range(5)),
        "i": (1, 1, 1, 1, 5),
        "j": (1,) * 4 + (LANES,),
    }
    tiles["k"] = (1, 1, 1, 7)
    if parallel and level:
        tiles["i"] = (5, 1, 1, 1, 1)
    schedule = anatune.space(workload, HW).schedule(tiles, parallel=parallel)
    runs_right(schedule, "b", range(1, 7), threads=2 if parallel else 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_with_padded_copies(layout):
    workload = anatune.conv2d(
        n=4, c=3, h=7, w=9, k=LANES, r=3, s=3, padding=1, layout=layout, epilogue=("bias", "relu")
    )
    schedule = anatune.space(workload, HW).schedule({"n": (1, 1, 4, 1, 1), "f": (1, 1, 1, 1, LANES)})
    runs_right(schedule, "n", range(1, 5))


def test_what_has_no_range_is_one_line():
    schedule = rows(5, 40)
    for axis, said in (
        ("k", "expected one of i, j"),
        ("j", "not the outermost dimension of B"),
        ("q", "expected one of"),
    ):
        with pytest.raises(SpaceError, match=said):
            most_elements(schedule, axis)
    space = anatune.space(anatune.matmul(40, 32, 24), HW)
    with pytest.raises(SpaceError, match=r"tiles \(1, 1, 2, 1, 20\) are loops of several levels"):
        most_elements(space.schedule({"i": (1, 1, 2, 1, 20)}), "i")
    with pytest.raises(SpaceError, match="A is packed"):
        most_elements(space.schedule({"i": (1, 1, 1, 2, 20)}, packed=("A", "B")), "i")
    with pytest.raises(SpaceError, match="range of i is 41 to 40"):
        ranged_program(schedule, "i", 41)

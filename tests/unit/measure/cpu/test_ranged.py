"""Programs of many extents: every extent of a range against float64, with guard zones around all tensors."""

import itertools

import msgspec
import numpy as np
import pytest

import anatune
from anatune.errors import RunError, SpaceError
from anatune.templates.cpu.range_space import schedule_at
from tests.machine import host

pytest.importorskip("tvm")
from anatune.codegen.cpu.dispatch import Dispatch
from anatune.measure.cpu.ranged import load_range
from anatune.measure.run.correctness import random_inputs
from tests.wording import refuses

HW = host()
LANES = HW.compute.simd_bits // 32
SMALL_L2 = msgspec.structs.replace(HW, l2=msgspec.structs.replace(HW.l2, size_bytes=4096))
"""A CPU whose L2 cache holds no weights of the tests."""


def runs_right(schedule, axis, extents, threads=1):
    """Run one program at each extent and compare with float64."""
    dispatch = Dispatch(axis, min(extents), (schedule,), (schedule.workload.extents[axis],), (0,))
    kernel = load_range(dispatch, threads)
    for extent in extents:
        answer = kernel.verify(extent)
        assert answer.ok, f"{extent}: {answer.message}"


def rows(most, largest, columns=3 * LANES, depth=24, hardware=HW, **tiles):
    """Return a schedule of a matrix product whose calls have at most so many rows."""
    space = anatune.space(anatune.matmul(most, columns, depth), hardware)
    schedule = space.schedule({"i": (1, 1, 1, 1, most), **tiles}, parallel="j" in tiles)
    return schedule_at(schedule, "i", largest)


@pytest.mark.parametrize("most", [1, 5, 6])
def test_every_number_of_rows(most):
    runs_right(rows(most, 40), "i", range(1, 41))


@pytest.mark.parametrize("hardware", [HW, SMALL_L2], ids=["held", "beyond L2"])
def test_threads_share_columns_and_sums_are_completed_in_several_calls(hardware):
    schedule = rows(7, 70, 4 * LANES, hardware=hardware, k=(1, 3, 2, 4), j=(2, 1, 1, 2, LANES))
    runs_right(schedule, "i", range(1, 71), threads=2)


@pytest.mark.parametrize("extent", [1, 5, 6, 7, 12, 13])
def test_weights_from_memory_are_read_in_order_with_equal_bits(extent):
    shape = anatune.matmul(6, 4 * LANES, 48)
    tiles = {"i": (1, 1, 1, 1, 6), "j": (1, 1, 1, 4, LANES), "k": (1, 3, 2, 8)}
    inputs = random_inputs(anatune.matmul(extent, 4 * LANES, 48), 0)
    results = []
    for hardware in (HW, SMALL_L2):
        schedule = schedule_at(anatune.space(shape, hardware).schedule(tiles, packed=("B",)), "i", 40)
        kernel = load_range(Dispatch("i", 1, (schedule,), (40,), (0,)))
        assert kernel.verify(extent).ok
        results.append(kernel(*inputs.values()))
    assert np.array_equal(*results)


def test_columns_that_vectors_do_not_divide():
    columns = 5 * LANES + 3
    space = anatune.space(anatune.matmul(6, columns, 16), HW)
    schedule = space.schedule({"i": (1, 1, 1, 1, 6), "j": (1, 1, 1, 1, columns)}, calls={"j": 3})
    runs_right(schedule_at(schedule, "i", 33), "i", [1, 2, 5, 6, 7, 13, 32, 33])


def test_a_range_need_not_begin_at_one():
    runs_right(rows(7, 23), "i", range(15, 24))


@pytest.mark.parametrize(("level", "parallel"), [*itertools.product((0, 2, 3), (False, True))])
def test_batches_are_loops_of_single_iterations(level, parallel):
    workload = anatune.batch_matmul(6, 5, LANES, 7)
    tiles = {"b": tuple(6 if place == level else 1 for place in range(5)), "k": (1, 1, 1, 7)}
    tiles |= {"i": (5, 1, 1, 1, 1) if parallel and level else (1, 1, 1, 1, 5), "j": (1, 1, 1, 1, LANES)}
    schedule = anatune.space(workload, HW).schedule(tiles, parallel=parallel)
    runs_right(schedule, "b", range(1, 7), threads=2 if parallel else 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_with_padded_copies(layout):
    workload = anatune.conv2d(
        n=4, c=3, h=7, w=9, k=LANES, r=3, s=3, padding=1, layout=layout, epilogue=("bias", "relu")
    )
    schedule = anatune.space(workload, HW).schedule({"n": (1, 1, 4, 1, 1), "f": (1, 1, 1, 1, LANES)})
    runs_right(schedule, "n", range(1, 5))


@pytest.mark.parametrize(("dtype", "threads"), [("float32", 1), ("float32", 2), ("int8", 1)])
def test_rows_that_are_packed_in_every_run(dtype, threads):
    space = anatune.space(anatune.matmul(6, 2 * LANES, 32, dtype=dtype), HW)
    tiles = {"i": (1, 1, 1, 1, 6), "j": (threads, 1, 1, 2 // threads, LANES), "k": (1, 2, 2, 8)}
    schedule = space.schedule(tiles, packed=("A", "B"), parallel=threads > 1)
    runs_right(schedule_at(schedule, "i", 43), "i", range(1, 44), threads)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "uint8xint8"])
def test_narrow_operands(dtype):
    space = anatune.space(anatune.matmul(4, 2 * LANES, 32, dtype=dtype), HW)
    schedule = space.schedule({"i": (1, 1, 1, 1, 4), "j": (1, 1, 1, 2, LANES), "k": (1, 2, 1, 16)})
    runs_right(schedule_at(schedule, "i", 19), "i", range(1, 20))


# ---- several programs --------------------------------------------------------------------------------------


def several():
    """Return three programs, two of them with one packed form; the first serves two intervals."""
    wide = rows(2, 60, 4 * LANES, j=(1, 1, 1, 2, 2 * LANES))
    narrow = rows(6, 40, 4 * LANES, j=(1, 1, 1, 4, LANES))
    other = rows(3, 70, 4 * LANES, j=(1, 1, 1, 4, LANES))
    return Dispatch("i", 2, (wide, narrow, other), (9, 40, 60, 70), (0, 1, 0, 2))


def test_one_function_serves_all_extents_and_packs_each_form_once():
    kernel = load_range(several())
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((24, 4 * LANES)).astype(np.float32)
    weights.flags.writeable = False
    for extent in (2, 9, 10, 40, 41, 60, 61, 70):
        data = rng.standard_normal((extent, 24)).astype(np.float32)
        np.testing.assert_allclose(kernel(data, weights), data @ weights, rtol=1e-4, atol=1e-4)
    assert len(kernel._constants) == 2
    for extent in (1, 71):
        with refuses(RunError):
            kernel(np.zeros((extent, 24), np.float32), weights)
    with refuses(RunError):
        kernel()


def test_a_dispatch_that_contradicts_itself_is_one_line():
    good = several()
    for changed in ({"lasts": (9, 40, 40, 70)}, {"first": 0}, {"programs": (0, 1, 0, 1)}, {"programs": (0, 1, 0)}):
        fields = {name: getattr(good, name) for name in good.__struct_fields__} | changed
        with refuses(SpaceError):
            Dispatch(**fields)


def test_a_plan_for_a_range_is_built_as_it_stands():
    plan = anatune.plan_range("matmul 1..40x64x48", HW, kernels=2, threads=1)
    kernel = anatune.build(plan)
    data = np.random.default_rng(0).standard_normal((40, 48)).astype(np.float32)
    weights = np.random.default_rng(1).standard_normal((48, 64)).astype(np.float32)
    for extent in range(1, 41):
        np.testing.assert_allclose(kernel(data[:extent], weights), data[:extent] @ weights, rtol=1e-4, atol=1e-4)
        (schedule, artifact) = kernel.artifact.at(extent)
        assert schedule.workload.extents["i"] == extent
        assert artifact.function == f"main_{plan.program_of(extent)}"

"""GPU schedules without a GPU: random legal points are right, and faults put into their kernels are found."""

import itertools
import random

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm")
import anatune
from anatune import batch_matmul, conv2d, matmul
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.schedule import Schedule
from anatune.core.workload.operators import depthwise_conv2d, max_pool2d, reduction
from anatune.core.workload.ranges import make_ranged_workload
from anatune.errors import MissingDependencyError, RunError, SpaceError
from anatune.measure.emulate import verify as verify_gpu
from anatune.measure.emulate.emulator import ALL_BLOCKS, compiler
from anatune.measure.emulate.verify import check_kernel, spread_blocks
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.gpu.split import SPLIT
from bench.gpu.awkward import awkward_workloads, covering_schedule
from bench.gpu.guard_mutants import guard_mutants, launch_mutants
from bench.gpu.mutants import mutants
from tests.wording import refuses

try:
    compiler()
except MissingDependencyError as error:
    pytest.skip(str(error), allow_module_level=True)

WORKLOADS = {
    "matmul": matmul(32, 48, 40),
    "matmul epilogue": matmul(24, 32, 16, transpose_b=True, epilogue=("bias", "add", "relu")),
    "matmul float16": matmul(32, 32, 32, dtype="float16"),
    "matmul int8": matmul(32, 32, 32, dtype="int8"),
    "batch_matmul": batch_matmul(3, 16, 24, 20, epilogue=("relu",)),
    **{f"matmul {step}": matmul(16, 16, 8, epilogue=("bias", step)) for step in ("relu6", "silu", "gelu", "gelu_tanh")},
    "conv2d stride padding": conv2d(1, 8, 11, 11, 8, 3, 3, stride=2, padding=1, epilogue=("bias", "relu")),
    "conv2d dilation": conv2d(1, 4, 9, 8, 8, 3, 3, padding=2, dilation=2),
    "conv2d groups": conv2d(2, 8, 6, 6, 12, 3, 3, padding=1, groups=2),
    "conv2d NHWC": conv2d(1, 8, 7, 7, 8, 3, 3, padding=1, layout="NHWC", epilogue=("bias",)),
    "depthwise": depthwise_conv2d(1, 8, 8, 8, 3, 3, padding=1, epilogue=("relu",)),
    "max_pool2d": max_pool2d(1, 8, 9, 9, 3, 3, stride=2, padding=1),
    "reduction": reduction((24, 60), axes=1),
}
AWKWARD = dict(awkward_workloads())


def point(workload, seed, hardware="rtx3090", most_threads=256):
    """Return a random schedule whose blocks have 2 to `most_threads` threads."""
    for schedule in CudaModel(workload, anatune.hardware(hardware)).space.sample(200, seed):
        if 1 < cuda_threads(schedule) <= most_threads:
            return schedule
    raise AssertionError("no such point")


def cuda_threads(schedule):
    return int(np.prod([tiles[2] for tiles in schedule.tiles.values() if len(tiles) == 5]))


@pytest.mark.parametrize("name", WORKLOADS)
def test_random_points(name):
    answer = anatune.verify(point(WORKLOADS[name], seed=sum(map(ord, name))))
    assert answer.message == ""
    assert answer.ok
    assert answer.max_rel_error <= answer.tolerance


@pytest.mark.parametrize("name", AWKWARD)
def test_tiles_that_do_not_divide(name):
    schedule = covering_schedule(AWKWARD[name], anatune.hardware("a100"), random.Random(name))
    answer = anatune.verify(schedule)
    assert answer.ok, (schedule.describe(), answer.message)


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("matmul one above, one below", "i"),
        ("matmul vectors", "j"),
        ("matmul", "k"),
        ("matmul float16", "k"),
        ("batch_matmul", "b"),
        ("batch_matmul transposed", "j"),
        ("conv2d 1x1", "n"),
        ("conv2d stride", "f"),
        ("conv2d NHWC vectors", "rc"),
    ],
)
def test_one_kernel_computes_every_extent_of_a_range(name, axis):
    draw = random.Random(name)
    multiple = draw.choice((1, 2, 4))
    most = max(multiple, AWKWARD[name].extents[axis] // multiple * multiple)
    family = make_ranged_workload(AWKWARD[name], axis, range(multiple, most + 1, multiple))
    schedule = covering_schedule(family.largest, anatune.hardware("a100"), draw)
    options = {option: value for option, value in schedule.options.items() if option not in SPLIT}
    schedule = msgspec.structs.replace(schedule, options=options)
    tile = int(np.prod(schedule.tiles[axis][1:]))
    kernel = cuda_kernel(schedule, Ranged(axis, multiple, most, multiple))
    near = [extent for extent in (tile - 1, tile, tile + 1) if extent in family.extents]
    for extent in {multiple, most, *near}:
        workload = family.at(extent)
        inputs = random_inputs(workload)
        answer = check_kernel(workload, kernel.at(extent), inputs, compute_expected(workload, inputs))
        assert answer.ok, (schedule.describe(), extent, answer.message)


@pytest.mark.parametrize("axis", ["i", "k"])
@pytest.mark.parametrize("options", [{"split": 3}, {"split": 2, "atomic": 1}, {"split": 3, "stages": 3}])
def test_parts_of_sums_for_a_range(axis, options):
    tiles = {"i": (3, 2, 4, 1, 2), "j": (2, 1, 8, 1, 3), "k": (8, 2, 2)}
    template = "pipelined" if "stages" in options else "cuda"
    family = make_ranged_workload(matmul(37, 29, 31), axis, range(12, (37 if axis == "i" else 31) + 1))
    schedule = Schedule(family.largest, anatune.hardware("a100"), template, tiles, 64, {}, options).check()
    kernel = cuda_kernel(schedule, Ranged(axis, family.extents[0], family.extents[-1]))
    for extent in (12, 13, 25, family.extents[-1]):
        workload = family.at(extent)
        inputs = random_inputs(workload)
        answer = check_kernel(workload, kernel.at(extent), inputs, compute_expected(workload, inputs))
        assert answer.ok, (extent, answer.message)


def pipelined(workload, seed, **options):
    """Return a random schedule with several staging steps, pipelined."""
    for schedule in CudaModel(workload, anatune.hardware("rtx3090")).space.sample(400, seed):
        steps = np.prod([tiles[0] for tiles in schedule.tiles.values() if len(tiles) == 3])
        if 1 < cuda_threads(schedule) <= 128 and steps > 3:
            return msgspec.structs.replace(schedule, template="pipelined", options=options)
    raise AssertionError("no such point")


def test_pipelines():
    schedule = pipelined(WORKLOADS["matmul"], 0, stages=3, pad=4)
    kernel = cuda_kernel(schedule)
    assert "cp.async" in kernel.source
    answer = anatune.verify(schedule)
    assert answer.ok, answer.message
    inputs = random_inputs(schedule.workload)
    waits = [mutant for what, mutant in mutants(kernel) if what.startswith("wait")]
    assert waits
    for mutant in waits:
        with refuses(RunError):
            check_kernel(schedule.workload, mutant, inputs, compute_expected(schedule.workload, inputs))


@pytest.mark.parametrize("name", ["matmul epilogue", "conv2d stride padding", "max_pool2d"])
def test_mutants_are_caught(name):
    workload = WORKLOADS[name]
    kernel = cuda_kernel(point(workload, seed=3))
    inputs = random_inputs(workload)
    want = compute_expected(workload, inputs)
    made = 0
    for what, mutant in mutants(kernel):
        made += 1
        try:
            answer = check_kernel(workload, mutant, inputs, want)
        except RunError as error:
            assert "\n" not in str(error)  # noqa: PT017
            continue
        assert not answer.ok, what
    assert made >= 3


GUARDED = {"i": (3, 1, 4, 1, 2), "j": (2, 2, 4, 1, 2), "k": (4, 2, 4)}


@pytest.mark.parametrize(
    ("workload", "tiles", "template", "options", "kinds"),
    [
        (matmul(19, 29, 27), GUARDED, "cuda", {}, {"neutral element replaced", "test of a store off by one"}),
        (matmul(19, 29, 27), GUARDED, "pipelined", {"stages": 3}, {"zeros of asynchronous copies missing"}),
        (matmul(19, 29, 27), GUARDED, "cuda", {"split": 4}, {"a part left out", "sum of parts launched first"}),
        (matmul(19, 29, 27), GUARDED, "cuda", {"split": 2, "atomic": 1}, {"zeroing dropped", "zeroing launched last"}),
        (
            reduction((9, 29), axes=1, kind="max"),
            {"d0": (3, 1, 4, 1, 1), "d1": (4, 2, 4)},
            "cuda",
            {},
            {"neutral element replaced"},
        ),
    ],
)
def test_faulty_guards_and_parts_are_caught(workload, tiles, template, options, kinds):
    schedule = Schedule(workload, anatune.hardware("a100"), template, tiles, 64, {}, options).check()
    inputs = random_inputs(workload)
    want = compute_expected(workload, inputs)
    kernel = cuda_kernel(schedule)
    assert check_kernel(workload, kernel, inputs, want).ok
    made = set()
    for what, mutant in itertools.chain(guard_mutants(schedule), launch_mutants(kernel)):
        made.add(what)
        try:
            assert not check_kernel(workload, mutant, inputs, want).ok, what
        except RunError:
            continue
    assert made >= kinds | {"test behind an edge of a load off by one", "test of a store removed"}


def test_orders_that_disagree_are_a_fault(monkeypatch):
    """What the traced run does not look for: a result that depends on which thread comes first."""
    workload = matmul(8, 8, 4)
    kernel = cuda_kernel(point(workload, 0))
    source = kernel.source
    brace = source.index("{", source.rindex("main_kernel(")) + 1
    late = "\n  static int order = -1;\n  if (order < 0) order = threadIdx.x;\n  int first = order;\n"
    end = source.rindex("}")
    spoilt = source[:brace] + late + source[brace:end] + "  if (first > 0) C_ptr[0] = 0.0f;\n}\n"
    inputs = random_inputs(workload)
    mutant = msgspec.structs.replace(kernel, source=spoilt)
    monkeypatch.setattr(verify_gpu, "_TRACED_FLOP", 1.0)
    answer = check_kernel(workload, mutant, inputs, compute_expected(workload, inputs))
    assert not answer.ok
    assert "C[0, 0] is 0 instead of" in answer.message
    assert answer.message.endswith("when threads run in descending order")


def test_what_is_wrong_is_said():
    workload = WORKLOADS["matmul"]
    kernel = cuda_kernel(point(workload, 1))
    inputs = random_inputs(workload)
    want = compute_expected(workload, inputs)
    nothing = msgspec.structs.replace(kernel, source=kernel.source.replace("C_ptr[", "if (threadIdx.x > 9999) C_ptr["))
    if nothing.source != kernel.source:
        assert "is NaN or was never written" in check_kernel(workload, nothing, inputs, want).message
    smaller = msgspec.structs.replace(kernel, grid=max(1, kernel.grid // 2))
    answer = check_kernel(workload, smaller, inputs, want)
    assert kernel.grid == 1 or "never written" in answer.message


@pytest.mark.parametrize(("grid", "share"), [(1, 0.1), (7, 0.5), (1000, 0.01), (1000, 0.3), (50, 1.0), (50, 7.0)])
def test_spread_blocks(grid, share):
    blocks = spread_blocks(grid, share)
    chosen = list(range(blocks.first, grid, blocks.stride))
    assert chosen[-1] == grid - 1
    assert min(grid, max(1, grid * share)) - 1 <= len(chosen) <= max(1, 2 * grid * share)
    assert share < 1 or blocks == ALL_BLOCKS


def test_refusals():
    schedule = point(WORKLOADS["matmul"], 1)
    with refuses(SpaceError):
        anatune.verify("matmul")
    broken = msgspec.structs.replace(schedule, tiles={**schedule.tiles, "i": (7, 1, 1, 1, 1)})
    with pytest.raises(SpaceError):
        anatune.verify(broken)

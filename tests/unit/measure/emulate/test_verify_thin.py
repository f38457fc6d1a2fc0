"""Thin kernels without a GPU: random legal points are right, and faults put into them are found."""

import contextlib
import random

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm")
import anatune
from anatune import matmul
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.errors import MissingDependencyError, RunError
from anatune.measure.emulate.emulator import compiler
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.templates.thin.model import ThinModel
from bench.gpu.thin import thin_workloads
from tests.naive_gpu import gpu

try:
    compiler()
except MissingDependencyError as error:
    pytest.skip(str(error), allow_module_level=True)

WORKLOADS = dict(thin_workloads())


@pytest.mark.parametrize("name", WORKLOADS)
def test_random_points(name):
    space = ThinModel(WORKLOADS[name], gpu("a100")).space
    (schedule,) = space.sample(1, seed=len(name))
    assert anatune.verify(schedule).ok, schedule


@pytest.mark.parametrize("name", WORKLOADS)
def test_random_splits(name):
    """Sums in parts, which a second kernel adds up."""
    space = ThinModel(WORKLOADS[name], gpu("a100")).space
    split = (schedule for schedule in space.sample(400, seed=len(name)) if schedule.options.get("split", 1) > 1)
    schedule = next(split)
    assert len(cuda_kernel(schedule).launches) == 2
    assert anatune.verify(schedule).ok, schedule


@pytest.mark.parametrize("extent", [63, 64, 65, 127, 129])
def test_one_below_and_one_above_a_tile(extent):
    for transposed in (False, True):
        space = ThinModel(matmul(1, extent, 300, transpose_b=transposed), gpu("a100")).space
        inner = {"n": (16, 1, 1), "k": (16, 4, 1)} if not transposed else {"n": (8, 2, 1), "k": (16, 2, 4)}
        assert anatune.verify(space.schedule(inner)).ok
    space = ThinModel(matmul(1, 300, extent, transpose_b=True), gpu("a100")).space
    assert anatune.verify(space.schedule({"n": (8, 1, 1), "k": (16, 2, 1)})).ok


def found(workload, kernel, old, new):
    """Whether a kernel is right, and wrong with another text."""
    inputs = random_inputs(workload, 0)
    want = compute_expected(workload, inputs)
    assert check_kernel(workload, kernel, inputs, want).ok
    assert old in kernel.source
    wrong = msgspec.structs.replace(kernel, source=kernel.source.replace(old, new))
    with contextlib.suppress(RunError):  # a race, or an access outside the tensor
        return not check_kernel(workload, wrong, inputs, want).ok
    return True


FAULTS = [
    ("no barrier", "  __syncthreads();\n", ""),
    ("a shuffle too short", "__shfl_xor_sync(0xffffffffu, value, distance)", "__shfl_xor_sync(0xffffffffu, value, 1)"),
    ("a sum left out", "slot < 3;", "slot < 2;"),
    ("a step left out", "rolled__step < 2;", "rolled__step < 1;"),
    ("a step too many is loaded", "@in ld.global", "ld.global"),
]


@pytest.mark.parametrize(("name", "old", "new"), FAULTS, ids=[name for name, _, _ in FAULTS])
def test_faults_are_found(name, old, new):
    workload = matmul(1, 131, 500, transpose_b=True)
    space = ThinModel(workload, gpu("a100")).space
    assert found(workload, cuda_kernel(space.schedule({"n": (2, 2, 1), "k": (128, 1, 2)})), old, new)


PARTS = [
    ("a part left out", "p < 2;", "p < 1;"),
    ("parts that overlap", "% 3) * 3)", "% 3) * 2)"),
    ("a step left out", "rolled__step < steps_ptr[0];", "rolled__step < 2;"),
    ("sums of another tile", "blockIdx.x) * 96)", "blockIdx.x) * 32)"),
]


@pytest.mark.parametrize(("name", "old", "new"), PARTS, ids=[name for name, _, _ in PARTS])
def test_faults_of_split_sums_are_found(name, old, new):
    workload = matmul(1, 131, 1000, transpose_b=True)
    space = ThinModel(workload, gpu("a100")).space
    assert found(workload, cuda_kernel(space.schedule({"n": (2, 2, 1), "k": (32, 1, 4)}, 3)), old, new)


def test_shuffles_stay_inside_short_blocks():
    """A block of fewer threads than a warp has shuffles among those that there are."""
    space = ThinModel(matmul(1, 200, 100, transpose_b=True), gpu("a100")).space
    schedule = space.schedule({"n": (1, 2, 1), "k": (8, 2, 4)})
    assert "0xffu" in cuda_kernel(schedule).source
    assert anatune.verify(schedule).ok


def test_random_seed_is_not_needed():
    """The order of sums is that of the program: two runs agree to the last bit, whatever the order of threads."""
    workload = matmul(2, 260, 130)
    schedule = ThinModel(workload, gpu("a100")).space.sample(1, seed=random.Random(0).randrange(9))[0]
    answers = [anatune.verify(schedule) for _ in range(2)]
    assert np.isclose(answers[0].max_rel_error, answers[1].max_rel_error, rtol=0, atol=0)

"""anatune inside TVM's MetaSchedule for CUDA targets, without a GPU: what is proposed, and that it is right."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anatune
from anatune.adapters import metaschedule
from anatune.codegen.compat import build_measured, make_gpu_target
from anatune.codegen.tvm.kernel import read_annotated_schedule
from tests.contracts.test_metaschedule import fast_intrinsics, product, row_sums  # noqa: F401 - a fixture

tvm = pytest.importorskip("tvm")
pytest.importorskip("cuda.bindings.nvrtc")

pytestmark = pytest.mark.slow

GPU = anatune.hardware("rtx3090")


@pytest.fixture(scope="module")
def target():
    return make_gpu_target(GPU)


@pytest.fixture
def context(target):
    from tvm.s_tir import meta_schedule

    options = metaschedule.tuning_options(hw="rtx3090")
    return meta_schedule.TuneContext(
        product(64, 48, 40),
        target=target,
        space_generator=options["space"],
        search_strategy=options["strategy"],
        task_name="product",
        rand_state=1,
    )


def asked(context, cost_model):
    """Return the schedules of one round of the search."""
    designs = context.generate_design_space()
    context.pre_tuning(16, 8, designs, None, cost_model)
    return designs, [one.sch for one in context.generate_measure_candidates()]


def test_kernels_for_the_gpu_are_proposed_and_become_cubins(context, target):
    from anatune.codegen.cuda.device_modules import Cubins

    cost_model = metaschedule.cost_model("rtx3090", fallback=None)
    designs, found = asked(context, cost_model)
    schedules = [read_annotated_schedule(one.trace) for one in found]
    assert len({one.key for one in schedules}) == len(found) == 8
    assert {one.hardware for one in schedules} == {GPU}
    assert read_annotated_schedule(designs[0].trace).key == schedules[0].key  # the plan's first choice
    cubins = Cubins(GPU.arch)
    with cubins.building():
        for one in found[:2]:
            build_measured(one.mod, target)
    assert [cubin.arch for _, cubin in cubins.compiled] == ["sm_86", "sm_86"]
    assert all(source.count("__global__") >= 2 for source, _ in cubins.compiled)  # the product; its rectifier


def test_the_cost_model_understands_these_kernels(context):
    from tvm.s_tir.meta_schedule import MeasureCandidate, arg_info

    cost_model = metaschedule.cost_model("rtx3090", fallback=None)
    _, found = asked(context, cost_model)
    args = arg_info.ArgInfo.from_entry_func(found[0].mod, True)
    scores = cost_model.predict(context, [MeasureCandidate(one, args) for one in found])
    assert not cost_model.unknown
    assert len(np.unique(scores)) > 1
    assert scores[0] == max(scores)


def test_a_plan_opens_again_and_says_what_it_cannot_do(tmp_path, target):
    said = []
    database = metaschedule.plan_model(product(64, 48, 40), target, tmp_path, GPU, on_skip=said.append)
    assert (len(database), said) == (1, [])
    assert len(metaschedule.plan_model(product(64, 48, 40), target, tmp_path, GPU)) == 1
    metaschedule.plan_model(row_sums(), target, tmp_path / "other", GPU, on_skip=said.append)
    assert len(said) == 1
    processor = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    with processor:
        metaschedule.open_database(tmp_path, said.append)
    assert "expected a GPU like rtx3090" in said[-1]


def test_a_planned_model_is_right_on_an_emulated_gpu(tmp_path):
    if not (shutil.which("cc") and shutil.which("g++")):
        pytest.skip("no C and C++ compilers")
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulated_gpu.planned", str(tmp_path)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["planned"] == 2
    assert told["error"] <= 1e-6
    assert len(told["launches"]) == 3

"""anatune's cost model and its filter inside the real MetaSchedule: design spaces, predictions, a short tuning run."""

import functools
import os
import subprocess
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest

import anatune
from anatune.adapters.metaschedule.cost import FORMAT, NEUTRAL, AnatuneCostModel, cost_model
from anatune.adapters.metaschedule.limits import REGISTERS_RULE, postproc
from anatune.adapters.metaschedule.traces import FunctionMeaning, recorded_trace, tiling_of
from anatune.core.hardware.files import hardware
from anatune.errors import MissingDependencyError, RecordError, SpaceError
from anatune.records.traces import UnfitError, read_trace
from anatune.templates.cuda.model.pipelined import PipelinedModel
from tests.wording import check_texts, refuses

tvm = pytest.importorskip("tvm", reason="contract tests of MetaSchedule need TVM")
for missing in ("psutil", "cloudpickle"):
    pytest.importorskip(missing, reason=f"TVM's MetaSchedule needs {missing}")
for slow in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):  # 25 s of imports that nothing here needs
    sys.modules.setdefault(f"tvm.s_tir.tensor_intrin.{slow}", types.ModuleType(slow))
te = pytest.importorskip("tvm.te")
ms = pytest.importorskip("tvm.s_tir.meta_schedule")

GPU = hardware("rtx3090")
CPU = hardware("intel_xeon_gold_6230r")
CUDA = {
    "kind": "cuda",
    "arch": "sm_86",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}
LLVM = {"kind": "llvm", "mcpu": "cascadelake", "num-cores": 1}


def matmul(m=256, n=256, k=256, dtype="float32"):
    a, b = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def conv2d(c=16, h=14, k=32, r=3):
    x, w = te.placeholder((1, c, h, h), name="X"), te.placeholder((k, c, r, r), name="W")
    p = r // 2
    padded = te.compute(
        (1, c, h + 2 * p, h + 2 * p),
        lambda n, q, y, z: tvm.tirx.if_then_else(
            te.all(y >= p, y < h + p, z >= p, z < h + p), x[n, q, y - p, z - p], te.const(0.0, "float32")
        ),
        name="padded",
    )
    rc, ry, rx = (te.reduce_axis((0, e), name=n) for e, n in ((c, "rc"), (r, "ry"), (r, "rx")))
    out = te.compute(
        (1, k, h, h),
        lambda n, f, y, z: te.sum(padded[n, rc, y + ry, z + rx] * w[f, rc, ry, rx], axis=[rc, ry, rx]),
        name="O",
    )
    return tvm.IRModule({"main": te.create_prim_func([x, w, out])})


def elementwise():
    x = te.placeholder((64, 64), name="X")
    return tvm.IRModule({"main": te.create_prim_func([x, te.compute((64, 64), lambda i, j: x[i, j] * 2.0, name="Y")])})


def context_of(module, target, postprocs=None, seed=1, strategy="replay-trace"):
    kind = target["kind"]
    rules = ms.schedule_rule.ScheduleRule.create(kind)
    own = ms.postproc.Postproc.create(kind) if postprocs is None else postprocs
    generator = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=own, mutator_probs={})
    return ms.TuneContext(
        module, target=tvm.target.Target(target), space_generator=generator, search_strategy=strategy,
        task_name="test", rand_state=seed, num_threads=1,
    )  # fmt: skip


def drawn(context, count):
    context.pre_tuning(count, count)
    return context.generate_measure_candidates() or []


@functools.cache
def _drawn_designs(make, kind, seed):
    return tuple(context_of(make(), {"cuda": CUDA, "llvm": LLVM}[kind], seed=seed).generate_design_space())


def designs(make, target, seeds=(1, 2, 3)):
    """Return random traces of the space before any postprocessor has seen them; each is drawn once."""
    return [sch for seed in seeds for sch in _drawn_designs(make, target["kind"], seed)]


def large_matmul():
    return matmul(1024, 1024, 1024)


def candidates_of(schedules):
    return [SimpleNamespace(sch=sch) for sch in schedules]


def result_of(seconds=None, error=None):
    return SimpleNamespace(run_secs=None if seconds is None else [seconds], error_msg=error)


@pytest.mark.parametrize("make", [matmul, conv2d])
def test_live_traces_read_like_recorded_ones(make):
    for target in (CUDA, LLVM):
        for sch in designs(make, target):
            assert tiling_of(sch.trace) == read_trace(*recorded_trace(sch.trace))


@pytest.mark.parametrize("make", [matmul, pytest.param(conv2d, marks=pytest.mark.slow)])
def test_scores_of_gpu_tilings_are_those_of_the_models(make):
    module = make()
    meaning = FunctionMeaning(module)
    schedules = designs(make, CUDA, seeds=range(1, 9))
    model = AnatuneCostModel(GPU)
    scores = model.predict(context_of(module, CUDA), candidates_of(schedules))
    floor_s = meaning.workload.flop / GPU.compute.fp32_peak_flop_per_s
    models = {"cuda": anatune.api.model(meaning.workload, GPU), "pipelined": PipelinedModel(meaning.workload, GPU)}
    seen = set()
    for sch, score in zip(schedules, scores, strict=True):
        try:
            point = meaning.gpu_schedule(tiling_of(sch.trace), GPU)
        except UnfitError:
            continue  # more buffers than the space has
        own = models[point.template]
        time_s, rule = own.times(own.space.point_of(point)[None, :])
        assert score == pytest.approx(0.0 if rule[0] else floor_s / time_s[0])
        seen.add((point.template, int(rule[0]) > 0))
    assert {template for template, _ in seen} == {"cuda", "pipelined"}
    assert not model.unknown
    assert sum(model.rejected.values()) >= sum(illegal for _, illegal in seen)


def test_fetch_widths_belong_to_the_operands_that_the_block_reads():
    module = conv2d()
    meaning = FunctionMeaning(module)
    assert [access.tensor for access in meaning.workload.reads] == ["data", "weight"]
    for sch in designs(conv2d, CUDA):
        tiling = tiling_of(sch.trace)
        vector = meaning.gpu_schedule(tiling._replace(stages=1), GPU).vector
        assert vector == {"data": {3: 1}.get(tiling.fetch[0], tiling.fetch[0]),
                          "weight": {3: 1}.get(tiling.fetch[1], tiling.fetch[1])}  # fmt: skip


def test_the_filter_names_the_rule_and_counts():
    module = large_matmul()
    judge = postproc(GPU)
    check_texts([str(judge.explain(designs(large_matmul, CUDA)[0]))])
    judge._initialize_with_tune_context(context_of(module, CUDA))
    schedules = designs(large_matmul, CUDA, seeds=range(1, 25))
    meaning = FunctionMeaning(module)
    for sch in schedules:
        tiling = tiling_of(sch.trace)
        threads = int(np.prod([factors[2] for factors in tiling.tiles if len(factors) == 5]))
        before = judge.rejected.copy()
        passed = judge.apply(sch)
        assert passed == (judge.rejected == before)
        said = judge.explain(sch)
        assert said.startswith("kept" if passed else "rejected by")
        if threads > 1024:
            assert judge.rejected["threads_per_block"] == before["threads_per_block"] + 1
            assert f"{threads:,} threads of a block, {GPU.name} has at most 1,024" in said
        elif not passed and "shared_bytes_per_block" in said:
            tiles = meaning.gpu_schedule(tiling._replace(stages=1), GPU).tiles
            i, j, k = (np.prod(tiles[name][1:]) for name in "ijk")
            assert 4 * tiling.stages * (i + j) * k > GPU.shared_memory.per_block_bytes
    assert {"threads_per_block", "shared_bytes_per_block"} & set(judge.rejected)
    assert judge.passed + sum(judge.rejected.values()) == len(schedules)


def test_sums_that_do_not_fit_the_registers_are_rejected():
    module = matmul()
    judge = postproc(GPU)
    judge._initialize_with_tune_context(context_of(module, CUDA))
    large = next(
        sch
        for seed in range(1, 400)
        for sch in designs(matmul, CUDA, seeds=[seed])
        if 255 < np.prod([f[1] * f[3] * f[4] for f in tiling_of(sch.trace).tiles if len(f) == 5]) < 1024
        and "threads" not in judge.explain(sch)
        and "shared" not in judge.explain(sch)
    )
    assert judge.explain(large).startswith(f"rejected by {REGISTERS_RULE}")
    assert not judge.apply(large)
    assert judge.rejected[REGISTERS_RULE] == 1


def test_a_design_space_with_the_filter_holds_only_what_it_keeps():
    module = matmul(512, 512, 512)
    judge = postproc(GPU)
    own = [*ms.postproc.Postproc.create("cuda"), judge]
    # TVM's own check of the limits stands before ours: without it, ours has something to reject
    own = [one for one in own if "VerifyGPUCode" not in str(one)]
    found = drawn(context_of(module, CUDA, postprocs=own), 8)
    assert len(found) == 8
    clean = postproc(GPU)
    clean._initialize_with_tune_context(context_of(module, CUDA))
    assert all(clean.apply(candidate.sch) for candidate in found)
    assert judge.passed >= 8
    assert sum(judge.rejected.values()) > 0


def test_cpu_tilings_are_scored_and_learned_from():
    module = matmul()
    context = context_of(module, LLVM)
    found = drawn(context, 24)
    model = cost_model(CPU)
    before = model.predict(context, found)
    assert before.shape == (24,)
    assert len(set(before.tolist())) > 12
    assert ((before > 0) & (before < 1.5)).all()
    # kernels with a copy of the results turn out three times slower than the others
    slow = np.array([tiling_of(candidate.sch.trace).write_depth >= 0 for candidate in found])
    floor_s = 2 * 256**3 / (CPU.compute.fp32_peak_flop_per_s / CPU.compute.num_cores)
    times = floor_s / before * np.where(slow, 3.0, 1.0)
    results = [ms.runner.RunnerResult([float(seconds)], None) for seconds in times]
    results[0] = ms.runner.RunnerResult(None, "it failed")
    model.update(context, found, results)
    assert model.learned == 23
    after = model.predict(context, found)
    ratio = np.log(before / after)
    assert ratio[slow].mean() > ratio[~slow].mean() + 0.5


def test_saved_measurements_are_read_back(tmp_path):
    module = matmul()
    context = context_of(module, LLVM)
    found = drawn(context, 12)
    model = cost_model(CPU)
    model.update(context, found, [ms.runner.RunnerResult([1e-3 * (1 + at)], None) for at in range(12)])
    path = tmp_path / "model.json"
    model.save(str(path))
    again = cost_model(CPU, path=path)
    assert again.learned == 12
    np.testing.assert_allclose(again.predict(context, found), model.predict(context, found))
    with refuses(RecordError):
        cost_model(CPU, path=tmp_path / "none.json")
    for damaged in ("no json", "{}", f'{{"format": "{FORMAT}", "tasks": {{"a": {{"features": [[1]]}}}}}}'):
        path.write_text(damaged)
        with refuses(RecordError):
            cost_model(CPU, path=path)


def test_what_is_not_understood_is_neutral_and_counted(caplog):
    context = context_of(elementwise(), LLVM)
    found = drawn(context, 4)
    model = cost_model(CPU, fallback=None)
    assert model.predict(context, found).tolist() == [NEUTRAL] * len(found)
    assert sum(model.unknown.values()) == len(found)
    model.update(context, found, [ms.runner.RunnerResult([1e-3], None)] * len(found))
    assert model.learned == 0
    # a device of another kind than the target
    candidates = drawn(context_of(matmul(), LLVM), 3)
    with refuses(SpaceError):
        cost_model(GPU, fallback=None).predict(context_of(matmul(), LLVM), candidates)
    filtered = ms.space_generator.PostOrderApply(sch_rules=[], postprocs=[postproc(GPU)], mutator_probs={})
    with refuses(SpaceError):
        ms.TuneContext(matmul(), target=LLVM, space_generator=filtered)
    # a device of another architecture
    for _ in range(2):
        cost_model("h100_sxm", fallback=None).predict(context_of(elementwise(), CUDA), found)
    assert caplog.text.count("sm_86, that of h100_sxm is sm_90") == 1
    # one stranger among candidates that are understood
    mixed = [*candidates, ms.search_strategy.MeasureCandidate(tvm.s_tir.Schedule(matmul()), [])]
    scores = cost_model(CPU).predict(context_of(matmul(), LLVM), mixed)
    assert scores[3] == pytest.approx(np.median(scores[:3]))


def test_another_model_scores_functions_that_are_not_understood():
    context = context_of(elementwise(), LLVM)
    found = drawn(context, 4)
    other = SimpleNamespace(seen=[])
    other.predict = lambda context, candidates: np.arange(float(len(candidates)))
    other.update = lambda context, candidates, results: other.seen.extend(results)
    model = cost_model(CPU, fallback=other)
    assert model.predict(context, found).tolist() == list(range(len(found)))
    model.update(context, found, [ms.runner.RunnerResult([1e-3], None)] * len(found))
    assert len(other.seen) == len(found)
    understood = context_of(matmul(), LLVM)
    model.predict(understood, drawn(understood, 2))
    assert len(other.seen) == len(found)


def test_kernels_of_anatune_are_scored_by_the_cpu_model():
    from anatune.codegen.tvm.kernel import TirTask
    from anatune.templates.cpu.model.model import CpuModel

    module = matmul()
    task = TirTask(module, threads=1)
    own = CpuModel(task.workload, CPU.with_threads(1), constants=())
    points = own.rank(2).points
    schedules = [task.schedule(own.space.schedule_of(point)) for point in points]
    scores = AnatuneCostModel(CPU).predict(context_of(module, LLVM), candidates_of(schedules))
    floor_s = task.workload.flop / CPU.with_threads(1).compute.fp32_peak_flop_per_s
    np.testing.assert_allclose(scores, floor_s / own.times(points)[0])
    plain = AnatuneCostModel(CPU).predict(context_of(module, LLVM), drawn(context_of(module, LLVM), 8))
    assert scores[0] > plain.max()


def test_a_cpu_has_no_limits_to_filter_by():
    with refuses(SpaceError):
        postproc(CPU)


def test_without_tvm_one_line_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name == "tvm" or name.startswith("tvm.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with refuses(MissingDependencyError):
        cost_model(CPU)
    with refuses(MissingDependencyError):
        postproc(GPU)


TUNING = """
import sys, types
for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):
    sys.modules["tvm.s_tir.tensor_intrin." + name] = types.ModuleType(name)
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from anatune.adapters.metaschedule import builder
from anatune.adapters.metaschedule.cost import cost_model
from anatune.adapters.relax import target
a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
k = te.reduce_axis((0, 64), name="k")
c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
module = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
model = cost_model("host")
if __name__ == "__main__":
    database = ms.tir_integration.tune_tir(
        module, target("host", threads=1), sys.argv[1], 8,
        num_trials_per_iter=4, cost_model=model, builder=builder(60.0, 1), seed=1, num_tuning_cores=1,
        strategy=ms.search_strategy.EvolutionarySearch(
            population_size=32, init_measured_ratio=0.1, init_min_unmeasured=8, genetic_num_iters=1
        ),
    )
    assert model.learned >= 6, model.learned
    assert not model.unknown, model.unknown
    assert len(database.get_all_tuning_records()) >= 6
    print("TUNED")
"""


@pytest.mark.slow
def test_evolutionary_tuning_with_the_cost_model(tmp_path):
    script = tmp_path / "tune.py"
    script.write_text(TUNING)
    (tmp_path / "sitecustomize.py").write_text(TUNING.split("import tvm\n")[0])  # runner processes, too
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "work")],
        env={**os.environ, "PYTHONPATH": path, "TVM_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "TUNED" in done.stdout, (done.stdout + done.stderr)[-2000:]

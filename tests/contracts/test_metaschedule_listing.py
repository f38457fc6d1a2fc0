"""``anatune prune --for metaschedule`` against TVM's CUDA design space: decisions apply, pass, are read back."""

import json
import subprocess
import sys

import pytest

import anatune
from anatune.adapters.logs import read_foreign
from anatune.adapters.metaschedule.listing import with_decisions
from anatune.errors import SpaceError
from anatune.listing.formats import PruneRequest
from anatune.listing.writers import find_writer
from tests.wording import refuses

pytest.importorskip("tvm", reason="pip install '.[tvm]'")

WORKLOADS = {
    "matmul": anatune.matmul(64, 96, 128),
    "half": anatune.matmul(64, 96, 128, dtype="float16"),
    "conv2d": anatune.conv2d(n=1, c=16, h=14, w=14, k=32, r=3, s=3, stride=1, padding=1),
}
# Runs in a process of its own: intrinsics that the design space does not use take 25 s to import.
SPACES = """
import json, re, sys, types
for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu", "x86", "dot_product_common"):
    sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)
import tvm
from tvm import te
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace
from anatune.adapters.metaschedule.listing import with_decisions

def matmul(dtype):
    a, b = te.placeholder((64, 128), dtype, name="A"), te.placeholder((128, 96), dtype, name="B")
    k = te.reduce_axis((0, 128), name="k")
    return te.create_prim_func([a, b, te.compute((64, 96), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")])

def conv2d():
    a, b = te.placeholder((1, 16, 14, 14), name="data"), te.placeholder((32, 16, 3, 3), name="weight")
    p = te.compute((1, 16, 16, 16), lambda n, c, y, x: te.if_then_else(
        te.all(y >= 1, y < 15, x >= 1, x < 15), a[n, c, y - 1, x - 1], te.const(0, "float32")), name="pad")
    rc, ry, rx = (te.reduce_axis((0, e), name=n) for e, n in ((16, "rc"), (3, "ry"), (3, "rx")))
    return te.create_prim_func([a, b, te.compute((1, 32, 14, 14), lambda n, f, y, x: te.sum(
        p[n, rc, y + ry, x + rx] * b[f, rc, ry, rx], axis=[rc, ry, rx]), name="C")])

def threads(schedule):
    return sorted({int(n) for n in re.findall(r'thread_binding\\((\\d+), thread="threadIdx.x"', schedule.mod.script())})

target = tvm.target.Target({"kind": "cuda", "arch": "sm_86", "max_threads_per_block": 1024,
                            "max_shared_memory_per_block": 49152, "thread_warp_size": 32, "max_num_threads": 1024})
answers = {}
for name, lines in json.load(sys.stdin).items():
    function = {"matmul": lambda: matmul("float32"), "half": lambda: matmul("float16"), "conv2d": conv2d}[name]()
    generator = meta_schedule.space_generator.PostOrderApply(sch_rules="cuda", postprocs="cuda", mutator_probs={})
    context = meta_schedule.TuneContext(mod=function, target=target, space_generator=generator, rand_state=1)
    designs = context.generate_design_space()
    done = []
    for line in lines:
        trace = with_decisions(designs[0].trace, line)
        schedule = Schedule(context.mod)
        Trace.apply_json_to_schedule(trace, schedule)
        passed = [bool(process.apply(schedule)) for process in generator.postprocs]
        done.append([trace, passed, threads(schedule)])
    answers[name] = [done, len(designs)]
    try:
        with_decisions(designs[-1].trace, lines[0])
        answers[name].append("")
    except Exception as error:
        answers[name].append(str(error))
print(json.dumps(answers))
"""


def lines_of(workload, hw="rtx3090", keep=24, **options):
    return list(find_writer("metaschedule")(PruneRequest(workload, anatune.hardware(hw), keep, **options)))


@pytest.fixture(scope="module")
def answers():
    lines = {name: lines_of(workload) for name, workload in WORKLOADS.items()}
    done = subprocess.run(
        [sys.executable, "-c", SPACES],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return lines, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_line_applies_and_passes_the_postprocessors(answers, name):
    lines, found = answers
    assert len(lines[name]) == len(found[name][0]) == 24
    for line, (_, passed, threads) in zip(lines[name], found[name][0], strict=True):
        assert all(passed), line
        tiles = json.loads(line)["sample_perfect_tile"]
        product = 1
        for factors in tiles.values():
            product *= factors[2] if len(factors) == 5 else 1
        assert threads == [product], line


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_reader_of_databases_reads_the_same_schedules(answers, name, tmp_path):
    lines, found = answers
    path = tmp_path / "database_tuning_record.json"
    path.write_text("\n".join(json.dumps([0, [trace, [1e-3], {}, []]]) for trace, _, _ in found[name][0]))
    log = read_foreign(path, anatune.hardware("rtx3090"), WORKLOADS[name])
    assert not log.left_out
    for line, one in zip(lines[name], log.trials, strict=True):
        entry, schedule = json.loads(line), one.trial.schedule
        assert {axis: tuple(tile) for axis, tile in entry["sample_perfect_tile"].items()} == schedule.tiles
        assert (entry["unroll_explicit"], entry["cooperative_fetch"]) == (schedule.unroll, schedule.vector)
        (prediction,) = anatune.predict(one.workload, anatune.hardware("rtx3090"), [schedule]).time_s
        assert prediction == pytest.approx(entry["predicted_s"])


def test_designs_with_a_pipeline_are_refused(answers):
    _, found = answers
    assert found["matmul"][1] > 1
    assert "software pipeline" in found["matmul"][2]


def test_the_first_lines_are_the_plans():
    lines = [json.loads(line) for line in lines_of(WORKLOADS["matmul"], keep=300)]
    times = [line["predicted_s"] for line in lines]
    assert len(lines) == 300
    assert times == sorted(times)
    plan = anatune.plan(WORKLOADS["matmul"], anatune.hardware("rtx3090"), top_k=1)
    assert times[0] == pytest.approx(plan.predictions[0].time_s, rel=0.05)
    for line in lines:
        assert set(line["cooperative_fetch"].values()) <= {1, 2, 3, 4}


def test_lines_of_a_cpu_are_schedules():
    lines = lines_of(WORKLOADS["matmul"], hw="intel_xeon_gold_6130", keep=3)
    schedules = [anatune.Schedule.from_json(line) for line in lines]
    assert schedules == list(anatune.prune(WORKLOADS["matmul"], anatune.hardware("intel_xeon_gold_6130"), keep=3))


def test_one_clear_line_where_it_does_not_apply():
    with refuses(SpaceError):
        lines_of(WORKLOADS["half"], template="triton")
    with refuses(SpaceError):
        lines_of(anatune.matmul(2, 2, 2), keep=0.9)


def test_a_trace_that_does_not_fit(answers):
    lines, found = answers
    trace = found["matmul"][0][0][0]
    with refuses(SpaceError):
        with_decisions(trace, lines["conv2d"][0])
    with refuses(SpaceError):
        with_decisions([[], []], lines["matmul"][0])

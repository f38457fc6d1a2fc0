"""``anatune records import`` of a database that TVM's MetaSchedule wrote: its functions say what it is of."""

import json
import subprocess
import sys

import pytest

import anatune
from anatune.adapters.logs import read_foreign
from anatune.templates import make_model

pytest.importorskip("tvm", reason="pip install '.[tvm]'")

GPU = anatune.hardware("rtx3090")
# Runs in a process of its own, as a tuning run does; intrinsics that the design space does not use take 25 s to import.
WRITER = """
import sys, types
for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu", "x86", "dot_product_common"):
    sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)
import tvm
from tvm import te
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

def convolution():
    a, b = te.placeholder((1, 14, 14, 16), name="data"), te.placeholder((3, 3, 16, 32), name="weight")
    p = te.compute((1, 16, 16, 16), lambda n, y, x, c: te.if_then_else(
        te.all(y >= 1, y < 15, x >= 1, x < 15), a[n, y - 1, x - 1, c], te.const(0, "float32")), name="pad")
    ry, rx, rc = (te.reduce_axis((0, e), name=n) for e, n in ((3, "ry"), (3, "rx"), (16, "rc")))
    return te.create_prim_func([a, b, te.compute((1, 14, 14, 32), lambda n, y, x, f: te.sum(
        p[n, y + ry, x + rx, rc] * b[ry, rx, rc, f], axis=[ry, rx, rc]), name="C")])

def product():
    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), name="k")
    return te.create_prim_func([a, b, te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")])

target = tvm.target.Target("nvidia/geforce-rtx-3090")
database = meta_schedule.database.JSONDatabase(work_dir=sys.argv[1])
for function in (convolution(), product()):
    module = tvm.IRModule({"main": function})
    generator = meta_schedule.space_generator.PostOrderApply(sch_rules="cuda", postprocs="cuda", mutator_probs={})
    context = meta_schedule.TuneContext(mod=module, target=target, space_generator=generator, rand_state=1)
    workload = database.commit_workload(module)
    arguments = meta_schedule.arg_info.ArgInfo.from_prim_func(function)
    for number, design in enumerate(context.generate_design_space()):
        schedule = Schedule(module, seed=number + 1)
        Trace(design.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=False)
        seconds = [1e-3 * (1 + number)]
        database.commit_tuning_record(
            meta_schedule.database.TuningRecord(schedule.trace, workload, seconds, target, arguments))
"""
CONVOLUTION = anatune.conv2d(1, 16, 14, 14, 32, 3, 3, padding=1, layout="NHWC")
PRODUCT = anatune.matmul(64, 64, 64, transpose_b=True)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return a database's records: of a convolution and a square product, without a pipeline and with two."""
    folder = tmp_path_factory.mktemp("database")
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "database_tuning_record.json"


def function_reader():
    from anatune.adapters.metaschedule.functions import function_reader

    return function_reader()


@pytest.mark.slow
def test_the_functions_say_what_their_records_are_of(log):
    found = read_foreign(log, GPU, functions=function_reader)
    assert list(dict.fromkeys(one.workload for one in found.trials)) == [CONVOLUTION, PRODUCT]
    stages = [one.trial.schedule.options.get("stages", 1) for one in found.trials]
    assert stages == [1, 3, 1, 3]
    assert found.left_out == {"it has 4 stages, the template has at most 3 for this workload": 2}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for one in found.trials:
        schedule = one.trial.schedule
        make_model(one.workload, GPU, schedule.template).space.point_of(schedule)
        number, ((instructions, decisions), times, _, _) = lines[one.trial.number]
        assert one.trial.measurement.times_s == tuple(times)
        tiles = [tuple(value) for at, value in decisions if instructions[at][0] == "SamplePerfectTile"]
        axes = "ijk" if number else ("n", "y", "x", "f", "ry", "rx", "rc")
        assert tiles == [schedule.tiles[axis] for axis in axes if one.workload.extents[axis] > 1 or len(tiles) == 7]


def test_device_and_workload_are_checked(log):
    other = read_foreign(log, anatune.hardware("a100_sxm"), functions=function_reader)
    assert other.left_out == {"measured on sm_86, but a100_sxm has sm_80": 6}
    unknown = read_foreign(log, functions=function_reader)
    assert not unknown.trials
    assert "with --hw NAME" in next(iter(unknown.left_out))
    plain = read_foreign(log, GPU, anatune.matmul(64, 64, 64), functions=function_reader)
    assert not plain.trials
    assert sum(count for text, count in plain.left_out.items() if text.startswith("another workload")) >= 4


def test_without_the_functions_the_workload_is_asked_for(log):
    found = read_foreign(log, GPU)
    assert not found.trials
    assert all("does not say which workload" in text or "buffers" in text for text in found.left_out)
    given = read_foreign(log, GPU, CONVOLUTION)
    assert [one.workload for one in given.trials] == [CONVOLUTION] * 2
    channels_first = read_foreign(log, GPU, anatune.conv2d(1, 16, 14, 14, 32, 3, 3, padding=1))
    assert not channels_first.trials

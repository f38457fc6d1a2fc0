"""anatune inside TVM's MetaSchedule: the real one proposes, builds, runs, records and applies."""

import logging
import sys
import types

import numpy as np
import pytest

import anatune
from anatune.adapters import metaschedule
from anatune.codegen.compat import target_of
from anatune.codegen.tir_kernel import annotated_schedule
from anatune.errors import MissingDependencyError, RecordError, SpaceError, UnknownNameError

tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

HOST = anatune.hardware("host")
TARGET = target_of(HOST, threads=1)
M, N, K = 24, 32, 40


@pytest.fixture(autouse=True)
def fast_intrinsics(monkeypatch):
    """Leave out tensor intrinsics of other devices: importing them takes TVM 25 s."""
    for device in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):
        name = f"tvm.s_tir.tensor_intrin.{device}"
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


@pytest.fixture
def meta_schedule():
    from tvm.s_tir import meta_schedule

    return meta_schedule


def product(m=M, n=N, k=K):
    a, b = te.placeholder((m, k), name="X"), te.placeholder((k, n), name="W")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="Z")
    relu = te.compute((m, n), lambda i, j: te.max(c[i, j], te.const(0, "float32")), name="R")
    return tvm.IRModule({"main": te.create_prim_func([a, b, relu])})


def row_sums():
    a, r = te.placeholder((16, 32), name="X"), te.reduce_axis((0, 32), name="r")
    return tvm.IRModule({"main": te.create_prim_func([a, te.compute((16,), lambda i: te.sum(a[i, r], axis=r))])})


def check(module):
    generator = np.random.default_rng(0)
    left, right = (generator.random(shape, dtype=np.float32) - 0.5 for shape in ((M, K), (K, N)))
    result = tvm.runtime.tensor(np.full((M, N), np.nan, np.float32))
    tvm.compile(module, target=TARGET)["main"](tvm.runtime.tensor(left), tvm.runtime.tensor(right), result)
    np.testing.assert_allclose(result.numpy(), np.maximum(left @ right, 0), rtol=1e-4, atol=1e-5)


def tune(meta_schedule, module, folder, trials, **changes):
    options = metaschedule.tuning_options(HOST) | {"num_trials_per_iter": 2} | changes
    logging.getLogger("tvm.s_tir.meta_schedule").handlers.clear()  # those that pytest closed
    return meta_schedule.tir_integration.tune_tir(module, TARGET, str(folder), max_trials_global=trials, **options)


def test_a_run_proposes_learns_records_goes_on_and_is_applied(meta_schedule, tmp_path):
    database = tune(meta_schedule, product(), tmp_path, 3, strategy=metaschedule.strategy(HOST, batch=2))
    records = database.get_all_tuning_records()
    assert len(records) == 3
    assert len({annotated_schedule(record.trace).key for record in records}) == 3
    assert all(0 < float(seconds) < 1 for record in records for seconds in record.run_secs)
    check(meta_schedule.tir_integration.compile_tir(database, product(), TARGET).mod)
    again = tune(
        meta_schedule, product(), tmp_path, 2
    ).get_all_tuning_records()  # the same work_dir: nothing is tried twice
    assert len({annotated_schedule(record.trace).key for record in again}) == 5

    with TARGET, metaschedule.open_database(tmp_path) as database:
        check(database.query_schedule(product(), TARGET, "main").mod)
        applied = tvm.relax.transform.MetaScheduleApplyDatabase()(product())
    assert "anatune.schedule" in str(applied)
    path = tmp_path / "database_tuning_record.json"
    path.write_text(path.read_text().replace('\\"operator\\"', '\\"operetta\\"'))
    lines = []
    metaschedule.open_database(tmp_path, lines.append)
    assert len(lines) == 1
    assert "tuning record" in lines[0]
    path.write_text("[1, 2")
    with pytest.raises(RecordError, match="TVM cannot read"):
        metaschedule.open_database(tmp_path)
    with pytest.raises(RecordError, match="no such file"):
        metaschedule.open_database(tmp_path / "nowhere")


def test_a_plan_needs_no_measurement(meta_schedule, tmp_path):
    database = metaschedule.plan_model(product(), TARGET, tmp_path, HOST)
    (record,) = database.get_all_tuning_records()
    first = anatune.matmul(M, N, K)
    assert annotated_schedule(record.trace).workload.reads == first.reads
    with TARGET, metaschedule.open_database(tmp_path):
        check(tvm.relax.transform.MetaScheduleApplyDatabase()(product()))


def test_other_functions_are_left_to_metaschedule(meta_schedule, tmp_path):
    lines = []
    assert not metaschedule.plan_model(
        row_sums(), TARGET, tmp_path / "plan", HOST, lines.append
    ).get_all_tuning_records()
    assert len(lines) == 1
    assert "result += left * right" in lines[0]
    database = tune(meta_schedule, row_sums(), tmp_path, 2)
    (*_, record) = database.get_all_tuning_records()
    assert annotated_schedule(record.trace) is None


def test_a_space_alone_is_a_plan_for_replay(meta_schedule):
    context = meta_schedule.TuneContext(
        product(), target=TARGET, space_generator=metaschedule.space(HOST, designs=3), search_strategy="replay-trace"
    )
    designs = [annotated_schedule(design.trace) for design in context.generate_design_space()]
    assert len({design.key for design in designs}) == 3
    assert designs[0].workload.reads == anatune.matmul(M, N, K).reads


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metaschedule.strategy("rtx3090"), SpaceError, "is a GPU"),
        (lambda: metaschedule.strategy("nonesuch"), UnknownNameError, "nonesuch"),
        (lambda: metaschedule.strategy(HOST, name="magic"), UnknownNameError, "magic"),
        (lambda: metaschedule.strategy(HOST, batch=0), SpaceError, "batch is 0"),
        (lambda: metaschedule.space(HOST, designs=0), SpaceError, "designs is 0"),
    ],
)
def test_bad_input_is_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_target_without_the_vectors_is_one_line(tmp_path):
    plain = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    if HOST.compute.isa not in ("avx512", "avx2"):
        pytest.skip("every target of this machine has its vectors")
    with pytest.raises(SpaceError, match="name the processor"):
        metaschedule.plan_model(product(), plain, tmp_path, HOST)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm.s_tir.meta_schedule", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        metaschedule.builder()

"""anatune inside TVM's MetaSchedule: the real one proposes, builds, runs, records and applies."""

import logging
import sys
import types

import numpy as np
import pytest

import anatune
from anatune.adapters import metaschedule
from anatune.codegen.compat import target_of
from anatune.codegen.tvm.kernel import read_annotated_schedule
from anatune.errors import MissingDependencyError, RecordError, SpaceError, UnknownNameError, WorkloadError

tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

from tests.wording import check_texts, refuses  # noqa: E402

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


@pytest.mark.slow
def test_a_run_proposes_learns_records_goes_on_and_is_applied(meta_schedule, tmp_path):
    database = tune(meta_schedule, product(), tmp_path, 3, strategy=metaschedule.strategy(HOST, batch=2))
    records = database.get_all_tuning_records()
    assert len(records) == 3
    assert len({read_annotated_schedule(record.trace).key for record in records}) == 3
    assert all(0 < float(seconds) < 1 for record in records for seconds in record.run_secs)
    check(meta_schedule.tir_integration.compile_tir(database, product(), TARGET).mod)
    again = tune(
        meta_schedule, product(), tmp_path, 2
    ).get_all_tuning_records()  # the same work_dir: nothing is tried twice
    assert len({read_annotated_schedule(record.trace).key for record in again}) == 5

    with TARGET, metaschedule.open_database(tmp_path) as database:
        check(database.query_schedule(product(), TARGET, "main").mod)
        applied = tvm.relax.transform.MetaScheduleApplyDatabase()(product())
    assert "anatune.schedule" in str(applied)
    path = tmp_path / "database_tuning_record.json"
    path.write_text(path.read_text().replace('\\"operator\\"', '\\"operetta\\"'))
    lines = []
    metaschedule.open_database(tmp_path, lines.append)
    assert len(lines) == 1
    check_texts(lines)
    path.write_text("[1, 2")
    with refuses(RecordError):
        metaschedule.open_database(tmp_path)
    with refuses(RecordError):
        metaschedule.open_database(tmp_path / "nowhere")


def test_a_plan_needs_no_measurement(meta_schedule, tmp_path):
    database = metaschedule.plan_model(product(), TARGET, tmp_path, HOST)
    (record,) = database.get_all_tuning_records()
    first = anatune.matmul(M, N, K)
    assert read_annotated_schedule(record.trace).workload.reads == first.reads
    with TARGET, metaschedule.open_database(tmp_path):
        check(tvm.relax.transform.MetaScheduleApplyDatabase()(product()))


@pytest.mark.slow
def test_other_functions_are_left_to_metaschedule(meta_schedule, tmp_path, caplog):
    lines = []
    assert not metaschedule.plan_model(
        row_sums(), TARGET, tmp_path / "plan", HOST, lines.append
    ).get_all_tuning_records()
    assert len(lines) == 1
    assert "result += left * right" in lines[0]
    metaschedule.plan_model(row_sums(), TARGET, tmp_path / "plan", HOST)
    check_texts(record.getMessage() for record in caplog.records)
    database = tune(meta_schedule, row_sums(), tmp_path, 2)
    (*_, record) = database.get_all_tuning_records()
    assert read_annotated_schedule(record.trace) is None


def test_a_space_alone_is_a_plan_for_replay(meta_schedule):
    context = meta_schedule.TuneContext(
        product(), target=TARGET, space_generator=metaschedule.space(HOST, designs=3), search_strategy="replay-trace"
    )
    designs = [read_annotated_schedule(design.trace) for design in context.generate_design_space()]
    assert len({design.key for design in designs}) == 3
    assert designs[0].workload.reads == anatune.matmul(M, N, K).reads


def relax_product():
    """Return a Relax module that was not legalised: a matrix product and a ReLU."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (M, K)), ("w", (K, N))))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w)))))
        builder.emit_func_output(y)
    return builder.get()


def test_a_plan_wants_a_legalised_module(meta_schedule, tmp_path):
    with refuses(WorkloadError) as caught:
        metaschedule.plan_model(relax_product(), TARGET, tmp_path / "none", HOST)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()
    lines = []
    partly = tvm.relax.transform.LegalizeOps(skip_ops=["relax.nn.relu"])(relax_product())
    assert len(metaschedule.plan_model(partly, TARGET, tmp_path / "partly", HOST, lines.append)) == 1
    (line,) = lines
    assert "relax.nn.relu is not legalised" in line
    assert len(metaschedule.plan_model(product()["main"], TARGET, tmp_path / "one", HOST)) == 1


CUDA = {"kind": "cuda", "arch": "sm_86", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}


@pytest.mark.parametrize("name", ["plan_model", "space", "strategy", "tune_tir"])
@pytest.mark.parametrize("target", [CUDA | {"thread_warp_size": 32}, "vulkan"], ids=["cuda", "vulkan"])
def test_a_target_that_is_no_cpu_is_one_line(meta_schedule, tmp_path, name, target):
    logging.getLogger("tvm.s_tir.meta_schedule").handlers.clear()  # those that pytest closed
    target = tvm.target.Target(target)
    call = {
        "plan_model": lambda: metaschedule.plan_model(product(), target, tmp_path / "plan", HOST),
        "space": lambda: meta_schedule.TuneContext(product(), target=target, space_generator=metaschedule.space(HOST)),
        "strategy": lambda: meta_schedule.TuneContext(
            product(), target=target, search_strategy=metaschedule.strategy(HOST)
        ),
        "tune_tir": lambda: meta_schedule.tir_integration.tune_tir(
            product(), target, str(tmp_path), 2, **metaschedule.tuning_options(HOST)
        ),
    }[name]
    with refuses(SpaceError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: metaschedule.strategy("mi50"), SpaceError),
        (lambda: metaschedule.strategy("nonesuch"), UnknownNameError),
        (lambda: metaschedule.strategy(HOST, name="magic"), UnknownNameError),
        (lambda: metaschedule.strategy(HOST, batch=0), SpaceError),
        (lambda: metaschedule.space(HOST, designs=0), SpaceError),
        (lambda: metaschedule.tuning_options("mi50"), SpaceError),
        (lambda: metaschedule.plan_model(product(), TARGET, "nowhere", "rtx3090"), SpaceError),
        (lambda: metaschedule.plan_model(product(), "nonesuch", "nowhere", HOST), SpaceError),
        (lambda: metaschedule.plan_model("x", TARGET, "nowhere", HOST), WorkloadError),
        (lambda: metaschedule.builder(0), SpaceError),
        (lambda: metaschedule.builder(max_workers=0), SpaceError),
    ],
)
def test_bad_input_is_one_line(call, error):
    with refuses(error) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_target_without_the_vectors_is_one_line(tmp_path):
    plain = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    if HOST.compute.isa not in ("avx512", "avx2"):
        pytest.skip("every target of this machine has its vectors")
    with refuses(SpaceError):
        metaschedule.plan_model(product(), plain, tmp_path, HOST)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm.s_tir.meta_schedule", None)
    with refuses(MissingDependencyError):
        metaschedule.builder()

"""MetaSchedule databases of anatune's across processes: TVM knows none of their kernels when another one opens them."""

import json
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("tvm", reason="pip install '.[tvm]'")

pytestmark = pytest.mark.slow

COMMON = """
import json, logging, sys, types
for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):  # importing them takes 25 s
    sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = types.ModuleType(name)
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule
from anatune.adapters import metaschedule
from anatune.adapters.relax import target as target_of

def model():
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (24, 40)), ("w", (40, 32))))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w)))))
        builder.emit_func_output(y)
    passes = ["LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR"]
    return tvm.ir.transform.Sequential([getattr(relax.transform, name)() for name in passes])(builder.get())

target = target_of("host", threads=1)
left, right = (np.random.default_rng(0).random(shape, "float32") - 0.5 for shape in ((24, 40), (40, 32)))

def check(module, target=target):
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(left), tvm.runtime.tensor(right)).numpy()
    np.testing.assert_allclose(found, np.maximum(left @ right, 0), rtol=1e-4, atol=1e-5)

def applied(database, target=target):
    "Return whether a kernel takes the place of the loops; results are right in any case."
    with target, database:
        module = relax.transform.MetaScheduleApplyDatabase()(model())
    check(module, target)
    assert "anatune.schedule" in module.script()
    return "pragma_import_llvm" in module.script()

def tune(trials):
    options = metaschedule.tuning_options(hw="host")
    return meta_schedule.relax_integration.tune_relax(model(), {}, target, "tuned", trials, **options)

def message(call, error):
    try:
        call()
    except error as caught:
        return str(caught)
    raise AssertionError("no error")
"""

FIRST = """
if __name__ == "__main__":
    assert len(metaschedule.plan_model(model(), target, "planned")) == 1
    assert len(tune(3)) == 3
"""

AGAIN = """
if __name__ == "__main__":
    database = metaschedule.plan_model(model(), target, "planned")
    assert len(database) == 1
    assert applied(database)
    database = tune(2)
    names = {str(item.attrs[0]) for record in database.get_all_tuning_records() for item in record.trace.insts
             if str(item.kind.name) == "Tensorize"}
    assert len(database) == 5
    assert len(names) == 10  # nothing is tried twice
    assert applied(database)
"""

OPEN = """
from anatune.errors import RecordError

unknown = message(lambda: meta_schedule.database.JSONDatabase(work_dir="tuned"), Exception)
assert "open the database with anatune.adapters.metaschedule.open_database" in unknown, unknown
with target:
    assert applied(metaschedule.open_database("tuned"))
    module = relax.transform.MetaScheduleApplyDatabase("tuned")(model())
    assert "pragma_import_llvm" in module.script()
assert len(meta_schedule.database.JSONDatabase(work_dir="tuned")) == 3
told = []
plain = tvm.target.Target({"kind": "llvm", "num-cores": 1})
with plain:
    database = metaschedule.open_database("tuned", told.append)
assert applied(database, plain) == (not told)
gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_86", "max_threads_per_block": 1024,
                         "max_shared_memory_per_block": 49152, "thread_warp_size": 32})
with gpu:
    metaschedule.open_database("tuned", told.append)
assert "cuda, expected llvm" in told[-1], told
with target:
    assert applied(metaschedule.open_database("tuned"))
print(json.dumps(told))
"""

OLDER = """
told = []
assert not applied(metaschedule.open_database("tuned", told.append))  # its own loops, its result
(line,) = told
assert "tune it again" in line, line
if __name__ == "__main__":
    assert len(tune(2)) == 5
"""

DAMAGED = """
from anatune.errors import RecordError

for call in (
    lambda: metaschedule.open_database("tuned"),
    lambda: tune(1),
    lambda: meta_schedule.database.JSONDatabase(work_dir="tuned"),
):
    text = message(call, RecordError)
    assert "database_tuning_record.json: line 3 cannot be replayed" in text and "repair_database" in text, text
    assert "\\n" not in text
assert metaschedule.repair_database("tuned") == 2
assert metaschedule.repair_database("tuned") == 0
database = metaschedule.open_database("tuned")
assert len(database) == 2
assert applied(database)
"""


@pytest.fixture
def run(tmp_path):
    def run_program(text):
        path = tmp_path / "program.py"  # a file: MetaSchedule's workers import it
        path.write_text(COMMON + text)
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    return run_program


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where the first process leaves its databases: made once, copied by every test."""
    return tmp_path_factory.mktemp("first")


@pytest.fixture
def databases(run, folders, tmp_path):
    """Put the databases of a first process into the folder of the test."""
    if not any(folders.iterdir()):
        run(FIRST)
        for name in ("planned", "tuned"):
            shutil.copytree(tmp_path / name, folders / name)
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    return tmp_path


def recorded(databases):
    """Return the lines of the tuned database."""
    return (databases / "tuned" / "database_tuning_record.json").read_text().splitlines()


def test_a_second_process_plans_and_tunes_on(databases, run):
    before = recorded(databases)
    run(AGAIN)
    after = recorded(databases)
    assert (len(before), len(after)) == (3, 5)
    assert after[:3] == before


def test_a_second_process_opens_and_applies(databases, run):
    told = json.loads(run(OPEN).stdout.splitlines()[-1])
    assert all("its function keeps" in line for line in told)


def test_a_kernel_that_cannot_be_made_any_more_leaves_the_others_usable(databases, run):
    path = databases / "tuned" / "database_tuning_record.json"
    path.write_text(path.read_text().replace('\\"operator\\"', '\\"operetta\\"'))
    before = recorded(databases)
    run(OLDER)
    after = recorded(databases)
    assert (len(before), len(after)) == (3, 5)
    assert after[:3] == before


def test_a_line_that_was_cut_off(databases, run):
    folder = databases / "tuned"
    records, workloads = folder / "database_tuning_record.json", folder / "database_workload.json"
    text = records.read_text()
    records.write_text(text[: -len(text.splitlines()[-1]) // 2])
    workloads.write_text(workloads.read_text() + '["123", "xG')
    run(DAMAGED)
    assert (folder / "database_tuning_record.json.damaged").read_text().count("\n") == 1
    assert (folder / "database_workload.json.damaged").read_text() == '["123", "xG\n'

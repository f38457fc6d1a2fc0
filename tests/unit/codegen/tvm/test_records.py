"""Tuning records that TVM itself reads, queries, replays, compiles and runs."""

import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.errors import RecordError
from anatune.records.store import RecordStore
from tests.unit.records.making import failed, ok, session_of, trial

tvm = pytest.importorskip("tvm")

from anatune.codegen.cpu.lower import lower  # noqa: E402
from anatune.codegen.tvm import records as tvm_records  # noqa: E402 - behind the skip
from tests.wording import refuses  # noqa: E402


@pytest.fixture
def records(tmp_path):
    hardware = anatune.hardware("host")
    workload = anatune.matmul(32, 48, 16)
    schedules = anatune.space(workload, hardware).sample(3, seed=1)
    with RecordStore(tmp_path / "a.sqlite") as store:
        session = session_of(store, workload, hardware)
        for number, made in enumerate(schedules):
            store.append(session, trial(number, ok(times=(1e-6, 3e-6)), schedule=made))
        store.append(session, trial(3, failed(), schedule=schedules[0]))
        return store.trials()


def test_tvm_reads_and_replays_them(records, tmp_path):
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    folder = tmp_path / "database"
    for _ in range(2):  # a second export replaces the first
        assert tvm_records.write_tvm_database(records, folder) == 3
    assert sorted(path.name for path in folder.iterdir()) == sorted(tvm_records.TVM_FILES)
    assert len((folder / "database_tuning_record.json").read_text().splitlines()) == 3
    workloads, tuned = (str(folder / name) for name in tvm_records.TVM_FILES)
    database = JSONDatabase(path_workload=workloads, path_tuning_record=tuned)
    assert len(database) == 3
    for record in records[:3]:
        schedule = record.trial.schedule
        lowered = lower(schedule, prepacked=False)
        module = tvm.IRModule({"main": lowered.module["main"]})
        assert database.has_workload(module)
        found = database.query_schedule(module, lowered.target, "main")
        block = found.get(found.get_sblock("root"))
        assert Schedule.from_json(str(block.annotations[tvm_records.ANNOTATION])) == schedule
    kernel = tvm.compile(found.mod, target=lowered.target)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((32, 16), (16, 48)))
    out = tvm.runtime.empty((32, 48))
    kernel["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_lowered_is_named(records, tmp_path):
    import msgspec

    schedule = msgspec.structs.replace(records[0].trial.schedule, hardware=anatune.hardware("rtx3090"))
    broken = msgspec.structs.replace(records[0], trial=msgspec.structs.replace(records[0].trial, schedule=schedule))
    told = []
    assert tvm_records.write_tvm_database([broken, records[1]], tmp_path / "x", told.append) == 1
    assert len(told) == 1
    assert "record 1 is left out" in told[0]


def test_nothing_to_write(tmp_path):
    assert tvm_records.write_tvm_database([], tmp_path / "x") == 0
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == sorted(tvm_records.TVM_FILES)
    (tmp_path / "file").touch()
    with refuses(RecordError):
        tvm_records.write_tvm_database([], tmp_path / "file")

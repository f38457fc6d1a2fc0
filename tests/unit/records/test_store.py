"""Of the store what its contract (tests/contracts) does not say."""

import msgspec
from sqlalchemy import text as sql

from anatune.records.store import RecordStore
from tests.unit.records.making import CPU, MATMUL, session_of, trial


def test_bulky_parts_are_stored_once(tmp_path):
    with RecordStore(tmp_path / "a.sqlite") as store:
        session = session_of(store)
        for number in range(50):
            store.append(session, trial(number))
        kinds = store._database.read(
            sql("SELECT kind, count(*), max(length(json)) FROM parts GROUP BY kind ORDER BY kind")
        )
        assert [(kind, number) for kind, number, _ in kinds] == [("environment", 1), ("hardware", 1), ("workload", 1)]
        bulk = sum(length for _, _, length in kinds)
        (longest,) = store._database.read(sql("SELECT max(length(schedule) + length(result)) FROM trials"))[0]
        assert longest < bulk / 2
    assert repr(store) == f"RecordStore('{tmp_path}/a.sqlite')"


def test_objects_are_shared_between_records(tmp_path):
    with RecordStore(tmp_path / "a.sqlite") as store:
        session = session_of(store)
        store.append(session, trial(0))
        store.append(session, trial(1))
    with RecordStore(tmp_path / "a.sqlite") as store:
        first, second = store.trials()
        assert first.trial.schedule.workload is second.trial.schedule.workload is second.session.workload
        assert first.session is second.session


def test_hardware_is_its_name_and_its_numbers(tmp_path):
    """A calibrated spec is other hardware of the same name."""
    faster = msgspec.structs.replace(CPU, dram=msgspec.structs.replace(CPU.dram, latency_s=CPU.dram.latency_s * 0.9))
    with RecordStore(tmp_path / "a.sqlite") as store:
        store.append(session_of(store), trial(0))
        store.append(session_of(store, hardware=faster), trial(1))
        assert [record.trial.number for record in store.trials(hardware=faster)] == [1]
        assert len(store.trials(hardware=CPU.name)) == 2
        assert len(store.bests(MATMUL)) == 2
        assert store.trials(hardware=faster)[0].trial.schedule.hardware == CPU  # where the choice was made

"""Imported trials in a record file: each once, and under one name."""

import json

import anatune
from anatune.adapters.logs import read_foreign
from anatune.adapters.logs.recording import record_foreign
from anatune.errors import RecordError
from anatune.records.store import RecordStore
from tests.unit.adapters.logs.making import autotvm, kernel_tuner, target_of, written
from tests.wording import refuses

GPU = anatune.hardware("rtx3090")


def lines(count, target="cuda -model=1080ti"):
    return [target_of(autotvm(times=(1e-5 + 1e-8 * number,)), target) for number in range(count)]


def test_a_log_is_recorded_once_and_goes_on_where_it_grew(tmp_path):
    failed = target_of(autotvm(error=4, times=(1e10,)), "cuda -model=tx2")
    path = tmp_path / "log.json"
    with RecordStore(tmp_path / "t.sqlite") as store:
        written(path, *lines(4), failed, failed)
        first = record_foreign(store, read_foreign(path), path)
        assert [(one.hardware.name, one.rows, one.failed, one.known) for one in first] == [
            ("gtx1080ti", 4, 0, 0),
            ("tx2", 2, 2, 0),
        ]
        again = record_foreign(store, read_foreign(path), path)
        assert [(one.rows, one.known) for one in again] == [(0, 4), (0, 2)]
        written(path, *lines(6), failed, failed, failed)
        grown = record_foreign(store, read_foreign(path), path)
        assert [(one.rows, one.known) for one in grown] == [(2, 4), (1, 2)]
        assert len(store.trials()) == 9
        assert len(store.sessions()) == 4
        assert {one.settings["imported"] for one in store.sessions()} == {str(path)}


def test_one_log_under_two_names_is_refused_whole(tmp_path):
    entries = {str(n): kernel_tuner(time=0.05 + n / 1000) for n in range(30)}
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({"cache": entries}))
    with RecordStore(tmp_path / "t.sqlite") as store:
        record_foreign(store, read_foreign(path, GPU, anatune.matmul(64, 64, 64)), path)
        with refuses(RecordError):
            record_foreign(store, read_foreign(path, GPU, anatune.matmul(128, 128, 128)), path)
        with refuses(RecordError):
            record_foreign(store, read_foreign(path, anatune.hardware("rtx3080"), anatune.matmul(64, 64, 64)), path)
        assert len(store.trials()) == 30

"""Caches and T4 files of Kernel Tuner: what is written is read again, damaged files are one line."""

import json

import pytest

from anatune.adapters.kernel_tuner_files import read_results, write_cache
from anatune.core.trial import Measurement, Outcome
from anatune.errors import RecordError
from tests.wording import refuses

ENTRIES = [
    ({"bx": 16, "by": 4}, Measurement(Outcome.OK, times_s=(1e-3, 3e-3, 2e-3))),
    ({"bx": 32, "by": 4}, Measurement(Outcome.BUILD_ERROR, "too much")),
    ({"bx": 64, "by": 2}, Measurement(Outcome.RUN_TIMEOUT, "slow")),
    ({"bx": 64, "by": 4}, Measurement(Outcome.INVALID, "no")),
]


def write(path, entries=ENTRIES, **changes):
    write_cache(path, entries, **{"kernel_name": "mm", "problem_size": (64, 64), "device_name": "gpu", **changes})


def test_a_cache_is_read_as_it_was_written(tmp_path):
    write(tmp_path / "c.json")
    log = read_results(tmp_path / "c.json")
    assert log.header["tune_params"] == {"bx": [16, 32, 64], "by": [2, 4]}
    assert [config for config, _ in log.entries] == [config for config, _ in ENTRIES]
    assert [m.time_s for _, m in log.entries] == [pytest.approx(2e-3), None, None, None]
    outcomes = [m.outcome for _, m in log.entries]
    assert outcomes == [Outcome.OK, Outcome.BUILD_ERROR, Outcome.RUN_ERROR, Outcome.INVALID]


def test_a_cache_is_one_json_object(tmp_path):
    write(tmp_path / "c.json")
    cache = json.loads((tmp_path / "c.json").read_text())
    assert cache["cache"]["16,4"]["time"] == pytest.approx(2.0)  # ms
    assert cache["tune_params_keys"] == ["bx", "by"]


@pytest.mark.parametrize("cut", ["}\n}", "\n}"])
def test_a_cache_that_was_never_closed_is_read(tmp_path, cut):
    write(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    (tmp_path / "c.json").write_text(text.removesuffix("}\n}") + ("," if cut == "}\n}" else ""))
    assert len(read_results(tmp_path / "c.json").entries) == len(ENTRIES)


def test_t4_results_are_read(tmp_path):
    time = {"name": "time", "value": 2.0, "unit": "ms"}
    entry = {"configuration": {"bx": 16}, "invalidity": "correct", "measurements": [time]}
    failed = {"configuration": {"bx": 32}, "invalidity": "compile", "measurements": []}
    (tmp_path / "t4.json").write_text(json.dumps({"results": [entry, failed], "schema_version": "1.0.0"}))
    log = read_results(tmp_path / "t4.json")
    assert [(c, m.outcome, m.time_s) for c, m in log.entries] == [
        ({"bx": 16}, Outcome.OK, 2e-3),
        ({"bx": 32}, Outcome.BUILD_ERROR, None),
    ]


@pytest.mark.parametrize("text", ["", "nothing", '{"cache": {"1": {}}}', '{"cache": {"1": 2}}', '{"results": [3]}'])
def test_damaged_files_are_one_line(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(RecordError) as error:
        read_results(tmp_path / "c.json")
    assert "\n" not in str(error.value)


def test_a_log_of_another_tuner_is_refused(tmp_path):
    (tmp_path / "c.json").write_text('{"i": [[]], "r": []}')
    with refuses(RecordError):
        read_results(tmp_path / "c.json")


def test_what_cannot_be_a_cache_is_refused(tmp_path):
    with refuses(RecordError):
        write(tmp_path / "c.json", [])
    with refuses(RecordError):
        write(tmp_path / "c.json", [ENTRIES[0], ENTRIES[0]])
    with refuses(RecordError):
        write(tmp_path / "c.json", [ENTRIES[0], ({"by": 4, "bx": 1}, ENTRIES[0][1])])
    with refuses(RecordError):
        write(tmp_path / "no" / "c.json")

"""JSON lines both ways, CSV, flat rows."""

import csv
import io
import json

import msgspec
import pytest

from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import RecordError
from anatune.records.export import CSV_COLUMNS, csv_lines, flat_row, import_json_lines, json_lines
from anatune.records.store import RecordStore
from tests.unit.records.making import CONV, failed, ok, schedule, session_of, trial
from tests.wording import refuses


@pytest.fixture
def store(tmp_path):
    """Return a store with two sessions of trials that take turns, and a session without any."""
    with RecordStore(tmp_path / "one.sqlite") as made:
        first, second = session_of(made, note='quoted "text", é'), session_of(made, workload=CONV, threads=2)
        session_of(made, strategy="random")
        for number in range(4):
            made.append(first, trial(number, ok(references=(1e-3, 1.1e-3, 0.9e-3)) if number else failed()))
            measured = ok(times=(1 / 3, 2e-7 * number)) if number else failed(Outcome.WRONG_RESULT, 'a "b",\nc')
            made.append(second, trial(number, measured, schedule=schedule(number, CONV), threads=2))
        yield made


def contents(store):
    """Return all that a store holds, without the ids of its own."""
    return store.sessions(), [msgspec.structs.replace(record, id=0) for record in store.trials()]


def test_json_lines_lose_nothing(store, tmp_path):
    file = tmp_path / "out.jsonl"
    file.write_text("".join(json_lines(store.iterate(), store.sessions())))
    with RecordStore(tmp_path / "two.sqlite") as other:
        assert import_json_lines(other, file) == (3, 8)
        assert contents(other) == contents(store)
        assert import_json_lines(other, file) == (0, 0)
        assert import_json_lines(other, file.read_text().splitlines()) == (0, 0)
        assert "".join(json_lines(other.iterate(), other.sessions())) == file.read_text()
    assert import_json_lines(store, file) == (0, 0)


def test_json_lines_stand_alone(store):
    lines = [json.loads(line) for line in json_lines(store.iterate())]
    assert [line["kind"] for line in lines] == ["session", "trial", "session", *["trial"] * 7]
    assert all(line["format"] == 1 for line in lines)
    text = json.dumps(lines[3]["trial"]["schedule"]["workload"])
    assert Workload.from_json(text) == CONV


def test_files_are_joined_and_cut(store, tmp_path):
    lines = list(json_lines(store.iterate()))
    with RecordStore(tmp_path / "two.sqlite") as other:
        assert import_json_lines(other, lines[:2]) == (1, 1)
        assert import_json_lines(other, ["\n", *lines, *lines]) == (1, 7)
        assert import_json_lines(other, lines[5:6]) == (0, 0)  # its session is in the store


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda lines: [*lines, "{"], ["out.jsonl:11", "export"]),
        (lambda lines: [*lines[:4], lines[4][:100]], ["out.jsonl:5"]),
        (lambda lines: [lines[0], lines[1].replace('"format":1', '"format":2')], ["out.jsonl:2", "update anatune"]),
        (lambda lines: lines[1:], ["out.jsonl:1", "which no line before it describes"]),
        (lambda lines: [lines[0], lines[1].replace('"outcome":"build_error"', '"outcome":"odd"')], [":2", "odd"]),
        (lambda lines: ["3\n"], ["out.jsonl:1"]),
        (lambda lines: [lines[0], lines[0].replace('"threads":1', '"threads":3')], ["other contents"]),
    ],
)
def test_damaged_lines_import_nothing(store, tmp_path, change, parts):
    file = tmp_path / "out.jsonl"
    file.write_text("".join(change(list(json_lines(store.iterate())))))
    with RecordStore(tmp_path / "two.sqlite") as other:
        with pytest.raises(RecordError) as caught:
            import_json_lines(other, file)
        assert contents(other) == ([], [])
    for part in parts:
        assert part in str(caught.value)


def test_files_that_cannot_be_imported(store, tmp_path):
    with refuses(RecordError):
        import_json_lines(store, tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\n")
    with refuses(RecordError):
        import_json_lines(store, tmp_path / "binary")


def test_csv(store):
    rows = list(csv.DictReader(io.StringIO("".join(csv_lines(store.iterate())), newline="")))
    assert len(rows) == 8
    assert tuple(rows[0]) == CSV_COLUMNS
    assert rows[0]["outcome"] == "build_error"
    assert rows[0]["time_s"] == rows[0]["gflop_per_s"] == ""
    assert rows[1]["message"] == 'a "b", c'
    assert rows[1]["workload"] == "conv2d 1x8x14x14 16x8x3x3 --padding 1"
    assert rows[2]["num_samples"] == "3"
    assert float(rows[2]["relative"]) == pytest.approx(2e-3 / 1e-3)
    assert float(rows[2]["gflop_per_s"]) == pytest.approx(2 * 64 * 48 * 32 / 2e-3 / 1e9)
    assert rows[2]["tiles"] == "i=1x1x1x64x1 j=1x1x1x48x1 k=1x1x1x32x1"
    assert rows[2]["options"] == "simd_axis=j pair.i=1,8,1,9 order.outer=j,i packed=B parallel=no"


def test_flat_row_of_a_workload_that_no_constructor_made(store):
    record = store.trials()[2]
    made = msgspec.structs.replace(record.trial.schedule.workload, attributes=())
    changed = msgspec.structs.replace(record, trial=msgspec.structs.replace(record.trial, schedule=schedule(1, made)))
    assert flat_row(changed)["workload"] == made.describe()

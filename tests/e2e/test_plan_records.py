"""``anatune plan --records``: the best that was measured, beside the plan."""

import json

import msgspec
import pytest

import anatune as package
from anatune.core.trial import Trial
from anatune.records.store import RecordStore
from tests.unit.records.making import ok, session_of

WORDS = ("--hw", "xeon_8124m", "matmul", "64x48x32", "--threads", "1")
CPU = package.hardware("xeon_8124m")
WORKLOAD = package.matmul(64, 48, 32)


@pytest.fixture
def records(tmp_path):
    """Return a record file with two schedules of the space, the second one faster."""
    first, second = package.plan(WORKLOAD, CPU, 2, threads=1, correction="none").schedules
    with RecordStore(tmp_path / "tuning.sqlite") as store:
        session = session_of(store, workload=WORKLOAD)
        store.append(session, Trial(first, ok((2e-3,))))
        store.append(session, Trial(second, ok((1e-3,), worker="box2"), 1))
    return tmp_path / "tuning.sqlite"


def test_beside_the_plan(anatune, records):
    done = anatune("plan", *WORDS, "--records", records)
    text = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert "measured: 1.000 ms (predicted " in text
    assert "ago by box2, session " in text
    tree = json.loads(anatune("plan", *WORDS, "--records", records, "--json").stdout)
    assert (tree["measured"]["time_s"], tree["measured"]["worker"]) == (1e-3, "box2")
    assert tree["measured"]["predicted_s"] == pytest.approx(tree["schedules"][1]["prediction"]["time_s"], rel=0.05)
    assert package.Schedule.from_json(json.dumps(tree["measured"]["schedule"])).workload == WORKLOAD
    plain = anatune("plan", *WORDS, "--json")
    assert "measured" not in json.loads(plain.stdout)


def test_nothing_of_it(anatune, records):
    words = [*WORDS[:-2], "--records", records]  # all cores
    assert "measured: " in " ".join(anatune("plan", *words).stdout.split())
    assert "measured" not in json.loads(anatune("plan", *words, "--json").stdout)
    done = anatune("plan", *WORDS, "--records", records.with_name("none.sqlite"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "no such file" in done.stderr
    done = anatune("plan", "--hw", "xeon_8124m", "matmul", "1..64x48x32", "--kernels", "2", "--records", records)
    assert done.returncode == 2


def test_in_python(records):
    answer = package.plan(WORKLOAD, CPU, 2, threads=1, records=records)
    assert answer.measured.time_s == 1e-3
    assert answer.measured.records == str(records)
    assert answer.measured.schedule.hardware == CPU.with_threads(1)
    assert "2 hours ago by box2" in msgspec.structs.replace(
        answer.measured, created_utc="2026-11-22T20:00:00.000000Z"
    ).describe("2026-11-22T22:59:00.000000Z")
    assert answer.measured.describe().startswith("measured: 1.000 ms (predicted ")
    assert package.plan(WORKLOAD, CPU, 1, records=records).measured is None

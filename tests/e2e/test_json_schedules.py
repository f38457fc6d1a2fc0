"""Every schedule that a command prints can be read again: alone, in what surrounds it, and by `anatune export`."""

import gzip
import json
from pathlib import Path

import pytest

import anatune as package
from tests.unit.tuning.fakes import session
from tests.wording import refuses

RECORDS = Path(__file__).with_name("records.sqlite.gz")
"""Two sessions of matmul 32x32x16 on an h200 that was not there: 13 trials of made-up times, pipelined and cuda."""
MATMUL = ["matmul", "32x32x16"]


def found_in(tree):
    """Yield the objects that have tiles, at any depth, but for the schedules inside of them."""
    if isinstance(tree, dict) and "tiles" in tree:
        yield tree
    elif isinstance(tree, dict | list):
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from found_in(inner)


def check(text, template, count):
    entries = list(found_in(json.loads(text)))
    assert len(entries) == count
    read = [package.Schedule.from_json(json.dumps(entry)) for entry in entries]
    for entry, schedule in zip(entries, read, strict=True):
        assert type(schedule) is package.Schedule
        assert schedule.template == template
        assert {axis: list(factors) for axis, factors in schedule.tiles.items()} == entry["tiles"]
        assert package.Schedule.from_json(schedule.to_json()) == schedule
        assert package.predict(schedule.workload, schedule.hardware, [schedule])["legal"].all()
    return read


@pytest.mark.parametrize(
    ("hw", "template"), [("rtx3090", "cuda"), ("rtx3090", "pipelined"), ("a100", "triton"), ("epyc_7763", "cpu")]
)
def test_plans_and_subsets(anatune, hw, template):
    options = ["--hw", hw, *MATMUL, "--template", template]
    plan = anatune("plan", *options, "--json", "--top-k", 3).stdout
    expected = package.plan(package.matmul(32, 32, 16), hw, 3, template=template, distinct=True)
    assert check(plan, template, 3) == expected.schedules
    assert package.Schedule.from_json(plan) == package.Schedule.from_json(expected.to_json()) == expected.best
    pruned = anatune("prune", *options, "--for", "json", "--keep", 4).stdout
    assert check(pruned, template, 4)[0] == package.Schedule.from_json(pruned)


def test_compiled_programs(anatune):
    pytest.importorskip("tvm")
    pytest.importorskip("cuda.bindings.nvrtc")
    out = anatune("plan", "--hw", "rtx3090", *MATMUL, "--json", "--top-k", 2, "--compile", 2).stdout
    check(out, "cuda", 4)


def test_records(anatune, tmp_path):
    records = tmp_path / "tuning.sqlite"
    records.write_bytes(gzip.decompress(RECORDS.read_bytes()))
    read = check(anatune("records", "best", "--records", records, "--json").stdout, "cuda", 1)
    assert package.Schedule.from_json(anatune("records", "best", "--records", records, "--json").stdout) == read[0]
    listed = json.loads(anatune("records", "list", "--records", records, "--json").stdout)
    check(json.dumps([one for one in listed if one["schedule"]["template"] == "pipelined"]), "pipelined", 7)
    lines = anatune("records", "export", "--records", records, "--format", "jsonl").stdout.splitlines()
    trials = [line for line in lines if '"trial"' in line]
    assert package.Schedule.from_json(json.dumps(json.loads(trials[7])["trial"])).template == "cuda"


def test_trials_of_a_session():
    result = session(trials=4).run()
    text = result.to_json()
    assert check(json.dumps(json.loads(text)["trials"]), "cpu", 4) == [trial.schedule for trial in result.trials]
    assert package.Schedule.from_json(text) == result.best


def test_export_takes_what_plan_prints(anatune, tmp_path):
    pytest.importorskip("tvm")
    pytest.importorskip("cuda.bindings.nvrtc")
    path = tmp_path / "plan.json"
    path.write_text(anatune("plan", "--hw", "rtx3090", *MATMUL, "--json").stdout)
    done = anatune("export", path, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.cubin"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schedules": []}', "no schedule is listed"),
        ('{"best_schedule": null, "trials": []}', "no schedule is listed"),
        ("[]", "no schedule is listed"),
        ('{"schedules": 5}', "Expected `array | null`"),
        ('{"schedules": [{"tiles": {}}]}', "missing required field `workload`"),
        ("5", "Expected `object | array`"),
        ("[" * 10_000, "expected the text of Schedule.to_json"),
    ],
)
def test_other_json_is_an_error_in_one_line(text, message):
    with refuses(package.AnatuneError) as error:
        package.Schedule.from_json(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)

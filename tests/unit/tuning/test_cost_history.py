"""The file of what earlier sessions took: it can go, be damaged, or lie where nobody may write."""

import json
import os

import pytest

from anatune.tuning.cost import SessionCost
from anatune.tuning.cost_history import CostHistory, machine_key
from tests.unit.tuning.fakes import HOST, session
from tests.unit.tuning.test_cost import COST


def history(folder):
    return CostHistory("costs", SessionCost, folder)


def test_the_latest_few_of_each_key(tmp_path):
    kept = history(tmp_path / "cache" / "anatune")
    assert kept.of("a") == []
    for _ in range(12):
        kept.add("a", COST)
    kept.add("b", COST)
    assert (len(kept.of("a")), kept.of("b"), kept.of("c")) == (8, [COST], [])
    for number in range(100):
        kept.add(str(number), COST)
    assert len(json.loads((tmp_path / "cache" / "anatune" / "costs.json").read_text())["costs"]) == 64
    assert kept.of("a") == []
    assert kept.of("99") == [COST]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2, "costs": {}}', b'{"version": 1}', b"\xff\xfe"])
def test_a_damaged_file_is_none(tmp_path, content):
    (tmp_path / "costs.json").write_bytes(content)
    kept = history(tmp_path)
    assert kept.of("a") == []
    kept.add("a", COST)
    assert kept.of("a") == [COST]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_nobody_may_write_to(tmp_path):
    tmp_path.chmod(0o500)
    history(tmp_path / "below").add("a", COST)


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "below").write_text("here")
    kept = history(tmp_path / "below")
    kept.add("a", COST)
    assert kept.of("a") == []
    assert history(None).of("a") == []


def test_the_key_names_the_machine_and_the_device():
    assert HOST.model in machine_key(HOST, "cpu")
    assert machine_key(HOST, "cpu") != machine_key(HOST, "winograd")


def test_sessions_learn_from_sessions(tmp_path):
    now = [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    told = []
    first = session(8, clock=clock, costs=tmp_path, progress=told.append).run()
    assert [one.stage for one in told][:2] == ["plan", "start"]
    assert told[1].estimate == first.estimate
    assert (first.estimate.basis, first.estimate.trials) == ("first", 8)
    assert first.measure_s > 0
    asked = session(8, clock=clock, costs=tmp_path)
    assert asked.estimate().basis == "machine"
    later = session(8, clock=clock, costs=tmp_path, progress=told.append).run()
    assert later.estimate.sessions == 1
    assert abs(later.estimate.seconds - later.measure_s) < abs(first.estimate.seconds - first.measure_s)
    tree = later.to_dict()
    assert (tree["estimate"]["basis"], tree["measure_s"]) == ("machine", later.measure_s)

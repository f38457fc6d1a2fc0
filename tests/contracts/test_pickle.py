"""What users send to other processes arrives there as it was."""

import copy
import pickle
import subprocess
import sys

import pytest

import anatune
from anatune import api
from anatune.adapters.optuna import schedule_space

MATMUL = anatune.matmul(64, 48, 32)
DEVICES = [("rtx3090", None), ("rtx3090", "pipelined"), ("a100", "triton"), ("xeon_8124m", None), ("k80", None)]

# Of each kind of object something that it computes: said here and there.
SAY = """
import pickle, sys
def say(kind, one):
    if kind in ("space", "read"):
        return [s.key for s in one.sample(20, seed=3)] if kind == "space" else say("subset", one)
    if kind == "plan":
        return [one.best.key, one.to_json()]
    if kind in ("subset", "candidates"):
        kept = list(one)
        return [one.num_kept, [s.key for s in kept], str(one.explain(kept[-1]))]
    if kind == "model":
        points = one.space.sample_points(50, 1)
        return [one.times(points)[0].tobytes(), [p.time_s for p in one.predictions(points[:3])]]
    if kind == "optuna":
        return [one.choices, [s.key for s in one.schedules]]
    return one
"""


@pytest.fixture(scope="module")
def objects():
    found = {}
    for hw, template in DEVICES:
        plan = anatune.plan(MATMUL, hw, 6, template=template)
        read = anatune.prune(MATMUL, hw, 4, template=template)
        assert read.explain(next(iter(read))).kept
        found[hw, template] = {
            "spec": plan.hardware,
            "space": anatune.space(MATMUL, hw, template=template),
            "model": api.model(MATMUL, hw, template),
            "schedule": plan.best,
            "prediction": plan.predictions[0],
            "plan": plan,
            "subset": anatune.prune(MATMUL, hw, 4, template=template),
            "read": read,
            "candidates": anatune.prune(MATMUL, hw, 2, candidates=plan.schedules),
            "verdict": read.explain(plan.best),
        }
    found["rtx3090", "optuna"] = {"optuna": schedule_space(MATMUL, "rtx3090", 8)}
    return found


def test_objects_arrive_in_another_process(objects, tmp_path):
    said = {}
    exec(SAY, said)
    told = {key: {kind: said["say"](kind, one) for kind, one in kinds.items()} for key, kinds in objects.items()}
    sent = {key: dict(kinds) for key, kinds in objects.items()}
    (tmp_path / "objects").write_bytes(pickle.dumps(sent))
    code = SAY + (
        "found = pickle.load(open('objects', 'rb'))\n"
        "said = {key: {kind: say(kind, one) for kind, one in kinds.items()} for key, kinds in found.items()}\n"
        "pickle.dump(said, open('said', 'wb'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there = pickle.loads((tmp_path / "said").read_bytes())
    for key, kinds in told.items():
        for kind, here in kinds.items():
            assert there[key][kind] == here, (key, kind)


def test_tables_stay_at_home(objects):
    for kinds in objects.values():
        for kind in ("space", "model"):
            assert kind not in kinds or len(pickle.dumps(kinds[kind])) < 50_000


def test_copies_are_equal(objects):
    for kinds in objects.values():
        for kind in ("spec", "schedule", "prediction", "plan", "verdict"):
            if kind in kinds:
                assert copy.deepcopy(kinds[kind]) == copy.copy(kinds[kind]) == kinds[kind]


@pytest.mark.parametrize("path", ["AnatuneError", "TuningInterrupted"])
def test_errors(path):
    error = getattr(anatune, path)
    made = error("what it says") if path == "AnatuneError" else error(result())
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), str(again)) == (error, str(made))


def result():
    return anatune.TuningResult(MATMUL, anatune.hardware("xeon_8124m"), 1, "random", 0, [], None, None)

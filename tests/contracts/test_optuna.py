"""The search space inside the real Optuna: best predictions first, every trial a schedule."""

import pytest

import anatune
from anatune.adapters.optuna import schedule_space
from anatune.errors import SpaceError, UnknownNameError
from tests.wording import refuses

optuna = pytest.importorskip("optuna", reason="contract tests of the Optuna adapter need the package optuna")
optuna.logging.set_verbosity(optuna.logging.WARNING)

CASES = [
    ((128, 128, 128), "float32", "rtx3090", None),
    ((64, 64, 64), "float32", "rtx3090", "pipelined"),
    ((128, 128, 128), "float16", "a100", "triton"),
    ((256, 256, 256), "float32", "intel_xeon_gold_6130", None),
]


@pytest.mark.parametrize(("extents", "dtype", "device", "template"), CASES)
def test_a_study_begins_with_the_best_predictions(extents, dtype, device, template):
    workload, hardware = anatune.matmul(*extents, dtype=dtype), anatune.hardware(device)
    space = schedule_space(workload, device, keep=24, template=template)
    assert repr(space).startswith("ScheduleSpace(24 schedules of ")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space.enqueue(study, 4)
    space.enqueue(study, 4)  # those are there already
    tried = []

    def objective(trial):
        tried.append(space.suggest(trial))
        return float(anatune.predict(workload, hardware, tried[-1:], correction="none").time_s[0])

    study.optimize(objective, n_trials=12)
    assert tried[:4] == space.schedules[:4]
    best = [space.schedule(study.best_params), space.schedules[0]]
    times = anatune.predict(workload, hardware, best, correction="none").time_s
    assert times[0] <= times[1] < 1.002 * times[0]  # ties are within 0.1 %
    assert len(study.trials) == 12
    for schedule in space.schedules:
        assert space.schedule(space.params(schedule)) == schedule
        params = space.params(schedule)
        optuna.create_trial(params=params, distributions=space.distributions, value=1.0)


def test_combinations_that_break_a_rule_are_pruned(monkeypatch):
    space = schedule_space(anatune.matmul(1024, 1024, 1024), "rtx3090", keep=8)
    wide = {**space.params(space.schedules[0]), "tiles.i": "1x1x1024x1x1", "tiles.j": "1x1x1024x1x1"}
    with refuses(SpaceError):
        space.schedule(wide)
    monkeypatch.setitem(space.choices, "tiles.i", ["1x1x1024x1x1"])
    monkeypatch.setitem(space.choices, "tiles.j", ["1x1x1024x1x1"])
    study = optuna.create_study()
    study.optimize(lambda trial: float(bool(space.suggest(trial))), n_trials=2)
    assert {trial.state for trial in study.trials} == {optuna.trial.TrialState.PRUNED}


def test_bad_input_is_one_line():
    workload = anatune.matmul(64, 64, 64)
    for keep in (0, 0.1, True, 10**6):
        with refuses(SpaceError):
            schedule_space(workload, "rtx3090", keep=keep)
    with pytest.raises(UnknownNameError):
        schedule_space(workload, "rtx9999")
    space = schedule_space(workload, "rtx3090", keep=4)
    with refuses(SpaceError):
        space.schedule({})
    with refuses(SpaceError):
        space.enqueue(optuna.create_study(), 0)

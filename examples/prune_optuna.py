"""Optuna searches schedules that deserve a run: the space is pruned, and its first trials are the best predictions."""

import optuna

import anatune
from anatune.adapters.optuna import schedule_space

workload = anatune.matmul(512, 512, 512)
space = schedule_space(workload, "rtx3090", keep=64)
print({name: len(values) for name, values in space.choices.items()})


def objective(trial: optuna.Trial) -> float:
    """Stand for a measurement of yours: build the kernel of the schedule, run it, return seconds."""
    schedule = space.suggest(trial)  # combinations that break a limit of the device are pruned
    return float(anatune.predict(workload, "rtx3090", [schedule]).time_s[0])


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
space.enqueue(study, 4)
study.optimize(objective, n_trials=12)
print(f"{study.best_value * 1e6:.1f} us: {space.schedule(study.best_params).describe()}")

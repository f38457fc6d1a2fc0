"""Worlds to search in tests: models of small spaces, and what a strategy measures there."""

import math

import numpy as np

import anatune
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial

GPU = model(anatune.matmul(128, 256, 192), anatune.hardware("rtx3090"))
RANKED = GPU.rank(16).points
OTHER = model(anatune.matmul(128, 256, 192), anatune.hardware("v100"))


def seconds(point, made=OTHER):
    """Another device's prediction, up to 15 % off in a way that depends on the point."""
    wrong = 0.15 * math.sin(float((point * np.arange(1, len(point) + 1)).sum()))
    return float(made.times(point[None, :])[0][0]) * math.exp(wrong)


def varied(kind, **settings):
    """Return a strategy's class with other settings."""
    assert all(hasattr(kind, name) for name in settings)
    return type(kind.__name__, (kind,), settings)


def search(strategy, trials, measure=seconds, batch=1, made=GPU):
    """Return the points in the order they were asked, and the best time after each."""
    points, best = [], []
    while len(points) < trials:
        asked = strategy.ask(batch)
        if not asked:
            break
        for schedule in asked:
            point = made.space.point_of(schedule)
            time_s = measure(point)
            if time_s is None:
                measurement = Measurement(Outcome.RUN_ERROR, "it would not")
            else:
                samples = time_s if isinstance(time_s, tuple) else (time_s, 1.001 * time_s, 0.999 * time_s)
                measurement = Measurement(Outcome.OK, times_s=samples)
                best.append(min([samples[0], *best[-1:]]))
            strategy.tell([Trial(schedule, measurement, len(points))])
            points.append(point)
    return points, best

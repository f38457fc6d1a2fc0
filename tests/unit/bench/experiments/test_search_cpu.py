"""Who searches this machine's kernels, and how searches are summed up."""

import math

from bench.experiments import search_cpu


def test_every_strategy_takes_part_as_published_and_from_the_ranking():
    names = [one.name for one in search_cpu.contenders()]
    assert "model" in names
    assert "random" in names
    assert {"dgd, paper", "dgd, model", "droplet, paper", "bayes, model"} <= set(names)
    assert search_cpu.contenders(ablations=True)[0].name == "droplet, paper"


def test_curves_are_summed_up():
    curves = [search_cpu.Curve("w", "c", seed, [math.inf, 2.0, 1.04], 0.01) for seed in range(3)]
    table = search_cpu.summary(curves, 8).splitlines()
    assert "1.040" in table[-1]
    assert table[-1].split()[-3:] == ["3", "100%", "3.3"]

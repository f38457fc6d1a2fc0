"""Who searches this machine's kernels, and how searches are summed up."""

import math

import pytest

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


@pytest.mark.parametrize("given", [["--workload", "nope"], ["--strategy", "nope"]])
def test_what_fits_nothing_is_refused(tmp_path, monkeypatch, given):
    monkeypatch.setattr(search_cpu, "here", lambda folder: None)
    with pytest.raises(SystemExit, match=r"nothing fits .*nope.*, expected some of"):
        search_cpu.main(["--folder", str(tmp_path), *given])

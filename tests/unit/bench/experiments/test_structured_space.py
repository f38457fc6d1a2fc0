"""The bench of the structured space: its pairs, candidates and splits, its quick form, and what it joins."""

import json

import msgspec
import pytest

import anatune
from anatune.templates.cpu.model.model import CpuModel
from bench.cpu.layers import LAYERS
from bench.experiments import structured_space
from bench.experiments.structured_space import (
    Candidate,
    Draw,
    Pair,
    best_around,
    pair_gain,
    pairs_of,
    paper_candidates,
    split,
)

HARDWARE = anatune.hardware("xeon_gold_6130").with_threads(1)


def test_all_pairs_cover_their_segment():
    pairs = list(pairs_of(34, 17))
    assert {(2, 11, 1, 12), (1, 8, 2, 13), (17, 2, 0, 2)} <= set(pairs)
    assert len(set(pairs)) == len(pairs)
    assert all(first * small + second * large == 34 for first, small, second, large in pairs)


def test_a_pair_gains_where_the_sizes_between_are_slow():
    shares = {(rows, 1): 1.0 for rows in range(4, 14)}
    assert pair_gain(17, shares)[0] == 1.0
    slow = shares | {(rows, 1): 0.5 for rows in (4, 5, 6, 8, 9)}
    assert pair_gain(17, slow) == (2.0, (1, 7, 1, 10))
    assert pair_gain(8, {(4, 1): 1.0, (8, 1): 1.0}) == (1.0, (0, 0, 0, 0))


def test_the_papers_candidates():
    known = paper_candidates()
    assert len(set(known)) == len(known) == 2043
    assert (2, 12, 1, 1, 1, 1) in known  # BLIS's
    assert len({(w * h, k, c * r * s) for k, w, h, c, r, s in known}) == 298


def test_a_split_has_all_filters():
    whole, rest = split(LAYERS["Y6"], 96)
    assert (whole.filters, rest.filters, whole.size) == (480, 32, 34)


def test_the_best_around_a_pair_has_it():
    model = CpuModel(anatune.matmul(34, 64, 32), HARDWARE)
    point = best_around(model, {"i.register": 34, "pair.i": 3, "j.register": 32}, count=500)
    schedule = model.space.schedule_of(point)
    assert schedule.options["pair.i"] == (2, 11, 1, 12)
    assert model.check(point[None, :]) == 0


def test_runs_are_joined(tmp_path, capsys):
    out, more, both = (tmp_path / name for name in ("out.json", "more.json", "both.json"))
    structured_space.main(["--quick", "--out", str(out)])
    result = json.loads(out.read_text())
    assert [(gain["device"], gain["by"]) for gain in result["gains"]] == [("xeon_gold_6130", "model")]
    assert [one["layer"] for one in result["splits"]] == ["R11"]
    assert min(result["splits"][0]["whole_draws"]) >= result["splits"][0]["whole_s"] * (1 - 1e-9)
    capsys.readouterr()
    measured = {
        "candidates": [Candidate((2, 12, 1, 1, 1, 1), 0.9, 0.98)],
        "pairs": [Pair("Y6", (1, 8, 2, 13), 0.9, 1.0, 1.0, 1.0, True)],
        "draws": [Draw("Y6", "whole space", 1.0, 1.0, share) for share in (0.1, 0.9, 0.9)],
    }
    more.write_bytes(msgspec.json.encode({"environment": {}, **measured}))
    structured_space.main(["--read", str(out), str(more), "--out", str(both)])
    told = capsys.readouterr().out
    assert json.loads(both.read_text())["splits"] == result["splits"]
    assert "microkernel (2, 12, 1, 1, 1, 1): 90 % of the peak, 98 % of its tile" in told
    assert "Y6, (1, 8, 2, 13): 90 % of the peak, 1.000 times as fast" in told
    assert "Y6, whole space: best of 1, 4, 8, 16, 32, 64 draws: 90, 90, 90, 90, 90, 90 % of the peak" in told


def test_an_unknown_processor_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="no_such"):
        structured_space.main(["--parts", "pairs", "--hw", "no_such", "--out", str(tmp_path / "out.json")])

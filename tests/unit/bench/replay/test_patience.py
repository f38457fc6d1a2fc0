"""What patience saves and loses, on curves written by hand."""

import json
import math

import pytest

from bench.replay import patience
from bench.replay.patience import ended_early, read_curves, summary


def test_a_search_ends_after_so_many_without_a_better_one():
    curve = [2.0, 1.5, 1.5, 1.5, 1.5, 1.2, *[1.2] * 10, 1.0]
    assert ended_early(curve, 3) == (5, 17, 1.5)
    assert ended_early(curve, 4) == (10, 17, pytest.approx(1.2))  # the sixth came just in time
    assert ended_early(curve, 40) == (17, 17, 1.0)
    assert ended_early([1.0, 0.998, 0.998], 2) == (3, 3, 1.0)  # a fifth of a per cent is none


def test_failures_count_and_searches_without_a_time_do_not():
    assert ended_early([math.inf, math.inf, 1.0, 1.0], 3) == (4, 4, 1.0)
    assert ended_early([math.inf] * 5, 3) is None
    assert ended_early([], 3) is None


def test_what_search_wrote_becomes_a_table(tmp_path, capsys):
    path = tmp_path / "search.json"
    runs = [
        {"strategy": "model", "curve": [None, 1.3, 1.1, 1.1, 1.1, 1.0]},
        {"strategy": "random", "curve": [2.0, 1.0]},
    ]
    path.write_text(json.dumps({"runs": runs}))
    (row,) = [one for one in summary(read_curves(path), [2]) if one["strategy"] == "model"]
    assert (row["trials"], row["loss"][0]) == (5, pytest.approx(0.1))
    patience.main([str(path), "--patience", "2", "9", "--json", str(tmp_path / "rows.json")])
    assert "random" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 4

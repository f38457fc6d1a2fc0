"""A correction of the model of tiles is scored on problems, and on devices, that it has not seen."""

import numpy as np
import pytest

pytest.importorskip("pandas", reason="the benches need pandas")
pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

from anatune.core.hardware.files import hardware
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles
from bench.replay.tensorcores import print_corrections
from bench.replay.tensorcores_correction import CASES, correct
from bench.replay.tensorcores_tables import Choices

TILES = Tiles.of([(m, n, k, 4, s, 1, 8) for m in (32, 64, 128) for n in (32, 64) for k in (32, 64) for s in (2, 4)])
SPECS = {"A100": hardware("a100_sxm"), "H100": hardware("h100_sxm")}


def row(device, size):
    """Return a problem whose measured times are the model's, but for a factor of two that goes with block_k."""
    problem = MatmulProblem(size, 1024, 1024)
    time_s = score_tiles(problem, TILES, SPECS[device]).time_s
    return Choices(device, "float16", problem, TILES, time_s * np.where(TILES.block_k == 64, 2.0, 1.0), np.nan)


def test_an_error_that_all_problems_share_is_learned_from_others(capsys):
    rows = [row(device, 256 * count) for device in SPECS for count in range(4, 14)]
    found = correct(rows, SPECS)
    assert tuple(found) == CASES
    plain, problems, devices = ([score.correlation for score in found[case]] for case in CASES)
    assert len(plain) == len(problems) == len(devices) == len(rows)
    assert np.median(problems) > np.median(plain) + 0.02
    assert np.median(devices) > np.median(plain) + 0.02
    print_corrections(found)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[2] for line in shown if line.startswith("| A100 float16")] == list(CASES)


def test_nothing_is_learned_of_what_is_alone():
    alone = [row("A100", 1024)]
    found = correct(alone, SPECS)
    assert [len(found[case]) for case in CASES] == [1, 0, 0]
    twins = [row("A100", 1024), row("A100", 1024)]  # equal sizes are left out together
    assert [len(correct(twins, SPECS)[case]) for case in CASES] == [2, 0, 0]

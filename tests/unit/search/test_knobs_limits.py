"""The limits of published searches on GPUs: what is drawn, what is a neighbour, where there are none."""

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.residual import ResidualModel, ResidualOptions
from anatune.search.knobs import FEWEST_THREADS, MOST_RESULTS, Knobs, is_within_limits, make_knobs, make_limited_knobs
from anatune.templates import make_model
from tests.unit.search.worlds import GPU

KNOBS = make_knobs(GPU)
LIMITED = make_limited_knobs(GPU)
POINTS = KNOBS.draw(400, (0,))


def test_what_the_limits_are():
    columns = GPU.evaluate(POINTS).columns
    good = is_within_limits(GPU, POINTS)
    assert 0.02 < good.mean() < 0.5
    assert (columns["threads_per_block"][good] >= FEWEST_THREADS).all()
    assert (columns["accumulators_per_thread"][good] <= MOST_RESULTS).all()
    assert not columns["spilled_registers"][good].any()
    assert (columns["threads_per_block"][~good] < FEWEST_THREADS).any()


def test_draws():
    drawn = LIMITED.draw(100, (3, 1))
    assert len(drawn) == 100
    assert is_within_limits(GPU, drawn).all()
    assert np.array_equal(drawn, LIMITED.draw(100, (3, 1)))
    assert not np.array_equal(drawn, LIMITED.draw(100, (3, 2)))


def test_neighbours_and_children():
    base = LIMITED.draw(1, (0,))[0]
    near, all_near = LIMITED.neighbours(base, 1), KNOBS.neighbours(base, 1)
    assert np.array_equal(near, all_near[is_within_limits(GPU, all_near)])
    born, legal = LIMITED.from_genes(KNOBS.genes(POINTS))
    assert np.array_equal(born, POINTS)
    assert np.array_equal(legal, is_within_limits(GPU, POINTS))


@pytest.mark.parametrize(
    "made",
    [
        model(anatune.matmul(48, 64, 36), anatune.hardware("xeon_gold_6230r")),
        model(anatune.matmul(2, 3, 4), anatune.hardware("rtx3090")),  # six results fill no warp
        make_model(anatune.matmul(64, 64, 64, dtype="float16"), anatune.hardware("rtx3090"), "triton"),
    ],
    ids=["cpu", "tiny", "tensor cores"],
)
def test_where_there_are_none(made):
    assert type(make_limited_knobs(made)) is Knobs


def test_the_template_with_pipelines_has_them():
    made = make_model(anatune.matmul(128, 64, 48), anatune.hardware("rtx3090"), "pipelined")
    assert is_within_limits(made, make_limited_knobs(made).draw(20, (0,))).all()


def test_a_learned_correction_changes_no_limits():
    pytest.importorskip("lightgbm")
    table = GPU.feature_table(POINTS)
    trees = ResidualModel(ResidualOptions(num_trees=5, num_leaves=7, num_members=1))
    trees.fit(table.values, table.names, np.linspace(-0.5, 0.5, len(POINTS)), np.arange(len(POINTS)) % 2)
    drawn = make_limited_knobs(CorrectedModel(GPU, trees)).draw(20, (0,))
    assert is_within_limits(GPU, drawn).all()

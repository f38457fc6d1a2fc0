"""The learned estimate of registers: trees, features, the saved model and its data."""

import csv
import gzip
import hashlib
import io

import msgspec
import numpy as np
import pytest

import anatune
from anatune import api
from anatune.errors import SpecError
from anatune.resources import data_folder
from anatune.templates.cuda.model import registers as gpu_registers
from anatune.templates.cuda.model.registers import (
    FEATURES,
    RegisterTrees,
    expected_registers,
    register_features,
    register_trees,
)
from tests.naive_gpu import gpu
from tests.wording import refuses

FOLDER = data_folder("models") / "gpu_registers"
STUMPS = RegisterTrees(  # x0 <= 1: 10 else (x1 <= 5: 20 else 30); and a lone leaf of 3
    features=("x0", "x1"),
    roots=(0, 5),
    feature=(0, 0, 1, 0, 0, 0),
    left=(1, 1, 3, 3, 4, 5),
    right=(2, 1, 4, 3, 4, 5),
    threshold=(1.0, 0.0, 5.0, 0.0, 0.0, 0.0),
    value=(0.0, 10.0, 0.0, 20.0, 30.0, 3.0),
)


def walk(trees, row):
    total = 0.0
    for node in trees.roots:
        while trees.left[node] != node:
            below = row[trees.feature[node]] <= trees.threshold[node]
            node = trees.left[node] if below else trees.right[node]
        total += trees.value[node]
    return total


def saved_rows():
    data = gzip.decompress((FOLDER / "data.csv.gz").read_bytes())
    return data, list(csv.DictReader(io.StringIO(data.decode())))


def test_trees_by_hand():
    assert STUMPS.evaluate(np.array([[1.0, 9.0], [2.0, 5.0], [2.0, 5.1]])).tolist() == [13.0, 23.0, 33.0]


def test_saved_trees_follow_their_nodes():
    trees = register_trees()
    assert trees.features == FEATURES
    _, rows = saved_rows()
    table = np.array([[float(row[name]) for name in FEATURES] for row in rows[:40]])
    assert trees.evaluate(table) == pytest.approx([walk(trees, row) for row in table])


def test_card_describes_the_data():
    data, rows = saved_rows()
    card = msgspec.toml.decode((FOLDER / "card.toml").read_bytes())
    assert card["data_sha256"] == hashlib.sha256(data).hexdigest()
    assert card["rows"] == len(rows) >= 500
    assert set(card["archs"]) == {row["sm"] for row in rows} >= {"sm_70", "sm_80", "sm_86", "sm_89", "sm_90"}
    assert set(card["workloads"]) == {row["workload"] for row in rows}


def test_better_than_the_count_on_its_data():
    _, rows = saved_rows()
    table = np.array([[float(row[name]) for name in FEATURES] for row in rows])
    registers = np.array([float(row["registers"]) for row in rows])
    cap = table[:, FEATURES.index("register_cap")]
    counted = np.minimum(cap, np.maximum(32, table[:, 0] + table[:, 1] + 24))
    expected = np.clip(register_trees().evaluate(table), 16, cap)
    assert np.abs(expected - registers).mean() < 0.5 * np.abs(counted - registers).mean()


@pytest.mark.parametrize("workload", [anatune.matmul(64, 48, 32), anatune.max_pool2d(1, 8, 16, 16, 2, 2, stride=2)])
def test_each_prediction_depends_on_its_point_only(workload):
    model = api.model(workload, gpu("rtx3090"))
    points = model.space.sample_points(50, 1)
    columns = model.raw_columns(points)[2]
    table = register_features(model, points, columns)
    assert table.shape == (50, len(FEATURES))
    assert np.isfinite(table).all()
    expected = expected_registers(model, points, columns)
    alone = [expected_registers(model, points[at : at + 1], columns[:, at : at + 1])[0] for at in range(50)]
    assert expected.tolist() == alone
    predictions = model.predictions(points)
    assert [prediction.resources["registers_per_thread"] for prediction in predictions] == expected.tolist()
    caps = gpu("rtx3090").registers.per_thread
    assert ((expected >= 16) & (expected <= caps)).all()


@pytest.mark.parametrize(
    ("workload", "device"),
    [
        (anatune.matmul(64, 48, 32), "k80"),
        (anatune.matmul(64, 48, 32), "mi50"),
        (anatune.elementwise((64, 48)), "rtx3090"),
        (anatune.matmul(64, 48, 32, dtype="float16"), "rtx3090"),
    ],
)
def test_what_the_data_does_not_cover_is_counted(workload, device):
    model = api.model(workload, gpu(device))
    points = model.space.sample_points(5, 1)
    assert expected_registers(model, points, model.raw_columns(points)[2]) is None
    for prediction in model.predictions(points):
        assert prediction.resources["registers_per_thread"] == prediction.resources["counted_registers"]


def test_damaged_model(monkeypatch, tmp_path):
    folder = tmp_path / "gpu_registers"
    folder.mkdir()
    monkeypatch.setattr(gpu_registers, "data_folder", lambda name: tmp_path)
    for content in (None, b"{", msgspec.json.encode(STUMPS)):
        if content is not None:
            (folder / "model.json").write_bytes(content)
        with refuses(SpecError):
            register_trees.__wrapped__()

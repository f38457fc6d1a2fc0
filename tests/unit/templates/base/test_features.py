"""Features: finite, named once, the same for every way to the same points."""

import hashlib

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.templates import get_template
from bench.replay.table import TableModel

CASES = {
    "matmul": ("rtx3090", anatune.matmul(64, 96, 128), None),
    "conv2d": ("mi50", anatune.conv2d(2, 8, 14, 14, 16, 3, 3, padding=1), None),
    "elementwise": ("rtx3090", anatune.elementwise((32, 64)), None) if hasattr(anatune, "elementwise") else None,
    "cpu": ("ryzen_3700x", anatune.matmul(64, 96, 128), None),
    "tensor cores": ("rtx3090", anatune.matmul(128, 128, 128, dtype="float16"), "triton"),
}


@pytest.mark.parametrize("case", [name for name, value in CASES.items() if value])
def test_features_are_finite_and_belong_to_the_predictions(case):
    device, workload, template = CASES[case]
    model = api.model(workload, anatune.hardware(device), template)
    points = model.space.sample_points(200, 3)
    table = model.feature_table(points)
    evaluation = model.evaluate(points)
    assert table.values.shape == (len(points), len(table.names))
    assert len(set(table.names)) == len(table.names)
    assert np.isfinite(table.values).all()
    assert np.array_equal(table.time_s, evaluation.time_s)
    assert np.array_equal(table.rule, evaluation.rule)
    shares = [at for at, name in enumerate(table.names) if name.startswith("share_")]
    assert (table.values[:, shares] >= 0.0).all()


def test_matmul_and_conv_have_the_same_features():
    names = [model.feature_table(model.space.sample_points(2, 0)).names for model in (
        api.model(anatune.matmul(64, 96, 128), anatune.hardware("rtx3090")),
        api.model(anatune.conv2d(2, 8, 14, 14, 16, 3, 3, padding=1), anatune.hardware("k80")),
    )]  # fmt: skip
    assert names[0] == names[1]


def test_a_list_of_points_has_the_features_of_its_points():
    model = api.model(anatune.matmul(64, 96, 128), anatune.hardware("rtx3090"))
    points = np.unique(model.space.sample_points(20, 0), axis=0)
    assert np.array_equal(TableModel(model, points).feature_table(points).values, model.feature_table(points).values)


def test_pipelined_features_are_those_of_the_template_cuda_and_the_pipelines():
    device = anatune.hardware("a100_sxm")
    matmul = api.model(anatune.matmul(64, 64, 64), device, "pipelined")
    points = np.unique(matmul.space.sample_points(200, 0), axis=0)
    table, plain = matmul.feature_table(points), api.model(matmul.workload, device, "cuda")
    single = (points[:, -2] == 1) & (points[:, -1] == 0)
    assert 0 < single.sum() < len(points)
    table_of_cuda = plain.feature_table(points[single, :-2])
    assert table.names == (*table_of_cuda.names, "pipeline", "padding")
    assert np.array_equal(table.values[single, :-2], table_of_cuda.values)
    assert np.array_equal(table.values[:, -2], np.log2(points[:, -2]))
    conv = api.model(anatune.conv2d(n=1, c=8, h=8, w=8, k=16, r=3, s=3), device, "pipelined")
    assert conv.feature_table(conv.space.sample_points(3, 0)).names == table.names


NAMES = {("cuda", 1): "fffcc1c605bb0c10", ("pipelined", 1): "ad2d9e348b050e41", ("cpu", 2): "007570084d7a0dd6"}
"""Template and version of its features -> digest of their names: other features are another version."""


@pytest.mark.parametrize(("name", "version"), NAMES)
def test_other_features_are_another_version(name, version):
    device = "ryzen_3700x" if name == "cpu" else "a100_sxm"
    model = api.model(anatune.matmul(128, 128, 128), anatune.hardware(device), name)
    names = model.feature_table(model.space.sample_points(1, 0)).names
    version_and_digest = get_template(name).feature_version, hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
    assert version_and_digest == (version, NAMES[name, version])

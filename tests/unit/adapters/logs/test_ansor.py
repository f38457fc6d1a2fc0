"""Ansor's lines: axes by the tensors' layout, never by their number alone; what a key says is checked."""

import json

import pandas as pd
import pytest

import anatune
from anatune.adapters.logs import read_foreign
from anatune.core.trial import Outcome
from tests.unit.adapters.logs.making import ansor, ansor_nhwc, written
from tests.wording import check_texts

MATMUL = anatune.matmul(64, 64, 64)
GPU = anatune.hardware("rtx3090")
HASH = "8a830aeb28cc45b189200eb204fd8825"
NHWC = anatune.conv2d(1, 3, 14, 14, 28, 3, 3, padding=1, layout="NHWC")
TILES = [(1, (1, 1, 1, 1)), (14, (1, 7, 1, 1)), (14, (1, 7, 1, 1)), (28, (1, 4, 1, 1))]
TILES += [(3, (1, 3)), (3, (3, 1)), (3, (1, 1))]
SHAPES = [[1, 14, 14, 3], [3, 3, 3, 28], [1, 14, 14, 28]]


def joined(shapes):
    """Return shapes as older keys have them: one after the other."""
    return [extent for shape in shapes for extent in shape]


def key(*parts):
    return json.dumps([HASH, *parts])


def test_matmul(tmp_path):
    path = written(tmp_path / "log.json", ansor(), ansor(extent=32, i=(1, 8, 1, 2)), ansor(error=7, times=(1e10,)))
    found = read_foreign(path, GPU, MATMUL)
    assert (found.kind, len(found.trials)) == ("ansor", 2)
    first, failed = (one.trial for one in found.trials)
    assert first.schedule.tiles == {"i": (2, 2, 8, 1, 2), "j": (2, 1, 16, 2, 1), "k": (8, 4, 2)}
    assert first.schedule.unroll == 512
    assert failed.measurement.outcome is Outcome.RUN_TIMEOUT
    assert list(found.left_out) == ["another workload: the log tiles loops of 32x64x64, expected 64x64x64 (matmul)"]


@pytest.mark.parametrize("stated", [key(*SHAPES), key(*joined(SHAPES)), key(), json.dumps(["conv2d_nhwc", 1, 14])])
def test_nhwc_has_its_own_order_of_axes(tmp_path, stated):
    (found,) = read_foreign(written(tmp_path / "log.json", ansor_nhwc(stated, TILES)), GPU, NHWC).trials
    tiles = found.trial.schedule.tiles
    assert (tiles["f"], tiles["y"]) == ((7, 1, 4, 1, 1), (2, 1, 7, 1, 1))
    assert (tiles["ry"], tiles["rx"], tiles["rc"]) == ((1, 1, 3), (1, 3, 1), (3, 1, 1))


def test_a_layout_that_the_log_contradicts_is_refused(tmp_path):
    square = [(1, (1, 1, 1, 1)), *[(14, (1, 7, 1, 1))] * 3, *[(3, (1, 3))] * 3]  # extents fit NCHW and NHWC alike
    nchw = anatune.conv2d(1, 3, 14, 14, 14, 3, 3, padding=1)
    shapes = [[1, 14, 14, 3], [3, 3, 3, 14], [1, 14, 14, 14]]
    for stated in (key(*shapes), key(*joined(shapes)), json.dumps(["my_conv2d_NHWC", 1, 14])):
        found = read_foreign(written(tmp_path / "log.json", ansor_nhwc(stated, square)), GPU, nchw)
        assert not found.trials
        assert next(iter(found.left_out)).startswith("another workload: ")
    found = read_foreign(written(tmp_path / "log.json", ansor_nhwc(key(), TILES)), GPU, nchw)
    assert "the log tiles loops of 1x14x14x28x3x3x3" in next(iter(found.left_out))


def test_shapes_settle_a_product_unless_it_is_square(tmp_path):
    line = ansor(extent=32, i=(1, 8, 1, 2))
    line["i"][0][0] = key([32, 64], [64, 64], [32, 64])
    square = read_foreign(written(tmp_path / "log.json", line), GPU)
    assert "several products fit" in next(iter(square.left_out))
    line["i"][1][1][2] = ["SP", 3, 5, 16, [1, 16, 1, 1], 1]
    line["i"][0][0] = key([32, 64], [16, 64], [32, 16])
    (found,) = read_foreign(written(tmp_path / "log.json", line), GPU).trials
    assert found.workload == anatune.matmul(32, 16, 64, transpose_b=True)
    conv = read_foreign(written(tmp_path / "log.json", ansor_nhwc(key(*SHAPES), TILES)), GPU)
    assert "does not say which workload" in next(iter(conv.left_out))


def test_cpu_tilings_and_split_reductions_are_named(tmp_path):
    cpu, split, bare = ansor(), ansor(), ansor()
    cpu["i"][1][1] = [["SP", 2, 0, 64, [1, 8, 8], 1], ["SP", 2, 4, 64, [1, 8, 8], 1], ["SP", 2, 8, 64, [16], 1]]
    split["i"][1][1].append(["RF", 3, 2, 2])
    bare["i"][1][1] = []
    found = read_foreign(written(tmp_path / "log.json", cpu, split, bare), GPU, MATMUL)
    check_texts(found.left_out)


def log_line(row):
    """Return a row of the decoded table as Ansor wrote it, steps around the tiling included."""
    tiles = [[int(f) for f in getattr(row, f"t_{axis}").split("x")] for axis in "ijk"]
    (i, j, k), extents = tiles, [1, 1, 1]
    for number, factors in enumerate(tiles):
        for factor in factors:
            extents[number] *= factor
    m, n, depth = extents
    steps = [
        ["CHW", 2, "local"], ["SP", 2, 0, m, i[1:], 1], ["SP", 2, 5, n, j[1:], 1], ["SP", 2, 10, depth, k[1:], 1],
        ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]], ["FSP", 3, 0, 1, 3], ["FSP", 3, 4, 2, 3],
        ["CA", 2, 3, 5], ["CHR", 1, "shared", [2]], ["CA", 2, 3, 6], ["CHR", 0, "shared", [3]], ["CA", 1, 4, 6],
        ["FU", 5, [0, 1]], ["AN", 5, 0, 5],
        ["FU", 3, [0, 1]], ["SP", 3, 0, n * k[0], [int(row.vec_w)], 1], ["AN", 3, 1, 2], ["FFSP", 3, 0, [2, 1], 1, 1],
        ["FU", 1, [0, 1]], ["SP", 1, 0, m * k[0], [int(row.vec_d)], 1], ["AN", 1, 1, 2], ["FFSP", 1, 0, [2, 1], 1, 1],
        ["PR", 4, 0, f"auto_unroll_max_step${row.unroll}"],
    ]  # fmt: skip
    name = json.dumps(["matmul", m, depth, n, "float32"])
    target = "cuda -keys=cuda,gpu -arch=sm_37 -max_num_threads=1024 -thread_warp_size=32"
    hardware = [-1, 16, 64, 49152, 2147483647, 1024, 8, 32]
    time = row.time_s if row.time_s == row.time_s else 1e10
    result = [[time], int(row.err), 3.9, 1.6e9]
    return {"i": [[name, target, hardware, "", 0, []], [[], steps]], "r": result, "v": "v0.6"}


def test_recorded_rows_written_back_as_a_log_are_the_same_points(recorded, tmp_path):
    """Ansor on a K80 (HPCRL/bench_roller, MIT): tiles, unrolling, fetch widths and times of every row."""
    rows = pd.read_csv(recorded / "ansor_matmul_gpu__mit.csv.gz")
    rows = rows[(rows["gpu"] == "k80") & (rows["workload_id"] == "mm_m128_n1000_k4032_nn")]
    path = written(tmp_path / "log.json", *(log_line(row) for row in rows.itertuples()))
    workload = anatune.matmul(128, 1000, 4032)
    found = read_foreign(path, anatune.hardware("k80"), workload)
    assert not found.left_out
    for row, one in zip(rows.itertuples(), found.trials, strict=True):
        schedule = one.trial.schedule
        assert ["x".join(map(str, schedule.tiles[axis])) for axis in "ijk"] == [row.t_i, row.t_j, row.t_k]
        assert schedule.unroll == row.unroll
        widths = {1: 1, 2: 2, 4: 4}
        assert schedule.vector == {"A": widths.get(row.vec_d, 1), "B": widths.get(row.vec_w, 1)}
        assert (one.trial.measurement.time_s == row.time_s) == (row.err == 0)
    wrong = read_foreign(path, anatune.hardware("rtx3080"), workload)
    assert wrong.left_out == {"measured on sm_37, but rtx3080 has sm_86": len(rows)}

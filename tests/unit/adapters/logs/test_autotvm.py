"""AutoTVM's templates: which schedules they are, in both forms of its logs."""

import json
import re

import pandas as pd
import pytest

import anatune
from anatune.adapters.logs import read_foreign
from anatune.core.hardware.files import hardware
from anatune.templates import make_model
from tests.unit.adapters.logs.making import autotvm, old_autotvm, task, tensor, written

GPU = hardware("rtx3090")
CPU = hardware("xeon_8124m")
SKYLAKE = "llvm -mcpu=skylake-avx512"


def schedules(tmp_path, *lines, hw=None):
    """Return the schedules of lines, all of which are read, and points of their template's space."""
    found = read_foreign(written(tmp_path / "log.json", *lines), hw)
    assert not found.left_out
    made = [one.trial.schedule for one in found.trials]
    for schedule in made:
        space = make_model(schedule.workload, schedule.hardware, schedule.template).space
        space.point_of(schedule)
    return made


def reasons(tmp_path, *lines, hw=GPU):
    found = read_foreign(written(tmp_path / "log.json", *lines), hw)
    assert not found.trials
    return list(found.left_out)


def test_conv2d(tmp_path):
    path = written(tmp_path / "log.json", autotvm(), autotvm(error=4, times=(1e10,)), autotvm(tile_f=[3, 1, 4, 2]))
    found = read_foreign(path, GPU)
    assert (found.kind, len(found.trials)) == ("autotvm", 2)
    assert found.left_out == {"tiles do not multiply to the workload's extents": 1}
    first = found.trials[0]
    assert first.workload == anatune.conv2d(4, 8, 14, 14, 16, 3, 3, padding=1)
    tiles = first.trial.schedule.tiles
    assert (tiles["f"], tiles["n"], tiles["rc"]) == ((2, 1, 4, 1, 2), (4, 1, 1, 1, 1), (4, 2, 1))
    assert first.trial.schedule.unroll == 512
    assert first.trial.measurement.time_s == pytest.approx(1.1e-5)


def test_the_form_of_2018_says_the_same(tmp_path):
    """Until August 2019 topi applied a window's factors crosswise; TopHub exchanged them in its files since."""
    (new,) = schedules(tmp_path, autotvm(), hw=hardware("tx2"))
    (mended,) = schedules(tmp_path, old_autotvm(when=1.57e9))
    assert mended == new
    assert "TVM issue 3648" in reasons(tmp_path, old_autotvm(), hw=None)[0]
    column = {"weight": (16, 8, 3, 1), "tile_ry": [1, 3], "tile_rx": [1, 1]}
    plain, applied = schedules(tmp_path, old_autotvm(), old_autotvm(**column))
    assert (plain.tiles["ry"], plain.tiles["rx"]) == (new.tiles["rx"], new.tiles["ry"])
    assert {axis: plain.tiles[axis] for axis in "nfyx"} == {axis: new.tiles[axis] for axis in "nfyx"}
    assert (applied.tiles["ry"], applied.tiles["rx"]) == ((3, 1, 1), (1, 1, 1))
    exchanged = {**column, "tile_ry": [1, 1], "tile_rx": [1, 3]}
    plain, same = schedules(tmp_path, old_autotvm(), old_autotvm(**exchanged))
    assert plain == new
    assert same == applied


def test_arguments_of_2018_are_the_workloads(tmp_path):
    line = old_autotvm(target=SKYLAKE, weight=(32, 8, 3, 3))
    line["i"][1] = "topi_x86_conv2d"
    line["i"][5]["e"] = [["tile_ic", "sp", [1, 8]], ["tile_oc", "sp", [2, 16]], ["tile_ow", "sp", [2, 7]]]
    line["i"][5]["e"].append(["unroll_kw", "ot", True])
    (found,) = schedules(tmp_path, line, hw=CPU)
    assert found.workload == anatune.conv2d(4, 8, 14, 14, 32, 3, 3, padding=1)
    dense = old_autotvm(target="cuda -model=tx2")
    dense["i"][1:5] = ["topi_nn_dense", [], {}, ["dense", [1, 512, "float32"], [1000, 512, "float32"], 0, "float32"]]
    dense["i"][5]["e"] = [["tile_k", "sp", [-1, 8]]]
    assert "dense_small_batch.gpu splits the reduction" in reasons(tmp_path, dense, hw=None)[0]


def test_padding_of_one_side_and_dilation(tmp_path):
    line = autotvm()
    line["input"][2][2:5] = [[1, 1], [1, 1, 0, 0], [1, 1]]
    line["config"]["entity"][1][2] = line["config"]["entity"][2][2] = [13, 1, 1, 1]
    (schedule,) = schedules(tmp_path, line, hw=GPU)
    assert schedule.workload == anatune.conv2d(4, 8, 14, 14, 16, 3, 3, padding=(1, 1, 0, 0))
    line["input"][2][2:5] = [[1, 1], [2, 2, 2, 2], [2, 2]]
    line["config"]["entity"][1][2] = line["config"]["entity"][2][2] = [14, 1, 1, 1]
    (schedule,) = schedules(tmp_path, line, hw=GPU)
    assert schedule.workload == anatune.conv2d(4, 8, 14, 14, 16, 3, 3, padding=2, dilation=2)


def test_products_and_depthwise_convolutions_of_gpus(tmp_path):
    knobs = {"tile_x": [4, 2, 16, 2], "tile_y": [2, 2, 8, 4], "tile_k": [16, 8, 1]}
    dense = task("dense_large_batch.gpu", "cuda", [tensor(256, 128), tensor(128, 128), None, "float32"], knobs)
    knobs = {"tile_y": [4, 8, 2], "tile_x": [2, 8, 4], "tile_k": [8, 4], "auto_unroll_max_step": 16}
    batch = task("batch_matmul.cuda", "cuda", [tensor(3, 64, 32), tensor(3, 64, 32)], knobs)
    plain = [tensor(3, 64, 32), tensor(3, 32, 64), [3, 64, 64], "float32", 0, 0]
    knobs = {"tile_f": [8, 1, 4, 1], "tile_y": [2, 1, 7, 1], "tile_x": [2, 1, 7, 1], "auto_unroll_max_step": 256}
    arguments = [tensor(1, 32, 14, 14), tensor(32, 1, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "float32"]
    depthwise = task("depthwise_conv2d_nchw.cuda", "cuda", arguments, knobs)
    one, two, three, four = schedules(
        tmp_path, dense, batch, {**batch, "input": ["cuda", "batch_matmul.cuda", plain, {}]}, depthwise, hw=GPU
    )
    assert one.workload == anatune.matmul(256, 128, 128, transpose_b=True)
    assert one.tiles == {"i": (4, 2, 16, 1, 2), "j": (2, 2, 8, 1, 4), "k": (16, 8, 1)}
    assert (one.template, one.options) == ("pipelined", {"stages": 2, "pad": 0})
    assert two.workload == anatune.batch_matmul(3, 64, 64, 32, transpose_b=True)
    assert two.tiles == {"b": (3, 1, 1, 1, 1), "i": (4, 1, 8, 1, 2), "j": (2, 1, 8, 1, 4), "k": (8, 4, 1)}
    assert three.workload == anatune.batch_matmul(3, 64, 64, 32)
    assert four.workload == anatune.depthwise_conv2d(1, 32, 14, 14, 3, 3, padding=1)
    assert (four.tiles["g"], four.tiles["ry"]) == ((8, 1, 4, 1, 1), (1, 1, 3))


def test_cpu_templates_that_the_cpu_space_can_say(tmp_path):
    knobs = {"tile_y": [4, 2, 8], "tile_x": [2, 2, 32], "tile_k": [64, 2], "tile_inner": [64, 1]}
    dense = task("dense_pack.x86", SKYLAKE, [tensor(64, 128), tensor(128, 128), None, "float32"], knobs)
    blocked = [tensor(1, 2, 14, 14, 16), tensor(2, 2, 3, 3, 16, 32), [1, 1], [1, 1, 1, 1], [1, 1], "NCHW16c", "NCHW32c"]
    knobs = {"tile_ic": [2, 16], "tile_oc": [2, 32], "tile_ow": [2, 7], "unroll_kw": True}
    conv = task("conv2d_NCHWc.x86", SKYLAKE, [*blocked, "float32"], knobs)
    flat = [tensor(1, 32, 14, 14), tensor(64, 32, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"]
    one, two, three = schedules(
        tmp_path, dense, conv, {**conv, "input": [SKYLAKE, "conv2d_NCHWc.x86", flat, {}]}, hw=CPU
    )
    assert one.tiles == {"i": (4, 1, 1, 2, 8), "j": (2, 1, 1, 2, 32), "k": (1, 1, 64, 2)}
    assert (one.options["order.outer"], one.options["packed_ahead"]) == (("j", "i"), ("B",))
    assert one.options["parallel"]
    assert two == three
    assert (two.tiles["f"], two.tiles["x"], two.tiles["rx"]) == ((2, 1, 1, 1, 32), (1, 2, 1, 1, 7), (1, 1, 3))
    assert two.options["packed_ahead"] == ("data", "weight")


def test_spatial_pack_where_its_vectors_are_channels(tmp_path):
    arguments = [tensor(1, 16, 14, 14), tensor(32, 16, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "float32"]
    knobs = {
        "tile_co": [4, 8], "tile_oh": [7, 2], "tile_ow": [7, 2], "reorder_0": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        "ann_reduce": ["none", "unroll"], "ann_spatial": ["unroll", "unroll", "vec"],
    }  # fmt: skip
    line = task("conv2d_nchw_spatial_pack.arm_cpu", "llvm -device=arm_cpu -mtriple=aarch64-linux-gnu", arguments, knobs)
    (found,) = schedules(tmp_path, line, hw=hardware("cortex_a72"))
    assert (found.tiles["f"], found.tiles["y"], found.tiles["rx"]) == ((4, 1, 1, 1, 8), (1, 7, 1, 1, 2), (1, 1, 3))
    assert (found.options["packed"], found.options["packed_ahead"]) == (("data", "weight"), ("weight",))
    columns = task(
        line["input"][1], line["input"][0], arguments, {**knobs, "reorder_0": [0, 1, 2, 3, 4, 5, 6, 9, 7, 8]}
    )
    bare = task(line["input"][1], line["input"][0], arguments, {**knobs, "ann_spatial": ["unroll", "none", "none"]})
    a72 = hardware("cortex_a72")
    assert "columns (reorder_0)" in reasons(tmp_path, columns, hw=a72)[0]
    assert "it is not vectorised" in reasons(tmp_path, bare, hw=a72)[0]
    assert "compiled for arm, but xeon_8124m" in reasons(tmp_path, line, hw=CPU)[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dense_small_batch.gpu", "splits the reduction over threads"),
        ("conv2d_nchw_winograd.cuda", "Winograd"),
        ("conv2d_cudnn.cuda", "template conv2d_cudnn.cuda is not supported"),
        ("conv2d_NCHWc_int8.x86", "is not supported"),
    ],
)
def test_templates_that_are_not_read_are_named(tmp_path, name, text):
    line = autotvm()
    line["input"][1] = name
    assert text in reasons(tmp_path, line)[0]


def test_what_the_cpu_space_cannot_say_is_named(tmp_path):
    arguments = [tensor(64, 128), tensor(128, 128), None, "float32"]
    nopack = task("dense_nopack.x86", SKYLAKE, arguments, {"tile_x": [8, 16], "tile_y": [8, 8], "tile_k": [8, 16]})
    halves = {"tile_y": [4, 2, 8], "tile_x": [2, 2, 32], "tile_k": [64, 2], "tile_inner": [16, 4]}
    assert "vectorises the reduction" in reasons(tmp_path, nopack, hw=CPU)[0]
    assert "tile_inner" in reasons(tmp_path, task("dense_pack.x86", SKYLAKE, arguments, halves), hw=CPU)[0]
    assert "avx2" in reasons(tmp_path, nopack, hw=hardware("ryzen_3700x"))[0]


def test_another_workload_is_named(tmp_path):
    path = written(tmp_path / "log.json", autotvm())
    found = read_foreign(path, GPU, anatune.conv2d(4, 8, 14, 14, 16, 3, 3))
    assert found.left_out == {"another workload: conv2d 4x8x14x14 16x8x3x3 --padding 1": 1}


def test_recorded_rows_written_back_as_a_log_are_read_to_the_same_points(recorded, tmp_path):
    """AutoTVM on a K80 and an MI50 (HPCRL/bench_roller, MIT): every row whose tiles divide, and its time."""
    rows = pd.read_csv(recorded / "autotvm_conv2d_gpu_roller__mit.csv.gz")
    rows = rows[rows["workload_id"].str.contains("r1x1_s1x1")]
    lines = []
    for row in rows.itertuples():
        n, c, h, w, k = map(int, re.findall(r"\d+", row.workload_id)[:5])
        arguments = [tensor(n, c, h, w), tensor(k, c, 1, 1), [1, 1], [0, 0, 0, 0], [1, 1], "float32"]
        axes = ("f", "y", "x", "rc", "ry", "rx")
        knobs = {f"tile_{axis}": [int(f) for f in getattr(row, f"t_{axis}").split("x")] for axis in axes}
        target = {"k80": "cuda -model=k80", "mi50": "rocm -model=gfx906"}[row.gpu]
        line = task("conv2d_nchw.cuda", target, arguments, {**knobs, "auto_unroll_max_step": row.unroll}, [row.time_s])
        line["result"][1] = int(row.err)
        lines.append(line if row.time_s == row.time_s else {**line, "result": [[1e10], int(row.err), 1.0, 1.6e9]})
    path = tmp_path / "log.json"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = read_foreign(path)
    devices = {one.trial.schedule.hardware.name for one in found.trials}
    assert devices == {"k80"}
    assert sum(count for text, count in found.left_out.items() if "gfx906" in text) == sum(rows["gpu"] == "mi50")
    assert len(found.trials) + sum(found.left_out.values()) == len(rows)
    ran = rows[(rows["gpu"] == "k80") & (rows["err"] == 0)]
    times = {one.trial.measurement.time_s for one in found.trials} - {None}
    assert times <= set(ran["time_s"])
    assert len(times) > 0.9 * ran["time_s"].nunique()
    mi50 = read_foreign(path, hardware("mi50"))
    assert {one.trial.schedule.hardware.name for one in mi50.trials} == {"mi50"}

"""TopHub's rows, written back as its lines. They come without a licence, so they are not here: a folder is named.

ANATUNE_MEASUREMENTS=FOLDER pytest tests/unit/adapters/logs/test_autotvm_tophub.py
"""

import json
import os
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from anatune.adapters.logs import read_foreign
from anatune.core.hardware.files import hardware

FOLDER = Path(os.environ.get("ANATUNE_MEASUREMENTS", "not there"))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "tophub_cpu_best__nolicense.csv.gz").is_file(),
    reason="ANATUNE_MEASUREMENTS names no folder with TopHub's tables",
)


def line(row, arguments, entity):
    return {
        "input": [row.target, row.op, arguments, {}],
        "config": {"index": 1, "code_hash": None, "entity": entity},
        "result": [[row.time_s], int(row.err), 1.0, 1.535e9], "version": 0.2, "tvm_version": "0.7.dev0",
    }  # fmt: skip


def convolution(row, of):
    """Return a decoded row as its line; the workload's table has the padding as the output's size."""
    pads = [
        max(0, -(-((out - 1) * stride + window - size) // 2))
        for out, stride, window, size in ((of.OH, of.stride_h, of.R, of.H), (of.OW, of.stride_w, of.S, of.W))
    ]
    arguments = [
        ["TENSOR", [int(of.N), int(of.C), int(of.H), int(of.W)], "float32"],
        ["TENSOR", [int(of.K), int(of.C), int(of.R), int(of.S)], "float32"],
        [int(of.stride_h), int(of.stride_w)], [int(pad) for pad in (*pads, *pads)], [1, 1], "float32",
    ]  # fmt: skip
    axes = ("f", "y", "x", "rc", "ry", "rx")
    entity = [[f"tile_{axis}", "sp", [int(f) for f in getattr(row, f"t_{axis}").split("x")]] for axis in axes]
    entity.append(["auto_unroll_max_step", "ot", int(row.unroll)])
    return line(row, arguments, entity)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Return TopHub's logs by name, with the comments that it begins them with."""
    found = {}
    for table in ("tophub_cpu_best__nolicense", "tophub_other_ops_best__nolicense"):
        for row in pd.read_csv(FOLDER / f"{table}.csv.gz").itertuples():
            found.setdefault(row.file, []).append(line(row, json.loads(row.args), json.loads(row.entity)))
    workloads = pd.read_csv(FOLDER / "workloads.csv.gz").set_index("workload_id")
    table = pd.read_csv(FOLDER / "tophub_conv2d_nchw_fp32_best__nolicense.csv.gz").assign(op="conv2d_nchw.cuda")
    for row in table.itertuples():
        found.setdefault(row.file, []).append(convolution(row, workloads.loc[row.workload_id]))
    folder = tmp_path_factory.mktemp("tophub")
    paths = {}
    for name, lines in found.items():
        paths[name] = folder / f"{name}.log"
        head = "# This is the pre-tuned parameters\n# TVM downloaded this during compilation\n"
        paths[name].write_text(head + "\n".join(map(json.dumps, lines)) + "\n")
    return paths


def test_a_log_of_two_devices_is_filed_under_both(logs):
    found = read_foreign(logs["cuda_v0.10"])
    devices = Counter(one.trial.schedule.hardware.name for one in found.trials)
    assert devices == {"tx2": 154, "gtx1080ti": 141}
    assert found.left_out == {"template conv2d_nchw_winograd.cuda is another algorithm (Winograd)": 41}
    assert Counter(one.workload.operator for one in found.trials)["depthwise_conv2d"] == 18


def test_another_device_gets_nothing_of_it(logs):
    found = read_foreign(logs["cuda_v0.10"], hardware("v100_sxm2"))
    assert found.trials == []
    assert found.left_out == {
        "measured on 'tx2', not on --hw v100_sxm2": 176,
        "measured on '1080ti', not on --hw v100_sxm2": 160,
    }


def test_cpu_logs(logs):
    assert "give it with --hw NAME" in next(iter(read_foreign(logs["llvm_v0.04"]).left_out))
    found = read_foreign(logs["llvm_v0.04"], hardware("xeon_8124m"))
    assert (len(found.trials), found.left_out) == (35, {})
    boards = read_foreign(logs["arm_cpu_v0.08"])
    assert boards.trials == []
    names = {text.split("'")[1]: count for text, count in boards.left_out.items()}
    assert names == {"bcm2837": 220, "pynq": 220, "snapdragon835": 220, "vtacpu": 24}


def test_an_architecture_asks_for_the_device(logs):
    assert read_foreign(logs["rocm_v0.05"]).trials == []
    assert len(read_foreign(logs["rocm_v0.05"], hardware("mi50")).trials) == 30

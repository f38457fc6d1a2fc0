"""Kernel Tuner's caches and results: CLBlast's GEMM as schedules; device and problem size are believed."""

import json

import pandas as pd
import pytest

import anatune
from anatune.adapters.logs import read_foreign
from anatune.core.trial import Outcome
from tests.unit.adapters.logs.making import kernel_tuner
from tests.wording import check_texts

MATMUL = anatune.matmul(64, 64, 64)
GPU = anatune.hardware("rtx3090")


def cache(path, entries, **header):
    path.write_text(json.dumps({"kernel_name": "Xgemm", **header, "cache": dict(enumerate(entries))}))
    return path


def test_a_cache_and_results(tmp_path):
    entries = [kernel_tuner(), kernel_tuner(SA=0), kernel_tuner(time="Error")]
    found = read_foreign(cache(tmp_path / "cache.json", entries), GPU, MATMUL)
    first, failed = (one.trial for one in found.trials)
    assert first.schedule.tiles == {"i": (2, 1, 8, 1, 4), "j": (2, 2, 8, 1, 2), "k": (4, 8, 2)}
    assert first.measurement.time_s == pytest.approx(5e-5)
    assert failed.measurement.time_s is None
    assert found.left_out == {"its operands are not staged in shared memory": 1}
    time = {"name": "time", "value": 0.05, "unit": "ms"}
    results = [
        {"configuration": kernel_tuner(), "invalidity": "correct", "measurements": [time]},
        {"configuration": kernel_tuner(), "invalidity": "compile", "measurements": []},
    ]
    (tmp_path / "t4.json").write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    first, failed = (one.trial for one in read_foreign(tmp_path / "t4.json", GPU, MATMUL).trials)
    assert first.measurement.time_s == pytest.approx(5e-5)
    assert failed.measurement.outcome is Outcome.BUILD_ERROR


def test_an_open_cache_is_read(tmp_path):
    path = cache(tmp_path / "cache.json", [kernel_tuner()])
    path.write_text(path.read_text()[:-2] + ",")
    assert len(read_foreign(path, GPU, MATMUL).trials) == 1


def test_a_damaged_line_of_a_cache_costs_itself_only(tmp_path):
    entries = "\n".join(f'"{number}": {json.dumps(kernel_tuner())},' for number in range(4))
    entries = entries.replace('"2": {"MWG"', '"2": {"MW')
    for end in ("", "}\n}"):
        text = (
            '{"device_name": "NVIDIA TITAN RTX",\n"problem_size": [\n64,\n64\n],\n"cache": {\n' + entries + "\n" + end
        )
        (tmp_path / "c.json").write_text(text)
        found = read_foreign(tmp_path / "c.json", None, MATMUL)
        assert len(found.trials) == 3
        assert found.left_out == {"damaged or of an unknown version (entry 3)": 1}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"device_name": "GeForce RTX 2080 Ti"}, "measured on 'GeForce RTX 2080 Ti', not on --hw rtx3090"),
        ({"device_name": "Quadro of mine"}, "measured on 'Quadro of mine', not on --hw rtx3090"),
        ({"problem_size": [4096, 4096]}, "another workload: problem size 4096x4096, expected 64x64"),
        ({"problem_size": ["4096", 4096.0]}, "another workload: problem size 4096x4096, expected 64x64"),
        ({"problem_size": "2048"}, "another workload: problem size 2048, expected 64x64"),
        ({"problem_size": [64, 128]}, "another workload: problem size 64x128, expected 64x64"),
        ({"problem_size": [64, 64, 128]}, "another workload: problem size 64x64x128, expected 64x64"),
    ],
)
def test_what_a_cache_says_is_believed(tmp_path, header, reason):
    found = read_foreign(cache(tmp_path / "cache.json", [kernel_tuner()] * 3, **header), GPU, MATMUL)
    assert (found.trials, found.left_out) == ([], {reason: 3})


@pytest.mark.parametrize(
    "header",
    [
        {"device_name": "NVIDIA GeForce RTX 3090", "problem_size": [64, 64]},
        {"device_name": "NVIDIA_GeForce_RTX_3090", "problem_size": [64, 64, 1]},
        {"problem_size": "callable"},
        {"problem_size": ["m", "n"]},
        {"problem_size": 64},
    ],
)
def test_what_agrees_or_says_nothing_is_taken(tmp_path, header):
    assert len(read_foreign(cache(tmp_path / "cache.json", [kernel_tuner()], **header), GPU, MATMUL).trials) == 1


def test_a_recorded_rate_is_a_check_of_the_depth(tmp_path):
    gflop = 2 * 64**3 / 1e9
    right, wrong = kernel_tuner(**{"GFLOP/s": gflop / 5e-5}), kernel_tuner(**{"GFLOP/s": 2 * gflop / 5e-5})
    found = read_foreign(cache(tmp_path / "cache.json", [right, wrong]), GPU, MATMUL)
    assert len(found.trials) == 1
    assert "GFLOP, expected" in next(iter(found.left_out))


def test_the_device_is_known_and_the_depth_asked_for(tmp_path):
    path = cache(tmp_path / "c.json", [kernel_tuner()], device_name="NVIDIA TITAN RTX", problem_size=[64, 64])
    (found,) = read_foreign(path, None, MATMUL).trials
    assert found.trial.schedule.hardware.name == "titan_rtx"
    asked = read_foreign(path)
    assert "(its problem size is 64x64, M x N, but the file does not have K)" in next(iter(asked.left_out))


def test_other_kernels_are_named(tmp_path):
    path = cache(tmp_path / "c.json", [{"block_size_x": 16, "time": 1.0}], kernel_name="convolution_kernel")
    (reason,) = read_foreign(path, GPU).left_out
    check_texts([reason])


def test_a_cache_that_kernel_tuner_wrote(recorded, tmp_path):
    """CLBlast on a Titan RTX (AutoTuningAssociation/benchmark_hub, MIT), written by Kernel Tuner's own functions."""
    util = pytest.importorskip("kernel_tuner.util", reason="pip install '.[kernel-tuner]'")
    rows = pd.read_csv(recorded / "gemm_clblast__mit.csv.gz")
    rows = rows[(rows["gpu"] == "titan_rtx") & (rows["SA"] == 1) & (rows["SB"] == 1)].head(200)
    names = list(rows.columns[rows.columns.get_loc("GEMMK") : rows.columns.get_loc("SB") + 1])
    path = tmp_path / "cache.json"
    header = {
        "device_name": "NVIDIA TITAN RTX", "kernel_name": "Xgemm", "problem_size": (4096, 4096),
        "tune_params_keys": names, "tune_params": {name: sorted(map(int, set(rows[name]))) for name in names},
        "objective": "time", "cache": {},
    }  # fmt: skip
    path.write_text(json.dumps(header, cls=util.NpEncoder, indent="")[:-3])
    for number, row in enumerate(rows.to_dict("records")):
        entry = {name: int(row[name]) for name in names}
        util.store_cache(str(number), {**entry, "time": row["time_s"] * 1e3}, str(path), {})
    found = read_foreign(path, None, anatune.matmul(4096, 4096, 4096))
    assert {one.trial.schedule.hardware.name for one in found.trials} == {"titan_rtx"}
    assert len(found.trials) == len(rows)
    times = [one.trial.measurement.time_s for one in found.trials]
    assert times == pytest.approx(list(rows["time_s"]))
    smaller = read_foreign(path, None, anatune.matmul(2048, 2048, 2048))
    assert smaller.left_out == {"another workload: problem size 4096x4096, expected 2048x2048": len(rows)}

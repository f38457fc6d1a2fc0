"""Logs of other tuners: what fits becomes trials, what does not is counted, what failed has no time."""

import json

import pytest

import anatune
from anatune.core.trial import Outcome
from anatune.errors import RecordError
from anatune.records.foreign import read_foreign

MATMUL = anatune.matmul(64, 64, 64)
GPU = anatune.hardware("rtx3090")


def autotvm(times=(1e-5, 1.2e-5), error=0, **changes):
    entity = {
        "tile_f": [-1, 1, 4, 2], "tile_y": [-1, 1, 2, 1], "tile_x": [2, 1, 7, 1], "tile_rc": [4, 2], "tile_ry": [3, 1],
        "tile_rx": [1, 3], "auto_unroll_max_step": 512, "unroll_explicit": 1, **changes,
    }  # fmt: skip
    kinds = {name: "sp" if isinstance(value, list) else "ot" for name, value in entity.items()}
    arguments = [
        ["TENSOR", [4, 8, 14, 14], "float32"], ["TENSOR", [16, 8, 3, 3], "float32"], [1, 1], [1, 1, 1, 1], [1, 1],
        "float32",
    ]  # fmt: skip
    return {
        "input": ["cuda -keys=cuda,gpu", "conv2d_nchw.cuda", arguments, {}],
        "config": {"index": 7, "code_hash": None, "entity": [[n, kinds[n], value] for n, value in entity.items()]},
        "result": [list(times), error, 2.5, 1.6e9], "version": 0.2, "tvm_version": "0.8.0",
    }  # fmt: skip


def ansor(times=(2e-5,), error=0, i=(2, 8, 1, 2), extent=64):
    steps = [
        ["CHW", 3, "local"], ["SP", 3, 0, extent, list(i), 1], ["SP", 3, 5, 64, [1, 16, 2, 1], 1],
        ["SP", 3, 10, 64, [4, 2], 1], ["RE", 3, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
        ["SP", 2, 0, 64, [16], 1], ["PR", 3, 0, "auto_unroll_max_step$512"],
    ]  # fmt: skip
    return {"i": [['["abc"]', "cuda"], [[], steps]], "r": [list(times), error, 1.0, 1.6e9], "v": "v0.6"}


def metaschedule(times=(3e-5,)):
    instructions = [
        ["GetBlock", [], ["C", "main"], ["b0"]],
        ["SamplePerfectTile", ["l1"], [5, 64], ["v2", "v3", "v4", "v5", "v6"]],
        ["SamplePerfectTile", ["l2"], [5, 64], ["v7", "v8", "v9", "v10", "v11"]],
        ["SamplePerfectTile", ["l3"], [3, 64], ["v12", "v13", "v14"]],
        ["SampleCategorical", [], [[1, 2, 3, 4], [0.25, 0.25, 0.25, 0.25]], ["v15"]],
        ["Annotate", ["b1", "v15"], ["meta_schedule.cooperative_fetch"], []],
        ["SampleCategorical", [], [[0, 16, 64, 512, 1024], [0.2, 0.2, 0.2, 0.2, 0.2]], ["v16"]],
        ["Annotate", ["b0", "v16"], ["meta_schedule.unroll_explicit"], []],
    ]
    decisions = [[1, [4, 1, 8, 2, 1]], [2, [2, 1, 16, 1, 2]], [3, [8, 4, 2]], [4, 3], [6, 2]]
    return [0, [[instructions, decisions], None if times is None else list(times), {"kind": "cuda"}, []]]


def kernel_tuner(**changes):
    given = {
        "MWG": 32, "NWG": 32, "KWG": 16, "MDIMC": 8, "NDIMC": 8, "KWI": 2, "VWM": 2, "VWN": 1, "STRM": 1, "STRN": 0,
        "SA": 1, "SB": 1, "GEMMK": 0, "time": 0.05,
    }  # fmt: skip
    return {**given, **changes}


def written(path, *entries):
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
    return path


def test_autotvm(tmp_path):
    path = written(
        tmp_path / "log.json",
        autotvm(),
        autotvm(error=4, times=(1e10,)),
        autotvm(tile_f=[3, 1, 4, 2]),
        autotvm(times=()),
    )
    found = read_foreign(path, GPU)
    assert (found.kind, len(found.trials)) == ("autotvm", 3)
    assert found.left_out == {"tiles do not multiply to the workload's extents": 1}
    first, failed, empty = found.trials
    assert first.workload == anatune.conv2d(4, 8, 14, 14, 16, 3, 3, padding=1)
    assert first.trial.schedule.tiles["f"] == (2, 1, 4, 1, 2)
    assert first.trial.schedule.tiles["n"] == (4, 1, 1, 1, 1)
    assert first.trial.schedule.tiles["rc"] == (4, 2, 1)
    assert first.trial.schedule.unroll == 512
    assert first.trial.measurement.time_s == pytest.approx(1.1e-5)
    assert (failed.trial.measurement.outcome, failed.trial.measurement.time_s) == (Outcome.RUN_ERROR, None)
    assert empty.trial.measurement.time_s is None


def test_ansor(tmp_path):
    path = written(tmp_path / "log.json", ansor(), ansor(extent=32, i=(1, 8, 1, 2)), ansor(error=7, times=(1e10,)))
    found = read_foreign(path, GPU, MATMUL)
    assert (found.kind, len(found.trials)) == ("ansor", 2)
    first, failed = (one.trial for one in found.trials)
    assert first.schedule.tiles == {"i": (2, 2, 8, 1, 2), "j": (2, 1, 16, 2, 1), "k": (8, 4, 2)}
    assert first.schedule.unroll == 512
    assert failed.measurement.outcome is Outcome.RUN_TIMEOUT


def test_metaschedule(tmp_path):
    found = read_foreign(written(tmp_path / "log.json", metaschedule(), metaschedule(times=None)), GPU, MATMUL)
    first, failed = (one.trial for one in found.trials)
    assert first.schedule.tiles == {"i": (4, 1, 8, 2, 1), "j": (2, 1, 16, 1, 2), "k": (8, 4, 2)}
    assert (first.schedule.unroll, first.schedule.vector["A"]) == (64, 4)
    assert first.measurement.time_s == 3e-5
    assert failed.measurement.time_s is None


def test_metaschedule_of_other_templates_is_left_out(tmp_path):
    pipelined, cpu = metaschedule(), metaschedule()
    pipelined[1][0][0].append(["Annotate", ["l1", [0, 0, 2]], ["software_pipeline_stage"], []])
    cpu[1][0][1][:3] = [[1, [4, 1, 8, 4]], [2, [2, 1, 16, 2]], [3, [8, 8]]]
    found = read_foreign(written(tmp_path / "log.json", pipelined, cpu, metaschedule()), GPU, MATMUL)
    assert len(found.trials) == 1
    assert found.left_out == {
        "a staging pipeline, which the template lacks": 1,
        "tiling SSRSRS, which is for CPUs": 1,
    }


def test_kernel_tuner_cache_and_results(tmp_path):
    cache = {
        "device_name": "x",
        "cache": {"a": kernel_tuner(), "b": kernel_tuner(SA=0), "c": kernel_tuner(time="Error")},
    }
    (tmp_path / "cache.json").write_text(json.dumps(cache))
    found = read_foreign(tmp_path / "cache.json", GPU, MATMUL)
    first, failed = (one.trial for one in found.trials)
    assert first.schedule.tiles == {"i": (2, 1, 8, 1, 4), "j": (2, 2, 8, 1, 2), "k": (4, 8, 2)}
    assert first.measurement.time_s == pytest.approx(5e-5)
    assert failed.measurement.time_s is None
    assert found.left_out == {"operands that are not staged in shared memory": 1}
    time = {"name": "time", "value": 0.05, "unit": "ms"}
    results = [
        {"configuration": kernel_tuner(), "invalidity": "correct", "measurements": [time]},
        {"configuration": kernel_tuner(), "invalidity": "compile", "measurements": []},
    ]
    (tmp_path / "t4.json").write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    first, failed = (one.trial for one in read_foreign(tmp_path / "t4.json", GPU, MATMUL).trials)
    assert first.measurement.time_s == pytest.approx(5e-5)
    assert failed.measurement.outcome is Outcome.BUILD_ERROR


def test_a_log_that_names_no_workload_says_so(tmp_path):
    found = read_foreign(written(tmp_path / "log.json", ansor()), GPU)
    assert not found.trials
    assert "the log does not name the workload" in next(iter(found.left_out))


@pytest.mark.parametrize("text", ["", "hello\n", "{}\n", "[1, 2]\n", '{"cache": 3'])
def test_other_files_are_one_line(tmp_path, text):
    (tmp_path / "log.json").write_text(text)
    with pytest.raises(RecordError, match="expected JSON lines of anatune, AutoTVM"):
        read_foreign(tmp_path / "log.json", GPU, MATMUL)


def test_a_damaged_line_is_named(tmp_path):
    path = written(tmp_path / "log.json", ansor())
    path.write_text(path.read_text() + "{cut off\n")
    with pytest.raises(RecordError, match="line 2"):
        read_foreign(path, GPU, MATMUL)


def test_missing_files_and_cpus_are_refused(tmp_path):
    with pytest.raises(RecordError, match="no such file"):
        read_foreign(tmp_path / "none.json", GPU, MATMUL)
    with pytest.raises(RecordError, match="GPUs only"):
        read_foreign(written(tmp_path / "log.json", ansor()), anatune.hardware("ryzen_3700x"), MATMUL)

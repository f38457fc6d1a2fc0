"""``anatune compile`` and ``anatune run``."""

import json
import os

import numpy as np
import pytest

from anatune.records.store import RecordStore
from tests.shell import anatune
from tests.unit.network.compiling import models
from tests.wording import check_texts

pytest.importorskip("tvm")
pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    models.onnx_network(place / "network.onnx", batch="batch")
    words = ("compile", place / "network.onnx", "-o", place / "out", "--input-shape", "1x4x8x8", "--threads", 1)
    done = anatune(*words, "--json", "--html", place / "page.html", variables=os.environ)
    assert done.returncode == 0, done.stderr
    assert "<h1>network on " in (place / "page.html").read_text()
    answer = json.loads(done.stdout)
    assert answer["kernels"][0]["workload"].startswith("conv2d 1x4x8x8 8x4x3x3")
    assert answer["check"]["error"] < 1e-6
    return place / "out"


def test_a_model_runs_on_files(folder, tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("run", folder, "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npz", "--benchmark", "--profile")
    done = anatune(*words, "--runs", 3, variables=os.environ)
    assert done.returncode == 0, done.stderr
    assert "output0: 1x8x8x8 float32" in done.stdout
    assert "median of 3 runs" in done.stdout
    assert "the median is the time of a whole run" in " ".join(
        done.stdout.split()
    )  # beside the profile's and the plan's time
    wrong = anatune("run", folder, "-o", tmp_path / "y.txt", variables=os.environ)
    assert (wrong.returncode, (tmp_path / "y.txt").exists()) == (2, False)
    assert "expected a name that ends in .npz" in wrong.stderr
    assert "measured" in done.stdout
    assert np.load(tmp_path / "y.npz")["output0"].shape == (1, 8, 8, 8)
    answer = json.loads(anatune("run", folder, "--benchmark", "--json", variables=os.environ).stdout)
    assert answer["benchmark"]["runs"] == 30


@pytest.mark.slow
def test_a_tuned_model_is_measured_once(folder, tmp_path):
    words = (
        "compile",
        folder.parent / "network.onnx",
        "-o",
        tmp_path / "out",
        "--input-shape",
        "1x4x8x8",
        "--threads",
        1,
    )
    words += ("--records", tmp_path / "r.sqlite", "--json")
    done = anatune(*words, "--trials", 3, variables=os.environ)
    assert done.returncode == 0, done.stderr
    assert "trial 3/3" in done.stderr
    assert "; conv2d 1x4x8x8 8x4x3x3" in done.stderr
    with RecordStore(tmp_path / "r.sqlite") as store:
        trials = list(store.trials())
    again = anatune(*words, "--trials", 3, "--resume", variables=os.environ)
    assert (again.returncode, again.stderr.count("trial 3/3")) == (0, 0)
    with RecordStore(tmp_path / "r.sqlite") as store:
        assert [one.trial for one in store.trials()] == [one.trial for one in trials]
    first, second = (json.loads(run.stdout)["tuning"] for run in (done, again))
    assert [(one["trials"], one["new_trials"]) for one in (first, second)] == [(3, 3), (3, 0)]
    assert first["kernels"] == second["kernels"]  # which build is kept is judged anew each time, by the clock


def test_a_model_for_a_gpu_is_written_here_and_runs_elsewhere(folder, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    words = ("compile", folder.parent / "network.onnx", "-o", tmp_path / "out", "--input-shape", "1x4x8x8")
    done = anatune(*words, "--hw", "rtx3090", "--json", variables=os.environ)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["device"], answer["threads"], answer["check"]) == ("gpu", None, None)
    (kernel,) = answer["kernels"]
    assert kernel["registers"] > 0
    assert kernel["predicted_s"] > 0
    run = anatune("run", tmp_path / "out", variables=os.environ)
    assert (run.returncode, run.stderr.count("\n")) == (1, 1)
    assert "compiled for a GPU (sm_86), and there is none here" in run.stderr


def test_nodes_are_left_to_onnxruntime(tmp_path):
    pytest.importorskip("onnxruntime")
    import onnx

    from tests.unit.network.compiling.test_divided import network

    onnx.save(network(), str(tmp_path / "network.onnx"))
    words = ("compile", tmp_path / "network.onnx", "-o", tmp_path / "out", "--threads", 1, "--fallback", "onnxruntime")
    done = anatune(*words, variables=os.environ)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "part 2 of 4, 3 nodes left to onnxruntime: " in text
    assert "SplitToSequence (node split): " in text
    done = anatune("run", tmp_path / "out", "--profile", "-o", tmp_path / "y.npz", variables=os.environ)
    assert done.returncode == 0, done.stderr
    assert "z: 4x5 float32, largest magnitude " in done.stdout
    assert "part 4 of 4, 1 node left to onnxruntime: " in done.stdout
    assert np.load(tmp_path / "y.npz")["places"].shape[0] == 2


@pytest.mark.slow
def test_a_decoder_runs_with_tokens_held(tmp_path):
    import onnx

    from tests.unit.network.compiling.decoders import decoder, weights_of

    onnx.save(decoder(weights_of()), str(tmp_path / "decoder.onnx"))
    words = ("compile", tmp_path / "decoder.onnx", "-o", tmp_path / "out", "--threads", 1, "--state", "auto")
    done = anatune(*words, "--size", "past=0..24", variables=os.environ)
    assert done.returncode == 0, done.stderr
    words = ("run", tmp_path / "out", "--size", "tokens=3", "--benchmark", "--runs", 2, "-o")
    for held, name in (([], "none.npz"), (["--size", "past=20"], "some.npz")):
        done = anatune(*words, tmp_path / name, *held, variables=os.environ)
        assert done.returncode == 0, done.stderr
        assert "output0: 1x3x20 float32" in done.stdout
    first, second = (np.load(tmp_path / name)["output0"] for name in ("none.npz", "some.npz"))
    assert not np.allclose(first, second)  # the same tokens, with others before them
    done = anatune(*words, tmp_path / "more.npz", "--size", "past=25", variables=os.environ)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "size past is 25, expected 0 to 24" in done.stderr


def test_a_state_that_does_not_grow_begins_as_the_model_says(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    x, past, y, present = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "past", "y", "present")
    )
    nodes = [helper.make_node("Add", ["x", "past"], ["present"]), helper.make_node("Neg", ["present"], ["y"])]
    graph = helper.make_graph(nodes, "sums", [x, past], [y, present])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    words = ("compile", tmp_path / "m.onnx", "-o", tmp_path / "out", "--threads", 1, "--state", "present=past")
    done = anatune(*words, variables=os.environ)
    assert done.returncode == 0, done.stderr
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))
    words = ("run", tmp_path / "out", "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npz")
    done = anatune(*words, "--benchmark", "--runs", 1, variables=os.environ)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "y.npz")["output0"], -np.arange(4))


def test_bad_words_are_one_line(folder, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"no array")
    np.save(tmp_path / "y.npy", np.zeros((2, 2), np.float32))
    for words, status, said in (
        (("run", tmp_path), 1, "model.json"),
        (("run", folder, "--input", tmp_path / "x.npy"), 2, "x.npy"),
        (("run", folder, "--input", tmp_path / "y.npy"), 1, "input data is 2x2 float32, expected 1x4x8x8 float32"),
        (("compile", tmp_path / "no.onnx", "-o", tmp_path / "o"), 1, "no.onnx"),
        (("compile", tmp_path / "x.npy", "-o", tmp_path / "o", "--input-shape", "1xA"), 2, "1xA"),
        (("compile", folder.parent / "network.onnx", "-o", tmp_path / "o", "--input-shape", "1", "--input-shape", "2"),
         1, "2 shapes"),
        (("compile", folder.parent / "network.onnx", "-o", tmp_path / "o", "--size", "batch"), 2, "batch"),
        (("compile", folder.parent / "network.onnx", "-o", tmp_path / "o", "--size", "n=2"), 1, "batch"),
        (("compile", folder.parent / "network.onnx", "-o", tmp_path / "o", "--size", "batch=0"), 1, "'batch' is '0'"),
        (("run", folder, "--size", "batch=2"), 1, "batch"),
        (("run", folder, "--size", "batch=many"), 2, "batch=128"),
        (("compile", tmp_path / "x.npy", "-o", tmp_path / "o", "--records", tmp_path / "no.sqlite", "--resume"),
         1, "no.sqlite"),
        (("compile", tmp_path / "x.npy", "-o", tmp_path / "o", "--hw", "rtx3090", "--threads", "2"), 2, "--threads"),
        (("compile", tmp_path / "x.npy", "-o", tmp_path / "o", "--hw", "rtx3090"), 1, "ONNX"),
        (("compile", tmp_path / "x.npy", "-o", tmp_path / "o", "--hw", "mi50"), 1, "mi50"),
    ):  # fmt: skip
        done = anatune(*words, variables=os.environ)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
        assert said in done.stderr
        check_texts([done.stderr])
    assert not (tmp_path / "o").exists()


def test_devices_are_compared_without_compiling(folder):
    pytest.importorskip("triton")
    network = (folder.parent / "network.onnx", "--input-shape", "1x4x8x8")
    words = ("compile", *network, "--hw", "h100,a100_sxm", "--compare", "--precision", "bfloat16")
    done = anatune(*words, "--price", "h100=2.5", variables=os.environ)
    assert done.returncode == 0, done.stderr
    assert "a million runs cost" in done.stdout
    assert "h100_sxm" in done.stdout
    told = json.loads(anatune(*words, "--json", variables=os.environ).stdout)
    assert [one["hardware"] for one in told] == ["h100_sxm", "a100_sxm"]
    assert all(one["predicted_s"] > 0 and one["per_million_runs"] is None for one in told)
    for more, message in (
        (("--price", "x=1"), "--price is 'x=1', expected one of h100, a100_sxm and an amount"),
        (("--trials", "3"), "leave out --trials"),
    ):
        done = anatune(*words, *more, variables=os.environ)
        assert (done.returncode, message in done.stderr) == (2, True)
    done = anatune("compile", *network, "--hw", "h100", variables=os.environ)
    assert (done.returncode, "-o/--output is missing" in done.stderr) == (2, True)

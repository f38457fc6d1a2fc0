"""Files of models that are damaged, or point at what is not theirs: one line each."""

import os
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.relax.frontends import import_model
from anatune.network.relax.onnx_files import onnx_inputs
from tests.unit.network.compiling import models
from tests.wording import refuses

pytest.importorskip("tvm")


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("onnx")
    (tmp_path / "models").mkdir()
    models.onnx_network(tmp_path / "models" / "model.onnx")
    return tmp_path / "models" / "model.onnx"


def with_external(path, **entries):
    """Let an ONNX file's weight lie in a file of its own, of which the file says this."""
    import onnx

    model = onnx.load(path)
    (weight,) = model.graph.initializer
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "0", "length": str(len(weight.raw_data)), **entries}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    content = weight.raw_data
    weight.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return content


def refused(path, match):
    with refuses(WorkloadError) as caught:
        import_model(path).graph()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"location": "../w.bin"}, r"w\.bin.*expected weights in files of the same folder"),
        ({"location": "{outside}"}, r"w\.bin.*expected weights in files of the same folder"),
        ({"location": "link.bin"}, r"link\.bin.*expected weights in files of the same folder"),
        ({"location": ""}, "is no file: weights in files of their own"),
        ({"location": "."}, "is no file: weights in files of their own"),
        ({"location": "pipe"}, "is no file: weights in files of their own"),
        ({"location": "none.bin"}, r"none\.bin is missing: weights in files of their own"),
        ({"location": "a\0b"}, "missing: weights in files of their own"),
        ({"location": "a" * 5000}, "file name too long"),
        ({"offset": "-1"}, "expected weights in files of the same folder"),
        ({"offset": "x"}, "expected weights in files of the same folder"),
        ({"offset": "9" * 30}, r"w\.bin has 1,152 bytes, model\.onnx expects 1,000"),
        ({"length": "-5"}, "expected weights in files of the same folder"),
        ({"length": "x"}, "expected weights in files of the same folder"),
        ({"length": "9" * 5000}, "expected weights in files of the same folder"),
        ({"length": "1153"}, r"w\.bin has 1,152 bytes, model\.onnx expects 1,153 at least"),
        ({"length": "100"}, r"model\.onnx: tensor .* cannot be read"),
    ],
    ids=lambda value: " ".join(f"{key} {text[:8]!r}" for key, text in value.items()) if isinstance(value, dict) else "",
)
def test_external_weights_that_are_not_where_they_should_be(path, entries, said):
    outside = path.parent.parent / "w.bin"
    content = with_external(path, **{key: text.format(outside=outside) for key, text in entries.items()})
    outside.write_bytes(content)
    (path.parent / "w.bin").write_bytes(content)
    (path.parent / "link.bin").symlink_to(outside)
    os.mkfifo(path.parent / "pipe")
    refused(path, said)


def test_external_weights_are_those_of_the_file(path):
    x = np.ones((1, 4, 8, 8), np.float32)
    (want,), _ = import_model(path).reference([x])
    (path.parent / "w.bin").write_bytes(with_external(path, unknown="\x1b[31m"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = import_model(path)
    np.testing.assert_array_equal(read.reference([x])[0][0], want)


@pytest.mark.parametrize("inner", ["", "onnx"])
def test_links_of_a_model_and_its_weights_lead_to_one_folder(path, tmp_path, inner):
    """The cache of huggingface_hub: names are links to files that are called by their digests."""
    x = np.ones((1, 4, 8, 8), np.float32)
    (want,), _ = import_model(path).reference([x])
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / inner
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "bbb").write_bytes(with_external(path))
    path.rename(blobs / "aaa")
    for name, blob in (("model.onnx", "aaa"), ("w.bin", "bbb")):
        (snapshot / name).symlink_to(os.path.relpath(blobs / blob, snapshot))
    np.testing.assert_array_equal(import_model(snapshot / "model.onnx").reference([x])[0][0], want)
    (tmp_path / "secret").write_bytes((blobs / "bbb").read_bytes())
    (snapshot / "w.bin").unlink()
    (snapshot / "w.bin").symlink_to(tmp_path / "secret")
    refused(snapshot / "model.onnx", r"w\.bin.*expected weights in files of the same folder")


def test_weights_may_be_links_within_the_folder(path):
    x = np.ones((1, 4, 8, 8), np.float32)
    (want,), _ = import_model(path).reference([x])
    (path.parent / "other.bin").write_bytes(with_external(path))
    (path.parent / "w.bin").symlink_to("other.bin")
    np.testing.assert_array_equal(import_model(path).reference([x])[0][0], want)


def test_damaged_files_are_read_or_refused_in_one_line(path, capsys):
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    outside = [at for at in range(len(whole)) if not 180 < at < len(whole) - 180]  # of the weight's values
    refusals = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for at in random.choice(outside, random.integers(1, 4)):
            damaged[at] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        for read in (lambda: import_model(path).graph(), lambda: onnx_inputs(path)):
            try:
                read()
            except WorkloadError as error:
                refusals += 1
                assert str(error).isprintable()  # noqa: PT017 - that any other is raised is the failure
    assert refusals
    assert capsys.readouterr().out == ""


def test_inputs_that_are_no_tensors(path):
    import onnx

    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = 33
    path.write_bytes(model.SerializeToString())
    refused(path, r"input data is not a tensor of an ONNX type; export it again")
    with refuses(WorkloadError):
        onnx_inputs(path)


def test_models_without_outputs(path):
    import onnx

    model = onnx.load(path)
    del model.graph.output[:]
    path.write_bytes(model.SerializeToString())
    for source in (path, model):
        refused(source, r"no ONNX model, expected one with operators and outputs; export it again")


def test_modules_without_outputs():
    torch = pytest.importorskip("torch")

    class Constant(torch.nn.Module):
        def forward(self, x):
            return x + 1

    with refuses(WorkloadError):
        import_model(Constant().eval(), 5).graph()


def test_example_inputs_of_other_sizes_than_the_model_says(path):
    import onnx

    wanted = onnx.load(path).graph.input[0]
    sizes = [size.dim_value or 1 for size in wanted.type.tensor_type.shape.dim]
    for given in ([*sizes[:-1], sizes[-1] + 1], sizes[:-1]):
        with refuses(WorkloadError):
            import_model(path, [np.zeros(given, np.float32)])


@pytest.mark.parametrize("example", [{"data": [1.0]}, "abc", [None], [{"data": 1}]])
def test_example_inputs_that_are_no_arrays(path, example):
    with refuses(WorkloadError):
        import_model(path, example)


_READ = """
import logging, sys
from pathlib import Path
from anatune.network.relax.frontends import import_model
from anatune.errors import WorkloadError
for path in sys.argv[1:]:
    try:
        import_model(path)
    except WorkloadError as error:
        print(error)
logging.getLogger("torch.export").warning("heard again")
"""


@pytest.mark.slow
def test_damaged_programs_are_a_line_without_what_pytorch_logs(tmp_path):
    torch = pytest.importorskip("torch")
    whole = tmp_path / "whole.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.zeros(1, 4),)), str(whole))
    paths = []
    for size in (0, 1000, whole.stat().st_size - 100):
        paths.append(tmp_path / f"{size}.pt2")
        paths[-1].write_bytes(whole.read_bytes()[:size])
    paths.append(tmp_path / "other.pt2")
    with zipfile.ZipFile(paths[-1], "w") as archive:
        archive.writestr("model/version", "0")
    done = subprocess.run([sys.executable, "-c", _READ, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths)
    assert all("; expected a file of torch.export.save; export it again" in line for line in lines)
    (line,) = done.stderr.splitlines()
    assert line.endswith("heard again")

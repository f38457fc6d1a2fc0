"""Models whose nodes that cannot be read are left to onnxruntime: compiled, run, told, saved, loaded."""

import sys

import numpy as np
import pytest

import anatune
from anatune.errors import AnatuneError, BuildError, MissingDependencyError, RecordError, RunError, WorkloadError
from tests.unit.network.compiling import folders
from tests.wording import refuses

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
helper = onnx.helper
node = helper.make_node


def network(*, kind=1, nodes=(), outputs=("z", "places")):
    """Return a model with a product, a sequence, a product, and a result whose size depends on data."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((8, 6)), "v": random.standard_normal((6, 5))}
    own = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        node("SplitToSequence", ["a"], ["parts"], name="split", axis=1),
        node("ConcatFromSequence", ["parts"], ["b"], name="joined", axis=1),
        node("Shape", ["a"], ["sizes"]),
        node("Reshape", ["b", "sizes"], ["c"], name="sized"),
        node("MatMul", ["c", "v"], ["z"], name="second"),
        node("NonZero", ["z"], ["places"], name="places"),
    ]
    graph = helper.make_graph(
        list(nodes) or own,
        "network",
        [helper.make_tensor_value_info("x", kind, (4, 8))],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def compiled(model):
    return anatune.compile(model, threads=1, fallback="onnxruntime")


@pytest.fixture
def folder(compiled, tmp_path):
    compiled.save(tmp_path / "saved")
    return tmp_path / "saved"


def session(model):
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def check(compiled, model, x):
    for own, other in zip(compiled(x), session(model).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_parts_together_are_the_model(compiled, model):
    for seed in (0, 1):
        check(compiled, model, *compiled.random_inputs(seed))
    assert [bool(part.left) for part in compiled.summary.parts] == [False, True, False, True]
    assert [(one.name, one.dtype, one.shape) for one in compiled.summary.outputs] == [
        ("z", "float32", (4, 5)),
        ("places", "object", ()),
    ]
    assert len(compiled.summary.kernels) == 2
    assert compiled.benchmark(runs=2)["runs"] == 2


def test_the_report_names_nodes_reasons_and_shares(compiled):
    text = compiled.report(measure=True)
    assert "part 1 of 4, 1 node compiled: " in text
    assert "part 2 of 4, 3 nodes left to onnxruntime: " in text
    assert "SplitToSequence (node split): " in text
    assert "Reshape (node sized): " in text
    assert text.count("% of the time (") == 4
    measured = compiled.profile(repeats=2)
    assert {"part2.onnxruntime", "part4.onnxruntime"} < {*measured}
    assert {kernel.name for kernel in compiled.summary.kernels} < {*measured}


def test_a_saved_model_runs_and_takes_the_place_of_another(compiled, folder, model):
    check(anatune.load(folder), model, *compiled.random_inputs(3))
    names = {path.suffix for path in folder.iterdir()}
    assert names == {".so", ".bin", ".onnx", ".json"}
    whole = anatune.compile(network(nodes=[node("MatMul", ["x", "w"], ["a"])], outputs="a"), threads=1, check=False)
    whole.save(folder)
    assert {path.suffix for path in folder.iterdir()} == {".so", ".bin", ".json"}
    assert not anatune.load(folder).summary.parts


def test_without_onnxruntime_a_line_says_what_is_missing(folder, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for action in (lambda: anatune.load(folder), lambda: anatune.compile(model, fallback="onnxruntime")):
        with refuses(MissingDependencyError):
            action()


def test_damaged_parts_are_refused(folder):
    (part, *_) = folder.glob("*.onnx")
    content = part.read_bytes()
    part.write_bytes(content[:-1] + b"?")
    with refuses(RecordError):
        anatune.load(folder)
    part.write_bytes(content)
    changed = folders.contents(folder)
    changed["division"]["parts"][1]["left"] = []
    folders.signed(folder, changed)
    with refuses(RecordError):
        anatune.load(folder)


def test_other_inputs_are_refused(compiled):
    with refuses(RunError):
        compiled(np.zeros((4, 8)))


def test_text_goes_in_and_out(tmp_path):
    nodes = [
        node(
            "LabelEncoder", ["x"], ["numbers"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_floats=[1.0, 2.0]
        ),
        node("MatMul", ["numbers", "w"], ["z"]),
        node("Identity", ["x"], ["places"]),
    ]
    model = network(kind=onnx.TensorProto.STRING, nodes=nodes)
    with refuses(WorkloadError):
        anatune.compile(model, threads=1)
    compiled = anatune.compile(model, threads=1, fallback="onnxruntime")
    z, places = compiled(np.full((4, 8), "b"))
    np.testing.assert_allclose(z, session(model).run(None, {"x": np.full((4, 8), "b")})[0], rtol=1e-5)
    assert places.tolist() == [["b"] * 8] * 4
    from anatune.adapters.onnx import InferenceSession

    own = InferenceSession(model, threads=1, fallback="onnxruntime")
    np.testing.assert_array_equal(own.run(["z"], {"x": np.full((4, 8), "b")})[0], z)


def test_sessions_leave_models_whole_that_have_nothing_to_compile():
    from anatune.adapters.onnx import InferenceSession

    model = network(nodes=[node("NonZero", ["x"], ["z"])], outputs="z")
    own, x = InferenceSession(model, threads=1, fallback="onnxruntime"), np.eye(4, 8, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(own.run(None, {"x": x})[0], np.stack(np.nonzero(x)))
    unknown = network(nodes=[node("Relu", ["x"], ["z"], domain="org.example")], outputs="z")
    with refuses(WorkloadError):
        InferenceSession(unknown, threads=1, fallback="onnxruntime").run(None, {"x": x})


def test_a_part_that_cannot_be_compiled_is_left_too(model, monkeypatch):
    from anatune.network.compiling import session as compiling

    compile_part = compiling.compile_with_fallback

    def refusing(source, target):
        if source.onnx[0].graph.node[0].name == "second":
            raise BuildError("no code for it")
        return compile_part(source, target)

    monkeypatch.setattr(compiling, "compile_with_fallback", refusing)
    compiled = anatune.compile(model, threads=1, check=False, fallback="onnxruntime")
    check(compiled, model, *compiled.random_inputs())
    assert "MatMul (node second): cannot be compiled: no code for it" in compiled.report()


@pytest.mark.parametrize(
    "make",
    [
        lambda: anatune.compile(network(), fallback="torch"),
        lambda: anatune.compile(network(), hw="rtx3090", fallback="onnxruntime"),
        lambda: anatune.compile(network(nodes=[node("NonZero", ["x"], ["z"])], outputs="z"), fallback="onnxruntime"),
        lambda: anatune.compile(
            network(nodes=[node("Wavelet", ["x"], ["z"], domain="org.example")], outputs="z"), fallback="onnxruntime"
        ),
        lambda: anatune.compile(network(), threads=1),
    ],
)
def test_what_cannot_be_is_a_line(make):
    with refuses(AnatuneError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_model_that_can_be_read_is_not_divided():
    model = network(nodes=[node("MatMul", ["x", "w"], ["a"])], outputs="a")
    assert not anatune.compile(model, threads=1, fallback="onnxruntime").summary.parts


def test_a_model_whose_other_nodes_nothing_needs_is_one_part(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    compiled = anatune.compile(network(outputs="a"), threads=1, check=False, fallback="onnxruntime")
    assert [part.left for part in compiled.summary.parts] == [()]
    (x,) = compiled.random_inputs()
    assert compiled(x).shape == (4, 6)

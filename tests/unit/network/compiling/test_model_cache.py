"""Compiled models on disk: the same answer for the same question, and none for any other."""

from collections import UserDict

import numpy as np
import pytest

import anatune
from anatune.network.compiling import compiled, model_cache, session
from anatune.network.compiling.model_cache import ModelCache
from anatune.network.compiling.request import CompileRequest, MeasuringOptions
from tests.unit.network.compiling.onnx_models import _Net
from tests.wording import refuses

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
WIDTH = 16


def network(path, last=WIDTH, factor=1.0, apart=False):
    net = _Net(3)
    hidden = net.op("Relu", net.op("MatMul", "x", net.known(np.eye(WIDTH) * factor, np.float32)))
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, WIDTH])
    net.write(path, x, net.op("MatMul", hidden, net.weight(WIDTH, last)))
    if apart:
        path.with_suffix(".bin").unlink(missing_ok=True)  # what is there would be added to
        onnx.save(
            onnx.load(path), path, save_as_external_data=True, location=f"{path.stem}.bin", size_threshold=0,
            convert_attribute=False,
        )  # fmt: skip
    return path


@pytest.fixture
def compile_model(tmp_path, monkeypatch):
    """Return `session.compile` with a folder of its own, and what it compiled rather than found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_cache, "MOST_BYTES", 1 << 30)
    made = []
    compile_it = session.compile_with_fallback
    monkeypatch.setattr(session, "compile_with_fallback", lambda *given: made.append(None) or compile_it(*given))

    def call(*given, **options):
        before = len(made)
        return session.compile(*given, threads=1, **options), len(made) > before

    return call


def test_an_equal_call_is_answered_with_the_same_model(tmp_path, compile_model, monkeypatch):
    path = network(tmp_path / "a.onnx")
    first, is_new = compile_model(path)
    assert is_new
    monkeypatch.setattr(compiled, "LibraryRunner", None)  # what is only saved need not be loaded
    second, is_new = compile_model(str(path))
    assert not is_new
    second.save(tmp_path / "saved")
    monkeypatch.undo()
    assert second.summary == first.summary
    (x,) = first.random_inputs(7)
    assert np.array_equal(second(x), first(x))
    assert np.array_equal(anatune.load(tmp_path / "saved")(x), first(x))
    first.save(tmp_path / "other")
    assert {p.name for p in (tmp_path / "saved").iterdir()} == {p.name for p in (tmp_path / "other").iterdir()}


def test_changed_models_are_compiled(tmp_path, compile_model):
    for options in ({}, {"factor": 2.0}, {"last": WIDTH + 1}):
        model, is_new = compile_model(network(tmp_path / "a.onnx", **options), check=True)
        assert is_new, options
        assert model.summary.check is not None
    assert not compile_model(network(tmp_path / "b.onnx"), check=True)[1]  # the first one, under another name


def test_weights_beside_the_file_count(tmp_path, compile_model):
    path = network(tmp_path / "a.onnx", apart=True)
    assert compile_model(path)[1]
    assert not compile_model(path)[1]
    before = path.read_bytes()
    network(path, factor=2.0, apart=True)
    assert path.read_bytes() == before
    assert compile_model(path)[1]


def test_whatever_a_model_depends_on_is_asked(tmp_path, monkeypatch):
    path, host = network(tmp_path / "a.onnx"), anatune.hardware("xeon_gold_6230r")
    monkeypatch.setattr(model_cache, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr("anatune.tuning.machine.allowed_cores", lambda: 8)
    keys = []

    def ask(example=None, hardware=host, **asked):
        keys.append(ModelCache(path, example, hardware, CompileRequest(**asked), folder=tmp_path / "cache")._key)

    ask()
    ask(threads=3)
    ask(accuracy="relaxed")
    ask(precision="bfloat16")
    ask(check=False)
    ask(hardware=host.with_threads(1))
    ask(hardware=anatune.hardware("rtx3090"))
    ask([np.zeros((4, WIDTH), np.float32)])
    ask([np.zeros((5, WIDTH), np.float32)])
    ask([np.zeros((4, WIDTH), np.int64)])
    ask([np.ones((4, WIDTH), np.int64)])
    for name in ("sources_of", "versions_of", "processor_flags", "choose_threads", "digest_of_cards"):
        with monkeypatch.context() as patched:
            patched.setattr(model_cache, name, lambda *_: 77)
            ask()
    assert None not in keys
    assert len(set(keys)) == len(keys)
    ask([np.ones((4, WIDTH), np.float32)])  # values of numbers that name nothing do not count
    assert keys[-1] == keys[7]


@pytest.mark.parametrize(
    "refused",
    [
        *({"threads": threads} for threads in (0, False, True, 1.0, "x", [2], 1 << 20)),
        {"dynamic_shapes": ({0: 2},)},
        {"sizes": 5},
        {"state": 3},
        {"state": "auto"},
    ],
    ids=str,
)
def test_what_is_refused_is_refused_whatever_is_kept(tmp_path, compile_model, refused):
    path = network(tmp_path / "a.onnx")
    compile_model(path)
    with refuses(anatune.errors.AnatuneError):
        session.compile(path, **refused)


def test_mappings_are_told_apart_by_what_they_hold(tmp_path):
    class Sizes(UserDict):
        __repr__ = object.__repr__  # an address, which another object has later

    path, host = network(tmp_path / "a.onnx"), anatune.hardware("xeon_gold_6230r")
    keys = [
        ModelCache(path, example, host, CompileRequest(), [sizes, None], tmp_path)._key
        for sizes, example in ((Sizes(n=1), None), (Sizes(n=2), None), (Sizes(n=1), [np.array([None])]))
    ]
    assert keys[0] == ModelCache(path, None, host, CompileRequest(), [{"n": 1}, None], tmp_path)._key
    assert keys[0] != keys[1]
    assert keys[2] is None  # bytes of objects are addresses, too


def test_a_file_that_changes_while_it_is_compiled_is_not_kept(tmp_path, compile_model, monkeypatch):
    path = network(tmp_path / "a.onnx")
    before, compile_it = path.read_bytes(), session.compile_with_fallback

    def compile_and_change(*given):
        compiled = compile_it(*given)
        network(path, factor=2.0)
        return compiled

    with monkeypatch.context() as patched:
        patched.setattr(session, "compile_with_fallback", compile_and_change)
        compile_model(path)
    for content in (path.read_bytes(), before):
        path.write_bytes(content)
        assert compile_model(path)[1]


@pytest.mark.parametrize("asked", [{"trials": 5}, {"records": "records.db"}])
def test_what_is_measured_is_not_kept(tmp_path, asked):
    path = network(tmp_path / "a.onnx")
    assert (
        ModelCache(
            path,
            None,
            anatune.hardware("rtx3090"),
            CompileRequest(measuring=MeasuringOptions(**asked)),
            folder=tmp_path,
        )._key
        is None
    )


def test_damaged_entries_are_compiled_again(tmp_path, compile_model):
    path = network(tmp_path / "a.onnx")
    first, _ = compile_model(path)
    (x,) = first.random_inputs()
    expected = first(x)
    (entry,) = tmp_path.rglob("*.model")
    whole = entry.read_bytes()
    other = network(tmp_path / "b.onnx", factor=2.0)
    compile_model(other)
    (foreign,) = set(tmp_path.rglob("*.model")) - {entry}
    for content in (b"", b"damaged", whole[:-1], whole[:100] + b"x" + whole[101:], foreign.read_bytes()):
        entry.write_bytes(content)
        model, is_new = compile_model(path)
        assert is_new
        assert np.allclose(model(x), expected)
        assert not compile_model(path)[1]


def test_damaged_weights_are_compiled_again(tmp_path, compile_model):
    path = network(tmp_path / "a.onnx")
    (x,) = (first := compile_model(path)[0]).random_inputs()
    expected = first(x)
    (entry,) = tmp_path.rglob("*.weights")
    whole = entry.read_bytes()
    for content in (b"", whole[:-1], whole[:100] + b"x" + whole[101:], None):
        entry.unlink() if content is None else entry.write_bytes(content)
        model, is_new = compile_model(path)
        assert is_new
        assert np.array_equal(model(x), expected)
        assert entry.read_bytes() == whole
        assert not compile_model(path)[1]


def test_saved_models_and_the_cache_share_no_file(tmp_path, compile_model):
    path = network(tmp_path / "a.onnx")
    for name in ("first", "second"):
        compile_model(path)[0].save(tmp_path / name)
    (x,) = (model := anatune.load(tmp_path / "second")).random_inputs()
    expected = model(x)
    (weights,) = (tmp_path / "first").glob("weights-*")
    weights.write_bytes(bytes(weights.stat().st_size))
    assert np.array_equal(anatune.load(tmp_path / "second")(x), expected)
    cached, is_new = compile_model(path)
    assert not is_new
    assert np.array_equal(cached(x), expected)


def test_a_cache_that_cannot_be_written_is_read(tmp_path, compile_model, monkeypatch):
    path = network(tmp_path / "a.onnx")
    compile_model(path)
    monkeypatch.setattr("os.utime", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not owner")))
    assert not compile_model(path)[1]


def test_it_can_be_switched_off(tmp_path, compile_model, monkeypatch):
    monkeypatch.setenv("ANATUNE_CACHE", "off")
    path = network(tmp_path / "a.onnx")
    for _ in range(2):
        assert compile_model(path)[1]
    assert not [*tmp_path.rglob("*.model"), *tmp_path.rglob("*.o")]


def test_files_that_cannot_be_read_say_so_as_before(tmp_path, compile_model):
    with refuses(anatune.errors.WorkloadError):
        compile_model(tmp_path / "missing.onnx")

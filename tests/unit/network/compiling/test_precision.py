"""Models in 16 bits compute what float64 says, as exactly as their outputs can say it."""

import numpy as np
import pytest

import anatune
from anatune.codegen.cpu import lower as lowering
from anatune.emit.llvm import LlvmCode
from anatune.errors import RunError, SpaceError
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling import compiled as compiled_models
from anatune.network.compiling.session import compile as compile_model
from anatune.network.compiling.targets import cpu
from anatune.network.relax import kernels
from anatune.network.relax.originals import onnx_reference
from tests.machine import fixed
from tests.unit.network.compiling import decoders
from tests.unit.network.compiling.models import difference
from tests.unit.templates.cpu.program.test_amx import with_loops  # noqa: F401
from tests.wording import refuses, warns

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
onnx_models = pytest.importorskip("tests.unit.network.compiling.onnx_models")

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def narrowed(model, dtype):
    """Return an ONNX model with all its float32 tensors in 16 bits."""
    number = onnx.helper.np_dtype_to_tensor_dtype(array_dtype(dtype))
    for weight in model.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(weight).astype(array_dtype(dtype))
            weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = number
    for own in (own for node in model.graph.node if node.op_type == "Cast" for own in node.attribute):
        own.i = number if own.i == onnx.TensorProto.FLOAT else own.i
    if any(node.op_type == "Conv" for node in model.graph.node):
        model.opset_import[0].version = 22  # the first one with convolutions of bfloat16
    return model


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("write", [onnx_models.mobilenet_v2, onnx_models.bert_base], ids=lambda one: one.__name__)
def test_onnx_models_in_16_bits(tmp_path, write, dtype):
    write(tmp_path / "model.onnx")
    model = narrowed(onnx.load(tmp_path / "model.onnx"), dtype)
    compiled = compile_model(model, threads=1)
    assert not compiled.summary.unscheduled
    assert {one.dtype for one in compiled.summary.outputs} == {dtype}
    inputs = compiled.random_inputs(seed=3)
    (want,), _ = onnx_reference(model, "model")(inputs)
    assert want.dtype == np.float64
    got = compiled(*inputs)
    assert got.dtype == array_dtype(dtype)
    assert difference(got.astype(np.float64), want) <= ROUNDING[dtype]


@pytest.mark.slow
def test_a_cache_in_16_bits_is_kept_in_float32():
    weights = decoders.weights_of()
    compiled = compile_model(
        narrowed(decoders.decoder(weights), "float16"), threads=1, state="auto", sizes={"past": (0, 8)}
    )
    assert {array.dtype.name for array in compiled.state.values()} == {"float32"}
    ids = np.array([3, 1, 4])
    want = decoders.logits_of(weights, ids)
    for place, number in enumerate(ids):
        got = compiled(np.array([[number]]))
        assert got.dtype == np.float16
        assert difference(got[0, 0].astype(np.float64), want[place]) <= 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ROUNDING)
def test_modules_of_pytorch_in_16_bits(dtype):
    torch = pytest.importorskip("torch")
    module = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True).eval().to(getattr(torch, dtype))
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0)).to(module.linear1.weight.dtype)
    compiled = compile_model(module, x, threads=1)
    got = compiled(x)
    assert got.dtype == x.dtype
    with torch.no_grad():
        want = module.double()(x.double())
    assert difference(got.double().numpy(), want.numpy()) <= ROUNDING[dtype]
    assert compiled.summary.check.reference == "PyTorch in float64"


@pytest.fixture
def software(monkeypatch):
    """Products of 16 bits are as good as instructions for them."""
    monkeypatch.setattr(cpu, "has_instruction", lambda workload, hardware: workload.dtype in ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("write", [onnx_models.inception_v3, onnx_models.bert_base], ids=lambda one: one.__name__)
def test_models_in_float32_with_products_of_bfloat16(tmp_path, software, write):
    write(tmp_path / "model.onnx")
    compiled = compile_model(tmp_path / "model.onnx", threads=1, precision="bfloat16")
    assert compiled.summary.precision == "bfloat16"
    assert 1e-5 < compiled.summary.check.error <= 2.0**-7
    assert {one.dtype for one in compiled.summary.outputs} == {"float32"}
    assert all(
        "--dtype bfloat16" in kernel.workload for kernel in compiled.summary.kernels if "attention" not in kernel.name
    )
    compiled.save(tmp_path / "saved")
    assert anatune.load(tmp_path / "saved").summary.precision == "bfloat16"


def test_a_model_in_16_bits_has_products_of_its_own_where_there_are_instructions(tmp_path, software):
    onnx_models.mobilenet_v2(tmp_path / "model.onnx")
    model = narrowed(onnx.load(tmp_path / "model.onnx"), "bfloat16")
    summary = compile_model(model, threads=1).summary
    assert (summary.precision, summary.outputs[0].dtype) == ("bfloat16", "bfloat16")
    assert compile_model(model, threads=1, precision="float32").summary.precision == "float32"


def test_precisions_that_are_none_or_not_the_processors(tmp_path):
    onnx_models.vgg16(tmp_path / "model.onnx")
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", precision="half")
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", hw=fixed(), precision="bfloat16")
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", hw="rtx3090", precision="float32")


def test_models_on_tiles(tmp_path, with_loops, monkeypatch):  # noqa: F811
    hardware, texts = with_loops
    for module in (cpu, compiled_models):
        monkeypatch.setattr(module, "allow_tiles", lambda features: None)
    monkeypatch.setattr(cpu, "check_instructions", lambda hardware: None)
    monkeypatch.setattr(kernels, "parse_program", lowering.parse_program)
    monkeypatch.setattr(LlvmCode, "fence", lambda self, pointers, vectors, register: (list(pointers), list(vectors)))
    onnx_models.mobilenet_v2(tmp_path / "model.onnx")
    compiled = compile_model(tmp_path / "model.onnx", hw=hardware, threads=1, precision="bfloat16")
    assert any("tdpbf16ps" in text for text in texts)
    assert "amx" in {kernel.template for kernel in compiled.summary.kernels}
    assert {"amx-tile", "amx-bf16"} <= set(compiled.summary.features)
    assert 1e-5 < compiled.summary.check.error <= 2.0**-7


def test_tiles_that_the_system_does_not_give(monkeypatch):
    def refused(features):
        raise RunError("AMX's tiles: Linux refuses")

    monkeypatch.setattr(cpu, "allow_tiles", refused)
    with warns(UserWarning):
        assert not cpu._drop_unusable_tiles(anatune.hardware("xeon_8480")).amx

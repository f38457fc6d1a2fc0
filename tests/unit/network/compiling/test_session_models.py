"""The seven models in small: from hand-written ONNX files; compared in float64."""

import numpy as np
import pytest

from anatune.network.compiling.session import compile as compile_model
from anatune.network.relax.originals import onnx_reference
from tests.tiers import slow_from
from tests.unit.network.compiling.models import difference

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
onnx_models = pytest.importorskip("tests.unit.network.compiling.onnx_models")

FUSED = {
    "resnet18": {("bias", "relu"), ("bias", "add", "relu")},
    "resnet50": {("bias", "relu"), ("bias", "add", "relu")},
    "vgg16": {("bias", "relu"), ("bias",)},
    "mobilenet_v2": {("bias", "relu6"), ("bias", "add"), ("bias",)},
    "inception_v3": {("bias", "relu"), ("bias",)},
    "bert_base": {("bias", "gelu"), ("bias", "add")},
    "gpt2": {("bias", "gelu_tanh"), ("bias", "add")},
}


@pytest.mark.parametrize("write", slow_from(1, onnx_models.MODELS), ids=lambda one: one.__name__)
def test_onnx_files_compute_what_float64_says(tmp_path, write):
    path = tmp_path / "model.onnx"
    write(path)
    compiled = compile_model(path, threads=1)
    assert compiled.summary.check.reference == "ONNX's reference evaluator in float64"
    random = np.random.default_rng(7)
    (kind,) = compiled.summary.inputs
    x = (
        random.standard_normal(kind.shape).astype(np.float32)
        if kind.dtype == "float32"
        else random.integers(0, 50, kind.shape)
    )
    (want,), _ = onnx_reference(onnx.load(path), "model")([x])
    assert want.dtype == np.float64
    assert difference(compiled(x), want) <= 1e-5
    assert FUSED[write.__name__] <= {kernel.epilogue for kernel in compiled.summary.kernels}
    assert not compiled.summary.unscheduled

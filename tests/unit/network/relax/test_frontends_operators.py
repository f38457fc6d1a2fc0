"""Operators on all routes: around a product, on tensors without elements, those that are refused."""

import warnings
from importlib import import_module

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.compiling.session import compile as compile_model
from tests.unit.network.compiling.models import difference
from tests.wording import refuses

pytest.importorskip("tvm")

IMAGE = (1, 4, 6, 6)
NUMBERS = {
    "zero": np.float32(0), "six": np.float32(6), "low": np.float32(-0.2), "high": np.float32(0.4), "two": np.int64(2),
    "slopes": np.linspace(0.1, 0.5, 4, dtype=np.float32).reshape(4, 1, 1),
}  # fmt: skip
ACTIVATIONS = {
    "Relu6": ("Clip", ["zero", "six"], {}),
    "Clip, one bound": ("Clip", ["low"], {}),
    "Clip, the other bound": ("Clip", ["", "high"], {}),
    "HardSwish": ("HardSwish", [], {}),
    "HardSigmoid": ("HardSigmoid", [], {"alpha": 0.3, "beta": 0.4}),
    "LeakyRelu": ("LeakyRelu", [], {"alpha": 0.2}),
    "Elu": ("Elu", [], {"alpha": 0.5}),
    "Selu": ("Selu", [], {}),
    "Celu": ("Celu", [], {"alpha": 0.5}),
    "PRelu": ("PRelu", ["slopes"], {}),
    "Softplus": ("Softplus", [], {}),
    "Mish": ("Mish", [], {}),
    "Swish": ("Swish", [], {}),
    "Swish, another factor": ("Swish", [], {"alpha": 0.7}),
    "Sign": ("Sign", [], {}),
    "Sinh": ("Sinh", [], {}),
    "Pow, a whole exponent": ("Pow", ["two"], {}),
}


def write(path, nodes, inputs, known=None, opset=24):
    """Write nodes (operator, inputs, results, attributes) that compute "y" and "z"; return the model."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    made = [helper.make_node(op, given, results, f"the_{results[0]}", **more) for op, given, results, more in nodes]
    results = [name for node in made for name in node.output if name in ("y", "z")]
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kinds.FLOAT, None) for name in results],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (known or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, str(path))
    return model


def convolution(data, result):
    return "Conv", [data, "weight"], [result], {"kernel_shape": [3, 3], "pads": [1] * 4}


def check(path, model, *arrays):
    """Compile a file, run it on arrays, and compare what it returns with ONNX's own evaluator; return the model."""
    evaluator = import_module("onnx.reference").ReferenceEvaluator(model)
    compiled = compile_model(path, threads=1)
    got = compiled(*arrays)
    want = evaluator.run(None, dict(zip(evaluator.input_names, arrays, strict=True)))
    for own, other in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        assert own.shape == other.shape
        assert own.dtype == other.dtype
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
    return compiled


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_before_and_behind_a_product(tmp_path, name):
    (op, operands, attributes), path = ACTIVATIONS[name], tmp_path / "network.onnx"
    nodes = [
        (op, ["x", *operands], ["inner"], attributes),
        convolution("inner", "product"),
        (op, ["product", *operands], ["y"], attributes),
    ]
    known = {"weight": weight(4, 4, 3, 3), **{name: NUMBERS[name] for name in operands if name}}
    check(path, write(path, nodes, {"x": IMAGE}, known), weight(*IMAGE, seed=1))


@pytest.mark.parametrize("attribute", [{"value_floats": [0.5, 1, 1.5, 2, 2.5, 3]}, {"value_float": 0.5}])
def test_constants_in_an_attribute_of_their_own(tmp_path, attribute):
    path = tmp_path / "network.onnx"
    nodes = [("Constant", [], ["known"], attribute), ("Mul", ["x", "known"], ["y"], {})]
    check(path, write(path, nodes, {"x": IMAGE}), weight(*IMAGE))


def weight(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_bounds_that_are_inputs(tmp_path):
    path = tmp_path / "network.onnx"
    nodes = [convolution("x", "inner"), ("Clip", ["inner", "low", "high"], ["y"], {})]
    model = write(path, nodes, {"x": IMAGE, "low": (), "high": ()}, {"weight": weight(4, 4, 3, 3)})
    check(path, model, weight(*IMAGE, seed=1), *(np.array(bound, np.float32) for bound in (-0.3, 0.2)))


EMPTY = {
    "Concat with a constant": [("Concat", ["empty", "x"], ["y"], {"axis": 2})],
    "Concat with a result": [
        ("Slice", ["x", "three", "three", "axis"], ["none"], {}),
        ("Concat", ["none", "x", "none"], ["y"], {"axis": 2}),
    ],
    "Slice": [("Slice", ["x", "three", "one", "axis"], ["z"], {}), ("Relu", ["x"], ["y"], {})],
    "Split": [("Split", ["x", "parts"], ["some", "z", "more"], {"axis": 2}), ("Relu", ["more"], ["y"], {})],
    "Reshape": [
        ("Slice", ["x", "three", "three", "axis"], ["none"], {}),
        ("Reshape", ["none", "sizes"], ["z"], {"allowzero": 1}),
        ("Relu", ["x"], ["y"], {}),
    ],
    "MatMul of no terms": [
        ("Slice", ["x", "three", "three", "last"], ["none"], {}),
        ("Transpose", ["none"], ["turned"], {"perm": [0, 1, 3, 2]}),
        ("MatMul", ["none", "turned"], ["y"], {}),
    ],
    "MatMul of no rows": [
        ("Slice", ["x", "three", "three", "axis"], ["none"], {}),
        ("MatMul", ["none", "square"], ["z"], {}),
        ("MatMul", ["x", "square"], ["y"], {}),
    ],
}


@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(tmp_path, name):
    path, whole = tmp_path / "network.onnx", {"axis": [2], "last": [3], "one": [1], "three": [3], "parts": [2, 0, 4]}
    known = {name: np.array(one, np.int64) for name, one in {**whole, "sizes": [2, 0, 3]}.items()}
    known |= {"empty": np.zeros((1, 4, 0, 6), np.float32), "square": weight(6, 6)}
    check(path, write(path, EMPTY[name], {"x": IMAGE}, known), weight(*IMAGE))


def test_inputs_without_elements(tmp_path):
    path = tmp_path / "network.onnx"
    nodes = [("MatMul", ["x", "square"], ["inner"], {}), ("Concat", ["cache", "inner"], ["y"], {"axis": 2})]
    model = write(path, nodes, {"cache": (1, 4, 0, 6), "x": IMAGE}, {"square": weight(6, 6)})
    compiled = check(path, model, np.zeros((1, 4, 0, 6), np.float32), weight(*IMAGE))
    assert [one.shape for one in compiled.summary.inputs] == [(1, 4, 0, 6), IMAGE]


def test_operands_of_another_dtype_are_refused_where_they_are_read(tmp_path):
    path = tmp_path / "network.onnx"
    nodes = [("IsNaN", ["x"], ["truth"], {}), convolution("truth", "y")]
    write(path, nodes, {"x": IMAGE}, {"weight": weight(4, 4, 3, 3)})
    with refuses(WorkloadError):
        compile_model(path, check=False)


# ---- PyTorch ----


def module_of(function):
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 6)

        def forward(self, x, *more):
            return function(torch, self.linear(x), *more)

    torch.manual_seed(0)
    return torch, Network().eval()


FUNCTIONS = {
    "relu6": lambda torch, x: torch.nn.functional.relu6(x * 1.5).sin(),
    "hardswish": lambda torch, x: torch.nn.functional.hardswish(x),
    "hardsigmoid": lambda torch, x: torch.nn.functional.hardsigmoid(x),
    "selu": lambda torch, x: torch.nn.functional.selu(x),
    "heaviside": lambda torch, x: torch.heaviside(x, torch.tensor(0.5)),
    "a first cache": lambda torch, x: torch.cat([torch.tensor([]), x], dim=-2),
    "no cache": lambda torch, x: torch.cat([x.new_zeros(1, 4, 0, 6), x], dim=-2),
    "a slice of nothing": lambda torch, x: (x, x[:, :, 4:2], torch.cat([x[:, :, :0], x], 2)),
    "a part of nothing": lambda torch, x: torch.split(x, [2, 0, 4], 2),
    "no terms": lambda torch, x: x + torch.matmul(x[..., :0], x[..., :0].transpose(2, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("route", ["module", "program", "compiler"])
def test_what_pytorch_computes(name, route):
    torch, module = module_of(FUNCTIONS[name])
    x = torch.from_numpy(weight(*IMAGE))
    with torch.no_grad():
        want = module(x)
        if route == "compiler":
            torch._dynamo.reset()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # nothing is left to PyTorch
                got = torch.compile(module, backend="anatune", options={"threads": 1})(x)
        else:
            got = compile_model(*((module, x) if route == "module" else (torch.export.export(module, (x,)),)))(x)
    for own, other in zip(*(one if isinstance(one, tuple | list) else (one,) for one in (got, want)), strict=True):
        assert own.shape == other.shape
        assert not own.numel() or difference(own.numpy(), other.numpy()) <= 1e-5


def test_operators_and_modules_that_cannot_be_imported_are_named():
    torch, module = module_of(lambda torch, x: torch.lgamma(x))
    with refuses(WorkloadError):
        compile_model(torch.nn.Sequential(module).eval(), torch.ones(IMAGE))


def test_the_cause_of_a_failed_export_is_said_and_kept():
    torch, module = module_of(lambda torch, x: x if x.sum() > 0 else -x)
    with refuses(WorkloadError) as caught:
        compile_model(module, torch.ones(IMAGE))
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)

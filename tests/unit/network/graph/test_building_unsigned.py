"""Functions of one number and of two, of all integers, PyTorch's and ONNX's: least and greatest numbers wrap around."""

import numpy as np
import pytest

import anatune

pytest.importorskip("tvm")

UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
SIGNED = ("int8", "int16", "int32", "int64")


def numbers(dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([least, least + 1, 0, 1, 2, 100, most // 2, most // 2 + 1, most - 1, most], dtype)


ONNX = {"Abs": np.abs, "Sign": np.sign, "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative}


@pytest.mark.parametrize("dtype", [*UNSIGNED, *SIGNED])
def test_operators_of_onnx(dtype):
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [name for name in ONNX if name != "Neg" or dtype in SIGNED]
    nodes = [helper.make_node(name, ["x", "y"][: ONNX[name].nin], [name]) for name in names]
    x = numbers(dtype)
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, kind, x.shape) for name in "xy"],
        [helper.make_empty_tensor_value_info(name) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    given = (x, x[::-1].copy())
    for name, result in zip(names, anatune.compile(model, threads=1, check=False)(*given), strict=True):
        want = ONNX[name](*given[: ONNX[name].nin])
        assert result.dtype == want.dtype, name
        np.testing.assert_array_equal(result, want, name)


@pytest.mark.parametrize("dtype", ["uint8", *SIGNED])
def test_operators_of_torch(dtype):
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def forward(self, x, y):
            return -x, torch.abs(x), torch.sign(x), torch.relu(x), x - y, 3 - x, x - 5, x * y, torch.square(x)

    x = torch.from_numpy(numbers(dtype))
    given = (x, x.flip(0))
    result = anatune.compile(Network().eval(), given, threads=1, check=False)(*given)
    for index, (attributes, want) in enumerate(zip(result, Network()(*given), strict=True)):
        assert attributes.dtype == want.dtype, index
        assert torch.equal(attributes, want), index

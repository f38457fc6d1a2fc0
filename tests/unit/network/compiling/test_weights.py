"""Weights of compiled models: however often one is read, each form of it is packed once."""

import numpy as np
import pytest

from anatune.errors import RunError
from anatune.network.compiling.session import compile as compile_model
from tests.unit.network.compiling.onnx_models import _Net
from tests.wording import refuses

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

STEPS, WIDTH = 6, 48


def unrolled_cells(path):
    """Write a recurrent network whose cells are written out, with weights shared by all steps, turned by each."""
    net = _Net()
    gates, again, bias = net.weight(4 * WIDTH, WIDTH), net.weight(4 * WIDTH, WIDTH), net.weight(4 * WIDTH)
    hidden = cell = net.known(np.zeros((1, WIDTH)), np.float32)
    results = []
    for step in range(STEPS):
        inputs = net.op("Gemm", net.op("Gather", "x", net.known(step, np.int64), axis=0), gates, bias, transB=1)
        both = net.op("Add", inputs, net.op("Gemm", hidden, again, transB=1))
        first, output, forget, new = net.op("Split", both, outputs=4, axis=1)
        kept = net.op("Mul", net.op("Sigmoid", forget), cell)
        cell = net.op("Add", kept, net.op("Mul", net.op("Sigmoid", first), net.op("Tanh", new)))
        hidden = net.op("Mul", net.op("Sigmoid", output), net.op("Tanh", cell))
        results.append(hidden)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [STEPS, 1, WIDTH])
    net.write(path, x, net.op("Concat", *results, axis=0))
    return sum(onnx.numpy_helper.to_array(one).nbytes for one in net.weights)


def test_weights_of_unrolled_cells_are_packed_once(tmp_path):
    path = tmp_path / "cells.onnx"
    num_bytes = unrolled_cells(path)
    compiled = compile_model(path, threads=1)  # checked beside float64
    assert compiled.summary.weight_bytes <= 1.1 * num_bytes + 4096
    matrices = [one for one in compiled.summary.weights if np.prod(one.shape) >= 4 * WIDTH * WIDTH]
    assert len(matrices) == 2
    workloads = [one.workload for one in compiled.summary.kernels]
    assert len(workloads) == len(set(workloads))


def test_products_with_other_steps_share_a_packed_weight(tmp_path):
    path, net = tmp_path / "shared.onnx", _Net()
    weight = net.weight(WIDTH, WIDTH)
    first = net.op("Relu", net.op("MatMul", "x", weight))
    second = net.op("Add", net.op("MatMul", first, weight), net.weight(WIDTH))
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [16, WIDTH])
    net.write(path, x, net.op("Add", net.op("MatMul", second, weight), first))
    compiled = compile_model(path, threads=1)
    assert len({one.workload for one in compiled.summary.kernels}) == 3
    assert len([one for one in compiled.summary.weights if np.prod(one.shape) >= WIDTH * WIDTH]) == 1


def repeating(path, rows, columns):
    """Write a model that takes a matrix of equal numbers times its input, and sums the rows up."""
    net = _Net()
    whole = net.op("ConstantOfShape", net.numbers(rows, columns), value=onnx.numpy_helper.from_array(np.float32([2])))
    total = net.op("ReduceSum", net.op("Mul", "x", whole), net.numbers(1))
    net.write(path, onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [rows, 1]), total)


def test_what_repeats_itself_is_no_weight(tmp_path):
    repeating(tmp_path / "m.onnx", 2048, 4096)
    compiled = compile_model(tmp_path / "m.onnx", threads=1)  # checked beside float64
    assert compiled.summary.weight_bytes < 1 << 16


def test_too_little_memory_is_one_line(tmp_path, monkeypatch):
    repeating(tmp_path / "m.onnx", 256, 512)
    monkeypatch.setattr("anatune.measure.run.memory.free_bytes", lambda: 1 << 20)
    with refuses(RunError):
        compile_model(tmp_path / "m.onnx", threads=1)
    monkeypatch.setattr("anatune.measure.run.memory.free_bytes", lambda: 1 << 12)
    compile_model(tmp_path / "m.onnx", threads=1, check=False)

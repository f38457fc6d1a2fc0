"""Kernels of sizes that are known at run time, called by Relax with their symbols."""

import numpy as np
import pytest
from scipy import special

from anatune import api
from anatune.codegen.compat import target_of
from anatune.core.sizes import Size
from anatune.network.graph.nodes import Graph, Input, Node, TensorType
from anatune.network.graph.operators import CONCAT, LAYER_NORM, SOFTMAX
from anatune.network.relax.building import build_library
from anatune.network.relax.kernels import sizes_of_concatenation, write_unplanned
from anatune.network.relax.writing import WrittenModel, write_model

tvm = pytest.importorskip("tvm")

from tests.unit.network.relax.linked import main_of  # noqa: E402

BATCH, TOKENS = Size.symbol("batch", 2), Size.symbol("tokens", 32)
NODES = {
    SOFTMAX: (
        [(BATCH * 3 * TOKENS, TOKENS), (BATCH, TOKENS)], (BATCH * 3 * TOKENS, TOKENS),
        {"scale": 0.5, "zero_rows": False, "block": TOKENS * 3},
        lambda x, mask: special.softmax(0.5 * x + np.repeat(mask, len(x) // len(mask), 0), 1),
    ),
    LAYER_NORM: (
        [(BATCH * TOKENS, 40)], (BATCH * TOKENS, 40), {"epsilon": 0.0},
        lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True),
    ),
    "permute_dims": (
        [(BATCH, TOKENS, 3, 8)], (BATCH, 3, TOKENS, 8), {"axes": (0, 2, 1, 3)}, lambda x: x.transpose(0, 2, 1, 3)
    ),
    CONCAT: ([(BATCH * TOKENS, 40), (BATCH * TOKENS, 3)], (BATCH * TOKENS, 43), {}, lambda *x: np.concatenate(x, 1)),
}  # fmt: skip


@pytest.mark.parametrize("op", NODES)
def test_one_module_serves_all_sizes(op):
    from tvm import relax, tirx

    shapes, shape, attributes, meaning = NODES[op]
    inputs = [Input(f"x{place}", TensorType(own, "float32")) for place, own in enumerate(shapes)]
    node = Node(op, tuple(inputs), TensorType(shape, "float32"), attributes)
    hardware = api.hardware("host")
    kernel = write_unplanned(Graph(inputs, [node], is_tuple=False), hardware, 1)[node]

    symbols = {name: tirx.Var(name, "int64") for name in ("batch", "tokens")}

    def kind(sizes, at=symbols):
        return relax.TensorType([size.at(at) if isinstance(size, Size) else size for size in sizes], "float32")

    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{place}", kind(own)) for place, own in enumerate([*shapes, (BATCH, TOKENS)])]
    with builder.function("main", parameters):
        with builder.dataflow():
            operands = relax.Tuple([*parameters[:-1], *symbols.values()])
            call = relax.call_tir(builder.add_func(kernel.function, kernel.name), operands, kind(shape))
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    run = main_of(build_library(WrittenModel(builder.get(), ()), target_of(hardware), 1))
    random = np.random.default_rng(1)
    for sizes in ({"batch": 1, "tokens": 1}, {"batch": 3, "tokens": 17}, {"batch": 2, "tokens": 70}):
        arrays = [random.standard_normal(tuple(map(int, kind(own, sizes).shape))).astype(np.float32) for own in shapes]
        known = np.zeros((sizes["batch"], sizes["tokens"]), np.float32)
        got = run(*map(tvm.runtime.tensor, [*arrays, known])).numpy()
        assert np.abs(got - meaning(*(array.astype(np.float64) for array in arrays))).max() <= 1e-6


def test_concatenations_whose_sizes_vary_take_the_symbols_of_the_model():
    parts = [Input(name, TensorType((Size.symbol("concat_rows", 5), 8), "float32")) for name in "ab"]
    node = Node(CONCAT, tuple(parts), TensorType((parts[0].type.shape[0], 16), "float32"), {})
    assert sizes_of_concatenation(node) == {}


@pytest.mark.parametrize("count", [7, 8])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_concatenations_share_a_kernel(count, threads):
    random, hardware = np.random.default_rng(2), api.hardware("host")
    shapes = [(1, 1, 1), (3, 64, 16), (5, 15, 17), (1, 70, 2), (49, 128, 33), (700, 48, 80), (2, 63, 65), (9, 16, 5)]
    pairs = [
        [Input(f"x{row}_{width}", TensorType((row, width), "float32")) for width in widths] for row, *widths in shapes
    ]
    nodes = [
        Node(CONCAT, tuple(pair), TensorType((row, left + right), "float32"), {})
        for pair, (row, left, right) in zip(pairs[-count:], shapes[-count:], strict=True)
    ]
    thrice = Node(CONCAT, (*nodes[0].arguments, nodes[0].arguments[1]), TensorType((3, 80 + 16), "float32"), {})
    nodes += [thrice] if count < len(shapes) else []
    inputs = [one for pair in pairs[-count:] for one in pair]
    kernels = write_unplanned(graph := Graph(inputs, nodes, is_tuple=True), hardware, threads)
    assert len({kernel.name for kernel in kernels.values()}) == (count + 1 if count < len(shapes) else 1)
    arrays = [random.integers(-99, 99, one.type.shape).astype(np.float32) for one in inputs]
    run = main_of(build_library(write_model(graph, kernels, list), target_of(hardware), threads))
    values = dict(zip(inputs, arrays, strict=True))
    for got, node in zip(run(*map(tvm.runtime.tensor, arrays)), nodes, strict=True):
        np.testing.assert_array_equal(got.numpy(), np.concatenate([values[one] for one in node.arguments], 1))

"""Models for ranges of sizes."""

import contextlib
import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import anatune
from anatune.errors import RunError, SpaceError, WorkloadError
from anatune.network.compiling.memory import new_memory
from anatune.network.compiling.sizes.varying import environments
from tests.tiers import slow_from
from tests.unit.network.compiling.onnx_models import _Net
from tests.wording import refuses

WIDTH, HEADS = 32, 2


def tokens(*sizes):
    return np.random.default_rng(0).integers(0, 50, sizes)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """Return an ONNX file of one block of a transformer: ids (batch, tokens), added positions."""
    net, path = _Net(3), tmp_path_factory.mktemp("models") / "block.onnx"
    x = net.op("Gather", net.weight(50, WIDTH, scale=1.0), "ids")
    zero, one = (net.known(number, np.int64) for number in (0, 1))
    places = net.op("Range", zero, net.op("Gather", net.op("Shape", "ids"), one), one)
    x = net.spelt_layer_norm(net.op("Add", x, net.op("Gather", net.weight(40, WIDTH, scale=1.0), places)), WIDTH)

    def heads(turned):
        y = net.op("Reshape", net.product(x, WIDTH, WIDTH), net.numbers(0, 0, HEADS, WIDTH // HEADS))
        return net.op("Transpose", y, perm=[0, 2, 3, 1] if turned else [0, 2, 1, 3])

    scores = net.op("Mul", net.op("MatMul", heads(False), heads(True)), net.scalar(0.25))
    y = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores, axis=-1), heads(False)), perm=[0, 2, 1, 3])
    y = net.product(net.op("Reshape", y, net.numbers(0, 0, WIDTH)), WIDTH, WIDTH)
    x = net.spelt_layer_norm(net.op("Add", x, y), WIDTH)
    net.write(path, helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"]), x)
    return path


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory):
    """Return an ONNX file of a small image network: any batch."""
    net, path = _Net(4), tmp_path_factory.mktemp("models") / "images.onnx"
    x = net.convolved("x", 3, 16, 3, stride=2)
    y = net.convolved(net.convolved(x, 16, 16, 3), 16, 16, 3, relu="")
    x = net.op("MaxPool", net.op("Relu", net.op("Add", x, y)), kernel_shape=[2, 2], strides=[2, 2])
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 24, 24])
    net.write(path, kind, net.linear(net.pooled(x), 16, 10))
    return path


def expected(path, *inputs):
    evaluator = ReferenceEvaluator(onnx.load(path))
    names = [value.name for value in onnx.load(path).graph.input]
    return evaluator.run(None, dict(zip(names, inputs, strict=True)))[0]


_PLACES = """
<ir_version: 10, opset_import: ["" : 21]>
places (float[2, n, 3] x, int64[4] i, int64[2, 5, 3] j, int64[4, 2] k) => (s, z, g, e, d, last, m) {
  s = Shape(x)
  z = Size(x)
  g = Gather<axis = 1>(x, i)
  e = GatherElements<axis = 1>(x, j)
  d = GatherND(x, k)
  last = Gather<axis = 1>(x, ends)
  m = ArgMax<axis = 1, select_last_index = 1>(x)
}"""


def test_places_and_sizes_along_a_dimension_that_varies(tmp_path):
    model = onnx.parser.parse_model(_PLACES)
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 0]), "ends"))
    onnx.save(model, tmp_path / "places.onnx")
    compiled = anatune.compile(tmp_path / "places.onnx", threads=1, check=False, sizes={"n": (2, 16)})
    random = np.random.default_rng(0)
    for n in (2, 7, 16):
        x = random.integers(0, 3, (2, n, 3)).astype(np.float32)
        i, j = random.integers(-n, n, 4), random.integers(-n, n, (2, 5, 3))
        k = np.stack([random.integers(-2, 2, 4), random.integers(-n, n, 4)], -1)
        want = ReferenceEvaluator(model).run(None, {"x": x, "i": i, "j": j, "k": k})
        for got, other in zip(compiled(x, i, j, k), want, strict=True):
            np.testing.assert_array_equal(got, other)


_NOTHING = """
<ir_version: 10, opset_import: ["" : 21]>
nothing (float[2, 0, n] x, float[n, 4] w) => (r, t, c, p, s) {
  r = LeakyRelu(x)
  t = Transpose<perm = [2, 1, 0]>(x)
  c = Concat<axis = 2>(x, x)
  p = MatMul(x, w)
  s = ReduceSum<keepdims = 0>(t, zero)
}"""


_OWN_SIZES = {  # what a node takes is computed from the size that varies: n, m = n + 1, w = n + m; y has w rows
    "Split": "nm = Concat<axis = 0>(n, m)  a, r = Split<axis = 0>(y, nm)",
    "Slice": "r = Slice(y, n, w, zero)",
    "Slice (last)": "r = Slice(y, minus_n, w, zero)",
    "Expand": "n3 = Concat<axis = 0>(n, three)  r = Expand(row, n3)",
    "Tile": "n1 = Concat<axis = 0>(n, one)  r = Tile(y, n1)",
    "Tile (inner)": "d = Expand(x, many)  t = Tile(d, twos)  g = Greater(t, t0)  r = Cast<to = 1>(g)",
    "ConstantOfShape": "c = ConstantOfShape<value = float[1] {2.0}>(w)  d = Unsqueeze(c, one)  r = Add(y, d)",
    "Range": "a0 = Squeeze(w)  c = Range(zero0, a0, one0)  d = Unsqueeze(c, one)  f = CastLike(d, y)  r = Mul(y, f)",
    "Reshape": "n3 = Concat<axis = 0>(w, three)  t = Transpose(y)  r = Reshape(t, n3)",
    "Pad": "p = Concat<axis = 0>(n, zero, m, zero)  r = Pad(y, p)",
    "Pad (edge)": 'p = Concat<axis = 0>(n, zero, m, zero)  r = Pad<mode = "edge">(y, p)',
    "TopK": "r, i = TopK<axis = 0>(y, n)",
    "TopK (half)": "h = Div(w, two)  r, i = TopK<axis = 0>(y, h)",
    "OneHot": "a0 = Squeeze(w)  c = Range(zero0, a0, one0)  e = OneHot(c, a0, values)  r = MatMul(e, y)",
    "Trilu": "t = Transpose(y)  c = MatMul(y, t)  n0 = Squeeze(n)  r = Trilu(c, n0)",
    "Gather": "i = Sub(w, one)  r = Gather(y, i)",
    "Resize": "u = Unsqueeze(y, zero)  p = Concat<axis = 0>(one, m, three)  r = Resize(u, , , p)",
    "CumSum": "r = CumSum(y, zero0)",
    "CumSum (inner)": "t = Transpose(y)  c = Concat<axis = 0>(t, t)  s = CumSum(c, zero0)  r = Slice(s, one, two)",
    "Mul": "f = CastLike(w, y)  r = Mul(y, f)",
}
_RIGHT_AT_ALL_SIZES = [
    "Split", "Slice", "Slice (last)", "Expand", "Tile", "Tile (inner)", "ConstantOfShape", "Range", "Reshape", "CumSum",
    "CumSum (inner)",
]  # fmt: skip


@pytest.mark.parametrize("name", slow_from(3, _OWN_SIZES))
def test_numbers_that_depend_on_a_size_are_right_at_all_of_them_or_refused(tmp_path, name):
    """None of them may be what it is at the size that is planned."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> own (float[n, 3] x) => (float[] r) <int64[1] zero = {0}, '
        "int64[1] one = {1}, int64[3] many = {3, 1, 3}, int64[3] twos = {2, 2, 2}, float t0 = {0.5}, "
        "int64[1] two = {2}, int64[1] three = {3}, int64 zero0 = {0}, int64 one0 = {1}, "
        "float[1, 3] row = {1, 2, 3}, float[2] values = {0, 1}> { n = Shape<end = 1>(x)  m = Add(n, one)  w = Add(n, m)"
        "  minus_n = Neg(n)  first = Slice(x, zero, one)  y = Concat<axis = 0>(x, first, x) " + _OWN_SIZES[name] + " }"
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("r"))
    onnx.save(model, tmp_path / "own.onnx")
    allowed = contextlib.nullcontext() if name in _RIGHT_AT_ALL_SIZES else contextlib.suppress(WorkloadError)
    compiled = None
    with allowed:
        compiled = anatune.compile(tmp_path / "own.onnx", threads=1, check=False, sizes={"n": (1, 16)})
    if compiled is None:
        return
    for size in (1, 2, 3, 5, 8, 13, 16):
        x = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        np.testing.assert_allclose(compiled(x), expected(tmp_path / "own.onnx", x), rtol=1e-5, atol=1e-6)


def test_tensors_without_elements_have_the_sizes_that_vary(tmp_path):
    model = onnx.parser.parse_model(_NOTHING)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "zero"))
    onnx.save(model, tmp_path / "nothing.onnx")
    compiled = anatune.compile(tmp_path / "nothing.onnx", threads=1, check=False, sizes={"n": (1, 16)})
    for n in (1, 5, 16):
        x, w = np.zeros((2, 0, n), np.float32), np.ones((n, 4), np.float32)
        want = ReferenceEvaluator(model).run(None, {"x": x, "w": w})
        for got, other in zip(compiled(x, w), want, strict=True):
            np.testing.assert_array_equal(got, other, strict=True)


@pytest.fixture(scope="module")
def of_any_tokens(transformer):
    return anatune.compile(transformer, threads=1, sizes={"batch": "1..4", "tokens": (1, 40)})


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (4, 7), (3, 16), (2, 33)])
def test_a_transformer_is_right_at_every_size(of_any_tokens, transformer, shape):
    ids = tokens(*shape)
    np.testing.assert_allclose(of_any_tokens(ids), expected(transformer, ids), rtol=1e-4, atol=1e-5)


def test_what_is_known_of_sizes_is_told(of_any_tokens):
    summary = of_any_tokens.summary
    assert [one.shape for one in summary.inputs] == [("batch", "tokens")]
    assert (summary.ranges["tokens"].least, summary.ranges["tokens"].most) == (1, 40)
    assert any(kernel.template == "attention" and "queries" in kernel.varies for kernel in summary.kernels)
    assert all(kernel.varies for kernel in summary.kernels)
    report = of_any_tokens.report()
    assert "sizes that vary: batch 1..4" in report
    assert "(i 1..160)" in report


def test_sizes_out_of_range_are_refused(of_any_tokens):
    with refuses(RunError):
        of_any_tokens(tokens(1, 41))
    with refuses(RunError):
        of_any_tokens(tokens(3))
    with refuses(RunError):
        of_any_tokens.random_inputs(sizes={"words": 3})


def test_a_saved_model_takes_every_size(of_any_tokens, transformer, tmp_path):
    of_any_tokens.save(tmp_path / "model")
    loaded, ids = anatune.load(tmp_path / "model"), tokens(2, 9)
    np.testing.assert_allclose(loaded(ids), expected(transformer, ids), rtol=1e-4, atol=1e-5)
    assert [one.shape for one in loaded.random_inputs(sizes={"batch": 2, "tokens": 3})] == [(2, 3)]


def test_many_rows_are_computed_piece_by_piece(tmp_path):
    net = _Net(6)
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 24])
    net.write(tmp_path / "rows.onnx", kind, net.linear("x", 24, 40))
    model = anatune.compile(tmp_path / "rows.onnx", threads=1, sizes={"rows": "1..700"})
    for rows in (1, 3, 256, 257, 513, 700):
        x = np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32)
        np.testing.assert_allclose(model(x), expected(tmp_path / "rows.onnx", x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_of_images(convolutions, threads):
    model = anatune.compile(convolutions, threads=threads, sizes={"batch": "1..6"})
    for batch in (1, 2, 6):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 24, 24)).astype(np.float32)
        np.testing.assert_allclose(model(x), expected(convolutions, x), rtol=1e-4, atol=1e-5)


def test_the_size_that_times_are_for_is_told(convolutions):
    model = anatune.compile(convolutions, threads=1, sizes={"batch": "1..2"}, check=False)
    one = model.summary.ranges["batch"]
    assert (one.planned > 2, one.usual, model.random_inputs()[0].shape[0]) == (True, 2, 2)
    assert f"batch 1..2 (planned and predicted for {one.planned})" in " ".join(model.report().split())
    assert f" {one.planned}x3x24x24" in model.report()  # what its kernels' times are for


def test_one_value_is_a_fixed_size(convolutions):
    model = anatune.compile(convolutions, threads=1, sizes={"batch": 3}, check=False)
    assert model.summary.inputs[0].shape == (3, 3, 24, 24)
    assert not model.summary.ranges


@pytest.mark.parametrize(
    ("sizes", "more", "error"),
    [
        ({"batch": "4..1"}, {}, WorkloadError),
        ({"batch": "many"}, {}, WorkloadError),
        ({"batch": 0}, {}, WorkloadError),
        ({"batch": "0..4"}, {}, WorkloadError),
        ({"words": 3}, {}, WorkloadError),
        ({"batch": (1, 4)}, {"trials": 3}, SpaceError),
        ({}, {"dynamic_shapes": {"x": {0: 3}}}, WorkloadError),
        ({"batch": (1, 4)}, {"hw": "rtx3090"}, WorkloadError),
        (5, {}, WorkloadError),
    ],
)
def test_bad_sizes_are_refused_in_a_line(convolutions, sizes, more, error):
    with refuses(error) as told:
        anatune.compile(convolutions, sizes=sizes, **more)
    assert "\n" not in str(told.value)


def sliced(path, end):
    """Write a model that returns the sigmoid of the first elements of x: as many as `end` nodes say of its size."""
    net = _Net(7)
    axis, size = net.numbers(0), net.op("Gather", net.op("Shape", "x"), net.numbers(0))
    part = net.op("Slice", "x", axis, end(net, size), axis)
    net.write(path, helper.make_tensor_value_info("x", TensorProto.FLOAT, ["size", 3]), net.op("Sigmoid", part))
    return path


def test_floors_are_right_between_the_sizes_that_are_looked_at(tmp_path):
    path = sliced(tmp_path / "half.onnx", lambda net, size: net.op("Div", size, net.numbers(2)))
    model = anatune.compile(path, threads=1, sizes={"size": "2..63"})
    for size in range(2, 64):
        assert model(np.zeros((size, 3), np.float32)).shape == (size // 2, 3)


def test_a_bound_is_no_floor(tmp_path):
    path = sliced(tmp_path / "bound.onnx", lambda net, size: net.op("Min", size, net.numbers(60)))
    with refuses(WorkloadError):
        anatune.compile(path, threads=1, sizes={"size": "8..64"})


def test_a_small_range_has_constants_that_grow(tmp_path):
    net = _Net(8)
    size = net.op("Gather", net.op("Shape", "x"), net.numbers(0))
    part = net.op("Slice", net.weight(20, 3), net.numbers(0), size, net.numbers(0))
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s", 3])
    net.write(tmp_path / "m.onnx", kind, net.op("Add", "x", part))
    model = anatune.compile(tmp_path / "m.onnx", threads=1, sizes={"s": "1..3"})
    for rows in (1, 2, 3):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_allclose(model(x), expected(tmp_path / "m.onnx", x))


@pytest.mark.parametrize("most", slow_from(2, [5, 8, 4, 7, 12]))
def test_tables_may_have_as_many_rows_as_the_largest_size(tmp_path, most):
    net = _Net(8)
    size = net.op("Gather", net.op("Shape", "x"), net.numbers(0))
    part = net.op("Slice", net.weight(most, 3), net.numbers(0), size, net.numbers(0))
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s", 3])
    net.write(tmp_path / "m.onnx", kind, net.op("Tanh", net.op("Add", "x", part)))
    model = anatune.compile(tmp_path / "m.onnx", threads=1, check=False, sizes={"s": (1, most)})
    for rows in (1, 2, most):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_allclose(model(x), expected(tmp_path / "m.onnx", x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most", slow_from(1, [4, 2, 7]))
def test_squares_of_small_ranges_are_no_lines(tmp_path, most):
    net = _Net(8)
    scores = net.op("Sub", net.op("Unsqueeze", "x", net.numbers(0)), net.op("Unsqueeze", "x", net.numbers(1)))
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s"])
    net.write(tmp_path / "m.onnx", kind, net.op("Tanh", net.op("Reshape", scores, net.numbers(-1))))
    model = anatune.compile(tmp_path / "m.onnx", threads=1, check=False, sizes={"s": (1, most)})
    for size in (1, 2, most):
        assert model(np.ones(size, np.float32)).shape == (size * size,)


def test_attention_without_heads(tmp_path):
    net = _Net(9)
    scores = net.op("Softmax", net.op("MatMul", "x", net.op("Transpose", "x", perm=[0, 2, 1])), axis=-1)
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", 16])
    net.write(tmp_path / "m.onnx", kind, net.op("MatMul", scores, "x"))
    model = anatune.compile(tmp_path / "m.onnx", threads=1, sizes={"b": "1..4", "s": "1..40"})
    for shape in ((1, 1, 16), (3, 7, 16), (2, 40, 16)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(model(x), expected(tmp_path / "m.onnx", x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", slow_from(2, ["Relu", "bias", "Sigmoid", "add"]))
def test_products_with_two_sizes_that_vary_keep_what_follows_them(tmp_path, steps):
    net = _Net(10)
    scores = net.op("MatMul", "x", net.op("Transpose", "x", perm=[0, 2, 1]))
    if steps == "bias":
        scores = net.op("Add", scores, net.scalar(0.5))
    elif steps == "add":
        scores = net.op("Clip", net.op("Add", scores, net.op("Neg", scores)), net.scalar(0.0), net.scalar(6.0))
    else:
        scores = net.op("Mul", net.op(steps, scores), scores)
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", 8])
    net.write(tmp_path / "m.onnx", kind, net.op("Relu", net.op("MatMul", scores, "x")))
    model = anatune.compile(tmp_path / "m.onnx", threads=1, sizes={"b": "1..4", "s": "1..40"})
    for shape in ((1, 1, 8), (3, 7, 8), (2, 40, 8)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(model(x), expected(tmp_path / "m.onnx", x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", ["s", 4, 6000])  # of 6,000 the input is taken where it lies
def test_outputs_have_memory_of_their_own(tmp_path, rows):
    """Some are reshapes of the input, a weight or another output."""
    net = _Net(11)
    y, flat = net.op("Sigmoid", "x"), net.numbers(-1)
    other = net.op("Reshape", y, flat)
    results = (y, other, net.op("Reshape", other, net.numbers(2, -1)), net.op("Reshape", "x", flat), net.weight(3, 4))
    net.write(tmp_path / "m.onnx", helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4]), *results)
    model = anatune.compile(tmp_path / "m.onnx", threads=1, sizes={"s": "1..9"} if rows == "s" else None)
    count = 4 if rows == "s" else rows
    x = new_memory(16 * count).view(np.float32).reshape(count, 4)  # aligned: nobody has to copy it
    x[...] = np.arange(4 * count).reshape(count, 4) % 7
    for _ in range(2):  # what the first call returned is written into
        given = x.copy()
        outputs = model(x)
        wanted = ReferenceEvaluator(onnx.load(tmp_path / "m.onnx")).run(None, {"x": given})
        for own, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(own, want, rtol=1e-6)
            own[...] = 7
        np.testing.assert_array_equal(x, given)
        assert not any(np.shares_memory(*two) for two in itertools.combinations((x, *outputs), 2))


def test_small_inputs_are_copied(tmp_path):
    """A call that was prepared keeps its own; what is no array of the right kind is said as ever."""
    net = _Net(11)
    net.write(tmp_path / "m.onnx", helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]), net.op("Relu", "x"))
    model = anatune.compile(tmp_path / "m.onnx", threads=1)
    first, second = (np.array(numbers, np.float32) for numbers in ([1, -2, 3], [-4, 5, -6]))
    prepared = model.prepared(first)
    kept = model(second)
    assert np.array_equal(prepared().numpy(), [1, 0, 3])
    assert np.array_equal(model(np.stack([first, second], 1)[:, 0]), [1, 0, 3])  # strides
    assert np.array_equal(kept, [0, 5, 0])
    for wrong in (first.astype(np.float64), first[:2], [1.0, 2.0, 3.0]):
        with refuses(RunError):
            model(wrong)
    with refuses(RunError):
        model(first, second)


def test_sizes_of_images_do_not_vary(tmp_path):
    net = _Net(5)
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "height", 24])
    net.write(tmp_path / "any.onnx", kind, net.conv("x", 3, 8, 3))
    with refuses(WorkloadError):
        anatune.compile(tmp_path / "any.onnx", sizes={"height": "8..32"})


def test_sizes_that_are_looked_at_are_no_others():
    found = environments({"batch_": (1, 32), "tokens_": (1, 512), "fixed_": (7, 7)})
    assert found[-1] == {"fixed_": 7, "batch_": 32, "tokens_": 512}
    assert all(one["fixed_"] == 7 for one in found)
    assert len({one["batch_"] for one in found} | {one["tokens_"] for one in found}) == 6
    assert len({tuple(one.items()) for one in found}) == 5


@pytest.mark.parametrize("ends", [(1, 2), (1, 4), (1, 7), (0, 5), (2, 3), (6, 7), (100, 103), (1, 8192)])
@pytest.mark.parametrize("within", [False, True])
def test_sizes_have_three_values_each_largest_last(ends, within):
    for ranges in ({"a_": ends}, {"a_": ends, "b_": (1, 9)}):
        found = environments(ranges, within=within)
        for symbol in ranges:
            values = [one[symbol] for one in found]
            assert len(set(values)) == 3
            assert max(values) == values[-1] >= ranges[symbol][1]
        assert all(len(set(one.values())) == len(one) for one in found)

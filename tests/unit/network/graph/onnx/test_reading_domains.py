"""Operators by their domains: which are read, what those of onnxruntime compute, and what of a node may stay unread."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.onnx.operators import DEFAULTS, MICROSOFT, READERS
from tests.unit.network.graph.onnx.one_node import model_of, read
from tests.unit.network.graph.onnx.random_nodes import bytes_of, integers, pick, real

onnx = pytest.importorskip("onnx")
from tests.unit.network.graph.onnx.compared import by_onnxruntime, check_equal, computed  # noqa: E402
from tests.wording import refuses  # noqa: E402

helper = onnx.helper
OLD = ("LayerNormalization", "SimplifiedLayerNormalization")
"""Operators that onnxruntime has in the standard's domain, before the standard or alone."""


def some(rng, **values):
    """Return some of the attributes."""
    return {name: pick(rng, *choices) for name, choices in values.items() if rng.random() < 0.5}


def maybe(rng, value, share=0.5):
    return value if rng.random() < share else None


def attention_masks(rng, batch, rows, keys):
    return pick(
        rng, None, np.array([keys, 2], np.int32), (rng.random((batch, keys)) < 0.7).astype(np.int32),
        (rng.random((batch, rows, keys)) < 0.7).astype(np.int32), np.zeros((batch, keys), np.int32),
        np.array([keys, 2, 0, 1], np.int32) if rows == keys else None,
    )  # fmt: skip


def attention_bias(rng, batch, rows, keys):
    shape = pick(rng, (batch, 2, rows, keys), (1, 2, rows, keys), (1, 1, rows, keys), (batch, 1, rows, keys))
    return maybe(rng, real(rng, *shape), 0.3)


def attention(rng):
    past = pick(rng, 0, 2)
    attributes = some(rng, unidirectional=(0, 1), scale=(0.3, 1.0), mask_filter_value=(-10000.0, -5.0), do_rotary=(0,))
    sizes = [8, 8, 8] if past else pick(rng, [8, 8, 8], [8, 8, 6])
    attributes |= {"qkv_hidden_sizes": sizes} if sizes[2] == 6 or rng.random() < 0.3 else {}
    operands = [
        real(rng, 2, 3, 6), real(rng, 6, sum(sizes)), maybe(rng, real(rng, sum(sizes))),
        attention_masks(rng, 2, 3, 3 + past), real(rng, 2, 2, 2, past, 4) if past else None,
        None if past else attention_bias(rng, 2, 3, 3),
    ]  # fmt: skip
    return operands, {"num_heads": 2, **attributes}, 2 if past else 1


def multi_head_attention(rng):
    keys, past = pick(rng, 2, 3, 5), pick(rng, 0, 2)
    attributes = some(rng, unidirectional=(0, 1), scale=(0.3, 1.0), mask_filter_value=(-10000.0, -5.0))
    size = pick(rng, 4, 6) if not past else 4
    held, whole = [real(rng, 2, 2, past, 4) if past else None for _ in range(2)], keys + past
    if not past and rng.random() < 0.3:  # by heads
        parts, bias = [real(rng, 2, 3, 8), real(rng, 2, 2, keys, 4), real(rng, 2, 2, keys, 4)], None
    else:
        parts, bias = (
            [real(rng, 2, 3, 8), real(rng, 2, keys, 8), real(rng, 2, keys, 2 * size)],
            real(rng, 16 + 2 * size),
        )
    bias = None if bias is None else maybe(rng, bias)
    mask = attention_masks(rng, 2, 3, whole)
    mask = None if np.shape(mask) == (4,) else mask  # ends and starts, which this operator has not
    operands = [*parts, bias, mask, attention_bias(rng, 2, 3, whole), *held]
    return operands, {"num_heads": 2, **attributes}, 3 if past else 1


def embedded(rng):
    has_segments = rng.random() < 0.6
    operands = [
        rng.integers(0, 7, (2, 5)).astype(np.int32),
        rng.integers(0, 2, (2, 5)).astype(np.int32) if has_segments else None,
        real(rng, 7, 4), real(rng, 6, 4), real(rng, 2, 4) if has_segments else None, real(rng, 4), real(rng, 4),
        maybe(rng, np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)),
        maybe(rng, rng.integers(0, 6, (2, 5)).astype(np.int32)),
    ]  # fmt: skip
    return operands, some(rng, epsilon=(1e-5, 0.1), mask_index_type=(0, 1)), pick(rng, 2, 3)


def fused_product(rng):
    attributes = some(rng, alpha=(0.3, 2.0), transA=(0, 1), transB=(0, 1), transBatchA=(0, 1), transBatchB=(0, 1))
    operands = []
    for name, shape in (("A", (2, 3, 4, 5)), ("B", (2, 3, 5, 6))):
        value = real(rng, *shape)
        value = value.swapaxes(-1, -2) if attributes.get(f"trans{name}") else value
        operands.append(value.transpose(1, 2, 0, 3) if attributes.get(f"transBatch{name}") else value)
    return operands, attributes, 1


def old_product(rng):
    attributes = some(rng, alpha=(0.3, 2.0), transA=(0, 1), transB=(0, 1))
    pairs = (("A", real(rng, 2, 3, 4)), ("B", real(rng, 2, 4, 5)))
    return [value.swapaxes(1, 2) if attributes.get(f"trans{name}") else value for name, value in pairs], attributes, 1


def few_bits(rng):
    bits, attributes = pick(rng, 4, 8), some(rng, accuracy_level=(0, 1), weight_prepacked=(0,))
    attributes |= {"bits": bits} if bits == 8 or rng.random() < 0.5 else {}
    packed, zeros = bytes_of(rng, 4, 2, 2 * bits), bytes_of(rng, bits)  # two blocks of 16, a zero point each
    operands = [real(rng, 2, 32), packed, np.abs(real(rng, 8)) + 0.1, maybe(rng, zeros), None, maybe(rng, real(rng, 4))]
    return operands, {"K": 32, "N": 4, "block_size": 16, **attributes}, 1


def scaled(rng, *shape, unit=0.05, zero=120):
    return [bytes_of(rng, *shape), np.float32(0.02), np.uint8(60), np.float32(unit), np.uint8(zero)]


def scaled_gemm(rng):
    attributes, weight = some(rng, alpha=(0.5, 2.0), transA=(0,), transB=(0, 1)), bytes_of(rng, 4, 5, dtype=np.int8)
    back = [np.float32(5), np.uint8(120)] if rng.random() < 0.7 else [None, None]
    term = maybe(rng, rng.integers(-99, 99, 5).astype(np.int32))
    first = [bytes_of(rng, 3, 4), np.float32(0.02), np.uint8(60), weight.T if attributes.get("transB") else weight]
    return [*first, np.float32(0.1), np.int8(0), term, *back], attributes, 1


def scaled_pair(rng):
    parts = [one for _ in range(2) for one in (bytes_of(rng, 2, 3, 4), np.float32(0.02), np.uint8(60))]
    return [*parts, np.float32(0.05), np.uint8(120)], {}, 1


def scaled_pool(rng):
    attributes = some(rng, pads=([0, 0, 0, 0], [1, 1, 0, 1]), strides=([1, 1], [2, 3]), channels_last=(0, 1))
    attributes |= some(rng, count_include_pad=(0, 1), ceil_mode=(0, 1))
    data = scaled(rng, *((2, 7, 8, 3) if attributes.get("channels_last") else (2, 3, 7, 8)))
    return data, {"kernel_shape": [2, 3], **attributes}, 1


def scaled_convolution(rng):
    attributes = some(rng, pads=([0, 0, 0, 0], [1, 1, 0, 1]), strides=([1, 1], [2, 3]), dilations=([1, 1], [2, 1]))
    attributes |= some(rng, channels_last=(0, 1), group=(1, 2), kernel_shape=([2, 3],))
    data, unit, zero, back, back_zero = scaled(
        rng, *((2, 7, 8, 4) if attributes.get("channels_last") else (2, 4, 7, 8)), unit=5
    )
    weight, term = bytes_of(rng, 4, 4 // attributes.get("group", 1), 2, 3, dtype=np.int8), rng.integers(-99, 99, 4)
    scale = pick(rng, (np.float32(0.1), np.int8(0)), (np.abs(real(rng, 4)) + 0.1, np.zeros(4, np.int8)))
    return [data, unit, zero, weight, *scale, back, back_zero, maybe(rng, term.astype(np.int32))], attributes, 1


def quantised(rng):
    attributes = some(rng, axis=(1,))
    scale = np.abs(real(rng, 4)) + 0.1 if attributes else pick(rng, np.float32(0.1), np.abs(real(rng, 4)) + 0.1)
    zero = np.full(np.shape(scale), 3).astype(pick(rng, np.uint8, np.int8, np.uint16, np.int16))
    return [real(rng, 2, 4, 3), scale, zero], attributes if np.ndim(scale) else {}, 1


def dequantised(rng):
    (data, scale, zero), attributes, count = quantised(rng)
    return [np.abs(data * 20).astype(zero.dtype), scale, maybe(rng, zero)], attributes, count


def rotated(rng):
    attributes, half = some(rng, interleaved=(0, 1), is_packed_batching=(0,), scale=(1.0,)), 4
    if rng.random() < 0.4:
        attributes, half = {**attributes, "rotary_embedding_dim": 4, "num_heads": 2}, 2
    elif rng.random() < 0.5:
        attributes["num_heads"] = 2
    data = pick(rng, real(rng, 2, 3, 16), real(rng, 2, 2, 3, 8))
    return (
        [data, pick(rng, rng.integers(0, 9, (2, 3)), integers(2)), real(rng, 9, half), real(rng, 9, half)],
        attributes,
        1,
    )


def skipped(rng):
    operands = [real(rng, 2, 3, 4), pick(rng, real(rng, 2, 3, 4), real(rng, 3, 4)), real(rng, 4)]
    return (
        [*operands, maybe(rng, real(rng, 4)), maybe(rng, real(rng, 4))],
        some(rng, epsilon=(1e-5, 0.1)),
        pick(rng, 1, 4),
    )


NODES = {
    "Attention": attention, "BiasGelu": lambda rng: ([real(rng, 2, 3, 4), real(rng, 4)], {}, 1),
    "DequantizeLinear": dequantised, "EmbedLayerNormalization": embedded,
    "FastGelu": lambda rng: ([real(rng, 2, 3, 4), maybe(rng, real(rng, 4))], {}, 1), "FusedMatMul": fused_product,
    "GatherND": lambda rng: ([real(rng, 2, 3, 4), rng.integers(0, 2, (2, 1, 2))], {}, 1),
    "Gelu": lambda rng: ([real(rng, 2, 3, 4)], {}, 1),
    "GridSample": lambda rng: (
        [real(rng, 1, 2, 4, 5), rng.uniform(-1.3, 1.3, (1, 3, 4, 2)).astype(np.float32)],
        some(rng, align_corners=(0, 1), padding_mode=("zeros", "border"), mode=("bilinear", "nearest")), 1,
    ),
    "MatMulInteger16": lambda rng: (
        [bytes_of(rng, 3, 4, dtype=np.int16), bytes_of(rng, 4, 5, dtype=np.int16)], {}, 1,
    ),
    "MatMulNBits": few_bits, "MultiHeadAttention": multi_head_attention,
    "Pad": lambda rng: (
        [real(rng, 2, 3, 4), integers(0, 1, 0, 1, 0, 2), maybe(rng, np.float32([0.5]))],
        some(rng, mode=("constant", "reflect", "edge")), 1,
    ),
    "QGemm": scaled_gemm, "QLinearAdd": scaled_pair, "QLinearAveragePool": scaled_pool,
    "QLinearConcat": lambda rng: (
        [np.float32(0.05), np.uint8(120), *scaled(rng, 2, 3)[:3], *scaled(rng, 2, 3)[:3]], {"axis": pick(rng, 0, 1,
        -1)}, 1,
    ),
    "QLinearConv": scaled_convolution,
    "QLinearGlobalAveragePool": lambda rng: (scaled(rng, 2, 5, 6, 4), some(rng, channels_last=(0, 1)), 1),
    "QLinearLeakyRelu": lambda rng: (scaled(rng, 2, 3, 4), some(rng, alpha=(0.01, 0.3)), 1), "QLinearMul": scaled_pair,
    "QLinearSigmoid": lambda rng: (scaled(rng, 2, 3, 4, unit=0.004, zero=0), {}, 1),
    "QLinearWhere": lambda rng: (
        [rng.random((2, 3)) < 0.5, *scaled(rng, 2, 3)[:3], *scaled(rng, 2, 3)[:3], np.float32(0.05), np.uint8(120)],
        {}, 1,
    ),
    "QuantizeLinear": quantised, "QuickGelu": lambda rng: ([real(rng, 2, 3, 4)], some(rng, alpha=(1.0, 2.0)), 1),
    "Range": lambda rng: ([np.int64(1), np.int64(9), maybe(rng, np.int64(3))], {}, 1), "RotaryEmbedding": rotated,
    "SkipLayerNormalization": skipped,
    "SkipSimplifiedLayerNormalization": lambda rng: (
        [real(rng, 2, 3, 4), real(rng, 2, 3, 4), real(rng, 4), maybe(rng, real(rng, 4))], some(rng, epsilon=(0.1,)), 1,
    ),
    "TransposeMatMul": old_product,
    "Trilu": lambda rng: ([real(rng, 2, 4, 5), maybe(rng, np.int64(1))], some(rng, upper=(0, 1)), 1),
    "LayerNormalization": lambda rng: (
        [real(rng, 2, 3, 4), real(rng, 4), maybe(rng, real(rng, 4))], some(rng, axis=(-1, 2), epsilon=(0.1,)), 1,
    ),
    "SimplifiedLayerNormalization": lambda rng: ([real(rng, 2, 3, 4), real(rng, 4)], some(rng, epsilon=(0.1,)), 1),
}  # fmt: skip
"""Operator of onnxruntime -> operands, attributes and how many outputs."""


def node_of(op, rng):
    operands, attributes, outputs = NODES[op](rng)
    while operands[-1] is None:
        operands.pop()
    if op in OLD:
        return model_of(op, *operands, opset=13, outputs=outputs, **attributes)
    model = model_of(op, *operands, domain=MICROSOFT, opset=1, outputs=outputs, **attributes)
    model.opset_import.append(helper.make_opsetid("", 17))
    return model


@pytest.mark.parametrize("op", NODES)
def test_operators_of_onnxruntime_are_computed_as_it_does(op):
    pytest.importorskip("onnxruntime")
    refused, count = 0, 60 if "Attention" in op else 12
    for seed in range(count):
        model = node_of(op, np.random.default_rng(seed))
        want = by_onnxruntime(model)
        if want is None:  # of some turned batches onnxruntime has no product
            assert op == "FusedMatMul"
            continue
        try:
            check_equal(computed(model), want, atol=5e-3 if "Attention" in op else 2e-4)  # masks of -10,000 round
        except WorkloadError:
            refused += 1
    assert refused <= count // 4


def test_attributes_that_onnxruntime_knows():
    """Names, and what they are where they are left out."""
    runtime = pytest.importorskip("onnxruntime")
    schemas = {
        (one.domain, one.name): one
        for one in runtime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
        if one.since_version == 1
    }
    keys = {key for key in READERS if key[0] == MICROSOFT} | {("", name) for name in OLD}
    for key in sorted(keys & set(schemas)):
        constants = DEFAULTS.get(key, {})
        assert set(constants) == set(schemas[key].attributes), key
        for name, item in schemas[key].attributes.items():
            value = onnx.AttributeProto.FromString(item._default_value)
            if not item.required and value.type:
                wanted = helper.get_attribute_value(value)
                wanted = wanted.decode() if isinstance(wanted, bytes) else wanted
                assert constants[name] == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), (key, name)
    assert len(keys & set(schemas)) > 35


# ---- other domains ----


@pytest.mark.parametrize(
    "domain", ["acme", "com.microsoft.nchwc", "qonnx.custom_op.channels_last", "ai.onnx.ml", "com"]
)
def test_operators_of_other_domains_are_not_the_standards(domain):
    names = [name for own, name in READERS if own == "" and (domain, name) not in READERS]
    assert len(names) > 150
    for name in names:
        model = model_of(name, real(np.random.default_rng(0), 2, 3), domain=domain, opset=1)
        with pytest.raises(WorkloadError, match=rf"{domain}\.{name} \(node y0\)"):
            read(model)


def test_other_operators_of_onnxruntime_are_refused():
    runtime = pytest.importorskip("onnxruntime")
    schemas = runtime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    names = {one.name for one in schemas if one.domain == MICROSOFT and (MICROSOFT, one.name) not in READERS}
    assert {"GroupQueryAttention", "DecoderMaskedMultiHeadAttention", "FusedConv", "Unique"} <= names
    for name in names:
        with pytest.raises(WorkloadError, match=rf"com\.microsoft\.{name} \(node y0\)"):
            read(model_of(name, real(np.random.default_rng(0), 2, 3), domain=MICROSOFT, opset=1))


def test_the_standard_has_two_names():
    model = model_of("Relu", np.float32([-1, 2]), domain="ai.onnx", opset=17)
    assert read(model).outputs[0].array.tolist() == [0, 2]


@pytest.mark.parametrize("name", ["Softmax", "MaxPool", "Conv", "Attention"])
@pytest.mark.parametrize("domain", ["acme", "com.microsoft"])
def test_functions_of_a_model_are_what_their_body_says(domain, name):
    model = model_of(name, np.float32([-1, 2]), domain=domain, opset=1)
    body = [helper.make_node("Abs", ["a"], ["b"])]
    model.functions.append(helper.make_function(domain, name, ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("", 17))
    assert read(model).outputs[0].array.tolist() == [1, 2]


# ---- what nobody asks for ----

IMAGE, TAPS = np.ones((1, 2, 5, 5), np.float32), np.ones((2, 2, 3, 3), np.float32)
STEPS = (np.ones((3, 1, 2), np.float32), np.ones((1, 4, 2), np.float32), np.ones((1, 4, 4), np.float32))
UNREAD = {
    "an attribute that the operator has not": (("Softmax", IMAGE), {"temperature": 0.1}),
    "one of other versions": (("Squeeze", IMAGE), {"axes": [0]}),
    "one without a value": (("Relu", IMAGE), {"alpha": 0.1}),
    "one that no reader asks for": (("LayerNormalization", IMAGE, TAPS[0, 0, 0, :1]), {"stash_type": 11}),
    "a kernel of other sizes": (("Conv", IMAGE, TAPS), {"kernel_shape": [2, 2]}),
    "a turned kernel of other sizes": (("ConvTranspose", IMAGE, TAPS), {"kernel_shape": [2, 2]}),
    "states of other sizes": (("RNN", *STEPS), {"hidden_size": 3}),
    "an operand more": (("Relu", IMAGE, IMAGE), {}),
}  # fmt: skip
UNREAD_OF_ONNXRUNTIME = {
    "angles with a factor": ("RotaryEmbedding", {"scale": 0.5}),
    "weights in another order": ("MatMulNBits", {"weight_prepacked": 1}),
    "an attribute that the operator has not": ("FastGelu", {"approximate": "tanh"}),
}


@pytest.mark.parametrize(("operands", "attributes"), UNREAD.values(), ids=UNREAD)
def test_what_no_reader_asks_for_is_refused(operands, attributes):
    with refuses(WorkloadError):
        read(model_of(*operands, opset=17, **attributes))


@pytest.mark.parametrize(("op", "attributes"), UNREAD_OF_ONNXRUNTIME.values(), ids=UNREAD_OF_ONNXRUNTIME)
def test_what_no_reader_of_onnxruntimes_asks_for_is_refused(op, attributes):
    operands, given, _ = NODES[op](np.random.default_rng(0))
    with refuses(WorkloadError):
        read(model_of(op, *operands, domain=MICROSOFT, opset=1, **{**given, **attributes}))

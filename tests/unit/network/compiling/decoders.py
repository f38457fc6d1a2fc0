"""A decoder of Llama's form, two layers small: as an ONNX file with caches that grow, and in float64 by NumPy."""

import numpy as np
from onnx import TensorProto, helper

from tests.unit.network.compiling.onnx_models import _Net

LAYERS, WIDTH, HEADS, GROUPS, DIM, HIDDEN, WORDS = 2, 32, 4, 2, 8, 48, 20
EPSILON = 1e-5
_FREQUENCIES = 100.0 ** -(np.arange(0, DIM, 2) / DIM)


def weights_of(seed=0):
    random = np.random.default_rng(seed)

    def drawn(*shape):
        return (random.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)

    layer = {"q": (WIDTH, WIDTH), "k": (WIDTH, GROUPS * DIM), "v": (WIDTH, GROUPS * DIM), "o": (WIDTH, WIDTH),
             "gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}  # fmt: skip
    return {
        "table": (random.standard_normal((WORDS, WIDTH))).astype(np.float32),
        "layers": [{name: drawn(*shape) for name, shape in layer.items()} for _ in range(LAYERS)],
        "head": drawn(WIDTH, WORDS),
    }


def logits_of(weights, ids):
    """Return the logits of a whole sequence (tokens,) in float64."""

    def norm(x):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)

    def turned(x):  # (heads, tokens, dim)
        angles = np.tile(np.arange(len(ids))[:, None] * _FREQUENCIES, 2)
        half = np.concatenate([-x[..., DIM // 2 :], x[..., : DIM // 2]], axis=-1)
        return x * np.cos(angles) + half * np.sin(angles)

    x = weights["table"].astype(np.float64)[ids]
    hidden = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for own in weights["layers"]:
        own = {name: array.astype(np.float64) for name, array in own.items()}
        h = norm(x)
        q, k, v = ((h @ own[name]).reshape(len(ids), -1, DIM).transpose(1, 0, 2) for name in "qkv")
        q, k = turned(q), turned(k)
        k, v = (np.repeat(one, HEADS // GROUPS, axis=0) for one in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(DIM) + hidden
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (powers / powers.sum(axis=-1, keepdims=True)) @ v
        x = x + mixed.transpose(1, 0, 2).reshape(len(ids), WIDTH) @ own["o"]
        h = norm(x)
        gate = h @ own["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ own["up"])) @ own["down"]
    return norm(x) @ weights["head"].astype(np.float64)


class _Decoder(_Net):
    def normed(self, x):
        mean = self.op("ReduceMean", self.op("Mul", x, x), self.numbers(-1))
        return self.op("Div", x, self.op("Sqrt", self.op("Add", mean, self.scalar(EPSILON))))

    def heads(self, x, weight):
        return self.op("Transpose", self.op("Reshape", self.op("MatMul", x, weight), self.numbers(0, 0, -1, DIM)),
                       perm=[0, 2, 1, 3])  # fmt: skip

    def turned(self, x, cos, sin):
        first, second = self.op("Split", x, outputs=2, axis=-1, num_outputs=2)
        half = self.op("Concat", self.op("Neg", second), first, axis=-1)
        return self.op("Add", self.op("Mul", x, cos), self.op("Mul", half, sin))

    def repeated(self, x):
        one, size = self.numbers(1), self.op("Shape", x, start=2, end=3)
        groups = self.op("Unsqueeze", x, self.numbers(2))
        shape = self.op(
            "Concat", one, self.numbers(GROUPS), self.numbers(HEADS // GROUPS), size, self.numbers(DIM), axis=0
        )
        whole = self.op("Expand", groups, shape)
        return self.op("Reshape", whole, self.op("Concat", one, self.numbers(HEADS), size, self.numbers(DIM), axis=0))


def decoder(weights, *, past="past"):
    """Return the ONNX model: ids (1, tokens) and the caches of the layers, whose third size is `past`."""
    net = _Decoder()
    zero, one = net.known(0, np.int64), net.known(1, np.int64)
    count = net.op("Squeeze", net.op("Shape", "ids", start=1, end=2))
    held = net.op("Squeeze", net.op("Shape", "past_key_values.0.key", start=2, end=3))
    end = net.op("Add", held, count)
    places = net.op("Unsqueeze", net.op("Range", held, end, one), net.numbers(1))
    angles = net.op(
        "Mul", net.op("Cast", places, to=TensorProto.FLOAT), net.known(np.tile(_FREQUENCIES, 2), np.float32)
    )
    cos, sin = net.op("Cos", angles), net.op("Sin", angles)
    seen = net.op("LessOrEqual", net.op("Range", zero, end, one), places)
    mask = net.op("Where", seen, net.scalar(0), net.scalar(-np.inf))
    x = net.op("Gather", net.known(weights["table"]), "ids")
    caches, new = [], []
    for number, own in enumerate(weights["layers"]):
        w = {name: net.known(array) for name, array in own.items()}
        h = net.normed(x)
        q, k, v = (net.heads(h, w[name]) for name in "qkv")
        q, k = net.turned(q, cos, sin), net.turned(k, cos, sin)
        for name, value in (("key", k), ("value", v)):
            caches.append(f"past_key_values.{number}.{name}")
            net.nodes.append(
                helper.make_node("Concat", [caches[-1], value], [f"present.{number}.{name}"], axis=2)
            )  # fmt: skip
            new.append(f"present.{number}.{name}")
        k, v = (net.repeated(one) for one in new[-2:])
        scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = net.op("Add", net.op("Mul", scores, net.scalar(DIM**-0.5)), mask)
        mixed = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = net.op("Add", x, net.op("MatMul", net.op("Reshape", mixed, net.numbers(0, 0, -1)), w["o"]))
        h = net.normed(x)
        gate = net.op("MatMul", h, w["gate"])
        gate = net.op("Mul", gate, net.op("Sigmoid", gate))
        x = net.op("Add", x, net.op("MatMul", net.op("Mul", gate, net.op("MatMul", h, w["up"])), w["down"]))
    logits = net.op("MatMul", net.normed(x), net.known(weights["head"]))
    cache = ("float", [1, GROUPS, past, DIM])
    graph = helper.make_graph(
        net.nodes, "decoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "tokens"]),
         *(helper.make_tensor_value_info(name, TensorProto.FLOAT, cache[1]) for name in caches)],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [1, "tokens", WORDS]),
         *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, GROUPS, "all", DIM]) for name in new)],
        net.weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

"""Every elementary function that readers of models know, compiled, beside float64: at most 4 last places."""

import numpy as np
import pytest
from scipy import special

import anatune
from anatune.network.graph.onnx.operators import elements as onnx_elements

pytest.importorskip("tvm")

MOST_ULP = 4
TURN = 2 * np.sqrt(2 / np.pi)


ZEROS = ("Max", "Min", "Relu", "fmax", "fmin", "maximum", "minimum", "relu")
"""Functions that choose among 0 and -0, which are equal."""


def grid():
    """Return float32 numbers of every power of two, both signs, denormals, ends of ranges, and what lies near them."""
    powers = np.outer(2.0 ** np.arange(-149, 128), [1, 1.1875, 1.5, 1.9999999]).ravel()
    ends = [
        0, np.inf, np.nan, 3.4028235e38, 1.17549435e-38, 88.3763, 88.5, 88.72283, 88.8, 87.3, 89.4, 103.2, 103.9, 104,
        127.5, 149, 150, 0.9999999, 1.0000001, 2.9999998, 1e-7, 2.4e-7, 1.5707964, 3.1415927, 100, 1000.5, 1e5,
    ]  # fmt: skip
    some = np.concatenate([powers, ends]).astype(np.float32)
    return np.concatenate([some, -some, np.linspace(-20, 20, 4001, dtype=np.float32), np.float32([-2, 2])])


def pairs():
    """Return two arrays that pair some numbers of `grid` with each other."""
    ends = [0, np.inf, np.nan, 1, 1.5, 3, 7.3, 0.1, 1e-3, 3.4028235e38, 2.5, 100.25]
    some = np.concatenate([2.0 ** np.arange(-149, 128, 12), ends]).astype(np.float32)
    first, second = np.meshgrid(*[np.concatenate([some, -some])] * 2)
    return first.ravel(), second.ravel()


def complain(name, operands, got, want, most=MOST_ULP):
    """Return in words where an array is further from float64 than `most` last places; "": nowhere."""
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype == bool:
        is_bad = got != want
    else:
        with np.errstate(all="ignore"):
            single = want.astype(np.float32)
            unit = np.spacing(np.abs(np.where(np.isfinite(single), single, 1))).astype(np.float64)
            is_near = np.abs(got.astype(np.float64) - want) <= most * unit
        is_near |= np.isinf(got) & ((got > 0) == (want > 0)) & (np.abs(want) > 3.4028e38)  # rounded once more
        is_same = (got == single) | (np.isnan(got) & np.isnan(single))
        is_bad = ~np.where(np.isfinite(single), is_near, is_same)
        if name not in ZEROS:
            is_bad |= (want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want))
    if not is_bad.any():
        return ""
    place = np.flatnonzero(is_bad)[0]
    given = ", ".join(repr(one[place]) for one in operands)
    return f"{name}({given}) is {got[place]!r}, not {want[place]!r}; "


# -- ONNX ------------------------------------------------------------------------------------------------------------

OTHERS = {
    "And", "BiasGelu", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Dropout",
    "Mean", "Not", "Or",
    "Where", "Xor",
}  # fmt: skip
"""Readers of what is no function of floating-point numbers, and of functions of sums, which overflow."""


def exponential_unit(x, alpha=1.0, scale=1.0, inner=1.0):
    return np.where(x > 0, scale * x, scale * alpha * np.expm1(x * inner))


def hard_swish(x):
    return x * (np.clip(x + 3, 0, 6) / 6)


def mish(x):
    return x * np.tanh(np.logaddexp(x, 0))


def gelu_tanh(x):
    return x * special.expit(TURN * (x + 0.044715 * x**3))


def gelu(x):
    return x * special.ndtr(x)


ALPHA, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
WANTED = {
    "Celu": exponential_unit, "Elu": exponential_unit, "Erf": special.erf, "FastGelu": gelu_tanh, "Gelu": gelu,
    "HardSwish": hard_swish, "Mish": mish, "QuickGelu": lambda x: x * special.expit(np.float32(1.702) * x),
    "Selu": lambda x: exponential_unit(x, ALPHA, GAMMA), "Sigmoid": special.expit,
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Swish": lambda x: x * special.expit(x), "PRelu": lambda x, y: np.where(x < 0, x * y, x),
    "Softsign": lambda x: x / (1 + np.abs(x)), "Sum": np.add,
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
}  # fmt: skip
"""Operator -> what it computes, where the standard's evaluator is less exact, or does not have it."""
ATTRIBUTES = {"Mod": {"fmod": 1}}
OPTIONAL = {"Clip": 1, "FastGelu": 1, "Max": 2, "Min": 2, "Sum": 2}
"""Operator -> operands, of those that take any number."""
INEXACT = {"HardSigmoid": 1e9, "QuickGelu": 200, "divide trunc": 1e9, "logaddexp": 16}
"""Operator -> last places that it may be off: sums that cancel, a sigmoid of a product that is rounded, quotients that
are rounded to whole numbers."""


def one_model(count):
    """Return an ONNX model of all operators of so many operands, their names, and their results in float64."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    operands = (grid(),) if count == 1 else pairs()
    names = ["x", "y"][:count]
    nodes, wanted = [], {}
    for op in sorted(set(onnx_elements.READERS) - OTHERS):
        is_standard = onnx.defs.has(op, 22) or op == "Swish"
        known = onnx.defs.get_schema(op, 24) if is_standard else None
        takes = OPTIONAL.get(op) or (known.max_input if known else 1)
        if takes != count:
            continue
        domain = "" if is_standard else "com.microsoft"
        node = onnx.helper.make_node(op, names, [op], domain=domain, **ATTRIBUTES.get(op, {}))
        wide = [one.astype(np.float64) for one in operands]
        with np.errstate(all="ignore"):
            if op in WANTED:
                wanted[op] = WANTED[op](*wide)
            else:
                double = onnx.TensorProto.DOUBLE
                inputs = [onnx.helper.make_tensor_value_info(name, double, [operands[0].size]) for name in names]
                whole = onnx.helper.make_graph([node], "one", inputs, [onnx.helper.make_empty_tensor_value_info(op)])
                model = onnx.helper.make_model(whole, opset_imports=[onnx.helper.make_opsetid("", 22)])
                (wanted[op],) = ReferenceEvaluator(model).run(None, dict(zip(names, wide, strict=True)))
        nodes.append(node)
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [operands[0].size]) for name in names]
    outputs = [onnx.helper.make_empty_tensor_value_info(op) for op in wanted]
    domains = [onnx.helper.make_opsetid("", 24), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "all", inputs, outputs), opset_imports=domains)
    return model, operands, wanted


@pytest.mark.parametrize("count", [1, 2])
def test_all_elementary_operators_of_onnx_are_near_float64(tmp_path, count):
    model, operands, wanted = one_model(count)
    path = tmp_path / "all.onnx"
    path.write_bytes(model.SerializeToString())
    results = anatune.compile(path, threads=1, check=False)(*operands)
    rest = [
        complain(op, operands, got, want, INEXACT.get(op, MOST_ULP))
        for (op, want), got in zip(wanted.items(), results, strict=True)
    ]
    assert not any(rest), "".join(rest)


# -- PyTorch ---------------------------------------------------------------------------------------------------------

TORCH_OTHERS = {
    "_to_copy", "alias", "arange", "bernoulli", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "clamp", "clone", "copy", "div", "elu", "empty", "empty_permuted",
    "empty_strided", "eq", "fill", "floor_divide", "full", "full_like", "ge", "gelu", "gt", "hardtanh", "ldexp", "le",
    "leaky_relu",
    "lift_fresh_copy", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "native_dropout", "ne", "pow",
    "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "rrelu_with_noise_functional", "rsub", "round",
    "scalar_tensor", "tril_indices", "triu_indices", "where", "sub", "add",
    *(f"__{name}__" for name in ("and", "lshift", "or", "rshift", "xor")),
}  # fmt: skip
"""Readers of what is no function of floating-point numbers alone, and of functions that stand below."""


def functions_of_torch(torch):
    """Return functions of one and of two tensors, by name: those of readers, and some that become others."""
    from anatune.network.graph.torch.operators.elements import READERS

    own = torch.nn.functional
    singles = {
        "celu": own.celu, "celu of 1.7": lambda x: own.celu(x, 1.7), "clamp": lambda x: x.clamp(-1e-6, 3),
        "elu": own.elu, "gelu": own.gelu, "gelu_tanh": lambda x: own.gelu(x, approximate="tanh"),
        "hardsigmoid": own.hardsigmoid,
        "hardtanh": own.hardtanh, "leaky_relu": lambda x: own.leaky_relu(x, 1e-6), "logsigmoid": own.logsigmoid,
        "power 3": lambda x: x**3, "power 2.5": lambda x: x**2.5, "power -0.5": lambda x: x**-0.5,
        "power 0.5": lambda x: x**0.5, "power -1": lambda x: x**-1.0, "relu6": own.relu6, "round": torch.round,
        "rsub": lambda x: 1 - x,
        "selu": own.selu,
        "silu": own.silu, "softplus": own.softplus, "softplus of 2": lambda x: own.softplus(x, beta=2.0),
        "softsign": own.softsign,
    }  # fmt: skip
    both = {
        "add": torch.add, "divide": torch.div, "divide trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "floor_divide": torch.floor_divide, "logaddexp": torch.logaddexp, "power": torch.pow, "subtract": torch.sub,
        "xlogy": torch.xlogy, "xlog1py": torch.special.xlog1py,
    }  # fmt: skip
    for name in sorted(set(READERS) - TORCH_OTHERS):
        packet = getattr(torch.ops.aten, name)
        counts = {len(kinds): one for one, kinds in _operands(packet).items() if set(kinds) == {"Tensor"}}
        assert counts, f"{name}: say above how it is tested"
        count = min(counts)
        (singles if count == 1 else both)[name] = counts[count]
    return singles, both


def _operands(packet):
    """Return the overloads of an operator that have no name but of a type, each with the types that it has to have."""
    overloads = [getattr(packet, name) for name in ("default", "Tensor") if name in packet.overloads()]
    return {
        one: [str(argument.type) for argument in one._schema.arguments if not argument.has_default_value()]
        for one in overloads
    }


EXACT = {"gelu": gelu, "gelu_tanh": gelu_tanh, "mish": mish, "hardswish": hard_swish, "silu": WANTED["Swish"]}


@pytest.mark.parametrize("count", [1, 2])
def test_all_elementary_operators_of_torch_are_near_float64(count):
    torch = pytest.importorskip("torch")
    functions = functions_of_torch(torch)[count - 1]
    operands = (grid(),) if count == 1 else pairs()

    class All(torch.nn.Module):
        def forward(self, *tensors):
            return tuple(function(*tensors) for function in functions.values())

    tensors = tuple(map(torch.from_numpy, operands))
    results = anatune.compile(All().eval(), tensors, threads=1, check=False)(*tensors)
    rest = []
    for (name, function), got in zip(functions.items(), results, strict=True):
        with np.errstate(all="ignore"):
            wide = [one.astype(np.float64) for one in operands]
            want = EXACT[name](*wide) if name in EXACT else function(*map(torch.from_numpy, wide)).numpy()
        rest.append(complain(name, operands, got, want, INEXACT.get(name, MOST_ULP)))
    assert not any(rest), "".join(rest)

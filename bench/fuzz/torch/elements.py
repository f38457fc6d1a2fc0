"""How PyTorch's operators on elements and reductions are drawn."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from bench.fuzz.builder import Draw, Skip
from bench.fuzz.program import words
from bench.fuzz.torch.moves import axis_of

if TYPE_CHECKING:
    from bench.fuzz.torch.cases import TorchBuilder as Builder

__all__ = ["ELEMENTS"]

INTEGERS = ("int32", "int64", "uint8", "int8", "int16")
CONSTANTS = (1e-8, -1e-8, 1e-6, 1e-5, -1e-5, 9e-5, 1e-3, 0.1, 0.5, 1, 2, 3, 6, 0, -1, 1e4)
_PLAIN = words(
    """abs ceil cos cosh erf erfc exp exp2 expm1 floor isinf isnan logical_not neg reciprocal relu round sigmoid sign
    signbit sin sinh tan tanh trunc atan asinh"""
)
_DOMAINS = {
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt"), "torch.abs({0})"),
    **dict.fromkeys(("acos", "asin", "atanh"), "torch.tanh({0})"),
    "rsqrt": "torch.abs({0}) + 1e-3",
    "acosh": "torch.exp({0})",
}
"""Function -> what puts its argument into its domain."""
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="
}  # fmt: skip
_POWERS = (2, 3, 0.5, -1, -2, 1, 0, 1.5)
_FULL = "torch.maximum({0}, torch.full_like({0}, {c}))"


def _unary(op: str, b: Builder, before: str = "") -> None:
    """Add a function of floats, half of the time of what another function puts into its domain."""
    x = b.pick()
    if before and b.chance(0.6):
        x = b.call(before, x)
    b.call(f"torch.{op}({{0}})", x)


def _activation(b: Builder) -> None:
    b.call(
        b.choice(
            [
                "F.leaky_relu({0}, {a})",
                "F.elu({0}, alpha={a})",
                "F.celu({0}, alpha=0.7)",
                "F.selu({0})",
                "F.silu({0})",
                "F.gelu({0})",
                "F.gelu({0}, approximate='tanh')",
                "F.softplus({0})",
                "F.mish({0})",
                "F.hardswish({0})",
                "F.hardsigmoid({0})",
                "F.relu6({0})",
                "F.logsigmoid({0})",
                "F.softsign({0})",
                "F.tanhshrink({0})",
                "F.hardtanh({0}, -{a}, {c})",
                "F.threshold({0}, {a}, {c})",
                "F.softshrink({0})",
                "F.hardshrink({0})",
                "torch.relu({0}) + {a}",
                "F.glu(torch.cat([{0}, {0}], -1))",
                "F.rrelu({0})",
                "torch.square(F.relu({0}))",
            ]
        ),
        b.pick(low=1),
        a=b.choice([1e-5, 1e-3, 0.01, 0.3, 1.0]),
        c=b.choice([1e-4, 1.0, 6.0]),
    )


def _pair(expression: str, b: Builder, *dtypes: str) -> None:
    x = b.pick(dtypes or (b.dtype,) * 4 + INTEGERS[:3])
    y = b.like(x)
    b.call(expression, *((x, y) if b.chance(0.75) else (y, x)))


def _number(expression: str, b: Builder) -> None:
    """Add an operator on a tensor and a number."""
    x = b.pick((b.dtype,) * 5 + INTEGERS[:2])
    c = b.choice(CONSTANTS)
    b.call(expression, x, c=c if b.arrays[x].dtype.name == b.dtype else int(c) or 3)


def _clamp(b: Builder) -> None:
    x = b.pick((b.dtype,) * 4 + ("int64",))
    low = b.choice([1e-8, 1e-6, 1e-5, -1e-5, 9e-5, 0, -1.0])
    b.call(b.choice(["torch.clamp({0}, min={c})", "torch.clamp({0}, {c}, 6)", "torch.clamp({0}, max={c})"]), x, c=low)


def _divided(b: Builder) -> None:
    x = b.pick((b.dtype, *INTEGERS))
    mode = b.choice(["floor", "trunc"])
    b.call("torch.div({0}, {1}, rounding_mode={mode})", x, b.like(x), mode=mode)


def _logical(op: str, b: Builder) -> None:
    x = b.pick(("bool", "bool", b.dtype, "int64"))
    b.call(f"torch.{op}({{0}}, {{1}})", x, b.like(x))


def _bits(op: str, b: Builder) -> None:
    x = b.pick((*INTEGERS, "bool"))
    b.call(f"torch.{op}({{0}}, {{1}})", x, b.like(x))


def _shift(op: str, b: Builder) -> None:
    x = b.pick(INTEGERS)
    b.call(op, x, b.indices(b.arrays[x].shape, 0, 7, dtype=b.arrays[x].dtype.name))


def _cast(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "bool", *INTEGERS))
    b.call(f"{{0}}.to({b.choice(['torch.int32', 'torch.int64', 'torch.uint8', 'torch.bool', '{T}', '{T}'])})", x)


def _where(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64", "uint8"))
    y = b.like(x)
    b.call(
        b.choice(
            ["torch.where({0} > {1}, {0}, {1})", "torch.where({0} == 0, {1}, {0})", "{0}.masked_fill({1} < 0, 1)"]
        ),
        x,
        y,
    )


def _reduce(op: str, b: Builder, *dtypes: str) -> None:
    x = b.pick(dtypes or (b.dtype,), 1)
    b.call(f"torch.{op}({{0}}, {{d}}, keepdim={{k}})", x, d=axis_of(b, x), k=b.chance(0.5))


def _extreme(op: str, b: Builder) -> None:
    x = b.pick((b.dtype,) * 3 + ("uint8", "int8", "int64"), 1)
    outputs = 2 if op in ("max", "min", "median") else 1
    b.call(f"torch.{op}({{0}}, {{d}}, keepdim={{k}})", x, d=axis_of(b, x), k=b.chance(0.5), outputs=outputs)


def _whole(b: Builder) -> None:
    b.call(
        b.choice(
            [
                "torch.sum({0})",
                "torch.mean({0})",
                "torch.max({0})",
                "torch.amin({0})",
                "torch.argmax({0})",
                "torch.prod({0})",
                "torch.std({0})",
                "torch.norm({0})",
                "torch.any({0} > 0)",
            ]
        ),
        b.pick(low=1),
    )


def _statistics(b: Builder) -> None:
    x = b.pick(low=1)
    if b.arrays[x].shape[-1] < 2:
        raise Skip
    word = b.choice(["var", "std", "var_mean", "std_mean"])
    b.call(f"torch.{word}({{0}}, -1, correction={{c}})", x, c=b.integer(0, 1), outputs=2 if "_" in word else 1)


def _sorted(b: Builder) -> None:
    x = b.pick((b.dtype,) * 3 + ("int64", "int32"), 1)
    size = b.arrays[x].shape[-1]
    expression = b.choice(["torch.sort({0}, -1, descending={l}, stable=True)", "torch.topk({0}, {k}, -1, largest={l})",
                           "torch.kthvalue({0}, {k}, -1)"])  # fmt: skip
    b.call(f"{expression}[0]", x, k=b.integer(1, max(1, size)), l=b.chance(0.5))


def _normed(b: Builder) -> None:
    x = b.pick(low=2)
    b.call(
        b.choice(
            [
                "F.normalize({0}, dim={d})",
                "torch.linalg.vector_norm({0}, {p}, {d})",
                "F.cosine_similarity({0}, {0}.flip(0), dim={d})",
            ]
        ),
        x,
        d=axis_of(b, x),
        p=b.choice([0, 1, 2, 3, float("inf")]),
    )


def _long(b: Builder) -> None:
    if b.dtype != "float32":
        raise Skip
    b.call(b.choice(["torch.sum({0}, 0)", "torch.mean({0}, 0)"]), b.long())


def _of_floats(op: str, b: Builder) -> None:
    _pair(f"torch.{op}({{0}}, {{1}})", b, b.dtype)


def _scaled(b: Builder) -> None:
    x = b.pick()
    b.call("torch.ldexp({0}, {1})", x, b.indices(b.arrays[x].shape, -9, 9))


def _along(op: str, b: Builder) -> None:
    b.call(f"torch.{op}({{0}}, {{d}})", b.pick((b.dtype,) * 3 + ("int64",), 1), d=b.choice([-1, 0]))


ELEMENTS: dict[str, Draw] = {
    "sum (very many)": _long,
    **{op: functools.partial(_unary, op) for op in _PLAIN},
    **{op: functools.partial(_unary, op, before=before) for op, before in _DOMAINS.items()},
    **{op: functools.partial(_pair, f"{{0}} {sign} {{1}}") for op, sign in _SIGNS.items()},
    **{
        op: functools.partial(_pair, f"torch.{op}({{0}}, {{1}})")
        for op in ("maximum", "minimum", "fmod", "remainder", "floor_divide")
    },
    **{f"{op} (activation)": _activation for op in ("elu", "gelu", "leaky_relu", "hardtanh")},
    "add (number)": functools.partial(_number, "{0} + {c}"),
    "mul (number)": functools.partial(_number, "{0} * {c}"),
    "rsub": functools.partial(_number, "{c} - {0}"),
    "div (number)": functools.partial(_number, "{0} / {c}"),
    "gt (number)": functools.partial(_number, "({0} > {c}).to({T})"),
    "maximum (number)": functools.partial(_number, _FULL),
    "pow": lambda b: b.call("torch.pow({0}, {c})", b.pick(), c=b.choice(_POWERS)),
    "clamp": _clamp,
    "clamp (more)": _clamp,
    **{op: functools.partial(_of_floats, op) for op in ("atan2", "hypot", "copysign", "fmax", "fmin")},
    "div (rounded)": _divided,
    "where": _where,
    "_to_copy": _cast,
    **{op: functools.partial(_logical, op) for op in ("logical_and", "logical_or", "logical_xor")},
    **{op: functools.partial(_bits, op) for op in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "bitwise_not": lambda b: b.call("torch.bitwise_not({0})", b.pick((*INTEGERS, "bool"))),
    "bitwise_left_shift": functools.partial(_shift, "{0} << {1}"),
    "bitwise_right_shift": functools.partial(_shift, "{0} >> {1}"),
    "ldexp": _scaled,
    **{op: functools.partial(_reduce, op) for op in ("sum", "mean", "prod", "logsumexp", "amax", "amin")},
    "sum (integers)": lambda b: _reduce("sum", b, "int64", "int32", "bool"),
    "any": lambda b: _reduce("any", b, "bool"),
    "all": lambda b: _reduce("all", b, "bool", b.dtype),
    **{op: functools.partial(_extreme, op) for op in ("max", "min", "argmax", "argmin")},
    "sum (whole)": _whole,
    "var": _statistics,
    "sort": _sorted,
    "linalg_vector_norm": _normed,
    **{op: functools.partial(_along, op) for op in ("cumsum", "cumprod")},
    "logcumsumexp": lambda b: b.call("torch.logcumsumexp({0}, -1)", b.pick(low=1)),
    "_softmax": lambda b: b.call("torch.softmax({0}, -1)", b.pick(low=1)),
    "_log_softmax": lambda b: b.call("torch.log_softmax({0}, -1)", b.pick(low=1)),
    "median": lambda b: b.call("torch.median({0}, -1)[0]", b.pick(low=1)),
}
"""Name of a core operator, words on its form -> what adds an expression of it."""

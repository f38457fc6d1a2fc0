"""How expressions of PyTorch are drawn: elements, reductions, moves, indices; the others come from `torch_layers`.

A key begins with the name of the core operator that it is there for, as the readers' table has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from bench.fuzz.builder import Skip
from bench.fuzz.torch_layers import LAYERS

if TYPE_CHECKING:
    from bench.fuzz.torch_cases import TorchBuilder as Builder

__all__ = ["NO_GENERATOR", "OPERATORS"]

INTEGERS = ("int32", "int64", "uint8", "int8", "int16")
CONSTANTS = (1e-8, -1e-8, 1e-6, 1e-5, -1e-5, 9e-5, 1e-3, 0.1, 0.5, 1, 2, 3, 6, 0, -1, 1e4)
Draw = Callable[["Builder"], object]


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
                "F.leaky_relu({0}, {a})", "F.elu({0}, alpha={a})", "F.celu({0}, alpha=0.7)", "F.selu({0})", "F.silu({0})",
                "F.gelu({0})", "F.gelu({0}, approximate='tanh')", "F.softplus({0})", "F.mish({0})", "F.hardswish({0})",
                "F.hardsigmoid({0})", "F.relu6({0})", "F.logsigmoid({0})", "F.softsign({0})", "F.tanhshrink({0})",
                "F.hardtanh({0}, -{a}, {c})", "F.threshold({0}, {a}, {c})", "F.softshrink({0})", "F.hardshrink({0})",
                "torch.relu({0}) + {a}", "F.glu(torch.cat([{0}, {0}], -1))", "F.rrelu({0})", "torch.square(F.relu({0}))",
            ]
        ),
        b.pick(low=1), a=b.choice([1e-5, 1e-3, 0.01, 0.3, 1.0]), c=b.choice([1e-4, 1.0, 6.0]),
    )  # fmt: skip


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


# ---- moves ----


def _any(b: Builder, low: int = 1, high: int = 5) -> str:
    return b.pick((b.dtype,) * 6 + ("bool", "int64", "uint8"), low, high)


def _axis(b: Builder, x: str) -> int:
    return b.integer(-b.arrays[x].ndim, b.arrays[x].ndim - 1)


def _view(b: Builder) -> None:
    x = _any(b)
    shape, sizes = list(b.arrays[x].shape), []
    while shape:
        count = b.integer(1, min(2, len(shape)))
        size, shape = int(np.prod(shape[:count])), shape[count:]
        factors = [one for one in range(2, 9) if size and size % one == 0 and size != one]
        sizes += [f := b.choice(factors), size // f] if factors and b.chance(0.4) else [size]
    if b.chance(0.5) and 0 not in sizes:
        sizes[b.integer(0, len(sizes) - 1)] = -1
    b.call(b.choice(["{0}.reshape({s})", "{0}.contiguous().view({s})"]), x, s=tuple(sizes))


def _moved(b: Builder) -> None:
    """Add one of many moves along an axis."""
    x = _any(b)
    d, e = _axis(b, x), _axis(b, x)
    size = b.arrays[x].shape[d]
    k = b.integer(-size - 1, size + 1)
    expression = b.choice(
        [
            "torch.flip({0}, [{d}])", "torch.roll({0}, {k}, {d})", "{0}.transpose({d}, {e})", "torch.unsqueeze({0}, {d})",
            "torch.squeeze({0}, {d})", "{0}.flatten({d}, -1)", "torch.narrow({0}, {d}, 0, {n})", "{0}.movedim({d}, {e})",
            "torch.repeat_interleave({0}, 2, {d})", "torch.cat([{0}, {0}], {d})", "torch.stack([{0}, {0}], {d})",
            "torch.select({0}, {d}, -1)", "{0}[..., 1:]", "{0}[..., ::2]", "{0}[:, -1]", "{0}[1:-1]", "{0}[None]", "{0}[..., -1:]",
            "{0}.unfold({d}, {n}, 1)", "torch.diagonal({0})", "torch.tril({0})", "torch.triu({0}, 1)", "torch.rot90({0})",
            "{0}.T", "{0}.contiguous().clone()", "torch.cat([{0}.flip(0), {0}], 0)", "{0}.expand(3, *[-1] * {r})",
            "{0}.repeat(*[2] * {r})", "torch.chunk({0}, 2, {d})[0]", "torch.split({0}, {n}, {d})[-1]", "{0}.unbind({d})[-1]",
            "torch.tile({0}, (2,))", "torch.atleast_2d({0})", "{0}.view_as({0})", "{0}.swapaxes({d}, {e})",
            "{0}.flatten(0, 1).flip(0)", "{0}.as_strided({0}.shape, {0}.stride())",
        ]
    )  # fmt: skip
    b.call(expression, x, d=d, e=e, k=k, n=b.integer(1, max(1, size)), r=b.arrays[x].ndim)


def _permute(b: Builder) -> None:
    x = _any(b, 2)
    b.call("{0}.permute({p})", x, p=tuple(int(one) for one in b.random.permutation(b.arrays[x].ndim)))


def _pad(b: Builder) -> None:
    x = b.pick(low=3, high=5)
    rank = b.integer(1, min(3, b.arrays[x].ndim - 2))
    mode = b.choice(["constant", "reflect", "replicate"])
    low = -1 if mode == "constant" and b.chance(0.2) else 0
    b.call("F.pad({0}, {p}, mode={m})", x, p=tuple(b.integer(low, 2) for _ in range(2 * rank)), m=mode)


# ---- indices ----


def _index(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    size = b.arrays[x].shape[axis]
    i = b.indices((b.integer(1, 6),), 0, size)
    expression = b.choice(
        [
            "torch.index_select({0}, {d}, {1})", "{0}[" + ":, " * axis + "{1}]", "{0}.index_select({d}, {1}).flip({d})",
            "torch.index_select({0}, {d}, {1}).flatten(0, 1).flip(0)", "torch.take_along_dim({0}, {1}.reshape(-1, *[1] * ({r} - 1)), 0)",
        ]
    )  # fmt: skip
    b.call(expression, x, i, d=axis, r=b.arrays[x].ndim)


def _gather(b: Builder) -> None:
    x = _any(b)
    axis, shape = b.integer(0, b.arrays[x].ndim - 1), list(b.arrays[x].shape)
    size, shape[axis] = shape[axis], b.integer(1, 5)
    b.call("torch.gather({0}, {d}, {1})", x, b.indices(shape, 0, size), d=axis)


def _scatter(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64"))
    if not b.arrays[x].ndim:
        raise Skip
    axis, shape = b.integer(0, b.arrays[x].ndim - 1), list(b.arrays[x].shape)
    size = shape[axis]
    shape[axis] = 1
    i, y = b.indices(shape, 0, size), b.new(shape, b.arrays[x].dtype.name)
    b.call(b.choice(["torch.scatter({0}, {d}, {1}, {2})", "torch.scatter_add({0}, {d}, {1}, {2})",
                     "torch.scatter_reduce({0}, {d}, {1}, {2}, {r})"]), x, i, y, d=axis, r=b.choice(["sum", "amax", "amin", "prod"]))  # fmt: skip


def _index_put(b: Builder) -> None:
    x = b.pick(low=1, high=3)
    i = b.indices((b.integer(1, 4),), 0, b.arrays[x].shape[0])
    y = b.new((b.arrays[i].shape[0], *b.arrays[x].shape[1:]))
    b.call(
        b.choice(["torch.index_put({0}, ({1},), {2}, accumulate=True)", "torch.index_add({0}, 0, {1}, {2})"]), x, i, y
    )


def _embedding(b: Builder) -> None:
    rows = b.integer(1, 20)
    b.call(
        "F.embedding({0}, {1})",
        b.indices(b.shape(1, 2), 0, rows, weight=False),
        b.new((rows, b.integer(1, 9)), weight=True),
    )


def _search(b: Builder) -> None:
    edges = b.given(
        np.sort(b.random.standard_normal(b.integer(1, 9))).astype(b.arrays[x := b.pick()].dtype), weight=True
    )
    b.call(
        b.choice(["torch.searchsorted({1}, {0}, right={r})", "torch.bucketize({0}, {1}, right={r})"]),
        x,
        edges,
        r=b.chance(0.5),
    )


def _one_hot(b: Builder) -> None:
    size = b.integer(1, 9)
    b.call("F.one_hot({0}, {n}).to({T})", b.indices(b.shape(1, 2), 0, size, weight=False), n=size)


def _updated(b: Builder) -> None:
    """Add a change in place of a copy, through a view."""
    x = b.pick(low=2, high=4)
    b.call(
        b.choice(
            [
                "{0}.slice_scatter({0}[:1] * 2, 0, 0, 1)",
                "torch.select_scatter({0}, {0}[-1], 0, 0)",
                "torch.fill({0}, 2.5) + {0}",
            ]
        ),
        x,
    )


# ---- reductions ----


def _reduce(op: str, b: Builder, *dtypes: str) -> None:
    x = b.pick(dtypes or (b.dtype,), 1)
    b.call(f"torch.{op}({{0}}, {{d}}, keepdim={{k}})", x, d=_axis(b, x), k=b.chance(0.5))


def _extreme(op: str, b: Builder) -> None:
    x = b.pick((b.dtype,) * 3 + ("uint8", "int8", "int64"), 1)
    outputs = 2 if op in ("max", "min", "median") else 1
    b.call(f"torch.{op}({{0}}, {{d}}, keepdim={{k}})", x, d=_axis(b, x), k=b.chance(0.5), outputs=outputs)


def _whole(b: Builder) -> None:
    b.call(b.choice(["torch.sum({0})", "torch.mean({0})", "torch.max({0})", "torch.amin({0})", "torch.argmax({0})", "torch.prod({0})",
                     "torch.std({0})", "torch.norm({0})", "torch.any({0} > 0)"]), b.pick(low=1))  # fmt: skip


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
    b.call(b.choice(["F.normalize({0}, dim={d})", "torch.linalg.vector_norm({0}, {p}, {d})", "F.cosine_similarity({0}, {0}.flip(0), dim={d})"]),
           x, d=_axis(b, x), p=b.choice([0, 1, 2, 3, float("inf")]))  # fmt: skip


_PLAIN = """abs ceil cos cosh erf erfc exp exp2 expm1 floor isinf isnan logical_not neg reciprocal relu round sigmoid sign
    signbit sin sinh tan tanh trunc atan asinh""".split()
_DOMAINS = {
    "log": "torch.abs({0})", "log2": "torch.abs({0})", "log10": "torch.abs({0})", "log1p": "torch.abs({0})", "sqrt": "torch.abs({0})",
    "rsqrt": "torch.abs({0}) + 1e-3", "acos": "torch.tanh({0})", "asin": "torch.tanh({0})", "atanh": "torch.tanh({0})",
    "acosh": "torch.exp({0})",
}  # fmt: skip

OPERATORS: dict[str, Draw] = {
    **{op: functools.partial(_unary, op) for op in _PLAIN},
    **{op: functools.partial(_unary, op, before=before) for op, before in _DOMAINS.items()},
    **{op: functools.partial(_pair, f"{{0}} {sign} {{1}}") for op, sign in
       (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"), ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    **{op: functools.partial(_pair, f"torch.{op}({{0}}, {{1}})") for op in ("maximum", "minimum", "fmod", "remainder", "floor_divide")},
    **{f"{op} (activation {place})": _activation for place, op in enumerate(["elu", "gelu", "leaky_relu", "hardtanh"])},
    "add (number)": functools.partial(_number, "{0} + {c}"), "mul (number)": functools.partial(_number, "{0} * {c}"),
    "rsub": functools.partial(_number, "{c} - {0}"), "div (number)": functools.partial(_number, "{0} / {c}"),
    "gt (number)": functools.partial(_number, "({0} > {c}).to({T})"), "maximum (number)": functools.partial(_number, "torch.maximum({0}, torch.full_like({0}, {c}))"),
    "pow": lambda b: b.call("torch.pow({0}, {c})", b.pick(), c=b.choice([2, 3, 0.5, -1, -2, 1, 0, 1.5])), "clamp": _clamp, "clamp (more)": _clamp,
    **{op: functools.partial(lambda op, b: _pair(f"torch.{op}({{0}}, {{1}})", b, b.dtype), op) for op in ("atan2", "hypot", "copysign", "fmax", "fmin")},
    "div (rounded)": _divided, "where": _where, "_to_copy": _cast, "clone": lambda b: b.call("torch.clone({0})", _any(b)),
    **{op: functools.partial(_logical, op) for op in ("logical_and", "logical_or", "logical_xor")},
    **{op: functools.partial(_bits, op) for op in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "bitwise_not": lambda b: b.call("torch.bitwise_not({0})", b.pick((*INTEGERS, "bool"))),
    "bitwise_left_shift": functools.partial(_shift, "{0} << {1}"), "bitwise_right_shift": functools.partial(_shift, "{0} >> {1}"),
    "ldexp": lambda b: b.call("torch.ldexp({0}, {1})", x := b.pick(("float32",) if b.dtype == "float32" else (b.dtype,)), b.indices(b.arrays[x].shape, -9, 9)),
    "view": _view, "permute": _permute, "constant_pad_nd": _pad, "index": _index, "index_select": _index, "gather": _gather, "scatter": _scatter,
    **{f"{op} (move)": _moved for op in ("flip", "roll", "squeeze", "select", "slice", "cat", "repeat", "unfold")},
    "index_put": _index_put, "embedding": _embedding, "searchsorted": _search, "eq (one_hot)": _one_hot, "slice_scatter": _updated,
    **{op: functools.partial(_reduce, op) for op in ("sum", "mean", "prod", "logsumexp", "amax", "amin")},
    "sum (integers)": lambda b: _reduce("sum", b, "int64", "int32", "bool"), "any": lambda b: _reduce("any", b, "bool"), "all": lambda b: _reduce("all", b, "bool", b.dtype),
    **{op: functools.partial(_extreme, op) for op in ("max", "min", "argmax", "argmin")}, "sum (whole)": _whole, "var": _statistics, "sort": _sorted,
    "linalg_vector_norm": _normed, **{op: functools.partial(lambda op, b: b.call(f"torch.{op}({{0}}, -1)", b.pick(low=1)), op) for op in ("cumsum", "cumprod", "logcumsumexp", "softmax", "log_softmax")},
    "cumsum (first)": lambda b: b.call("torch.cumsum({0}, 0)", b.pick((b.dtype, "int64"), 1)),
    "median": lambda b: b.call("torch.median({0}, -1)[0]", b.pick(low=1)),
    **LAYERS,
}  # fmt: skip
"""Name -> what adds it."""

NO_GENERATOR: dict[str, str] = {}
"""Core operator that is read -> why no generator draws it."""

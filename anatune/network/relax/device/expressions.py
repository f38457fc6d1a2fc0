"""TVM's expressions as lines of Triton: values in float32, whatever 16-bit type memory holds them in."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from anatune.codegen.compat import TvmObject
from anatune.emit.elementary import MIDDLE, NORMAL_TAIL
from anatune.emit.script import Script
from anatune.errors import BuildError
from anatune.network.relax.rest.nests import number
from anatune.templates.triton.program.steps import TRITON_TYPES

__all__ = ["HELPERS", "KEEPS_NAN", "LARGEST", "Condition", "Expressions", "compensated", "finite", "triton_type"]

Condition = str
"""Of a load: where it may be made; "": everywhere."""
Load = Callable[[TvmObject, Condition], str]
"""A load of TVM's, and where it may be made -> an expression of the elements."""

KEEPS_NAN = "propagate_nan=tl.PropagateNan.ALL"
"""Argument of ``tl.maximum`` and ``tl.minimum`` with which a NaN is no number that the other one replaces."""
_SERIES = functools.reduce(lambda rest, step: f"(1.0 + x / {step}.0 * {rest})", range(8, 1, -1), "1.0")
_EXPM1 = f"""@triton.jit
def _expm1(x):
    return tl.where(tl.abs(x) < 0.5, x * {_SERIES}, tl.exp(x) - 1.0)
"""
_POLYNOMIAL = functools.reduce(
    lambda rest, factor: f"({rest} * ratio + {factor})", NORMAL_TAIL[1:], str(NORMAL_TAIL[0])
)
_TAIL = f"""@triton.jit
def _tail(x):
    ratio = x / (x + {MIDDLE})
    share = {_POLYNOMIAL}
    return share * tl.exp(-0.5 * x * x) * {MIDDLE} / (x + {MIDDLE})
"""
"""The normal distribution of -x, of x from 0 on."""
HELPERS = {
    "_power": """@triton.jit
def _power(x, y):
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    odd = (y - 2.0 * tl.floor(y * 0.5)) == 1.0
    whole = tl.floor(y) == y
    signed = tl.where(odd, -size, size)
    negative = tl.where(whole, signed, float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(x < 0.0, negative, size))
""",
    "_tanh": """@triton.jit
def _tanh(x):
    shrunk = tl.exp(-2.0 * tl.abs(x))
    far = tl.where(x < 0.0, shrunk - 1.0, 1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(tl.abs(x) < 0.05, x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0))), far)
""",
    "_copysign": """@triton.jit
def _copysign(x, y):
    return tl.where((y < 0.0) | ((y == 0.0) & (1.0 / y < 0.0)), -tl.abs(x), tl.abs(x))
""",
    "_cosh": """@triton.jit
def _cosh(x):
    half = tl.exp(tl.abs(x) - 0.6931471805599453)
    return half + 0.25 / half
""",
    "_erfc": f"""{_TAIL}

@triton.jit
def _erfc(x):
    tail = 2.0 * _tail(tl.abs(x) * 1.4142135623730951)
    return tl.where(x < 0.0, 2.0 - tail, tail)
""",
    "_expm1": _EXPM1,
    "_gelu": f"""{_TAIL}

@triton.jit
def _gelu(x):
    below = x * _tail(tl.abs(x))
    return tl.where(x > 10.0, x, tl.where(x > 0.0, x - below, below))
""",
    "_hypot": """@triton.jit
def _hypot(x, y):
    most = tl.maximum(tl.abs(x), tl.abs(y))
    share = tl.minimum(tl.abs(x), tl.abs(y)) / most
    return tl.where((most == 0.0) | (most == float("inf")), most, most * tl.sqrt(1.0 + share * share))
""",
    "_log1p": """@triton.jit
def _log1p(x):
    whole = 1.0 + x
    value = tl.log(whole) * (x / (whole - 1.0))
    return tl.where((whole == 1.0) | (whole == float("inf")), x, value)
""",
    "_mish": """@triton.jit
def _mish(x):
    power = tl.exp(-tl.abs(x))
    above = (1.0 + 2.0 * power) / (1.0 + 2.0 * power * (1.0 + power))
    return x * tl.where(x < 0.0, power * (2.0 + power) / (2.0 + power * (2.0 + power)), above)
""",
    "_sinh": f"""{_EXPM1}

@triton.jit
def _sinh(x):
    half = tl.exp(tl.abs(x) - 0.6931471805599453)
    near = _expm1(tl.abs(x))
    size = tl.where(tl.abs(x) < 1.0, 0.5 * (near + near / (near + 1.0)), half - 0.25 / half)
    return tl.where(x < 0.0, -size, size)
""",
    "_nearest": """@triton.jit
def _nearest(x):
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    return tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1.0)), low + 1.0, low)
""",
    "_product": """@triton.jit
def _times(x, y):
    return x * y


@triton.jit
def _product(x, axis: tl.constexpr, keep_dims: tl.constexpr):
    return tl.reduce(x, axis, _times, keep_dims=keep_dims)
""",
    **{
        f"_{word}": f"""@triton.jit
def _{word}_of_two(x, y):
    return tl.{word}imum(x, y, {KEEPS_NAN})


@triton.jit
def _{word}(x, axis: tl.constexpr, keep_dims: tl.constexpr):
    return tl.reduce(x, axis, _{word}_of_two, keep_dims=keep_dims)
"""
        for word in ("max", "min")
    },
    "_floor_mod": """@triton.jit
def _floor_mod(x, y):
    return (x % y + y) % y
""",
    "_floor_div": """@triton.jit
def _floor_div(x, y):
    return (x - (x % y + y) % y) // y
""",
}
"""Name, which no kernel has -> a function that generated modules have where they use it.

tanh: its series where the quotient cancels."""

_INFIX = {
    "Add": "+", "Sub": "-", "Mul": "*", "EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "And": "&", "Or": "|", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "LShift": "<<", "RShift": ">>",
}  # fmt: skip
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR
_FUNCTIONS = {
    "copysign": "_copysign({0}, {1})", "cosh": "_cosh({0})", "erfc": "_erfc({0})", "expm1": "_expm1({0})",
    "gelu": "_gelu({0})", "gelu_tanh": f"({{0}} / (1.0 + tl.exp(-{{0}} * ({_LINEAR!r} + {_CUBIC!r} * {{0}} * {{0}}))))",
    "hypot": "_hypot({0}, {1})", "log1p": "_log1p({0})", "mish": "_mish({0})", "silu": "({0} / (1.0 + tl.exp(-{0})))",
    "sinh": "_sinh({0})", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "erf": "tl.erf({0})", "sqrt": "tl.sqrt({0})", "rsqrt": "tl.rsqrt({0})", "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})", "fabs": "tl.abs({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "sigmoid": "(1.0 / (1.0 + tl.exp(-{0})))", "tan": "(tl.sin({0}) / tl.cos({0}))", "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))', "isfinite": '(tl.abs({0}) < float("inf"))',
    "trunc": "tl.where({0} < 0.0, tl.ceil({0}), tl.floor({0}))", "nearbyint": "_nearest({0})",
    "round": "_nearest({0})", "tanh": "_tanh({0})", "log10": f"(tl.log({{0}}) * {1 / math.log(10)!r})",
    "bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})",
    "bitwise_not": "(~{0})", "shift_left": "({0} << {1})", "shift_right": "({0} >> {1})", "likely": "{0}",
}  # fmt: skip
"""Function of TVM's -> Triton of its arguments."""
_POWERS = {0.5: "tl.sqrt({0})", -0.5: "tl.rsqrt({0})", 1.0: "{0}", 2.0: "({0} * {0})", 3.0: "({0} * {0} * {0})"}
_WIDE = ("float16", "bfloat16")
_OTHERS = ("int16", "int64", "uint16", "uint32", "uint64", "float64")
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
"""Numbers of 16 bits."""


def finite(value: str, dtype: str) -> str:
    """Return a float32 value as memory of a dtype may hold it: no number becomes infinite, as masks would."""
    if dtype not in LARGEST:
        return value
    most, far = LARGEST[dtype], 'float("inf")'
    high = f"tl.where(({value} > {most!r}) & ({value} < {far}), {most!r}, {value})"
    return f"tl.where(({value} < -{most!r}) & ({value} > -{far}), -{most!r}, {high})"


def compensated(total: str, term: str) -> list[str]:
    """Return lines that add a float32 term to a sum, and keep what rounding takes away in ``total_lost``.

    What is lost in sums that are not finite is nothing: infinities stay what they are.
    """
    lost, more, both = f"{total}_lost", f"{total}_more", f"{total}_both"
    return [
        f"{more} = {term} - {lost}",
        f"{both} = {total} + {more}",
        f"{lost} = ({both} - {total}) - {more}",
        f'{lost} = tl.where(tl.abs({lost}) < float("inf"), {lost}, 0.0)',
        f"{total} = {both}",
    ]


def triton_type(dtype: str) -> str:
    """Return the attribute of ``triton.language`` for a dtype; errors as `Expressions`."""
    own = {**TRITON_TYPES, "bool": "int1", **{name: name for name in _OTHERS}}
    if dtype not in own:
        raise BuildError(f"numbers of type {dtype} have no Triton source; keep them out of the model")
    return own[dtype]


class Expressions:
    """Writes the values of expressions, loads as lines of their own.

    Parameters
    ----------
    text : Script
        Takes the lines.
    load : callable
        Writes a load.

    Attributes
    ----------
    helpers : set of str
        Which of `HELPERS` are used.
    """

    def __init__(self, tvm: TvmObject, text: Script, load: Load) -> None:
        self._tvm, self._tirx, self._text, self._load = tvm, tvm.tirx, text, load
        self.helpers: set[str] = set()
        self.variables: dict[TvmObject, str] = {}
        self._loops: set[TvmObject] = set()

    def bound(self, variables: Mapping[TvmObject, str]) -> None:
        """Say what the variables of loops are called from now on."""
        self.variables.update(variables)
        self._loops.update(variables)

    def value(self, node: TvmObject, where: Condition = "") -> str:
        """Return an expression in Triton.

        Raises
        ------
        BuildError
            It has something that there is no Triton for.
        """
        tirx, kind = self._tirx, type(node).__name__
        if isinstance(node, self._tvm.ir.expr.TensorLoad):
            return self._load(node, where)
        if node in self.variables:
            return self.variables[node]
        if kind in ("IntImm", "FloatImm"):
            return _literal(node)
        if kind in _INFIX:
            return f"({self.value(node.a, where)} {_INFIX[kind]} {self.value(node.b, where)})"
        if kind in ("Max", "Min"):
            function = "maximum" if kind == "Max" else "minimum"
            keeps = f", {KEEPS_NAN}" if "float" in str(node.ty) else ""
            return f"tl.{function}({self.value(node.a, where)}, {self.value(node.b, where)}{keeps})"
        if kind == "Not":
            return f"({self.value(node.a, where)} == 0)"
        if kind in ("Div", "FloorDiv", "Mod", "FloorMod"):
            return self._quotient(node, kind, where)
        if kind == "Select":
            parts = (self.value(one, where) for one in (node.condition, node.true_value, node.false_value))
            return f"tl.where({', '.join(parts)})"
        if kind == "Cast":
            return self._cast(node.value, str(node.ty), where)
        if isinstance(node, self._tvm.ir.Call):
            return self._call(node, where)
        if isinstance(node, tirx.Let):
            self.variables[node.var] = self.value(node.value, where)
            return self.value(node.body, where)
        raise BuildError(f"{kind} {node!s:.80} has no Triton source")

    def _quotient(self, node: TvmObject, kind: str, where: Condition) -> str:
        left, right = self.value(node.a, where), self.value(node.b, where)
        is_float = str(node.ty).startswith(("float", "bfloat"))
        if is_float and kind == "Div":
            return f"({left} / {right})"
        if is_float:
            raise BuildError(f"{kind} of {node.ty} has no Triton source")
        if not kind.startswith("Floor") or self._is_natural(node.a):  # Triton's own truncate, as C's
            return f"({left} {'//' if kind.endswith('Div') else '%'} {right})"
        helper = "_floor_div" if kind.endswith("Div") else "_floor_mod"
        self.helpers.add(helper)
        return f"{helper}({left}, {right})"

    def _is_natural(self, node: TvmObject) -> bool:
        """Whether a whole number is no less than zero whatever its variables are: sums of them alone are looked at."""
        kind = type(node).__name__
        if node in self._loops:
            return True
        if kind in ("Add", "Mul", "FloorDiv", "FloorMod", "Div", "Mod"):
            return self._is_natural(node.a) and self._is_natural(node.b)
        return (number(node) if number(node) is not None else -1) >= 0  # type: ignore[operator]

    def _cast(self, value: TvmObject, dtype: str, where: Condition) -> str:
        own = self.value(value, where)
        before = str(value.ty)
        if dtype in _WIDE or (dtype == "float32" and before in _WIDE):
            dtype = "float32"  # what memory holds is rounded when it is stored
        if dtype == before:
            return own
        if value in self.variables or type(value).__name__ in ("IntImm", "FloatImm"):
            own = f"({own} + tl.zeros((1,), tl.{'float32' if before.startswith('float') else 'int32'}))"
        if dtype == "bool":
            return f"({own} != 0)"
        return f"({own}).to(tl.{triton_type(dtype)})"

    def _call(self, node: TvmObject, where: Condition) -> str:
        name = str(getattr(node.op, "name", "")).rpartition(".")[2]
        if name == "if_then_else":
            condition, first, second = node.args
            test = self._named(self.value(condition, where))
            inside = f"{where} & {test}" if where else test
            outside = f"{where} & ({test} == 0)" if where else f"({test} == 0)"
            return f"tl.where({test}, {self.value(first, inside)}, {self.value(second, outside)})"
        arguments = [self.value(one, where) for one in node.args]
        if name == "pow":
            exponent = getattr(node.args[1], "value", None)
            if exponent in _POWERS:
                return _POWERS[exponent].format(self._named(arguments[0]))
            self.helpers.add("_power")
            return f"_power({', '.join(arguments)})"
        if name not in _FUNCTIONS:
            raise BuildError(f"the function {name} has no Triton source")
        form = _FUNCTIONS[name]
        if form.count("{0}") > 1:
            arguments = [self._named(one) for one in arguments]
        self.helpers |= {helper for helper in HELPERS if form.startswith(f"{helper}(")}
        return form.format(*arguments)

    def _named(self, expression: str) -> str:
        """Return a name for a value that is needed more than once."""
        if expression.isidentifier():
            return expression
        name = f"v{len(self._text.lines)}"
        self._text.line(f"{name} = {expression}")
        return name


def _literal(node: TvmObject) -> str:
    value, dtype = node.value, str(node.ty)
    if dtype == "bool":
        return "1" if value else "0"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)

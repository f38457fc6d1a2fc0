"""Elementary functions in TVM's code: formulas in LLVM IR, or calls of the C library, where TVM's own are less exact.

Formulas are functions that LLVM inlines instead of TVM expressions, because TVM's simplifier expands a variable
wherever it is used: a function of a function took a minute to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import ModuleType

from anatune.codegen.bodies import change_bodies
from anatune.emit.elementary import FORMULAS, FUNCTIONS
from anatune.emit.kernels import Function
from anatune.emit.llvm import LlvmCode
from anatune.threads import compute_once
from anatune.untyped import ir, tirx, tvm

__all__ = ["ELEMENTARY", "call_elementary", "with_device_functions", "with_formulas"]

_ADDED = ("erfc", "expm1", "gelu", "gelu_tanh", "log2", "mish", "silu")
"""Functions for which TVM has no operator."""
_LIBRARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "cos", "cosh", "erf", "erfc", "exp",
    "exp10", "exp2", "expm1", "hypot", "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "tan", "tanh",
)  # fmt: skip
"""Functions that the C library and CUDA have under these names, with the suffix f for float32."""
ELEMENTARY = {*_ADDED, *_LIBRARY, "rsqrt", "sigmoid", "sqrt"} - {"copysign"}
"""Functions that take longer than storing and loading their result."""
_PURE = 1
"""TVM's code for functions without side effects."""
_C_TYPE = {"float32": ("float", "f"), "float64": ("double", "")}
_WRAPPING = {"guarded_Add": "add", "guarded_Mul": "mul", "guarded_Sub": "sub"}
"""Operators of `elements` -> LLVM's operations on integers that wrap around; those that TVM writes must not
overflow."""
_WHOLE = {"int32": "i32", "int64": "i64", "uint32": "i32", "uint64": "i64"}


@compute_once
def _register(tvm: ModuleType) -> None:
    """Register the functions of `_ADDED` as TVM operators, and mark all functions as vectorisable."""
    from tvm.ir.op import register_op_attr

    for name in (_operator_name(function) for function in _ADDED):
        register_op_attr(name, "TCallEffectKind", _PURE)
        register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
    for operator in (tvm.ir.Op.get(_operator_name(function)) for function in (*_ADDED, *_LIBRARY)):
        if operator.get_attr("TVectorizable") is None:
            operator.set_attr("TVectorizable", True)


def _operator_name(name: str) -> str:
    """Return the name of a function's TVM operator."""
    return f"tirx.anatune.{name}" if name in _ADDED else f"tirx.{name}"


def call_elementary(tvm: ModuleType, name: str, *operands: ir.Expr) -> ir.Expr:
    """Return the call of an elementary function; `name` is one of the names above."""
    _register(tvm)
    return tvm.tirx.call_intrin(operands[0].ty, _operator_name(name), *operands)


def with_formulas(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of lowered CPU functions whose elementary functions are exact to a few last places."""
    _register(tvm)
    needed: dict[str, Function] = {}

    def rewrite_call(call: ir.Call) -> ir.Expr:
        name, kind = str(getattr(call.op, "name", "")).rpartition(".")[2], str(call.ty)
        dtype, _, lanes = kind.partition("x")
        if dtype == "float64" and name in _COMPOSED:
            return _map_calls(tvm, _COMPOSED[name](tvm, *call.args), rewrite_call)
        is_known = (name in FORMULAS and dtype == "float32") or (name in _LIBRARY and dtype in _C_TYPE)
        is_known |= name in _WRAPPING and dtype in _WHOLE
        if not is_known or not (lanes or "1").isdigit():
            return call
        symbol = f"anatune_{name}_{kind}"
        if symbol not in needed:
            needed[symbol] = _write_function(name, symbol, dtype, int(lanes or 1), len(call.args))
        return tvm.tirx.call_pure_extern(kind, symbol, *call.args)

    def change(body: tirx.Stmt) -> tirx.Stmt:
        needed.clear()
        body = _map_calls(tvm, body, rewrite_call)
        if not needed:
            return body
        text = tvm.ir.StringImm(_join_functions(needed.values()))
        return tvm.tirx.AttrStmt(tvm.tirx.IntImm("int32", 0), "pragma_import_llvm", text, body)

    return change_bodies(tvm, module, change)


def with_device_functions(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of lowered CUDA functions that call CUDA's exact functions, not its fast approximations.

    The approximation of the logarithm is wrong near 1, those of sine and cosine far from 0.
    """

    def rewrite_call(call: ir.Call) -> ir.Expr:
        name, kind = str(getattr(call.op, "name", "")).rpartition(".")[2], str(call.ty)
        if kind not in _C_TYPE:
            return call
        if name in _COMPOSED:
            return _map_calls(tvm, _COMPOSED[name](tvm, *call.args), rewrite_call)
        symbol = f"{name}{_C_TYPE[kind][1]}"
        return tvm.tirx.call_pure_extern(kind, symbol, *call.args) if name in _LIBRARY else call

    return change_bodies(tvm, module, lambda body: _map_calls(tvm, body, rewrite_call))


def _map_calls(tvm: ModuleType, body: tvm.runtime.Object, called: Callable[..., ir.Expr]) -> tvm.runtime.Object:
    import tvm_ffi

    return tvm_ffi.structural_map(body, [(tvm.ir.Call, called)])


def _sigmoid(tvm: ModuleType, x: ir.Expr) -> ir.Expr:
    power = tvm.tirx.exp(-tvm.tirx.abs(x))
    unit = tvm.tirx.const(1, x.ty)
    return tvm.tirx.Select(x < tvm.tirx.const(0, x.ty), power, unit) / (power + unit)


def _gelu(tvm: ModuleType, x: ir.Expr) -> ir.Expr:
    return x * tvm.tirx.const(0.5, x.ty) * call_elementary(tvm, "erfc", x * tvm.tirx.const(-math.sqrt(0.5), x.ty))


def _gelu_tanh(tvm: ModuleType, x: ir.Expr) -> ir.Expr:
    linear, cubic = (tvm.tirx.const(2 * math.sqrt(2 / math.pi) * factor, x.ty) for factor in (1, 0.044715))
    return x * _sigmoid(tvm, x * (linear + cubic * x * x))


def _mish(tvm: ModuleType, x: ir.Expr) -> ir.Expr:
    tirx = tvm.tirx
    zero, unit, two = (tirx.const(number, x.ty) for number in (0, 1, 2))
    power, is_below = tirx.exp(-tirx.abs(x)), x < zero
    above = (unit + two * power) / (unit + two * power * (unit + power))
    below = power * (two + power) / (two + power * (two + power))
    return x * tirx.Select(is_below, below, above)


_COMPOSED: dict[str, Callable[[ModuleType, ir.Expr], ir.Expr]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "mish": _mish,
    "sigmoid": _sigmoid,
    "silu": lambda tvm, x: x * _sigmoid(tvm, x),
}
"""Functions that no library has -> their expression with other functions."""


def _join_functions(functions: Iterable[Function]) -> str:
    """Return the text of functions and their declarations, each declaration once."""
    texts, declared = zip(*functions, strict=True)
    return "\n".join([*sorted(set().union(*declared)), *texts, ""])


def _write_function(name: str, symbol: str, dtype: str, lanes: int, count: int) -> Function:
    """Return a function of `count` numbers or vectors: a formula, or calls of the library for each element."""
    code = LlvmCode(lanes, "float32", "add")
    element, letter = _C_TYPE.get(dtype) or (_WHOLE[dtype], "")
    vector = f"<{lanes} x {element}>"
    kind = element if lanes == 1 else vector
    names = [f"%x{number}" for number in range(count)]
    given = ", ".join(f"{kind} {operand}" for operand in names)
    code.line(f"define internal {kind} @{symbol}({given}) alwaysinline nounwind {{")
    code.line("entry:")
    if name in _WRAPPING:
        value = code.emit(f"{_WRAPPING[name]} {kind} %x0, %x1")
    elif name in FORMULAS and dtype == "float32":
        x = code.emit(f"insertelement {vector} poison, float %x0, i64 0") if lanes == 1 else "%x0"
        value = FUNCTIONS[name](code, x)
        value = code.emit(f"extractelement {vector} {value}, i64 0") if lanes == 1 else value
    elif lanes == 1:
        value = code.call(element, f"{name}{letter}", [(element, operand) for operand in names])
    else:
        value = "poison"
        for lane in range(lanes):
            parts = [(element, code.emit(f"extractelement {vector} {operand}, i64 {lane}")) for operand in names]
            part = code.call(element, f"{name}{letter}", parts)
            value = code.emit(f"insertelement {vector} {value}, {element} {part}, i64 {lane}")
    code.line(f"  ret {kind} {value}")
    code.line("}")
    return "\n".join(code.lines), code.declared

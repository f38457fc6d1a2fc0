"""A reader of the TVMScript that this package writes, ten times as fast as TVM's own parser.

TVM's parser walks the syntax tree with an evaluator in Python, 30 to 60 ms for each kernel (2026-11, Zen 4), a tenth of
a trial. This reader turns the text into one Python function that makes the same calls of the same builder. It refuses
text with anything else in it, which TVM's parser then reads.

Source: tvm.tirx.script.parser.parser and .operation of TVM 0.27.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from types import CodeType, ModuleType

from anatune.untyped import ir, tirx

__all__ = ["make_quick_reader"]

_LOOPS = {"serial", "parallel", "vectorized", "unroll"}
_STATEMENTS = {"func_attr", "reads", "writes", "evaluate"}
_ALLOCATIONS = {"sblock_alloc_buffer"}
_COMPARISONS = {ast.LtE: "LE", ast.Lt: "LT", ast.GtE: "GE", ast.Gt: "GT", ast.Eq: "EQ", ast.NotEq: "NE"}
_EXPRESSIONS = (
    ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.BinOp,
    ast.UnaryOp, ast.Call, ast.keyword, ast.expr_context, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.USub,
)  # fmt: skip
"""Expressions that Python evaluates as TVM's parser does."""


class _UnknownError(Exception):
    """The text contains something that only TVM's parser understands."""


def make_quick_reader(text: str) -> Callable[[ModuleType, Mapping[str, object]], tirx.PrimFunc] | None:
    """Return a function that makes the PrimFunc of a text, or None if TVM's own parser has to read it.

    Returns
    -------
    callable
        ``(package tvm, value of each free name of the text) -> PrimFunc``; errors are TVM's own.
    """
    try:
        (function,) = ast.parse(text).body
        module = ast.Module([_convert_function(function)], [])
    except (_UnknownError, ValueError, SyntaxError):
        return None
    code = compile(ast.fix_missing_locations(module), "<TVMScript>", "exec")
    return lambda tvm, names: _run(code, tvm, names)


def _run(code: CodeType, tvm: ModuleType, names: Mapping[str, object]) -> tirx.PrimFunc:
    from tvm.script.ir_builder.base import IRBuilder
    from tvm.tirx.script import builder

    arithmetic = _ConditionOperators(tvm.tirx)
    builder_names = {"_B": builder, "_name": IRBuilder.name, "_and": arithmetic.both, "_compare": arithmetic.compare}
    with IRBuilder() as frame:
        exec(code, {**names, **builder_names})
    function = frame.get()
    tvm.s_tir.analysis.verify_well_formed(tvm.IRModule.from_expr(function))
    return function


class _ConditionOperators:
    """Operators for conditions, which Python's own operators would simplify where TVM's parser does not."""

    def __init__(self, tirx: ModuleType) -> None:
        self._tirx = tirx

    def both(self, left: ir.Expr | bool, right: ir.Expr | bool) -> ir.Expr | bool:
        """Return the conjunction ``left and right``."""
        if isinstance(left, bool) and not left:
            return left
        return self._tirx.And(*(self._tirx.IntImm("bool", x) if isinstance(x, bool) else x for x in (left, right)))

    def compare(self, operation: str, left: ir.Expr, right: ir.Expr) -> ir.Expr | bool:
        """Return a comparison of integers."""
        if isinstance(left, int) and isinstance(right, int):
            compare = {"LE": int.__le__, "LT": int.__lt__, "GE": int.__ge__, "GT": int.__gt__, "EQ": int.__eq__}
            return compare.get(operation, int.__ne__)(left, right)
        dtype = str((left if isinstance(right, int) else right).ty.dtype)
        left, right = (self._tirx.IntImm(dtype, x) if isinstance(x, int) else x for x in (left, right))
        return getattr(self._tirx, operation)(left, right)


# ---- statements of the text become statements of Python ----------------------------------------------------------


def _make_call(name: str, *arguments: ast.expr) -> ast.Call:
    """Return a call of a Python function, or of a name that `_run` provides: ``_B.x``, ``_x``."""
    first, _, second = name.partition(".")
    function: ast.expr = ast.Name(first, ast.Load())
    return ast.Call(ast.Attribute(function, second, ast.Load()) if second else function, list(arguments), [])


def _make_with(context: ast.expr, body: list[ast.stmt], variable: str | None = None) -> ast.With:
    if variable is not None:
        body = [ast.Expr(_make_call("_name", ast.Constant(variable), ast.Name(variable, ast.Load()))), *body]
    target = None if variable is None else ast.Name(variable, ast.Store())
    return ast.With([ast.withitem(context, target)], body)


def _builder_word(node: ast.expr) -> str:
    """Return x for a call ``T.x(...)``, and "" for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.attr if node.func.value.id == "T" else ""
    return ""


def _convert_function(node: ast.stmt) -> ast.stmt:
    if not isinstance(node, ast.FunctionDef) or [ast.unparse(one) for one in node.decorator_list] != [
        "T.prim_func(s_tir=True)"
    ]:
        raise _UnknownError
    given = node.args
    if given.vararg or given.kwonlyargs or given.kwarg or given.defaults or given.posonlyargs or node.returns:
        raise _UnknownError
    body: list[ast.stmt] = [ast.Expr(_make_call("_B.func_name", ast.Constant(node.name)))]
    for parameter in given.args:
        if parameter.annotation is None or _builder_word(parameter.annotation) != "Buffer":
            raise _UnknownError
        value = _make_call("_B.arg", ast.Constant(parameter.arg), _convert(parameter.annotation))
        body.append(ast.Assign([ast.Name(parameter.arg, ast.Store())], value))
    head = ast.Call(
        ast.Attribute(ast.Name("_B", ast.Load()), "prim_func", ast.Load()),
        [],
        [ast.keyword("is_private", ast.Constant(False)), ast.keyword("s_tir", ast.Constant(True)),
         ast.keyword("persistent", ast.Constant(False))],
    )  # fmt: skip
    return _make_with(head, [*body, *map(_convert_statement, node.body)])


def _convert_statement(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and not node.orelse:
        return _make_with(_convert_loop(node.iter), [_convert_statement(one) for one in node.body], node.target.id)
    if isinstance(node, ast.With) and len(node.items) == 1 and node.items[0].optional_vars is None:
        context = node.items[0].context_expr
        if _builder_word(context) == "sblock":
            return _make_with(_convert(context), [_convert_statement(one) for one in node.body])
    if isinstance(node, ast.If):
        body, others = ([_convert_statement(one) for one in part] for part in (node.body, node.orelse))
        return _convert_choice(_convert(node.test), body, others)
    if isinstance(node, ast.Expr) and _builder_word(node.value) in _STATEMENTS:
        return ast.Expr(_convert(node.value))
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        (target,) = node.targets
        if isinstance(target, ast.Subscript):
            places = _convert(target.slice)
            if isinstance(places, ast.Tuple):
                places = ast.List(places.elts, ast.Load())
            return ast.Expr(_make_call("_B.buffer_store", _convert(target.value), _convert(node.value), places))
        if isinstance(target, ast.Name) and _builder_word(node.value) in _ALLOCATIONS:
            named = _make_call("_name", ast.Constant(target.id), ast.Name(target.id, ast.Load()))
            return ast.If(ast.Constant(True), [ast.Assign([target], _convert(node.value)), ast.Expr(named)], [])
    raise _UnknownError


def _convert_choice(condition: ast.expr, body: list[ast.stmt], others: list[ast.stmt]) -> ast.stmt:
    """Return an ``if`` statement: a branch of the program, or of the text if the condition is a constant."""
    value = ast.Name("_known", ast.Load())
    test = ast.NamedExpr(ast.Name("_known", ast.Store()), condition)
    parts: list[ast.stmt] = [_make_with(_make_call("_B.Then"), body)]
    if others:
        parts.append(_make_with(_make_call("_B.Else"), others))
    inside = _make_with(_make_call("_B.If", value), parts)
    return ast.If(_make_call("isinstance", test, ast.Name("bool", ast.Load())), [ast.If(value, body, others)], [inside])


def _convert_loop(node: ast.expr) -> ast.expr:
    """Return the frame of a loop over one variable."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        if len(node.args) > 2 or node.keywords:
            raise _UnknownError
        bounds = [_convert(one) for one in node.args]
        return _make_call("_B.serial", *([ast.Constant(0)] * (2 - len(bounds))), *bounds)
    if _builder_word(node) in _LOOPS:
        return _convert(node)
    raise _UnknownError


def _convert(node: ast.expr) -> ast.expr:
    result: ast.expr = _ConditionTransformer().visit(node)
    return result


class _ConditionTransformer(ast.NodeTransformer):
    """A transformer that replaces conditions by calls and refuses unknown expressions."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        if not isinstance(node.op, ast.And):
            raise _UnknownError
        values: list[ast.expr] = [self.visit(value) for value in node.values]
        return functools.reduce(lambda left, right: _make_call("_and", left, right), values)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
            raise _UnknownError
        name = ast.Constant(_COMPARISONS[type(node.ops[0])])
        return _make_call("_compare", name, self.visit(node.left), self.visit(node.comparators[0]))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _EXPRESSIONS):
            raise _UnknownError
        return super().generic_visit(node)

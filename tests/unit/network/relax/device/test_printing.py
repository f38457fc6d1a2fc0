"""Statements of the loop language as text: brackets where Python needs them, masks, helpers."""

import numpy as np

from anatune.emit.script import Script
from anatune.network.relax.device.ir import Assign, CallExpr, For, Load, Name, Number, Store, clamp_finite, where
from anatune.network.relax.device.printing import helpers_in, print_expr, print_statements

A, B, C = Name("a"), Name("b"), Name("c")


def test_brackets_keep_the_order_of_operations():
    for node in (A - (B - C), A - B - C, (A + B) * C, A // (B * C), -(A + B), (A < B) & (B > C), (A - 3) * -2 % 7):
        text = print_expr(node)
        values = {"a": np.int64(19), "b": np.int64(5), "c": np.int64(3)}
        assert eval(text, {}, values) == value(node, values), text


def value(node, values):
    """Return what an expression is, by its tree."""
    if isinstance(node, Name):
        return values[node.name]
    if isinstance(node, Number):
        return node.value
    if hasattr(node, "left"):
        return eval(f"x {node.sign} y", {}, {"x": value(node.left, values), "y": value(node.right, values)})
    return -value(node.value, values)


def test_statements_are_lines_with_masks_and_say_which_helpers_they_call():
    body = (
        Assign("x", Load("in0", A + B, A < 5, Number(0.0))),
        Store("out0", A, clamp_finite(CallExpr("_tanh", (Name("x"),)), "float32"), A < 5),
    )
    text = Script()
    print_statements(text, [For("a", 9, 4, body)])
    assert text.lines == [
        "for a in range(0, 9, 4):",
        "    x = tl.load(in0_ptr + (a + b), mask=a < 5, other=0.0)",
        "    tl.store(out0_ptr + a, _tanh(x), mask=a < 5)",
    ]
    assert helpers_in([For("a", 9, 4, body)]) == {"_tanh"}
    assert print_expr(where(A < B, 1, -2.5)) == "tl.where(a < b, 1, -2.5)"

"""Indices with quotients and remainders of anything: compiled functions read what NumPy reads."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen.compat import parse_program, target_of  # noqa: E402
from anatune.codegen.extremes import register_pipeline  # noqa: E402
from tests.machine import host  # noqa: E402

CASES = {
    "flip": ((17,), "(16 - i) % 17"),
    "flip_then_divide": ((136, 5), "(135 - i) // 17 * 5 + j"),
    "flip_of_quotient": ((12, 12), "(16 - (i * 12 + j) // 5) % 6"),
    "two_rolls": ((5,), "((i + 3) % 5 + 3) % 5"),
    "roll_of_quotient": ((12,), "((i + 3) % 12 // 2 + 2) % 3"),
    "shift_then_remainder": ((12, 8), "((i + 17) // 2) % 8 + j"),
    "three_rolls": ((3, 3), "(((i * 3 + j + 1) % 9 + 4) % 9 + 3) % 9"),
    "negative_multiple": ((3, 6), "(9 - 2 * i) % 12 // 3 + j"),
    "mixed_signs": ((6, 5), "(i * 5 + 4 - j) // 3"),
    "plain": ((8, 12), "(i * 12 + j) // 5 * 5 + (i * 12 + j) % 5"),
}
PARTS = [range(first, first + 20) for first in range(0, 200, 20)]
"""Seeds of random cases that are built at once; 200 in one module take three times as long."""
FUNCTION = """@T.prim_func(s_tir=True)
def main(source: T.Buffer((1000000,), "int64"), result: T.Buffer({extents}, "int64")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        T.reads()
        T.writes()
        for {names} in T.grid({sizes}):
            result[{names}] = source[{index}]
"""


def random_case(seed):
    """Return extents, and an index such as chains of views leave behind."""
    random = np.random.default_rng(seed)
    extents = tuple(int(one) for one in random.choice([2, 3, 4, 6, 12, 17], size=random.integers(1, 4)))
    text = " + ".join(f"{name} * {random.choice([1, 2, 3, 5, 6, 12])}" for name in "ijk"[: len(extents)])
    for _ in range(int(random.integers(1, 6))):
        number = int(random.choice([2, 3, 4, 5, 6, 12, 17, 34]))  # products stay below the elements that are there
        step = str(random.choice(["{0} - ({1})", "({1}) + {0}", "({1}) * {0}", "({1}) % {0}", "({1}) // {0}"]))
        text = step.format(number, text)
    least = int(evaluated(extents, text).min())
    return extents, f"{text} + {-least}"


def evaluated(extents, index):
    return eval(index, dict(zip("ijk", np.indices(extents), strict=False)))


def read(cases):
    """Return what one function for each case reads of 0, 1, 2, ... at its indices."""
    functions = {}
    for name, (extents, index) in cases.items():
        sizes, names = [f"T.int64({one})" for one in extents], "ijk"[: len(extents)]
        words = {"extents": f"({', '.join(sizes)},)", "sizes": ", ".join(sizes), "names": ", ".join(names)}
        function = parse_program(FUNCTION.format(**words, index=index), "")
        functions[name] = function.with_attr("global_symbol", name)
    target = target_of(host())
    built = tvm.tirx.build(tvm.IRModule(functions), target=target, pipeline=register_pipeline(tvm))
    found = {}
    for name, (extents, _) in cases.items():
        source, result = (tvm.runtime.tensor(one) for one in (np.arange(1000000), np.zeros(extents, "int64")))
        built[name](source, result)
        found[name] = result.numpy()
    return found


@pytest.mark.parametrize("kind", ["known", "random"])
def test_functions_read_where_their_indices_say(kind):
    parts = [CASES] if kind == "known" else [{f"f{seed}": random_case(seed) for seed in part} for part in PARTS]
    for cases in parts:
        found = read(cases)
        assert {name: one for name, one in cases.items() if not np.array_equal(found[name], evaluated(*one))} == {}

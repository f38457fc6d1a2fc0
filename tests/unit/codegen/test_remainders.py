"""Remainders of loops by powers of two: compiled functions read what NumPy reads, on the processor that is here."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen.compat import parse_program, target_of  # noqa: E402
from anatune.codegen.extremes import register_pipeline  # noqa: E402
from tests.machine import host  # noqa: E402

FUNCTION = """@T.prim_func(s_tir=True)
def main(x: T.Buffer(({n}, 8, {k}), "{dtype}"), y: T.Buffer(({n}, {rows}, {columns}), "{dtype}")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        T.reads()
        T.writes()
        for i, j, k in T.grid({n}, {rows}, {columns}):
            y[i, j, k] = x[i, {row}, k % {k}]
"""


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32"])
@pytest.mark.parametrize("row", ["j % 8", "(j + 5) % 8", "(3 * j) % 8", "j // 2 % 8"])
def test_rows_begin_again(dtype, row):
    for n, k, rows, columns in [(4, 8, 16, 24), (6, 2, 16, 6), (2, 4, 35, 8), (3, 3, 64, 9)]:
        words = {"n": n, "k": k, "rows": rows, "columns": columns, "dtype": dtype, "row": row}
        function = parse_program(FUNCTION.format(**words), "").with_attr("global_symbol", "f")
        built = tvm.tirx.build(tvm.IRModule({"f": function}), target_of(host()), pipeline=register_pipeline(tvm))
        x = np.arange(n * 8 * k).reshape(n, 8, k).astype(dtype)
        result = tvm.runtime.tensor(np.zeros((n, rows, columns), dtype))
        built["f"](tvm.runtime.tensor(x), result)
        i, j, k_ = np.indices((n, rows, columns))
        assert np.array_equal(result.numpy(), x[i, eval(row, {"j": j}), k_ % k])

"""TVMScript becomes the same program as by TVM's own parser, or is left to it."""

import pytest

import anatune
from anatune.codegen.quick_reader import make_quick_reader
from anatune.templates import get_template
from tests.unit.codegen.cpu.test_lower import WORKLOADS

tvm = pytest.importorskip("tvm")
from anatune.codegen.compat import has_same_structure, parse_program  # noqa: E402
from anatune.templates.cpu.program.program import program_of  # noqa: E402

HEAD = '@T.prim_func(s_tir=True)\ndef f(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "int32")):\n'


def parsed(text, llvm=""):
    from tvm.script import tirx

    return tvm.script.from_source(text, {"T": tirx, "LL": llvm})


def read(text, llvm=""):
    from tvm.script import tirx

    return make_quick_reader(text)(tvm, {"T": tirx, "LL": llvm})


@pytest.mark.parametrize(
    "name", ["matmul", "conv_nhwc_stride_epilogue", "conv_groups_dilation", "max_pool", "bfloat16"]
)
def test_kernels_and_packing_functions(name):
    hardware = anatune.hardware("amd_ryzen_7950x")
    for schedule in anatune.space(WORKLOADS[name], hardware).sample(2, seed=1):
        for threads, prepacked in ((1, True), (2, False)):
            program = program_of(schedule, threads=threads, prepacked=prepacked)
            for text, llvm in [(program.main, program.llvm), *((text, "") for text in program.packing.values())]:
                made, wanted = read(text, llvm), parsed(text, llvm)
                assert has_same_structure(made, wanted)
                assert made.script() == wanted.script()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_kernels_of_winograd(layout):
    workload = anatune.conv2d(1, 16, 14, 14, 24, 3, 3, padding=1, layout=layout, epilogue=("bias", "relu"))
    for schedule in anatune.space(workload, "cortex_a72", template="winograd").sample(3, seed=1):
        program = get_template("winograd").program(schedule, threads=1, prepacked=True)
        made, wanted = read(program.main, program.llvm), parsed(program.main, program.llvm)
        assert has_same_structure(made, wanted)
        assert made.script() == wanted.script()
        for text in program.packing.values():
            assert make_quick_reader(text) is not None


@pytest.mark.parametrize(
    "lines",
    [
        ["for i in range(2, 8):", "    B[i] = i // 2 % 3 - 1"],
        ["for i in T.vectorized(8):", "    B[i] = T.if_then_else(0 <= i - 1 and i < 3 and i != 2, B[i], 7)"],
        ["for i in T.unroll(8):", "    B[i] = T.if_then_else(1 <= 2 and 3 <= i, B[i], 7)"],
        ["for i in T.parallel(8):", "    B[i] = T.if_then_else(3 > 2, T.Select(i > 1, 1, 0), -1)"],
        ["for i in T.parallel(8):", "    B[i] = T.if_then_else(2 > 3 and 3 <= i, T.Select(i == 1, 1, 0), -1)"],
        [
            "C = T.sblock_alloc_buffer((8,), 'float32')",
            "for i in range(8):",
            "    C[i] = A[i, 0]",
            "    A[i, 1] = C[i]",
        ],
        ["for i in range(8):", "    if i > 2 and i < 5:", "        B[i] = 0", "    else:", "        B[i] = 2"],
        ["for i in range(8):", "    if 1 > 2:", "        B[i] = 0", "    if 3 > 2:", "        B[i] = 5"],
        ["for i in range(8):", "    if i > 2:", "        if i > 3:", "            B[i] = 1"],
        ["for _ in T.serial(1, annotations={'pragma_import_llvm': LL}):", "    T.evaluate(0)"],
        ['with T.sblock("all"):', "    T.reads(A[0:8, 0:4])", "    T.writes(B[0:8])", "    T.evaluate(B[1])"],
    ],
)
def test_statements(lines):
    text = HEAD + "".join(f"    {line}\n" for line in lines)
    made, wanted = read(text), parsed(text)
    assert has_same_structure(made, wanted)
    assert made.script() == wanted.script()


@pytest.mark.parametrize(
    "lines",
    [
        ["for i, j in T.grid(8, 4):", "    A[i, j] = A[i, j]"],
        ["for i in range(0, 8, 2):", "    B[i] = 0"],
        ["for i in range(8):", "    while i > 2:", "        B[i] = 0"],
        ["for i in range(8):", "    x = T.int32(1)", "    B[i] = x"],
        ["for i in range(8):", "    B[i] = T.if_then_else(0 <= i < 3, 1, 0)"],
        ["for i in range(8):", "    B[i] = T.if_then_else(i < 1 or i > 3, 1, 0)"],
        ["for i in range(8):", "    B[i] += 1"],
    ],
)
def test_the_rest_is_left_to_tvm(lines):
    text = HEAD + "".join(f"    {line}\n" for line in lines)
    assert make_quick_reader(text) is None
    assert has_same_structure(parse_program(text, ""), parsed(text))


@pytest.mark.parametrize(
    "text",
    ["def f():\n    pass\n", "x = 1\n", "@T.prim_func\ndef f():\n    T.evaluate(0)\n", "a = 1\nb = 2\n", "def f(:\n",
     "@T.prim_func(s_tir=True)\ndef f(n: T.int32):\n    T.evaluate(n)\n"],
)  # fmt: skip
def test_other_text_is_not_read(text):
    assert make_quick_reader(text) is None


def test_what_is_no_program_is_refused():
    text = HEAD + "    for i in range(8):\n        B[i] = 0\n    B[0] = i\n"
    with pytest.raises((RuntimeError, ValueError), match="i"):
        parse_program(text, "")

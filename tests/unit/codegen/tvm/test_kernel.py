"""TVM's functions: what is understood of them, and kernels in their place compute the same."""

import numpy as np
import pytest

import anatune
from anatune.codegen.compat import parse_program, target_of
from anatune.codegen.tvm.kernel import TirTask, find_kernel_names, read_annotated_schedule, register_kernels
from anatune.errors import BuildError, WorkloadError
from anatune.templates.cpu.model.model import CpuModel

tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

from tests.wording import refuses  # noqa: E402

HOST = anatune.hardware("host")
TARGET = target_of(HOST, threads=2)


def matmul(m, n, k, *, transpose_b=False, relu=False):
    a = te.placeholder((m, k), name="X")
    b = te.placeholder((n, k) if transpose_b else (k, n), name="W")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * (b[j, r] if transpose_b else b[r, j]), axis=r), name="Z")
    if not relu:
        return module(a, b, c)
    return module(a, b, te.compute((m, n), lambda i, j: te.max(c[i, j], te.const(0, "float32")), name="R"))


def conv(c=8, h=9, w=11, k=12, r=3, stride=1, padding=1, dilation=1, groups=1, layout="NCHW", n=2):
    """Return a convolution as TVM's own operators write it: a padded copy, then the sums."""
    nchw = layout == "NCHW"
    size = [(s + 2 * padding - dilation * (r - 1) - 1) // stride + 1 for s in (h, w)]
    inner, outer = c // groups, k // groups
    data = te.placeholder((n, c, h, w) if nchw else (n, h, w, c), name="data")
    weight = te.placeholder((k, inner, r, r) if nchw else (r, r, inner, k), name="weight")

    def padded(*at):
        b, ch, y, x = at if nchw else (at[0], at[3], at[1], at[2])
        y, x = y - padding, x - padding
        inside = te.all(y >= 0, y < h, x >= 0, x < w)
        read = data[b, ch, y, x] if nchw else data[b, y, x, ch]
        return te.if_then_else(inside, read, te.const(0, "float32"))

    wide, high = w + 2 * padding, h + 2 * padding
    source = te.compute((n, c, high, wide) if nchw else (n, high, wide, c), padded, name="pad") if padding else data
    rc = te.reduce_axis((0, inner), name="rc")
    ry, rx = te.reduce_axis((0, r), name="ry"), te.reduce_axis((0, r), name="rx")

    def summed(*at):
        b, f, y, x = at if nchw else (at[0], at[3], at[1], at[2])
        y, x = y * stride + ry * dilation, x * stride + rx * dilation
        ch = f // outer * inner + rc if groups > 1 else rc
        left = source[b, ch, y, x] if nchw else source[b, y, x, ch]
        return te.sum(left * (weight[f, rc, ry, rx] if nchw else weight[ry, rx, rc, f]), axis=[rc, ry, rx])

    result = te.compute((n, k, *size) if nchw else (n, *size, k), summed, name="conv")
    return module(data, weight, result)


def blocked():
    """Return a matmul with its columns in blocks of 8, as TVM packs weights."""
    a, b = te.placeholder((20, 16), name="X"), te.placeholder((3, 16, 8), name="W")
    r = te.reduce_axis((0, 16), name="r")
    return module(a, b, te.compute((20, 3, 8), lambda i, j, jj: te.sum(a[i, r] * b[j, r, jj], axis=r), name="Z"))


def module(*tensors):
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def cast(element, result):
    a, b = te.placeholder((16, 24), dtype=element, name="X"), te.placeholder((24, 32), dtype=element, name="W")
    r = te.reduce_axis((0, 24), name="r")

    def part(i, j):
        return te.sum(a[i, r].astype(result) * b[r, j].astype(result), axis=r)

    return module(a, b, te.compute((16, 32), part, name="Z"))


FUNCTIONS = {
    "matmul": matmul(24, 32, 40),
    "matmul_relu": matmul(17, 33, 29, relu=True),
    "matmul_nt": matmul(20, 24, 16, transpose_b=True),
    "row": matmul(1, 48, 64),
    "blocked": blocked(),
    "nchw": conv(),
    "nchw_strided": conv(stride=2, padding=0),
    "nchw_dilated": conv(dilation=2, padding=2),
    "nhwc": conv(layout="NHWC", stride=2),
    "grouped": conv(groups=4),
    "depthwise": conv(c=16, k=16, groups=16, n=1),
    "pointwise": conv(r=1, padding=0, n=1),
}


def run(module, arrays, target=TARGET):
    given = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(module, target=target)["main"](*given)
    return given[-1].numpy()


def arrays_of(module):
    generator = np.random.default_rng(0)
    shapes = [tuple(int(extent) for extent in parameter.shape) for parameter in module["main"].params]
    arrays = [generator.random(shape, dtype=np.float32) - 0.5 for shape in shapes[:-1]]
    return [*arrays, np.full(shapes[-1], np.nan, np.float32)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_in_the_place_of_a_nest_compute_the_same(name):
    threads = 1 + list(FUNCTIONS).index(name) % 2
    function = FUNCTIONS[name]
    task = TirTask(function, threads)
    space = CpuModel(task.workload, HOST, constants=()).space
    expected = run(function, arrays_of(function))
    for schedule in space.sample(2, seed=threads):
        assert schedule.options["packed_ahead"] == ()
        traced = task.schedule(schedule)
        np.testing.assert_allclose(run(traced.mod, arrays_of(function)), expected, rtol=1e-4, atol=1e-5)
        assert read_annotated_schedule(traced.trace) == schedule
        text = str(traced.mod)
        again = tvm.s_tir.Schedule(function)
        assert register_kernels(function, traced.trace)
        traced.trace.apply_to_schedule(again, remove_postproc=False)
        assert str(again.mod) == text
    task.stand_in([find_kernel_names(traced.trace)])
    again = tvm.s_tir.Schedule(function)
    traced.trace.apply_to_schedule(again, remove_postproc=False)
    assert str(again.mod) != text
    np.testing.assert_allclose(run(again.mod, arrays_of(function)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matmul", anatune.matmul(24, 32, 40)),
        ("matmul_nt", anatune.matmul(20, 24, 16, transpose_b=True)),
        ("nchw", anatune.conv2d(n=2, c=8, h=9, w=11, k=12, r=3, s=3, padding=1)),
        ("nchw_strided", anatune.conv2d(n=2, c=8, h=9, w=11, k=12, r=3, s=3, stride=2)),
        ("nchw_dilated", anatune.conv2d(n=2, c=8, h=9, w=11, k=12, r=3, s=3, padding=2, dilation=2)),
        ("nhwc", anatune.conv2d(n=2, c=8, h=9, w=11, k=12, r=3, s=3, stride=2, padding=1, layout="NHWC")),
        ("grouped", anatune.conv2d(n=2, c=8, h=9, w=11, k=12, r=3, s=3, padding=1, groups=4)),
    ],
)
def test_functions_are_the_workloads_that_the_constructors_make(name, expected):
    found = TirTask(FUNCTIONS[name]).workload
    assert (found.operator, found.body, found.flop) == (expected.operator, expected.body, expected.flop)
    assert (found.reads, found.write) == (expected.reads, expected.write)
    assert {axis.name: axis for axis in found.axes} == {axis.name: axis for axis in expected.axes}


def _summed(combine):
    a = te.placeholder((8, 16), name="X")
    r = te.reduce_axis((0, 16), name="r")
    return module(a, te.compute((8,), lambda i: combine(a[i, r], axis=r), name="Z"))


def _twice():
    a, r = te.placeholder((8, 8), name="X"), te.reduce_axis((0, 8), name="r")
    return module(a, te.compute((8, 8), lambda i, j: te.sum(a[i, r] * a[j, r], axis=r), name="Z"))


def _reversed():
    a, b = te.placeholder((8, 8), name="X"), te.placeholder((8, 8), name="W")
    r = te.reduce_axis((0, 8), name="r")
    return module(a, b, te.compute((8, 8), lambda i, j: te.sum(a[i, 7 - r] * b[r, j], axis=r), name="Z"))


def _wrongly_padded():
    a, b = te.placeholder((8,), name="X"), te.placeholder((3,), name="W")
    r = te.reduce_axis((0, 3), name="r")

    def part(i):
        at = i + r - 1
        return te.if_then_else(te.all(at >= 1, at < 8), a[at], te.const(0, "float32")) * b[r]

    return module(a, b, te.compute((8,), lambda i: te.sum(part(i), axis=r), name="Z"))


@pytest.mark.parametrize(
    "function",
    [
        _summed(te.max),
        _summed(te.sum),
        _twice(),
        _reversed(),
        _wrongly_padded(),
        cast("float16", "float32"),
        cast("uint8", "int32"),
    ],
)
def test_what_is_not_understood_says_why(function):
    with refuses(WorkloadError):
        TirTask(function)


NEST = """
@T.prim_func(s_tir=True)
def main(X: T.Buffer((32, 32), "float32"), W: T.Buffer((32, 32), "float32"), Z: T.Buffer((32, 32), "float32")):
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    for i, j, k in T.grid(LOOPS):
        with T.sblock("Z"):
            vi = T.axis.spatial(32, I)
            vj = T.axis.spatial(32, j)
            vk = T.axis.reduce(32, k)
            WHERE
            T.reads(X[vi, vk], W[vk, vj])
            T.writes(Z[vi, vj])
            with T.init():
                Z[INIT] = T.float32(0)
            Z[vi, vj] = Z[vi, vj] + X[vi, vk] * W[vk, vj]
"""


def nest(loops="32, 32, 32", i="i", where="pass", init="vi, vj"):
    text = NEST.replace("LOOPS", loops).replace("INIT", init).replace(" I)", f" {i})")
    text = text.replace("            WHERE\n", "" if where == "pass" else f"            {where}\n")
    return tvm.IRModule({"main": parse_program(text, "")})


def test_a_nest_as_it_should_be_is_understood():
    assert TirTask(nest()).workload.reads == anatune.matmul(32, 32, 32).reads


@pytest.mark.parametrize(
    "function",
    [
        nest(loops="16, 32, 32"),
        nest(loops="16, 32, 32", i="i + 8"),
        nest(loops="32, 32, 16"),
        nest(where="T.where(k < 20)"),
        nest(init="vj, vi"),
    ],
)
def test_loops_that_do_not_cover_a_block_are_refused(function):
    with refuses(WorkloadError):
        TirTask(function)


def test_a_rounding_step_before_the_nest_stays_a_step():
    x, w = te.placeholder((16, 24), name="X"), te.placeholder((24, 32), name="W")
    rounded = te.compute((16, 24), lambda i, j: (x[i, j] * 9).astype("int8"), name="Q")
    again = te.compute((16, 24), lambda i, j: rounded[i, j].astype("float32"), name="D")
    r = te.reduce_axis((0, 24), name="r")
    function = module(x, w, te.compute((16, 32), lambda i, j: te.sum(again[i, r] * w[r, j], axis=r), name="Z"))
    schedule = CpuModel(TirTask(function).workload, HOST, constants=()).space.sample(1, seed=0)[0]
    found = run(TirTask(function).schedule(schedule).mod, arrays_of(function))
    np.testing.assert_allclose(found, run(function, arrays_of(function)), rtol=1e-4, atol=1e-5)


def test_a_nest_that_cannot_be_replaced_says_so():
    a, b = te.placeholder((48,), name="X"), te.placeholder((48,), name="W")
    r = te.reduce_axis((0, 48), name="r")
    with refuses(WorkloadError):
        TirTask(module(a, b, te.compute((), lambda: te.sum(a[r] * b[r], axis=r), name="Z")))


def test_int8_is_summed_in_int32():
    function = cast("int8", "int32")
    task = TirTask(function)
    assert task.workload.reads == anatune.matmul(16, 32, 24, dtype="int8").reads
    generator = np.random.default_rng(0)
    left, right = (generator.integers(-9, 9, size, dtype=np.int8) for size in ((16, 24), (24, 32)))
    for schedule in CpuModel(task.workload, HOST, constants=()).space.sample(2, seed=0):
        found = run(task.schedule(schedule).mod, [left, right, np.zeros((16, 32), np.int32)])
        np.testing.assert_array_equal(found, left.astype(np.int32) @ right.astype(np.int32))


def test_functions_without_or_with_two_reductions_are_left_alone():
    a = te.placeholder((8, 8), name="X")
    copied = module(a, te.compute((8, 8), lambda i, j: a[i, j] + 1, name="Z"))
    with refuses(WorkloadError):
        TirTask(copied)
    two = tvm.IRModule({"first": copied["main"], "second": copied["main"]})
    with refuses(WorkloadError):
        TirTask(two)


def test_a_schedule_of_another_workload_is_refused():
    schedule = anatune.plan(anatune.matmul(8, 16, 8), HOST, top_k=1).best
    with refuses(BuildError):
        TirTask(FUNCTIONS["matmul"]).schedule(schedule)


def test_traces_of_others_need_no_kernels():
    schedule = tvm.s_tir.Schedule(FUNCTIONS["matmul"])
    assert read_annotated_schedule(schedule.trace) is None
    assert not register_kernels(FUNCTIONS["matmul"], schedule.trace)

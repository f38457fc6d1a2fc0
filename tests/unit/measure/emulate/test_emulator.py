"""Small CUDA kernels, right and wrong, on the CPU: what is wrong is found and named."""

import errno
import functools
import os
import stat
import textwrap

import msgspec
import numpy as np
import pytest

from anatune.emit.buffer import Buffer
from anatune.errors import MissingDependencyError, RunError
from anatune.measure.emulate import emulator
from anatune.measure.emulate.emulator import Blocks, EmulatedKernel, compiler
from anatune.templates.gpu.kernel import CudaKernel, Launch
from tests.wording import refuses

try:
    compiler()
except MissingDependencyError as error:
    pytest.skip(str(error), allow_module_level=True)

ORDERS = (0, 1, 2)
N = 256

REVERSE = """
__shared__ float s[64];
s[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
__syncthreads();
y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
"""
"""Blocks of 64 reverse their part."""

ROUNDS = """
__shared__ float s[64];
float sum = 0.0f;
for (int i = 0; i < 4; ++i) {
  s[threadIdx.x] = x[i * 64 + threadIdx.x];
  __syncthreads();
  sum += s[63 - threadIdx.x];
  __syncthreads();
}
y[blockIdx.x * 64 + threadIdx.x] = sum;
"""
"""Shared memory is used again and again."""

COPY = """
__shared__ alignas(16) float s[64];
unsigned to = __cvta_generic_to_shared(s + threadIdx.x);
asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(x + blockIdx.x * 64 + threadIdx.x), "n"(4));
asm volatile("cp.async.commit_group;");
asm volatile("cp.async.wait_group 0;");
__syncthreads();
y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
"""

STAGES = """
__shared__ alignas(16) float s[2][64];
float sum = 0.0f;
for (int i = 0; i < 5; ++i) {
  if (i < 4) {
    unsigned to = __cvta_generic_to_shared(&s[i % 2][threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(x + i * 64 + threadIdx.x), "n"(4));
  }
  asm volatile("cp.async.commit_group;");
  if (i > 0) {
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    sum += s[(i - 1) % 2][63 - threadIdx.x];
    __syncthreads();
  }
}
y[blockIdx.x * 64 + threadIdx.x] = sum;
"""
"""Two stages: the copy of the next part is in flight while the present one is used."""


def make(body, *, grid=4, block=64, size=N, preamble="", kinds=("float", "float32"), result=None, dynamic=0):
    c_type, dtype = kinds
    out_type, out_dtype = result or kinds
    source = f"""{preamble}
extern "C" __global__ void __launch_bounds__({block}) k({out_type}* __restrict__ y, {c_type}* __restrict__ x) {{
{textwrap.indent(body.strip(), "  ")}
}}
"""
    parameters = (Buffer("y", out_dtype, (size,)), Buffer("x", dtype, (size,)))
    return CudaKernel("", "k", source, "sm_86", parameters, "y", grid, block, 0, dynamic)


def operand(size=N):
    return np.random.default_rng(0).random(size, dtype=np.float32)


@functools.cache
def program(body, traced=False, **settings):
    return EmulatedKernel(make(body, **settings), traced=traced)


def run(body, order=0, traced=False, blocks=emulator.ALL_BLOCKS, **settings):
    size = settings.get("size", N)
    x, y = operand(size), np.full(size, np.nan, np.float32)
    program(body, traced, **settings).run({"x": x, "y": y}, order=order, blocks=blocks)
    return x, y


def reversed_parts(x):
    return x.reshape(-1, 64)[:, ::-1].reshape(-1)


def summed_parts(x):
    return np.tile(reversed_parts(x).reshape(-1, 64).sum(axis=0), 4)


RIGHT = {"reverse": (REVERSE, reversed_parts), "rounds": (ROUNDS, summed_parts), "copy": (COPY, reversed_parts)}
RIGHT["stages"] = STAGES, summed_parts


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels(name, traced):
    body, expected = RIGHT[name]
    for order in ORDERS:
        x, y = run(body, order, traced)
        np.testing.assert_allclose(y, expected(x), rtol=1e-6)


def without(body, text, number=1):
    """Return `body` without the `number`-th `text`."""
    parts = body.split(text)
    return text.join(parts[:number]) + text.join(["", *parts[number:]])[len(text) :]


FAULTS = {
    "no barrier after the writes": (without(REVERSE, "__syncthreads();"), reversed_parts),
    "a barrier of the warp only": (REVERSE.replace("__syncthreads", "__syncwarp"), reversed_parts),
    "no barrier after the reads": (without(ROUNDS, "__syncthreads();", 2), summed_parts),
    "no first barrier of a loop": (without(ROUNDS, "__syncthreads();"), summed_parts),
    "wrong index": (REVERSE.replace("63 - threadIdx.x", "62 - (threadIdx.x & 62)"), reversed_parts),
    "no wait": (without(COPY, 'asm volatile("cp.async.wait_group 0;");'), reversed_parts),
    "no commit": (without(COPY, 'asm volatile("cp.async.commit_group;");'), reversed_parts),
    "no barrier after the wait": (without(COPY, "__syncthreads();"), reversed_parts),
    "waits for too few": (STAGES.replace("wait_group 1", "wait_group 2"), summed_parts),
    "copy into what is still read": (without(STAGES, "__syncthreads();", 2), summed_parts),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_show_in_some_order(name):
    body, expected = FAULTS[name]
    answers = [run(body, order) for order in ORDERS]
    assert any(not np.allclose(y, expected(x), rtol=1e-5) for x, y in answers)


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"wrong index"}))
@pytest.mark.parametrize("order", ORDERS)
def test_a_traced_run_names_faults_in_any_order(name, order):
    with refuses(RunError) as caught:
        run(FAULTS[name][0], order, traced=True)
    assert "\n" not in str(caught.value)


def test_a_barrier_of_the_warp_is_enough_for_a_warp():
    body = REVERSE.replace("__syncthreads", "__syncwarp").replace("64", "32").replace("63", "31")
    for order in ORDERS:
        x, y = run(body, order, traced=True, grid=8, block=32)
        np.testing.assert_array_equal(y, x.reshape(-1, 32)[:, ::-1].reshape(-1))


def test_shuffles_order_no_memory():
    body = REVERSE.replace("64", "32").replace("63", "31").replace("__syncthreads()", "__shfl_sync(~0u, 0, 0)")
    with refuses(RunError):
        run(body, 0, traced=True, grid=8, block=32)


def test_part_of_the_grid():
    x, y = run(REVERSE, blocks=Blocks(1, 2))
    ran = np.repeat([False, True, False, True], 64)
    np.testing.assert_array_equal(np.isnan(y), ~ran)
    np.testing.assert_array_equal(y[ran], reversed_parts(x)[ran])


BARRIERS = {
    "if (threadIdx.x < 40) __syncthreads();": r"divergent barrier in block 0: thread 0 waits at line \d+, but thread",
    "if (threadIdx.x == 3) return;\n__syncthreads();": r"thread 0 waits at line \d+, but thread 3 has ended",
    "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();": r"thread 0 waits at line \d+, thread 32 at",
    "if (threadIdx.x & 1) __syncwarp();\ny[threadIdx.x] = 0.0f;": r"divergent warp operation in block 0.* ended after",
    "if (threadIdx.x & 1) __syncwarp();\n__syncthreads();": r"divergent warp operation .* waits for the block at line",
}


@pytest.mark.parametrize("body", BARRIERS)
def test_divergent_barriers(body):
    for order in (0, 2):
        with refuses(RunError):
            run(body, order)


OUTSIDE = {
    "y[blockIdx.x * 64 + threadIdx.x + 1] = 0.0f;": r"byte 1024 of y, which has 1024",
    "y[0] = x[int(threadIdx.x) - 1];": r"byte -4 of x, which has 1024",
    "y[0] = x[1 << 20];": r"byte 4194304 of x, which has 1024",
    "x[threadIdx.x] = 1.0f;": r"its operand x|byte 0 of x",
    "__shared__ float s[70]; s[threadIdx.x + 7] = x[0]; __syncthreads();": r"byte 280 of s, which has 280",
    "__shared__ float a[4], b[4];\na[0] = 1.0f;": "not understood",
}


@pytest.mark.parametrize("body", OUTSIDE)
def test_accesses_outside_of_an_array(body):
    with refuses(RunError):
        run(body, traced=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", [-1, 256])
def test_guard_pages_end_wrong_accesses_without_tracing(order, place):
    with refuses(RunError):
        run(f"y[{place}] = x[threadIdx.x];", order)
    if (place > 0) == (order % 2 == 0):  # the array ends (begins) at the guard page
        with refuses(RunError):
            run(f"y[0] = x[{place}];", order)


def test_operands_are_read_only():
    with refuses(RunError):
        run("x[threadIdx.x] = 1.0f;")


def test_small_overruns_in_the_slack_of_an_odd_size():
    with refuses(RunError):
        run("y[threadIdx.x] = 1.0f;", grid=1, block=64, size=63)


def test_unwritten_shared_memory():
    body = "__shared__ float s[64];\nif (threadIdx.x != 9) s[threadIdx.x] = 1.0f;\n__syncthreads();\n"
    body += "y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];"
    with refuses(RunError):
        run(body, traced=True)
    assert np.isnan(run(body, 0)[1].reshape(-1, 64)[:, 54]).all()
    assert (run(body, 1)[1].reshape(-1, 64)[:, 54] > 1e38).all()  # what a maximum with NaN would hide


def test_indices_outside_of_a_threads_own_array():
    body = "float a[4];\nfor (int i = 0; i < 4; ++i)\n  a[i + (threadIdx.x == 9)] = x[i];\ny[threadIdx.x] = a[0];"
    with refuses(RunError):
        run(body, traced=True, grid=1)


def test_results_written_twice():
    with refuses(RunError):
        run("y[threadIdx.x] = x[threadIdx.x];", traced=True)


@pytest.mark.parametrize("traced", [False, True])
def test_misaligned_vectors(traced):
    with refuses(RunError):
        run("*(float4*)(y + threadIdx.x * 4) = *(float4*)(x + threadIdx.x * 4 + 1);", 0, traced, grid=1)


def test_vectors_move_as_a_whole():
    body = "int i = threadIdx.x;\nif (i < 64) { float4 v = *(float4*)(x + i * 4); *(float4*)(y + i * 4) = "
    body += "make_float4(v.w, v.z, v.y, v.x); }"
    x, y = run(body, grid=1)
    np.testing.assert_array_equal(y.reshape(-1, 4), x.reshape(-1, 4)[:, ::-1])


@pytest.mark.parametrize("traced", [False, True])
def test_dynamic_shared_memory(traced):
    body = REVERSE.replace("__shared__ float s[64];", "extern __shared__ float s[];")
    x, y = run(body, traced=traced, dynamic=256)
    np.testing.assert_array_equal(y, reversed_parts(x))
    with refuses(RunError):
        run(body, traced=True, dynamic=252)


def test_predicated_copies_fill_with_zeros():
    body = """
    __shared__ float s[64];
    unsigned to = __cvta_generic_to_shared(s + threadIdx.x);
    __asm__ __volatile__(
      "{\\n"
      " .reg .pred p;\\n"
      " setp.eq.u32 p, %3, 1;\\n"
      " @p cp.async.ca.shared.global [%0], [%1], %2;\\n"
      " @!p st.shared.u32 [%0], {%4};\\n"
      "}\\n"
      :: "r"(to), "l"(x + blockIdx.x * 64 + threadIdx.x), "n"(4), "r"((int)(threadIdx.x & 1)), "r"(0));
    asm volatile("cp.async.wait_all;");
    y[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x];
    """
    x, y = run(body, traced=True)
    np.testing.assert_array_equal(y, np.where(np.arange(N) % 2, x, 0))


def test_shuffles():
    body = """
    float v = x[blockIdx.x * 64 + threadIdx.x];
    for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(0xffffffffu, v, lanes);
    y[blockIdx.x * 64 + threadIdx.x] = v + __shfl_down_sync(0xffffffffu, float(threadIdx.x), 1);
    """
    for order in ORDERS:
        x, y = run(body, order)
        lanes = np.minimum(np.arange(32) + 1, 31) + np.array([[0], [32]])
        expected = x.reshape(4, 2, 32).sum(axis=2, keepdims=True) + lanes
        np.testing.assert_allclose(y.reshape(4, 2, 32), expected, rtol=1e-6)


def test_local_memory_has_a_limit():
    with refuses(RunError):
        run("volatile float big[100000];\nbig[threadIdx.x] = x[0];\ny[0] = big[threadIdx.x];")


def test_large_local_arrays():
    x, y = run(
        "float a[4096];\nfor (int i = 0; i < 4096; ++i) a[i] = x[i & 255];\n"
        "y[blockIdx.x * 64 + threadIdx.x] = a[4095 - int(x[0]) - threadIdx.x];"
    )
    np.testing.assert_array_equal(y, np.tile(x[255 - np.arange(64)], 4))


def test_a_hang_and_a_crash_are_answers():
    hang = EmulatedKernel(make("volatile int i = 0;\nwhile (i == 0) {}\ny[0] = 0.0f;"))
    arrays = {"x": operand(), "y": operand()}
    with refuses(RunError):
        hang.run(arrays, limit_s=0.5)
    with refuses(RunError):
        run("y[0] = float(7 / int(threadIdx.x));")


HALVES = {"float16": "half", "bfloat16": "nv_bfloat16"}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("software", [False, True])
def test_sixteen_bit_floats(dtype, software, tmp_path, monkeypatch):
    dtype_class = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.float16
    if software:
        monkeypatch.setenv("CXX", wrapped_compiler(tmp_path, "-U__FLT16_MAX__"))
    name = HALVES[dtype]
    header = f"#include <cuda_{'fp16' if name == 'half' else 'bf16'}.h>"
    widen = make("y[blockIdx.x * 64 + threadIdx.x] = (float)x[blockIdx.x * 64 + threadIdx.x];", size=65536, grid=1024,
                 preamble=header, kinds=(name, dtype), result=("float", "float32"))  # fmt: skip
    x, y = np.arange(65536, dtype=np.uint16).view(dtype_class), np.zeros(65536, np.float32)
    EmulatedKernel(widen).run({"x": x, "y": y})
    np.testing.assert_array_equal(y, x.astype(np.float32))
    narrow = make(f"y[blockIdx.x * 64 + threadIdx.x] = ({name})x[blockIdx.x * 64 + threadIdx.x];", size=65536,
                  grid=1024, preamble=header, result=(name, dtype))  # fmt: skip
    bits = np.random.default_rng(0).integers(0, 2**32, 65536, dtype=np.uint32)
    bits[:20000] = bits[:20000] & 0xFFFF | 0x33000000 + (bits[:20000] >> 28 << 24)  # magnitudes where halves live
    values = bits.view(np.float32)
    out = np.zeros(65536, dtype_class)
    EmulatedKernel(narrow).run({"x": values, "y": out})
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(out.astype(np.float32), values.astype(dtype_class).astype(np.float32))


def wrapped_compiler(folder, flag):
    """Return a compiler that is called with one more flag."""
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\nexec {compiler()} {flag} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_other_processors_switch_fibers_through_the_system(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", wrapped_compiler(tmp_path, "-DSHIM_UCONTEXT"))
    for traced in (False, True):
        one = EmulatedKernel(make(ROUNDS), traced=traced)
        x, y = operand(), np.full(N, np.nan, np.float32)
        one.run({"x": x, "y": y}, order=2)
        np.testing.assert_allclose(y, summed_parts(x), rtol=1e-6)


def test_bad_input():
    with refuses(RunError):
        EmulatedKernel(make("y[0] = undeclared_name;"))
    with refuses(RunError):
        EmulatedKernel(make('asm("foo.bar %0;" :: "r"(1));'))
    with refuses(RunError):
        EmulatedKernel(CudaKernel("", "main", "int i;", "sm_86", (), "y", 1, 1)).run({})
    x, y = operand(), operand()
    with refuses(RunError):
        program(REVERSE).run({"x": x})
    with refuses(RunError):
        program(REVERSE).run({"x": x.astype(np.float64), "y": y})
    with refuses(RunError):
        EmulatedKernel(make("y[0] = 0.0f;", block=2048)).run({"x": x, "y": y})


def test_a_full_disk(monkeypatch):
    def refuse(file, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    with refuses(RunError):
        program(REVERSE).run({"x": operand(), "y": operand()})


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", os.fspath(tmp_path / "missing"))
    with refuses(MissingDependencyError):
        EmulatedKernel(make(REVERSE)).run({"x": operand(), "y": operand()})


ADDED = "atomicAdd(&y[threadIdx.x], x[blockIdx.x * 64 + threadIdx.x]);"


@pytest.mark.parametrize("traced", [False, True])
def test_atomics_add_to_what_is_there(traced):
    added, x = program(ADDED, traced), operand()
    for order in ORDERS:
        y = np.ones(N, np.float32)
        added.run({"x": x, "y": y}, order=order)
        np.testing.assert_allclose(y, [*(1 + x.reshape(-1, 64).sum(axis=0)), *np.ones(N - 64)], rtol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        f"{ADDED}\ny[threadIdx.x] = 0;",
        f"y[threadIdx.x] = 0;\n{ADDED}",
        ADDED.replace("&y[", "&y[255 + "),
        ADDED.replace("&y[", "&x["),
        "__shared__ float s[64]; atomicAdd(&s[threadIdx.x], 1.0f);",
        "atomicAdd((float*)((char*)y + 2), 1.0f);",
    ],
)
def test_wrong_atomics(body):
    with refuses(RunError):
        program(body, True).run({"x": operand(), "y": np.zeros(N, np.float32)})


def test_launches_run_in_order_and_share_a_workspace():
    source = """
extern "C" __global__ void zero(float* y) { y[blockIdx.x * 64 + threadIdx.x] = 0; }
extern "C" __global__ void put(float* w, float* x) {
  int i = blockIdx.x * 64 + threadIdx.x;
  w[255 - i] = x[i];
}
extern "C" __global__ void add(float* y, float* w) { y[threadIdx.x] = w[threadIdx.x] + w[threadIdx.x + 64]; }
"""
    x, y, own = Buffer("x", "float32", (N,)), Buffer("y", "float32", (N,)), Buffer("w", "float32", (N,))
    kernel = CudaKernel(
        "", "put", source, "sm_86", (own, x), "y", 4, 64,
        before=(Launch("zero", (y,), 4, 64),), after=(Launch("add", (y, own), 1, 64),), workspace=own,
    )  # fmt: skip
    given, result = operand(), np.full(N, np.nan, np.float32)
    EmulatedKernel(kernel).run({"x": given, "y": result})
    back = given[::-1]
    np.testing.assert_allclose(result, [*(back[:64] + back[64:128]), *np.zeros(N - 64)], rtol=1e-6)
    wrong = msgspec.structs.replace(kernel, source=source.replace("+ w[threadIdx.x + 64]", "; w[threadIdx.x] = 0"))
    with refuses(RunError):
        EmulatedKernel(wrong, traced=True).run({"x": given, "y": result})
    with refuses(RunError):
        EmulatedKernel(msgspec.structs.replace(kernel, source=source.replace("zero", "nought")))

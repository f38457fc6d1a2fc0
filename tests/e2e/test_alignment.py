"""Exported kernels on every alignment of the stack and of buffers: the same bits, and nothing outside is written."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

import anatune

pytest.importorskip("tvm", reason="code generation needs apache-tvm")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler: gcc places the stack")

from anatune.export.cpu.write import write_c_library  # noqa: E402
from anatune.measure.run.correctness import compare, compute_expected, random_inputs  # noqa: E402

HOST = anatune.hardware("host")
PAGE = 4096
GUARD = 64
SHIM = """
#include <alloca.h>
#include <stdint.h>

typedef int (*kernel)(const void *, const void *, void *);

/* Calls with a stack that begins `place` bytes behind a multiple of a page; returns where it began, or -1. */
__attribute__((noinline)) long call_at(kernel function, const void *a, const void *b, void *c, long place) {
  char *here = alloca(16);
  volatile char *gap = alloca((((uintptr_t)here - place) & 4095) + 16);
  gap[0] = 0;
  return function(a, b, c) ? -1 : (long)((uintptr_t)gap & 4095);
}
"""


def spilling():
    """A tile that needs twice the registers: its spills go through the stack in every step."""
    lanes = HOST.fp32_lanes
    rows = HOST.compute.num_vector_registers
    workload = anatune.matmul(2 * rows, 4 * lanes, 24)
    tiles = {"i": (1, 1, 1, 2, rows), "j": (1, 1, 1, 2, 2 * lanes), "k": (1, 1, 2, 12)}
    schedule = anatune.space(workload, HOST).schedule(tiles=tiles)
    assert anatune.inspect(schedule)["spill_ops"] > 20
    return schedule


def planned(**options):
    workload = anatune.conv2d(1, 8, 11, 13, 24, 3, 3, padding=1, **options)
    return anatune.plan(workload, HOST, top_k=1, template="cpu").best


@pytest.fixture(scope="module")
def call_at(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "shim.c", "-o", "shim.so"], cwd=folder, check=True)
    function = ctypes.CDLL(str(folder / "shim.so")).call_at
    function.restype = ctypes.c_long
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long]
    return function


class Call:
    """A kernel of two operands and their memory: each buffer with room for any offset and guards on both sides."""

    def __init__(self, schedule, folder, call_at):
        library = write_c_library(schedule, "kernel", folder, threads=1)
        self._library = ctypes.CDLL(str(folder / library.library))
        self._function = ctypes.cast(self._library.kernel, ctypes.c_void_p).value
        self._call_at = call_at
        self.inputs = random_inputs(schedule.workload, 3)
        self._buffers = library.functions[0].arguments
        self._memory = [np.empty(4 * int(np.prod(b.shape)) + 3 * PAGE, np.uint8) for b in self._buffers]

    def __call__(self, stack, offsets):
        """Return the result, or the kernel's refusal (None)."""
        views = []
        for buffer, memory, offset in zip(self._buffers, self._memory, offsets, strict=True):
            start = -memory.ctypes.data % PAGE + PAGE + offset
            memory[:] = 0xA5
            size = 4 * int(np.prod(buffer.shape))
            views.append(memory[start : start + size].view(np.float32).reshape(buffer.shape))
            if buffer.tensor in self.inputs:
                views[-1][...] = self.inputs[buffer.tensor]
        began = self._call_at(self._function, *(view.ctypes.data for view in views), stack)
        if began < 0:
            return None
        self.stacks = {*getattr(self, "stacks", ()), began}
        result = views[-1]
        memory, start = self._memory[-1], result.ctypes.data - self._memory[-1].ctypes.data
        assert (memory[:start] == 0xA5).all()
        assert (memory[start + result.nbytes :] == 0xA5).all()
        return result.copy()


@pytest.mark.parametrize("make", [spilling, planned, lambda: planned(layout="NHWC")], ids=["spilling", "nchw", "nhwc"])
def test_results_do_not_depend_on_where_stack_and_buffers_lie(make, tmp_path, call_at):
    schedule = make()
    call = Call(schedule, tmp_path, call_at)
    first = call(0, (0, 0, 0))
    want = compute_expected(schedule.workload, call.inputs)
    assert compare(schedule.workload, first, want).ok
    for stack in range(0, PAGE, 16):
        assert call(stack, (0, 0, 0)).tobytes() == first.tobytes()
    assert len({place % PAGE for place in call.stacks}) == PAGE // 16
    for offset in range(0, PAGE, GUARD):
        for offsets in ((offset, 0, 0), (0, offset, 0), (0, 0, offset), (offset, 3 * offset % PAGE, 5 * offset % PAGE)):
            assert call(offset + 16, offsets).tobytes() == first.tobytes()


def test_buffers_that_kernels_do_not_take_are_refused(tmp_path, call_at):
    call = Call(spilling(), tmp_path, call_at)
    for place in range(3):
        for offset in (4, 16, 32):
            assert call(0, tuple(offset if i == place else 0 for i in range(3))) is None

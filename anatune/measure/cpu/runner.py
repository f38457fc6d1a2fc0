"""The runner session of a CPU, which runs kernels in its process and times them by the processor's clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from anatune.codegen.compat import import_tvm
from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.measure.cpu.blocks import ArgumentBlock
from anatune.measure.cpu.kernel import KernelLibrary, PreparedCall
from anatune.measure.energy import EnergyCounter, cpu_counter
from anatune.measure.run.correctness import Correctness
from anatune.measure.run.runner import Setting
from anatune.measure.run.timing import Clock, Timed, beside, make_sampler
from anatune.templates.cpu.microkernels import constant_tensors


class CpuSession:
    """A setting with its operands, expected result and reference kernel in memory; a `RunSession`.

    Parameters
    ----------
    setting
        The data that all kernels share.
    threads : int
        Number of copies of the reference kernel that run at once.
    cold_bytes : int
        Bytes of memory from which kernels read their constant operands in turn; 0 if they stay where the run before
        left them.
    """

    # A kernel of one thread is timed by that thread's own clock, which stands still while another process has the core.

    def __init__(self, setting: Setting, *, threads: int, cold_bytes: int = 0) -> None:
        self.setting = setting
        self.counter: EnergyCounter | None = cpu_counter()
        self._constants = constant_tensors(setting.workload)
        self._cold = ArgumentBlock("uint8", (cold_bytes,)) if cold_bytes else None
        self._inputs, self._want = setting.inputs(), setting.want()
        library = KernelLibrary(setting.reference)
        copies = [_reference_call(setting.reference, library) for _ in range(threads)]
        self._clock: Clock = time.thread_time if threads == 1 else time.perf_counter
        together = copies[0] if len(copies) == 1 else _Together(copies)
        self.reference = beside(make_sampler(together, self._clock), setting.protocol.reference_s)

    def begin(self) -> None:
        """Do nothing, because no state is kept between kernels."""

    def prepare(self, artifact: CpuArtifact) -> tuple[Timed, Correctness]:
        """Load a kernel and check its result."""
        prepared = PreparedCall(
            artifact, KernelLibrary(artifact), self._inputs, guarded=True, constants=self._constants, cold=self._cold
        )
        return make_sampler(prepared.call, self._clock), prepared.check(self.setting.workload, self._want)


def import_first() -> None:
    """Import the modules for loading libraries before they are needed."""
    import_tvm()


def _reference_call(artifact: CpuArtifact, library: KernelLibrary) -> Callable[[], object]:
    """Return a function that runs the reference kernel on its own operands."""
    rng = np.random.default_rng(0)
    blocks = []
    for buffer in artifact.arguments:
        block = ArgumentBlock(buffer.dtype, buffer.shape)
        block.array[...] = rng.random(buffer.shape) - 0.5
        blocks.append(block)
    tensors = [block.tensor for block in blocks]
    return lambda: library.main(*tensors)


class _Together:
    """Calls that run at the same time, one in each thread (TVM calls release the interpreter's lock)."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._first, *others = calls
        self._barrier = threading.Barrier(len(calls))
        for call in others:
            threading.Thread(target=self._serve, args=(call,), daemon=True).start()

    def _serve(self, call: Callable[[], object]) -> None:
        while True:
            self._barrier.wait()
            call()
            self._barrier.wait()

    def __call__(self) -> None:
        self._barrier.wait()
        self._first()
        self._barrier.wait()

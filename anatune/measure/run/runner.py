"""What the runner process runs: checks and times built kernels beside the reference kernel.

A setting's `open` makes the session that does it: here on the CPU, `anatune.measure.cuda.runner` on a GPU.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from anatune.codegen.compat import import_tvm
from anatune.codegen.cpu.artifact import Artifact
from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.cpu.blocks import Block
from anatune.measure.cpu.kernel import Library, Prepared
from anatune.measure.run.correctness import Expected, random_inputs
from anatune.measure.run.timing import Clock, Samples, Timed, TimingProtocol, alternate, beside, sample_candidate, timed

__all__ = ["RunReport", "RunSession", "Setting", "contest", "import_first", "run", "set_up"]


class Setting(NamedTuple):
    """What all kernels of a session share.

    Attributes
    ----------
    workload, seed
        What they compute, on which random operands.
    expected : str
        A .npy file with the float64 result; all runners map the same memory.
    scale, tolerance : float
        As in `Expected`.
    reference : Artifact
        The kernel that is timed beside every candidate.
    threads : int
        As many copies of it run at once.
    protocol
        How candidates are timed.
    """

    workload: Workload
    seed: int
    expected: str
    scale: float
    tolerance: float
    reference: Artifact
    threads: int
    protocol: TimingProtocol

    def open(self) -> RunSession:
        """Return the session."""
        return _CpuSession(self)


class RunReport(NamedTuple):
    """What one kernel did: whether its result is right, how wrong it is, its samples (none if it is wrong)."""

    ok: bool
    max_rel_error: float
    message: str
    samples: Samples = Samples((), ())


class RunSession(Protocol):
    """A setting with its operands, expected result and reference kernel in memory."""

    @property
    def setting(self) -> Any:
        """What it was made from; has a ``.protocol``."""
        ...

    @property
    def reference(self) -> Callable[[], float]:
        """Samples the reference kernel, see `anatune.measure.run.timing.beside`."""
        ...

    def begin(self) -> None:
        """Get ready for the next candidate, or the next contest."""
        ...

    def prepare(self, artifact: Any) -> tuple[Timed, RunReport]:
        """Load a kernel and check its result."""
        ...


class _CpuSession:
    """A setting with its operands, expected result and reference kernel in memory."""

    # A kernel of one thread is timed by that thread's own clock, which stands still while another process has the core.

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.inputs = random_inputs(setting.workload, setting.seed)
        self.want = Expected(np.load(setting.expected, mmap_mode="r"), setting.scale, setting.tolerance)
        library = Library(setting.reference)
        copies = [_reference_call(setting.reference, library) for _ in range(setting.threads)]
        self.clock: Clock = time.thread_time if setting.threads == 1 else time.perf_counter
        together = copies[0] if len(copies) == 1 else _Together(copies)
        self.reference = beside(timed(together, self.clock), setting.protocol.reference_s)

    def begin(self) -> None:
        """Nothing is kept between candidates."""

    def prepare(self, artifact: Artifact) -> tuple[Timed, RunReport]:
        """Load a kernel and check its result."""
        prepared = Prepared(artifact, Library(artifact), self.inputs, guarded=True)
        answer = prepared.check(self.setting.workload, self.want)
        return timed(prepared.call, self.clock), RunReport(answer.ok, answer.max_rel_error, answer.message)


_sessions: list[RunSession] = []
"""The present session of this process, if any; a new one replaces it."""


def import_first() -> None:
    """Import what loading libraries needs, while there is time."""
    import_tvm()


def set_up(setting: Any) -> None:
    """Take up a session; `setting` has a method `open` that makes it."""
    _sessions.clear()
    _sessions.append(setting.open())
    gc.collect()
    gc.freeze()
    gc.disable()  # no collection in the middle of a sample


def run(artifact: Any, incumbent: float | None) -> RunReport:
    """Check one kernel and time it."""
    session = _present()
    session.begin()
    kernel, report = session.prepare(artifact)
    if not report.ok:
        return report
    samples = sample_candidate(kernel, session.reference, session.setting.protocol, incumbent=incumbent)
    return report._replace(samples=samples)


def contest(artifacts: Sequence[Any], budget_s: float) -> list[RunReport]:
    """Check kernels and time those that are right in turn."""
    session = _present()
    session.begin()
    checked = [session.prepare(artifact) for artifact in artifacts]
    right = [place for place, (_, report) in enumerate(checked) if report.ok]
    kernels = [checked[place][0] for place in right]
    reports = [report for _, report in checked]
    if kernels:
        samples = alternate(kernels, session.reference, session.setting.protocol, budget_s=budget_s)
        for place, taken in zip(right, samples, strict=True):
            reports[place] = reports[place]._replace(samples=taken)
    return reports


def _present() -> RunSession:
    if not _sessions:
        raise RunError("the runner process has no session; this is a defect of anatune")
    return _sessions[0]


def _reference_call(artifact: Artifact, library: Library) -> Callable[[], Any]:
    """Return a call of the reference kernel on operands of its own."""
    rng = np.random.default_rng(0)
    blocks = []
    for buffer in artifact.arguments:
        block = Block(buffer.dtype, buffer.shape)
        block.array[...] = rng.random(buffer.shape) - 0.5
        blocks.append(block)
    tensors = [block.tensor for block in blocks]
    return lambda: library.main(*tensors)


class _Together:
    """Calls that run at the same time, one on each thread (TVM's calls release the interpreter's lock)."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._first, *others = calls
        self._barrier = threading.Barrier(len(calls))
        for call in others:
            threading.Thread(target=self._serve, args=(call,), daemon=True).start()

    def _serve(self, call: Callable[[], Any]) -> None:
        while True:
            self._barrier.wait()
            call()
            self._barrier.wait()

    def __call__(self) -> None:
        self._barrier.wait()
        self._first()
        self._barrier.wait()

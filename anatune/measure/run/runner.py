"""The functions that the runner process runs: they check built kernels and time them with the reference kernel.

Each kind of device has a session class: `anatune.measure.cpu.runner`, `anatune.measure.cuda.runner`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.energy import EnergyCounter, Metered
from anatune.measure.run.correctness import Array, Correctness, Expected, random_inputs
from anatune.measure.run.timing import Timed, TimingProtocol, Timings, alternate, sample_candidate
from anatune.named import resolve


class Setting(NamedTuple):
    """The data that all kernels of a runner session share.

    Attributes
    ----------
    session : str
        ``module:class`` that checks and times them: (setting, **options) -> RunSession.
    options : mapping of str to object
        Arguments of that class alone.
    workload, seed
        The workload, and the seed of the random operands.
    expected : str
        A .npy file with the float64 result; all runners map the same memory.
    scale, tolerance : float
        As in `Expected`.
    reference : artifact
        The reference kernel.
    protocol
        The timing protocol.
    """

    session: str
    options: Mapping[str, object]
    workload: Workload
    seed: int
    expected: str
    scale: float
    tolerance: float
    reference: Any
    protocol: TimingProtocol

    def inputs(self) -> dict[str, Array]:
        """Return the operands."""
        return random_inputs(self.workload, self.seed)

    def want(self) -> Expected:
        """Return the expected result."""
        return Expected(np.load(self.expected, mmap_mode="r"), self.scale, self.tolerance)


class RunReport(NamedTuple):
    """The report about one kernel: the correctness of its result, and its times (none if it is wrong)."""

    answer: Correctness
    timings: Timings = Timings((), ())


class RunSession(Protocol):
    """A setting with its operands, expected result and reference kernel in memory."""

    setting: Setting
    reference: Callable[[], float]
    """Samples the reference kernel, see `anatune.measure.run.timing.beside`."""
    counter: EnergyCounter | None
    """The energy counter of the device; None if there is none, or if a sample contains more than the kernel."""

    def begin(self) -> None:
        """Prepare for the next kernel or comparison."""
        ...

    def prepare(self, artifact: Any) -> tuple[Timed, Correctness]:
        """Load a kernel and check its result."""
        ...


_sessions: list[RunSession] = []
"""The session of this process, if any; a new one replaces it."""


def set_up(setting: Setting) -> None:
    """Start a session in this process."""
    _sessions.clear()
    _sessions.append(resolve(setting.session)(setting, **setting.options))
    gc.collect()
    gc.freeze()
    gc.disable()  # no collection in the middle of a sample


def run(artifact: object, incumbent: float | None) -> RunReport:
    """Check one kernel and time it."""
    session = present()
    session.begin()
    kernel, answer = session.prepare(artifact)
    if not answer.ok:
        return RunReport(answer)
    meter = Metered(kernel, session.counter)
    timings = sample_candidate(meter, session.reference, session.setting.protocol, incumbent=incumbent)
    return RunReport(answer, timings._replace(energy_j=meter.energy_j))


def contest(artifacts: Sequence[object], budget_s: float) -> list[RunReport]:
    """Check kernels and time the correct ones in turn."""
    session = present()
    session.begin()
    checked = [session.prepare(artifact) for artifact in artifacts]
    reports = [RunReport(answer) for _, answer in checked]
    right = [place for place, (_, answer) in enumerate(checked) if answer.ok]
    if right:
        meters = [Metered(checked[place][0], session.counter) for place in right]
        timings = alternate(meters, session.reference, session.setting.protocol, budget_s=budget_s)
        for position, taken, meter in zip(right, timings, meters, strict=True):
            reports[position] = reports[position]._replace(timings=taken._replace(energy_j=meter.energy_j))
    return reports


def reference_s(samples: int) -> float:
    """Return the seconds of one run of the reference kernel: the best of some samples."""
    session = present()
    session.begin()
    return min(session.reference() for _ in range(samples))


def has_session() -> bool:
    """Return whether this process has a session."""
    return bool(_sessions)


def present() -> RunSession:
    """Return the session of this process.

    Raises
    ------
    RunError
        This process has no session.
    """
    if not _sessions:
        raise RunError("the runner process has no session; this is a bug in anatune")
    return _sessions[0]

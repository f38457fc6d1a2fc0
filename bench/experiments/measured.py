"""Programs of this machine's CPU, each measured once, that searches ask for; and searches that extend the table.

A table holds every program that some search asked for, with its samples, so that a search can be replayed with the
noise that it would have met: with few samples where its session would have stopped a candidate early. Tables of
different machines do not mix: a table names the device it was measured on.
"""

from __future__ import annotations

import lzma
import math
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.measure.cpu.measurer import CpuMeasurer
from anatune.measure.run.timing import CPU_PROTOCOL, TimingProtocol
from anatune.search.base import Strategy
from anatune.templates import make_model
from anatune.templates.base.model import Model

__all__ = ["PROTOCOL", "MeasuredTable", "Replay", "replayed", "search_all"]

Integers = NDArray[np.int64]

PROTOCOL = TimingProtocol(
    sample_s=0.01, budget_s=0.08, patience_s=0.2, least_samples=4, most_samples=6, slower=math.inf, needed_samples=3
)
"""No candidate is stopped early; also the slowest has three samples."""
_SAVE_S = 30.0
_CONFIRMED = 5
"""Best programs of a table that are measured a second time."""


class _Row(msgspec.Struct, array_like=True):
    """A program: its point, how it ended, seconds of its samples and of the reference kernel beside each, how often."""

    point: list[int]
    outcome: Outcome
    times_s: list[float] = []
    reference_times_s: list[float] = []
    visits: int = 1


class _Content(msgspec.Struct):
    device: str
    workload: Workload
    columns: list[str]
    rows: list[_Row]


class MeasuredTable:
    """What was measured of one workload's programs on one device.

    Parameters
    ----------
    path : Path
        An .xz file of JSON; need not exist.
    workload, hardware
        What was measured where; one thread.
    """

    def __init__(self, path: Path, workload: Workload, hardware: CpuSpec) -> None:
        self.path = path
        self.model: Model = make_model(workload, hardware.with_threads(1), "cpu")
        self._content = _Content(hardware.model, workload, list(self.model.space.columns), [])
        if path.exists():
            content = msgspec.json.decode(lzma.decompress(path.read_bytes()), type=_Content)
            for name in ("device", "workload", "columns"):
                got, expected = getattr(content, name), getattr(self._content, name)
                if got != expected:
                    raise SystemExit(f"{path}: {name} is {got}, expected {expected}; measure into another folder")
            self._content = content
        self._rows = {self.key(np.array(row.point)): row for row in self._content.rows}
        self._saved = time.monotonic()

    def __len__(self) -> int:
        return len(self._content.rows)

    def key(self, point: Integers) -> Hashable:
        """Return what points of one program have in common."""
        return self.model.program_key(np.asarray(point, dtype=np.int64))

    def point_of(self, schedule: Schedule) -> Integers:
        """Return the point of a schedule."""
        return self.model.space.point_of(schedule)

    def get(self, point: Integers) -> Measurement | None:
        """Return what is known of a point's program."""
        row = self._rows.get(self.key(point))
        return None if row is None else _measurement(row)

    def add(self, point: Integers, measurement: Measurement) -> None:
        """Take in a measurement; write the table from time to time.

        Of two visits to a program the slower one stays: a kernel looks fast where the reference beside it was
        disturbed.
        """
        row = _Row(
            [int(value) for value in point],
            measurement.outcome,
            [_rounded(value) for value in measurement.times_s],
            [_rounded(value) for value in measurement.reference_times_s],
        )
        earlier = self._rows.get(self.key(point))
        if earlier is None:
            self._content.rows.append(row)
            self._rows[self.key(point)] = row
        else:
            earlier.visits += 1
            if (_measurement(earlier).relative or math.inf) < (_measurement(row).relative or 0.0):
                earlier.times_s, earlier.reference_times_s = row.times_s, row.reference_times_s
        if time.monotonic() - self._saved > _SAVE_S:
            self.save()

    def save(self) -> None:
        """Write the table."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".draft")
        draft.write_bytes(lzma.compress(msgspec.json.encode(self._content)))
        os.replace(draft, self.path)
        self._saved = time.monotonic()

    def relative(self, key: Hashable) -> float:
        """Return a program's time over the reference kernel's, inf where it did not run."""
        relative = _measurement(self._rows[key]).relative
        return math.inf if relative is None else relative

    @property
    def best(self) -> float:
        """Smallest measured time over the reference kernel's."""
        return min(relative for row in self._content.rows if (relative := _measurement(row).relative) is not None)

    def doubtful(self, count: int) -> list[Integers]:
        """Return the points among the best `count` that were visited once."""
        ran = [row for row in self._content.rows if row.times_s]
        ran.sort(key=lambda row: _measurement(row).relative or math.inf)
        return [np.array(row.point, dtype=np.int64) for row in ran[:count] if row.visits < 2]

    def measured(self) -> Iterator[tuple[Integers, Measurement]]:
        """Yield the point of every program and its measurement."""
        for row in self._content.rows:
            yield np.array(row.point, dtype=np.int64), _measurement(row)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _measurement(row: _Row) -> Measurement:
    return Measurement(row.outcome, "", tuple(row.times_s), tuple(row.reference_times_s))


def replayed(
    measurement: Measurement, incumbent: float | None, needed: int = 1, protocol: TimingProtocol = CPU_PROTOCOL
) -> Measurement:
    """Return a measurement as a session has it whose best ratio to the reference is `incumbent`: perhaps stopped early.

    Parameters
    ----------
    needed : int
        Samples that the session's strategy needs.
    """
    ratios = [t / r for t, r in zip(measurement.times_s, measurement.reference_times_s, strict=True)]
    for count in range(max(2, needed), len(ratios) if incumbent is not None else 0):
        if min(ratios[:count]) > protocol.slower * (incumbent or 0.0):
            return msgspec.structs.replace(
                measurement,
                times_s=measurement.times_s[:count],
                reference_times_s=measurement.reference_times_s[:count],
                stopped_early=True,
            )
    return measurement


@dataclass
class Replay:
    """One search on a table.

    Attributes
    ----------
    name, seed
        Whose search it is.
    trials : int
        How many it may make.
    strategy : callable
        Model -> the strategy.
    stops_early : bool
        Whether clearly slow candidates get few samples, as in a session.
    first : callable, optional
        Model -> points that are measured before the strategy's first question, as in a session.
    curve : list of float
        After each trial: the best time over the reference kernel's (inf while nothing ran).
    keys : list
        The programs, in the order of the trials.
    strategy_s : float
        CPU seconds of asking and telling.
    """

    name: str
    seed: int
    trials: int
    strategy: Callable[[Model], Strategy]
    stops_early: bool = True
    first: Callable[[Model], Integers] | None = None
    curve: list[float] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)
    strategy_s: float = 0.0

    def run(self, table: MeasuredTable) -> Iterator[Integers]:
        """Search; yield each point that the table does not have, and go on when it is there."""
        started = time.process_time()
        strategy, incumbent = self.strategy(table.model), None
        space, best = table.model.space, math.inf
        waiting = [] if self.first is None else [space.schedule_of(point) for point in self.first(table.model)]
        self.strategy_s += time.process_time() - started
        while len(self.curve) < self.trials:
            started = time.process_time()
            asked = [waiting.pop(0)] if waiting else strategy.ask(1)
            self.strategy_s += time.process_time() - started
            if not asked:
                return
            point = table.point_of(asked[0])
            key = table.key(point)
            measurement = table.get(point)
            while measurement is None:
                yield point
                measurement = table.get(point)
            if self.stops_early:
                measurement = replayed(measurement, incumbent, strategy.least_samples)
            relative = measurement.relative
            if relative is not None:
                best = min(best, relative)
                if not measurement.stopped_early:
                    incumbent = relative if incumbent is None else min(incumbent, relative)
            is_known = key in self.keys
            started = time.process_time()
            strategy.tell([Trial(asked[0], measurement, len(self.curve), self.name)])
            self.strategy_s += time.process_time() - started
            if not is_known:  # a program costs a session one trial
                self.curve.append(best)
                self.keys.append(key)

    def settle(self, table: MeasuredTable) -> None:
        """Take the curve anew from what the table knows: some programs were measured once more since."""
        best = math.inf
        for trial, key in enumerate(self.keys):
            best = min(best, table.relative(key))
            self.curve[trial] = best

    def at(self, trials: int) -> float:
        """Return the best after so many trials, or all of them if there were fewer."""
        return self.curve[min(trials, len(self.curve)) - 1] if self.curve else math.inf

    def trials_to(self, ratio: float) -> float:
        """Return the first trial whose best is at most `ratio`, inf if none is."""
        return next((trial for trial, value in enumerate(self.curve, 1) if value <= ratio), math.inf)


def search_all(
    table: MeasuredTable, hardware: CpuSpec, replays: Sequence[Replay], said: Callable[[int, int], None] | None = None
) -> None:
    """Run searches to their ends; what the table lacks is measured, each program once.

    Parameters
    ----------
    said : callable, optional
        Called with the number of searches that have ended, and of programs in the table.
    """
    ready = deque((replay, replay.run(table)) for replay in replays)
    total = len(ready)
    wanted: deque[Integers] = deque()
    waiting: dict[Hashable, list[tuple[Replay, Iterator[Integers]]]] = {}

    def advance() -> None:
        """Let searches go on until one asks for something that nobody has asked for."""
        while ready and not wanted:
            replay, steps = ready.popleft()
            point = next(steps, None)
            if point is None:
                continue
            key = table.key(point)
            if key not in waiting:
                wanted.append(point)
            waiting.setdefault(key, []).append((replay, steps))

    def ask() -> Schedule | None:
        advance()
        return table.model.space.schedule_of(wanted.popleft()) if wanted else None

    def measure(measurer: CpuMeasurer) -> None:
        while wanted or ready:
            for schedule, measurement in measurer.serve(ask):
                point = table.point_of(schedule)
                table.add(point, measurement)
                ready.extend(waiting.pop(table.key(point)))
                if said is not None:
                    said(total - len(ready) - sum(map(len, waiting.values())), len(table))
            advance()
        while points := table.doubtful(_CONFIRMED):
            for schedule, measurement in measurer.measure(map(table.model.space.schedule_of, points)):
                table.add(table.point_of(schedule), measurement)

    advance()
    if wanted or table.doubtful(_CONFIRMED):
        with CpuMeasurer(table.model.workload, hardware, threads=1, protocol=PROTOCOL) as measurer:
            measure(measurer)
        table.save()
    for replay in replays:
        replay.settle(table)

"""What a runner process does with a board: uploads kernels, checks them from here, times them over there.

Kernels are timed by TVM's time_evaluator, a loop on the board around the board's own clock: the network is in no time.
It runs the kernel once more before each sample, which keeps a core awake that waited for the network. Results come
here and are compared in float64; whether anything else changed, the board says as a digest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.core.hardware.spec import CpuSpec
from anatune.emit.buffer import Buffer
from anatune.errors import DeviceError, RunError
from anatune.fleet.boards.connection import Board, BoardLostError, connected
from anatune.fleet.boards.description import BoardDescription, described, machine_of, other_device
from anatune.fleet.boards.tracker import checked_key, tracker_of
from anatune.measure.energy import EnergyCounter
from anatune.measure.run import runner
from anatune.measure.run.correctness import (
    GUARD_BYTES,
    GUARD_FILL,
    Array,
    Correctness,
    Expected,
    array_dtype,
    check_runs,
)
from anatune.measure.run.runner import RunReport, Setting
from anatune.measure.run.timing import Timed, beside
from anatune.untyped import tvm, tvm_ffi

__all__ = ["BoardLateError", "BoardSession", "contest", "present", "run", "set_up", "timed_by"]

IDLE_S = 600.0
"""A session of which the board hears nothing for so long ends: its client is gone, and others may wait."""

_ALIGNMENT_BYTES = 64
_DIGITS = 2
"""Significant digits of the number of runs that a timer makes: timers are made over there, and kept."""


class BoardLateError(RunError):
    """A kernel took longer than its limit, and the board ended the session."""


class _Place(NamedTuple):
    """Where a tensor lies on the board."""

    address: int
    num_bytes: int
    buffer: Buffer


class _Arena:
    """Tensors in one piece of the board's memory with guard zones between; all of it holds `GUARD_FILL` at first."""

    def __init__(self, board: Board, buffers: Sequence[Buffer]) -> None:
        self._board = board
        offset, starts = GUARD_BYTES, []
        for buffer in buffers:
            starts.append(offset)
            offset += _padded(_bytes_of(buffer)) + GUARD_BYTES
        self.start, self.num_bytes = board.memory(offset), offset
        board.errand("fill", self.start, GUARD_FILL, offset)
        self.places = {
            buffer.tensor: _Place(self.start + start, _bytes_of(buffer), buffer)
            for buffer, start in zip(buffers, starts, strict=True)
        }

    def tensor(self, name: str) -> tvm.runtime.Tensor:
        """Return one of the tensors as the board's functions take it."""
        place = self.places[name]
        return self._board.tensor(place.address, place.buffer.dtype, place.buffer.shape)

    def digest(self, but: str | None = None) -> tuple[int, ...]:
        """Return numbers that change with any byte outside of the tensor `but`."""
        end = self.start + self.num_bytes
        if but is None:
            return (self._board.errand("digest", self.start, self.num_bytes // 8),)
        place = self.places[but]
        after = place.address + _padded(place.num_bytes)
        parts = ((self.start, place.address), (after, end))
        return tuple(self._board.errand("digest", first, (last - first) // 8) for first, last in parts)

    def release(self) -> None:
        self._board.release(self.start)


def _bytes_of(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * array_dtype(buffer.dtype).itemsize


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class BoardSession:
    """A setting with its operands and reference kernel on a board; a `RunSession`.

    Parameters
    ----------
    setting
        What all kernels share.
    tracker, key : str
        Who knows the board, and under which name.
    device
        What it has to be.
    threads : int
        Threads that kernels run with.
    wait_s : float
        Most seconds to wait for a free board.
    run_s : float
        Most seconds of one kernel, loading, checking and timing.

    Raises
    ------
    DeviceError
        There is no board, or it is another device.
    RunError
        The operands do not fit its memory.
    """

    counter: EnergyCounter | None = None
    """What this machine counts is not the board's."""

    def __init__(
        self, setting: Setting, *, tracker: str, key: str, device: CpuSpec, threads: int, wait_s: float, run_s: float
    ) -> None:
        self.setting, self.run_s = setting, run_s
        self._tracker, self._key, self._wait_s = tracker_of(tracker), checked_key(key), wait_s
        self._device, self._threads = device, threads
        self._inputs, self._want = setting.inputs(), setting.want()
        self._arenas: list[_Arena] = []
        self.connect()

    def connect(self) -> None:
        """Take a free board and bring to it what all kernels share; errors as the class."""
        self._board, self.description = board, told = self._taken()
        if why := other_device(self._device, told.hardware):
            raise DeviceError(f"board {board.name} is refused: {why}")
        board.set_threads(self._threads)
        self._candidates: list[_Arena] = []
        self._operands = _Arena(board, [Buffer(name, *_kind(array)) for name, array in self._inputs.items()])
        self._bring_operands()
        artifact: CpuArtifact = self.setting.reference
        places = _Arena(board, artifact.arguments)
        self._arenas = [self._operands, places]
        board.errand("fill", places.start, 0, places.num_bytes)
        reference = self._timed(board.load(artifact.library), artifact.function, artifact.arguments, places, places)
        self.reference = beside(reference, self.setting.protocol.reference_s)

    def _taken(self) -> tuple[Board, BoardDescription]:
        """Return the board that an earlier session of this process left, or a free one, and what it is."""
        while _left:
            board, told = _left.pop()
            if told.key == self._key and board.is_alive():
                board.limit(IDLE_S)
                return board, told
        board = connected(self._tracker, self._key, wait_s=self._wait_s, machine=machine_of(self._device))
        board.limit(IDLE_S)
        return board, described(board, self._key)

    def leave(self) -> None:
        """Leave the board, its memory given back, to the next session of this process."""
        self.begin()
        for arena in self._arenas:
            arena.release()
        _left.append((self._board, self.description))

    def _bring_operands(self) -> None:
        for name, array in self._inputs.items():
            self._board.write(self._operands.places[name].address, array)
        self._digest = self._operands.digest()

    def begin(self) -> None:
        """Forget the last candidates."""
        for arena in self._candidates:
            arena.release()
        self._candidates.clear()

    def take(self, limit_s: float) -> None:
        """Have the board end the session after so many seconds; take another board if this one is gone.

        No kernel is to blame then: boards are switched off, and end what they hear nothing of.
        """
        try:
            self._board.limit(limit_s)
        except BoardLostError:
            self.connect()
            self._board.limit(limit_s)

    def rest(self) -> None:
        """Leave the board alone for a while."""
        self._board.limit(IDLE_S)

    def prepare(self, artifact: CpuArtifact) -> tuple[Timed, Correctness]:
        """Load a kernel on the board and check its result here."""
        board = self._board
        module = board.load(artifact.library)
        result = artifact.arguments[-1]
        packed = {packing.tensor: packing for packing in artifact.packings}
        own = _Arena(board, [buffer for buffer in artifact.arguments if buffer.tensor in packed or buffer is result])
        self._candidates.append(own)
        for buffer in artifact.arguments[:-1]:
            given = self._operands.places[buffer.tensor].buffer
            if buffer.tensor in packed:
                place = own.places[buffer.tensor]
                board.errand("fill", place.address, 0, place.num_bytes)
                with board.telling(f"packing {buffer.tensor}"):
                    module[packed[buffer.tensor].function](
                        self._operands.tensor(buffer.tensor), own.tensor(buffer.tensor)
                    )
            elif buffer.shape != given.shape:
                raise RunError(
                    f"operand {buffer.tensor} has shape {given.shape}, but the built kernel takes {buffer.shape}"
                )
        kernel = self._timed(module, artifact.function, artifact.arguments, own, self._operands)
        answer = self._check(artifact, module, own, self._want.allowing(artifact.error))
        return kernel, answer

    def _tensors(self, arguments: Sequence[Buffer], own: _Arena, others: _Arena) -> list[tvm.runtime.Tensor]:
        return [(own if buffer.tensor in own.places else others).tensor(buffer.tensor) for buffer in arguments]

    def _check(self, artifact: CpuArtifact, module: tvm.runtime.Module, own: _Arena, want: Expected) -> Correctness:
        """Run the kernel on a result filled with NaN and compare; nothing else may have changed."""
        board, result = self._board, artifact.arguments[-1]
        place = own.places[result.tensor]
        before = own.digest(result.tensor)
        tensors = self._tensors(artifact.arguments, own, self._operands)
        with board.telling("asked for the kernel"):
            main = module[artifact.function]
        padding = _padded(place.num_bytes)

        def run(byte: int) -> dict[str, Array]:
            board.errand("fill", place.address, byte, place.num_bytes)
            with board.telling("running a kernel"):
                main(*tensors)
            return {result.tensor: board.read(place.address, result.dtype, result.shape)}

        def changed() -> str:
            rest = board.read(place.address + place.num_bytes, "uint8", (padding - place.num_bytes,))
            if own.digest(result.tensor) != before or not (rest == GUARD_FILL).all():
                return "the kernel changed packed constants, or wrote outside of its arguments"
            if self._operands.digest() == self._digest:
                return ""
            self._bring_operands()
            return "the kernel changed its operands"

        return check_runs(self.setting.workload, want, run, changed)

    def _timed(
        self, module: tvm.runtime.Module, function: str, arguments: Sequence[Buffer], own: _Arena, others: _Arena
    ) -> Timed:
        return timed_by(self._board, module, function, self._tensors(arguments, own, others))


def timed_by(board: Board, module: tvm.runtime.Module, function: str, tensors: Sequence[tvm.runtime.Tensor]) -> Timed:
    """Return a function of the board's as something that can be sampled, by the board's clock."""
    timers: dict[int, tvm_ffi.Function] = {}

    def run(count: int) -> float:
        runs = _rounded(count)
        if runs not in timers:
            timers[runs] = board.timer(module, function, runs)
        with board.telling("timing a kernel"):
            return count * float(timers[runs](*tensors).mean)

    return run


def _kind(array: Array) -> tuple[str, tuple[int, ...]]:
    return array.dtype.name, array.shape


def _rounded(count: int) -> int:
    """Return the next number of `_DIGITS` significant digits."""
    unit = int(10 ** max(0, len(str(count)) - _DIGITS))
    return -(-count // unit) * unit


# ---- what the runner process runs ------------------------------------------------------------------------------


_left: list[tuple[Board, BoardDescription]] = []
"""The board of the session before: nothing closes its connection, since a runner collects no garbage."""


def set_up(setting: Setting) -> None:
    """Take up a session; as `measure.run.runner.set_up`."""
    if runner.has_session():
        _session().leave()
    runner.set_up(setting)


def present() -> BoardDescription:
    """Return the board that measures."""
    return _session().description


def run(artifact: object, incumbent: float | None) -> RunReport:
    """Check one kernel and time it; as `measure.run.runner.run`."""
    session = _session()
    started = time.monotonic()
    session.take(session.run_s)
    try:
        report = runner.run(artifact, incumbent)
    except BoardLostError as error:
        raise _blamed(error, started, session.run_s) from None
    session.rest()
    return report


def contest(artifacts: Sequence[object], budget_s: float) -> list[RunReport]:
    """Check kernels and time those that are right in turn; as `measure.run.runner.contest`."""
    session = _session()
    started, limit_s = time.monotonic(), budget_s + session.run_s * len(artifacts)
    session.take(limit_s)
    try:
        reports = runner.contest(artifacts, budget_s)
    except BoardLostError as error:
        raise _blamed(error, started, limit_s) from None
    session.rest()
    return reports


def _blamed(error: BoardLostError, started: float, limit_s: float) -> DeviceError | RunError:
    """Return what happened: the board's own limit ended the session, or the board is lost."""
    late = time.monotonic() - started >= limit_s - 1.0
    return BoardLateError(f"not finished after {limit_s:g} s on the board") if late else error


def _session() -> BoardSession:
    session = runner.present()
    assert isinstance(session, BoardSession)
    return session

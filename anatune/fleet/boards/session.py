"""The work of a runner process with a board: it uploads kernels, checks their results here, and times them there.

TVM's time_evaluator times kernels in a loop on the board with the board's clock, so that times do not contain the
network. It runs the kernel once before each sample, which wakes up a core that waited for the network. Results are read
and compared here in float64. The board computes digests that show whether other memory changed.
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
from anatune.fleet.boards.connection import Board, BoardLostError, open_board
from anatune.fleet.boards.description import BoardDescription, describe_board, explain_difference, machine_of
from anatune.fleet.boards.tracker import check_key, tracker_of
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

__all__ = ["BoardLateError", "BoardSession", "contest", "make_timed", "present", "run", "set_up"]

IDLE_S = 600.0
"""The seconds after which the board ends an idle session, because its client is gone and others may wait."""

_ALIGNMENT_BYTES = 64
_DIGITS = 2
"""The significant digits of the number of runs, so that timers, which the board keeps, can be used again."""


class BoardLateError(RunError):
    """A kernel took longer than its limit, and the board ended the session."""


class _TensorPlace(NamedTuple):
    """A tensor in the memory of the board."""

    address: int
    num_bytes: int
    buffer: Buffer


class _Arena:
    """Tensors in one block of the board's memory with guard zones between them; it is filled with `GUARD_FILL`."""

    def __init__(self, board: Board, buffers: Sequence[Buffer]) -> None:
        self._board = board
        offset, starts = GUARD_BYTES, []
        for buffer in buffers:
            starts.append(offset)
            offset += _pad_bytes(_bytes_of(buffer)) + GUARD_BYTES
        self.start, self.num_bytes = board.memory(offset), offset
        board.errand("fill", self.start, GUARD_FILL, offset)
        self.places = {
            buffer.tensor: _TensorPlace(self.start + start, _bytes_of(buffer), buffer)
            for buffer, start in zip(buffers, starts, strict=True)
        }

    def tensor(self, name: str) -> tvm.runtime.Tensor:
        """Return a tensor as an argument for the board's functions."""
        entry = self.places[name]
        return self._board.tensor(entry.address, entry.buffer.dtype, entry.buffer.shape)

    def digest(self, but: str | None = None) -> tuple[int, ...]:
        """Return digests of all bytes outside of the tensor `but`."""
        end = self.start + self.num_bytes
        if but is None:
            return (self._board.errand("digest", self.start, self.num_bytes // 8),)
        entry = self.places[but]
        rest_start = entry.address + _pad_bytes(entry.num_bytes)
        parts = ((self.start, entry.address), (rest_start, end))
        return tuple(self._board.errand("digest", first, (last - first) // 8) for first, last in parts)

    def release(self) -> None:
        self._board.release(self.start)


def _bytes_of(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * array_dtype(buffer.dtype).itemsize


def _pad_bytes(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class BoardSession:
    """The `RunSession` of a setting whose operands and reference kernel are on a board.

    Parameters
    ----------
    setting
        The setting that all kernels share.
    tracker, key : str
        The address of the tracker, and the key of the board.
    device
        The device that the board has to be.
    threads : int
        The threads of kernels.
    wait_s : float
        The most seconds to wait for a free board.
    run_s : float
        The most seconds to load, check and time one kernel.

    Raises
    ------
    DeviceError
        No board is free, or the board is another device.
    RunError
        The operands do not fit the board's memory.
    """

    counter: EnergyCounter | None = None
    """The energy counter: none, because this machine cannot measure the energy of a board."""

    def __init__(
        self, setting: Setting, *, tracker: str, key: str, device: CpuSpec, threads: int, wait_s: float, run_s: float
    ) -> None:
        self.setting, self.run_s = setting, run_s
        self._tracker, self._key, self._wait_s = tracker_of(tracker), check_key(key), wait_s
        self._device, self._threads = device, threads
        self._inputs, self._want = setting.inputs(), setting.want()
        self._arenas: list[_Arena] = []
        self.connect()

    def connect(self) -> None:
        """Take a free board and upload the operands and the reference kernel, with the errors of the class."""
        self._board, self.description = board, description = self._take_board()
        if why := explain_difference(self._device, description.hardware):
            raise DeviceError(f"board {board.name} is refused: {why}")
        board.set_threads(self._threads)
        self._candidates: list[_Arena] = []
        self._operands = _Arena(board, [Buffer(name, *_kind(array)) for name, array in self._inputs.items()])
        self._bring_operands()
        artifact: CpuArtifact = self.setting.reference
        places = _Arena(board, artifact.arguments)
        self._arenas = [self._operands, places]
        board.errand("fill", places.start, 0, places.num_bytes)
        reference = self._make_timed(
            board.load(artifact.library), artifact.function, artifact.arguments, places, places
        )
        self.reference = beside(reference, self.setting.protocol.reference_s)

    def _take_board(self) -> tuple[Board, BoardDescription]:
        """Return the board of an earlier session in this process, or a free one, and its description."""
        while _idle_boards:
            board, description = _idle_boards.pop()
            if description.key == self._key and board.is_alive():
                board.limit(IDLE_S)
                return board, description
        board = open_board(self._tracker, self._key, wait_s=self._wait_s, machine=machine_of(self._device))
        board.limit(IDLE_S)
        return board, describe_board(board, self._key)

    def leave(self) -> None:
        """Free the memory on the board and leave the board to the next session of this process."""
        self.begin()
        for arena in self._arenas:
            arena.release()
        _idle_boards.append((self._board, self.description))

    def _bring_operands(self) -> None:
        for name, array in self._inputs.items():
            self._board.write(self._operands.places[name].address, array)
        self._digest = self._operands.digest()

    def begin(self) -> None:
        """Release the memory of the last candidates."""
        for arena in self._candidates:
            arena.release()
        self._candidates.clear()

    def take(self, limit_s: float) -> None:
        """Set the time limit of the board's session; take another board if this one is gone.

        A board may be gone without the fault of a kernel: it was switched off, or ended an idle session.
        """
        try:
            self._board.limit(limit_s)
        except BoardLostError:
            self.connect()
            self._board.limit(limit_s)

    def rest(self) -> None:
        """Set the time limit of an idle session."""
        self._board.limit(IDLE_S)

    def prepare(self, artifact: CpuArtifact) -> tuple[Timed, Correctness]:
        """Load a kernel on the board and check its result here."""
        board = self._board
        module = board.load(artifact.library)
        result = artifact.arguments[-1]
        packed = {packing.tensor: packing for packing in artifact.packings}
        arena = _Arena(board, [buffer for buffer in artifact.arguments if buffer.tensor in packed or buffer is result])
        self._candidates.append(arena)
        for buffer in artifact.arguments[:-1]:
            given = self._operands.places[buffer.tensor].buffer
            if buffer.tensor in packed:
                packed_tensor = arena.places[buffer.tensor]
                board.errand("fill", packed_tensor.address, 0, packed_tensor.num_bytes)
                with board.translate_errors(f"packing {buffer.tensor}"):
                    module[packed[buffer.tensor].function](
                        self._operands.tensor(buffer.tensor), arena.tensor(buffer.tensor)
                    )
            elif buffer.shape != given.shape:
                raise RunError(f"operand {buffer.tensor} has shape {given.shape}, but the kernel takes {buffer.shape}")
        kernel = self._make_timed(module, artifact.function, artifact.arguments, arena, self._operands)
        answer = self._check(artifact, module, arena, self._want.allowing(artifact.error))
        return kernel, answer

    def _tensors(self, arguments: Sequence[Buffer], arena: _Arena, others: _Arena) -> list[tvm.runtime.Tensor]:
        return [(arena if buffer.tensor in arena.places else others).tensor(buffer.tensor) for buffer in arguments]

    def _check(self, artifact: CpuArtifact, module: tvm.runtime.Module, arena: _Arena, want: Expected) -> Correctness:
        """Run the kernel on a result filled with NaN and compare it; check that nothing else changed."""
        board, result = self._board, artifact.arguments[-1]
        output = arena.places[result.tensor]
        digest = arena.digest(result.tensor)
        tensors = self._tensors(artifact.arguments, arena, self._operands)
        with board.translate_errors("looking up the kernel"):
            main = module[artifact.function]
        padding = _pad_bytes(output.num_bytes)

        def run(byte: int) -> dict[str, Array]:
            board.errand("fill", output.address, byte, output.num_bytes)
            with board.translate_errors("running a kernel"):
                main(*tensors)
            return {result.tensor: board.read(output.address, result.dtype, result.shape)}

        def describe_change() -> str:
            padding_bytes = board.read(output.address + output.num_bytes, "uint8", (padding - output.num_bytes,))
            if arena.digest(result.tensor) != digest or not (padding_bytes == GUARD_FILL).all():
                return "the kernel changed packed constants or wrote outside its arguments"
            if self._operands.digest() == self._digest:
                return ""
            self._bring_operands()
            return "the kernel changed its operands"

        return check_runs(self.setting.workload, want, run, describe_change)

    def _make_timed(
        self, module: tvm.runtime.Module, function: str, arguments: Sequence[Buffer], arena: _Arena, others: _Arena
    ) -> Timed:
        return make_timed(self._board, module, function, self._tensors(arguments, arena, others))


def make_timed(board: Board, module: tvm.runtime.Module, function: str, tensors: Sequence[tvm.runtime.Tensor]) -> Timed:
    """Return a timed function that runs a function of the board and measures it with the board's clock."""
    timers: dict[int, tvm_ffi.Function] = {}

    def run(count: int) -> float:
        runs = _round_up(count)
        if runs not in timers:
            timers[runs] = board.timer(module, function, runs)
        with board.translate_errors("timing a kernel"):
            return count * float(timers[runs](*tensors).mean)

    return run


def _kind(array: Array) -> tuple[str, tuple[int, ...]]:
    return array.dtype.name, array.shape


def _round_up(count: int) -> int:
    """Round up to `_DIGITS` significant digits."""
    unit = int(10 ** max(0, len(str(count)) - _DIGITS))
    return -(-count // unit) * unit


# ---- functions of the runner process -----------------------------------------------------------------------------


_idle_boards: list[tuple[Board, BoardDescription]] = []
"""The board of the last session; its connection stays open, because a runner does not collect garbage."""


def set_up(setting: Setting) -> None:
    """Start a session, see `measure.run.runner.set_up`."""
    if runner.has_session():
        _session().leave()
    runner.set_up(setting)


def present() -> BoardDescription:
    """Return the description of the board that measures."""
    return _session().description


def run(artifact: object, incumbent: float | None) -> RunReport:
    """Check and time one kernel, see `measure.run.runner.run`."""
    session = _session()
    started = time.monotonic()
    session.take(session.run_s)
    try:
        report = runner.run(artifact, incumbent)
    except BoardLostError as error:
        raise _explain_loss(error, started, session.run_s) from None
    session.rest()
    return report


def contest(artifacts: Sequence[object], budget_s: float) -> list[RunReport]:
    """Check kernels and time the correct ones in turn, see `measure.run.runner.contest`."""
    session = _session()
    started, limit_s = time.monotonic(), budget_s + session.run_s * len(artifacts)
    session.take(limit_s)
    try:
        reports = runner.contest(artifacts, budget_s)
    except BoardLostError as error:
        raise _explain_loss(error, started, limit_s) from None
    session.rest()
    return reports


def _explain_loss(error: BoardLostError, started: float, limit_s: float) -> DeviceError | RunError:
    """Return BoardLateError if the board's time limit ended the session, otherwise the error itself."""
    late = time.monotonic() - started >= limit_s - 1.0
    return BoardLateError(f"not finished after {limit_s:g} s on the board") if late else error


def _session() -> BoardSession:
    session = runner.present()
    assert isinstance(session, BoardSession)
    return session

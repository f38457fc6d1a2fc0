"""Calibration of a board's processor: the probes of ``anatune hw calibrate`` are built here and timed on the board."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.codegen.cpu.probes import Probe, ProbeModule
from anatune.core.hardware.spec import CpuSpec
from anatune.errors import DeviceError
from anatune.fleet.boards.connection import Board, BoardLostError, open_board
from anatune.fleet.boards.description import WAIT_S, BoardDescription, ask_process, describe_board
from anatune.fleet.boards.session import make_timed
from anatune.fleet.boards.tracker import check_key, count_boards, tracker_of
from anatune.measure.cpu.calibration.calibrate import Calibration, calibrate
from anatune.measure.cpu.calibration.machine import Machine, pointer_chain
from anatune.measure.cpu.calibration.together import Together
from anatune.measure.run.timing import Timed
from anatune.untyped import tvm

__all__ = ["BoardMachine", "CalibratedBoard", "calibrate", "run_calibration"]

_MOST_ARENA_BYTES = 128 << 20
"""The most memory whose content is sent to the board; more takes long over slow networks."""
_BUILD_S = 1500.0
"""The most seconds for everything but sampling: building probes and sending them over slow networks."""


class CalibratedBoard(NamedTuple):
    """A board and its calibration."""

    board: BoardDescription
    calibration: Calibration


class BoardMachine(Machine):
    """The `Machine` that runs the probes on a board; it does not measure several cores, which cannot be pinned there.

    TVM's time_evaluator runs a probe once before it times it. This warms the caches, as `Machine` does.
    """

    alone = staticmethod(contextlib.nullcontext)
    beside = staticmethod(contextlib.nullcontext)

    def __init__(self, hardware: CpuSpec, folder: Path, *, board: Board, free_bytes: int | None) -> None:
        self._board, self._free, self._number = board, free_bytes, itertools.count()
        super().__init__(hardware, folder)

    def together(self, budget_s: float) -> Together | None:
        """Return None: several cores are not measured on a board."""
        return None

    def _free_bytes(self) -> int | None:
        most = 4 * _MOST_ARENA_BYTES  # a quarter of it is used
        return most if self._free is None else min(most, self._free)

    def _has_tiles(self) -> bool:
        self.left_out.append("AMX's tiles are not measured on boards")
        return False

    def _take_memory(self, total: int) -> None:
        self._start = self._board.memory(total)
        for first, size, _ in self._places.values():
            self._board.write(self._start + first, pointer_chain(size, self.hardware.l1.line_bytes))

    def _take_threads(self, threads: int) -> None:
        self._board.set_threads(threads)

    def _standard(self, artifact: CpuArtifact) -> Timed:
        tensors = [self._random(buffer.shape[0]) for buffer in artifact.arguments]
        return make_timed(self._board, self._board.load(artifact.library), artifact.function, tensors)

    def _bind(self, module: ProbeModule, probes: Sequence[Probe]) -> dict[str, Timed]:
        path = self._folder / f"probes-{next(self._number)}.so"
        module.link(path)
        loaded = self._board.load(path)
        calls = {}
        for probe in probes:
            first, *others = probe.sizes
            start = self._start_of(probe)
            if start is None:
                tensors = [self._random(first), *(self._random(size) for size in others)]
            else:
                arena = self._board.tensor(self._start + start, "float32", (first,))
                tensors = [arena, self._random(others[0]), self._random(others[1], zeros=True)]
            calls[probe.name] = make_timed(self._board, loaded, probe.name, tensors)
        return calls

    def _random(self, size: int, *, zeros: bool = False) -> tvm.runtime.Tensor:
        """Return a new tensor of `size` float32 numbers."""
        address = self._board.memory(4 * size)
        values = np.random.default_rng(0).random(size, np.float32) - np.float32(0.5)
        self._board.write(address, np.zeros(size, np.float32) if zeros else values)
        return self._board.tensor(address, "float32", (size,))


def calibrate_board(tracker: str, key: str, minutes: float) -> CalibratedBoard:
    """Calibrate a free board with this key, in a separate process with a time limit.

    Parameters
    ----------
    minutes : float
        The most time for sampling.

    Raises
    ------
    DeviceError
        The tracker or the board cannot be reached, or stops answering.
    MissingDependencyError
        TVM is not installed.
    RunError
        There is no linker for the board's processor, or the process cannot be started.
    """
    arguments = {"tracker": tracker, "key": key, "minutes": minutes}
    limit_s = WAIT_S + 2 * 60 * minutes + _BUILD_S
    return ask_process(
        CalibratedBoard, f"{__name__}:run_calibration", arguments, "calibrated", limit_s=limit_s, start_s=WAIT_S
    )


def run_calibration(tracker: str, key: str, minutes: float) -> CalibratedBoard:
    """Calibrate a board within the process that `calibrate_board` starts."""
    address = tracker_of(tracker)
    board = open_board(address, check_key(key), wait_s=WAIT_S)
    started, limit_s = time.monotonic(), 2 * 60 * minutes + _BUILD_S
    board.limit(limit_s)
    description = describe_board(board, key, count_boards(address, key))
    machine = functools.partial(BoardMachine, board=board, free_bytes=description.free_bytes)
    try:
        return CalibratedBoard(description, calibrate(description.hardware, minutes=minutes, machine=machine))
    except BoardLostError:
        if time.monotonic() - started < limit_s - 1.0:
            raise
        raise DeviceError(f"board {board.name}: calibration was not finished after {limit_s:g} s") from None

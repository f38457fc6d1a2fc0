"""Boards that a tracker of TVM's RPC knows: kernels are built here and measured there."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from anatune.arguments import shown
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, RunError
from anatune.fleet.boards.description import BoardDescription, ask_board, other_device
from anatune.fleet.boards.measurer import BoardMeasurer
from anatune.fleet.boards.tracker import checked_key, open_warning, tracker_of
from anatune.measure.named_hardware import HardwareLike
from anatune.measure.place import MakeMeasurer
from anatune.measure.run.memory import check_memory
from anatune.tuning.machine import choose_threads
from anatune.tuning.manifest import Manifest
from anatune.tuning.places.place import DeviceChoice, Place
from anatune.tuning.settings import TuningSettings

_LOG = logging.getLogger(__name__)


def board_place(settings: TuningSettings, host: HardwareSpec | None = None) -> Place:
    """Return the place that a session's `tracker` and `key` name."""
    return BoardPlace(settings.tracker or "", settings.key or "")


class BoardPlace(Place):
    """The boards of one key. One of them is asked what it is, the others have to be the same.

    Parameters
    ----------
    tracker : str
        "HOST:PORT".
    key : str
        Under which the boards' servers registered.

    Raises
    ------
    DeviceError
        They are no address and no key.
    """

    def __init__(self, tracker: str, key: str) -> None:
        self._tracker, self._key = str(tracker_of(tracker)), checked_key(key)
        self._found: BoardDescription | None = None
        if warning := open_warning(tracker_of(tracker)):
            _LOG.warning(warning)

    @property
    def _board(self) -> BoardDescription:
        if self._found is None:
            self._found = ask_board(self._tracker, self._key)
        return self._found

    def hardware(self, named: HardwareLike) -> HardwareSpec:
        """Return the spec that is meant; "host" is the board's, as it was detected."""
        return self._board.hardware if named == "host" else super().hardware(named)

    def check(self, hardware: HardwareSpec, device: DeviceChoice, *, built: bool) -> HardwareSpec:
        """Return `hardware` if it describes the boards."""
        if hardware.kind != "cpu":
            raise DeviceError(f"{hardware.name} is no CPU, and only CPUs of boards are measured; use --hw host")
        board = self._board
        if why := other_device(hardware, board.hardware):
            raise DeviceError(
                f"{hardware.name} is not board {board.name}: {why}; use --hw host, or write a spec with anatune hw "
                "detect --tracker"
            )
        return hardware

    def threads(self, hardware: HardwareSpec, asked: int | None) -> int:
        """Return the threads that kernels run with: by default all cores of the board that its server may use."""
        return choose_threads(hardware, asked, self._board.environment.cores)

    def check_fits(self, workload: Workload, hardware: HardwareSpec, templates: Sequence[str]) -> None:
        """Raise an error if no kernel can be generated, checked in this machine's free memory, or run in theirs."""
        super().check_fits(workload, hardware, templates)
        check_memory(workload, checked=True)
        needed = 2 * sum(access.num_bytes for access in workload.tensors)  # operands, and packed forms of them
        free = self._board.free_bytes
        if free is not None and needed > free:
            raise RunError(
                f"{workload.describe()}: its tensors take {needed / 1e9:.1f} GB on the board, but board "
                f"{self._board.name} has {free / 1e9:.1f} GB free; choose a smaller workload"
            )

    def measurer(self, make: MakeMeasurer) -> MakeMeasurer:
        """Return what makes a measurer on the boards."""
        board = self._board
        return functools.partial(
            BoardMeasurer, tracker=self._tracker, key=self._key, device=board.hardware, boards=board.boards
        )

    def provenance(self, device: DeviceChoice, built: Manifest | None, templates: Sequence[str]) -> dict[str, object]:
        """Return what records say of the place: the key, and how many boards there were."""
        return {"boards": shown(self._key), "num_boards": self._board.boards}

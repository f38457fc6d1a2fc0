"""The place of boards behind TVM's RPC tracker: kernels are built here and measured there."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from anatune.arguments import quote
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, RunError
from anatune.fleet.boards.description import BoardDescription, ask_board, explain_difference
from anatune.fleet.boards.measurer import BoardMeasurer
from anatune.fleet.boards.tracker import check_key, open_warning, tracker_of
from anatune.measure.named_hardware import HardwareLike
from anatune.measure.place import MakeMeasurer
from anatune.measure.run.memory import check_memory
from anatune.tuning.machine import choose_threads
from anatune.tuning.manifest import Manifest
from anatune.tuning.places.place import DeviceChoice, Place
from anatune.tuning.settings import TuningSettings

_LOG = logging.getLogger(__name__)


def board_place(settings: TuningSettings, host: HardwareSpec | None = None) -> Place:
    """Return the place for a session's settings `tracker` and `key`."""
    return BoardPlace(settings.tracker or "", settings.key or "")


class BoardPlace(Place):
    """The boards with one key; one of them is asked for its description, and the others have to be the same device.

    Parameters
    ----------
    tracker : str
        The address of the tracker, "HOST:PORT".
    key : str
        The key with which the boards' servers are registered.

    Raises
    ------
    DeviceError
        The address or the key is not valid.
    """

    def __init__(self, tracker: str, key: str) -> None:
        self._tracker, self._key = str(tracker_of(tracker)), check_key(key)
        self._description: BoardDescription | None = None
        if warning := open_warning(tracker_of(tracker)):
            _LOG.warning(warning)

    @property
    def _board(self) -> BoardDescription:
        if self._description is None:
            self._description = ask_board(self._tracker, self._key)
        return self._description

    def hardware(self, named: HardwareLike) -> HardwareSpec:
        """Return the named spec; "host" means the board, as detected."""
        return self._board.hardware if named == "host" else super().hardware(named)

    def check(self, hardware: HardwareSpec, device: DeviceChoice, *, built: bool) -> HardwareSpec:
        """Return `hardware` if it describes the boards, otherwise raise DeviceError."""
        if hardware.kind != "cpu":
            raise DeviceError(f"{hardware.name} is not a CPU, and only CPUs of boards can be measured; use --hw host")
        board = self._board
        if why := explain_difference(hardware, board.hardware):
            raise DeviceError(
                f"{hardware.name} does not describe board {board.name}: {why}; use --hw host, or write a spec with "
                "anatune hw detect --tracker"
            )
        return hardware

    def threads(self, hardware: HardwareSpec, requested: int | None) -> int:
        """Return the threads of kernels, by default one for each core of the board that its server may use."""
        return choose_threads(hardware, requested, self._board.environment.cores)

    def check_fits(self, workload: Workload, hardware: HardwareSpec, templates: Sequence[str]) -> None:
        """Raise an error if no kernel can be generated, checked in this machine's memory, or run in the board's."""
        super().check_fits(workload, hardware, templates)
        check_memory(workload, checked=True)
        needed = 2 * sum(access.num_bytes for access in workload.tensors)  # operands and their packed forms
        free = self._board.free_bytes
        if free is not None and needed > free:
            raise RunError(
                f"{workload.describe()}: its tensors need {needed / 1e9:.1f} GB on the board, but board "
                f"{self._board.name} has {free / 1e9:.1f} GB free; choose a smaller workload"
            )

    def measurer(self, make: MakeMeasurer) -> MakeMeasurer:
        """Return a function that makes a measurer on the boards."""
        board = self._board
        return functools.partial(
            BoardMeasurer, tracker=self._tracker, key=self._key, device=board.hardware, boards=board.boards
        )

    def provenance(self, device: DeviceChoice, built: Manifest | None, templates: Sequence[str]) -> dict[str, object]:
        """Return the provenance for records: the key, and the number of boards."""
        return {"boards": quote(self._key), "num_boards": self._board.boards}

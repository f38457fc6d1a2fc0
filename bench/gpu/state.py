"""What the GPU benchmark knows so far, in one JSON file: calls of a few minutes each continue each other.

Every layer is saved as soon as it is done; a call that is cut off loses the layer it was at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.files import replace_file
from anatune.measure.cuda.calibration.numbers import GpuNumbers

__all__ = ["BEST", "CHOICES", "OURS", "LayerState", "State", "entry_name", "is_right"]

CHOICES = ("plan", *(f"choice{place}" for place in range(2, 9)))
"""The plan's first choices; the stage `triton` times all of them."""
BEST = "8"
"""The fastest of them, once they were timed."""
OURS = ("plan", BEST, "16", "64")
"""anatune's kernels that tables show: the plan's first choice, the best of so many measured."""

_LARGEST_ERROR = {
    "float32": 1e-4, "tfloat32": 2e-3, "float16": 2e-3, "bfloat16": 1e-2, "float8_e4m3fn": 2e-2, "int8": 0.0,
    "kernels": 4e-2,
}  # fmt: skip
"""Of a result, relative to its norm: what is worse is not compared. Assumed: some times what the type of the result
rounds, libraries add parts of sums in it; products of 8-bit floats leave as bfloat16, Hopper adds them with 14 bits;
kernels of language models may leave 8-bit floats, which keep 4 bits."""


class LayerState(msgspec.Struct):
    """One layer in one dtype.

    Attributes
    ----------
    layer, dtype, workload : str
        Its name; of the operands ("tfloat32": float32 through the matrix units); what it is.
    flop : int
        Of one run, products with the padding's zeros counted.
    schedules : dict of str to Schedule
        By the names of `CHOICES` and `OURS`.
    predicted_s : dict of str to float
        Seconds that the model says, by the names of `CHOICES`.
    plan_s, tune_s : float
        Wall time.
    num_trials, num_failed : int
        Of tuning.
    samples : dict of str to dict of str to list of float
        Seconds of one run by "flush" or "warm", then by method ("anatune:16", "torch:nchw", "triton"), in rounds.
    kernels : dict of str to list of str
        Kernels that a rival's method launches.
    errors : dict of str to float or None
        By method: norm of the difference from float64 over the norm; None: not finite, or nothing was computed.
    attempts : int
        How often timing it was begun and not ended.
    notes : list of str
        What went wrong.
    """

    layer: str
    dtype: str
    workload: str
    flop: int
    schedules: dict[str, Schedule] = {}
    predicted_s: dict[str, float] = {}
    plan_s: float = 0.0
    tune_s: float = 0.0
    num_trials: int = 0
    num_failed: int = 0
    samples: dict[str, dict[str, list[float]]] = {}
    kernels: dict[str, list[str]] = {}
    errors: dict[str, float | None] = {}
    attempts: int = 0
    notes: list[str] = []


def entry_name(layer: str, dtype: str) -> str:
    """Return the key of a layer in a dtype."""
    return layer if dtype == "float32" else f"{layer}:{dtype}"


def is_right(entry: LayerState, method: str) -> bool:
    """Whether a method's result is as near to float64 as its type explains; what was never checked is."""
    error = entry.errors.get(method, 0.0)
    return error is not None and error <= _LARGEST_ERROR[entry.dtype]


class State(msgspec.Struct):
    """Everything: the device, its calibration, the layers by `entry_name`."""

    device: str
    arch: str
    spec: GpuSpec | None = None
    calibrated: bool = False
    numbers: GpuNumbers | None = None
    environment: dict[str, Any] = {}
    layers: dict[str, LayerState] = {}

    @staticmethod
    def open(path: Path, device: str, arch: str) -> State:
        """Return the file's contents, or an empty state where there is none.

        Raises
        ------
        SystemExit
            The file is of another device, or damaged.
        """
        if not path.exists():
            return State(device, arch)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=State)
        except (OSError, msgspec.MsgspecError) as error:
            raise SystemExit(f"{path}: {error}; remove it or name another folder with --state") from None
        if (found.device, found.arch) != (device, arch):
            raise SystemExit(
                f"{path} is of {found.device} ({found.arch}), here is {device} ({arch}): name another folder with "
                "--state"
            )
        return found

    def save(self, path: Path) -> None:
        """Write the file anew, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

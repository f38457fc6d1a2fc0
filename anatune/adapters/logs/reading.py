"""A log of another tuner as trials: what it states is believed and checked, what is not read is counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anatune.adapters.logs import ansor
from anatune.adapters.logs.autotvm import AutoTvmReader
from anatune.adapters.logs.devices import Devices, DeviceStatement
from anatune.adapters.logs.files import OWN, entries_of, format_of, read_log
from anatune.adapters.logs.kernel_tuner import KernelTunerReader
from anatune.adapters.logs.metaschedule import FunctionReader, MetaScheduleReader
from anatune.adapters.logs.parts import DAMAGED, Foreign, ForeignTrial, Line
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, RecordError, SpecError
from anatune.records.traces import Json, UnfitError

_LONGEST = 200
"""Characters of a reason."""
_NAMED_LINES = 3
"""Damaged lines whose numbers are told."""


class _Reader(Protocol):
    """Reads the entries of one log."""

    def device_of(self, entry: Json) -> DeviceStatement | None:
        """Return what an entry says about the device."""

    def read_line(self, entry: Json, hardware: HardwareSpec, workload: Workload | None) -> Line:
        """Read an entry that was measured on a device."""


def read_foreign(
    path: Path,
    hardware: HardwareSpec | None = None,
    workload: Workload | None = None,
    functions: Callable[[], FunctionReader | None] | None = None,
) -> Foreign:
    """Read a log of another tuner.

    Parameters
    ----------
    hardware : GpuSpec or CpuSpec, optional
        The device it was measured on; left out: what each line says. A line that says another device is left out.
    workload : Workload, optional
        What was tuned, likewise.
    functions : callable, optional
        Called for a MetaSchedule database, returns what reads its functions: `function_reader` of
        `anatune.adapters.metaschedule.functions`. Without it only matrix products are known without `workload`.

    Returns
    -------
    Foreign
        What fits the templates; all else by reason. A damaged line costs itself only.

    Raises
    ------
    RecordError
        The file cannot be read, or is none of the known forms.
    SpecError
        A spec of the user's own cannot be read while a device is looked up.
    """
    text = read_log(path)
    kind = format_of(text, path)
    if kind == OWN:
        raise RecordError(f"{path}: is an export of anatune's, expected another tuner's log; import it as it is")
    reader = _reader(kind, text, path, functions)
    devices = Devices(hardware)
    reasons: Counter[str] = Counter()
    damaged: list[int] = []
    trials: list[ForeignTrial] = []
    for number, entry in entries_of(text, kind):
        try:
            line = _read(reader, devices, entry, workload)
        except UnfitError as reason:
            reasons[str(reason)] += 1
            continue
        except SpecError:  # a file of the user's specs, which is no fault of the line
            raise
        except AnatuneError as error:  # a workload or schedule that cannot be
            reasons[str(error)[:_LONGEST]] += 1
            continue
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError):
            damaged.append(number)
            continue
        trial = Trial(line.schedule, line.measurement, number=number - 1, source=kind, threads=line.threads)
        trials.append(ForeignTrial(line.schedule.workload, trial))
    if damaged:
        reasons[_damaged_text(damaged, "entry" if kind == "kernel_tuner" else "line")] = len(damaged)
    return Foreign(kind, trials, dict(reasons))


def _reader(kind: str, text: str, path: Path, functions: Callable[[], FunctionReader | None] | None) -> _Reader:
    if kind == "metaschedule":
        return MetaScheduleReader(path, functions() if functions else None)
    if kind == "kernel_tuner":
        return KernelTunerReader(text)
    if kind == "autotvm":
        return AutoTvmReader(entry for _, entry in entries_of(text, kind))
    return ansor


def _read(reader: _Reader, devices: Devices, entry: Json, workload: Workload | None) -> Line:
    if entry is None:
        raise ValueError("no JSON")
    said = reader.device_of(entry)
    spec = devices.resolve(said)
    line = reader.read_line(entry, spec, workload)
    # tuners of TVM's measure with all cores unless told otherwise
    return line._replace(threads=spec.most_threads) if spec.most_threads else line


def _damaged_text(numbers: list[int], what: str) -> str:
    named = ", ".join(map(str, numbers[:_NAMED_LINES])) + (", ..." if len(numbers) > _NAMED_LINES else "")
    return f"{DAMAGED} ({what} {named})"

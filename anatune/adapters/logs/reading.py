"""Reading a log of another tuner as trials; entries that cannot be read are counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anatune.adapters.logs import ansor
from anatune.adapters.logs.autotvm import AutoTvmReader
from anatune.adapters.logs.devices import DeviceResolver, DeviceStatement
from anatune.adapters.logs.files import OWN, entries_of, format_of, read_log
from anatune.adapters.logs.kernel_tuner import KernelTunerReader
from anatune.adapters.logs.metaschedule import FunctionReader, MetaScheduleReader
from anatune.adapters.logs.parts import DAMAGED, Foreign, ForeignTrial, LogEntry
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, RecordError, SpecError
from anatune.records.traces import Json, UnfitError

_LONGEST = 200
"""The most characters of a reason."""
_NAMED_LINES = 3
"""The number of damaged lines that are listed."""


class _LogReader(Protocol):
    """A reader for the entries of one log."""

    def device_of(self, entry: Json) -> DeviceStatement | None:
        """Return the device that an entry states."""

    def read_line(self, entry: Json, hardware: HardwareSpec, workload: Workload | None) -> LogEntry:
        """Read an entry that was measured on this device."""


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
        The device of the measurements. By default it is the device that each line states. A line with another device
        is left out.
    workload : Workload, optional
        The tuned workload. By default it is that of each line. A line with another workload is left out.
    functions : callable, optional
        Called for a MetaSchedule database to get the reader of its functions, such as `function_reader` of
        `anatune.adapters.metaschedule.functions`. Without it and without `workload`, only matrix products are known.

    Returns
    -------
    Foreign
        The trials that a template can express, and the other entries by reason. Damage affects single lines only.

    Raises
    ------
    RecordError
        The file cannot be read, or its format is unknown.
    SpecError
        One of the user's specs cannot be read while a device is looked up.
    """
    text = read_log(path)
    kind = format_of(text, path)
    if kind == OWN:
        raise RecordError(f"{path} is an export of anatune, expected another tuner's log; import it as it is")
    reader = _make_reader(kind, text, path, functions)
    devices = DeviceResolver(hardware)
    reasons: Counter[str] = Counter()
    damaged: list[int] = []
    trials: list[ForeignTrial] = []
    for number, entry in entries_of(text, kind):
        try:
            line = _read_entry(reader, devices, entry, workload)
        except UnfitError as reason:
            reasons[str(reason)] += 1
            continue
        except SpecError:  # a spec of the user is wrong, not the line
            raise
        except AnatuneError as error:  # the workload or schedule is impossible
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


def _make_reader(kind: str, text: str, path: Path, functions: Callable[[], FunctionReader | None] | None) -> _LogReader:
    if kind == "metaschedule":
        return MetaScheduleReader(path, functions() if functions else None)
    if kind == "kernel_tuner":
        return KernelTunerReader(text)
    if kind == "autotvm":
        return AutoTvmReader(entry for _, entry in entries_of(text, kind))
    return ansor


def _read_entry(reader: _LogReader, devices: DeviceResolver, entry: Json, workload: Workload | None) -> LogEntry:
    if entry is None:
        raise ValueError("not JSON")
    statement = reader.device_of(entry)
    spec = devices.resolve(statement)
    line = reader.read_line(entry, spec, workload)
    # TVM's tuners measure with all cores by default
    return line._replace(threads=spec.most_threads) if spec.most_threads else line


def _damaged_text(numbers: list[int], what: str) -> str:
    named = ", ".join(map(str, numbers[:_NAMED_LINES])) + (", ..." if len(numbers) > _NAMED_LINES else "")
    return f"{DAMAGED} ({what} {named})"

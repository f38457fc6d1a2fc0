"""Builds what requests ask for, one at a time: a process for each kind of device and limits."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import AnatuneError, RunError
from anatune.files import scratch_folder
from anatune.measure.cluster.messages import BuildRequest, Built
from anatune.measure.cluster.packing import pack
from anatune.measure.run.build_processes import BuildJob, BuildProcesses
from anatune.measure.run.measurer import Entries
from anatune.named import resolve

__all__ = ["Builder", "entries_of", "line_of"]

_ENTRIES = {"cpu": "anatune.measure.cpu.measurer:CPU_ENTRIES", "gpu": "anatune.measure.cuda.measurer:GPU_ENTRIES"}

_MOST_KEPT = 2
"""Processes that stay: sessions of two kinds take turns without starting new ones."""


def entries_of(hardware: CpuSpec | GpuSpec) -> Entries:
    """Return what processes run for a kind of device."""
    entries: Entries = resolve(_ENTRIES[hardware.kind])
    return entries


class Builder:
    """Builds one schedule at a time in processes that live until `close`, or until the thread that builds ends.

    Parameters
    ----------
    folder : Path, optional
        For temporary files, made when it is needed; by default the system's.
    cores : sequence of int
        Logical CPUs; empty: any.
    entries : callable
        Hardware -> what processes run.
    """

    def __init__(
        self,
        folder: Path | None = None,
        cores: Sequence[int] = (),
        entries: Callable[[CpuSpec | GpuSpec], Entries] = entries_of,
    ) -> None:
        self._folder, self._cores, self._entries = folder, cores, entries
        self._processes: OrderedDict[object, BuildProcesses] = OrderedDict()
        self._numbers = itertools.count()

    def build(self, request: BuildRequest) -> Built:
        """Build a schedule, or the reference kernel; whatever goes wrong is in the answer."""
        started = time.monotonic()
        folder: Path | None = None
        try:
            if self._folder is None:
                folder = scratch_folder(RunError)
            else:
                folder = self._folder / str(next(self._numbers))
                folder.mkdir(parents=True)
            processes = self._processes_for(request)
            if request.schedule is None:
                processes.begin_reference(self._entries(request.hardware).reference, request.hardware, folder)
                artifact: object = processes.reference()
            else:
                job = next(iter(processes.finish([BuildJob(request.schedule, folder)])))
                if job.measurement is not None:
                    return Built(failure=msgspec.structs.replace(job.measurement, build_s=job.build_s))
                artifact = job.artifact
            return Built(pack(artifact, request.hardware.kind), build_s=time.monotonic() - started)
        except (AnatuneError, OSError) as error:
            return Built(trouble=line_of(error))
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _processes_for(self, request: BuildRequest) -> BuildProcesses:
        entries = self._entries(request.hardware)
        key = (entries, request.limits, request.threads)
        if key in self._processes:
            self._processes.move_to_end(key)
            return self._processes[key]
        while len(self._processes) >= _MOST_KEPT:
            self._processes.popitem(last=False)[1].kill()
        self._processes[key] = made = BuildProcesses(
            entries.builder,
            1,
            request.limits,
            threads=request.threads,
            cores=self._cores,
            environment={} if self._folder is None else {"TMPDIR": str(self._folder)},
            setup=entries.builder_setup,
        )
        return made

    def close(self) -> None:
        """End the processes."""
        for processes in [*self._processes.values()]:
            processes.kill()


def line_of(error: Exception) -> str:
    """Return what an error says, in one line; of the system's, without the path."""
    if isinstance(error, OSError):
        return f"its disk: {error.strerror or error}; free some space there"
    return " ".join(str(error).split())

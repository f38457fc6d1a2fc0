"""Measuring schedules on this machine's CPU."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, SpaceError
from anatune.measure.cpu.cold import cold_bytes
from anatune.measure.run.build_processes import Limits
from anatune.measure.run.measurer import Entries, Measurer
from anatune.measure.run.process import Worker
from anatune.measure.run.timing import CPU_PROTOCOL, TimingProtocol

__all__ = ["CPU_ENTRIES", "CpuMeasurer"]

CPU_ENTRIES = Entries(
    builder="anatune.codegen.cpu.lower:build_schedule",
    reference="anatune.codegen.cpu.probes:build_reference",
    session="anatune.measure.cpu.runner:CpuSession",
)


class CpuMeasurer(Measurer):
    """Builds, checks and times schedules of one workload on this machine's CPU; see `Measurer`.

    Parameters
    ----------
    hardware
        A CPU: this one.
    threads : int
        Threads that kernels run with (TVM_NUM_THREADS of the runner).
    cold : {"l3", "dram"}, optional
        Where constant operands, weights, come from in every run, as they do in a model that reads those of all its
        kernels between two runs of one. None: from where the run before left them.

    Raises
    ------
    DeviceError
        The hardware is no CPU.
    SpaceError
        No such number of threads, or no such `cold` on this CPU.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        threads: int = 1,
        limits: Limits | None = None,
        seed: int = 0,
        protocol: TimingProtocol | None = None,
        cold: str | None = None,
        entries: Entries = CPU_ENTRIES,
    ) -> None:
        if not isinstance(hardware, CpuSpec):
            raise DeviceError(f"{hardware.name} is no CPU, and only CPUs can be measured; use anatune.hardware('host')")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise SpaceError(f"threads is {threads!r}, expected an integer >= 1")
        super().__init__(
            workload,
            hardware,
            threads=threads,
            limits=limits,
            seed=seed,
            protocol=protocol or CPU_PROTOCOL,
            entries=entries,
            options={"threads": threads, "cold_bytes": cold_bytes(hardware, cold)},
        )

    def _make_runner(self, environment: Mapping[str, str]) -> Worker:
        cores, limits = self._cores, self.limits
        own = 48 * sum(access.num_elements for access in self.workload.tensors)  # copies, packed ones, float64 values
        own += int(str(self._options["cold_bytes"]))
        environment = {**environment, "TVM_NUM_THREADS": str(self.threads)}
        if len(cores.runner) == self.threads and cores.overlap:
            environment["TVM_BIND_THREADS"] = "0"  # the process is pinned to exactly as many cores
        return Worker(
            "runner",
            memory_bytes=limits.memory_bytes + own,
            cores=cores.runner,
            environment=environment,
            setup=("anatune.measure.cpu.runner:import_first", {}),
            setup_s=limits.start_s,
        )

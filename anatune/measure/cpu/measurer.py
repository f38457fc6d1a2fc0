"""Measuring schedules on this machine's CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from anatune.arguments import check_integer
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError
from anatune.measure.cpu.cold import cold_bytes
from anatune.measure.run.measurer import Entries, Measurer, MeasurerSettings
from anatune.measure.run.process import Worker
from anatune.measure.run.timing import CPU_PROTOCOL

if TYPE_CHECKING:
    from typing import Unpack

CPU_ENTRIES = Entries(
    builder="anatune.codegen.cpu.lower:build_schedule",
    reference="anatune.codegen.cpu.probes:build_reference",
    session="anatune.measure.cpu.runner:CpuSession",
)


class CpuMeasurer(Measurer):
    """A measurer for this machine's CPU, see `Measurer`.

    Parameters
    ----------
    hardware
        The spec of this machine's CPU.
    cold : {"l3", "dram"}, optional
        The level of memory from which constant operands (weights) are read in every run, as in a network, which reads
        the weights of all other kernels between two runs of one. None: they stay where the previous run left them.
    settings
        See `MeasurerSettings`; kernels run with ``threads`` threads (TVM_NUM_THREADS of the runner).

    Raises
    ------
    DeviceError
        The hardware is no CPU.
    SpaceError
        The CPU does not have that number of threads, or that level for `cold`.
    """

    usual_entries, usual_protocol = CPU_ENTRIES, CPU_PROTOCOL

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        cold: str | None = None,
        **settings: Unpack[MeasurerSettings],
    ) -> None:
        if hardware.kind != "cpu":
            raise DeviceError(f"{hardware.name} is no CPU, but this measurer is for CPUs; use anatune.hardware('host')")
        settings["threads"] = threads = check_integer("threads", settings.get("threads", 1), 1)
        options = {"threads": threads, "cold_bytes": cold_bytes(hardware, cold)}
        super().__init__(workload, hardware, options, **settings)

    def _make_runner(self, environment: Mapping[str, str]) -> Worker:
        cores, limits = self._cores, self.limits
        extra_bytes = 48 * sum(
            access.num_elements for access in self.workload.tensors
        )  # copies, packed ones, float64 values
        extra_bytes += int(str(self._options["cold_bytes"]))
        environment = {**environment, "TVM_NUM_THREADS": str(self.threads)}
        if len(cores.runner) == self.threads and cores.overlap:
            environment["TVM_BIND_THREADS"] = "0"  # the process is pinned to exactly as many cores
        return Worker(
            "runner",
            memory_bytes=limits.memory_bytes + extra_bytes,
            cores=cores.runner,
            environment=environment,
            setup=("anatune.measure.cpu.runner:import_first", {}),
            setup_s=limits.start_s,
        )

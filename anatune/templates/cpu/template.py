"""The base class of templates for CPUs: "cpu", "fp16_accumulation", "amx", "winograd" and "scaled"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from anatune.core.hardware.spec import CpuSpec
from anatune.templates.base.template import TemplateOf

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from anatune.templates.cpu.program.program import CpuProgram

__all__ = ["CpuTemplate"]


class CpuTemplate(TemplateOf[CpuSpec]):
    """A template for CPUs, whose programs are loops with microkernels."""

    kind: ClassVar[str] = "cpu"

    def program(self, schedule: Schedule, **how: Any) -> CpuProgram:
        """Return the program of a schedule; ``threads``, ``prepacked``, ``prefix``: see `cpu.program.program`."""
        program: CpuProgram = self._import("program.program:program_of")(schedule, **how)
        return program

    def streaming_s(self, hardware: CpuSpec, num_bytes: int, flop: int = 0) -> float:
        """Return the seconds of a call that has no schedule to choose: it reads and writes its tensors once.

        It is the time of the bytes or of the arithmetic, whichever is longer, and the call itself. The tensors are
        assumed to be in the smallest cache that holds all of them, because the kernels before have just used them.

        Parameters
        ----------
        hardware : CpuSpec
            The CPU, with the cores that share the work.
        num_bytes : int
            Bytes read and written.
        flop : int
            float32 operations on vectors.
        """
        compute = hardware.compute
        cores = compute.num_cores
        levels = [level for level in (hardware.l2, hardware.l3) if level is not None]
        rate = min(hardware.dram.bandwidth_bytes_per_s, cores * hardware.dram.core_bandwidth_bytes_per_s)
        for level in reversed(levels):
            if num_bytes <= level.size_bytes * max(1, cores // level.shared_by_cores):
                rate = cores * level.bandwidth_bytes_per_cycle * compute.clock_hz
        arithmetic_s = flop / (hardware.peak_flop_per_s("float32") * compute.reachable_fraction)
        call_s = hardware.launch.function_call_s if hardware.launch is not None else 0.0
        return max(num_bytes / rate, arithmetic_s) + call_s

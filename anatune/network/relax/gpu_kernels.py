"""anatune's GPU kernels as functions of a Relax module: a cubin each, and a host function that launches it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from anatune.codegen.compat import DevicePart, TvmObject
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.lower import make_named_kernel
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script, buffer_type, open_function
from anatune.network.relax.kernels import ModelKernel, kernel_function
from anatune.templates.gpu.kernel import CudaKernel

__all__ = ["GpuModelKernel", "gpu_kernels"]


@dataclass(frozen=True)
class GpuModelKernel(ModelKernel):
    """One kernel of a model for a GPU; `function` launches it.

    Attributes
    ----------
    kernel : CudaKernel
        Its CUDA C source.
    part : DevicePart
        Its device part as TVM's.
    cubin : Cubin
    """

    kernel: CudaKernel
    part: DevicePart
    cubin: Cubin

    @property
    def workspace(self) -> Buffer | None:
        """Memory that the kernel needs besides its operands."""
        return self.kernel.workspace

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.kernel.block

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block in bytes, as the compiler reported it."""
        return self.facts.shared_bytes

    @property
    def facts(self) -> CompilerFacts:
        """The facts that the compiler reported."""
        return self.cubin.facts.with_dynamic(self.kernel.dynamic_shared_bytes)


def gpu_kernels(schedules: Mapping[str, Schedule], workers: int) -> dict[str, GpuModelKernel]:
    """Return kernels by name, compiled on `workers` cores; schedules with the same program are compiled once.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        See `codegen.cuda.lower.cuda_kernel` and `codegen.cuda.build_cache.compile_kernel`.
    """
    pool = ThreadPoolExecutor(workers)  # NVRTC takes the time, and releases the GIL
    try:
        written = {name: make_named_kernel(schedule, f"anatune_{schedule.key}") for name, schedule in schedules.items()}
        cubins = {name: pool.submit(compile_kernel, kernel) for name, (kernel, _) in written.items()}
        return {
            name: GpuModelKernel(
                name, _launcher(name, schedules[name], kernel), {}, kernel, part, cubins[name].result()
            )
            for name, (kernel, part) in written.items()
        }
    finally:
        pool.shutdown(cancel_futures=True)


def _launcher(name: str, schedule: Schedule, kernel: CudaKernel) -> TvmObject:
    """Return a host function of operands, result and workspace that launches the kernels."""
    text = Script()
    tensors = [Buffer.of(operand) for operand in (*schedule.workload.operands, schedule.workload.write)]
    tensors += [] if kernel.workspace is None else [kernel.workspace]
    open_function(text, "main", [(tensor.tensor, buffer_type(tensor.shape, tensor.dtype)) for tensor in tensors])
    for launch in kernel.launches:
        size = [launch.grid, launch.block]
        if launch.dynamic_shared_bytes:
            size.append(launch.dynamic_shared_bytes)
        arguments = [f'"{launch.name}"', *(f"{buffer.tensor}.data" for buffer in launch.parameters), *map(str, size)]
        text.line(f"T.evaluate(T.call_packed({', '.join(arguments)}))")
    return kernel_function(str(text), "", name, schedule.key).with_attr("tirx.is_scheduled", True)

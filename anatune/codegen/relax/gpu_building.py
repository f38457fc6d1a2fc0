"""Relax modules with anatune's kernels for a GPU, compiled without one: TVM's own passes and schedules for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from anatune.codegen.compat import TVM_ERRORS, TvmObject, import_tvm, last_line
from anatune.codegen.cuda.device_modules import Cubins
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.extremes import register_pipeline
from anatune.codegen.relax.gpu_kernels import GpuModelKernel
from anatune.codegen.relax.writing import WrittenModel
from anatune.errors import BuildError

__all__ = ["BuiltForGpu", "built_for_gpu"]


class BuiltForGpu(NamedTuple):
    """An executable, and the cubins that its library takes once it is written.

    Attributes
    ----------
    executable : tvm.runtime.Executable
    cubins : Cubins
        `Cubins.embed` finishes the library.
    """

    executable: TvmObject
    cubins: Cubins

    @property
    def others(self) -> list[tuple[str, Cubin]]:
        """CUDA C that TVM wrote for what anatune has no kernels for, and its cubin."""
        return self.cubins.compiled


def built_for_gpu(model: WrittenModel, kernels: Iterable[GpuModelKernel], target: TvmObject, arch: str) -> BuiltForGpu:
    """Return the executable of a written model.

    Parameters
    ----------
    kernels
        Those that its functions launch.
    target : tvm.target.Target
        CUDA, with a host.
    arch : str
        "sm_86".

    Raises
    ------
    BuildError
        TVM has no code for an operator, or NVRTC refuses what it wrote; the message is the last line of theirs.
    """
    tvm = import_tvm()
    from tvm import relax

    cubins = Cubins(arch)
    modules = {one.kernel.name: cubins.module(one.part, one.cubin) for one in kernels}
    module = model.module.with_attr("external_mods", list(modules.values()))
    try:
        with cubins.building():
            executable = relax.build(
                module,
                target,
                relax_pipeline=_passes(target),
                tir_pipeline=register_pipeline(tvm),
                exec_mode="bytecode",
            )
    except TVM_ERRORS as error:
        raise BuildError(f"TVM cannot compile the model for {arch}: {last_line(error)}") from None
    return BuiltForGpu(executable, cubins)


def _passes(target: TvmObject) -> TvmObject:
    """Return TVM's own passes for a GPU, its schedules among them, without the functions that become views."""
    tvm = import_tvm()
    from tvm.relax.backend.cuda import pipeline

    stages = (pipeline.library_dispatch_passes, pipeline.legalize_passes, pipeline.dataflow_lower_passes)
    passes = [one for stage in stages for one in stage(target)]
    unused = tvm.relax.transform.DeadCodeElimination()
    return tvm.transform.Sequential([*passes, unused, *pipeline.finalize_passes(target)])

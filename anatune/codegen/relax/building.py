"""Relax modules with anatune's kernels, compiled: TVM's passes for everything else, one library for all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.compat import TVM_ERRORS, TvmObject, compile_module, import_tvm, last_line, link_library
from anatune.codegen.cuda.device_modules import Cubins
from anatune.codegen.extremes import register_pipeline
from anatune.codegen.relax.gpu_kernels import GpuModelKernel
from anatune.codegen.relax.kernels import Packer
from anatune.codegen.relax.rest.schedule import LEGALISED, scheduled, with_gathers
from anatune.codegen.relax.writing import WrittenModel
from anatune.errors import BuildError

__all__ = ["Built", "built", "built_for_gpu", "lowered", "packing_library"]


class Built(NamedTuple):
    """An executable that is no file yet.

    Attributes
    ----------
    executable : tvm.runtime.Executable
    unscheduled : tuple of str
        Functions that TVM wrote and nothing could schedule.
    cubins : Cubins, optional
        Of a GPU's kernels, anatune's and TVM's.
    """

    executable: TvmObject
    unscheduled: tuple[str, ...] = ()
    cubins: Cubins | None = None

    def link(self, path: Path) -> None:
        """Write it as a shared library; errors as `link_library` and `Cubins.embed`."""
        link_library(self.executable, path)
        if self.cubins is not None:
            self.cubins.embed(path)


def built(model: WrittenModel, target: TvmObject, threads: int) -> Built:
    """Return the executable of a written model.

    Raises
    ------
    BuildError
        TVM has no code for an operator, or refuses the program; the message is the last line of its own.
    """
    tvm = import_tvm()
    from tvm import relax

    module = None
    try:
        module, plain = lowered(model.module, target, threads)
        pipelines = {"relax_pipeline": None, "tir_pipeline": register_pipeline(tvm)}
        return Built(relax.build(module, target, exec_mode="bytecode", **pipelines), plain)
    except TVM_ERRORS as error:
        what = ", ".join(_refused(module, target)) or "the model"
        raise BuildError(f"TVM cannot compile {what}: {last_line(error)}") from error


def _refused(module: TvmObject, target: TvmObject) -> list[str]:
    """Return the functions of a module that TVM has no code for: their names are the operators'."""
    refused = []
    for name, function in module.functions_items() if module is not None else ():
        if type(function).__name__ == "PrimFunc":
            try:
                compile_module(import_tvm().IRModule({"main": function}), target)
            except TVM_ERRORS:
                refused.append(str(name.name_hint))
    return refused


def lowered(module: TvmObject, target: TvmObject, threads: int) -> tuple[TvmObject, tuple[str, ...]]:
    """Return a Relax module that `relax.build` makes code of without passes, and what nothing could schedule.

    Errors are TVM's.
    """
    tvm = import_tvm()
    from tvm import relax

    passes = relax.transform
    fusing = tvm.transform.Sequential(
        [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            passes.LegalizeOps(LEGALISED),
            passes.AnnotateTIROpPattern(),
            tvm.transform.module_pass(lambda module, _: with_gathers(module), opt_level=0, name="Gathers"),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
    )
    lowering = tvm.transform.Sequential(
        [
            passes.RewriteDataflowReshape(),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )
    with target:
        module, plain = scheduled(fusing(module), threads)
        return lowering(module), plain


def built_for_gpu(model: WrittenModel, kernels: Iterable[GpuModelKernel], target: TvmObject, arch: str) -> Built:
    """Return the executable of a written model for a GPU: TVM's own passes and schedules for the rest.

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
    modules = {kernel.kernel.name: cubins.module(kernel.part, kernel.cubin) for kernel in kernels}
    module = model.module.with_attr("external_mods", list(modules.values()))
    try:
        with cubins.building():
            executable = relax.build(
                module,
                target,
                relax_pipeline=_gpu_passes(target),
                tir_pipeline=register_pipeline(tvm),
                exec_mode="bytecode",
            )
    except TVM_ERRORS as error:
        raise BuildError(f"TVM cannot compile the model for {arch}: {last_line(error)}") from None
    return Built(executable, cubins=cubins)


def _gpu_passes(target: TvmObject) -> TvmObject:
    """Return TVM's own passes for a GPU, its schedules among them, without the functions that become views."""
    tvm = import_tvm()
    from tvm.relax.backend.cuda import pipeline

    legalised = tvm.relax.transform.LegalizeOps(LEGALISED)
    dispatched = pipeline.library_dispatch_passes(target)
    passes = [*dispatched, legalised, *pipeline.legalize_passes(target), *pipeline.dataflow_lower_passes(target)]
    unused = tvm.relax.transform.DeadCodeElimination()
    return tvm.transform.Sequential([*passes, unused, *pipeline.finalize_passes(target)])


def packing_library(packers: Iterable[Packer], target: TvmObject) -> TvmObject:
    """Return a library with packing functions, each once; None: there are none.

    Raises
    ------
    BuildError
        TVM refuses one.
    """
    tvm = import_tvm()
    functions = {packer.name: packer.function for packer in packers}
    return compile_module(tvm.IRModule(functions), target) if functions else None

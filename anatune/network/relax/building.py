"""Build libraries from Relax modules: anatune's kernels, and TVM's code for everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from anatune.codegen.compat import TVM_ERRORS, TvmObject, find_triple, import_tvm, last_line
from anatune.codegen.extremes import register_pipeline
from anatune.codegen.linking import link_library
from anatune.errors import BuildError
from anatune.network.relax.objects import compile_objects
from anatune.network.relax.rest.legalising import LEGALISED
from anatune.network.relax.rest.schedule import mark_gathers, schedule_module
from anatune.network.relax.writing import WrittenModel

if TYPE_CHECKING:
    from anatune.codegen.cuda.device_modules import Cubins
    from anatune.network.relax.gpu_kernels import GpuModelKernel

__all__ = ["ModelLibrary", "build_gpu_library", "build_library", "fuse_operators", "lower_module", "split_module"]


class ModelLibrary(NamedTuple):
    """An executable that is not linked yet.

    Attributes
    ----------
    executable : tvm.runtime.Executable
    unscheduled : tuple of str
        Functions without a schedule, as TVM wrote them.
    cubins : Cubins, optional
        Machine code of a GPU's kernels, anatune's and TVM's.
    aliases, triple
        As `link_library` takes them.
    """

    executable: TvmObject
    unscheduled: tuple[str, ...] = ()
    cubins: Cubins | None = None
    aliases: Mapping[str, str] = MappingProxyType({})
    triple: str = ""

    def link(self, path: Path) -> None:
        """Link the executable as a shared library; errors as `link_library` and `Cubins.embed`."""
        link_library(self.executable, path, self.aliases, self.triple)
        if self.cubins is not None:
            self.cubins.embed(path)


def build_library(model: WrittenModel, target: TvmObject, threads: int) -> ModelLibrary:
    """Build the executable of a written model.

    Raises
    ------
    BuildError
        TVM cannot compile an operator, or refuses the program; the message is the last line of TVM's.
    """
    from tvm import relax

    try:
        module, unscheduled = lower_module(model.module, target, threads)
        rest, functions = split_module(module)
        executable = relax.build(rest, target, relax_pipeline=None, exec_mode="bytecode")
    except TVM_ERRORS as error:
        raise BuildError(f"TVM cannot compile the model: {last_line(error)}") from error
    objects = compile_objects(functions, target)
    for part in objects.modules():
        executable.mod.import_module(part)
    return ModelLibrary(executable, unscheduled, aliases=objects.aliases, triple=find_triple(target))


def split_module(module: TvmObject) -> tuple[TvmObject, dict[str, TvmObject]]:
    """Return a module of the Relax functions, and the loop functions by name."""
    tvm = import_tvm()
    items = list(module.functions_items())
    loops = {str(name.name_hint): one for name, one in items if isinstance(one, tvm.tirx.PrimFunc)}
    return tvm.IRModule({name: one for name, one in items if name.name_hint not in loops}), loops


def lower_module(module: TvmObject, target: TvmObject, threads: int) -> tuple[TvmObject, tuple[str, ...]]:
    """Lower a Relax module so that `relax.build` needs no passes; also return the functions without a schedule.

    Errors are TVM's.
    """
    tvm = import_tvm()
    from tvm import relax

    passes = relax.transform
    lowering = tvm.transform.Sequential(
        [
            passes.RewriteDataflowReshape(),
            passes.DeadCodeElimination(),  # functions that have become views
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
        module, unscheduled = schedule_module(fuse_operators(module), threads)
        return lowering(module), unscheduled


def fuse_operators(module: TvmObject) -> TvmObject:
    """Return a Relax module whose operators are loop functions, fused where each reads the one before it.

    Errors are TVM's.
    """
    tvm = import_tvm()
    from tvm import relax

    passes = relax.transform
    fusing = tvm.transform.Sequential(
        [
            relax.backend.DispatchSampling(),
            passes.LegalizeOps(LEGALISED),  # sorts and running sums, too, which the next one has for GPUs
            relax.backend.DispatchSortScan(),
            passes.AnnotateTIROpPattern(),
            tvm.transform.module_pass(lambda module, _: mark_gathers(module), opt_level=0, name="Gathers"),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
    )
    return fusing(module)


def build_gpu_library(
    model: WrittenModel, kernels: Iterable[GpuModelKernel], target: TvmObject, arch: str
) -> ModelLibrary:
    """Build the executable of a written model for a GPU, with TVM's own passes and schedules for the rest.

    Parameters
    ----------
    kernels
        The kernels that its functions launch.
    target : tvm.target.Target
        A CUDA target with a host.
    arch : str
        Architecture, such as "sm_86".

    Raises
    ------
    BuildError
        TVM cannot compile an operator, or NVRTC refuses its code; the message is the last line of theirs.
    """
    tvm = import_tvm()
    from tvm import relax

    from anatune.codegen.cuda.device_modules import Cubins

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
    return ModelLibrary(executable, cubins=cubins)


def _gpu_passes(target: TvmObject) -> TvmObject:
    """Return TVM's passes for a GPU with its schedules, without the functions that become views."""
    tvm = import_tvm()
    from tvm.relax.backend.cuda import pipeline

    legalised = tvm.relax.transform.LegalizeOps(LEGALISED)
    dispatched = pipeline.library_dispatch_passes(target)
    passes = [*dispatched, legalised, *pipeline.legalize_passes(target), *pipeline.dataflow_lower_passes(target)]
    unused = tvm.relax.transform.DeadCodeElimination()
    return tvm.transform.Sequential([*passes, unused, *pipeline.finalize_passes(target)])

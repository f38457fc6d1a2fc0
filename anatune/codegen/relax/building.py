"""Relax modules with anatune's kernels, compiled: TVM's passes for everything else, one library for all."""

from __future__ import annotations

from collections.abc import Iterable

from anatune.codegen.compat import TVM_ERRORS, TvmObject, compile_module, import_tvm, last_line
from anatune.codegen.relax.kernels import ModelKernel
from anatune.codegen.relax.rest import scheduled
from anatune.codegen.relax.writing import WrittenModel
from anatune.errors import BuildError

__all__ = ["built", "lowered", "packing_library"]


def built(model: WrittenModel, target: TvmObject, threads: int) -> tuple[TvmObject, tuple[str, ...]]:
    """Return the executable of a written model, and the functions that TVM wrote and nothing could schedule.

    Raises
    ------
    BuildError
        TVM has no code for an operator, or refuses the program; the message is the last line of its own.
    """
    import_tvm()
    from tvm import relax

    try:
        module, plain = lowered(model.module, target, threads)
        return relax.build(module, target, relax_pipeline=None, exec_mode="bytecode"), plain
    except TVM_ERRORS as error:
        raise BuildError(f"TVM cannot compile the model: {last_line(error)}") from None


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
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
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


def packing_library(kernels: Iterable[ModelKernel], target: TvmObject) -> TvmObject:
    """Return a library with the packing functions of all kernels, ``<kernel>_pack_<tensor>``; None: there are none.

    Raises
    ------
    BuildError
        TVM refuses one.
    """
    tvm = import_tvm()
    functions = {
        f"{kernel.name}_pack_{tensor}": packer.function
        for kernel in kernels
        for tensor, packer in kernel.packers.items()
    }
    return compile_module(tvm.IRModule(functions), target) if functions else None

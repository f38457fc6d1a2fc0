"""Relax modules with anatune's kernels, compiled: TVM's passes for everything else, one library for all."""

from __future__ import annotations

from collections.abc import Iterable

from anatune.codegen.compat import TVM_ERRORS, TvmObject, compile_module, import_tvm, last_line
from anatune.codegen.extremes import register_pipeline
from anatune.codegen.relax.kernels import Packer
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
    tvm = import_tvm()
    from tvm import relax

    module = None
    try:
        module, plain = lowered(model.module, target, threads)
        pipelines = {"relax_pipeline": None, "tir_pipeline": register_pipeline(tvm)}
        return relax.build(module, target, exec_mode="bytecode", **pipelines), plain
    except TVM_ERRORS as error:
        what = ", ".join(_refused(module, target)) or "the model"
        raise BuildError(f"TVM cannot compile {what}: {last_line(error)}") from error


def _refused(module: TvmObject, target: TvmObject) -> list[str]:
    """Return the functions of a module that TVM has no code for: their names are the operators'."""
    found = []
    for name, function in module.functions_items() if module is not None else ():
        if type(function).__name__ == "PrimFunc":
            try:
                compile_module(import_tvm().IRModule({"main": function}), target)
            except TVM_ERRORS:
                found.append(str(name.name_hint))
    return found


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

"""The passes of ``anatune.compile`` as Relax's pipeline "anatune", which importing this module registers.

    from anatune.adapters import relax
    executable = tvm.relax.build(module, relax.target(), relax_pipeline="anatune")  # or relax.pipeline(threads=1)

Weights that are constants of the module are packed once and stay constants; weights that are arguments are packed in
every call. Relax functions other than ``main`` are refused. The loops leave the pipeline as machine code in the
attribute "external_mods", because anatune runs its own passes on them after TVM's (`codegen.extremes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from anatune.codegen.compat import lacks_feature
from anatune.codegen.extremes import register_pipeline
from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.errors import BuildError, WorkloadError
from anatune.measure.named_hardware import HardwareLike
from anatune.named import import_optional
from anatune.network.compiling.memory import views
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.targets.cpu import CpuTarget, require_cpu
from anatune.network.compiling.weights import pack_weights
from anatune.network.relax.building import lower_module, split_module
from anatune.network.relax.reading import graph_of
from anatune.network.relax.writing import Weight, write_model
from anatune.untyped import ir, tvm

__all__ = ["pipeline", "target"]


def target(hw: HardwareLike = "host", threads: int | None = None) -> tvm.target.Target:
    """Return the TVM target to build for. Parameters and errors are those of `pipeline`."""
    return CpuTarget(require_cpu(hw), CompileRequest(threads=threads)).target


def pipeline(hw: HardwareLike = "host", threads: int | None = None, accuracy: str = STANDARD) -> tvm.transform.Pass:
    """Return a TVM pass that turns a Relax module into a module for `tvm.relax.build`.

    Parameters
    ----------
    hw, threads, accuracy
        As `anatune.compile`.

    Raises
    ------
    SpaceError, RunError
        As `anatune.compile`. TVM turns errors of the pass into a RuntimeError with the same text.
    """
    tvm = import_optional("tvm", "tvm", "the pipeline anatune.adapters.relax")
    accuracy = validate_accuracy("pipeline: accuracy", accuracy)
    device, request = require_cpu(hw), CompileRequest(threads=threads, accuracy=accuracy)
    CpuTarget(device, request)  # refuses wrong options early

    def transform(module: ir.IRModule, _context: ir.transform.PassContext) -> ir.IRModule:
        current_target = tvm.target.Target.current(allow_none=True)
        if current_target is not None and (lacking := lacks_feature(current_target, device)):
            raise BuildError(  # LLVM would end the process
                f"pipeline: the target {current_target} lacks {lacking}, which the kernels for {device.name} use; "
                "build for anatune.adapters.relax.target()"
            )
        others = [
            str(name.name_hint)
            for name, function in module.functions.items()
            if isinstance(function, tvm.relax.Function) and name.name_hint != "main"
        ]
        if others:
            raise WorkloadError(f"pipeline: the module has the function {others[0]}, expected only main")
        cpu = CpuTarget(device, request)  # each module has a planner of its own
        planned = cpu.plan(graph_of(module))

        def make_constants(weights: Sequence[Weight]) -> list[object]:
            memory, places = pack_weights(weights, cpu.target)
            return [tvm.runtime.tensor(weight) for weight in views(memory, places)]

        model = write_model(planned.graph, cpu.kernels(planned), make_constants).module
        rest, loops = split_module(lower_module(model, cpu.target, cpu.threads)[0])
        code = tvm.tirx.build(tvm.IRModule(loops), current_target or cpu.target, pipeline=register_pipeline(tvm))
        return rest.with_attr("external_mods", [code])

    return tvm.transform.module_pass(transform, opt_level=0, name="anatune")


import_optional("tvm.relax", "tvm", "the pipeline anatune.adapters.relax").register_pipeline("anatune")(pipeline)

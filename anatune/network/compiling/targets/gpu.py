"""Compile whole models for an NVIDIA GPU, which need not be present.

Products and convolutions get anatune's kernels, everything else TVM's own schedules; all are compiled to cubins.
Weights go to the GPU when a model is loaded there. Outputs are compared with the original's if such a GPU is present;
otherwise the emulator can run each kernel.
"""

from __future__ import annotations

from anatune import api
from anatune.codegen.compat import make_gpu_target
from anatune.codegen.cuda.artifact import check_resources
from anatune.codegen.cuda.nvrtc import check_arch
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import DeviceError, RunError, SpaceError
from anatune.model.learned.corrections import NONE
from anatune.network.compiling.checking import check_outputs
from anatune.network.compiling.planning import PlannedKernel
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.targets.base import Checks, Code, ModelBuild, ModelTarget, PlannedModel, emulated_error
from anatune.network.compiling.targets.gpu_planning import apply_records, choose_graph, lay_out_both_orders, predict
from anatune.network.graph.integers.scaled import has_integers
from anatune.network.graph.nodes import HALVES, Graph
from anatune.network.graph.passes.precision import precision_of
from anatune.network.relax.building import build_gpu_library
from anatune.network.relax.frontends import ImportedModel
from anatune.network.relax.gpu_kernels import GpuModelKernel, gpu_kernels
from anatune.network.relax.machine import check_gpu
from anatune.network.relax.writing import write_model
from anatune.records.place import record_place
from anatune.tuning.machine import usable_cores

__all__ = ["GpuTarget"]

_CANDIDATES = 8
"""Schedules that are compiled if the first choice spills registers, or exceeds the device's resources."""
_ADVICE = "anatune.verify checks each kernel's schedule in the emulator"


class GpuTarget(ModelTarget):
    """An NVIDIA GPU, which need not be present; see `ModelTarget`.

    Raises
    ------
    SpaceError
        `threads` is given.
    DeviceError
        `trials` is given.
    BuildError
        The GPU is not NVIDIA's, or NVRTC does not know its architecture.
    """

    hardware: GpuSpec
    reads_float32 = False
    keeps_state = False

    def __init__(self, hardware: GpuSpec, request: CompileRequest) -> None:
        if request.threads is not None:
            raise SpaceError(f"compile: threads is for CPUs, and {hardware.name} is a GPU; leave it out")
        if request.trials:
            raise DeviceError(
                f"compile: it does not measure kernels for {hardware.name}; run `anatune tune` on that GPU to write "
                "a record file, then compile with it (--records) and without trials"
            )
        super().__init__(hardware, 1, request, make_gpu_target(hardware))
        check_arch(hardware.arch)

    def plan(self, graph: Graph, *, varies: bool = False) -> PlannedModel:
        """Return an imported model with channels first or last, and kernels from the records or from the model."""
        request = self.request
        if precision_of(graph) == HALVES[1]:
            raise SpaceError(f"compile: the model is {HALVES[1]}, for matrix units; give --precision {HALVES[1]}")
        planned = choose_graph(lay_out_both_orders(graph), self.hardware, request.accuracy, request.progress)
        if request.records is None or not request.reuse:
            return planned
        return planned._replace(kernels=apply_records(planned.kernels, record_place(request.records), request.accuracy))

    def generate_code(self, planned: PlannedModel) -> Code:
        """Compile a planned model by NVRTC and TVM; replace kernels that spill registers or exceed the device."""
        planned, kernels = self._compile(planned)
        by_node = {node: kernels[kernel.name] for kernel in planned.kernels for node in kernel.nodes}
        model = write_model(planned.graph, by_node)
        library = build_gpu_library(model, kernels.values(), self.target, self.hardware.arch)
        return Code(planned, by_node, model.weights, library)

    def is_checked(self, source: ImportedModel) -> bool:
        """Return whether outputs are compared on the GPU, or kernels are run by the emulator."""
        wants_check = self.request.check
        return bool(wants_check) or (wants_check is None and source.reference is not None and self._is_gpu_here())

    def check(self, build: ModelBuild, source: ImportedModel) -> Checks:
        """Return the error of the outputs if the GPU is present, otherwise the largest error in the emulator."""
        if not self._is_gpu_here():
            return Checks(emulated=max(map(emulated_error, build.planned.kernels), default=0.0))
        return (
            Checks()
            if source.reference is None
            else Checks(
                check_outputs(build.compiled, source, lambda *_: _ADVICE, rounds=has_integers(build.planned.graph))
            )
        )

    def _is_gpu_here(self) -> bool:
        try:
            check_gpu("the model", self.hardware.arch)
        except RunError:
            return False
        return True

    def _compile(self, planned: PlannedModel) -> tuple[PlannedModel, dict[str, GpuModelKernel]]:
        """Return a planned model and its kernels by name; kernels that spill or exceed the device are replaced."""
        workers = usable_cores()
        kernels = gpu_kernels({kernel.name: kernel.schedule for kernel in planned.kernels}, workers)
        others = {
            kernel.name: other
            for kernel in planned.kernels
            if (kernels[kernel.name].facts.spill_bytes or not self._fits(kernels[kernel.name]))
            and (other := self._next_choice(kernel)) is not None
        }
        if others:
            kernels |= gpu_kernels({name: other.schedule for name, other in others.items()}, workers)
            planned = planned._replace(kernels=[others.get(kernel.name, kernel) for kernel in planned.kernels])
        for kernel in planned.kernels:
            check_resources(kernels[kernel.name], self.hardware)
        return planned, kernels

    def _fits(self, kernel: GpuModelKernel) -> bool:
        try:
            check_resources(kernel, self.hardware)
        except SpaceError:
            return False
        return True

    def _next_choice(self, kernel: PlannedKernel) -> PlannedKernel | None:
        """Return a kernel with the best of some compiled schedules; None if no other schedule is legal."""
        template = kernel.schedule.template
        answer = api.plan(kernel.workload, self.hardware, 1, template=template, compile=_CANDIDATES, correction=NONE)
        if not answer.schedules:
            return None
        return kernel._replace(schedule=answer.schedules[0], prediction=predict(answer.schedules[0]))

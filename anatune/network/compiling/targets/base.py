"""What a device has to say when a model is compiled for it, and what a compiled model is made of on any of them."""

from __future__ import annotations

import platform
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import AnatuneError, BuildError, RunError
from anatune.files import scratch_folder
from anatune.network.compiling.attention import PlannedAttention
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.compiling.parts import (
    attention_summary,
    inputs_of,
    kernel_summary,
    operators_of,
    outputs_of,
    ranges_of,
    rows_of,
    state_of,
)
from anatune.network.compiling.planning import PlannedKernel
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.sizes.varying import environments
from anatune.network.compiling.weights import pack_weights
from anatune.network.graph.nodes import Graph, Node
from anatune.network.graph.passes.precision import WIDE
from anatune.network.graph.state import StatePair
from anatune.network.graph.summary import Check, LayoutSummary, ModelSummary, TuningSummary
from anatune.network.relax.building import Built
from anatune.network.relax.frontends import Imported
from anatune.network.relax.kernels import ModelKernel
from anatune.network.relax.ranges import Ranges
from anatune.network.relax.writing import Weight
from anatune.untyped import tvm
from anatune.version import __version__

__all__ = ["CheckResult", "GeneratedCode", "ModelBuild", "ModelTarget", "PlannedModel", "emulated_error"]

_LIBRARY_BYTES = 1 << 25
"""More than a library with its object file takes: LLVM ends the process where it cannot write."""


class PlannedModel(NamedTuple):
    """A model after all passes, and the kernels of its products.

    Attributes
    ----------
    graph : Graph
    kernels : list of PlannedKernel
        In the order in which they come.
    attentions : list of PlannedAttention
    layouts : LayoutSummary, optional
        What was known when the orders of activations were chosen; None: there are no convolutions, or it is for a GPU.
    turning_s : float
        Predicted time of the transposes that the order of dimensions needs on a GPU, s.
    ranges : mapping of str to (int, int)
        Symbol of sizes that vary -> least and largest value.
    state : tuple of StatePair
        The last inputs and outputs.
    is_single : bool
        Whether a call returns one tensor, whatever the graph returns.
    precision : str
        Dtype of what products multiply, where kernels exist for it.
    target_data : object
        What its target decided: for the model at its other sizes, and for checks.
    """

    graph: Graph
    kernels: list[PlannedKernel]
    attentions: Sequence[PlannedAttention] = ()
    layouts: LayoutSummary | None = None
    turning_s: float = 0.0
    ranges: Ranges = {}  # noqa: RUF012
    state: tuple[StatePair, ...] = ()
    is_single: bool = False
    precision: str = WIDE
    target_data: object = None

    @property
    def time_s(self) -> float:
        """Predicted time of products and transposes in a run."""
        return self.turning_s + sum(len(kernel.nodes) * kernel.prediction.time_s for kernel in self.kernels)


class GeneratedCode(NamedTuple):
    """A planned model as TVM built it.

    Attributes
    ----------
    planned : PlannedModel
        With the kernels that the compiler made of it.
    kernels : mapping of Node to ModelKernel
        Each node that anatune has a kernel for -> its kernel.
    weights : tuple of Weight
    built : Built
    """

    planned: PlannedModel
    kernels: Mapping[Node, ModelKernel]
    weights: tuple[Weight, ...]
    built: Built


class ModelBuild(NamedTuple):
    """A model that runs, the plan that it was built from, and its kernels by their nodes."""

    compiled: CompiledModel
    planned: PlannedModel
    kernels: Mapping[Node, ModelKernel]


class CheckResult(NamedTuple):
    """What a check found: how far outputs are from the original's; the largest error of a kernel in the emulator."""

    check: Check | None = None
    emulated: float | None = None


class ModelTarget(ABC):
    """One device, as one call of ``anatune.compile`` asks for it. Nothing of it changes: a `PlannedModel` has the rest.

    Attributes
    ----------
    hardware : CpuSpec or GpuSpec
    cores : CpuSpec or GpuSpec
        With the cores that kernels may use: what is predicted is predicted for these.
    threads : int
    request : Request
    target : tvm.target.Target
    features : tuple of str
        LLVM's names of the instructions that code may use.
    measures : bool
        Whether `tuned` is asked for.
    reads_float32 : bool
        Whether models of 16 bits are read as float32, and passes look for what they know of that.
    keeps_state : bool
        Whether models may keep something from call to call.
    """

    features: tuple[str, ...] = ()
    measures = False
    reads_float32 = True
    keeps_state = True

    def __init__(
        self, hardware: HardwareSpec, threads: int, request: CompileRequest, target: tvm.target.Target
    ) -> None:
        self.hardware, self.cores, self.threads = hardware, hardware.with_threads(threads), threads
        self.request, self.target = request, target

    def required_features(self, planned: PlannedModel) -> tuple[str, ...]:
        """Return what a processor has to have for a model."""
        return self.features

    def choose_fallback(self, error: AnatuneError) -> ModelTarget | None:
        """Return the target of the same device that takes a model which this one refused; None: the error stands."""
        return None

    @abstractmethod
    def plan(self, graph: Graph, *, varies: bool = False) -> PlannedModel:
        """Return an imported model behind all passes, with the model's first choices of kernels.

        Parameters
        ----------
        varies : bool
            Whether sizes of the model vary: `extend_to_all_sizes` follows.

        Raises
        ------
        SpaceError
            No schedule of a product is legal.
        """

    def extend_to_all_sizes(self, planned: PlannedModel, source: Imported) -> PlannedModel:
        """Return a model that was planned at some sizes as that of all sizes of its ranges.

        Raises
        ------
        WorkloadError
            It is another model at other sizes.
        """
        raise NotImplementedError

    def tune(self, planned: PlannedModel) -> tuple[list[PlannedKernel], TuningSummary]:
        """Return kernels with the best measured schedules, and what measuring came to; errors as `tuning.tune_kernels`."""
        raise NotImplementedError

    def generate_code(self, planned: PlannedModel) -> GeneratedCode:
        """Return what TVM builds of a planned model, for `build`.

        Raises
        ------
        BuildError
            TVM has no code for something.
        """
        raise NotImplementedError

    @abstractmethod
    def is_checked(self, source: Imported) -> bool:
        """Whether `check` has something to do."""

    @abstractmethod
    def check(self, build: ModelBuild, source: Imported) -> CheckResult:
        """Return what checking a model found.

        Raises
        ------
        RunError
            An output, or a kernel in the emulator, is wrong.
        """

    def build(self, planned: PlannedModel, *, forget: bool) -> ModelBuild:
        """Return a planned model as machine code, in a scratch folder that goes with it; `forget` as `pack_weights`.

        Raises
        ------
        BuildError
            TVM has no code for something, or there is no space.
        """
        planned, kernels, weights, built = self.generate_code(planned)
        memory, places = pack_weights(weights, self.target, forget=forget)
        graph, count = planned.graph, len(planned.state)
        summary = ModelSummary(
            version=__version__,
            hardware=self.hardware.name,
            arch=self.hardware.arch,
            machine=platform.machine(),
            features=self.required_features(planned),
            threads=self.threads,
            precision=planned.precision,
            is_tuple=graph.is_tuple and not planned.is_single,
            inputs=inputs_of(graph)[: len(graph.inputs) - count],
            outputs=outputs_of(graph)[: len(graph.outputs) - count],
            state=state_of(graph, planned.state, len(places)),
            weights=places,
            weight_bytes=len(memory),
            kernels=(
                *(kernel_summary(kernel, kernels[kernel.nodes[0]].facts) for kernel in planned.kernels),
                *map(attention_summary, planned.attentions),
            ),
            operators=operators_of(graph, kernels, self.cores),
            rows=rows_of(graph, kernels, self.cores),
            unscheduled=built.unscheduled,
            device="cpu" if self.hardware.kind == "cpu" else "gpu",
            turning_s=planned.turning_s,
            layouts=planned.layouts,
            ranges=ranges_of(planned.ranges, environments(planned.ranges, planned.state)[0]),
        )
        folder = scratch_folder(BuildError, _LIBRARY_BYTES)
        try:
            built.link(folder / "model.so")
            compiled = CompiledModel(summary, folder / "model.so", memory, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return ModelBuild(compiled, planned, kernels)


def emulated_error(kernel: PlannedKernel) -> float:
    """Return the error of a kernel in the emulator, over the scale of its result.

    Raises
    ------
    RunError
        It is wrong.
    """
    from anatune.measure.verify import verify  # late: of GPUs alone

    verification = verify(kernel.schedule)
    if not verification.ok:
        raise RunError(
            f"check: {kernel.name} ({kernel.workload.describe()}) is wrong in the emulator: {verification.message}; "
            "check=False (--no-check) builds it all the same"
        )
    return verification.max_rel_error or 0.0

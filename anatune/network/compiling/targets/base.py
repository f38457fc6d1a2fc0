"""The interface of a device that models are compiled for, and the intermediate results of compiling."""

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
from anatune.network.graph.summary import Check, LayoutSummary, ModelSummary, TuningSummary, WeightPlace
from anatune.network.relax.building import ModelLibrary
from anatune.network.relax.frontends import ImportedModel
from anatune.network.relax.kernels import ModelKernel
from anatune.network.relax.ranges import Ranges
from anatune.network.relax.writing import Weight
from anatune.untyped import tvm
from anatune.version import __version__

__all__ = ["Checks", "Code", "ModelBuild", "ModelTarget", "PlannedModel", "emulated_error"]

_LIBRARY_BYTES = 1 << 25
"""More than a library and its object file take; LLVM ends the process if it cannot write."""


class PlannedModel(NamedTuple):
    """A model after all passes, and the kernels of its products.

    Attributes
    ----------
    graph : Graph
    kernels : list of PlannedKernel
        The kernels in the order of the graph.
    attentions : list of PlannedAttention
    layouts : LayoutSummary, optional
        Predicted times of the orders of activations; None without convolutions, or on a GPU.
    turning_s : float
        Predicted time of the transposes that the order of dimensions needs on a GPU, s.
    ranges : mapping of str to (int, int)
        Symbol of a size that varies -> least and largest value.
    state : tuple of StatePair
        The state; its tensors are the last inputs and outputs.
    is_single : bool
        Whether a call returns one tensor, even if the graph returns several.
    precision : str
        Number format of products that kernels exist for.
    target_data : object
        Data of the target itself, for planning the model at other sizes and for checks.
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
        """The predicted time of products and transposes in one run."""
        return self.turning_s + sum(len(kernel.nodes) * kernel.prediction.time_s for kernel in self.kernels)


class Code(NamedTuple):
    """The code of a planned model.

    Attributes
    ----------
    planned : PlannedModel
        The model with the kernels that the compiler accepted.
    kernels : mapping of Node to ModelKernel
        The kernel of each node that anatune has one for.
    weights : tuple of Weight
    built : ModelLibrary
    """

    planned: PlannedModel
    kernels: Mapping[Node, ModelKernel]
    weights: tuple[Weight, ...]
    built: ModelLibrary


class ModelBuild(NamedTuple):
    """A model that can run, the planned model that it was built from, and its kernels by node."""

    compiled: CompiledModel
    planned: PlannedModel
    kernels: Mapping[Node, ModelKernel]


class Checks(NamedTuple):
    """The result of a check: errors of the outputs, and the largest error of a kernel in the emulator."""

    check: Check | None = None
    emulated: float | None = None


class ModelTarget(ABC):
    """One device, for one call of ``anatune.compile``. It does not change: a `PlannedModel` holds all results.

    Attributes
    ----------
    hardware : CpuSpec or GpuSpec
    cores : CpuSpec or GpuSpec
        The device with the cores that kernels may use; times are predicted for it.
    threads : int
    request : CompileRequest
    target : tvm.target.Target
    features : tuple of str
        LLVM's names of the instructions that code may use.
    measures : bool
        Whether kernels are measured by `tune`.
    reads_float32 : bool
    Whether models of 16 bits are read as float32; passes then search for the casts.
    keeps_state : bool
        Whether models may keep a state between calls.
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
        """Return the instructions that a processor needs for a model."""
        return self.features

    def choose_fallback(self, error: AnatuneError) -> ModelTarget | None:
        """Return another target of this device for a model that this one refused; None if there is none."""
        return None

    @abstractmethod
    def plan(self, graph: Graph, *, varies: bool = False) -> PlannedModel:
        """Return an imported model after all passes, with first choices of kernels.

        Parameters
        ----------
        varies : bool
            Whether sizes of the model vary; `extend_to_all_sizes` is called next.

        Raises
        ------
        SpaceError
            No schedule of a product is legal.
        """

    def extend_to_all_sizes(self, planned: PlannedModel, source: ImportedModel) -> PlannedModel:
        """Return a model that was planned at some sizes, extended to all sizes of its ranges.

        Raises
        ------
        WorkloadError
            The model computes something else at other sizes.
        """
        raise NotImplementedError

    def tune(self, planned: PlannedModel) -> tuple[list[PlannedKernel], TuningSummary]:
        """Measure kernels, and return them with the best schedules and a summary. Errors: as `tuning.tune_kernels`."""
        raise NotImplementedError

    def generate_code(self, planned: PlannedModel) -> Code:
        """Compile the kernels of a planned model, for `build`.

        Raises
        ------
        BuildError
            TVM cannot compile an operator.
        """
        raise NotImplementedError

    @abstractmethod
    def is_checked(self, source: ImportedModel) -> bool:
        """Return whether `check` has anything to check."""

    @abstractmethod
    def check(self, build: ModelBuild, source: ImportedModel) -> Checks:
        """Check a model against its original and return the errors.

        Raises
        ------
        RunError
            An output, or a kernel in the emulator, is wrong.
        """

    def summarise(
        self,
        planned: PlannedModel,
        kernels: Mapping[Node, ModelKernel],
        places: tuple[WeightPlace, ...],
        weight_bytes: int,
        unscheduled: tuple[str, ...] = (),
    ) -> ModelSummary:
        """Return the summary of a planned model; `kernels` are those of all nodes that anatune has a kernel for."""
        graph, count = planned.graph, len(planned.state)
        return ModelSummary(
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
            weight_bytes=weight_bytes,
            kernels=(
                *(kernel_summary(kernel, kernels[kernel.nodes[0]].facts) for kernel in planned.kernels),
                *map(attention_summary, planned.attentions),
            ),
            operators=operators_of(graph, kernels, self.cores),
            rows=rows_of(graph, kernels, self.cores),
            unscheduled=unscheduled,
            device="cpu" if self.hardware.kind == "cpu" else "gpu",
            turning_s=planned.turning_s,
            layouts=planned.layouts,
            ranges=ranges_of(planned.ranges, environments(planned.ranges, planned.state)[0]),
        )

    def build(self, planned: PlannedModel, *, forget: bool) -> ModelBuild:
        """Build a planned model in a scratch folder that is removed with it; `forget` as `pack_weights`.

        Raises
        ------
        BuildError
            TVM cannot compile an operator, or the disk is full.
        """
        planned, kernels, weights, built = self.generate_code(planned)
        memory, places = pack_weights(weights, self.target, forget=forget)
        summary = self.summarise(planned, kernels, places, len(memory), built.unscheduled)
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
        The result is wrong.
    """
    from anatune.measure.verify import verify  # late: only GPUs need it

    verification = verify(kernel.schedule)
    if not verification.ok:
        raise RunError(
            f"check: {kernel.name} ({kernel.workload.describe()}) is wrong in the emulator: {verification.message}; "
            "check=False (--no-check) builds the model without this check"
        )
    return verification.max_rel_error or 0.0

"""What is known of a compiled model: its inputs and outputs, its kernels, its weights' places, how it was checked.

Ranges are those that a file has to keep to: what is made here is not checked.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

import msgspec

__all__ = [
    "Check",
    "Division",
    "KernelSummary",
    "KernelTuning",
    "Latency",
    "LayerLoss",
    "LayoutSummary",
    "ModelSummary",
    "OperatorSummary",
    "PartSummary",
    "RangeSummary",
    "StateSummary",
    "TensorSummary",
    "TuningSummary",
    "WeightPlace",
    "num_bytes_of",
]

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Calls = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Predicted = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Extent = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Shape = tuple[_Extent, ...]
_Expression = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9_ ()*+/-]{1,500}\Z")]
_Precision = Annotated[str, msgspec.Meta(pattern=r"\A(b?float16|float32|int8|fp8)\Z")]
_Dtype = Annotated[str, msgspec.Meta(pattern=r"\A(bool|u?int(8|16|32|64)|b?float16|float32|float64|object)\Z")]
_BITS = re.compile("[0-9]+$")
_MOST_BYTES = 2**47
"""Of an array: what a process can address."""


def num_bytes_of(one: TensorSummary | WeightPlace) -> int:
    """Return the bytes of a tensor, of sizes that vary but one element."""
    bits = _BITS.search(one.dtype)
    sizes = (size for size in one.shape if isinstance(size, int))
    return math.prod(sizes) * (int(bits[0]) // 8 if bits else 1)


class TensorSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model.

    Sizes that vary are symbols, or expressions of them. A dtype of "object" is text, or, of a divided model's, what has
    no shape that is known.
    """

    name: str
    dtype: _Dtype
    shape: tuple[_Extent | _Expression, ...]


class RangeSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a size may have: the least, the largest, and what the model was planned and predicted for.

    The last one may lie beyond a small range, where no number within it can be told from others of the model.
    """

    least: _Count
    most: _Calls
    planned: _Count

    @property
    def usual(self) -> int:
        """The size within the range that is nearest to the planned one: what a model runs with by default."""
        return max(self.least, min(self.most, self.planned))


class StateSummary(TensorSummary, frozen=True, forbid_unknown_fields=True):
    """A tensor that stays in the model between calls: where it grows, memory for the most elements.

    Attributes
    ----------
    initial : int, optional
        Which weight it is at first; None: zeros, or nothing.
    axis : int
        Along which it grows.
    grows : str
        The size that says how many elements it has there; "": it has one size.
    after : str
        How many it has there behind a call.
    """

    initial: _Count | None = None
    axis: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    grows: str = ""
    after: str = ""

    @property
    def held(self) -> tuple[int | str, ...]:
        """Its shape as far as it is held."""
        return (*self.shape[: self.axis], self.grows, *self.shape[self.axis + 1 :]) if self.grows else self.shape


class WeightPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a weight lies in the weights' memory, bytes from its start."""

    offset: _Count
    dtype: _Dtype
    shape: _Shape


class KernelSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel of anatune's, which all equal products of a model share.

    Attributes
    ----------
    name : str
        Of the function in the library.
    workload : str
        In the words of the command line.
    count : int
        Calls in a run of the model.
    flop : int
        Of one call.
    template : str
    schedule : str
        As JSON (`Schedule.from_json` reads it).
    predicted_s : float
        Of one call.
    bound_by : str
        The part of the prediction that binds.
    layout : str
        In which order the dimensions of its data lie ("NHWC"); "": rows and columns.
    epilogue : tuple of str
        Steps that are fused into its stores.
    registers, spill_bytes, shared_bytes : int, optional
        Of a GPU's kernel, as the compiler says: of a thread; of a block.
    is_tuned : bool
        Whether `schedule` is one that was measured to be the best, not the plan's.
    varies : str
        Of a kernel that takes an extent at run time: the axis and its extents ("i 1..512"). `workload`, `flop` and
        `predicted_s` are at the planned one, `schedule` is at the largest number of rows or some number of images.
    """

    name: str
    workload: str
    count: _Calls
    flop: _Count
    template: str
    schedule: str
    predicted_s: _Predicted
    bound_by: str
    layout: str
    epilogue: tuple[str, ...]
    registers: _Count | None = None
    spill_bytes: _Count | None = None
    shared_bytes: _Count | None = None
    is_tuned: bool = False
    varies: str = ""

    @property
    def total_s(self) -> float:
        """Predicted time of all calls in a run."""
        return self.count * self.predicted_s


class OperatorSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator that was left to TVM, or the function of a kernel without a plan.

    Attributes
    ----------
    name : str
    count : int
        Calls in a run of the model.
    predicted_s : float, optional
        Of all of them, by the bytes that they move.
    """

    name: str
    count: _Calls
    predicted_s: _Seconds | None = None


class LayoutSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In which orders activations lie on a CPU, and what was known when they were chosen.

    Attributes
    ----------
    layouts : dict of str to int
        Of the convolutions ("NHWC", "NCHW:NHWC": reads one, writes the other), how many have each.
    transposes : int
        Values that are turned in a run.
    predicted_s : float
        Of the convolutions (but depthwise ones) and of what is turned.
    channels_last_s, channels_first_s : float, optional
        The same with one order wherever an operator can have it. Kernels that the choice has no use for are predicted
        with the loops that they have with channels last; None: some cannot have these.
    gap : float
        Share that another choice may be faster, by these predictions, at most.
    """

    layouts: dict[str, _Count]
    transposes: _Count
    predicted_s: _Seconds
    channels_last_s: _Seconds | None
    channels_first_s: _Seconds | None
    gap: _Share


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the outputs were from the original's, over the largest magnitude of each output.

    `tolerance` is None of a model that was quantised: its error is told, and no limit is known that it has to keep.
    """

    error: _Share
    tolerance: _Share | None
    reference: str


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured time of a whole model behind tuning, on random inputs.

    Attributes
    ----------
    time_s : float
        Of one run: the median.
    other_s : float, optional
        The same of the build that was not kept; None: there was none, tuning changed no kernel.
    is_tuned : bool
        Whether the kernels that were measured as the best are in it; False: with the plan's own it is faster.
    """

    time_s: _Seconds
    other_s: _Seconds | None = None
    is_tuned: bool = False


class KernelTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What measuring one kernel came to.

    Attributes
    ----------
    workload : str
        In the words of the command line, with nothing fused into its stores.
    count : int
        Calls in a run of the model.
    trials : int
        With those that were recorded before.
    bound_s : float
        Time of a call that no schedule undercuts.
    predicted_s : float
        Of the plan's first choice.
    measured_s : float, optional
        Of the best trial; None: nothing ran.
    ended : str
        "stop_at", "patience" or "space": it needs no more trials, or has none; "": the trials of all kernels ended.
    """

    workload: str
    count: _Calls
    trials: _Count
    bound_s: _Seconds
    predicted_s: _Seconds
    measured_s: _Seconds | None = None
    ended: str = ""


class TuningSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What measuring a model's kernels came to.

    Attributes
    ----------
    ended : str
        "trials" (all were made), "time_limit", or "kernels": each of them had ended.
    trials : int
        Of all kernels, with those that were recorded before.
    new_trials : int
        Those of this call.
    elapsed_s : float
        Wall time.
    kernels : tuple of KernelTuning
    """

    ended: str
    trials: _Count
    new_trials: _Count
    elapsed_s: _Seconds
    kernels: tuple[KernelTuning, ...]


class PartSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the parts that a model was divided into, which run one behind the other.

    Attributes
    ----------
    reads, makes : tuple of str
        Names of its inputs and outputs in the model.
    nodes : int
    left : tuple of (str, str)
        Its nodes and why each is left to onnxruntime; (): it is compiled.
    time_s : float, optional
        Of one run, measured when it was compiled: the least of several. None: the model did not run on random inputs.
    """

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    nodes: _Count
    left: tuple[tuple[str, str], ...] = ()
    time_s: _Seconds | None = None


class Division(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model was divided: its inputs and outputs, its parts in the order in which they run."""

    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    parts: tuple[PartSummary, ...]


class LayerLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a layer's output loses where a model is quantised when it is compiled.

    Attributes
    ----------
    layer : str
    signal_db : float, optional
        Power of the output over that of its error beside float32, dB; None: there is no error.
    """

    layer: str
    signal_db: float | None = None


class ModelSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about a compiled model but its code and the values of its weights.

    Attributes
    ----------
    version : str
        Of anatune.
    hardware, arch, machine : str
        The processor that it is for, as its spec says; its family, as ``platform.machine()`` says.
    features : tuple of str
        LLVM's names of the instructions that its code may use.
    threads : int
    is_tuple : bool
        Whether a call returns a tuple.
    inputs, outputs : tuple of TensorSummary
    weights : tuple of WeightPlace
    weight_bytes : int
        Of their memory.
    kernels : tuple of KernelSummary
    operators : tuple of OperatorSummary
        What was left to TVM.
    check : Check, optional
        None: outputs were not compared.
    rows : tuple of OperatorSummary
        Kernels of anatune's that are not planned: rows, windows, reductions, moves.
    unscheduled : tuple of str
        Functions of the library that are as TVM wrote them, without vectors or threads.
    precision : {"float32", "bfloat16", "float16", "int8", "fp8"}
        Dtype of what products multiply where the processor has instructions for it.
    device : {"cpu", "gpu"}
        Kind of `hardware`; with a GPU `machine` is the processor that launches its kernels.
    turning_s : float
        Predicted time of the transposes that the order of dimensions needs.
    emulated : float, optional
        Largest error of a kernel of anatune's that the emulator found, over the result's scale; None: none was run.
    layouts : LayoutSummary, optional
        None: there are no convolutions, or the device is a GPU.
    latency : Latency, optional
        None: nothing was measured when it was compiled.
    tuning : TuningSummary, optional
        None: kernels were not measured, nor taken from records.
    ranges : dict of str to RangeSummary
        By the symbol of a size that varies.
    parts : tuple of PartSummary
        Of a model that shares its nodes with onnxruntime: names of functions begin with "part1." and the like then.
    state : tuple of StateSummary
        What stays in the model between calls; neither among `inputs` nor `outputs`.
    losses : tuple of LayerLoss
        By layer, of a model that was quantised when it was compiled.
    launches, arena_bytes : int
        Of a model that is launches of kernels and nothing else: how many in a run, and the memory between them.
    """

    version: str
    hardware: str
    arch: str
    machine: str
    features: tuple[str, ...]
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    is_tuple: bool
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    weights: tuple[WeightPlace, ...]
    weight_bytes: _Count
    kernels: tuple[KernelSummary, ...]
    operators: tuple[OperatorSummary, ...]
    check: Check | None = None
    rows: tuple[OperatorSummary, ...] = ()
    unscheduled: tuple[str, ...] = ()
    device: Literal["cpu", "gpu"] = "cpu"
    precision: _Precision = "float32"
    turning_s: _Seconds = 0.0
    emulated: _Share | None = None
    layouts: LayoutSummary | None = None
    latency: Latency | None = None
    tuning: TuningSummary | None = None
    ranges: dict[str, RangeSummary] = {}
    parts: tuple[PartSummary, ...] = ()
    state: tuple[StateSummary, ...] = ()
    losses: tuple[LayerLoss, ...] = ()
    launches: _Count = 0
    arena_bytes: _Count = 0

    def __post_init__(self) -> None:
        """Raise ValueError for what contradicts itself."""
        for one in self.weights:
            if one.offset + num_bytes_of(one) > self.weight_bytes:
                raise ValueError(f"a weight ends at byte {one.offset + num_bytes_of(one)} of {self.weight_bytes}")
        if any(num_bytes_of(one) > _MOST_BYTES for one in (*self.inputs, *self.outputs, *self.state)):
            raise ValueError("an input or output is larger than any memory")
        if not self.outputs or (len(self.outputs) > 1 and not self.is_tuple):
            raise ValueError(f"{len(self.outputs)} outputs, and is_tuple is {self.is_tuple}")
        for held in self.state:
            if held.grows and (held.grows not in self.ranges or held.axis >= len(held.shape)):
                raise ValueError(f"state {held.name} grows by {held.grows} along axis {held.axis}")
            if held.initial is not None and [one.shape for one in self.weights[held.initial :][:1]] != [held.shape]:
                raise ValueError(f"state {held.name} is weight {held.initial} at first")
        if self.device == "gpu" and not re.fullmatch("sm_[0-9]{2,3}[a-z]?|gfx[0-9a-f]{3,5}", self.arch):
            raise ValueError(f"arch of a GPU is {self.arch!r}")

    @property
    def predicted_s(self) -> float:
        """Predicted time of all kernels of anatune's in a run."""
        return sum(kernel.total_s for kernel in self.kernels)

    @property
    def whole_s(self) -> float:
        """Predicted time of a run, kernels without a plan included."""
        return self.predicted_s + self.turning_s + sum(row.predicted_s or 0.0 for row in self.rows)

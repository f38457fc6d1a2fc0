"""The description of a compiled network: inputs and outputs, kernels, offsets of weights, checks, measured times.

The ranges of the fields are checked when a file is read, not when an object is created.
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
    "byte_count",
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
"""The largest array that a process can address."""


def byte_count(tensor: TensorSummary | WeightPlace) -> int:
    """Return the bytes of a tensor; sizes that vary count as 1."""
    bits = _BITS.search(tensor.dtype)
    sizes = (size for size in tensor.shape if isinstance(size, int))
    return math.prod(sizes) * (int(bits[0]) // 8 if bits else 1)


class TensorSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a network.

    Sizes that vary are symbols or expressions of symbols. The dtype "object" means text or, in a divided network, a
    tensor of unknown shape.
    """

    name: str
    dtype: _Dtype
    shape: tuple[_Extent | _Expression, ...]


class RangeSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range of a size that varies: the least and the largest value, and the one that the network was planned for.

    `planned` may lie outside a small range in which every value is also another size of the network.
    """

    least: _Count
    most: _Calls
    planned: _Count

    @property
    def usual(self) -> int:
        """The value in the range that is nearest to `planned`: the size with which the network runs by default."""
        return max(self.least, min(self.most, self.planned))


class StateSummary(TensorSummary, frozen=True, forbid_unknown_fields=True):
    """A tensor that stays in the network between calls; a growing one has memory for its largest size.

    Attributes
    ----------
    initial : int, optional
        The index of the weight with its initial content; None: zeros, or an empty tensor.
    axis : int
        The axis along which it grows.
    grows : str
        The symbol of its extent along `axis`; "": the tensor does not grow.
    after : str
        The extent along `axis` after a call.
    """

    initial: _Count | None = None
    axis: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    grows: str = ""
    after: str = ""

    @property
    def held(self) -> tuple[int | str, ...]:
        """The shape of the part that holds elements."""
        return (*self.shape[: self.axis], self.grows, *self.shape[self.axis + 1 :]) if self.grows else self.shape


class WeightPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The position of a weight in the memory of the weights, in bytes from its start."""

    offset: _Count
    dtype: _Dtype
    shape: _Shape


class KernelSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel of anatune, which all equal products of a network share.

    Attributes
    ----------
    name : str
        The name of the function in the library.
    workload : str
        The workload in the words of the command line.
    count : int
        Calls in one run of the network.
    flop : int
        Operations of one call.
    template : str
    schedule : str
        The schedule as JSON (`Schedule.from_json` reads it).
    predicted_s : float
        Predicted seconds of one call.
    bound_by : str
        The binding resource of the prediction.
    layout : str
        The order of the dimensions of its data ("NHWC"); "": a matrix.
    epilogue : tuple of str
        The epilogue: steps that are fused into the kernel's stores.
    registers, spill_bytes, shared_bytes : int, optional
        Resources of a GPU kernel that the compiler reports: registers and spilled bytes of a thread, bytes of a block.
    is_tuned : bool
        Whether `schedule` is the best one measured and not the first choice of the plan.
    varies : str
        The axis that a kernel takes at run time, with its extents ("i 1..512"); "": none. `workload`, `flop` and
        `predicted_s` are those of the planned extent. `schedule` is that of the most rows, or of some number of images.
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
        """Predicted seconds of all calls in one run."""
        return self.count * self.predicted_s


class OperatorSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator that TVM compiles, or the function of a kernel without a plan.

    Attributes
    ----------
    name : str
    count : int
        Calls in one run of the network.
    predicted_s : float, optional
        Predicted seconds of all calls, from the bytes that they move.
    """

    name: str
    count: _Calls
    predicted_s: _Seconds | None = None


class LayoutSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The orders of the dimensions of activations on a CPU, and the predictions that they were chosen by.

    Attributes
    ----------
    layouts : dict of str to int
        Number of convolutions in each layout ("NHWC"; "NCHW:NHWC" reads the first and writes the second).
    transposes : int
        Number of values that are transposed in one run.
    predicted_s : float
        Predicted seconds of the convolutions (except depthwise ones) and of the transposes.
    channels_last_s, channels_first_s : float, optional
        The same with a single order for every operator that can have it. Kernels that only these alternatives need are
        predicted with the loops of channels-last kernels. None: some operator cannot have this order.
    gap : float
        The share by which another choice may be faster, at most, according to these predictions.
    """

    layouts: dict[str, _Count]
    transposes: _Count
    predicted_s: _Seconds
    channels_last_s: _Seconds | None
    channels_first_s: _Seconds | None
    gap: _Share


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest error of the outputs relative to the original, divided by the largest magnitude of each output.

    `tolerance` is None for a quantised network: its error is reported, but has no known limit.
    """

    error: _Share
    tolerance: _Share | None
    reference: str


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measured time of a whole network after tuning, on random inputs.

    Attributes
    ----------
    time_s : float
        The median time of one run.
    other_s : float, optional
        The median time of the build that was not chosen; None: tuning changed no kernel, so there is only one build.
    is_tuned : bool
        Whether the build contains the kernels that measured best; False: the kernels of the plan are faster.
    """

    time_s: _Seconds
    other_s: _Seconds | None = None
    is_tuned: bool = False


class KernelTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results of tuning one kernel.

    Attributes
    ----------
    workload : str
        The workload in the words of the command line, without an epilogue.
    count : int
        Calls in one run of the network.
    trials : int
        The number of trials, including those recorded before.
    bound_s : float
        A lower bound of the time of one call: no schedule is predicted to be faster.
    predicted_s : float
        Predicted seconds of the plan's first choice.
    measured_s : float, optional
        Measured seconds of the best trial; None: no trial succeeded.
    ended : str
        "stop_at", "patience" or "space": the kernel needs no more trials; "": tuning as a whole ended first.
    """

    workload: str
    count: _Calls
    trials: _Count
    bound_s: _Seconds
    predicted_s: _Seconds
    measured_s: _Seconds | None = None
    ended: str = ""


class TuningSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results of tuning the kernels of a network.

    Attributes
    ----------
    ended : str
        The reason: "trials" (all were made), "time_limit", or "kernels" (none needed more trials).
    trials : int
        The number of trials of all kernels, including those recorded before.
    new_trials : int
        The number of trials made in this call.
    elapsed_s : float
        Wall time in seconds.
    kernels : tuple of KernelTuning
    """

    ended: str
    trials: _Count
    new_trials: _Count
    elapsed_s: _Seconds
    kernels: tuple[KernelTuning, ...]


class PartSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a divided network. The parts run one after the other.

    Attributes
    ----------
    reads, makes : tuple of str
        Names of the part's inputs and outputs in the network.
    nodes : int
    left : tuple of (str, str)
        The nodes that onnxruntime runs, each with the reason; (): the part is compiled.
    time_s : float, optional
        The least of several measured times of one run, in seconds. None: the network did not run on random inputs.
    """

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    nodes: _Count
    left: tuple[tuple[str, str], ...] = ()
    time_s: _Seconds | None = None


class Division(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The division of a network: its inputs and outputs, and its parts in the order in which they run."""

    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    parts: tuple[PartSummary, ...]


class LayerLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The loss of a layer's output that quantisation causes.

    Attributes
    ----------
    layer : str
    signal_db : float, optional
        Power of the output divided by the power of its error relative to float32, in dB; None: there is no error.
    """

    layer: str
    signal_db: float | None = None


class ModelSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled network without its code and the values of its weights.

    Attributes
    ----------
    version : str
        The version of anatune.
    hardware, arch, machine : str
        The processor that the code is for: its name, its family in the spec, and its ``platform.machine()``.
    features : tuple of str
        LLVM's names of the instruction sets that the code may use.
    threads : int
    is_tuple : bool
        Whether a call returns a tuple.
    inputs, outputs : tuple of TensorSummary
    weights : tuple of WeightPlace
    weight_bytes : int
        Bytes of the memory of the weights.
    kernels : tuple of KernelSummary
    operators : tuple of OperatorSummary
        Operators that TVM compiles.
    check : Check, optional
        None: the outputs were not compared.
    rows : tuple of OperatorSummary
        Kernels of anatune that are not planned: rows, windows, reductions, moves.
    unscheduled : tuple of str
        Functions of the library in the form that TVM wrote, without vectors or threads.
    precision : {"float32", "bfloat16", "float16", "int8", "fp8"}
        The dtype of the operands of products, on a processor that has instructions for it.
    device : {"cpu", "gpu"}
        The kind of `hardware`. For a GPU, `machine` is the processor that launches its kernels.
    turning_s : float
        Predicted seconds of the transposes between orders of dimensions.
    emulated : float, optional
        The largest error of a kernel in the emulator, divided by the result's scale; None: no kernel was emulated.
    layouts : LayoutSummary, optional
        None: there are no convolutions, or the device is a GPU.
    latency : Latency, optional
        None: nothing was measured at compile time.
    tuning : TuningSummary, optional
        None: kernels were neither measured nor taken from records.
    ranges : dict of str to RangeSummary
        The range of each size that varies, by its symbol.
    parts : tuple of PartSummary
        The parts of a network that onnxruntime runs in part. Names of functions then begin with "part1." and so on.
    state : tuple of StateSummary
        The tensors that stay in the network between calls; they are neither in `inputs` nor in `outputs`.
    losses : tuple of LayerLoss
        The loss of each layer, for a network that was quantised at compile time.
    launches, arena_bytes : int
        Launches in one run and bytes of memory between them, for a network that consists of launches only.
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
        """Raise ValueError if fields contradict each other."""
        for weight in self.weights:
            if (end := weight.offset + byte_count(weight)) > self.weight_bytes:
                raise ValueError(f"a weight ends at byte {end} of {self.weight_bytes} bytes")
        if any(byte_count(tensor) > _MOST_BYTES for tensor in (*self.inputs, *self.outputs, *self.state)):
            raise ValueError(f"an input, output or state is larger than {_MOST_BYTES} bytes")
        if not self.outputs or (len(self.outputs) > 1 and not self.is_tuple):
            raise ValueError(f"the network has {len(self.outputs)} outputs, but is_tuple is {self.is_tuple}")
        for state in self.state:
            if state.grows and (state.grows not in self.ranges or state.axis >= len(state.shape)):
                raise ValueError(f"state {state.name} grows by {state.grows} along axis {state.axis}: one is missing")
            initial = [] if state.initial is None else self.weights[state.initial :][:1]
            if state.initial is not None and [weight.shape for weight in initial] != [state.shape]:
                raise ValueError(f"state {state.name} and its initial weight {state.initial} differ in shape")
        if self.device == "gpu" and not re.fullmatch("sm_[0-9]{2,3}[a-z]?|gfx[0-9a-f]{3,5}", self.arch):
            raise ValueError(f"arch of a GPU is {self.arch!r}")

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of all kernels of anatune in one run."""
        return sum(kernel.total_s for kernel in self.kernels)

    @property
    def whole_s(self) -> float:
        """Predicted seconds of one run, including kernels without a plan."""
        rest_s = sum(one.predicted_s or 0.0 for one in (*self.rows, *self.operators))
        return self.predicted_s + self.turning_s + rest_s

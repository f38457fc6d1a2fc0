"""What is known of a compiled model: its inputs and outputs, its kernels, its weights' places, how it was checked."""

from __future__ import annotations

from typing import Literal

import msgspec

from anatune.errors import RecordError

__all__ = [
    "FORMAT",
    "Check",
    "KernelSummary",
    "KernelTuning",
    "Latency",
    "LayoutSummary",
    "ModelSummary",
    "OperatorSummary",
    "TensorSummary",
    "TuningSummary",
    "WeightPlace",
]

FORMAT = 1
"""Of the saved folder. A change of what the library or the weights hold makes another one."""


class TensorSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class WeightPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a weight lies in the weights' memory, bytes from its start."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


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
    """

    name: str
    workload: str
    count: int
    flop: int
    template: str
    schedule: str
    predicted_s: float
    bound_by: str
    layout: str
    epilogue: tuple[str, ...]
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    is_tuned: bool = False

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
    count: int
    predicted_s: float | None = None


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

    layouts: dict[str, int]
    transposes: int
    predicted_s: float
    channels_last_s: float | None
    channels_first_s: float | None
    gap: float


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the outputs were from the original's, over the largest magnitude of each output."""

    error: float
    tolerance: float
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

    time_s: float
    other_s: float | None = None
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
    count: int
    trials: int
    bound_s: float
    predicted_s: float
    measured_s: float | None = None
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
    trials: int
    new_trials: int
    elapsed_s: float
    kernels: tuple[KernelTuning, ...]


class ModelSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about a compiled model but its code and the values of its weights. JSON both ways.

    Attributes
    ----------
    format, version
        Of the saved folder; of anatune.
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
    """

    format: int
    version: str
    hardware: str
    arch: str
    machine: str
    features: tuple[str, ...]
    threads: int
    is_tuple: bool
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    weights: tuple[WeightPlace, ...]
    weight_bytes: int
    kernels: tuple[KernelSummary, ...]
    operators: tuple[OperatorSummary, ...]
    check: Check | None = None
    rows: tuple[OperatorSummary, ...] = ()
    unscheduled: tuple[str, ...] = ()
    device: Literal["cpu", "gpu"] = "cpu"
    turning_s: float = 0.0
    emulated: float | None = None
    layouts: LayoutSummary | None = None
    latency: Latency | None = None
    tuning: TuningSummary | None = None

    @property
    def predicted_s(self) -> float:
        """Predicted time of all kernels of anatune's in a run."""
        return sum(kernel.total_s for kernel in self.kernels)

    def to_json(self) -> bytes:
        """Return the summary as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes) -> ModelSummary:
        """Return what `to_json` wrote.

        Raises
        ------
        RecordError
            It is not that, or of another format.
        """
        try:
            found = msgspec.json.decode(text)
            number = found.get("format") if isinstance(found, dict) else None
            if number != FORMAT:
                raise RecordError(f"the compiled model has format {number}, expected {FORMAT}; compile it again")
            return msgspec.convert(found, cls)
        except msgspec.MsgspecError as error:
            raise RecordError(f"no summary of a compiled model: {error!s:.200}; compile it again") from None

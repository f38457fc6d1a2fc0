"""Lower a graph with planned kernels to programs and launches, with number formats and memory of all tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anatune.core.generation import MOST_ELEMENTS
from anatune.core.hardware.spec import GpuSpec
from anatune.emit.buffer import Buffer
from anatune.errors import SpaceError
from anatune.network.graph.nodes import Array, Graph, Node, TensorType, Value, tensor_type
from anatune.network.relax.device.arena import Lifetime, place_tensors
from anatune.network.relax.device.groups import NestGroup, group_nests, join_independent
from anatune.network.relax.device.ir import LARGEST, Cast, Name, NoSourceError, clamp_finite
from anatune.network.relax.device.modules import RestKernel, make_rest_kernel
from anatune.network.relax.device.printing import print_expr
from anatune.network.relax.device.program import ALIGNMENT, Region, Role
from anatune.network.relax.device.steps import KernelCall, ModelSteps, NestStep, Tensor, read_steps
from anatune.network.relax.kernels import ModelKernel
from anatune.network.relax.writing import Weight, write_model
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["DeviceCall", "LoweredModel", "PlannedCall", "WeightForm", "lower_graph"]

_LEAST_TABLE_ELEMENTS = 1 << 16
"""Elements from which on a weight that only nests read has 16 bits, such as a table of embeddings."""


class PlannedCall(NamedTuple):
    """The call of a planned kernel.

    Attributes
    ----------
    program : TritonProgram
    operands : tuple of str
        Its tensors in the order of the call.
    offsets : tuple of int
        Elements of each operand before the first one that it reads.
    rest : RestKernel, optional
        Bytes and operations for the prediction, if it has no plan.
    """

    program: TritonProgram
    operands: tuple[str, ...]
    offsets: tuple[int, ...]
    rest: RestKernel | None = None

    def dtype(self, tensor: str) -> str:
        """Return the number format of a tensor."""
        return self.program.tensors[tensor].dtype


class WeightForm(NamedTuple):
    """A weight in the format that kernels read, at `offset` bytes in the memory of all weights."""

    place: int
    dtype: str
    offset: int


class DeviceCall(NamedTuple):
    """The call of one program; `regions` is the memory of its kernels' parameters by tensor."""

    name: str
    program: TritonProgram
    regions: Mapping[str, Region]
    rest: RestKernel | None


class LoweredModel(NamedTuple):
    """A model as calls of programs.

    Attributes
    ----------
    calls : list of DeviceCall
    weights : tuple of Weight
        Constants of the graph.
    constants : list of ndarray
        Further weights, from the text of the module.
    forms : list of WeightForm
        Content of the weights' memory.
    weight_bytes, arena_bytes : int
    state : tuple of Buffer
        The state as memory holds it; its tensors are the last inputs.
    """

    calls: list[DeviceCall]
    weights: tuple[Weight, ...]
    constants: list[Array]
    forms: list[WeightForm]
    weight_bytes: int
    arena_bytes: int
    state: tuple[Buffer, ...]

    def value(self, form: WeightForm) -> Array:
        """Return the values of a weight in its form."""
        array = (*(weight.constant.array for weight in self.weights), *self.constants)[form.place]
        return narrow_array(array, form.dtype)


def narrow_array(array: Array, dtype: str) -> Array:
    """Return an array in a number format; numbers too large for 16 bits become the largest one."""
    if array.dtype.name == dtype or dtype not in LARGEST:
        return np.ascontiguousarray(array)
    import_module("ml_dtypes")  # it adds bfloat16 to NumPy
    most = LARGEST[dtype]
    clipped = np.where(np.isinf(array), array, np.clip(array, -most, most))
    return np.ascontiguousarray(clipped.astype(dtype))


def lower_graph(
    graph: Graph,
    kernels: Mapping[Node, ModelKernel],
    planned: Mapping[str, PlannedCall],
    precision: str,
    hardware: GpuSpec,
    target: Target,
    num_state: int = 0,
) -> LoweredModel:
    """Lower a graph for a GPU.

    Parameters
    ----------
    kernels : mapping of Node to ModelKernel
        The stub of each product and attention in the Relax module.
    planned : mapping of str to PlannedCall
        Calls of planned kernels, by the name of the stub.
    precision : str
        Number format in memory of float32 tensors of the graph that depend on weights or inputs.
    target : tvm.target.Target
    num_state : int
        Number of inputs and outputs that share memory, which are the last ones: the next run reads what is written.

    Raises
    ------
    BuildError
        A part has no Triton source.
    SpaceError
        A tensor is too large for it.
    """
    model = write_model(graph, kernels)
    try:
        steps = read_steps(model.module, target, len(graph.inputs), len(model.weights))
    except NoSourceError as error:
        nodes = [node for node in graph.nodes() if isinstance(node.type, TensorType)]
        largest = max(nodes, key=lambda node: math.prod(tensor_type(node).shape))
        if (size := math.prod(tensor_type(largest).shape)) <= MOST_ELEMENTS:
            raise
        raise SpaceError(
            f"compile: {largest.op} ({largest}) returns {size:,} elements, and loops between kernels address at most "
            f"{MOST_ELEMENTS:,}; take a smaller batch or fewer tokens"
        ) from error
    state = graph.inputs[len(graph.inputs) - num_state :]
    return _Lowering(steps, model.weights, planned, precision, hardware, len(graph.inputs), state).lower()


class _Lowering:
    def __init__(
        self,
        steps: ModelSteps,
        weights: tuple[Weight, ...],
        planned: Mapping[str, PlannedCall],
        precision: str,
        hardware: GpuSpec,
        num_inputs: int,
        state: Sequence[Value],
    ) -> None:
        self.steps, self.weights, self.planned = steps, weights, planned
        self.state, self.first_state = [tensor_type(one) for one in state], num_inputs - len(state)
        self.precision, self.hardware = precision, hardware
        self.dtypes: dict[Tensor, str] = {}
        self.cast: dict[tuple[Tensor, str], Tensor] = {}
        self.forms: dict[tuple[int, str], WeightForm] = {}
        self.weight_bytes = 0
        self.programs: list[tuple[str, TritonProgram, dict[str, tuple[Tensor, int]], RestKernel | None]] = []

    def lower(self) -> LoweredModel:
        """Return the model as calls of programs."""
        self._choose_dtypes()
        self.items: list[KernelCall | tuple[NestGroup, ...]] = join_independent(group_nests(self._remove_copies()))
        readers = self._readers()
        outputs = set(self.steps.outputs)
        for item_index, item in enumerate(self.items):
            if isinstance(item, KernelCall):
                self._add_call(item)
                continue

            def is_kept(tensor: Tensor, index: int = item_index) -> bool:
                return tensor in outputs or bool(readers.get(tensor, set()) - {index})

            rest = make_rest_kernel(item, is_kept, self.dtype_of, self.hardware)
            kernel = rest.program.kernels[0]
            bound_tensors = zip(kernel.parameters, (*rest.reads, *rest.writes), strict=True)
            names = {buffer.tensor: (tensor, 0) for buffer, tensor in bound_tensors}
            self.programs.append((kernel.name, rest.program, names, rest))
        regions = self._copy_outputs()
        arena_bytes, calls = self._place_calls(regions)
        forms = sorted(self.forms.values(), key=lambda form: form.offset)
        state = tuple(
            Buffer("", self._state_dtype(place, kind.dtype), kind.shape) for place, kind in enumerate(self.state)
        )
        return LoweredModel(calls, self.weights, self.steps.constants, forms, self.weight_bytes, arena_bytes, state)

    # -- dtypes ------------------------------------------------------------------------------------------------------

    def _choose_dtypes(self) -> None:
        """Choose the number format of each tensor in memory."""
        outputs = set(self.steps.outputs)
        follows: set[Tensor] = set()
        sums: set[Tensor] = set()
        """Sums of many elements: with 16 bits they might overflow, or differences of them lose digits."""
        nested: set[Tensor] = set()
        for step in self.steps.steps:
            if isinstance(step, KernelCall) or any(one in follows or self._is_number(one) for one in step.reads):
                follows.update(step.writes)
            if isinstance(step, NestStep):
                nested.update(step.reads)
                sums.update(step.writes if any(step.nest.is_reduction) else ())
            if isinstance(step, KernelCall):
                program = self.planned[step.function]
                self.dtypes[step.writes[0]] = program.dtype(program.program.result)
                for name, tensor in zip(program.operands, step.reads, strict=True):
                    if tensor.role == "weight" or program.dtype(name) == "float32":  # scales
                        self.dtypes.setdefault(tensor, program.dtype(name))
        for tensor in follows - (sums & nested):
            if tensor.dtype == "float32" and tensor not in self.dtypes and tensor not in outputs:
                self.dtypes[tensor] = self.precision

    def _remove_copies(self) -> list[KernelCall | NestStep]:
        """Return the steps without casts between kernels and inputs or outputs with the same format in memory."""
        steps, outputs = self.steps.steps, self.steps.outputs[: len(self.steps.outputs) - len(self.state)]
        uses = Counter(tensor for step in steps if isinstance(step, NestStep) for tensor in step.reads)
        results = {tensor for step in steps if isinstance(step, KernelCall) for tensor in step.writes} - set(
            self.steps.outputs
        )
        replacements: dict[Tensor, Tensor] = {}
        kept_steps: list[KernelCall | NestStep] = []
        for step in steps:
            if isinstance(step, NestStep) and step.is_cast:
                (read,), (write,) = step.reads, step.writes
                is_given = read.role == "input" and not self._is_state(read)
                if self.dtype_of(read) == self.dtype_of(write):
                    if is_given and not uses[write] and write not in self.steps.outputs:
                        replacements[write] = read
                    elif read in results and write in outputs and uses[read] == 1:
                        replacements[read] = write
                        results.remove(read)
                if replacements.get(write) is read or replacements.get(read) is write:
                    continue
            kept_steps.append(step)

        def rename(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(replacements.get(tensor, tensor) for tensor in tensors)

        return [
            one._replace(reads=rename(one.reads), writes=rename(one.writes)) if isinstance(one, KernelCall) else one
            for one in kept_steps
        ]

    def _is_number(self, tensor: Tensor) -> bool:
        return tensor.role in ("input", "weight") and tensor.size > 1 and "float" in tensor.dtype

    def _is_state(self, tensor: Tensor) -> bool:
        return tensor.role == "input" and tensor.place >= self.first_state

    def _state_dtype(self, index: int, dtype: str) -> str:
        """Return the format of a part of the state in memory: written rows have 16 bits; sums keep their format."""
        output = self.steps.outputs[index - len(self.state)]
        is_put = self._is_state(output) and output.place == self.first_state + index
        return self.precision if dtype == "float32" and is_put else dtype

    def dtype_of(self, tensor: Tensor) -> str:
        """Return the number format of a tensor in memory."""
        if self._is_state(tensor):
            return self._state_dtype(tensor.place - self.first_state, tensor.dtype)
        if tensor in self.dtypes:
            return self.dtypes[tensor]
        if tensor.role == "weight" and tensor.dtype == "float32" and tensor.size >= _LEAST_TABLE_ELEMENTS:
            return self.precision
        return tensor.dtype

    def _readers(self) -> dict[Tensor, set[int]]:
        readers: dict[Tensor, set[int]] = {}
        for item_index, item in enumerate(self.items):
            steps = [item] if isinstance(item, KernelCall) else [unit for group in item for unit in group.units]
            for step in steps:
                for tensor in step.reads:
                    readers.setdefault(tensor, set()).add(item_index)
        return readers

    # -- programs ----------------------------------------------------------------------------------------------------

    def _add_call(self, call: KernelCall) -> None:
        """Add a planned kernel, and before it kernels that convert its operands to the formats that it reads."""
        planned = self.planned[call.function]
        names: dict[str, tuple[Tensor, int]] = {planned.program.result: (call.writes[0], 0)}
        for name, tensor, offset in zip(planned.operands, call.reads, planned.offsets, strict=True):
            names[name] = self._convert_to(tensor, planned.dtype(name)), offset
        if planned.program.workspace is not None:
            space = planned.program.workspace
            names[space.tensor] = Tensor(math.prod(space.shape), space.dtype), 0
        self.programs.append((call.function, planned.program, names, planned.rest))

    def _convert_to(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return a tensor in a number format; weights are stored in any, others are converted by a kernel."""
        if self.dtype_of(tensor) == dtype:
            return tensor
        if (tensor, dtype) not in self.cast:
            converted = Tensor(tensor.size, dtype, "weight" if tensor.role == "weight" else "made", tensor.place)
            self.cast[tensor, dtype] = converted
            self.dtypes[converted] = dtype
            if tensor.role != "weight":
                self._convert(tensor, converted)
        return self.cast[tensor, dtype]

    def _convert(self, source: Tensor, target: Tensor) -> None:
        """Add a kernel that copies a tensor, with or without conversion."""
        program = _conversion_program(source.size, self.dtype_of(source), self.dtype_of(target))
        self.programs.append((program.kernels[0].name, program, {"source": (source, 0), "copy": (target, 0)}, None))

    def _copy_outputs(self) -> dict[Tensor, int]:
        """Return the output index of each computed tensor; outputs with another role as well are copied."""
        outputs_by_tensor: dict[Tensor, int] = {}
        count = len(self.steps.outputs) - len(self.state)
        for index, tensor in enumerate(self.steps.outputs[:count]):
            if tensor.role == "made" and tensor not in outputs_by_tensor and self.dtype_of(tensor) == tensor.dtype:
                outputs_by_tensor[tensor] = index
                continue
            copy = Tensor(tensor.size, tensor.dtype)
            self.dtypes[copy] = tensor.dtype
            self._convert(tensor, copy)
            outputs_by_tensor[copy] = index
        self._update_state(self.steps.outputs[count:])
        return outputs_by_tensor

    def _update_state(self, tensors: Sequence[Tensor]) -> None:
        """Copy new state into place; parts that other parts are copied from are saved first."""
        changed = []
        for index, tensor in enumerate(tensors, self.first_state):
            if self._is_state(tensor) and tensor.place != index:
                copy = Tensor(tensor.size, tensor.dtype)
                self.dtypes[copy] = self.dtype_of(tensor)
                self._convert(tensor, copy)
                tensor = copy
            if not self._is_state(tensor):
                changed.append((tensor, Tensor(tensor.size, tensor.dtype, "input", index)))
        for tensor, state in changed:
            self._convert(tensor, state)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _bytes(self, tensor: Tensor) -> int:
        return Buffer("", self.dtype_of(tensor), (tensor.size,)).num_bytes

    def _place_calls(self, outputs: Mapping[Tensor, int]) -> tuple[int, list[DeviceCall]]:
        """Return the bytes of the arena, and the calls with their memory."""
        lives: dict[Tensor, Lifetime] = {}
        for number, (_, _, names, _) in enumerate(self.programs):
            for tensor, _ in names.values():
                if tensor.role == "made" and tensor not in outputs:
                    first = lives[tensor].first if tensor in lives else number
                    lives[tensor] = Lifetime(self._bytes(tensor), first, number)
        offsets, total = place_tensors(lives)

        def region(tensor: Tensor, elements: int) -> Region:
            skipped = elements * self._bytes(tensor) // max(1, tensor.size)
            role: Role = "arena"
            index, offset = 0, offsets.get(tensor, 0)
            if self._is_state(tensor):
                role, index, offset = "state", tensor.place - self.first_state, 0
            elif tensor.role == "input":
                role, index, offset = "input", tensor.place, 0
            elif tensor.role == "weight":
                role, offset = "weight", self._weight_form(tensor).offset
            elif tensor in outputs:
                role, index, offset = "output", outputs[tensor], 0
            return Region(role, index, offset + skipped, self._bytes(tensor) - skipped)

        calls = [
            DeviceCall(name, program, {word: region(*one) for word, one in names.items()}, rest)
            for name, program, names, rest in self.programs
        ]
        return total, calls

    def _weight_form(self, tensor: Tensor) -> WeightForm:
        """Return a weight in the format in which memory holds it."""
        key = tensor.place, self.dtype_of(tensor)
        if key not in self.forms:
            self.forms[key] = WeightForm(*key, self.weight_bytes)
            self.weight_bytes += -(-self._bytes(tensor) // ALIGNMENT) * ALIGNMENT
        return self.forms[key]


def _conversion_program(size: int, before: str, after: str) -> TritonProgram:
    """Return a program that copies elements into another number format."""
    block = 1024
    value = Name("value")
    copy = Cast(clamp_finite(value, after) if before == "float32" else value, after)
    grid = -(-size // block)
    wide = ".to(tl.int64)" if size >= 1 << 31 else ""
    source = f'''"""Copies {size} elements of {before} to {after}."""

import triton
import triton.language as tl


@triton.jit
def convert(source_ptr, copy_ptr):
    at = tl.program_id(0){wide} * {block} + tl.arange(0, {block})
    value = tl.load(source_ptr + at, mask=at < {size})
    tl.store(copy_ptr + at, {print_expr(copy)}, mask=at < {size})
'''
    buffers = (Buffer("source", before, (size,)), Buffer("copy", after, (size,)))
    kernel = TritonKernel("convert", buffers, grid, 4, 1, {"enable_fp_fusion": True})
    return TritonProgram("", source, (kernel,), "copy")

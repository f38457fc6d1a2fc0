"""Summaries of a model's inputs, outputs, state, kernels and operators, for any kind of device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence

import numpy as np

from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.sizes import Size
from anatune.core.workload.text import workload_to_text
from anatune.network.compiling.attention import PlannedAttention
from anatune.network.compiling.planning import PlannedKernel
from anatune.network.graph.nodes import ITEM, LEADING, Graph, Node, TensorType, Value, iterate_values, tensor_type
from anatune.network.graph.operators import ATTENTION, PRODUCTS, PUT, WINDOW
from anatune.network.graph.products import workload_of
from anatune.network.graph.state import StatePair
from anatune.network.graph.summary import KernelSummary, OperatorSummary, RangeSummary, StateSummary, TensorSummary
from anatune.network.kernels.functions import count_instructions
from anatune.network.relax.kernels import ModelKernel
from anatune.network.relax.ranges import Ranges, name_of
from anatune.templates import templates_of

__all__ = [
    "attention_summary",
    "inputs_of",
    "kernel_summary",
    "operators_of",
    "outputs_of",
    "ranges_of",
    "rows_of",
    "state_of",
]


_REDUCTIONS = ("max", "mean", "min", "prod", "sum")


def inputs_of(graph: Graph) -> tuple[TensorSummary, ...]:
    """Return the summaries of a model's inputs."""
    return tuple(_tensor_summary(value.name, value) for value in graph.inputs)


def outputs_of(graph: Graph) -> tuple[TensorSummary, ...]:
    """Return the summaries of a model's outputs, with numbered names."""
    return tuple(_tensor_summary(f"output{number}", value) for number, value in enumerate(graph.outputs))


def _tensor_summary(name: str, value: Value) -> TensorSummary:
    type_ = tensor_type(value)
    return TensorSummary(
        name, type_.dtype, tuple(name_of(size) if isinstance(size, Size) else size for size in type_.shape)
    )


def state_of(graph: Graph, pairs: Sequence[StatePair], num_weights: int) -> tuple[StateSummary, ...]:
    """Return the summaries of a model's state; its initial values are the last weights."""
    if not pairs:
        return ()
    number = num_weights - sum(pair.initial is not None for pair in pairs)
    summaries = []
    count = len(pairs)
    for pair, value, new in zip(pairs, graph.inputs[-count:], graph.outputs[-count:], strict=True):
        tensor, first, after = _tensor_summary(pair.name, value), None, ""
        if pair.initial is not None:
            first, number = number, number + 1
        if pair.axis >= 0:
            assert isinstance(new, Node)
            after = name_of(new.arguments[2].value + tensor_type(new.arguments[1]).shape[pair.axis])
        summaries.append(
            StateSummary(
                tensor.name, tensor.dtype, tensor.shape, first, max(pair.axis, 0), name_of(pair.symbol), after
            )
        )  # fmt: skip
    return tuple(summaries)


def ranges_of(ranges: Ranges, planned: Mapping[str, int]) -> dict[str, RangeSummary]:
    """Return the ranges of a model's sizes, and the value that each was planned for."""
    return {name_of(symbol): RangeSummary(*ends, planned[symbol]) for symbol, ends in ranges.items()}


def kernel_summary(kernel: PlannedKernel, facts: CompilerFacts | None = None) -> KernelSummary:
    """Return the summary of a planned kernel.

    Parameters
    ----------
    facts : CompilerFacts, optional
        The report of the compiler of a GPU's kernels.
    """
    workload, varies = kernel.workload, ""
    if kernel.span is not None:
        axis, least, most = kernel.span[:3]
        workload, varies = workload_of(kernel.nodes[0]), f"{axis} {least}..{most}"
    attributes = workload.attribute
    return KernelSummary(
        name=kernel.name,
        workload=workload_to_text(workload),
        count=len(kernel.nodes),
        flop=workload.flop,
        template=kernel.schedule.template,
        schedule=kernel.schedule.to_json(),
        predicted_s=kernel.prediction.time_s,
        bound_by=kernel.prediction.bound_by,
        layout=str(attributes.get("layout", "")),
        epilogue=workload.epilogue,
        registers=None if facts is None else facts.registers,
        spill_bytes=None if facts is None else facts.spill_bytes,
        shared_bytes=None if facts is None else facts.shared_bytes,
        is_tuned=kernel.is_tuned,
        varies=varies,
    )


def attention_summary(attention: PlannedAttention) -> KernelSummary:
    """Return the summary of a planned attention."""
    return KernelSummary(
        name=attention.name,
        workload=attention.text,
        varies=attention.varies,
        count=len(attention.nodes),
        flop=attention.flop,
        template="attention",
        schedule="",
        predicted_s=attention.time_s,
        bound_by=max(attention.parts_s, key=lambda part: attention.parts_s[part]),
        layout="",
        epilogue=(),
    )


def operators_of(graph: Graph, covered: Container[Node], hardware: HardwareSpec) -> tuple[OperatorSummary, ...]:
    """Return the operators without a kernel of anatune, the most frequent first, without reshapes, which copy nothing.

    Parameters
    ----------
    covered : container of Node
        The nodes that have kernels.
    hardware : CpuSpec or GpuSpec
        Device that times are predicted for; a CPU with the cores that kernels may use.
    """
    names = [
        (node.op, node) for node in graph.nodes() if node not in covered and node.op not in (ITEM, LEADING, "reshape")
    ]
    return tuple(sorted(_sum_times(names, hardware), key=lambda operator: -operator.count))


def rows_of(graph: Graph, kernels: Mapping[Node, ModelKernel], hardware: HardwareSpec) -> tuple[OperatorSummary, ...]:
    """Return the summaries of the kernels that are not planned, such as softmax, in the model's order."""
    planned = (*PRODUCTS, ATTENTION)
    unplanned_nodes = [node for node in graph.nodes() if node in kernels and node.op not in planned]
    return _sum_times([(kernels[node].name, node) for node in unplanned_nodes], hardware)


def _sum_times(named: Sequence[tuple[str, Node]], hardware: HardwareSpec) -> tuple[OperatorSummary, ...]:
    """Return how often each name occurs, and the predicted time of all its nodes."""
    counts = Counter(name for name, _ in named)
    times = dict.fromkeys(counts, 0.0)
    time_s = templates_of(hardware)[0].streaming_s
    for name, node in named:
        times[name] += time_s(hardware, _count_bytes(node), _count_flop(node))
    return tuple(OperatorSummary(name, counts[name], times[name]) for name in counts)


def _count_bytes(node: Node) -> int:
    """Return the bytes that a node reads and writes; of a table it reads only the rows that are taken."""
    types = node.type if not isinstance(node.type, TensorType) else (node.type,)
    written = sum(map(_type_bytes, types))
    if node.op == "take":
        return 2 * written
    if node.op == PUT:
        return 2 * _type_bytes(tensor_type(node.arguments[1]))
    read = set(iterate_values(node.arguments))
    return written + sum(_type_bytes(value.type) for value in read if isinstance(value.type, TensorType))


def _type_bytes(type_: TensorType) -> int:
    bytes_each = 2 if type_.dtype == "bfloat16" else np.dtype(type_.dtype).itemsize
    return int(math.prod(type_.shape) * bytes_each)


def _count_flop(node: Node) -> int:
    """Return the operations of a window with its functions, or of a reduction; 0 for any other node.

    An instruction of a function counts as a multiplication and an addition, which take as long.
    """
    if node.op == WINDOW:
        taps: int = math.prod(node.attributes["window"])
        flop: int = taps * node.attributes.get("group", 1)
        flop *= 2 if node.attributes["kind"] in ("depthwise", "grouped") else 1
        flop += 2 * sum(map(count_instructions, node.attributes.get("epilogue", ())))
        return flop * math.prod(tensor_type(node).shape)
    return math.prod(tensor_type(node.arguments[0]).shape) if node.op in _REDUCTIONS else 0

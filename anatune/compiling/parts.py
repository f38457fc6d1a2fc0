"""What a compiled model says of its parts, whatever device it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from anatune.compiling.attention import PlannedAttention
from anatune.compiling.planning import PlannedKernel
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.workload.text import workload_to_text
from anatune.graph.nodes import ITEM, Graph, Value, tensor_type
from anatune.graph.summary import KernelSummary, OperatorSummary, TensorSummary

__all__ = ["attention_summary", "inputs_of", "kernel_summary", "operators_of", "outputs_of"]


def inputs_of(graph: Graph) -> tuple[TensorSummary, ...]:
    """Return a model's inputs."""
    return tuple(_tensor(value.name, value) for value in graph.inputs)


def outputs_of(graph: Graph) -> tuple[TensorSummary, ...]:
    """Return a model's outputs, numbered."""
    return tuple(_tensor(f"output{number}", value) for number, value in enumerate(graph.outputs))


def _tensor(name: str, value: Value) -> TensorSummary:
    kind = tensor_type(value)
    return TensorSummary(name, kind.dtype, kind.shape)


def kernel_summary(one: PlannedKernel, facts: CompilerFacts | None = None) -> KernelSummary:
    """Return what is known of a planned kernel.

    Parameters
    ----------
    facts : CompilerFacts, optional
        What the compiler of a GPU's kernels said.
    """
    workload, attributes = one.workload, one.workload.attribute
    return KernelSummary(
        name=one.name,
        workload=workload_to_text(workload),
        count=len(one.nodes),
        flop=workload.flop,
        template=one.schedule.template,
        schedule=one.schedule.to_json(),
        predicted_s=one.prediction.time_s,
        bound_by=one.prediction.bound_by,
        layout=str(attributes.get("layout", "")),
        epilogue=workload.epilogue,
        registers=None if facts is None else facts.registers,
        spill_bytes=None if facts is None else facts.spill_bytes,
        shared_bytes=None if facts is None else facts.shared_bytes,
    )


def attention_summary(one: PlannedAttention) -> KernelSummary:
    """Return what is known of a planned attention."""
    return KernelSummary(
        name=one.name,
        workload=one.text,
        count=len(one.nodes),
        flop=one.flop,
        template="attention",
        schedule="",
        predicted_s=one.time_s,
        bound_by=max(one.parts_s, key=lambda part: one.parts_s[part]),
        layout="",
        epilogue=(),
    )


def operators_of(graph: Graph, known: Container[int]) -> tuple[OperatorSummary, ...]:
    """Return what anatune has no kernels for, by the ``id`` of nodes; reshapes only name memory anew."""
    names = Counter(node.op for node in graph.nodes() if id(node) not in known and node.op not in (ITEM, "reshape"))
    return tuple(OperatorSummary(name, count) for name, count in names.most_common())

"""Summaries of a planned model of launches: its tensors, kernels, predicted times, and places of its initial state."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence

from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import GpuSpec
from anatune.network.compiling.parts import inputs_of, kernel_summary, outputs_of, ranges_of
from anatune.network.compiling.targets.base import PlannedModel
from anatune.network.graph.nodes import Node, tensor_type
from anatune.network.graph.summary import ModelSummary, OperatorSummary, StateSummary, WeightPlace, byte_count
from anatune.network.relax.device.lowering import LoweredModel
from anatune.network.relax.device.program import ALIGNMENT
from anatune.network.relax.ranges import name_of
from anatune.templates.gpu.streaming import streaming_s
from anatune.version import __version__

__all__ = ["memory_size", "state_places", "summary_of"]


def summary_of(
    planned: PlannedModel, lowered: LoweredModel, hardware: GpuSpec, precision: str, facts: Mapping[str, CompilerFacts]
) -> ModelSummary:
    """Return the summary of a model; `facts` holds the compiler's report for each planned kernel, by name."""
    rows: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    named = {kernel.name for kernel in planned.kernels}
    for call in lowered.calls:
        if call.name in named:
            continue
        rows[call.name] += 1
        if call.rest:
            call_s = streaming_s(hardware, call.rest.num_bytes, call.rest.flop, call.rest.cached_bytes)
        else:
            call_s = streaming_s(hardware, sum(one.num_bytes for one in call.regions.values()))
        seconds[call.name] = seconds.get(call.name, 0.0) + call_s
    inputs, outputs, initial = (inputs_of(planned.graph), outputs_of(planned.graph), state_places(planned, lowered))
    return ModelSummary(
        version=__version__,
        hardware=hardware.name,
        arch=hardware.arch,
        machine=platform.machine(),
        features=(),
        threads=1,
        precision=precision,
        is_tuple=planned.graph.is_tuple and not planned.is_single,
        inputs=inputs[: len(inputs) - len(planned.state) - bool(planned.ranges)],
        outputs=outputs[: len(outputs) - len(planned.state)],
        state=_state_summaries(planned),
        ranges=ranges_of(planned.ranges, {symbol: ends[1] for symbol, ends in planned.ranges.items()}),
        weights=initial,
        weight_bytes=memory_size(initial, lowered),
        kernels=tuple(kernel_summary(kernel, facts.get(kernel.name)) for kernel in planned.kernels),
        operators=(),
        rows=tuple(OperatorSummary(name, count, seconds[name]) for name, count in rows.items()),
        device="gpu",
        launches=sum(len(call.program.kernels) for call in lowered.calls),
        arena_bytes=lowered.arena_bytes,
    )


def state_places(planned: PlannedModel, lowered: LoweredModel) -> tuple[WeightPlace, ...]:
    """Return the places of the initial state, which follow the weights."""
    places, offset = [], lowered.weight_bytes
    for pair in planned.state:
        if pair.initial is not None:
            places.append(WeightPlace(offset, pair.initial.dtype.name, pair.initial.shape))
            offset += -(-pair.initial.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(places)


def _state_summaries(planned: PlannedModel) -> tuple[StateSummary, ...]:
    """Return the summaries of the state; each call writes its rows after those that are held."""
    summaries, initial_count = [], 0
    graph, count = planned.graph, len(planned.state)
    inputs, outputs = graph.inputs[len(graph.inputs) - count :], graph.outputs[len(graph.outputs) - count :]
    for pair, value, new in zip(planned.state, inputs, outputs, strict=True):
        shape, dtype = tensor_type(value)
        initial, initial_count = (None, initial_count) if pair.initial is None else (initial_count, initial_count + 1)
        held_name = name_of(pair.symbol)
        rows = tensor_type(new.arguments[1]).shape[pair.axis] if held_name and isinstance(new, Node) else 0
        size_after = f"{held_name} + {rows}" if held_name else ""
        summaries.append(StateSummary(pair.name, dtype, shape, initial, max(pair.axis, 0), held_name, size_after))
    return tuple(summaries)


def memory_size(initial: Sequence[WeightPlace], lowered: LoweredModel) -> int:
    """Return the bytes of all weights and of the initial state."""
    return initial[-1].offset + byte_count(initial[-1]) if initial else lowered.weight_bytes

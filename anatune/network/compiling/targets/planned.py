"""Plan an imported model for a device: check whether its sizes may vary there, and extend its kernels to all sizes."""

from __future__ import annotations

from anatune.errors import SpaceError, WorkloadError
from anatune.network.compiling.sizes.varying import varying_ranges
from anatune.network.compiling.targets.base import ModelTarget, PlannedModel
from anatune.network.graph.nodes import Graph
from anatune.network.relax.frontends import ImportedModel
from anatune.network.relax.ranges import name_of

__all__ = ["check_sizes", "plan_model"]


def check_sizes(source: ImportedModel, target: ModelTarget) -> None:
    """Raise SpaceError or WorkloadError if a target does not support a model's varying sizes or its state."""
    hardware = target.hardware
    if source.state and not target.keeps_state:
        raise WorkloadError(
            f"compile: {source.name} keeps {source.state[0].name} between calls, which float32 models on "
            f"{hardware.name} cannot; give a precision of 16 bits, or make the state an input and an output"
        )
    vary = varying_ranges(source.ranges)
    if hardware.kind == "gpu" and len(vary) == 1 and set(vary) == {pair.symbol for pair in source.state if pair.symbol}:
        return  # kernels take the held size of a state at run time
    if not (names := ", ".join(map(name_of, vary))):
        return
    what = f"compile: sizes of {source.name} vary ({names}),"
    if target.measures:
        raise SpaceError(
            f"{what} but kernels are measured at fixed sizes; leave trials and records out, or give example inputs "
            "(--input-shape)"
        )
    if hardware.kind == "gpu":
        raise WorkloadError(
            f"{what} but on the GPU {hardware.name} only the held size of a state may vary; give the sizes to compile "
            "for (--size, --input-shape)"
        )
    if target.request.fallback is not None:
        raise SpaceError(f"{what} but a fallback needs fixed sizes; give example inputs (--input-shape)")


def plan_model(target: ModelTarget, graph: Graph, source: ImportedModel) -> PlannedModel:
    """Return an imported model with its kernels; `graph` is its graph at the first of its sizes."""
    varies = bool(varying_ranges(source.ranges))
    planned = target.plan(graph, varies=varies)._replace(state=source.state, is_single=source.is_single)
    return target.extend_to_all_sizes(planned, source) if varies else planned

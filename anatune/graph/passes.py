"""What is done to every model before it is planned, in order."""

from __future__ import annotations

from anatune.graph.activations import with_activations
from anatune.graph.commuting import pools_last
from anatune.graph.concatenations import with_concatenations
from anatune.graph.layouts import Choice, channels_last, laid_out
from anatune.graph.nodes import Graph
from anatune.graph.products import with_products
from anatune.graph.reductions import with_reductions
from anatune.graph.rows import with_maps, with_rows
from anatune.graph.scaling import scalars_last, without_batch_norms, without_scales
from anatune.graph.simplify import simplified
from anatune.graph.windows import with_windows

__all__ = ["for_cpu", "in_both_orders", "in_orders", "without_orders"]


def without_orders(graph: Graph) -> Graph:
    """Return the graph whose layouts are chosen next, activations as the model has them.

    Constants are computed, batch norms are part of the weights, products have taken the steps that follow them, average
    pools come behind 1x1 convolutions of fewer channels.
    """
    return with_products(simplified(pools_last(with_rows(_scaled(graph)))))


def in_orders(graph: Graph, choice: Choice) -> Graph:
    """Return a graph with activations in the chosen orders."""
    return simplified(with_maps(laid_out(graph, choice)))


def for_cpu(graph: Graph) -> Graph:
    """Return a prepared graph in which windows, reductions and concatenations have their kernels for CPUs, too."""
    return simplified(with_concatenations(simplified(with_windows(with_reductions(graph)))))


def in_both_orders(graph: Graph) -> tuple[Graph, Graph]:
    """Return a graph whose products alone are anatune's, with channels first, and last wherever an operator can.

    Everything else stays TVM's: on GPUs it has schedules for that.
    """
    whole = simplified(with_products(_scaled(graph)))
    return whole, simplified(laid_out(whole, channels_last(whole)))


def _scaled(graph: Graph) -> Graph:
    """Return a graph with its constants computed, and batch norms and factors as parts of weights."""
    plain = with_activations(simplified(without_batch_norms(simplified(graph))))
    return simplified(without_scales(simplified(scalars_last(plain))))

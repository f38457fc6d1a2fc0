"""The passes over every model, in order.

A pass is a function from graph to graph; its name and the first line of its docstring say what it does. Not in these
lists are `pools.with_partial_means` and `precision.widened`, for what a PyTorch or ONNX model says (`Imported.graph`),
and those that take a decision besides, which compiling makes: `layouts.laid_out` the orders of activations,
`attention.with_attention` which attentions pay as kernels, `precision.marked` and `stored` what has 16 bits,
`few_bits.with_byte_weights` whether there are kernels for it, `quantising.with_conversions` the scales of activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anatune.network.graph.experts.passes import with_experts, with_gates, with_rounds, with_terms, without_groups
from anatune.network.graph.integers.few_bits import unpacked_products
from anatune.network.graph.nodes import Graph
from anatune.network.graph.operators import DEQUANTIZE, QUANTIZE
from anatune.network.graph.passes.activations import with_activations
from anatune.network.graph.passes.integers import integers_moved, with_integer_products
from anatune.network.graph.passes.pools import pools_last
from anatune.network.graph.passes.products import with_products
from anatune.network.graph.passes.recurrent import with_recurrences, without_recurrences
from anatune.network.graph.passes.rows import with_checked_divisors, with_concatenations, with_rows, with_scatters
from anatune.network.graph.passes.scaling import scalars_last, without_batch_norms, without_scales
from anatune.network.graph.passes.simplify import simplified
from anatune.network.graph.passes.tables import with_tables
from anatune.network.graph.passes.windows import with_means, with_windows

__all__ = ["CPU", "CPU_KERNELS", "GPU", "MATRIX_UNITS", "WEIGHTS", "Pass", "after", "with_integers"]

Pass = Callable[[Graph], Graph]

WEIGHTS: tuple[Pass, ...] = (
    without_groups,
    simplified,
    without_batch_norms,
    simplified,
    with_activations,
    scalars_last,
    simplified,
    without_scales,
    simplified,
)
"""Of every model: what is known becomes a part of weights."""
_INTEGERS: tuple[Pass, ...] = (integers_moved, with_activations, with_integer_products, simplified, with_tables)


def after(passes: Sequence[Pass], graph: Graph) -> Graph:
    """Return what passes make of a graph, one after the other."""
    for change in passes:
        graph = change(graph)
    return graph


def with_integers(graph: Graph) -> Graph:
    """Return a graph whose products, moves and functions of converted 8-bit integers are those of integers."""
    is_quantised = any(node.op in (QUANTIZE, DEQUANTIZE) for node in graph.nodes())
    return after(_INTEGERS, graph) if is_quantised else graph


CPU: tuple[Pass, ...] = (
    with_recurrences,
    with_integers,
    *WEIGHTS,
    with_rows,
    pools_last,
    simplified,
    with_products,
)
"""Of a model for a CPU as it was imported: what comes out has its activations as the model has them. Their orders are
chosen next."""
CPU_KERNELS: tuple[Pass, ...] = (
    with_means,
    with_windows,
    simplified,
    with_concatenations,
    with_scatters,
    simplified,
    with_checked_divisors,
)
"""Of a model for a CPU whose activations lie in the chosen orders. Attentions are chosen next."""
GPU: tuple[Pass, ...] = (unpacked_products, without_recurrences, *WEIGHTS, with_products, simplified)
"""Of a model for a GPU as it was imported: products alone are anatune's, for everything else TVM has schedules there.
What comes out is compared with itself with channels last wherever an operator can have them so."""
MATRIX_UNITS: tuple[Pass, ...] = (
    unpacked_products,
    without_recurrences,
    with_experts,
    with_rounds,
    *WEIGHTS,
    with_gates,
    with_terms,
    with_rows,
    with_products,
    simplified,
)
"""Of a model for a GPU's matrix units: attentions are looked for next, then rows become operators again
(`rows.without_rows`)."""

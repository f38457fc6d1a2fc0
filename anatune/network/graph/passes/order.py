"""The lists of passes that every network goes through, in order.

A pass is a function from graph to graph. Its name and the first line of its docstring say what it does. These lists
leave out two groups of passes: `precision.compute_in_float32` and the state (`graph.state`), which depend on the
PyTorch or ONNX model (`ImportedModel.graph`), and passes that need a decision of the compiler. These are
`layouts.apply_layout` (orders of activations), `attention.fuse_attention` (attentions for which a kernel pays),
`precision.mark_products` and `store_16_bit` (values of 16 bits), `few_bits.pack_byte_weights` (which kernels exist) and
`quantising.insert_conversions` (scales).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anatune.network.graph.experts.passes import (
    expand_groups,
    expand_sums,
    fuse_gates,
    select_in_rounds,
    unsort_experts,
)
from anatune.network.graph.integers.few_bits import unpack_products
from anatune.network.graph.nodes import Graph
from anatune.network.graph.operators import DEQUANTIZE, QUANTIZE
from anatune.network.graph.passes.activations import fuse_activations
from anatune.network.graph.passes.integers import fuse_integer_products, move_conversions
from anatune.network.graph.passes.pools import move_pools_last
from anatune.network.graph.passes.products import fuse_products
from anatune.network.graph.passes.recurrent import unroll_recurrent_layers
from anatune.network.graph.passes.rows import check_divisors, fuse_rows, lower_concatenations, lower_scatters
from anatune.network.graph.passes.scaling import fold_batch_norms, fold_scales, move_scalars_last
from anatune.network.graph.passes.simplify import simplify
from anatune.network.graph.passes.tables import replace_by_tables
from anatune.network.graph.passes.windows import lower_windows, replace_global_pools

__all__ = ["CPU", "CPU_KERNELS", "GPU", "MATRIX_UNITS", "WEIGHTS", "Pass", "fuse_integers", "run_passes"]

Pass = Callable[[Graph], Graph]

WEIGHTS: tuple[Pass, ...] = (
    expand_groups,
    simplify,
    fold_batch_norms,
    simplify,
    fuse_activations,
    move_scalars_last,
    simplify,
    fold_scales,
    simplify,
)
"""The passes for every network; they fold constants into weights."""
_INTEGERS: tuple[Pass, ...] = (move_conversions, fuse_activations, fuse_integer_products, simplify, replace_by_tables)


def run_passes(passes: Sequence[Pass], graph: Graph) -> Graph:
    """Return the result of passes that are applied to a graph one after the other."""
    for change in passes:
        graph = change(graph)
    return graph


def fuse_integers(graph: Graph) -> Graph:
    """Return a graph in which products, data movement and functions of dequantised 8-bit integers use integers."""
    is_quantised = any(node.op in (QUANTIZE, DEQUANTIZE) for node in graph.nodes())
    return run_passes(_INTEGERS, graph) if is_quantised else graph


CPU: tuple[Pass, ...] = (fuse_integers, *WEIGHTS, fuse_rows, move_pools_last, simplify, fuse_products)
"""The passes for an imported network on a CPU. The result has activations in the order of the network. The compiler
chooses their orders next."""
CPU_KERNELS: tuple[Pass, ...] = (
    replace_global_pools,
    lower_windows,
    simplify,
    lower_concatenations,
    lower_scatters,
    simplify,
    check_divisors,
)
"""The passes for a network on a CPU after its orders are chosen. The compiler chooses attentions next."""
GPU: tuple[Pass, ...] = (unpack_products, unroll_recurrent_layers, *WEIGHTS, fuse_products, simplify)
"""The passes for an imported network on a GPU where anatune compiles only the products and TVM everything else. The
compiler compares the result with its channels-last form."""
MATRIX_UNITS: tuple[Pass, ...] = (
    unpack_products,
    unroll_recurrent_layers,
    unsort_experts,
    select_in_rounds,
    *WEIGHTS,
    fuse_gates,
    expand_sums,
    fuse_rows,
    fuse_products,
    simplify,
)
"""The passes for an imported network on a GPU's matrix units. The compiler looks for attentions next and then turns
rows back into operators (`rows.expand_rows`)."""

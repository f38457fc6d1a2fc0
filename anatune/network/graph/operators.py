"""The operators of networks. Each has an entry that passes, folding, checks, layouts and code generation read.

An operator without an entry passes through all passes unchanged, except those that know it by name (batch norms,
splits, dropouts), and only TVM knows what it computes. A new operator is a new entry in `_ENTRIES`. If NumPy needs more
than an expression for it, its function is in `graph.meanings`. Operators with kernels of anatune begin with
``anatune.``:

``anatune.convolution``, ``anatune.matmul``, ``anatune.batch_matmul``
    Operands: data, weights and the operands of the steps in attribute ``epilogue``. Each is one `Workload`
    (`graph.products`), hence a planned kernel. Attribute ``dtype`` is the dtype to multiply in, if the operands do not
    have it yet (`graph.passes.precision`).
``anatune.scaled_matmul``, ``scaled_matmul``
    Operands: data (..., k) float32, weights of 8 bits (n, k) int8 or of 4 bits (n, k / 2) uint8, scales (n, k / group)
    float32, zero points of the shape of the scales if attribute ``zero_points`` is set, and operands of the epilogue.
    Attributes ``bits``, ``group`` and ``rounded`` are those of the workload (`core.workload.operators.scaled`).
``grouped_matmul``
    Operands: rows (rows, k), in which the rows of a group are adjacent; matrices (groups, k, n); the end of each
    group's rows (groups,). The result is each row times the matrix of its group.
``histogram``
    Operand: numbers (rows,). The result holds the number of them in each of ``bins`` equal intervals between
    ``low`` and ``high``.
``anatune.experts``
    A grouped_matmul of unsorted rows, for GPUs. Operands: tokens, or with attribute ``expanded`` a row for each token
    and choice, weights (experts, n, k), and the result of ``anatune.route``, passed twice. Attributes ``top_k``
    and ``activation`` are those of the workload `grouped_matmul`.
``anatune.route``
    Operand: the expert of each row (rows,). The result, int32, holds the end of the rows of each of ``experts``, padded
    to 16 bytes, then the indices of all rows, sorted by expert.
``anatune.attention``
    Operands: three tensors that hold queries, keys and values, and optionally a mask (mask_rows, keys) as in the
    softmax. The result is a matrix (batch * queries, heads * value_dim). Attributes: ``batch``, ``heads``, ``queries``,
    ``keys``, ``dim``, ``value_dim``; ``scale``, ``zero_rows``, ``block`` as in the softmax; ``places``, a
    `graph.strided.HeadLayout` of each tensor; ``visible``, the number of keys, counted from the first, that each query
    may see, (): all; ``causal``, if sizes are unknown before run time: query q sees at most ``q + 1 + causal`` keys,
    None: all. For matrix units (`passes.attention.replace_mask`) ``is_causal`` and ``window`` replace the mask. Keys
    and values may be pools of pages of ``page_size`` keys, followed by a table (batch, pages) int32, and ``counted``
    may name one more operand (`core.workload.operators.attention.strided_attention`).
``anatune.softmax``
    Operands: data (rows, length) and optionally a mask (mask_rows, length), of which a row is added to each row of the
    data times attribute ``scale``. The first ``block`` rows of the data cycle through the rows of the mask; if
    ``block`` is less than all rows, each block uses the next part of the mask. With ``zero_rows`` a row of only
    ``-inf`` becomes zeros.
``anatune.layer_norm``
    Operands: data (rows, length), a factor and a term (length,).
``anatune.concat``
    Operands: matrices with the same number of rows, which are concatenated along their rows.
``anatune.window``
    Operands: data (n, blocks, height, width, channels of a block), weights (blocks, vertical taps, horizontal taps,
    channels) if attribute ``kind`` is "depthwise" (else "max" or "mean"), and the operands of ``epilogue``: a bias
    (blocks, channels), a sum of the result's shape. With channels last there is one block. ``outputs``, ``window``,
    ``strides``, ``dilation`` and ``before`` (the padding) hold height and width. ``counts_padding`` says whether
    padding counts as zeros in a mean. Images of one dimension have height 1.
``anatune.scatter``
    The operands of ``scatter_elements``; the indices are broadcast to the updates.
``recurrent``, ``anatune.recurrent``
    All steps of a layer in one direction (`graph.recurrent`). Operands: products of the inputs (steps, batch, gates *
    hidden); weights (hidden, gates * hidden), in ``anatune.recurrent`` as blocks of units (blocks, hidden, gates,
    units); the state and for an LSTM its cells (batch, hidden); and, according to attributes ``has_term``,
    ``has_peepholes`` and ``has_lengths``, (hidden,), (3 * hidden,), (batch,). The result (steps + states, batch,
    hidden) holds the states of all steps, then the last state and cells.
``anatune.divisor``
    Operand: integers, which are returned. A zero is reported as an error of attribute ``operator``, the division.
``quantize``, ``dequantize``
    Operands: data, a constant scale (float32) and a constant zero point (int32), which are scalars or broadcast. The
    result is 8-bit integers between attributes ``low`` and ``high``, or float32 (`graph.integers.scaled`).
``lookup``
    Operand: integers of 8 bits. The result holds the entry of attribute ``table`` for each, integers of 8 bits.
``anatune.put``
    Operands: an input of the network that is state (`graph.state`), or its pages as rows, then rows, and the indices at
    which they are written along attribute ``axis``: all indices, or a number, the first one. The result is the memory
    of the input after the write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anatune.core.activations import ACTIVATIONS
from anatune.network.graph import meanings
from anatune.network.graph.nodes import Argument, Array, Node, Shape, TensorType, Value, tensor_type

__all__ = [
    "ATTENTION", "BATCH_MATMUL", "CONCAT", "CONVOLUTION", "CONVOLUTIONS", "DEQUANTIZE", "DIVISIONS", "DIVISOR",
    "EXPERTS", "GROUPED_MATMUL", "HISTOGRAM", "LAYER_NORM", "MATMUL", "OPERATORS", "PRODUCTS", "PUT", "QUANTIZE",
    "RECURRENCE", "RECURRENT", "ROUTE", "SCALED_MATMUL", "SCATTER", "SOFTMAX", "WINDOW", "Operator",
    "apply_operator", "find_operator",
]  # fmt: skip

CONVOLUTION, MATMUL, BATCH_MATMUL = "anatune.convolution", "anatune.matmul", "anatune.batch_matmul"
SCALED_MATMUL = "anatune.scaled_matmul"
PRODUCTS = (CONVOLUTION, MATMUL, BATCH_MATMUL, SCALED_MATMUL)
ATTENTION = "anatune.attention"
GROUPED_MATMUL, EXPERTS, ROUTE = "grouped_matmul", "anatune.experts", "anatune.route"
HISTOGRAM = "histogram"
SOFTMAX, LAYER_NORM, CONCAT = "anatune.softmax", "anatune.layer_norm", "anatune.concat"
WINDOW, PUT = "anatune.window", "anatune.put"
SCATTER = "anatune.scatter"
QUANTIZE, DEQUANTIZE = "quantize", "dequantize"
DIVISIONS, DIVISOR = ("divide", "floor_divide", "floor_mod", "mod"), "anatune.divisor"
RECURRENT, RECURRENCE = "recurrent", "anatune.recurrent"
_ATTRS = "relax.attrs."
_STATISTICS = f"{_ATTRS}StatisticalAttrs"


@dataclass(frozen=True)
class Operator:
    """The description of an operator.

    Attributes
    ----------
    name : str
        The name in nodes.
    compute : callable, optional
        The NumPy function: takes arrays, tuples for shapes and NumPy's numbers in the order of the arguments,
        attributes by name. None: only TVM, or for products their workload, can compute the operator.
    type_of : callable, optional
        Takes the same arguments and attributes, and returns the type of the result (`apply_operator`).
    kind : str
        TVM's name of the type of the attributes, for operators that passes and readers create.
    layout : str
        A key of `graph.passes.layouts._FAMILIES`: how the operator changes with the order of dimensions; "": it always
        has the order of the network.
    own : str
        The operator of anatune that replaces it if there is a kernel for it; "": TVM compiles it.
    fused_into : tuple of str
        Operators of anatune whose kernels can compute it in their stores; it has no operand besides the data.
    commutes : bool
        Whether its two operands may be exchanged.
    is_reshape : bool
        Whether it is a reshape to the shape of its result under another name.
    is_conversion : bool
        Whether it returns its first argument if that has the type of the result.
    reads_type_only : bool
        Whether only the type of its first argument matters.
    spells_activations : bool
        Whether networks express activations by several operators of this kind.
    """

    name: str
    compute: Callable[..., Array] | None = None
    type_of: Callable[..., TensorType] | None = None
    kind: str = ""
    layout: str = ""
    own: str = ""
    fused_into: tuple[str, ...] = ()
    commutes: bool = False
    is_reshape: bool = False
    is_conversion: bool = False
    reads_type_only: bool = False
    spells_activations: bool = False

    @property
    def is_own(self) -> bool:
        """Return whether it is an operator of anatune."""
        return self.name.startswith("anatune.")

    @property
    def word(self) -> str:
        """The name of its kernels and of fused steps: the name without the prefix ``nn.``."""
        return self.name.removeprefix("nn.")


def _broadcast_type(*arguments: Argument, **_: object) -> TensorType:
    """Return the type of an elementwise operator; operands have the dtype of the first one, or are numbers."""
    kinds = [tensor_type(argument) for argument in arguments if isinstance(argument, Value)]
    return TensorType(np.broadcast_shapes(*(kind.shape for kind in kinds)), kinds[0].dtype)


def _comparison_type(*arguments: Argument, **_: object) -> TensorType:
    return _broadcast_type(*arguments)._replace(dtype="bool")


def _reshape_type(data: Value, shape: Shape) -> TensorType:
    return TensorType(tuple(shape), tensor_type(data).dtype)


def _permute_type(data: Value, *, axes: tuple[int, ...]) -> TensorType:
    kind = tensor_type(data)
    return TensorType(tuple(kind.shape[axis] for axis in axes), kind.dtype)


def _elementwise(
    name: str,
    compute: Callable[..., Array],
    *,
    fused_into: tuple[str, ...] = (),
    commutes: bool = False,
    spells: bool = False,
) -> Operator:
    """Return an elementwise operator, which can have any order of dimensions."""
    return Operator(
        name, compute, _broadcast_type, layout="elementwise", fused_into=fused_into, commutes=commutes,
        spells_activations=spells,
    )  # fmt: skip


_ENTRIES = (
    # Functions of one number.
    _elementwise("abs", np.abs),
    _elementwise("clip", np.clip, spells=True),
    _elementwise("erf", meanings.erf, spells=True),
    _elementwise("erfc", meanings.erfc),
    _elementwise("exp", np.exp, spells=True),
    _elementwise("expm1", np.expm1),
    _elementwise("floor", np.floor),
    _elementwise("log", np.log),
    _elementwise("log1p", np.log1p),
    _elementwise("mish", lambda array: array * np.tanh(np.logaddexp(array, 0))),
    _elementwise("negative", np.negative, spells=True),
    _elementwise("nn.gelu", ACTIVATIONS["gelu"], fused_into=PRODUCTS),
    _elementwise("nn.gelu_tanh", ACTIVATIONS["gelu_tanh"], fused_into=PRODUCTS),
    _elementwise("nn.leakyrelu", lambda array, alpha: np.where(array > 0, array, alpha * array)),
    _elementwise("nn.relu", ACTIVATIONS["relu"], fused_into=(*PRODUCTS, WINDOW), spells=True),
    _elementwise("nn.relu6", ACTIVATIONS["relu6"], fused_into=(*PRODUCTS, WINDOW)),
    _elementwise("nn.silu", ACTIVATIONS["silu"], fused_into=PRODUCTS),
    _elementwise("rsqrt", lambda array: 1.0 / np.sqrt(array)),
    _elementwise("sigmoid", meanings.sigmoid, spells=True),
    _elementwise("sqrt", np.sqrt),
    _elementwise("square", np.square, spells=True),
    _elementwise("tanh", np.tanh, spells=True),
    Operator("astype", np.asarray, kind=f"{_ATTRS}AstypeAttrs", is_conversion=True),
    *(
        Operator(name, getattr(np, f"arc{name[1:]}" if name.startswith("a") else name), _broadcast_type)
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan")
    ),
    Operator("bitwise_not", np.bitwise_not, _broadcast_type),
    Operator("ceil", np.ceil, _broadcast_type),
    *(Operator(name, getattr(np, name), _broadcast_type) for name in ("copysign", "exp2", "hypot", "log10", "log2")),
    Operator("atan2", np.arctan2, _broadcast_type),
    Operator("isfinite", np.isfinite, _comparison_type),
    Operator("isinf", np.isinf, _comparison_type),
    Operator("isnan", np.isnan, _comparison_type),
    Operator("logical_not", np.logical_not, _comparison_type),
    Operator("round", np.round, _broadcast_type),
    Operator("sign", meanings.sign, _broadcast_type),
    Operator("trunc", np.trunc, _broadcast_type),
    # Functions of two or three numbers.
    _elementwise("add", np.add, commutes=True, spells=True),
    _elementwise("divide", np.divide, spells=True),
    _elementwise("maximum", np.maximum, commutes=True, spells=True),
    _elementwise("minimum", np.minimum, commutes=True, spells=True),
    _elementwise("multiply", np.multiply, commutes=True, spells=True),
    _elementwise("power", np.power, spells=True),
    _elementwise("subtract", np.subtract, spells=True),
    Operator("bitwise_and", np.bitwise_and, _broadcast_type),
    Operator("bitwise_or", np.bitwise_or, _broadcast_type),
    Operator("bitwise_xor", np.bitwise_xor, _broadcast_type),
    Operator("equal", np.equal, _comparison_type),
    Operator("floor_divide", np.floor_divide, _broadcast_type),
    Operator("floor_mod", np.mod, _broadcast_type),
    Operator("greater", np.greater, _comparison_type),
    Operator("greater_equal", np.greater_equal, _comparison_type),
    Operator("left_shift", np.left_shift, _broadcast_type),
    Operator("less", np.less, _comparison_type),
    Operator("less_equal", np.less_equal, _comparison_type),
    Operator("logical_and", np.logical_and, _comparison_type),
    Operator("logical_or", np.logical_or, _comparison_type),
    Operator("logical_xor", np.logical_xor, _comparison_type),
    Operator("mod", np.fmod, _broadcast_type),
    Operator("not_equal", np.not_equal, _comparison_type),
    Operator("right_shift", np.right_shift, _broadcast_type),
    Operator("where", np.where),
    # Quantised numbers.
    Operator(QUANTIZE, meanings.quantize, layout="elementwise"),
    Operator(DEQUANTIZE, meanings.dequantize, layout="elementwise"),
    Operator("lookup", meanings.lookup, layout="elementwise"),
    Operator(DIVISOR, lambda array, operator: array),
    # Products.
    *(Operator(f"nn.conv{rank}d", kind=f"{_ATTRS}Conv{rank}DAttrs", own=CONVOLUTION) for rank in (1, 2, 3)),
    Operator("scaled_matmul", meanings.scaled_matmul, own=SCALED_MATMUL),
    Operator("matmul", np.matmul, kind=f"{_ATTRS}MatmulAttrs", own=MATMUL),
    # Sums, means and extremes.
    *(
        Operator(name, getattr(np, name), kind=_STATISTICS, layout="reduction")
        for name in ("max", "mean", "min", "sum")
    ),
    *(Operator(name, getattr(np, name), kind=f"{_ATTRS}ArgmaxArgminAttrs") for name in ("argmax", "argmin")),
    Operator("argsort", meanings.argsort, kind=f"{_ATTRS}ArgsortAttrs"),
    Operator("cumprod", kind=f"{_ATTRS}ScanopAttrs"),
    Operator("cumsum", meanings.cumulative_sum, kind=f"{_ATTRS}ScanopAttrs"),
    Operator(HISTOGRAM, meanings.histogram),
    Operator("nn.layer_norm", meanings.layer_norm, kind=f"{_ATTRS}LayerNormAttrs", own=LAYER_NORM),
    Operator("nn.log_softmax", meanings.log_softmax, kind=f"{_ATTRS}SoftmaxAttrs"),
    Operator("nn.softmax", meanings.softmax, kind=f"{_ATTRS}SoftmaxAttrs", own=SOFTMAX),
    Operator("prod", np.prod, kind=_STATISTICS),
    Operator("std", np.std),
    Operator("topk", meanings.top_indices, kind=f"{_ATTRS}TopKAttrs"),
    Operator("variance", np.var, layout="reduction"),
    # Pools.
    *(
        Operator(f"nn.{kind}_pool{rank}d", kind=f"{_ATTRS}Pool{rank}DAttrs", layout="pool", own=WINDOW)
        for kind in ("max", "avg")
        for rank in (1, 2)
    ),
    *(
        Operator(f"nn.adaptive_avg_pool{rank}d", kind=f"{_ATTRS}AdaptivePool{rank}DAttrs", layout="pool", own=WINDOW)
        for rank in (1, 2)
    ),
    *(Operator(f"nn.{kind}_pool3d", kind=f"{_ATTRS}Pool3DAttrs", layout="pool") for kind in ("max", "avg")),
    Operator("nn.adaptive_avg_pool3d", kind=f"{_ATTRS}AdaptivePool3DAttrs", layout="pool"),
    # Operators that move or select elements.
    Operator("broadcast_to", np.broadcast_to, is_conversion=True),
    Operator("concat", np.concatenate, kind=f"{_ATTRS}ConcatAttrs", layout="concat", own=CONCAT),
    Operator("expand_dims", np.expand_dims, is_reshape=True),
    Operator("flatten", is_reshape=True),
    Operator("flip", np.flip, kind=f"{_ATTRS}FlipAttrs"),
    Operator("gather_elements", np.take_along_axis, kind=f"{_ATTRS}GatherElementsAttrs"),
    Operator("index_tensor", lambda array, indices: array[tuple(indices)]),
    Operator("nn.batch_flatten", is_reshape=True),
    Operator("nn.pad", meanings.pad, kind=f"{_ATTRS}PadAttrs"),
    Operator("permute_dims", np.transpose, _permute_type, f"{_ATTRS}PermuteDimsAttrs"),
    Operator("repeat", np.repeat),
    Operator("reshape", np.reshape, _reshape_type, is_conversion=True),
    Operator("scatter_elements", meanings.scatter_elements, kind=f"{_ATTRS}ScatterElementsAttrs", own=SCATTER),
    Operator("split", kind=f"{_ATTRS}SplitAttrs"),
    Operator("squeeze", np.squeeze, is_reshape=True),
    Operator("stack", np.stack),
    Operator("strided_slice", meanings.strided_slice, kind=f"{_ATTRS}StridedSliceAttrs"),
    Operator("take", meanings.take, kind=f"{_ATTRS}TakeAttrs"),
    Operator("tile", lambda array, repeats: np.tile(array, repeats)),
    Operator("tril", np.tril),
    Operator("triu", np.triu),
    Operator("wrap_param", is_conversion=True),
    # Operators that create tensors.
    Operator("arange", np.arange),
    Operator("full", np.full),
    Operator("full_like", lambda array, value: np.full(array.shape, value), reads_type_only=True),
    Operator("ones", np.ones),
    Operator("ones_like", lambda array: np.ones(array.shape), reads_type_only=True),
    Operator("zeros", np.zeros),
    Operator("zeros_like", lambda array: np.zeros(array.shape), reads_type_only=True),
    # Operators of anatune; products are computed from their workloads.
    Operator(CONVOLUTION, layout="convolution"),
    Operator(MATMUL),
    Operator(BATCH_MATMUL),
    Operator(SCALED_MATMUL),
    Operator(GROUPED_MATMUL),
    Operator(EXPERTS),
    Operator(ROUTE),
    Operator(ATTENTION, meanings.attention),
    Operator(SOFTMAX, meanings.masked_softmax),
    Operator(LAYER_NORM, meanings.layer_norm),
    Operator(CONCAT, lambda *arrays: np.concatenate(arrays, axis=1)),
    Operator(WINDOW, meanings.window),
    Operator(SCATTER, meanings.scatter_elements),
    Operator(PUT, meanings.put),
    Operator(RECURRENT, meanings.recurrent),
    Operator(RECURRENCE, meanings.recurrent),
)

OPERATORS = {operator.name: operator for operator in _ENTRIES}
"""Name -> operator."""
CONVOLUTIONS = tuple(operator.name for operator in _ENTRIES if operator.own == CONVOLUTION)
_UNKNOWN = Operator("")


def find_operator(node: Node) -> Operator:
    """Return the entry of a node's operator, or an empty entry."""
    return OPERATORS.get(node.op, _UNKNOWN)


def apply_operator(name: str, *arguments: Argument, **attributes: object) -> Node:
    """Return a node of an operator whose entry gives the type of the result."""
    operator = OPERATORS[name]
    assert operator.type_of is not None, name
    return Node(name, arguments, operator.type_of(*arguments, **attributes), attributes, operator.kind)

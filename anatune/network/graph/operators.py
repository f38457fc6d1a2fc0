"""The operators of models: one entry says everything about one that passes, folding, checks, layouts and code ask.

An operator without an entry goes through all passes as it was read, but for those that know it by name (batch norms,
splits, dropouts), and TVM alone knows what it computes. A new one is an entry in `_ENTRIES`; where NumPy needs more
than an expression for it, its function stands in `graph.meanings`.
Operators that begin with ``anatune.`` are those of anatune's kernels:

``anatune.convolution``, ``anatune.matmul``, ``anatune.batch_matmul``
    Take data, weights and the operands of the fused steps, which attribute ``epilogue`` names. Each is one `Workload`
    (`graph.products`), hence a planned kernel. Attribute ``dtype`` is what it is to multiply, where its
    operands do not have that yet (`graph.passes.precision`).
``anatune.scaled_matmul``, ``scaled_matmul``
    Takes data (..., k) float32, weights of 8 bits (n, k) int8 or of 4 bits (n, k / 2) uint8, scales (n, k / group)
    float32, zero points likewise where attribute ``zero_points`` says so, and operands of the fused steps; ``bits``,
    ``group`` and ``rounded`` as of the workload (`core.workload.operators.scaled`).
``grouped_matmul``
    Takes rows (rows, k), those of a group together, matrices (groups, k, n) and where the rows of each group end
    (groups,): each row times the matrix of its group.
``histogram``
    Takes numbers (rows,) and returns how many lie in each of ``bins`` equal parts between ``low`` and ``high``.
``anatune.experts``
    As grouped_matmul, of rows that are not sorted, for GPUs. Takes tokens, or, where attribute ``expanded``, a row for
    each token and choice, weights (experts, n, k) and, twice, what ``anatune.route`` returns; ``top_k`` and
    ``activation`` as of the workload `grouped_matmul`.
``anatune.route``
    Takes the expert of each row (rows,) and returns int32: where rows of each of ``experts`` end, filled up to 16
    bytes, then all rows, those of the first expert first.
``anatune.attention``
    Takes three tensors that hold queries, keys and values, and, where there is one, a mask (mask_rows, keys) as the
    softmax takes it. Its result is a matrix (batch * queries, heads * value_dim). Attributes: ``batch``, ``heads``,
    ``queries``, ``keys``, ``dim``, ``value_dim``; ``scale``, ``zero_rows``, ``block`` as of the softmax; ``places``, a
    `graph.strided.Place` of each tensor; ``visible``, for each query how many keys it sees at most, the first ones;
    (): all; ``causal``, where sizes are known at run time: query q sees ``q + 1 + causal`` at most; None: all.
    For matrix units (`passes.attention.without_mask`) ``is_causal`` and ``window`` take the mask's place; keys and
    values may be pools of pages of ``page_size`` keys, a table (batch, pages) int32 behind them, and ``counted`` may
    name one operand more (`core.workload.operators.attention.strided_attention`).
``anatune.softmax``
    Takes data (rows, length) and, where there is a mask, (mask_rows, length), of which a row is added to each row of
    the data times attribute ``scale``: the rows of the mask belong to the first ``block`` rows again and again, or,
    where ``block`` is less than all, the first part of them to the first block, the next one to the next. With
    ``zero_rows`` a row of nothing but ``-inf`` becomes zeros.
``anatune.layer_norm``
    Takes data (rows, length), a factor and a term (length,).
``anatune.concat``
    Takes matrices of as many rows and returns their rows behind each other.
``anatune.window``
    Takes data (n, blocks, height, width, channels of a block), weights (blocks, taps down, taps across, channels) where
    attribute ``kind`` is "depthwise" (else "max" or "mean"), and the operands of the steps in ``epilogue``: a bias
    (blocks, channels), a sum as the result. Where channels come last there is one block. ``outputs``, ``window``,
    ``strides``, ``dilation`` and ``before`` (the padding) are of height and width; ``counts_padding`` says whether
    padding counts as zeros in a mean. Images of one dimension have the height 1.
``anatune.scatter``
    Takes data, indices and updates as ``scatter_elements``; the indices are broadcast to the updates.
``recurrent``, ``anatune.recurrent``
    All steps of a layer in one direction (`graph.recurrent`). Takes what the inputs contribute (steps, batch, gates *
    hidden), weights (hidden, gates * hidden), which the second one has in blocks of units (blocks, hidden, gates,
    `UNITS`), the state, of an LSTM its cells (batch, hidden), and what attributes ``has_term``, ``has_peepholes`` and
    ``has_lengths`` say: (hidden,), (3 * hidden,), (batch,). Returns (steps + states, batch, hidden): the states of all
    steps, then the last state and cells.
``anatune.divisor``
    Takes whole numbers and returns them; a zero is an error of attribute ``operator``, which divides by them.
``quantize``, ``dequantize``
    Take data, a scale (float32) and a zero point (int32), both known, of the whole tensor or broadcast along it, and
    return 8-bit integers, between attributes ``low`` and ``high``, or float32 (`graph.integers.scaled`).
``lookup``
    Takes integers of 8 bits and returns for each what attribute ``table`` has, integers of 8 bits.
``anatune.put``
    Takes an input of the model that is state (`graph.state`), or its pages as rows, rows, and where they go along
    attribute ``axis``: the places of all, or, a number, the first one's. Its result is the input's memory, changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anatune.core.activations import ACTIVATIONS
from anatune.network.graph import meanings
from anatune.network.graph.nodes import Argument, Array, Node, Shape, TensorType, Value, tensor_type

__all__ = [
    "ATTENTION",
    "BATCH_MATMUL",
    "CONCAT",
    "CONVOLUTION",
    "CONVOLUTIONS",
    "DEQUANTIZE",
    "DIVISIONS",
    "DIVISOR",
    "EXPERTS",
    "GROUPED_MATMUL",
    "HISTOGRAM",
    "LAYER_NORM",
    "MATMUL",
    "OPERATORS",
    "PRODUCTS",
    "PUT",
    "QUANTIZE",
    "RECURRENCE",
    "RECURRENT",
    "ROUTE",
    "SCALED_MATMUL",
    "SCATTER",
    "SOFTMAX",
    "UNITS",
    "WINDOW",
    "Operator",
    "applied",
    "operator_of",
]

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
UNITS = 16
"""Units whose weights lie together in ``anatune.recurrent``: a whole number of vectors of every processor."""
_ATTRS = "relax.attrs."
_STATISTICS = f"{_ATTRS}StatisticalAttrs"


@dataclass(frozen=True)
class Operator:
    """What one operator is.

    Attributes
    ----------
    name : str
        As nodes have it.
    compute : callable, optional
        What it computes, with NumPy: takes arrays, tuples for shapes and NumPy's numbers in the order of the arguments,
        attributes by name. None: that is known to TVM alone, or, of products, to their workloads.
    type_of : callable, optional
        Takes arguments and attributes likewise, and returns the type of the result (`applied`).
    kind : str
        TVM's name of the attributes' type, of operators that passes and readers of models write.
    layout : str
        How it passes through other orders of dimensions, a key of `graph.passes.layouts._FAMILIES`; "": it has that
        of the model.
    own : str
        The operator of anatune's that takes its place where there is a kernel for it; "": TVM compiles it.
    fused_into : tuple of str
        Operators of anatune's whose kernels can compute it, which has no operand beside the data, in their stores.
    commutes : bool
        Whether its two operands may be exchanged.
    is_reshape : bool
        Whether it is a reshape to its result's shape, by another name.
    is_conversion : bool
        Whether it returns its first argument where that has the result's type.
    reads_type_only : bool
        Whether nothing but the type of its first argument matters.
    spells_activations : bool
        Whether models spell activations with it.
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
        """Whether it is one of anatune's."""
        return self.name.startswith("anatune.")

    @property
    def word(self) -> str:
        """As which kernels of anatune's have it, and steps that are fused."""
        return self.name.removeprefix("nn.")


def _broadcast_type(*arguments: Argument, **_: object) -> TensorType:
    """Return the type of an operator on elements: operands have the dtype of the first one, or are numbers."""
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
    """Return an operator on elements that has any order of dimensions."""
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
    # Numbers with scales.
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
    # What moves or takes elements.
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
    # What makes tensors.
    Operator("arange", np.arange),
    Operator("full", np.full),
    Operator("full_like", lambda array, value: np.full(array.shape, value), reads_type_only=True),
    Operator("ones", np.ones),
    Operator("ones_like", lambda array: np.ones(array.shape), reads_type_only=True),
    Operator("zeros", np.zeros),
    Operator("zeros_like", lambda array: np.zeros(array.shape), reads_type_only=True),
    # anatune's own; products are computed from their workloads.
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


def operator_of(node: Node) -> Operator:
    """Return what is known of a node's operator."""
    return OPERATORS.get(node.op, _UNKNOWN)


def applied(name: str, *arguments: Argument, **attributes: object) -> Node:
    """Return a node of an operator whose entry says what type the result has."""
    operator = OPERATORS[name]
    assert operator.type_of is not None, name
    return Node(name, arguments, operator.type_of(*arguments, **attributes), attributes, operator.kind)

"""Products with weights of 8 or 4 bits: nodes with packed weights, or plain products with unpacked weights."""

from __future__ import annotations

import numpy as np

from anatune.errors import WorkloadError
from anatune.network.graph.building import cast, make_node, reshape
from anatune.network.graph.einsums import product
from anatune.network.graph.integers.scaled import scale_of
from anatune.network.graph.meanings import pack_bits, scaled_weights
from anatune.network.graph.nodes import Array, Constant, Graph, Node, TensorType, Value, rewrite_graph, tensor_type

__all__ = ["GROUPS", "gguf_weights", "pack_byte_weights", "scaled_product", "unpack_products"]

GROUPS = (16, 32, 64, 128, 256)
"""The group sizes along k that may share a scale; one group of all k is allowed as well."""
_BYTES = {8: 34, 4: 18}
"""Bits -> bytes of a GGUF block: a float16 scale and 32 weights."""


def scaled_product(
    data: Value, packed: Array, scales: Array, zeros: Array | None, *, bits: int, rounded: bool = False
) -> Value:
    """Return the product of data (..., k) with unsigned quantised weights that stay packed.

    Parameters
    ----------
    packed : (n, k * bits / 8) uint8
        With 4 bits, weights of even k are in the low bits.
    scales : (n, groups) float32
    zeros : (n, groups) uint8, optional
        Zero points; None: 8 or 128.
    rounded : bool
        Whether data may be rounded to 8 bits.
    """
    if bits == 8:  # kernels read signed weights
        packed = (packed ^ np.uint8(128)).view(np.int8)
        zeros = None if zeros is None else (zeros ^ np.uint8(128)).view(np.int8)
    (*rows, length), dtype = tensor_type(data)
    columns, groups = scales.shape
    constants = [Constant(np.ascontiguousarray(array)) for array in (packed, scales, zeros) if array is not None]
    group = length // groups
    if dtype != "float32" or group % GROUPS[0] or length % group or (groups > 1 and group not in GROUPS):
        return _unpacked_product(data, packed, scales, zeros, bits)
    attributes = {"bits": bits, "group": group, "zero_points": zeros is not None, "rounded": rounded}
    return make_node("scaled_matmul", (data, *constants), TensorType((*rows, columns), dtype), **attributes)


def _unpacked_product(data: Value, packed: Array, scales: Array, zeros: Array | None, bits: int) -> Value:
    matrix = scaled_weights(packed, scales, zeros, bits=bits)
    dtype = tensor_type(data).dtype
    return product(data, cast(Constant(np.ascontiguousarray(matrix.T)), dtype))


def unpack_products(graph: Graph) -> Graph:
    """Return a graph whose products with quantised weights are plain products, for devices without kernels for them."""

    def replace(node: Node) -> Value:
        if node.op != "scaled_matmul":
            return node
        data, *constants = node.arguments
        packed, scales, *zeros = (constant.array for constant in constants)
        return _unpacked_product(data, packed, scales, zeros[0] if zeros else None, node.attributes["bits"])

    return rewrite_graph(graph, replace)


def pack_byte_weights(graph: Graph) -> Graph:
    """Return a graph in which products with quantised weights of 8 bits are nodes with packed weights.

    torchao exports weights of 8 bits with a scale for each column as a product that is multiplied by the scales. It
    exports weights with scales for groups as dequantised integers.
    """

    def replace(node: Node) -> Value:
        if node.op == "matmul" and (grouped := _grouped_product(node)) is not None:
            return grouped
        if node.op != "multiply":
            return node
        for factor, other in (node.arguments, node.arguments[::-1]):
            columns = tensor_type(node).shape[-1:]
            if not isinstance(factor, Constant) or not columns == factor.array.shape[-1:] == (factor.array.size,):
                continue
            while isinstance(other, Node) and other.op == "reshape" and tensor_type(other).shape[-1:] == columns:
                other = other.arguments[0]
            if isinstance(other, Node) and other.op == "matmul" and tensor_type(other).shape[-1:] == columns:
                data, weight = other.arguments
                numbers = _int8_matrix(weight)
                if numbers is not None and numbers.shape[0] % GROUPS[0] == 0 and tensor_type(node).dtype == "float32":
                    scales = factor.array.reshape(-1, 1).astype(np.float32)
                    packed = numbers.T.view(np.uint8) ^ np.uint8(128)
                    return reshape(scaled_product(data, packed, scales, None, bits=8), tensor_type(node).shape)
        return node

    return rewrite_graph(graph, replace)


def _grouped_product(node: Node) -> Value | None:
    """Return the product with a matrix that is dequantised with scales of groups, or None."""
    data, weight = node.arguments
    if not (isinstance(weight, Node) and weight.op == "permute_dims" and len(tensor_type(weight).shape) == 2):
        return None
    grouped = weight.arguments[0]
    scale = scale_of(grouped.arguments[0]) if isinstance(grouped, Node) and grouped.op == "reshape" else None
    if scale is None:
        return None
    numbers = grouped.arguments[0].arguments[0]
    if not isinstance(numbers, Constant) or numbers.array.ndim != 3 or tensor_type(data).dtype != "float32":
        return None
    columns, groups, _ = numbers.array.shape
    is_of_groups = all(array.shape == (columns, groups, 1) for array in scale)
    if not is_of_groups or tensor_type(grouped).shape[0] != columns:
        return None
    scales, zeros = (array.reshape(columns, groups) for array in scale)
    whole = numbers.array.reshape(columns, -1).astype(np.int32)
    is_short = all(array.min() >= -8 and array.max() <= 7 for array in (whole, zeros))
    bits = 4 if is_short and whole.shape[1] % 2 == 0 else 8
    if abs(zeros).max() > 127:
        return None
    offset = 1 << (bits - 1)
    whole, zeros = (whole + offset).astype(np.uint8), (zeros + offset).astype(np.uint8)
    return scaled_product(data, pack_bits(whole, bits), scales, zeros if np.any(zeros != offset) else None, bits=bits)


def _int8_matrix(weight: Value) -> Array | None:
    """Return a constant matrix of 8-bit integers as int8, or None if it holds other numbers."""
    if not isinstance(weight, Constant) or len(weight.array.shape) != 2 or weight.array.dtype != np.float32:
        return None
    for part in (weight.array[:1], weight.array):  # the first row rejects nearly all other matrices
        with np.errstate(invalid="ignore"):
            numbers = part.astype(np.int8)
        if not np.array_equal(numbers, part):
            return None
    return numbers


def gguf_weights(blocks: bytes | Array, columns: int, *, bits: int) -> tuple[Array, Array]:
    """Return the weights of GGUF blocks Q8_0 or Q4_0 in the format of ONNX's MatMulNBits.

    Parameters
    ----------
    blocks : bytes or (num_bytes,) uint8
        A tensor with `columns` rows of blocks: a float16 scale and 32 weights, of 4 bits j and j + 16 in a byte.
    bits : {8, 4}

    Returns
    -------
    (columns, blocks, 32 * bits / 8) uint8, (columns, blocks) float32
        Unsigned weights, in which 128 or 8 stands for zero, and scales.

    Raises
    ------
    WorkloadError
        The number of bytes does not fit such a tensor.
    """
    raw = np.frombuffer(blocks, np.uint8) if isinstance(blocks, bytes) else blocks.reshape(-1)
    if bits not in _BYTES or columns < 1 or not len(raw) or len(raw) % (columns * _BYTES[bits]):
        raise WorkloadError(
            f"gguf_weights: got {len(raw)} bytes for {columns} rows of {bits} bits, expected rows of whole blocks of "
            f"{_BYTES.get(bits, 'no such')} bytes (Q8_0: 34, Q4_0: 18); check the type and the shape"
        )
    rows = raw.reshape(columns, -1, _BYTES[bits])
    scales = rows[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    if not np.isfinite(scales).all():
        raise WorkloadError("gguf_weights: some scales are not finite; check the file")
    numbers = rows[..., 2:]
    if bits == 8:
        return numbers ^ np.uint8(128), scales
    whole = np.concatenate([numbers & 15, numbers >> 4], axis=-1)
    return pack_bits(whole, 4), scales

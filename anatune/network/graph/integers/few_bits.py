"""Products with weights of 8 or 4 bits: as nodes whose weights stay packed, and as plain products of unpacked ones."""

from __future__ import annotations

import numpy as np

from anatune.errors import WorkloadError
from anatune.network.graph.building import cast, made, reshape
from anatune.network.graph.einsums import product
from anatune.network.graph.integers.scaled import scale_of
from anatune.network.graph.meanings import pack_bits, scaled_weights
from anatune.network.graph.nodes import Array, Constant, Graph, Node, TensorType, Value, rewritten, tensor_type

__all__ = ["GROUPS", "gguf_weights", "scaled_product", "unpacked_products", "with_byte_weights"]

GROUPS = (16, 32, 64, 128, 256)
"""Neighbours along k that may share a scale, beside all of them."""
_BYTES = {8: 34, 4: 18}
"""Bits -> bytes of a block of GGUF's: a float16 scale and 32 weights."""


def scaled_product(
    data: Value, packed: Array, scales: Array, zeros: Array | None, *, bits: int, rounded: bool = False
) -> Value:
    """Return products of data (..., k) with unsigned weights of few bits that stay as they are.

    Parameters
    ----------
    packed : (n, k * bits / 8) uint8
        Of 4 bits the one of even k in the low bits.
    scales : (n, groups) float32
    zeros : (n, groups) uint8, optional
        Numbers that mean zero; None: 8 or 128.
    rounded : bool
        Whether data may be rounded to 8 bits.
    """
    if bits == 8:  # kernels take signed ones
        packed = (packed ^ np.uint8(128)).view(np.int8)
        zeros = None if zeros is None else (zeros ^ np.uint8(128)).view(np.int8)
    (*rows, length), dtype = tensor_type(data)
    columns, groups = scales.shape
    constants = [Constant(np.ascontiguousarray(one)) for one in (packed, scales, zeros) if one is not None]
    group = length // groups
    if dtype != "float32" or group % GROUPS[0] or length % group or (groups > 1 and group not in GROUPS):
        return _plain(data, packed, scales, zeros, bits)
    attributes = {"bits": bits, "group": group, "zero_points": zeros is not None, "rounded": rounded}
    return made("scaled_matmul", (data, *constants), TensorType((*rows, columns), dtype), **attributes)


def _plain(data: Value, packed: Array, scales: Array, zeros: Array | None, bits: int) -> Value:
    matrix = scaled_weights(packed, scales, zeros, bits=bits)
    dtype = tensor_type(data).dtype
    return product(data, cast(Constant(np.ascontiguousarray(matrix.T)), dtype))


def unpacked_products(graph: Graph) -> Graph:
    """Return a graph whose products with weights of few bits are plain ones, for devices without kernels for them."""

    def replace(node: Node) -> Value:
        if node.op != "scaled_matmul":
            return node
        data, *constants = node.arguments
        packed, scales, *zeros = (one.array for one in constants)
        return _plain(data, packed, scales, zeros[0] if zeros else None, node.attributes["bits"])

    return rewritten(graph, replace)


def with_byte_weights(graph: Graph) -> Graph:
    """Return a graph whose products with whole numbers of 8 bits that are scaled by columns have packed weights.

    That is what torchao's weights of 8 bits are in exported programs: converted when the program is read. Those with
    scales of groups are conversions of integers.
    """

    def replace(node: Node) -> Value:
        if node.op == "matmul" and (found := _of_groups(node)) is not None:
            return found
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
                numbers = _as_bytes(weight)
                if numbers is not None and numbers.shape[0] % GROUPS[0] == 0 and tensor_type(node).dtype == "float32":
                    scales = factor.array.reshape(-1, 1).astype(np.float32)
                    packed = numbers.T.view(np.uint8) ^ np.uint8(128)
                    return reshape(scaled_product(data, packed, scales, None, bits=8), tensor_type(node).shape)
        return node

    return rewritten(graph, replace)


def _of_groups(node: Node) -> Value | None:
    """Return a product with a matrix that was converted from integers with scales of groups; None: it is none."""
    data, weight = node.arguments
    if not (isinstance(weight, Node) and weight.op == "permute_dims" and len(tensor_type(weight).shape) == 2):
        return None
    apart = weight.arguments[0]
    scale = scale_of(apart.arguments[0]) if isinstance(apart, Node) and apart.op == "reshape" else None
    if scale is None:
        return None
    numbers = apart.arguments[0].arguments[0]
    if not isinstance(numbers, Constant) or numbers.array.ndim != 3 or tensor_type(data).dtype != "float32":
        return None
    columns, groups, _ = numbers.array.shape
    is_of_groups = all(one.shape == (columns, groups, 1) for one in scale)
    if not is_of_groups or tensor_type(apart).shape[0] != columns:
        return None
    scales, zeros = (one.reshape(columns, groups) for one in scale)
    whole = numbers.array.reshape(columns, -1).astype(np.int32)
    is_short = all(one.min() >= -8 and one.max() <= 7 for one in (whole, zeros))
    bits = 4 if is_short and whole.shape[1] % 2 == 0 else 8
    if abs(zeros).max() > 127:
        return None
    above = 1 << (bits - 1)
    whole, zeros = (whole + above).astype(np.uint8), (zeros + above).astype(np.uint8)
    return scaled_product(data, pack_bits(whole, bits), scales, zeros if np.any(zeros != above) else None, bits=bits)


def _as_bytes(weight: Value) -> Array | None:
    """Return a known matrix of whole numbers of 8 bits as such; None: it is none."""
    if not isinstance(weight, Constant) or len(weight.array.shape) != 2 or weight.array.dtype != np.float32:
        return None
    for part in (weight.array[:1], weight.array):  # a row says no of nearly all
        with np.errstate(invalid="ignore"):
            numbers = part.astype(np.int8)
        if not np.array_equal(numbers, part):
            return None
    return numbers


def gguf_weights(blocks: bytes | Array, columns: int, *, bits: int) -> tuple[Array, Array]:
    """Return weights of GGUF's blocks Q8_0 or Q4_0 as ONNX's MatMulNBits has them.

    Parameters
    ----------
    blocks : bytes or (num_bytes,) uint8
        Of a tensor with `columns` rows: a float16 scale and 32 weights each, of 4 bits j and j + 16 in a byte.
    bits : {8, 4}

    Returns
    -------
    (columns, blocks, 32 * bits / 8) uint8, (columns, blocks) float32
        Unsigned weights, of which 128 or 8 mean zero, and scales.

    Raises
    ------
    WorkloadError
        So many bytes are no such tensor.
    """
    raw = np.frombuffer(blocks, np.uint8) if isinstance(blocks, bytes) else blocks.reshape(-1)
    if bits not in _BYTES or columns < 1 or not len(raw) or len(raw) % (columns * _BYTES[bits]):
        raise WorkloadError(
            f"gguf_weights: {len(raw)} bytes for {columns} rows of {bits} bits, expected blocks of "
            f"{_BYTES.get(bits, 'no such')} bytes (Q8_0: 34, Q4_0: 18), as many in each row; check type and shape"
        )
    rows = raw.reshape(columns, -1, _BYTES[bits])
    scales = rows[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    if not np.isfinite(scales).all():
        raise WorkloadError("gguf_weights: has scales that are not finite, expected numbers; check the file")
    numbers = rows[..., 2:]
    if bits == 8:
        return numbers ^ np.uint8(128), scales
    whole = np.concatenate([numbers & 15, numbers >> 4], axis=-1)
    return pack_bits(whole, 4), scales

"""Readers of attention, rotary embeddings and embeddings: the standard's and onnxruntime's (``com.microsoft``).

Attention is written in the form that `graph.passes.attention` recognises: 4-D products with a softmax between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anatune.network.graph.building import (
    broadcast,
    cast,
    clamp_indices,
    concat,
    constant,
    elementwise,
    gather,
    layer_norm,
    matmul,
    pad_tensor,
    permute,
    reduce_axes,
    reshape,
    scatter,
    slice_axes,
    softmax,
    take_slices,
    where,
    widen_to_float32,
)
from anatune.network.graph.einsums import product
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Attributes, Convert, OnnxCall, RefusedError

__all__ = ["MICROSOFT", "READERS"]

_FLOAT64 = 11
"""ONNX's number of float64."""


def _split_heads(value: Value, heads: int) -> Value:
    """Return (batch, rows, heads * size) as (batch, heads, rows, size)."""
    batch, rows, _ = tensor_type(value).shape
    return permute(reshape(value, (batch, rows, heads, -1)), (0, 2, 1, 3))


def _join_heads(value: Value) -> Value:
    """Return (batch, heads, rows, size) as (batch, rows, heads * size)."""
    batch, _, rows, _ = tensor_type(value).shape
    return reshape(permute(value, (0, 2, 1, 3)), (batch, rows, -1))


def _scores(query: Value, key: Value, scale: float | None, softcap: float) -> tuple[Value, Value]:
    """Return scaled products of queries and keys, (batch, heads, queries, keys), and the same with a soft cap."""
    scale = 1 / math.sqrt(tensor_type(query).shape[3]) if scale is None else scale
    raw = elementwise("multiply", matmul(query, permute(key, (0, 1, 3, 2))), scale)
    if not softcap:
        return raw, raw
    return raw, elementwise("multiply", elementwise("tanh", elementwise("divide", raw, softcap)), softcap)


def _weights(scores: Value, bias: Value | None, dtype: str) -> Value:
    """Return the softmax of scores plus a bias, computed in a dtype; rows that the bias hides are zeros."""
    scores_dtype = tensor_type(scores).dtype
    if bias is None:
        return cast(softmax(cast(scores, dtype), -1), scores_dtype)
    weights = softmax(cast(elementwise("add", scores, bias), dtype), -1)
    if not isinstance(bias, Constant) or np.isneginf(bias.array).all(axis=-1).any():
        weights = where(elementwise("isnan", weights), constant(0, dtype), weights)
    return cast(weights, scores_dtype)


def _group_heads(value: Value, heads: int, groups: int, rows: int) -> Value:
    """Return queries, or a bias of scores, with the heads that share keys as rows of the keys' heads.

    (batch, heads, rows, size) becomes (batch, groups, heads / groups * rows, size). A bias may have 1 head or 1 row.
    """
    kind = tensor_type(value).shape
    batch, value_heads, count, size = (1,) * (4 - len(kind)) + kind
    if value_heads == count == 1:
        return reshape(value, (batch, 1, 1, size))
    shared = groups if value_heads != 1 else 1
    whole = broadcast(reshape(value, (batch, value_heads, count, size)), (batch, shared * heads // groups, rows, size))
    return reshape(whole, (batch, shared, -1, size))


def _hide(allowed: Sequence[Value], bias: Value | None, dtype: str) -> Value | None:
    """Return a bias that is ``-inf`` where a condition is false, or `bias` if there are no conditions."""
    if not allowed:
        return bias
    all_conditions = allowed[0]
    for condition in allowed[1:]:
        all_conditions = elementwise("logical_and", all_conditions, condition)
    if isinstance(all_conditions, Constant) and all_conditions.array.all():
        return bias
    return where(all_conditions, constant(0, dtype) if bias is None else bias, constant(-np.inf, dtype))


def _bias(call: OnnxCall, rows: int, keys: int, dtype: str) -> Value | None:
    """Return the bias of the scores of a standard attention: mask, causality, window and lengths, or None."""
    attrs, mask, lengths, past = call.attributes, call.get(3), call.get(6), call.get(4)
    allowed: list[Value] = []
    bias: Value | None = None
    if mask is not None:
        shape, dtype_of_mask = tensor_type(mask).shape, tensor_type(mask).dtype
        if dtype_of_mask == "bool":
            mask = cast(mask, "uint8")  # TVM cannot pad booleans
        if shape[-1] < keys:
            number = 0.0 if dtype_of_mask == "bool" else -math.inf
            mask = pad_tensor(mask, [0] * len(shape), [*[0] * (len(shape) - 1), keys - shape[-1]], number)
        if dtype_of_mask == "bool":
            allowed.append(cast(mask, "bool"))
        else:
            bias = cast(mask, dtype)
    offset: Value = constant(0 if past is None else tensor_type(past).shape[2], "int64")
    if lengths is not None:
        lengths = reshape(cast(lengths, "int64"), (-1, 1, 1, 1))
        offset = elementwise("subtract", lengths, rows) if past is None else offset
        allowed.append(elementwise("less", constant(np.arange(keys), "int64"), lengths))
    distance = elementwise(
        "subtract", elementwise("add", constant(np.arange(rows)[:, None], "int64"), offset),
        constant(np.arange(keys), "int64"),
    )  # fmt: skip
    if attrs["is_causal"]:
        allowed.append(elementwise("greater_equal", distance, 0))
    if attrs.get("left_window_size", -1) >= 0:
        allowed.append(elementwise("less_equal", distance, attrs["left_window_size"]))
    if attrs.get("right_window_size", -1) >= 0:
        allowed.append(elementwise("greater_equal", distance, -attrs["right_window_size"]))
    return _hide(allowed, bias, dtype)


def _attention(call: OnnxCall) -> Sequence[Value]:
    """Return a standard attention, keys and values including the past, and scores."""
    attrs = call.attributes
    query, key, value = (call[index] for index in range(3))
    is_flat = call.rank == 3
    if is_flat:
        if not attrs.get("q_num_heads") or not attrs.get("kv_num_heads"):
            raise RefusedError("has tensors of 3 dimensions, expected the attributes q_num_heads and kv_num_heads")
        query = _split_heads(query, attrs["q_num_heads"])
        key, value = (_split_heads(tensor, attrs["kv_num_heads"]) for tensor in (key, value))
    if call.get(4) is not None and call.get(5) is not None:
        key, value = concat([call[4], key], 2), concat([call[5], value], 2)
    dtype = call.kind().dtype
    wide = tensor_type(widen_to_float32(query)).dtype
    (_, heads, rows, _), (_, groups, keys, _) = tensor_type(query).shape, tensor_type(key).shape
    if not groups or heads % groups:
        raise RefusedError(f"has {heads} query heads and {groups} key heads, expected a multiple of the key heads")
    bias = _bias(call, rows, keys, wide)
    queries = widen_to_float32(query)
    if heads != groups:
        queries = _group_heads(queries, heads, groups, rows)
        bias = None if bias is None else _group_heads(bias, heads, groups, rows)
    raw, scores = _scores(queries, widen_to_float32(key), attrs.get("scale"), attrs["softcap"])
    weights = _weights(scores, bias, "float64" if attrs.get("softmax_precision") == _FLOAT64 else wide)
    result = reshape(matmul(weights, widen_to_float32(value)), (*tensor_type(query).shape[:3], -1))
    outputs = [_join_heads(result) if is_flat else result, key, value]
    if len(call.outputs) > 3 and call.outputs[3]:
        biased = scores if bias is None else elementwise("add", scores, bias)
        scores_output = (raw, scores, biased, weights)[attrs["qk_matmul_output_mode"]]
        outputs.append(reshape(scores_output, (*tensor_type(query).shape[:3], keys)))
    return [cast(tensor, dtype) for tensor in outputs][: len(call.outputs)]


# ---- operators of onnxruntime ----


def _mask_bias(mask: Value | None, shape: tuple[int, int, int], number: float, dtype: str) -> Value | None:
    """Return the bias for a mask of onnxruntime: a large negative number where it hides a key.

    `shape` is (batch, queries, keys). A mask holds lengths, or ends followed by starts, or booleans (batch, keys) or
    (batch, queries, keys).
    """
    if mask is None:
        return None
    batch, rows, keys = shape
    mask_shape, key = tensor_type(mask).shape, constant(np.arange(keys), "int64")
    if mask_shape == (batch,) or mask_shape == (2 * batch,):
        ends = reshape(cast(slice_axes(mask, [0], [0], [batch]), "int64"), (batch, 1, 1, 1))
        is_visible = elementwise("less", key, ends)
        if mask_shape != (batch,):
            starts = reshape(cast(slice_axes(mask, [0], [batch], [2 * batch]), "int64"), (batch, 1, 1, 1))
            is_visible = elementwise("logical_and", is_visible, elementwise("greater_equal", key, starts))
    elif mask_shape in ((batch, keys), (batch, rows, keys)):
        is_visible = elementwise("greater", reshape(mask, (batch, 1, -1, keys)), 0)
    else:
        raise RefusedError(f"has a mask {tensor_type(mask)}, expected one for {batch} sequences of {keys} keys")
    return where(is_visible, constant(0, dtype), constant(number, dtype))


def _add_all(*terms: Value | None) -> Value | None:
    present = [one for one in terms if one is not None]
    total = present[0] if present else None
    for term in present[1:]:
        total = elementwise("add", total, term) if total is not None else term
    return total


def _attend(
    call: OnnxCall, states: Sequence[Value], bias: Value | None, mask: Value | None, past: Value | None
) -> tuple[Value, Value]:
    """Return the attention of queries, keys and values in heads, (batch, rows, heads * size), and its scores.

    `past` holds keys before the others. With `unidirectional` a query sees those and the keys up to its own token. The
    last query sees all keys, as in onnxruntime's code for CPUs.
    """
    attrs = call.attributes
    query, key, value = (widen_to_float32(state) for state in states)
    (batch, _, rows, _), keys, dtype = tensor_type(query).shape, tensor_type(key).shape[2], tensor_type(query).dtype
    hidden = _mask_bias(mask, (batch, rows, keys), attrs["mask_filter_value"], dtype)
    causal = None
    if attrs.get("unidirectional"):
        begin = 0 if past is None else tensor_type(past).shape[-2]
        is_visible = np.arange(keys) <= np.append(np.arange(rows - 1) + begin, keys)[:, None]
        causal = constant(np.where(is_visible, 0.0, -np.inf), dtype)
    _, scores = _scores(query, key, attrs.get("scale") or None, 0.0)
    total = _add_all(None if bias is None else widen_to_float32(bias), hidden, causal)
    weights = softmax(scores if total is None else elementwise("add", scores, total), -1)
    return cast(_join_heads(matmul(weights, value)), call.kind().dtype), scores


def _projected_attention(call: OnnxCall) -> Sequence[Value]:
    """Return onnxruntime's ``Attention``, whose queries, keys and values are products of its input."""
    attrs = call.attributes
    if attrs.get("do_rotary") or attrs.get("past_present_share_buffer") or call.get(6) is not None:
        raise RefusedError("has rotary embeddings or writes into a buffer, expected neither; export the model without")
    heads, width = attrs["num_heads"], call.kind(1).shape[1]
    sizes = attrs.get("qkv_hidden_sizes") or [width // 3] * 3
    joined = product(call[0], call[1])
    if call.get(2) is not None:
        joined = elementwise("add", joined, call[2])
    ends = np.cumsum(sizes)
    parts = [
        _split_heads(slice_axes(joined, [2], [end - size], [end]), heads) for end, size in zip(ends, sizes, strict=True)
    ]
    query, key, value = parts
    if call.get(4) is not None:
        key, value = (
            concat([take_slices(call[4], constant(i, "int64"), 0), one], 2) for i, one in enumerate((key, value))
        )
    result, _ = _attend(call, (query, key, value), call.get(5), call.get(3), call.get(4))
    if len(call.outputs) < 2:
        return [result]
    return [result, concat([reshape(one, (1, *tensor_type(one).shape)) for one in (key, value)], 0)]


def _multi_head_attention(call: OnnxCall) -> Sequence[Value]:
    """Return onnxruntime's ``MultiHeadAttention``, with queries, keys and values separate or packed."""
    heads, key, value = call.attributes["num_heads"], call.get(1), call.get(2)
    parts: list[Value]
    if key is None:  # (batch, rows, heads, 3, size)
        parts = [take_slices(call[0], constant(place, "int64"), 3) for place in range(3)]
        parts = [permute(one, (0, 2, 1, 3)) for one in parts]
    elif value is None:  # (batch, rows, heads, 2, size)
        packed = [permute(take_slices(key, constant(place, "int64"), 3), (0, 2, 1, 3)) for place in range(2)]
        parts = [_split_heads(call[0], heads), *packed]
    else:
        parts = [one if len(tensor_type(one).shape) == 4 else _split_heads(one, heads) for one in (call[0], key, value)]
    if call.get(3) is not None:
        end = 0
        for index, part in enumerate(parts):
            _, _, _, size = tensor_type(part).shape
            term = reshape(slice_axes(call[3], [0], [end], [end + heads * size]), (heads, 1, size))
            parts[index], end = elementwise("add", part, term), end + heads * size
    if call.get(6) is not None and call.get(7) is not None:
        parts[1:] = [concat([call[6], parts[1]], 2), concat([call[7], parts[2]], 2)]
    if any(call.get(place) is not None for place in (8, 9)):
        raise RefusedError("writes into a buffer of past keys, expected past keys and values as inputs only")
    result, scores = _attend(call, parts, call.get(5), call.get(4), call.get(6))
    return [result, parts[1], parts[2], cast(scores, call.kind().dtype)][: len(call.outputs)]


def _embed(call: OnnxCall) -> Sequence[Value]:
    """Return onnxruntime's ``EmbedLayerNormalization``: the layer norm of the sum of three embeddings."""
    batch, words = call.kind().shape
    total = take_slices(call[2], call[0], 0)
    positions = call.get(8)
    position = constant(np.arange(words)[None], "int64") if positions is None else positions
    total = elementwise("add", total, take_slices(call[3], position, 0))
    if call.get(1) is not None:
        total = elementwise("add", total, take_slices(call[4], call[1], 0))
    result = layer_norm(total, call[5], call[6], [-1], call.attributes["epsilon"])
    mask = call.get(7)
    count = (
        broadcast(constant(0, "int32"), (batch,))
        if mask is None
        else reduce_axes("sum", cast(mask, "int32"), [1], keepdims=False)
    )
    return [result, count, total][: len(call.outputs)]


def _rotate(call: OnnxCall) -> Value:
    """Return heads with rotary embeddings: pairs of elements rotated by angles that depend on positions.

    Operands of the standard are data, cosines, sines, positions; those of onnxruntime data, positions, cosines, sines.
    """
    attrs, data = call.attributes, call[0]
    is_standard = not call.kind(1).dtype.startswith("int")
    cosines, sines, positions = (call[1], call[2], call.get(3)) if is_standard else (call[2], call[3], call[1])
    half = tensor_type(cosines).shape[-1]
    if call.rank == 3:
        width = call.kind().shape[2]
        heads = attrs.get("num_heads") or (0 if is_standard else width // (2 * half))
        if not heads:
            raise RefusedError("has a tensor of 3 dimensions, expected the attribute num_heads")
        data = reshape(data, (*call.kind().shape[:2], heads, -1))
    row_axis = 1 if call.rank == 3 else 2
    rows, size = tensor_type(data).shape[row_axis], tensor_type(data).shape[3]
    if positions is not None:
        if tensor_type(positions).shape == (1,) and not is_standard:  # the position of the first row
            positions = elementwise("add", constant(np.arange(rows)[None], tensor_type(positions).dtype), positions)
        cosines, sines = take_slices(cosines, positions, 0), take_slices(sines, positions, 0)
    shape = [tensor_type(cosines).shape[0], 1, 1, half]
    shape[row_axis] = rows
    cosines, sines = reshape(cosines, shape), reshape(sines, shape)
    count = attrs.get("rotary_embedding_dim") or size
    if count != 2 * half:
        raise RefusedError(f"rotates {count} elements of a head by {half} angles, expected half as many angles")
    rotary, rest = slice_axes(data, [3], [0], [count]), slice_axes(data, [3], [count], [size])
    is_interleaved = bool(attrs.get("interleaved"))
    begins, ends, step = ([0, 1], [count, count], 2) if is_interleaved else ([0, half], [half, count], 1)
    first, second = (slice_axes(rotary, [3], [begin], [end], [step]) for begin, end in zip(begins, ends, strict=True))
    real = elementwise("subtract", elementwise("multiply", first, cosines), elementwise("multiply", second, sines))
    other = elementwise("add", elementwise("multiply", first, sines), elementwise("multiply", second, cosines))
    if is_interleaved:
        shape = [*tensor_type(real).shape, 1]
        joined = reshape(concat([reshape(real, shape), reshape(other, shape)], 4), (*shape[:3], count))
    else:
        joined = concat([real, other], 3)
    return reshape(concat([joined, rest], 3), call.kind().shape)


def _paged_attention(call: OnnxCall) -> Sequence[Value]:
    """Return onnxruntime's ``PagedAttention``: tokens of all sequences in a row, keys and values in pages.

    Each token becomes a query with the pages of its sequence and the keys up to the token.
    """
    attrs = call.attributes
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    if attrs.get("local_window_size", -1) > 0 or any(
        call.get(place) is not None for place in range(10, len(call.inputs))
    ):
        raise RefusedError("has a window, or inputs after the cosines and sines, expected neither")
    if not call.kind(7).dtype.startswith("int"):
        raise RefusedError(f"has a table of {call.kind(7).dtype}, expected page numbers, int32")
    (pool, page, _, size), tokens = call.kind(3).shape, call.kind().shape[0]
    sizes = (heads * size, groups * size, groups * size)
    parts = [call[0], call.get(1), call.get(2)]
    if parts[1] is None:  # packed side by side
        ends = np.cumsum(sizes)
        parts = [slice_axes(call[0], [1], [end - width], [end]) for end, width in zip(ends, sizes, strict=True)]
    token, begins = constant(np.arange(tokens), "int64"), cast(call[5], "int64")
    (batch, pages) = call.kind(7).shape
    next_begins = slice_axes(begins, [0], [1], [batch + 1])  # where the next sequence begins
    is_behind = elementwise("less_equal", reshape(next_begins, (1, batch)), reshape(token, (tokens, 1)))
    sequence = clamp_indices(reduce_axes("sum", cast(is_behind, "int64"), [1], keepdims=False), batch)
    before = elementwise("subtract", take_slices(cast(call[6], "int64"), sequence, 0), take_slices(begins, sequence, 0))
    position = elementwise("add", before, token)
    queries, keys, values = (widen_to_float32(_as_sequence(one, tokens)) for one in parts)
    if attrs.get("do_rotary"):
        positions = (reshape(position, (1, tokens)), widen_to_float32(call[8]), widen_to_float32(call[9]))
        rotary = {"interleaved": attrs.get("rotary_interleaved", 0)}
        queries, keys = (
            _rotate(replace(call, inputs=(data, *positions), attributes=Attributes({**rotary, "num_heads": count})))
            for data, count in ((queries, heads), (keys, groups))
        )
    tables = take_slices(clamp_indices(call[7], pool), sequence, 0)  # (tokens, pages)
    page_no = clamp_indices(elementwise("floor_divide", position, page), pages)
    slot = elementwise("floor_mod", position, page)
    row = elementwise(
        "add", elementwise("multiply", reshape(gather(tables, reshape(page_no, (tokens, 1)), 1), (tokens,)), page), slot
    )
    caches = []
    for cache, new_rows in ((call[3], keys), (call[4], values)):
        rows = cast(reshape(new_rows, (tokens, groups, size)), tensor_type(cache).dtype)
        row_indices = broadcast(reshape(row, (tokens, 1, 1)), (tokens, groups, size))
        flat = scatter(reshape(cache, (pool * page, groups, size)), row_indices, rows, 0, "update")
        caches.append(reshape(flat, (pool, page, groups, size)))
    cached = (
        widen_to_float32(reshape(take_slices(one, tables, 0), (tokens, pages * page, groups, size))) for one in caches
    )
    shared_shape = (tokens, groups, heads // groups, pages * page, size)  # heads that share keys
    heads_first = [reshape(permute(one, (0, 2, 1, 3)), (tokens, groups, 1, pages * page, size)) for one in cached]
    keys, values = (reshape(broadcast(one, shared_shape), (tokens, heads, pages * page, size)) for one in heads_first)
    queries = reshape(queries, (tokens, heads, 1, size))
    _, scores = _scores(queries, keys, attrs.get("scale") or None, attrs.get("softcap", 0.0))
    is_visible = elementwise(
        "less_equal", constant(np.arange(pages * page), "int64"), reshape(position, (tokens, 1, 1, 1))
    )
    dtype = tensor_type(scores).dtype
    weights = _weights(scores, where(is_visible, constant(0, dtype), constant(-np.inf, dtype)), dtype)
    result = cast(reshape(matmul(weights, values), (tokens, heads * size)), call.kind().dtype)
    return [result, *caches][: len(call.outputs)]


def _as_sequence(value: Value | None, tokens: int) -> Value:
    """Return rows of tokens as a single sequence."""
    if value is None:
        raise RefusedError("has keys without values, expected both or neither")
    return reshape(value, (1, tokens, -1))


READERS: dict[str, Convert] = {"Attention": _attention, "RotaryEmbedding": _rotate}
MICROSOFT: dict[str, Convert] = {
    "Attention": _projected_attention,
    "EmbedLayerNormalization": _embed,
    "MultiHeadAttention": _multi_head_attention,
    "PagedAttention": _paged_attention,
    "RotaryEmbedding": _rotate,
}

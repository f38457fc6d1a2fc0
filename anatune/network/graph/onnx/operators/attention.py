"""Attention, rotations by positions, and embeddings: of the standard, and of onnxruntime's (``com.microsoft``).

Attention is written as `graph.passes.attention` recognises it: products of four dimensions, a softmax between them.
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
    padded,
    permute,
    reduced,
    reshape,
    scattered,
    sliced,
    softmax,
    taken,
    where,
    widen_to_float32,
)
from anatune.network.graph.einsums import product
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Attributes, Call, Convert, RefusedError

__all__ = ["MICROSOFT", "READERS"]

_FLOAT64 = 11
"""ONNX's number of float64."""


def _by_heads(value: Value, heads: int) -> Value:
    """Return (batch, rows, heads * size) as (batch, heads, rows, size)."""
    batch, rows, _ = tensor_type(value).shape
    return permute(reshape(value, (batch, rows, heads, -1)), (0, 2, 1, 3))


def _by_rows(value: Value) -> Value:
    """Return (batch, heads, rows, size) as (batch, rows, heads * size)."""
    batch, _, rows, _ = tensor_type(value).shape
    return reshape(permute(value, (0, 2, 1, 3)), (batch, rows, -1))


def _scores(query: Value, key: Value, scale: float | None, softcap: float) -> tuple[Value, Value]:
    """Return products of queries and keys, (batch, heads, queries, keys), times a scale, and those cut off softly."""
    scale = 1 / math.sqrt(tensor_type(query).shape[3]) if scale is None else scale
    raw = elementwise("multiply", matmul(query, permute(key, (0, 1, 3, 2))), scale)
    if not softcap:
        return raw, raw
    return raw, elementwise("multiply", elementwise("tanh", elementwise("divide", raw, softcap)), softcap)


def _weights(scores: Value, bias: Value | None, dtype: str) -> Value:
    """Return the softmax of scores with a bias, computed in a dtype; rows that the bias hides are zeros."""
    own = tensor_type(scores).dtype
    if bias is None:
        return cast(softmax(cast(scores, dtype), -1), own)
    found = softmax(cast(elementwise("add", scores, bias), dtype), -1)
    if not isinstance(bias, Constant) or np.isneginf(bias.array).all(axis=-1).any():
        found = where(elementwise("isnan", found), constant(0, dtype), found)
    return cast(found, own)


def _grouped(value: Value, heads: int, groups: int, rows: int) -> Value:
    """Return queries, or a bias of scores, whose heads share keys as rows of the keys' heads.

    (batch, heads, rows, size) become (batch, groups, heads / groups * rows, size); a bias may have 1 for heads or rows.
    """
    kind = tensor_type(value).shape
    batch, own, count, size = (1,) * (4 - len(kind)) + kind
    if own == count == 1:
        return reshape(value, (batch, 1, 1, size))
    shared = groups if own != 1 else 1
    whole = broadcast(reshape(value, (batch, own, count, size)), (batch, shared * heads // groups, rows, size))
    return reshape(whole, (batch, shared, -1, size))


def _hidden(allowed: Sequence[Value], bias: Value | None, dtype: str) -> Value | None:
    """Return a bias of ``-inf`` where a truth value is false; None: there is nothing to add."""
    if not allowed:
        return bias
    whole = allowed[0]
    for one in allowed[1:]:
        whole = elementwise("logical_and", whole, one)
    if isinstance(whole, Constant) and whole.array.all():
        return bias
    return where(whole, constant(0, dtype) if bias is None else bias, constant(-np.inf, dtype))


def _bias(call: Call, rows: int, keys: int, dtype: str) -> Value | None:
    """Return what is added to the scores of a standard attention: a mask, what is causal, windows, lengths."""
    own, mask, lengths, past = call.attributes, call.get(3), call.get(6), call.get(4)
    allowed: list[Value] = []
    bias: Value | None = None
    if mask is not None:
        shape, kind = tensor_type(mask).shape, tensor_type(mask).dtype
        if kind == "bool":
            mask = cast(mask, "uint8")  # padding has no code for truth values
        if shape[-1] < keys:
            number = 0.0 if kind == "bool" else -math.inf
            mask = padded(mask, [0] * len(shape), [*[0] * (len(shape) - 1), keys - shape[-1]], number)
        if kind == "bool":
            allowed.append(cast(mask, "bool"))
        else:
            bias = cast(mask, dtype)
    offset: Value = constant(0 if past is None else tensor_type(past).shape[2], "int64")
    if lengths is not None:
        lengths = reshape(cast(lengths, "int64"), (-1, 1, 1, 1))
        offset = elementwise("subtract", lengths, rows) if past is None else offset
        allowed.append(elementwise("less", constant(np.arange(keys), "int64"), lengths))
    after = elementwise(
        "subtract", elementwise("add", constant(np.arange(rows)[:, None], "int64"), offset),
        constant(np.arange(keys), "int64"),
    )  # fmt: skip
    if own["is_causal"]:
        allowed.append(elementwise("greater_equal", after, 0))
    if own.get("left_window_size", -1) >= 0:
        allowed.append(elementwise("less_equal", after, own["left_window_size"]))
    if own.get("right_window_size", -1) >= 0:
        allowed.append(elementwise("greater_equal", after, -own["right_window_size"]))
    return _hidden(allowed, bias, dtype)


def _attention(call: Call) -> Sequence[Value]:
    """Return a standard attention, keys and values with those of the past, and scores; onnxruntime's has weights."""
    own = call.attributes
    query, key, value = (call[place] for place in range(3))
    is_flat = call.rank == 3
    if is_flat:
        if not own.get("q_num_heads") or not own.get("kv_num_heads"):
            raise RefusedError("has tensors of 3 dimensions, expected the attributes q_num_heads and kv_num_heads")
        query = _by_heads(query, own["q_num_heads"])
        key, value = (_by_heads(one, own["kv_num_heads"]) for one in (key, value))
    if call.get(4) is not None and call.get(5) is not None:
        key, value = concat([call[4], key], 2), concat([call[5], value], 2)
    dtype = call.kind().dtype
    wide = tensor_type(widen_to_float32(query)).dtype
    (_, heads, rows, _), (_, groups, keys, _) = tensor_type(query).shape, tensor_type(key).shape
    if not groups or heads % groups:
        raise RefusedError(f"has {heads} heads of queries and {groups} of keys, expected a multiple of them")
    bias = _bias(call, rows, keys, wide)
    queries = widen_to_float32(query)
    if heads != groups:
        queries = _grouped(queries, heads, groups, rows)
        bias = None if bias is None else _grouped(bias, heads, groups, rows)
    raw, scores = _scores(queries, widen_to_float32(key), own.get("scale"), own["softcap"])
    weights = _weights(scores, bias, "float64" if own.get("softmax_precision") == _FLOAT64 else wide)
    found = reshape(matmul(weights, widen_to_float32(value)), (*tensor_type(query).shape[:3], -1))
    outputs = [_by_rows(found) if is_flat else found, key, value]
    if len(call.outputs) > 3 and call.outputs[3]:
        biased = scores if bias is None else elementwise("add", scores, bias)
        shown = (raw, scores, biased, weights)[own["qk_matmul_output_mode"]]
        outputs.append(reshape(shown, (*tensor_type(query).shape[:3], keys)))
    return [cast(one, dtype) for one in outputs][: len(call.outputs)]


# ---- onnxruntime's ----


def _masked(mask: Value | None, shape: tuple[int, int, int], number: float, dtype: str) -> Value | None:
    """Return what a mask of onnxruntime's adds to scores: a large negative number where it hides a key.

    `shape` is (batch, queries, keys). Masks are lengths, ends and then starts, or truth values of (batch, keys) or
    (batch, queries, keys).
    """
    if mask is None:
        return None
    batch, rows, keys = shape
    own, place = tensor_type(mask).shape, constant(np.arange(keys), "int64")
    if own == (batch,) or own == (2 * batch,):
        ends = reshape(cast(sliced(mask, [0], [0], [batch]), "int64"), (batch, 1, 1, 1))
        seen = elementwise("less", place, ends)
        if own != (batch,):
            starts = reshape(cast(sliced(mask, [0], [batch], [2 * batch]), "int64"), (batch, 1, 1, 1))
            seen = elementwise("logical_and", seen, elementwise("greater_equal", place, starts))
    elif own in ((batch, keys), (batch, rows, keys)):
        seen = elementwise("greater", reshape(mask, (batch, 1, -1, keys)), 0)
    else:
        raise RefusedError(f"has a mask {tensor_type(mask)}, expected one of {batch} sentences of {keys} words")
    return where(seen, constant(0, dtype), constant(number, dtype))


def _added(*terms: Value | None) -> Value | None:
    given = [one for one in terms if one is not None]
    total = given[0] if given else None
    for one in given[1:]:
        total = elementwise("add", total, one) if total is not None else one
    return total


def _of_words(
    call: Call, states: Sequence[Value], bias: Value | None, mask: Value | None, past: Value | None
) -> tuple[Value, Value]:
    """Return an attention of queries, keys and values by heads, (batch, rows, heads * size), and its scores.

    `past` are keys in front of the others. With `unidirectional` a query sees those and as many others as there are
    queries up to it; the last query sees all keys, as in onnxruntime's code for CPUs.
    """
    own = call.attributes
    query, key, value = (widen_to_float32(one) for one in states)
    (batch, _, rows, _), keys, dtype = tensor_type(query).shape, tensor_type(key).shape[2], tensor_type(query).dtype
    hidden = _masked(mask, (batch, rows, keys), own["mask_filter_value"], dtype)
    causal = None
    if own.get("unidirectional"):
        begin = 0 if past is None else tensor_type(past).shape[-2]
        seen = np.arange(keys) <= np.append(np.arange(rows - 1) + begin, keys)[:, None]
        causal = constant(np.where(seen, 0.0, -np.inf), dtype)
    _, scores = _scores(query, key, own.get("scale") or None, 0.0)
    total = _added(None if bias is None else widen_to_float32(bias), hidden, causal)
    found = softmax(scores if total is None else elementwise("add", scores, total), -1)
    return cast(_by_rows(matmul(found, value)), call.kind().dtype), scores


def _projected_attention(call: Call) -> Sequence[Value]:
    """Return an attention whose queries, keys and values are products of its input: onnxruntime's ``Attention``."""
    own = call.attributes
    if own.get("do_rotary") or own.get("past_present_share_buffer") or call.get(6) is not None:
        raise RefusedError("turns by positions or writes into a buffer, expected neither; export the model without")
    heads, width = own["num_heads"], call.kind(1).shape[1]
    sizes = own.get("qkv_hidden_sizes") or [width // 3] * 3
    joined = product(call[0], call[1])
    if call.get(2) is not None:
        joined = elementwise("add", joined, call[2])
    ends = np.cumsum(sizes)
    parts = [_by_heads(sliced(joined, [2], [end - size], [end]), heads) for end, size in zip(ends, sizes, strict=True)]
    query, key, value = parts
    if call.get(4) is not None:
        key, value = (concat([taken(call[4], constant(i, "int64"), 0), one], 2) for i, one in enumerate((key, value)))
    found, _ = _of_words(call, (query, key, value), call.get(5), call.get(3), call.get(4))
    if len(call.outputs) < 2:
        return [found]
    return [found, concat([reshape(one, (1, *tensor_type(one).shape)) for one in (key, value)], 0)]


def _multi_head_attention(call: Call) -> Sequence[Value]:
    """Return onnxruntime's ``MultiHeadAttention``: queries, keys and values apart, or packed."""
    heads, key, value = call.attributes["num_heads"], call.get(1), call.get(2)
    parts: list[Value]
    if key is None:  # (batch, rows, heads, 3, size)
        parts = [taken(call[0], constant(place, "int64"), 3) for place in range(3)]
        parts = [permute(one, (0, 2, 1, 3)) for one in parts]
    elif value is None:  # (batch, rows, heads, 2, size)
        packed = [permute(taken(key, constant(place, "int64"), 3), (0, 2, 1, 3)) for place in range(2)]
        parts = [_by_heads(call[0], heads), *packed]
    else:
        parts = [one if len(tensor_type(one).shape) == 4 else _by_heads(one, heads) for one in (call[0], key, value)]
    if call.get(3) is not None:
        end = 0
        for place, one in enumerate(parts):
            _, _, _, size = tensor_type(one).shape
            term = reshape(sliced(call[3], [0], [end], [end + heads * size]), (heads, 1, size))
            parts[place], end = elementwise("add", one, term), end + heads * size
    if call.get(6) is not None and call.get(7) is not None:
        parts[1:] = [concat([call[6], parts[1]], 2), concat([call[7], parts[2]], 2)]
    if any(call.get(place) is not None for place in (8, 9)):
        raise RefusedError("writes into a buffer of the past, expected past keys and values alone")
    found, scores = _of_words(call, parts, call.get(5), call.get(4), call.get(6))
    return [found, parts[1], parts[2], cast(scores, call.kind().dtype)][: len(call.outputs)]


def _embedded(call: Call) -> Sequence[Value]:
    """Return onnxruntime's ``EmbedLayerNormalization``: words, positions and segments looked up, added and normed."""
    batch, words = call.kind().shape
    total = taken(call[2], call[0], 0)
    places = call.get(8)
    position = constant(np.arange(words)[None], "int64") if places is None else places
    total = elementwise("add", total, taken(call[3], position, 0))
    if call.get(1) is not None:
        total = elementwise("add", total, taken(call[4], call[1], 0))
    found = layer_norm(total, call[5], call[6], [-1], call.attributes["epsilon"])
    mask = call.get(7)
    count = (
        broadcast(constant(0, "int32"), (batch,))
        if mask is None
        else reduced("sum", cast(mask, "int32"), [1], keepdims=False)
    )
    return [found, count, total][: len(call.outputs)]


def _rotated(call: Call) -> Value:
    """Return heads whose pairs of elements are turned by angles of their positions.

    The standard's operands are data, cosines, sines and positions; onnxruntime's are data, positions, cosines, sines.
    """
    own, data = call.attributes, call[0]
    is_standard = not call.kind(1).dtype.startswith("int")
    cosines, sines, places = (call[1], call[2], call.get(3)) if is_standard else (call[2], call[3], call[1])
    half = tensor_type(cosines).shape[-1]
    if call.rank == 3:
        width = call.kind().shape[2]
        heads = own.get("num_heads") or (0 if is_standard else width // (2 * half))
        if not heads:
            raise RefusedError("has a tensor of 3 dimensions, expected the attribute num_heads")
        data = reshape(data, (*call.kind().shape[:2], heads, -1))
    rows_at = 1 if call.rank == 3 else 2
    rows, size = tensor_type(data).shape[rows_at], tensor_type(data).shape[3]
    if places is not None:
        if tensor_type(places).shape == (1,) and not is_standard:  # of the first row
            places = elementwise("add", constant(np.arange(rows)[None], tensor_type(places).dtype), places)
        cosines, sines = taken(cosines, places, 0), taken(sines, places, 0)
    shape = [tensor_type(cosines).shape[0], 1, 1, half]
    shape[rows_at] = rows
    cosines, sines = reshape(cosines, shape), reshape(sines, shape)
    count = own.get("rotary_embedding_dim") or size
    if count != 2 * half:
        raise RefusedError(f"turns {count} elements of a head by {half} angles, expected half as many")
    turned, rest = sliced(data, [3], [0], [count]), sliced(data, [3], [count], [size])
    is_mixed = bool(own.get("interleaved"))
    begins, ends, step = ([0, 1], [count, count], 2) if is_mixed else ([0, half], [half, count], 1)
    first, second = (sliced(turned, [3], [begin], [end], [step]) for begin, end in zip(begins, ends, strict=True))
    real = elementwise("subtract", elementwise("multiply", first, cosines), elementwise("multiply", second, sines))
    other = elementwise("add", elementwise("multiply", first, sines), elementwise("multiply", second, cosines))
    if is_mixed:
        shape = [*tensor_type(real).shape, 1]
        joined = reshape(concat([reshape(real, shape), reshape(other, shape)], 4), (*shape[:3], count))
    else:
        joined = concat([real, other], 3)
    return reshape(concat([joined, rest], 3), call.kind().shape)


def _paged_attention(call: Call) -> Sequence[Value]:
    """Return onnxruntime's ``PagedAttention``: tokens of all sequences behind each other, keys and values in pages.

    Each token is a query of its own, with its sequence's pages and as many keys as there are up to it.
    """
    own = call.attributes
    heads, groups = own["num_heads"], own["kv_num_heads"]
    if own.get("local_window_size", -1) > 0 or any(
        call.get(place) is not None for place in range(10, len(call.inputs))
    ):
        raise RefusedError("has a window, or inputs behind the cosines and sines, expected neither")
    if not call.kind(7).dtype.startswith("int"):
        raise RefusedError(f"has a table of {call.kind(7).dtype}, expected numbers of pages, int32")
    (pool, page, _, size), tokens = call.kind(3).shape, call.kind().shape[0]
    sizes = (heads * size, groups * size, groups * size)
    parts = [call[0], call.get(1), call.get(2)]
    if parts[1] is None:  # side by side
        ends = np.cumsum(sizes)
        parts = [sliced(call[0], [1], [end - width], [end]) for end, width in zip(ends, sizes, strict=True)]
    token, begins = constant(np.arange(tokens), "int64"), cast(call[5], "int64")
    (batch, pages) = call.kind(7).shape
    later = sliced(begins, [0], [1], [batch + 1])  # where the next sequence begins
    is_behind = elementwise("less_equal", reshape(later, (1, batch)), reshape(token, (tokens, 1)))
    sequence = clamp_indices(reduced("sum", cast(is_behind, "int64"), [1], keepdims=False), batch)
    before = elementwise("subtract", taken(cast(call[6], "int64"), sequence, 0), taken(begins, sequence, 0))
    place = elementwise("add", before, token)
    queries, keys, values = (widen_to_float32(_of_tokens(one, tokens)) for one in parts)
    if own.get("do_rotary"):
        positions = (reshape(place, (1, tokens)), widen_to_float32(call[8]), widen_to_float32(call[9]))
        named = {"interleaved": own.get("rotary_interleaved", 0)}
        queries, keys = (
            _rotated(replace(call, inputs=(data, *positions), attributes=Attributes({**named, "num_heads": count})))
            for data, count in ((queries, heads), (keys, groups))
        )
    tables = taken(clamp_indices(call[7], pool), sequence, 0)  # (tokens, pages)
    at = clamp_indices(elementwise("floor_divide", place, page), pages)
    slot = elementwise("floor_mod", place, page)
    row = elementwise(
        "add", elementwise("multiply", reshape(gather(tables, reshape(at, (tokens, 1)), 1), (tokens,)), page), slot
    )
    caches = []
    for cache, made in ((call[3], keys), (call[4], values)):
        rows = cast(reshape(made, (tokens, groups, size)), tensor_type(cache).dtype)
        rows_at = broadcast(reshape(row, (tokens, 1, 1)), (tokens, groups, size))
        flat = scattered(reshape(cache, (pool * page, groups, size)), rows_at, rows, 0, "update")
        caches.append(reshape(flat, (pool, page, groups, size)))
    held = (widen_to_float32(reshape(taken(one, tables, 0), (tokens, pages * page, groups, size))) for one in caches)
    alike = (tokens, groups, heads // groups, pages * page, size)  # heads that share keys
    turned = [reshape(permute(one, (0, 2, 1, 3)), (tokens, groups, 1, pages * page, size)) for one in held]
    keys, values = (reshape(broadcast(one, alike), (tokens, heads, pages * page, size)) for one in turned)
    queries = reshape(queries, (tokens, heads, 1, size))
    _, scores = _scores(queries, keys, own.get("scale") or None, own.get("softcap", 0.0))
    seen = elementwise("less_equal", constant(np.arange(pages * page), "int64"), reshape(place, (tokens, 1, 1, 1)))
    dtype = tensor_type(scores).dtype
    weights = _weights(scores, where(seen, constant(0, dtype), constant(-np.inf, dtype)), dtype)
    found = cast(reshape(matmul(weights, values), (tokens, heads * size)), call.kind().dtype)
    return [found, *caches][: len(call.outputs)]


def _of_tokens(value: Value | None, tokens: int) -> Value:
    """Return rows of tokens as one sentence."""
    if value is None:
        raise RefusedError("has keys without values, expected both or neither")
    return reshape(value, (1, tokens, -1))


READERS: dict[str, Convert] = {"Attention": _attention, "RotaryEmbedding": _rotated}
MICROSOFT: dict[str, Convert] = {
    "Attention": _projected_attention,
    "EmbedLayerNormalization": _embedded,
    "MultiHeadAttention": _multi_head_attention,
    "PagedAttention": _paged_attention,
    "RotaryEmbedding": _rotated,
}

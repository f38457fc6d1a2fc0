"""Attention and what comes before it, as ONNX's reference or onnxruntime's equations compute them."""

import itertools

import numpy as np
import pytest
from scipy import special

from anatune.errors import WorkloadError
from anatune.network.graph.operators import ATTENTION
from anatune.network.graph.passes.attention import fuse_attention
from anatune.network.graph.passes.order import CPU, CPU_KERNELS, run_passes
from tests.unit.network.graph.onnx.evaluated import check, computed
from tests.unit.network.graph.onnx.one_node import model_of, read
from tests.wording import refuses

MICROSOFT = {"domain": "com.microsoft", "opset": 1}


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def weighed(query, key, value, bias=0.0, scale=None):
    """Return an attention of (..., rows, size)."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return (special.softmax(query @ key.swapaxes(-1, -2) * scale + bias, axis=-1) @ value).astype(np.float32)


def heads(x, count):
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def rows(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


QUERY, KEY, VALUE = array(2, 4, 3, 8), array(2, 4, 5, 8), array(2, 4, 5, 6)
MASK = np.random.default_rng(0).random((3, 5)) < 0.7
MASK[1] = False


@pytest.mark.parametrize("mask", [None, array(3, 5), array(2, 1, 3, 5), array(4, 3, 5), MASK, array(3, 4), MASK[:, :4]])
@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"scale": 0.3, "softcap": 1.5}])
def test_masks_and_scales(mask, attributes):
    check("Attention", QUERY, KEY, VALUE, mask, opset=24, **attributes)


@pytest.mark.parametrize("shape", [None, (3, 5), (1, 4, 3, 5), (2, 1, 1, 5), (4, 1, 5)])
def test_heads_may_share_keys(shape):
    key, value = array(2, 2, 5, 8), array(2, 2, 5, 6)
    mask = None if shape is None else array(*shape)
    graph = check("Attention", QUERY, key, value, mask, unknown=(0, 1, 2), opset=24)
    assert not any(node.op == "broadcast_to" and node.type.shape[-2:] == (5, 8) for node in graph.nodes())


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_are_shown(mode):
    past = [array(2, 4, 2, 8, seed=1), array(2, 4, 2, 6, seed=1)]
    attributes = {"qk_matmul_output_mode": mode, "outputs": 4, "is_causal": 1}
    check("Attention", QUERY, KEY, VALUE, None, *past, opset=24, **attributes)


def test_windows_and_lengths():
    attributes = {"left_window_size": 1, "right_window_size": 2}
    check("Attention", QUERY, KEY, VALUE, opset=25, **attributes)
    lengths = np.array([5, 2])
    check("Attention", QUERY, KEY, VALUE, None, None, None, lengths, unknown=(0, 6), is_causal=1, opset=24)


def test_tensors_of_three_dimensions():
    attributes = {"q_num_heads": 4, "kv_num_heads": 2}
    check("Attention", array(2, 3, 32), array(2, 5, 16), array(2, 5, 12), opset=23, **attributes)
    with refuses(WorkloadError):
        computed("Attention", array(2, 3, 32), array(2, 5, 16), array(2, 5, 12), opset=23)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}])
def test_attention_is_one_kernel(attributes):
    operands = array(1, 16, 64), array(1, 16, 64, seed=1), array(1, 16, 64, seed=2)
    model = model_of("Attention", *operands, unknown=(0, 1, 2), opset=23, q_num_heads=4, kv_num_heads=4, **attributes)
    graph = run_passes(CPU_KERNELS, run_passes(CPU, read(model)))
    outcome = fuse_attention(graph, lambda _: True)
    assert sum(node.op == ATTENTION for node in outcome.nodes()) == 1


# ---- onnxruntime's ----


@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        (None, np.ones((2, 1, 1, 3), bool)),
        (np.array([3, 2], np.int32), np.arange(3) < np.array([3, 2])[:, None, None, None]),
        (
            np.array([3, 2, 1, 0], np.int32),
            (np.arange(3) < np.array([3, 2])[:, None, None, None])
            & (np.arange(3) >= np.array([1, 0])[:, None, None, None]),
        ),
        (np.array([[1, 1, 0], [1, 0, 1]], np.int32), np.array([[1, 1, 0], [1, 0, 1]], bool)[:, None, None]),
    ],
)
def test_projected_attention(mask, allowed):
    x, weight, bias, more = array(2, 3, 8), array(8, 24), array(24), array(2, 2, 3, 3)
    parts = [heads(one, 2) for one in np.split(x @ weight + bias, 3, axis=-1)]
    want = rows(weighed(*parts, np.where(allowed, 0, -10000.0) + more))
    check("Attention", x, weight, bias, mask, None, more, want=[want], num_heads=2, **MICROSOFT)


def test_projected_attention_with_a_past():
    x, weight, bias, past = array(2, 3, 8), array(8, 20), array(20), array(2, 2, 2, 4, 4)
    sizes = [8, 8, 4]
    query, key, value = (heads(one, 2) for one in np.split(x @ weight + bias, np.cumsum(sizes)[:2], axis=-1))
    causal = np.where(np.arange(3)[:, None] >= np.arange(3), 0.0, -np.inf)
    attributes = {"num_heads": 2, "qkv_hidden_sizes": sizes, "unidirectional": 1, **MICROSOFT}
    check("Attention", x, weight, bias, want=[rows(weighed(query, key, value, causal))], **attributes)
    weight, bias = array(8, 24), array(24)
    query, key, value = (heads(one, 2) for one in np.split(x @ weight + bias, 3, axis=-1))
    key, value = np.concatenate([past[0], key], 2), np.concatenate([past[1], value], 2)
    want = [rows(weighed(query, key, value)), np.stack([key, value])]
    check("Attention", x, weight, bias, None, past, want=want, outputs=2, num_heads=2, **MICROSOFT)


def test_multi_head_attention():
    x, y, z, bias = array(2, 3, 8), array(2, 5, 8), array(2, 5, 6), array(22)
    terms = np.split(bias, [8, 16])
    parts = [heads(one + term, 2) for one, term in zip((x, y, z), terms, strict=True)]
    attributes = {"num_heads": 2, **MICROSOFT}
    check("MultiHeadAttention", x, y, z, bias, want=[rows(weighed(*parts))], **attributes)
    want = [rows(weighed(heads(x, 2), parts[1], parts[2])), parts[1], parts[2]]
    check("MultiHeadAttention", x, parts[1], parts[2], want=want, outputs=3, **attributes)
    packed = array(2, 3, 2, 3, 4)
    inner = [packed[:, :, :, place].swapaxes(1, 2) for place in range(3)]
    check("MultiHeadAttention", packed, want=[rows(weighed(*inner))], **attributes)
    both = packed[:, :, :, :2]
    check("MultiHeadAttention", x, both, want=[rows(weighed(heads(x, 2), *inner[:2]))], **attributes)


def test_embeddings():
    words, segments = np.array([[1, 2, 0]], np.int32), np.array([[0, 1, 1]], np.int32)
    tables, factor, term = [array(4, 8), array(6, 8), array(2, 8)], array(8), array(8, seed=1)
    total = tables[0][words] + tables[1][:3] + tables[2][segments]
    away = total - total.mean(-1, keepdims=True)
    want = away / np.sqrt((away**2).mean(-1, keepdims=True) + 1e-3) * factor + term
    operands = [words, segments, *tables, factor, term, np.array([[1, 1, 0]], np.int32)]
    want = [want.astype(np.float32), np.array([2], np.int32), total]
    check("EmbedLayerNormalization", *operands, want=want, outputs=3, epsilon=1e-3, **MICROSOFT)


@pytest.mark.parametrize("attributes", [{}, {"interleaved": 1}, {"rotary_embedding_dim": 4}])
def test_rotations(attributes):
    half = attributes.get("rotary_embedding_dim", 8) // 2
    cosines, sines, places = array(10, half), array(10, half, seed=1), np.array([[3, 1, 4], [1, 5, 9]])
    check("RotaryEmbedding", array(2, 4, 3, 8), cosines, sines, places, unknown=(0, 3), opset=23, **attributes)
    attributes["num_heads"] = 4
    check("RotaryEmbedding", array(2, 3, 32), cosines, sines, places, opset=23, **attributes)
    check("RotaryEmbedding", array(2, 3, 32), cosines[places], sines[places], opset=23, **attributes)


def test_rotations_of_onnxruntime():
    x, cosines, sines = array(2, 3, 16), array(10, 4), array(10, 4, seed=1)
    split = x.reshape(2, 3, 2, 2, 4)
    first, second = split[..., 0, :], split[..., 1, :]
    c, s = cosines[2:5, None], sines[2:5, None]
    want = np.concatenate([first * c - second * s, first * s + second * c], -1).reshape(x.shape)
    check("RotaryEmbedding", x, np.array([2]), cosines, sines, want=[want], **MICROSOFT)


PAGED = {"num_heads": 4, "kv_num_heads": 2, "outputs": 3, **MICROSOFT}
BEGINS, PAST = np.array([0, 2, 2, 3, 6], np.int32), np.array([3, 5, 0, 2], np.int32)
TABLE = np.array([[6, 1], [0, 5], [3, -1], [4, 2]], np.int32)  # of pages of 4 tokens, the last one of three not in use
CACHES = array(7, 4, 2, 8), array(7, 4, 2, 8, seed=1)


def paged(query, key, value, turned=lambda x, place: x):
    """Return each token's attention of its sequence, tokens in order, and the caches."""
    caches, outcome = [one.copy() for one in CACHES], []
    for sequence, (begin, end) in enumerate(itertools.pairwise(BEGINS)):
        for token in range(begin, end):
            index = PAST[sequence] + token - begin
            position = TABLE[sequence, index // 4], index % 4
            caches[0][position], caches[1][position] = (
                turned(key[token].reshape(2, 8), index),
                value[token].reshape(2, 8),
            )
            keys, values = (one[TABLE[sequence]].reshape(8, 2, 8)[: index + 1].repeat(2, 1) for one in caches)
            attributes = turned(query[token].reshape(4, 8), index)[:, None]
            outcome.append(weighed(attributes, keys.swapaxes(0, 1), values.swapaxes(0, 1)).reshape(32))
    return [np.stack(outcome), *caches]


@pytest.mark.parametrize("is_packed", [False, True])
def test_paged_attention(is_packed):
    query, key, value = array(6, 32), array(6, 16), array(6, 16, seed=1)
    given = [np.concatenate([query, key, value], 1), None, None] if is_packed else [query, key, value]
    attributes = {"unknown": (0, 3, 4, 5, 6, 7), "want": paged(query, key, value), **PAGED}
    check("PagedAttention", *given, *CACHES, BEGINS, PAST, TABLE, **attributes)


def test_paged_attention_turns_by_positions():
    query, key, value, cosines, sines = (
        array(6, 32),
        array(6, 16),
        array(6, 16, seed=1),
        array(9, 4),
        array(9, 4, seed=1),
    )

    def turned(x, index):
        first, second = x[:, :4], x[:, 4:]
        c, s = cosines[index], sines[index]
        return np.concatenate([first * c - second * s, first * s + second * c], -1)

    want = paged(query, key, value, turned)
    attributes = {"unknown": (0, 3, 4, 5, 6, 7), "want": want, "do_rotary": 1, **PAGED}
    check("PagedAttention", query, key, value, *CACHES, BEGINS, PAST, TABLE, cosines, sines, **attributes)
    with refuses(WorkloadError):
        check("PagedAttention", query, key, value, *CACHES, BEGINS, PAST, TABLE, local_window_size=3, **PAGED)
    with refuses(WorkloadError):
        check("PagedAttention", query, key, value, *CACHES, BEGINS, PAST, TABLE.astype(np.float32), **PAGED)

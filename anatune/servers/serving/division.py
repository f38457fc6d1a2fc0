"""The weights of a decoder on one of several devices that divide each layer (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from anatune.errors import SpaceError
from anatune.servers.serving.config import Decoder, LayerGroup

WEIGHT_BYTES = {
    "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "int4": 0.5, "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}  # fmt: skip
"""Precision -> bytes of a weight and its share of the scales. Scales of tensors and of 128 x 128 weights are neglected,
and int4 has two bytes for each group. Source: the formats in `anatune.core.workload.scaling`."""


class Parallelism(NamedTuple):
    """The division of each layer among devices.

    Attributes
    ----------
    tp : int
        The number of devices, which share heads and intermediate sizes.
    ep : int
        The number of devices over which whole experts are distributed; 1: all devices divide each expert.
    """

    tp: int = 1
    ep: int = 1


class LayerProduct(NamedTuple):
    """A product of a layer on one device, with weights (n, k).

    Attributes
    ----------
    name : str
        "qkv", "output", "gate_up", "down", "router", "queries", "keys_values" or "head".
    n, k : int
        The columns of the result, and the depth.
    precision : str
        The format of the weights.
    """

    name: str
    n: int
    k: int
    precision: str


def check_division(decoder: Decoder, division: Parallelism) -> None:
    """Raise SpaceError if the devices cannot divide the heads, the intermediate sizes or the experts evenly."""
    tp, attention = division.tp, decoder.attention
    divided = [("num_attention_heads", attention.heads)]
    if not attention.latent and attention.kv_heads % tp and tp % attention.kv_heads:
        divided.append(("num_key_value_heads", attention.kv_heads))
    for group in decoder.layers:
        divided.append(("the intermediate size", group.intermediate))
        if group.experts and division.ep == 1:
            divided.append(("the experts' intermediate size", group.expert_intermediate))
        if group.experts % division.ep:
            raise SpaceError(
                f"{decoder.name}: {group.experts} experts cannot be distributed over {division.ep} devices evenly; "
                "give another --tp, or leave out --expert-parallel"
            )
    if division.ep > 1 and (division.ep != tp or not decoder.has_experts):
        raise SpaceError(
            f"{decoder.name}: experts are distributed over {division.ep} devices, expected a model with experts, and 1 "
            f"or all {tp} devices"
        )
    for name, size in divided:
        if size % tp:
            raise SpaceError(f"{decoder.name}: {name} is {size}, expected a multiple of --tp {tp}; give another --tp")


def list_products(decoder: Decoder, group: LayerGroup, division: Parallelism) -> Iterator[LayerProduct]:
    """Yield the products of a layer on one device, without those of its routed experts."""
    tp, attention, dense, hidden = division.tp, decoder.attention, decoder.dense_precision, decoder.hidden
    heads = attention.heads // tp
    if attention.latent:
        held = attention.latent + attention.rope_dim
        depth = attention.query_latent or hidden
        if attention.query_latent:
            yield LayerProduct("qkv", attention.query_latent + held, hidden, dense)
        else:
            yield LayerProduct("qkv", held, hidden, dense)
        yield LayerProduct("queries", heads * attention.head_dim, depth, dense)
        both = attention.head_dim - attention.rope_dim + attention.value_dim
        yield LayerProduct("keys_values", heads * both, attention.latent, "bfloat16")
    else:
        kv_heads = -(-attention.kv_heads // tp)
        columns = heads * attention.head_dim + kv_heads * (attention.head_dim + attention.value_dim)
        yield LayerProduct("qkv", columns, hidden, dense)
    yield LayerProduct("output", hidden, heads * attention.value_dim, dense)
    if group.experts:
        yield LayerProduct("router", group.experts, hidden, "bfloat16")
    if group.intermediate:
        inner = group.intermediate // tp
        precision = decoder.precision if group.experts and decoder.precision != "int4" else dense
        yield LayerProduct("gate_up", 2 * inner, hidden, precision)
        yield LayerProduct("down", hidden, inner, precision)


def head_product(decoder: Decoder, division: Parallelism) -> LayerProduct:
    """Return the product with the vocabulary."""
    return LayerProduct("head", -(-decoder.vocab // division.tp), decoder.hidden, "bfloat16")


def expert_sizes(group: LayerGroup, division: Parallelism) -> tuple[int, int]:
    """Return the experts of a device, and the intermediate size that it has of each."""
    if division.ep > 1:
        return group.experts // division.ep, group.expert_intermediate
    return group.experts, group.expert_intermediate // division.tp


def weight_bytes(decoder: Decoder, division: Parallelism) -> float:
    """Return the bytes of a device's weights, with the embedding."""
    total, sizes = 0.0, {**WEIGHT_BYTES, "int4": WEIGHT_BYTES["int4"] + 2 / decoder.group}
    for group in decoder.layers:
        layer = sum(p.n * p.k * sizes[p.precision] for p in list_products(decoder, group, division))
        experts, inner = expert_sizes(group, division) if group.experts else (0, 0)
        layer += 3.0 * experts * inner * decoder.hidden * sizes[decoder.precision]
        total += group.count * layer
    head = head_product(decoder, division)
    tables = 1 if decoder.is_tied else 2
    return total + tables * head.n * head.k * sizes[head.precision]


def cache_bytes(decoder: Decoder, division: Parallelism, tokens: int, element_bytes: float) -> float:
    """Return the bytes that a sequence of `tokens` tokens needs in the cache of a device."""
    held = sum(group.count * min(tokens, group.window or tokens) for group in decoder.layers)
    return held * decoder.attention.count_cache_elements(division.tp) * element_bytes

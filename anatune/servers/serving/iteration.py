"""The kernels of an iteration of a server, and their predicted seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from scipy.special import ndtri

from anatune.core.workload.access import FLOAT8_DTYPES
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.attention import attention
from anatune.core.workload.operators.matmul import batch_matmul, matmul
from anatune.core.workload.operators.rows import add_rms_norm, quantise_tensor, rotary, silu_multiply
from anatune.core.workload.operators.scaled import grouped_matmul, scaled_matmul
from anatune.core.workload.routing import make_uniform_routing
from anatune.errors import SpaceError
from anatune.servers.serving.collectives import Operation, collective_s
from anatune.servers.serving.config import Decoder, LayerGroup
from anatune.servers.serving.division import LayerProduct, Parallelism, expert_sizes, head_product, list_products
from anatune.servers.serving.times import KernelTimes
from anatune.templates.triton.grouped.layer import ExpertLayer, rest_s
from anatune.templates.triton.times import sustained_flop_per_s

_HALF = "bfloat16"
_GROUPS = (128, 64, 32)
"""The numbers of weights along k that share a scale, the usual one first."""
_FLOAT8 = ("fp8", "fp8_block")
_PADDED = 64
"""Servers pad the depth of products of 4-bit floats to a multiple of this."""


class Iteration(NamedTuple):
    """The work of a server in one pass through the layers.

    Attributes
    ----------
    decoding : int
        The number of sequences of which a token is made.
    held : int
        The number of tokens that each of them has in the cache.
    prompts, prompt : int
        The number of prompts that are read, and the tokens of each.
    before : int
        The tokens of each prompt that earlier iterations have read.
    """

    decoding: int = 0
    held: int = 0
    prompts: int = 0
    prompt: int = 0
    before: int = 0

    @property
    def rows(self) -> int:
        """Number of tokens that pass the layers."""
        return self.decoding + self.prompts * self.prompt


class PredictedKernel(NamedTuple):
    """A kernel of an iteration.

    Attributes
    ----------
    kind : str
        "products", "attention", "experts", "rows" or "collectives".
    name : str
        The name of the kernel in its layer.
    time_s : float
        The predicted seconds of a launch.
    launches : int
        The number of launches.
    """

    kind: str
    name: str
    time_s: float
    launches: int


class IterationTimes:
    """Predicts the seconds of iterations of one decoder on one kind of device.

    Parameters
    ----------
    decoder : Decoder
        The language model.
    division : Parallelism
        How devices divide its layers.
    times : KernelTimes
        The seconds of kernels on the device.
    cache : str
        The dtype of keys and values in the cache: "bfloat16" or "fp8".
    """

    def __init__(self, decoder: Decoder, division: Parallelism, times: KernelTimes, cache: str = _HALF) -> None:
        self.decoder, self.division, self.times, self.cache = decoder, division, times, cache
        self.spec = times.spec
        names = [name for name in FLOAT8_DTYPES if self.spec.tensor_flop_per_s(name)]
        self._float8 = next((name for name in names if times.can_run(scaled_matmul(64, 128, 128, name))), None)

    def predict(self, iteration: Iteration) -> list[PredictedKernel]:
        """Return the kernels of an iteration.

        Raises
        ------
        SpaceError, SpecError
            The device cannot run a kernel of the model.
        """
        calls: list[PredictedKernel] = []
        for group in self.decoder.layers:
            calls += [call._replace(launches=call.launches * group.count) for call in self._layer(group, iteration)]
        head, rows = head_product(self.decoder, self.division), iteration.decoding + iteration.prompts
        calls.append(self._product(head, rows))
        if self.division.tp > 1:
            calls.append(self._collective("all_gather", 2.0 * rows * head.n * self.division.tp, 1))
        return calls

    def seconds(self, iteration: Iteration) -> float:
        """Return the seconds of an iteration."""
        return sum(call.time_s * call.launches for call in self.predict(iteration))

    def _layer(self, group: LayerGroup, iteration: Iteration) -> Iterator[PredictedKernel]:
        decoder, rows, sizes = self.decoder, iteration.rows, self.decoder.attention
        heads = sizes.heads // self.division.tp
        yield self._rows("norm", add_rms_norm(rows, decoder.hidden, _HALF), decoder.norms)
        for product in list_products(decoder, group, self.division):
            if product.name == "keys_values":
                yield from self._latent_products(iteration, heads)
                continue
            if self._has_quantisation(product):
                yield self._rows("quantise", quantise_tensor(rows, product.k, f"{_HALF}:{self._float8}"), 1)
            yield self._product(product, rows)
        if decoder.norms_all_heads:
            yield self._rows("heads' norm", add_rms_norm(rows, heads * sizes.head_dim, _HALF), 1)
            if self.division.tp > 1:
                yield self._collective("all_reduce", 8.0 * rows, 1)
        rotated = heads + (1 if sizes.latent else -(-sizes.kv_heads // self.division.tp))
        yield self._rows("rotary", rotary(rows, rotated, sizes.rope_dim or sizes.head_dim, _HALF), 1)
        yield from self._attention(group, iteration, heads)
        if group.intermediate:
            yield self._rows("silu", silu_multiply(rows, group.intermediate // self.division.tp, _HALF), 1)
        if group.experts:
            yield from self._experts(group, rows)
        if self.division.tp > 1:
            yield self._collective("all_reduce", 2.0 * rows * decoder.hidden, 2)

    def _has_quantisation(self, product: LayerProduct) -> bool:
        """Return whether a kernel of its own quantises the rows that a product takes.

        The activation quantises its results for "down". A norm does so with a scale for each tensor; scales of blocks
        have their own kernel in vLLM, SGLang and TensorRT-LLM.
        """
        if not self._float8 or product.precision not in _FLOAT8 or product.name == "down":
            return False
        return product.precision == "fp8_block" or product.name == "output"

    def _rows(self, name: str, workload: Workload, count: int) -> PredictedKernel:
        return PredictedKernel("rows", name, self.times.predict(workload).time_s, count)

    def _collective(self, operation: Operation, size_bytes: float, count: int) -> PredictedKernel:
        time_s = collective_s(operation, self.spec, self.division.tp, size_bytes)
        return PredictedKernel("collectives", operation, time_s, count)

    def _product(self, product: LayerProduct, rows: int) -> PredictedKernel:
        workload = self._format(product, rows)
        return PredictedKernel("products", product.name, self.times.predict(workload).time_s, 1)

    def _format(self, product: LayerProduct, rows: int) -> Workload:
        """Return the workload of a product in the format of its weights, or in one that the device can multiply."""
        n, k, precision = product.n, product.k, product.precision
        if precision in _FLOAT8:
            if self._float8:
                return scaled_matmul(rows, n, k, self._float8, "blocks" if precision == "fp8_block" else "tensor")
            return scaled_matmul(rows, n, k, f"{_HALF}xint8", group=_group_of(k))
        if precision in ("nvfp4", "mxfp4"):
            workload = scaled_matmul(rows, n, k, precision)
            if self.times.can_run(workload):
                return workload
            return scaled_matmul(rows, n, k, f"{_HALF}xint4", group=_group_of(k, 32))
        if precision in ("int4", "int8"):
            return scaled_matmul(rows, n, k, f"{_HALF}x{precision}", group=_group_of(k, self.decoder.group))
        return matmul(rows, n, k, dtype=_HALF)

    def _experts(self, group: LayerGroup, rows: int) -> Iterator[PredictedKernel]:
        """Yield the two grouped products of a layer, and what sorts, activates and adds up its rows."""
        experts, inner = expert_sizes(group, self.division)
        tokens, top_k = rows, group.top_k
        if self.division.ep > 1:  # each row of the device with the most rows is one token
            tokens, top_k = _count_most_rows(rows * top_k, self.division.ep), 1
        hidden = self.decoder.hidden
        word, scales, run = self._expert_format(hidden, inner)
        padded = -(-inner // _PADDED) * _PADDED if word in ("nvfp4", "mxfp4") else inner
        for name, n, k, expanded in (("up", 2 * inner, hidden, False), ("down", hidden, padded, True)):
            workload = grouped_matmul(tokens, experts, top_k, n, k, word, scales, run, expanded=expanded)
            yield PredictedKernel("experts", name, self.times.predict(workload).time_s, 1)
        dtype = "fp8" if word in FLOAT8_DTYPES else _HALF
        routing = make_uniform_routing(tokens, experts, top_k)
        layer = ExpertLayer(tokens, hidden, inner, experts, top_k, routing, dtype)
        yield PredictedKernel("experts", "routing and sums", rest_s(layer, self.spec), 1)

    def _expert_format(self, hidden: int, inner: int) -> tuple[str, str, int]:
        """Return dtype, scales and group of `grouped_matmul` for the experts' weights."""
        precision = self.decoder.precision
        few = f"{_HALF}xint4"
        if precision in _FLOAT8:
            if self._float8:
                return self._float8, "blocks" if precision == "fp8_block" else "tensor", 0
            return f"{_HALF}xint8", "tensor", _group_of(hidden, inner)
        if precision in ("nvfp4", "mxfp4"):
            if self.times.can_run(grouped_matmul(64, 8, 2, 128, 128, precision)):
                return precision, "tensor", 0
            return few, "tensor", _group_of(hidden, inner, 32)
        if precision == "int4":
            return few, "tensor", _group_of(hidden, inner, self.decoder.group)
        return (
            (f"{_HALF}xint8", "tensor", _group_of(hidden, inner, self.decoder.group))
            if precision == "int8"
            else (_HALF, "tensor", 0)
        )

    def _attention(self, group: LayerGroup, iteration: Iteration, heads: int) -> Iterator[PredictedKernel]:
        sizes = self.decoder.attention
        kv_heads = heads if sizes.latent else -(-sizes.kv_heads // self.division.tp)
        if iteration.decoding:
            if sizes.latent:
                time_s = self._latent_attention_s(iteration, heads)
            else:
                seen = max(1, min(iteration.held, group.window or iteration.held))
                word = self._float8 if self.cache == "fp8" and self._float8 else _HALF
                workload = attention(iteration.decoding, heads, kv_heads, 1, seen, sizes.head_dim, dtype=word)
                time_s = self.times.predict(workload).time_s
            yield PredictedKernel("attention", "decoding", time_s, 1)
        if iteration.prompts:
            keys = iteration.before + iteration.prompt
            window = group.window if group.window < keys else 0
            workload = attention(
                iteration.prompts, heads, kv_heads, iteration.prompt, keys, sizes.head_dim,
                causal=True, window=window, dtype=_HALF,
            )  # fmt: skip
            yield PredictedKernel("attention", "prompt", self.times.predict(workload).time_s, 1)

    def _latent_products(self, iteration: Iteration, heads: int) -> Iterator[PredictedKernel]:
        """Yield the products with the projections of keys and values, which decoding absorbs.

        Source: [DeepSeek-V3] Sec. 2.1.1.
        """
        sizes = self.decoder.attention
        nope = sizes.head_dim - sizes.rope_dim
        if iteration.decoding:
            rows, latent = iteration.decoding, sizes.latent
            for name, n, k in (("absorbed keys", latent, nope), ("absorbed values", sizes.value_dim, latent)):
                workload = batch_matmul(heads, rows, n, k, dtype=_HALF)
                yield PredictedKernel("products", name, self.times.predict(workload).time_s, 1)
        if iteration.prompts:
            columns = heads * (nope + sizes.value_dim)
            read = iteration.prompts * (iteration.before + iteration.prompt)
            workload = matmul(read, columns, sizes.latent, dtype=_HALF)
            yield PredictedKernel("products", "keys and values", self.times.predict(workload).time_s, 1)

    def _latent_attention_s(self, iteration: Iteration, heads: int) -> float:
        """Return the seconds of decoding with a latent cache: bytes over bandwidth, or arithmetic, and two launches.

        All heads read the same row of a token; no kernel of the core has rows of this size.
        """
        sizes, tokens = self.decoder.attention, iteration.decoding * iteration.held
        element = 1 if self.cache == "fp8" else 2
        dram = self.spec.dram.bandwidth_bytes_per_s * self.spec.dram.reachable_fraction
        rate = sustained_flop_per_s(self.spec, _HALF)
        if rate is None:
            raise SpaceError(f"{self.spec.name} has no matrix units for {_HALF}; choose another device")
        flop = 2.0 * tokens * heads * (2 * sizes.latent + sizes.rope_dim)
        read_s = tokens * (sizes.latent + sizes.rope_dim) * element / dram
        return max(read_s, flop / rate) + 2.0 * self.spec.launch.overhead_s


def _count_most_rows(rows: int, devices: int) -> int:
    """Return the expected rows of the device that has the most, if a random device takes each.

    The mean plus the expected maximum of `devices` normal variables. Source: Blom, Statistical Estimates and
    Transformed Beta-Variables, 1958.
    """
    mean = rows / devices
    most = mean + float(ndtri((devices - 0.375) / (devices + 0.25))) * math.sqrt(mean * (1.0 - 1.0 / devices))
    return min(rows, max(1, round(most)))


def _group_of(*sizes: int) -> int:
    """Return the largest usual number of weights that share a scale, which divides all sizes; 0: all of k share one.

    A limit on the number can be one of the sizes.
    """
    return next((group for group in _GROUPS if all(size % group == 0 for size in sizes)), 0)

"""Predictions of a server for several devices, divisions and loads: the library call ``anatune.serving``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from anatune.arguments import check_choice, check_integer
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import AnatuneError, SpaceError, SpecError
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.servers.serving.config import Decoder, read_decoder
from anatune.servers.serving.division import Parallelism, cache_bytes, check_division, weight_bytes
from anatune.servers.serving.engines import Engine, find_engine
from anatune.servers.serving.iteration import IterationTimes
from anatune.servers.serving.load import CHUNK, ServerLoad, steady_times
from anatune.servers.serving.times import KernelTimes

__all__ = ["ServingRow", "serving"]

_Value = TypeVar("_Value")
USABLE_SHARE = 0.9
"""The share of a device's memory that a server takes. Source: vLLM's default of gpu_memory_utilization; SGLang's and
TensorRT-LLM's are 0.85 to 0.9 of what is free."""
_MOST_TOKENS, _MOST_REQUESTS, _MOST_DEVICES = 1 << 20, 1 << 16, 1024
CACHES = {"bfloat16": 2.0, "fp8": 1.0}
"""The dtypes of keys and values in the cache -> bytes of an element."""


class ServingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The predictions for a device, a division and a load.

    Attributes
    ----------
    hardware : str
        The device.
    tp, ep : int
        The devices that divide each layer, and those over which experts are distributed.
    precision : str
        The number format of the weights.
    isl, osl, concurrency : int
        Tokens in and out of a request, and requests in flight.
    running : int
        The requests that are computed at once: fewer than in flight if the memory does not hold more.
    fits : int or None
        The requests that the memory holds; None if the spec does not tell its size.
    weight_bytes, cache_bytes : float
        Bytes of the weights on a device, and of a request of isl + osl tokens in its cache.
    tpot_s, ttft_s, burst_ttft_s : float
        Seconds per output token; to the first token without others' prompts; and if all requests begin at once.
    tokens_per_s : float
        Output tokens in a second for each device.
    cost : float or None
        The price of a million output tokens; None without a price.
    parts : dict of str to float
        Kind of kernel -> seconds per output token.
    refused : str
        Why there is no prediction, in one line; "" if there is one.
    """

    hardware: str
    tp: int
    ep: int
    precision: str
    isl: int
    osl: int
    concurrency: int
    running: int = 0
    fits: int | None = None
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    tpot_s: float = math.inf
    ttft_s: float = math.inf
    burst_ttft_s: float = math.inf
    tokens_per_s: float = 0.0
    cost: float | None = None
    parts: dict[str, float] = {}
    refused: str = ""

    def meets(self, ttft_s: float | None, tpot_s: float | None) -> bool:
        """Return whether the times are within the given limits."""
        within = self.ttft_s <= (ttft_s or math.inf) and self.tpot_s <= (tpot_s or math.inf)
        return within and not self.refused and self.running == self.concurrency


def serving(
    config: str | Path,
    hw: HardwareLike | Sequence[HardwareLike],
    *,
    tp: int | Sequence[int] = 1,
    isl: int = 1024,
    osl: int = 512,
    concurrency: int | Sequence[int] = (1, 8, 32, 128),
    precision: str | None = None,
    cache: str = "bfloat16",
    expert_parallel: bool = False,
    engine: str | None = None,
    prices: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ServingRow]:
    """Predict the times, the throughput and the memory of a server of a language model. No device is needed.

    Parameters
    ----------
    config : str or Path
        A config.json of Hugging Face, or the folder that holds it. Weights are not read.
    hw : str, Path or GpuSpec, or several
        The devices, as for `anatune.hardware`.
    tp : int, or several
        The numbers of devices that divide each layer.
    isl, osl : int
        Tokens of a prompt, and tokens that a request makes.
    concurrency : int, or several
        The numbers of requests in flight.
    precision : str, optional
        The number format of the weights: "bfloat16", "fp8", "fp8_block", "int8", "int4", "nvfp4" or "mxfp4"; by
        default that of the configuration.
    cache : {"bfloat16", "fp8"}
        The dtype of keys and values in the cache.
    expert_parallel : bool
        Distribute whole experts over the devices. Otherwise each device has a part of every expert.
    engine : {"trtllm", "vllm", "sglang"}, optional
        Adds what the engine's host was measured to add to a step, and schedules prompts as the engine does. By default
        the host takes no time.
    prices : mapping of str to float, optional
        The price of an hour of a device, by the names in `hw`.
    progress : callable, optional
        Called with (predictions done, predictions in all).

    Returns
    -------
    list of ServingRow
        One for each device, division and number of requests, in this order.

    Raises
    ------
    SpaceError
        The configuration cannot be read or has layers that are not predicted; an argument is out of range.
    UnknownNameError, SpecError
        A device is unknown, is not a GPU, or its spec lacks the rates of matrix units.
    """
    decoder, chosen = read_decoder(config, precision), find_engine(engine)
    names: list[HardwareLike] = _as_list(hw)
    devices = {spec.name: spec for spec in map(_find_gpu, names)}
    by_name = {hardware(name).name: price for name, price in (prices or {}).items()}
    loads = [
        ServerLoad(
            check_integer("isl", isl, 1, _MOST_TOKENS), check_integer("osl", osl, 2, _MOST_TOKENS),
            check_integer("concurrency", count, 1, _MOST_REQUESTS),
        )
        for count in _as_list(concurrency)
    ]  # fmt: skip
    divisions = [check_integer("tp", count, 1, _MOST_DEVICES) for count in _as_list(tp)]
    check_choice("cache", cache, tuple(CACHES))
    if expert_parallel and not decoder.has_experts:
        raise SpaceError(f"{decoder.name} has no experts, expected some for expert_parallel; leave it out")
    rows: list[ServingRow] = []
    for name, spec in devices.items():
        times, price = KernelTimes(spec), by_name.get(name)
        for count in divisions:
            division = Parallelism(count, count if expert_parallel else 1)
            for row in _predict_division(decoder, division, times, loads, cache, chosen):
                cost = None if price is None or row.refused else price / 3600 / row.tokens_per_s * 1e6
                rows.append(msgspec.structs.replace(row, cost=cost))
                if progress is not None:
                    progress(len(rows), len(devices) * len(divisions) * len(loads))
    return rows


def _predict_division(
    decoder: Decoder, division: Parallelism, times: KernelTimes, loads: Iterable[ServerLoad], cache: str, engine: Engine
) -> Iterator[ServingRow]:
    """Yield the predictions of a device and division for each load."""
    spec, held = times.spec, CACHES[cache]
    for load in loads:
        row = ServingRow(
            hardware=spec.name, tp=division.tp, ep=division.ep, precision=decoder.precision, isl=load.isl, osl=load.osl,
            concurrency=load.in_flight,
        )  # fmt: skip
        try:
            check_division(decoder, division)
            weights = weight_bytes(decoder, division)
            request = cache_bytes(decoder, division, load.isl + load.osl, held)
            row = msgspec.structs.replace(row, weight_bytes=weights, cache_bytes=request)
            fits = count_fitting(decoder, division, spec, weights, request)
            running = load.in_flight if fits is None else min(load.in_flight, fits)
            steady = steady_times(
                IterationTimes(decoder, division, times, cache), load._replace(in_flight=running), engine
            )
        except AnatuneError as error:
            yield msgspec.structs.replace(row, refused=str(error))
            continue
        yield msgspec.structs.replace(
            row, running=running, fits=fits, tpot_s=steady.tpot_s, ttft_s=steady.ttft_s,
            burst_ttft_s=steady.burst_ttft_s, tokens_per_s=steady.tokens_per_s / division.tp, parts=steady.parts,
        )  # fmt: skip


def count_fitting(decoder: Decoder, division: Parallelism, spec: GpuSpec, weights: float, request: float) -> int | None:
    """Return the requests that a device's memory holds beside the weights; None if its size is not known.

    Raises
    ------
    SpaceError
        The weights, or the weights and one request, do not fit.
    """
    capacity = spec.dram.capacity_bytes
    if capacity is msgspec.UNSET:
        return None
    usable = USABLE_SHARE * capacity
    free = usable - weights - _activation_bytes(decoder, division)
    if free >= request:
        return int(free // request)
    needed = usable - free + request
    raise SpaceError(
        f"{spec.name}: does not fit: weights ({weights / 1e9:.1f} GB), activations and one request need "
        f"{needed / 1e9:.1f} GB a device, {(needed - usable) / 1e9:.1f} GB more than the {usable / 1e9:.1f} GB that "
        f"servers use; {_advise(decoder, division, spec, usable, request)}"
    )


def _activation_bytes(decoder: Decoder, division: Parallelism) -> float:
    """Return the bytes of what lies between kernels while a piece of a prompt is read, an estimate."""
    widest = max(max(group.intermediate, group.expert_intermediate * group.top_k) for group in decoder.layers)
    return 2.0 * CHUNK * (3 * decoder.hidden + 3 * widest / division.tp)


def _advise(decoder: Decoder, division: Parallelism, spec: GpuSpec, usable: float, request: float) -> str:
    """Return what would fit: the least number of devices on the link, or another device."""
    most = 1 if spec.link is msgspec.UNSET else spec.link.gpus
    tokens = request / decoder.attention.count_cache_elements(division.tp)  # times layers and bytes of an element
    for count in range(division.tp + 1, most + 1):
        more = Parallelism(count, count if division.ep > 1 else 1)
        try:
            check_division(decoder, more)
        except SpaceError:
            continue
        held = tokens * decoder.attention.count_cache_elements(count)
        if weight_bytes(decoder, more) + _activation_bytes(decoder, more) + held <= usable:
            return f"--tp {count} has enough"
    return "choose a device with more memory, or weights of fewer bits"


def _find_gpu(name: HardwareLike) -> GpuSpec:
    spec = hardware(name)
    if not isinstance(spec, GpuSpec):
        raise SpecError(f"{spec.name} is not a GPU, expected the GPU of a server, such as h100_sxm")
    return spec


def _as_list(values: _Value | Sequence[_Value]) -> list[_Value]:
    """Return one value, or several, as a list."""
    if isinstance(values, Sequence) and not isinstance(values, str):
        return list(values)
    return [values]

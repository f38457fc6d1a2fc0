"""The times of a server in a steady state, in closed form.

Notation
--------
B : requests in flight; S : tokens of a prompt (isl); O : tokens that a request makes (osl).
step : seconds of an iteration that makes a token of B sequences, each of S + O / 2 held tokens on average.
read : what reading a prompt adds. An engine that mixes reads pieces of it beside the step (chunked prefill), so that
    products read their weights once for both: read = pieces x (mixed iteration - step). Another one stops the step.

While a request makes its O tokens, each of the others is replaced once on average, so that the step waits for
(B - 1) prompts: time per output token = step + (B - 1) / O x read. This is continuous batching with arrivals that are
spread evenly. In an engine that lets prompts go first, requests that began together stay together: the mean time to the
first token is (B + 1) / 2 x read, and a request waits for half of the other prompts after its first token, which is
(B - 1) / (2 O) x read per token. Prompts that wait together are read together, and `read` is the share of one of them.
The throughput is B x O tokens in O x step + B x read; a prompt that is read by itself makes the first token, which
saves one of the O steps.
"""

from __future__ import annotations

from typing import NamedTuple

from anatune.servers.serving.engines import Engine
from anatune.servers.serving.iteration import Iteration, IterationTimes, PredictedKernel

CHUNK = 8192
"""The most tokens of prompts in an iteration. Source: vLLM's default of max_num_batched_tokens for servers on GPUs with
much memory; TensorRT-LLM's max_num_tokens is 8,192, too."""


class ServerLoad(NamedTuple):
    """The requests of a server: tokens in, tokens out, and requests in flight."""

    isl: int
    osl: int
    in_flight: int


class SteadyTimes(NamedTuple):
    """The seconds of a server in a steady state.

    Attributes
    ----------
    step_s, read_s : float
        Seconds of a step, and what a prompt adds.
    tpot_s : float
        Seconds per output token of a request, those of others' prompts included.
    ttft_s : float
        Seconds to the first token of a request that finds no other prompt waiting.
    burst_ttft_s : float
        Mean seconds to the first token if all requests begin at once.
    tokens_per_s : float
        Output tokens in a second, of all devices together.
    parts : dict of str to float
        Kind of kernel -> seconds per output token of a request.
    """

    step_s: float
    read_s: float
    tpot_s: float
    ttft_s: float
    burst_ttft_s: float
    tokens_per_s: float
    parts: dict[str, float]


def steady_times(times: IterationTimes, load: ServerLoad, engine: Engine) -> SteadyTimes:
    """Return the times of a load, see the module's description."""
    count, osl = load.in_flight, load.osl
    step_calls = times.predict(Iteration(count, load.isl + osl // 2))
    prompt_calls, pieces = _list_prompt(times, load, 1), len(_pieces(load.isl))
    step_s = _seconds(step_calls) + engine.host_s
    alone_s = _seconds(prompt_calls) + pieces * engine.host_s
    together = _count_together(load, engine)
    if count == 1:
        read_calls, read_s = prompt_calls, alone_s
    elif engine.mixes:
        read_calls = _subtract(_list_mixed(times, load, together), step_calls, pieces, together)
        read_s = max(0.0, min(alone_s, _seconds(read_calls)))
    else:
        read_calls = _list_prompt(times, load, together)
        read_calls = [call._replace(time_s=call.time_s / together) for call in read_calls]
        read_s = min(alone_s, _seconds(read_calls) + pieces * engine.host_s / together)
    share = (count - 1) / osl * (1.0 if engine.mixes else 0.5)
    is_beside = engine.mixes and count > 1
    ttft_s = max(alone_s, read_s + pieces * step_s) if is_beside else alone_s
    ttft_s += step_s / 2 if count > 1 else 0.0
    parts = _by_kind(step_calls)
    for kind, seconds in _by_kind(read_calls).items():
        parts[kind] = parts.get(kind, 0.0) + share * max(0.0, seconds)
    if engine.host_s:
        parts["host"] = engine.host_s * (1.0 if engine.mixes else 1.0 + share * pieces / together)
    batches = -(-count // together)
    burst_s = alone_s if count == 1 else (batches + 1) / 2 * min(together, count) * read_s
    total_s = (osl if is_beside else osl - 1) * step_s + count * read_s
    tpot_s = step_s + share * read_s
    return SteadyTimes(step_s, read_s, tpot_s, ttft_s, max(ttft_s, burst_s), count * osl / total_s, parts)


def _count_together(load: ServerLoad, engine: Engine) -> int:
    """Return the prompts that an iteration reads: all that wait, or as many as arrive in a step beside it."""
    waiting = max(1, load.in_flight // load.osl) if engine.mixes else load.in_flight
    return min(waiting, max(1, CHUNK // load.isl))


def _pieces(isl: int) -> list[tuple[int, int]]:
    """Return (tokens before, tokens) of each iteration that reads a prompt."""
    return [(before, min(CHUNK, isl - before)) for before in range(0, isl, CHUNK)]


def _list_prompt(times: IterationTimes, load: ServerLoad, number: int) -> list[PredictedKernel]:
    """Return the kernels that read so many prompts by themselves."""
    pieces = _pieces(load.isl)
    return [call for before, size in pieces for call in times.predict(Iteration(0, 0, number, size, before))]


def _list_mixed(times: IterationTimes, load: ServerLoad, number: int) -> list[PredictedKernel]:
    """Return the kernels of all iterations that read so many prompts beside the step."""
    held, decoding = load.isl + load.osl // 2, load.in_flight - number
    pieces = _pieces(load.isl)
    return [call for before, size in pieces for call in times.predict(Iteration(decoding, held, number, size, before))]


def _seconds(calls: list[PredictedKernel]) -> float:
    return sum(call.time_s * call.launches for call in calls)


def _by_kind(calls: list[PredictedKernel]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for call in calls:
        seconds[call.kind] = seconds.get(call.kind, 0.0) + call.time_s * call.launches
    return seconds


def _subtract(
    calls: list[PredictedKernel], others: list[PredictedKernel], times: int, prompts: int
) -> list[PredictedKernel]:
    """Return the seconds of each kind of kernel for one of the prompts, without `times` times the other calls."""
    rest = _by_kind(calls)
    for kind, seconds in _by_kind(others).items():
        rest[kind] = rest.get(kind, 0.0) - times * seconds
    return [PredictedKernel(kind, kind, seconds / prompts, 1) for kind, seconds in rest.items()]

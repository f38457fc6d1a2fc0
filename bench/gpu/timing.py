"""How the GPU benchmark times anatune's kernels and others alike: events on the one stream that all of them use.

While the host queues what is timed, the device waits in a kernel that spins, so that neither Python nor a library's
dispatch is in the numbers. "flush": before every launch twice the L2 cache's size is overwritten; "warm": launches
follow each other. Methods take turns in a rotating order; ratios are taken within a round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anatune.measure.cuda.driver import GpuBuffer, GpuDevice

__all__ = ["MODES", "Clock", "Method", "geometric_mean", "interleave", "paired_ratio", "relative_error", "spinner"]

MODES = ("flush", "warm")
Method = Callable[[], None]
"""Queues one run."""

HOST_S = 50e-6
"""Most that the host needs to queue one run: a convolution through PyTorch takes 20 to 30 us."""
_SAMPLE_S = 4e-3
_MOST_LAUNCHES = 192
_BATCH = 64
_FLUSHED = 32
"""Most launches of a sample: warm ones altogether and between two events, flushed ones."""
_CYCLES_PER_S = 2e9


def spinner(device: GpuDevice) -> Callable[[float], Method]:
    """Return what makes a kernel that keeps the device busy for some seconds: NVRTC's, else PyTorch's own."""
    from anatune.codegen.cuda.probes import spin
    from anatune.errors import AnatuneError

    try:
        from anatune.codegen.cuda.nvrtc import compile_cuda

        kernel = spin(device.arch).kernel
        function = device.load(compile_cuda(kernel.source, kernel.arch, name=kernel.name).image, kernel.name)
    except AnatuneError:
        import torch

        return lambda seconds: lambda: torch.cuda._sleep(int(seconds * _CYCLES_PER_S))
    made: dict[int, Method] = {}

    def make(seconds: float) -> Method:
        microseconds = max(1, round(seconds * 1e6))
        if microseconds not in made:
            buffers = [device.allocate(64) for _ in kernel.parameters]
            device.upload(buffers[1], np.array([microseconds, 0, 0, 0], dtype=np.int32))
            made[microseconds] = device.prepare(function, 1, 1, buffers)
        return made[microseconds]

    return make


class Clock:
    """Samples methods on a device.

    Parameters
    ----------
    device
        Open.
    spin
        From `spinner`.
    """

    def __init__(self, device: GpuDevice, spin: Callable[[float], Method]) -> None:
        self._device, self._spin = device, spin
        self._flush: GpuBuffer = device.allocate(2 * max(1 << 20, device.attributes.get("L2_CACHE_SIZE", 0)))

    def sample(self, method: Method, mode: str, seconds: float) -> float:
        """Return the seconds of one run, of which `seconds` are expected: the mean of a few milliseconds of them."""
        self._device.activate()
        launches = max(1, min(_MOST_LAUNCHES, round(_SAMPLE_S / max(seconds, 1e-9))))
        if mode == "warm":
            batches = -(-launches // _BATCH)
            each = max(2, -(-launches // batches))
            hide = self._spin(HOST_S * 2 ** math.ceil(math.log2(each)))
            return statistics.fmean(self._device.time_calls(method, samples=batches, launches=each, before=hide))
        hide = self._spin(2 * HOST_S)

        def before() -> None:
            self._device.fill(self._flush)
            hide()

        return statistics.median(self._device.time_calls(method, samples=min(launches, _FLUSHED), before=before))


def interleave(
    methods: Mapping[str, Method], clock: Clock, rounds: int, modes: Sequence[str] = MODES
) -> dict[str, dict[str, list[float]]]:
    """Return the samples of all methods, by mode and name; sample i of each is of the same round."""
    names = list(methods)
    expected = {name: clock.sample(methods[name], "warm", 1.0) for name in names}
    found: dict[str, dict[str, list[float]]] = {mode: {name: [] for name in names} for mode in modes}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            for mode in modes:
                found[mode][name].append(clock.sample(methods[name], mode, expected[name]))
    return found


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how many times as fast `ours` is: the median over the rounds of theirs / ours."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean, None of nothing."""
    return statistics.geometric_mean(values) if values else None


def relative_error(result: Any, reference: Any) -> float:
    """Return the norm of the difference over the reference's norm, in float64; inf where something is not finite."""
    got, want = np.asarray(result, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.linalg.norm((got - want).ravel()) / max(np.linalg.norm(want.ravel()), 1e-300))

"""A machine without a GPU that answers as one with a GPU would (`--dry-run`): times are the model's, with some noise.

Plans are real ones. Nothing else is: the numbers say nothing about any device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import anatune
from anatune import api
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.measure.cuda.calibration.calibrate import GpuCalibration, calibrated_gpu_spec
from anatune.measure.cuda.calibration.numbers import GpuNumbers, Median
from bench.gpu.layers import template_of, workload_of
from bench.gpu.system import Bench, Found, first_choices
from bench.gpu.timing import Method
from bench.layers import Convolution, Layer, Words

__all__ = ["DrySystem"]

_LIBRARY = 0.9
"""Times of the library over those of anatune's best."""
_NOISE = 0.01
_FAILING = 7
"""Every so many trials one fails."""


class _DryClock:
    """Gives a method's own time, with noise."""

    def __init__(self) -> None:
        self.times: dict[Method, float] = {}
        self._rng = np.random.default_rng(0)

    def sample(self, method: Method, mode: str, seconds: float) -> float:
        """Return the time that was said of the method; a little more with a flushed cache."""
        method()
        noise = 1.0 + _NOISE * float(self._rng.standard_normal())
        return self.times[method] * noise * (1.1 if mode == "flush" else 1.0)


class DrySystem:
    """A device by its spec.

    Parameters
    ----------
    spec
        Which device it pretends to be.
    """

    def __init__(self, spec: GpuSpec) -> None:
        self._spec = spec
        self.name, self.arch = f"{spec.model} (dry run)", spec.arch
        self.clock = _DryClock()
        self._rng = np.random.default_rng(0)

    def versions(self) -> dict[str, Any]:  # noqa: D102  documented by `System`, as all that follow
        return {"dry_run": True}

    def calibrate(self, minutes: float) -> GpuCalibration:  # noqa: D102
        spec = self._spec
        rates = {
            "fma_8_32": Median(0.95 * spec.compute.fp32_peak_flop_per_s, 0.01, 5),
            "dram_read": Median(0.9 * spec.dram.bandwidth_bytes_per_s, 0.01, 5),
        }
        if (peak := spec.tensor_flop_per_s("bfloat16")) is not None:
            rates["matrix_bfloat16_4_8"] = Median(0.6 * peak, 0.01, 5)
        numbers = GpuNumbers(spec.compute.clock_hz, {}, rates, {}, {}, {}, Median(2e-6, 0.01, 5), {})
        found, notes = calibrated_gpu_spec(spec, numbers, "dry run")
        return GpuCalibration(found, numbers, notes)

    def spec(self) -> GpuSpec:  # noqa: D102
        return self._spec

    def choices(  # noqa: D102
        self, layer: Layer, dtype: str, spec: GpuSpec, count: int
    ) -> list[tuple[Schedule, float]]:
        return first_choices(layer, dtype, spec, count)

    def tune(  # noqa: D102
        self, layer: Layer, dtype: str, spec: GpuSpec, trials: int, records: Path, budget_s: float
    ) -> Found:
        space = api.space(workload_of(layer, dtype), spec, template=template_of(dtype))
        best = first_choices(layer, dtype, spec, 1)[0][0]
        others = sorted(space.sample(max(1, trials // 8), trials), key=_predicted_s)
        if _predicted_s(others[0]) < _predicted_s(best):
            best = others[0]
        return Found(best, trials, trials // _FAILING)

    def bench(  # noqa: D102
        self, layer: Layer, dtype: str, schedules: Mapping[str, Schedule], notes: list[str]
    ) -> Bench:
        methods: dict[str, Method] = {}
        kernels: dict[str, list[str]] = {}

        def add(name: str, seconds: float) -> None:
            def run() -> None:
                """Stand for a launch."""

            methods[name] = run
            self.clock.times[run] = seconds

        for name, schedule in schedules.items():
            add(f"anatune:{name}", _predicted_s(schedule))
        best_s = min((self.clock.times[method] for method in methods.values()), default=1e-3)
        if isinstance(layer, Words):
            pass
        elif isinstance(layer, Convolution):
            add("torch:nchw", best_s * _LIBRARY)
            kernels["torch:nchw"] = ["winograd_3x3" if layer.kernel == 3 else "implicit_convolve_sgemm"]
        else:
            add("torch:mm", best_s * _LIBRARY)
            add("triton:matmul", best_s * 1.1)
            kernels["torch:mm"] = ["sgemm_128x64"]
        errors = dict.fromkeys(methods, 0.0)
        notes.append(f"{layer.name}: dry run, its numbers mean nothing")
        return Bench(methods, errors, kernels, lambda: None)

    def close(self) -> None:
        """Nothing is open."""


def _predicted_s(schedule: Schedule) -> float:
    assert isinstance(schedule.hardware, GpuSpec)
    frame = anatune.predict(schedule.workload, schedule.hardware, [schedule])
    return float(frame["time_s"].iloc[0])

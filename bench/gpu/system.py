"""What the GPU benchmark needs of a machine: the real one, with a GPU. `dry_run` has one without."""

from __future__ import annotations

import math
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import anatune
from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.codegen.toolchains import build_schedule, find_toolchain
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, BuildError, RecordError
from anatune.measure.cuda.apart import LIMITS
from anatune.measure.cuda.calibration.calibrate import GpuCalibration, calibrate_gpu
from anatune.measure.cuda.driver import GpuBuffer, GpuDevice, KernelFaultError, open_device
from anatune.measure.cuda.launching import LoadedKernel, load_kernel
from anatune.measure.cuda.measurer import Built, build_schedules
from anatune.measure.run.correctness import array_dtype, compute_expected, random_inputs
from anatune.tuning.manifest import MANIFEST, Manifest, read_manifest
from bench.cpu.tuned import best_after
from bench.gpu.layers import template_of, workload_of
from bench.gpu.timing import Clock, Method, relative_error, spinner
from bench.layers import Layer, Matmul

__all__ = ["Bench", "FaultedError", "Found", "RealSystem", "System", "first_choices", "spot_rows"]

_WHOLE_FLOP = 1e10
"""Results of more operations are compared with float64 in some rows only."""
_SPOT_ROWS = 256


class Found(NamedTuple):
    """What tuning found."""

    schedule: Schedule | None
    num_trials: int
    num_failed: int


class Bench(NamedTuple):
    """Methods to be timed on one layer; errors of their results; kernels of the rivals; what frees the memory."""

    methods: dict[str, Method]
    errors: dict[str, float]
    kernels: dict[str, list[str]]
    close: Callable[[], None]


class FaultedError(Exception):
    """A kernel broke the device's context: this process cannot go on. `method` is not to be tried again."""

    def __init__(self, method: str, message: str) -> None:
        super().__init__(f"{method}: {message}")
        self.method = method


class ClockLike(Protocol):
    """What `timing.interleave` needs."""

    def sample(self, method: Method, mode: str, seconds: float) -> float:
        """Return the seconds of one run."""
        ...


class System(Protocol):
    """A machine, or something that behaves alike."""

    name: str
    arch: str
    clock: ClockLike

    def versions(self) -> dict[str, Any]:
        """Of drivers and libraries."""
        ...

    def calibrate(self, minutes: float) -> GpuCalibration:
        """Measure the GPU."""
        ...

    def spec(self) -> GpuSpec:
        """Return what is known about the GPU without measuring."""
        ...

    def choices(self, layer: Layer, dtype: str, spec: GpuSpec, count: int) -> list[tuple[Schedule, float]]:
        """Return the first choices, each with the seconds that the model says."""
        ...

    def tune(self, layer: Layer, dtype: str, spec: GpuSpec, trials: int, records: Path, budget_s: float) -> Found:
        """Go on with the layer's session until it has `trials`."""
        ...

    def bench(self, layer: Layer, dtype: str, schedules: Mapping[str, Schedule], notes: list[str]) -> Bench:
        """Make the methods that take turns; whatever cannot be made becomes a note.

        Raises
        ------
        FaultedError
            A kernel did what no kernel may.
        """
        ...

    def close(self) -> None:
        """Let the device go."""
        ...


def first_choices(layer: Layer, dtype: str, spec: GpuSpec, count: int) -> list[tuple[Schedule, float]]:
    """Return the plan's first choices, one of each predicted time, from the model alone."""
    accuracy = "standard" if dtype == "float32" else "relaxed"  # tf32 has to be asked for
    workload, template = workload_of(layer, dtype), template_of(dtype)
    plan = anatune.plan(workload, spec, count, template=template, accuracy=accuracy, distinct=True)
    return [(s, found.time_s) for s, found in zip(plan.schedules, plan.predictions, strict=True)]


def spot_rows(layer: Layer, seed: int) -> NDArray[np.int64] | None:
    """Return the rows of a large product's result that are compared, its first and last among them; else None: all."""
    if not isinstance(layer, Matmul) or layer.flop <= _WHOLE_FLOP or layer.m <= _SPOT_ROWS:
        return None
    drawn = np.random.default_rng(seed).choice(layer.m - 2, _SPOT_ROWS - 2, replace=False) + 1
    return np.sort(np.concatenate([[0, layer.m - 1], drawn])).astype(np.int64)


class RealSystem:
    """The GPU of this machine.

    Parameters
    ----------
    kernels : Path, optional
        Folder with kernels that were built elsewhere (`build`); without it they are built here.
    rivals : bool
        Whether PyTorch and Triton are there to be compared with.
    seed : int
        Of operands and tuning.

    Raises
    ------
    DeviceError
        There is no GPU.
    """

    def __init__(self, *, kernels: Path | None = None, rivals: bool = True, seed: int = 0, index: int = 0) -> None:
        self._device: GpuDevice = open_device(index)
        self._index, self._seed, self._kernels = index, seed, kernels
        self.name, self.arch = self._device.name, self._device.arch
        self._folder = Path(tempfile.mkdtemp(prefix="anatune-bench-"))
        self._rivals: Any = None
        self._wants_rivals = rivals
        self._made: dict[str, Built] = {}
        self._clock: Clock | None = None

    @property
    def clock(self) -> Clock:
        """The clock, made when it is first asked for."""
        if self._clock is None:
            self._clock = Clock(self._device, spinner(self._device))
        return self._clock

    def _others(self, notes: list[str]) -> Any:
        if self._rivals is None and self._wants_rivals:
            try:
                from bench.gpu.rivals import Rivals

                self._rivals = Rivals()
            except ImportError as error:
                self._wants_rivals = False
                notes.append(f"nothing to compare with: {error}")
        return self._rivals

    def versions(self) -> dict[str, Any]:  # noqa: D102  documented by the protocol, as all that follow
        rivals = self._others([])
        return {
            "driver": self._device.driver_version,
            "backend": self._device.backend,
            "python": platform.python_version(),
            **(rivals.versions if rivals is not None else {}),
        }

    def calibrate(self, minutes: float) -> GpuCalibration:  # noqa: D102
        return calibrate_gpu(self._index, minutes=minutes, device=self._device)

    def spec(self) -> GpuSpec:  # noqa: D102
        if self._kernels is not None:  # kernels belong to the spec that they were planned with
            found = self._any_manifest().hardware
            if found.arch != self.arch:
                raise SystemExit(
                    f"{self._kernels} has kernels for {found.name} ({found.arch}), here is {self.name} ({self.arch}): "
                    "build them for it with --build --hw"
                )
            return found
        from anatune.measure.cuda.detect import gpu_detection

        specs, why = gpu_detection()
        if self._index >= len(specs):
            raise SystemExit(f"GPU {self._index} cannot be described: {why}; name a spec with --hw")
        return specs[self._index]

    def _any_manifest(self) -> Manifest:
        assert self._kernels is not None
        for path in sorted(self._kernels.glob(f"*/{MANIFEST}")):
            return read_manifest(path.parent)
        raise RecordError(f"{self._kernels} holds no kernels; build them with --build {self._kernels}")

    def _manifest(self, layer: Layer, dtype: str) -> Manifest | None:
        """Return the layer's kernels that were built elsewhere, None where kernels are built here."""
        return None if self._kernels is None else read_manifest(self._kernels / entry_folder(layer, dtype))

    def choices(  # noqa: D102
        self, layer: Layer, dtype: str, spec: GpuSpec, count: int
    ) -> list[tuple[Schedule, float]]:
        manifest = self._manifest(layer, dtype)
        if manifest is None:
            return first_choices(layer, dtype, spec, count)
        told = manifest.predictions()
        return [(schedule, told[schedule.key] or 0.0) for schedule in manifest.schedules()[:count]]

    def tune(  # noqa: D102
        self, layer: Layer, dtype: str, spec: GpuSpec, trials: int, records: Path, budget_s: float
    ) -> Found:
        manifest = self._manifest(layer, dtype)
        result = anatune.tune(
            workload_of(layer, dtype),
            spec if manifest is None else manifest.hardware,
            trials=trials,
            records=str(records),
            seed=self._seed,
            resume=True,
            time_limit_s=budget_s,
            template=template_of(dtype) if manifest is None else None,
            device=self._index,
            manifest=None if self._kernels is None else self._kernels / entry_folder(layer, dtype),
        )
        self._device.activate()
        done = list(result.trials)
        failed = sum(trial.measurement.outcome is not Outcome.OK for trial in done)
        best = result.best if len(done) <= trials else best_after(done, trials)
        return Found(best if isinstance(best, Schedule) else None, len(done), failed)

    def bench(  # noqa: D102
        self, layer: Layer, dtype: str, schedules: Mapping[str, Schedule], notes: list[str]
    ) -> Bench:
        workload = workload_of(layer, dtype)
        inputs = {name: np.ascontiguousarray(a) for name, a in random_inputs(workload, self._seed).items()}
        rows = spot_rows(layer, self._seed)
        want = _reference(layer, dtype, inputs, rows)
        ours = _Ours(self._device, workload, inputs, rows)
        found = Bench({}, {}, {}, ours.free)
        self._build(schedules, layer, dtype)
        for name, schedule in schedules.items():
            method = f"anatune:{name}"
            try:
                found.methods[method] = ours.method(self._artifact(schedule))
                found.errors[method] = relative_error(ours.result(found.methods[method]), want)
            except KernelFaultError as error:
                raise FaultedError(method, str(error)) from None
            except AnatuneError as error:
                found.methods.pop(method, None)
                found.errors[method] = float("inf")
                notes.append(f"{layer.name} {dtype} {method}: {error}")
        rivals = self._others(notes)
        if rivals is not None:
            for method, (call, read) in rivals.methods(layer, dtype, inputs, notes, rows).items():
                found.methods[method] = call
                found.errors[method] = relative_error(read().reshape(want.shape), want)
                found.kernels[method] = rivals.kernels(call)
        return found

    def _build(self, schedules: Mapping[str, Schedule], layer: Layer, dtype: str) -> None:
        """Take kernels from those built elsewhere; compile in builder processes what has to be compiled there."""
        manifest = self._manifest(layer, dtype)
        if manifest is not None:
            self._made.update(manifest.read_results())
        missing = [s for s in schedules.values() if s.key not in self._made and find_toolchain(s.template).APART]
        if not missing:
            return
        hardware = missing[0].hardware
        assert isinstance(hardware, GpuSpec)
        for built in build_schedules(missing, hardware, self._folder, limits=LIMITS):
            if not isinstance(built, GpuArtifact):  # the reference kernel, which is not timed here
                self._made[built[0].key] = built[1]

    def _artifact(self, schedule: Schedule) -> GpuArtifact:
        """Return a schedule's kernel."""
        if schedule.key not in self._made:
            self._made[schedule.key] = build_schedule(schedule, self._folder)
        made = self._made[schedule.key]
        if not isinstance(made, GpuArtifact):
            raise BuildError(made.message)
        return made

    def close(self) -> None:  # noqa: D102
        self._device.close()


def _reference(
    layer: Layer, dtype: str, inputs: Mapping[str, NDArray[Any]], rows: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Return the result in float64, or those rows of it."""
    if rows is None:
        return compute_expected(workload_of(layer, dtype), inputs).result
    assert isinstance(layer, Matmul)
    (left, a), (right, b) = inputs.items()
    return compute_expected(workload_of(replace(layer, m=len(rows)), dtype), {left: a[rows], right: b}).result


def entry_folder(layer: Layer, dtype: str) -> str:
    """Return the name of the folder with a layer's kernels."""
    return f"{layer.name}-{dtype}"


class _Ours:
    """Operands of a workload on the device, for any of its kernels."""

    def __init__(
        self,
        device: GpuDevice,
        workload: Workload,
        inputs: Mapping[str, NDArray[Any]],
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self._device, self._write, self._rows = device, workload.write, rows
        sizes = {name: array.nbytes for name, array in inputs.items()}
        for access in (workload.write, *workload.further):
            sizes[access.tensor] = math.prod(access.shape) * array_dtype(access.dtype).itemsize
        self._buffers: dict[str, GpuBuffer] = {name: device.allocate(size) for name, size in sizes.items()}
        self._loaded: list[LoadedKernel] = []
        for name, array in inputs.items():
            device.upload(self._buffers[name], array)

    def method(self, artifact: GpuArtifact) -> Method:
        """Return one run of a kernel: all its launches, with the memory of its own that it needs."""
        self._loaded.append(load_kernel(self._device, artifact, self._buffers))
        return self._loaded[-1].call

    def result(self, method: Method) -> NDArray[np.float64]:
        """Run a method on a result full of 0xFF, which is NaN or -1, and return it, or the rows that are compared."""
        write, buffer = self._write, self._buffers[self._write.tensor]
        self._device.fill(buffer, 0xFF)
        method()
        if self._rows is None:
            result = np.empty(write.shape, array_dtype(write.dtype))
            self._device.download(buffer, result)
        else:
            result = np.empty((len(self._rows), *write.shape[1:]), array_dtype(write.dtype))
            for row, place in zip(result, self._rows.tolist(), strict=True):
                self._device.download(buffer, row, place * row.nbytes)
        return np.asarray(result, dtype=np.float64)

    def free(self) -> None:
        """Give the memory back."""
        for loaded in self._loaded:
            loaded.unload(self._device)
        for buffer in self._buffers.values():
            buffer.free()

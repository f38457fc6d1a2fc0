"""What the GPU benchmark needs of a machine: the real one, with a GPU. `dry_run` has one without."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import anatune
from anatune.codegen.cuda.artifact import GpuArtifact, build_schedule, read_image
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, RecordError
from anatune.measure.cuda.calibration.calibrate import GpuCalibration, calibrate_gpu
from anatune.measure.cuda.driver import GpuBuffer, GpuDevice, KernelFaultError, open_device
from anatune.measure.run.correctness import array_dtype, expected, random_inputs
from anatune.tuning.manifest import MANIFEST, Manifest, read_manifest
from bench.cpu.tuned import best_after
from bench.gpu.timing import Clock, Method, relative_error, spinner
from bench.layers import Layer

__all__ = [
    "Bench",
    "FaultedError",
    "Found",
    "RealSystem",
    "System",
    "first_choice",
    "operands_dtype",
    "template_of",
]

DTYPES = ("float32", "tfloat32", "bfloat16", "float16")
_TENSOR_CORES = "tensorcore"


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

    def plan(self, layer: Layer, dtype: str, spec: GpuSpec) -> Schedule:
        """Return the first choice."""
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


def operands_dtype(dtype: str) -> str:
    """Return the workload's dtype: tf32 is a way to compute with float32."""
    return "float32" if dtype == "tfloat32" else dtype


def template_of(dtype: str) -> str:
    """Return the template of schedules for a dtype."""
    return "pipelined" if dtype == "float32" else _TENSOR_CORES


def first_choice(layer: Layer, dtype: str, spec: GpuSpec) -> Schedule:
    """Return the plan's first choice, from the model alone."""
    workload = layer.workload("NCHW", operands_dtype(dtype))
    plan = anatune.plan(workload, spec, 1, template=template_of(dtype))
    best: Schedule = plan.best
    return best


class RealSystem:
    """The GPU of this machine.

    Parameters
    ----------
    kernels : Path, optional
        Folder with kernels that were built elsewhere (`build`); without it TVM and NVRTC build them here.
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
        self._made: dict[str, GpuArtifact] = {}
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
            return self._any_manifest().hardware
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

    def plan(self, layer: Layer, dtype: str, spec: GpuSpec) -> Schedule:  # noqa: D102
        manifest = self._manifest(layer, dtype)
        return first_choice(layer, dtype, spec) if manifest is None else manifest.schedules()[0]

    def tune(  # noqa: D102
        self, layer: Layer, dtype: str, spec: GpuSpec, trials: int, records: Path, budget_s: float
    ) -> Found:
        manifest = self._manifest(layer, dtype)
        result = anatune.tune(
            layer.workload("NCHW", operands_dtype(dtype)),
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
        workload = layer.workload("NCHW", operands_dtype(dtype))
        inputs = {name: np.ascontiguousarray(a) for name, a in random_inputs(workload, self._seed).items()}
        want = expected(workload, inputs).result
        found = Bench({}, {}, {}, lambda: None)
        ours = _Ours(self._device, workload, inputs)
        for name, schedule in schedules.items():
            method = f"anatune:{name}"
            try:
                found.methods[method] = ours.method(self._artifact(schedule, layer, dtype))
                found.errors[method] = relative_error(ours.result(found.methods[method]), want)
            except KernelFaultError as error:
                raise FaultedError(method, str(error)) from None
            except AnatuneError as error:
                found.methods.pop(method, None)
                notes.append(f"{layer.name} {dtype} {method}: {error}")
        rivals = self._others(notes)
        if rivals is not None:
            for method, (call, read) in rivals.methods(layer, dtype, inputs, notes).items():
                found.methods[method] = call
                found.errors[method] = relative_error(read().reshape(want.shape), want)
                found.kernels[method] = rivals.kernels(call)
        return found._replace(close=ours.free)

    def _artifact(self, schedule: Schedule, layer: Layer, dtype: str) -> GpuArtifact:
        """Return a schedule's kernel: built here, or found among those built elsewhere."""
        if schedule.key not in self._made:
            manifest = self._manifest(layer, dtype)
            if manifest is not None:
                built = manifest.built().items()
                self._made.update({key: one for key, one in built if isinstance(one, GpuArtifact)})
            if schedule.key not in self._made:
                self._made[schedule.key] = build_schedule(schedule, self._folder)
        return self._made[schedule.key]

    def close(self) -> None:  # noqa: D102
        self._device.close()


def entry_folder(layer: Layer, dtype: str) -> str:
    """Return the name of the folder with a layer's kernels."""
    return f"{layer.name}-{dtype}"


class _Ours:
    """Operands of a workload on the device, for any of its kernels."""

    def __init__(self, device: GpuDevice, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._device = device
        write = workload.write
        self._result = np.empty(write.shape, array_dtype(write.dtype))
        self._written = write.tensor
        sizes = {name: array.nbytes for name, array in inputs.items()} | {write.tensor: self._result.nbytes}
        self._buffers: dict[str, GpuBuffer] = {name: device.allocate(size) for name, size in sizes.items()}
        for name, array in inputs.items():
            device.upload(self._buffers[name], array)

    def method(self, artifact: GpuArtifact) -> Method:
        """Return one launch of a kernel."""
        function = self._device.load(read_image(artifact), artifact.name, artifact.dynamic_shared_bytes)
        arguments = [self._buffers[buffer.tensor] for buffer in artifact.parameters]
        return self._device.prepare(function, artifact.grid, artifact.block, arguments)

    def result(self, method: Method) -> NDArray[np.float64]:
        """Run a method on a result full of NaN and return it."""
        self._device.fill(self._buffers[self._written], 0xFF)
        method()
        self._device.download(self._buffers[self._written], self._result)
        return np.asarray(self._result, dtype=np.float64)

    def free(self) -> None:
        """Give the memory back."""
        for buffer in self._buffers.values():
            buffer.free()

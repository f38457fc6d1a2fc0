"""Plans for a range on a GPU: verified on the CPU, and called from Python on arrays of any extent of the range."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from anatune.codegen.cuda.artifact import GpuArtifact, write_artifact
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.export.ranges import range_kernels
from anatune.errors import BuildError, DeviceError, RunError
from anatune.files import no_scratch
from anatune.measure.cuda.driver import GpuDevice
from anatune.measure.cuda.kernel import first_device
from anatune.measure.cuda.launching import load_kernel
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import Array, Verification, array_dtype, checked_operands, expected, random_inputs
from anatune.measure.run.rounding import operands_used
from anatune.model.ranges.plan import RangePlan

__all__ = ["GpuRangeKernel", "build_range", "verify_range"]


def verify_range(plan: RangePlan, threads: int, seed: int) -> Verification:
    """Run each program's CUDA C on the CPU at both ends and in the middle of intervals that it serves.

    See `anatune.verify`.
    """
    worst, tolerance = 0.0, 0.0
    try:
        kernels = range_kernels(plan)
    except BuildError as error:
        return Verification(False, message=str(error))
    for extent in plan.telling_extents():
        number = plan.program_of(extent)
        workload, kernel = plan.workload.at(extent), kernels[number].at(extent)
        inputs = random_inputs(workload, seed)
        want = expected(workload, operands_used(plan.programs[number].schedule, inputs))
        try:
            answer = check_kernel(workload, kernel, inputs, want)
        except RunError as error:
            return Verification(False, message=f"program {number}: {error}", tolerance=want.tolerance)
        if not answer.ok:
            where = f"program {number} at {plan.workload.axis}={extent}: {answer.message}"
            return Verification(False, answer.max_rel_error, where, want.tolerance)
        worst, tolerance = max(worst, answer.max_rel_error or 0.0), max(tolerance, want.tolerance)
    return Verification(True, worst, "", tolerance)


class GpuRangeKernel:
    """A built range: ``kernel(*arrays)`` computes on NumPy arrays of any extent of the range, in their own layouts.

    Programs are compiled and loaded when an extent needs them first. Not safe to call from several threads at once.

    Parameters
    ----------
    plan, device
        What was planned; an open device of its architecture.
    """

    def __init__(self, plan: RangePlan, device: GpuDevice) -> None:
        self.plan, self._device = plan, device
        self._kernels = range_kernels(plan)
        self._folder = tempfile.TemporaryDirectory(prefix="anatune-")
        self._artifacts: dict[int, GpuArtifact] = {}

    def extent_of(self, *arrays: Array) -> int:
        """Return the extent that operands have along the ranged axis; errors as the call's."""
        axis = self.plan.workload.axis
        accesses = {access.tensor: access for access in self.plan.workload.largest.operands}
        for access, array in zip(accesses.values(), arrays, strict=False):
            shape = np.shape(array)
            for dimension, terms in enumerate(access.indices):
                if any(term.axis == axis for term in terms) and len(shape) == len(access.shape):
                    return int(shape[dimension])
        raise RunError(f"range: no operand says how long {axis} is; expected {', '.join(accesses)} in this order")

    def __call__(self, *arrays: Array) -> Array:
        """Return the result for `arrays`: the workload's reads, then its epilogue's.

        Raises
        ------
        RunError
            Another number of arrays, or one of another shape or dtype; the kernel failed.
        SpaceError
            The extent is none of the range's.
        """
        extent = self.extent_of(*arrays)
        workload, number = self.plan.workload.at(extent), self.plan.program_of(extent)
        names = tuple(dict.fromkeys(access.tensor for access in workload.operands))
        operands = checked_operands(workload, names, arrays)
        device, write = self._device, workload.write
        device.activate()
        result = np.empty(write.shape, array_dtype(write.dtype))
        sizes = {name: array.nbytes for name, array in operands.items()} | {write.tensor: result.nbytes}
        buffers = {}
        try:
            for name, size in sizes.items():
                buffers[name] = device.allocate(size)
            for name, array in operands.items():
                device.upload(buffers[name], array)
            loaded = load_kernel(device, self._artifact(number).at(extent), buffers)
            try:
                loaded.call()
                device.download(buffers[write.tensor], result)
            finally:
                loaded.unload(device)
        finally:
            for buffer in buffers.values():
                buffer.free()
        return result

    def _artifact(self, number: int) -> GpuArtifact:
        """Return a built program."""
        if number not in self._artifacts:
            kernel = self._kernels[number]
            try:
                self._artifacts[number] = write_artifact(kernel, compile_kernel(kernel), Path(self._folder.name))
            except OSError as error:
                raise BuildError(no_scratch(error)) from None
        return self._artifacts[number]


def build_range(plan: RangePlan, threads: int, device: GpuDevice | None = None) -> GpuRangeKernel:
    """Return a plan for a range as one call on this machine's GPU.

    Raises
    ------
    DeviceError
        There is no GPU, or it is of another architecture.
    SpaceError, BuildError, MissingDependencyError
        It cannot be built.
    """
    hardware = plan.hardware
    device = device or first_device()
    if device.arch != getattr(hardware, "arch", ""):
        raise DeviceError(f"range is planned for {hardware.name}, this machine's GPU ({device.name}) is {device.arch}")
    return GpuRangeKernel(plan, device)

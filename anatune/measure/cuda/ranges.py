"""Kernels of plans for a range on a GPU: verified on the CPU, and called on arrays of any extent of the range."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from anatune.codegen.cuda.artifact import GpuArtifact, check_resources, write_artifact
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.triton.artifact import write_program
from anatune.codegen.triton.ranges import range_kernels
from anatune.errors import AnatuneError, BuildError, DeviceError, RunError, SpaceError, no_scratch
from anatune.files import temporary_folder
from anatune.measure.cuda.apart import compiled_kernels
from anatune.measure.cuda.driver import GpuBuffer, GpuDevice, GpuFunction
from anatune.measure.cuda.kernel import first_device
from anatune.measure.cuda.launching import bound_call, load_functions
from anatune.measure.emulate.triton_interpreter import UNSEEN, check_program
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import (
    Array,
    Verification,
    array_dtype,
    check_operands,
    compute_expected,
    random_inputs,
)
from anatune.measure.run.rounding import find_used_operands
from anatune.model.ranges.plan import RangePlan
from anatune.templates.triton.program.kernel import TritonProgram

_SCRATCH = "scratch of Triton"
"""Name of the scratch memory that Triton's compiler needs, next to the tensors."""


def verify(plan: RangePlan, threads: int, seed: int) -> Verification:
    """Run each kernel on the CPU at both ends and in the middle of the intervals that it serves.

    `anatune.verify` describes the checks.
    """
    worst, tolerance, note = 0.0, 0.0, ""
    try:
        kernels = range_kernels(plan)
    except BuildError as error:
        return Verification(False, message=str(error))
    for extent in plan.telling_extents():
        number = plan.program_of(extent)
        workload, kernel = plan.workload.at(extent), kernels[number]
        inputs = random_inputs(workload, seed)
        want = compute_expected(workload, find_used_operands(plan.programs[number].schedule, inputs))
        try:
            if isinstance(kernel, TritonProgram):
                note, answer = UNSEEN, check_program(workload, kernel.at(extent), inputs, want)
            else:
                answer = check_kernel(workload, kernel.at(extent), inputs, want)
        except RunError as error:
            return Verification(False, message=f"kernel {number}: {error}", tolerance=want.tolerance, note=note)
        if not answer.ok:
            where = f"kernel {number} at {plan.workload.axis}={extent}: {answer.message}"
            return Verification(False, answer.max_rel_error, where, want.tolerance, note)
        worst, tolerance = max(worst, answer.max_rel_error or 0.0), max(tolerance, want.tolerance)
    return Verification(True, worst, "", tolerance, note)


class GpuRangeKernel:
    """A built range: ``kernel(*arrays)`` computes on NumPy arrays of any extent of the range in the workload's layouts.

    Kernels are compiled and loaded when an extent first needs them, and stay loaded. Tensors keep the memory of the
    largest extent so far. Not safe to call from several threads at once.

    Parameters
    ----------
    plan, device
        The plan; an open device of its architecture.
    """

    def __init__(self, plan: RangePlan, device: GpuDevice) -> None:
        self.plan, self._device = plan, device
        self._kernels = range_kernels(plan)
        self._programs: dict[int, _LoadedProgram] = {}
        self._buffers: dict[str, GpuBuffer] = {}
        weakref.finalize(self, _free, device, self._programs, self._buffers)

    def extent_of(self, *arrays: Array) -> int:
        """Return the extent of operands along the ranged axis; raise the errors of a call."""
        axis = self.plan.workload.axis
        accesses = {access.tensor: access for access in self.plan.workload.largest.operands}
        for access, array in zip(accesses.values(), arrays, strict=False):
            shape = np.shape(array)
            for dimension, terms in enumerate(access.indices):
                if any(term.axis == axis for term in terms) and len(shape) == len(access.shape):
                    return int(shape[dimension])
        raise RunError(f"range: no operand has the axis {axis}; expected {', '.join(accesses)} in this order")

    def __call__(self, *arrays: Array) -> Array:
        """Return the result for `arrays`: the workload's reads, then its epilogue's.

        Raises
        ------
        RunError
            The number of arrays, a shape, a dtype or the extent is wrong; or the kernel failed.
        """
        extent = self.extent_of(*arrays)
        try:
            number = self.plan.program_of(extent)
        except SpaceError as error:
            raise RunError(str(error)) from None
        workload = self.plan.workload.at(extent)
        names = tuple(dict.fromkeys(access.tensor for access in workload.operands))
        operands = check_operands(workload, names, arrays)
        device, write = self._device, workload.write
        device.activate()
        program = self._program(number)
        artifact = program.artifact.at(extent)
        result = np.empty(write.shape, array_dtype(write.dtype))
        sizes = {name: array.nbytes for name, array in operands.items()} | {write.tensor: result.nbytes}
        if artifact.workspace is not None:
            sizes[artifact.workspace.tensor] = artifact.workspace.num_bytes
        if artifact.scratch_bytes_in_all:
            sizes[_SCRATCH] = artifact.scratch_bytes_in_all
        self._reserve(sizes)
        for name, array in operands.items():
            device.upload(self._buffers[name], array)
        bound_call(device, artifact, program.functions, self._buffers, self._buffers.get(_SCRATCH))()
        device.download(self._buffers[write.tensor], result)
        return result

    def _reserve(self, sizes: Mapping[str, int]) -> None:
        """Allocate at least the given bytes of device memory for tensors."""
        for name, size in sizes.items():
            buffer = self._buffers.get(name)
            if buffer is not None and buffer.num_bytes >= size:
                continue
            if buffer is not None:
                del self._buffers[name]
                buffer.free()
            self._buffers[name] = self._device.allocate(size)

    def _program(self, number: int) -> _LoadedProgram:
        """Return a kernel; build and load it first if needed."""
        if number not in self._programs:
            kernel, hardware = self._kernels[number], self.plan.hardware
            assert hardware.kind == "gpu"
            try:
                with temporary_folder() as folder:
                    if isinstance(kernel, TritonProgram):
                        wanted = [(kernel, one) for one in kernel.kernels]
                        artifact = write_program(kernel, compiled_kernels(wanted, hardware, 1), hardware, folder)
                    else:
                        artifact = write_artifact(kernel, compile_kernel(kernel), folder)
                        check_resources(artifact, hardware)
                    self._programs[number] = _LoadedProgram(artifact, load_functions(self._device, artifact))
            except OSError as error:
                raise BuildError(no_scratch(error)) from None
        return self._programs[number]


class _LoadedProgram(NamedTuple):
    """A loaded kernel of a range."""

    artifact: GpuArtifact
    functions: tuple[GpuFunction, ...]


def _free(device: GpuDevice, programs: dict[int, _LoadedProgram], buffers: dict[str, GpuBuffer]) -> None:
    with contextlib.suppress(AnatuneError):  # the context was destroyed with its memory
        for buffer in buffers.values():
            buffer.free()
        for program in programs.values():
            for function in program.functions:
                device.unload(function)


def build(plan: RangePlan, threads: int, device: GpuDevice | None = None) -> GpuRangeKernel:
    """Build the kernels of a plan for a range as one call on this machine's GPU.

    Raises
    ------
    DeviceError
        There is no GPU, or it is of another architecture.
    SpaceError, BuildError, MissingDependencyError
        The plan cannot be built.
    """
    hardware = plan.hardware
    device = device or first_device()
    if device.arch != getattr(hardware, "arch", ""):
        raise DeviceError(
            f"the plan is for {hardware.name} ({hardware.arch}), but the GPU of this machine ({device.name}) is "
            f"{device.arch}; plan for --hw host_gpu"
        )
    return GpuRangeKernel(plan, device)

"""Loading built kernels onto a device, allocating their memory, and binding their launches to one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anatune.codegen.cuda.artifact import GpuArtifact, read_image
from anatune.errors import RunError
from anatune.measure.cuda.driver import GpuBuffer, GpuDevice, GpuFunction
from anatune.templates.gpu.kernel import Launch


class LoadedKernel(NamedTuple):
    """A kernel that `load_kernel` has loaded.

    Attributes
    ----------
    functions : tuple of GpuFunction
        Its functions in the order of the launches.
    workspace, scratch : GpuBuffer or None
        Its workspace; scratch memory that the compiler needs.
    call : callable
        Makes all launches once, in order, and returns at once.
    """

    functions: tuple[GpuFunction, ...]
    workspace: GpuBuffer | None
    scratch: GpuBuffer | None
    call: Callable[[], None]

    @property
    def memory(self) -> list[GpuBuffer]:
        """The buffers that it has allocated."""
        return [buffer for buffer in (self.workspace, self.scratch) if buffer is not None]

    def unload(self, device: GpuDevice) -> None:
        """Unload its functions and free its memory."""
        _unload(device, self.functions, self.memory)


def load_kernel(device: GpuDevice, artifact: GpuArtifact, buffers: Mapping[str, GpuBuffer]) -> LoadedKernel:
    """Load a kernel onto a device, and bind its parameters.

    Parameters
    ----------
    device
        An open device of the artifact's architecture.
    artifact
        The built kernel.
    buffers : mapping of str to GpuBuffer
        Its tensors.

    Raises
    ------
    RunError
        The device refuses the kernel, there is no memory for its workspace, or a tensor is missing or of another size.
    """
    for tensor, buffer in artifact.tensors.items():
        given_buffer = buffers.get(tensor)
        if given_buffer is None or given_buffer.num_bytes != buffer.num_bytes:
            raise RunError(f"the kernel takes {tensor} of {buffer.num_bytes} bytes, which the workload lacks")
    functions = load_functions(device, artifact)
    workspace: GpuBuffer | None = None
    scratch: GpuBuffer | None = None
    owned: list[GpuBuffer] = []
    try:
        bound = dict(buffers)
        if artifact.workspace is not None:
            workspace = device.allocate(artifact.workspace.num_bytes)
            owned.append(workspace)
            bound[artifact.workspace.tensor] = workspace
        if artifact.scratch_bytes_in_all:
            scratch = device.allocate(artifact.scratch_bytes_in_all)
            owned.append(scratch)
        call = bound_call(device, artifact, functions, bound, scratch)
    except RunError:
        _unload(device, functions, owned)
        raise
    return LoadedKernel(functions, workspace, scratch, call)


def load_functions(device: GpuDevice, artifact: GpuArtifact) -> tuple[GpuFunction, ...]:
    """Load a kernel's functions onto a device, in the order of its launches.

    Raises
    ------
    RunError
        The cubin cannot be read, or the device refuses it.
    """
    image = read_image(artifact)
    functions: list[GpuFunction] = []
    try:
        for launch in artifact.launches:
            code = read_image(launch) if launch.image else image
            functions.append(device.load(code, launch.name, launch.dynamic_shared_bytes))
    except RunError:
        _unload(device, functions, ())
        raise
    return tuple(functions)


def bound_call(
    device: GpuDevice,
    artifact: GpuArtifact,
    functions: Sequence[GpuFunction],
    buffers: Mapping[str, GpuBuffer],
    scratch: GpuBuffer | None = None,
) -> Callable[[], None]:
    """Return a function that launches loaded functions once, in order, and returns at once.

    Parameters
    ----------
    artifact
        The kernel of the functions; a kernel for a range at one extent.
    buffers : mapping of str to GpuBuffer
        Its tensors and its workspace; they may be larger than needed.
    scratch : GpuBuffer, optional
        Scratch memory that the compiler needs, `Launches.scratch_bytes_in_all`.

    Raises
    ------
    RunError
        The device refuses a launch of this size.
    """
    scalars = [np.int32(scalar) for scalar in artifact.scalars]
    calls = [
        device.prepare(
            function,
            launch.grid,
            launch.block,
            [*(buffers[parameter.tensor] for parameter in launch.parameters), *scalars, *_scratch(launch, scratch)],
        )
        for function, launch in zip(functions, artifact.launches, strict=True)
    ]

    def call() -> None:
        for launch in calls:
            launch()

    return calls[0] if len(calls) == 1 else call


def _scratch(launch: Launch, memory: GpuBuffer | None) -> list[GpuBuffer | np.uint64]:
    """Return the two additional pointer arguments of a Triton function; nothing for other functions."""
    if launch.scratch_bytes is None:
        return []
    null = np.uint64(0)
    return [memory if launch.scratch_bytes and memory is not None else null, null]


def _unload(device: GpuDevice, functions: Iterable[GpuFunction], memory: Iterable[GpuBuffer]) -> None:
    for function in functions:
        device.unload(function)
    for buffer in memory:
        buffer.free()

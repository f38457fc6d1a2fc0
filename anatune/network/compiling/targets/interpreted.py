"""Run a model of launches on the CPU: each kernel in Triton's interpreter, with the memory layout of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anatune.measure.emulate.triton_interpreter import interpret
from anatune.measure.run.correctness import Array, array_dtype
from anatune.network.graph.summary import TensorSummary
from anatune.network.relax.device.program import DeviceLaunch, DeviceProgram, Region
from anatune.templates.triton.program.kernel import TritonProgram

__all__ = ["interpret_model"]

_LAUNCH_S, _PROGRAM_S = 600.0, 2.0
"""Time limit of a launch, and of each program of its grid in addition."""


def interpret_model(
    program: DeviceProgram,
    weights: Array,
    arrays: Sequence[Array],
    outputs: Sequence[TensorSummary],
    state: Sequence[Array] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Array]:
    """Return the outputs of a model for its inputs.

    Every kernel reads and writes the same bytes as on a device: those of the inputs, of `weights`, and of one arena for
    all intermediate tensors.

    Parameters
    ----------
    state : sequence of ndarray
        (num_bytes,) uint8 each, as `DeviceProgram.state`; it is changed.
    progress : callable, optional
        Called with (launches done, launches).

    Raises
    ------
    RunError
        A kernel accessed memory out of bounds, or failed otherwise.
    MissingDependencyError
        Triton is not installed.
    """
    sizes = [tuple(map(int, one.shape)) for one in outputs]
    results = [np.zeros(shape, array_dtype(one.dtype)) for shape, one in zip(sizes, outputs, strict=True)]
    memory = {
        "input": [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in arrays],
        "weight": [weights],
        "arena": [np.full(program.arena_bytes, 0xCD, np.uint8)],
        "output": [one.reshape(-1).view(np.uint8) for one in results],
        "state": list(state),
    }

    def bytes_at(region: Region) -> Array:
        region_bytes: Array = memory[region.role][region.place][region.offset : region.offset + region.num_bytes]
        return region_bytes

    done = 0
    for text, launches in _group_launches(program):
        regions: dict[str, Region] = {}
        for launch, kernel in zip(launches, text.kernels, strict=True):
            regions |= dict(zip((one.tensor for one in kernel.parameters), launch.regions, strict=True))
        results_names = (text.result, *text.further)
        tensors = {
            name: bytes_at(regions[name]).view(array_dtype(buffer.dtype))
            for name, buffer in text.tensors.items()
            if name not in results_names or regions[name].role == "state"
        }
        limit_s = _LAUNCH_S + _PROGRAM_S * sum(kernel.grid for kernel in text.kernels)
        for name, array in interpret(text, tensors, limit_s).items():
            bytes_at(regions[name])[:] = array.reshape(-1).view(np.uint8)
        done += len(launches)
        if progress is not None:
            progress(done, len(program.launches))
    return results


def _group_launches(program: DeviceProgram) -> list[tuple[TritonProgram, tuple[DeviceLaunch, ...]]]:
    """Return launches grouped by program: all kernels of a program are launched together."""
    calls, index = [], 0
    while index < len(program.launches):
        text = program.programs[program.kernels[program.launches[index].kernel].program]
        calls.append((text, program.launches[index : index + len(text.kernels)]))
        index += len(text.kernels)
    return calls

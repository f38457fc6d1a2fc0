"""GPU schedules to TVM programs and CUDA C; no GPU, driver or NVIDIA compiler is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from anatune.codegen.compat import (
    DevicePart,
    generate_cuda_source,
    import_tvm,
    lower_device_part,
    make_gpu_target,
    parse_program,
)
from anatune.codegen.cuda.preamble import make_preamble
from anatune.codegen.indices import PLAIN_INDICES
from anatune.codegen.lowered import LoweredSchedule
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError
from anatune.templates import get_template
from anatune.templates.gpu.kernel import CudaKernel, KernelProgram, Launch
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.gpu.writer import ROLLED

_MAIN = "main"
_PARAMETER = re.compile(r"(\w+)_ptr$")
_DEFINITION = re.compile(r'^extern "C" __global__ [^;{]*\{', re.MULTILINE)


@dataclass(frozen=True)
class LoweredGpuSchedule(LoweredSchedule):
    """A TVM module with the kernels of one schedule, and their launches."""

    program: KernelProgram


def lower_gpu(schedule: Schedule, threads: int = 1, ranged: Ranged | None = None) -> LoweredGpuSchedule:
    """Lower a schedule of a GPU template to a TVM module.

    ``main`` takes the operands, the epilogue's operands and the result, in the workload's own layouts.

    Parameters
    ----------
    threads : int
        Ignored; all lowering functions have this parameter.
    ranged : Ranged, optional
        The axis whose extent ``main`` takes as its last argument; the schedule is then for its largest extent.

    Raises
    ------
    SpaceError
        The schedule contradicts itself.
    BuildError
        The device is not an NVIDIA GPU, or has less than the schedule needs (shared memory, threads of a block).
    MissingDependencyError
        TVM is not installed.
    """
    hardware = schedule.check().hardware
    if hardware.kind != "gpu":
        raise BuildError(f"schedule is for {hardware.name}, expected a GPU; anatune.codegen.cpu.lower builds for CPUs")
    program = get_template(schedule.template).program(schedule, ranged=ranged)
    if not isinstance(program, KernelProgram):
        raise BuildError(
            f"schedules of the template {schedule.template} are compiled by Triton and have no TVM module; use "
            "schedule.source() for their program, or anatune export without --format to write it"
        )
    function = parse_program(program.script, "").with_attr(PLAIN_INDICES, True)
    module = import_tvm().IRModule({"main": function})
    return LoweredGpuSchedule(schedule, module, make_gpu_target(gpu_of(schedule)), program)


def cuda_kernel(schedule: Schedule, ranged: Ranged | None = None) -> CudaKernel:
    """Return the CUDA C of a schedule; errors as in `lower_gpu`.

    Parameters
    ----------
    schedule : Schedule
        The schedule; with `ranged`, that of the largest extent.
    ranged : Ranged, optional
        The axis whose extent the kernel takes when it is launched: ``Ranged("i", least=1, most=8192)``. Its functions
        then have one more parameter, ``int extent_<axis>``, as the last one, and are correct for every extent of the
        range; ``kernel.at(extent)`` returns the launched kernel. The options ``split`` and ``atomic`` work as without a
        range (parts of a reduction whose extent varies are as equal as possible); ``whole`` does not.

    Examples
    --------
    >>> import anatune
    >>> workload, hardware = anatune.matmul(1000, 64, 64), anatune.hardware("rtx3090")
    >>> tiles = {"i": (32, 1, 8, 1, 4), "j": (2, 1, 8, 1, 4), "k": (4, 4, 4)}
    >>> schedule = anatune.space(workload, hardware).schedule(tiles, 64, {"A": 4, "B": 4})
    >>> kernel = cuda_kernel(schedule, Ranged("i", 1, 1000))
    >>> kernel.grid, kernel.at(100).grid, kernel.at(100).scalars
    (64, 8, (100,))
    """
    return make_named_kernel(schedule, _MAIN, ranged)[0]


def make_named_kernel(schedule: Schedule, name: str, ranged: Ranged | None = None) -> tuple[CudaKernel, DevicePart]:
    """Return the CUDA C of a schedule with kernels called ``<name>_kernel<...>``, and its TVM module.

    The errors are those of `lower_gpu`.
    """
    lowered = lower_gpu(schedule, ranged=ranged)
    module = lowered.module
    if name != _MAIN:
        module = import_tvm().IRModule({name: module[_MAIN].with_attr("global_symbol", name)})
    part = lower_device_part(module, lowered.target, has_scalars=ranged is not None)
    text, program = generate_cuda_source(part), lowered.program
    workload = schedule.workload
    buffers = {access.tensor: Buffer.of(access, ranged.axis if ranged else "") for access in workload.tensors}
    if program.workspace is not None:
        buffers[program.workspace.tensor] = program.workspace
    launches, bodies = [], []
    for number, (size, body) in enumerate(zip(program.sizes, _split_functions(text), strict=True)):
        function = f"{name}_kernel_{number}" if number else f"{name}_kernel"  # as TVM numbers them
        parameters = _read_parameters(function, body, buffers, ranged)
        if ranged is not None:
            body = _add_extent(function, body, ranged)
        launches.append(
            Launch(
                function, parameters, size.grid, size.block, size.shared_bytes, size.dynamic_shared_bytes, size.growth
            )
        )
        body = re.sub(rf"^( *)(for \(int {ROLLED})", r"\1#pragma unroll 1\n\1\2", body, flags=re.MULTILINE)
        if program.resident_blocks and number == len(program.before):
            bounds = f"__launch_bounds__({program.num_threads}"
            body = body.replace(f"{bounds})", f"{bounds}, {program.resident_blocks})")
        bodies.append(program.finish(body))
    principal = launches[len(program.before)]
    kernel = CudaKernel(
        schedule_key=schedule.key,
        name=principal.name,
        source=make_preamble({access.dtype for access in workload.tensors}) + extract_helpers(text) + "".join(bodies),
        arch=schedule.hardware.arch,
        result=workload.write.tensor,
        before=tuple(launches[: len(program.before)]),
        after=tuple(launches[len(program.before) + 1 :]),
        workspace=program.workspace,
        ranged=ranged,
        parameters=principal.parameters,
        grid=principal.grid,
        block=principal.block,
        shared_bytes=principal.shared_bytes,
        dynamic_shared_bytes=principal.dynamic_shared_bytes,
        growth=principal.growth,
    )
    return kernel, part


def _split_functions(text: str) -> list[str]:
    """Return the kernels in TVM's CUDA C, in order; TVM declares them before it defines them."""
    starts = [match.start() for match in _DEFINITION.finditer(text)]
    return [text[start:stop] for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)]


def _add_extent(function: str, body: str, ranged: Ranged) -> str:
    """Add the extent to a kernel's parameters even if it needs none, because all kernels are launched the same way."""
    return re.sub(
        rf"\b({function}\([^)]*?)(, int {ranged.parameter})?\)", rf"\1, int {ranged.parameter})", body, count=1
    )


def _read_parameters(
    function: str, body: str, buffers: Mapping[str, Buffer], ranged: Ranged | None
) -> tuple[Buffer, ...]:
    """Return the pointers that a kernel takes, in order; the varying extent may follow them."""
    prototype = re.search(rf"\b{function}\(([^)]*)\)", body)
    if prototype is None:
        raise BuildError(f"TVM generated a kernel of another name than {function}; this is a defect of anatune")
    parameters = []
    declared = [parameter.strip() for parameter in prototype.group(1).split(",")]
    if ranged is not None and declared[-1] == f"int {ranged.parameter}":
        declared.pop()
    for parameter in declared:
        match = _PARAMETER.search(parameter)
        if match is None or match.group(1) not in buffers:
            raise BuildError(f"TVM generated the unknown parameter {parameter!r}; this is a defect of anatune")
        parameters.append(buffers[match.group(1)])
    return tuple(parameters)


def extract_helpers(text: str) -> str:
    """Return the device functions that TVM wrote before the kernel: PTX instructions and anatune's own functions."""
    stop = text.index('extern "C" __global__')
    start = text.rfind("#endif", 0, stop)  # the end of TVM's preamble
    return text[start + len("#endif") : stop].strip() + "\n" if start >= 0 else ""

"""Writing an export with its manifest: files, functions, requirements, and the schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from anatune.codegen.arithmetic import find_arithmetic
from anatune.codegen.cpu.dispatch import make_dispatch
from anatune.codegen.cuda.nvrtc import FLAGS, compiler_version
from anatune.codegen.devices import tvm_module_json
from anatune.codegen.toolchains import describe_compilers
from anatune.codegen.triton.compiler import FLAGS as TRITON_FLAGS
from anatune.core.schedule import Schedule
from anatune.export.cpu.header import ALIGNMENT_BYTES, prototype
from anatune.export.cpu.ranges import write_c_range
from anatune.export.cpu.write import CLibrary, write_c_library
from anatune.export.cuda.header import ALIGNMENT_BYTES as CUDA_ALIGNMENT_BYTES
from anatune.export.cuda.header import prototypes
from anatune.export.cuda.write import write_cuda
from anatune.export.triton.header import prototypes as prototypes_of_triton
from anatune.export.triton.ranges import GpuRangeExport, write_gpu_range
from anatune.export.triton.write import TritonExport, write_launcher, write_triton
from anatune.measure.cuda.apart import compiled_kernels, images_apart
from anatune.model.ranges.plan import RangePlan
from anatune.records.export import workload_text
from anatune.resources import usable_cores
from anatune.templates import get_template
from anatune.templates.gpu.kernel import CudaKernel, Launch
from anatune.version import __version__

Manifest: TypeAlias = dict[str, Any]
"""The manifest of an export, which becomes JSON: the written files, and how to call them."""


def write_schedule(schedule: Schedule, name: str, form: str, threads: int, folder: Path) -> Manifest:
    """Write a schedule as a TVM module, CUDA C with a cubin, or a library for C programs, and return the manifest.

    The errors are those of `tvm_module_json`, `write_cuda` and `write_c_library`.
    """
    if form == "tvm":
        written = _module(schedule, name, folder, threads)
    elif get_template(schedule.template).toolchain == "triton":
        written = _triton(schedule, name, form, folder)
    elif schedule.hardware.kind == "gpu":
        written = _cuda(schedule, name, folder)
    else:
        written = _library(write_c_library(schedule, name, folder, threads=threads, form=form), name, form)
    return {**written, **_schedule_fields(schedule), "schedule": schedule}


def write_range(plan: RangePlan, name: str, form: str, threads: int | None, folder: Path) -> Manifest:
    """Write the kernels of a range with the dispatch table: one C library, or cubins and their header.

    The errors are those of `write_c_range` and `write_gpu_range`.
    """
    if plan.hardware.kind == "gpu":
        written = _machine_code(plan, name, folder)
    else:
        count = threads or plan.hardware.most_threads or 1
        written = _library(write_c_range(make_dispatch(plan), name, folder, threads=count, form=form), name, form)
    range_fields = {"workload": plan.workload.describe(), "dispatch": plan.dispatch(), "loss": plan.loss, "range": plan}
    about = _schedule_fields(plan.programs[-1].schedule)
    return {**written, **about, "arithmetic": written.get("arithmetic", about["arithmetic"]), **range_fields}


def _library(library: CLibrary, name: str, form: str) -> dict[str, object]:
    """Return the manifest's fields about a library: files, requirements and functions."""
    return {
        "format": form,
        "library": library.library,
        "header": library.header,
        "link": library.link,
        "supported": f"int {name}_supported(void);",
        "mcpu": library.needs.cpu,
        "features": library.needs.features,
        "threads": library.needs.threads,
        "needs_openmp": bool(library.needs.openmp),
        "alignment_bytes": ALIGNMENT_BYTES,
        "functions": [
            {
                "name": function.name,
                "purpose": function.purpose,
                "prototype": f"{prototype(function)};",
                "arguments": function.arguments,
                "workspace_bytes": function.workspace_bytes,
            }
            for function in library.functions
        ],
    }


def _machine_code(plan: RangePlan, name: str, folder: Path) -> dict[str, object]:
    """Write the kernels of a range on a GPU, and return the manifest's fields about them."""
    hardware = plan.programs[0].schedule.hardware
    assert hardware.kind == "gpu"
    export = write_gpu_range(plan, name, folder, lambda wanted: compiled_kernels(wanted, hardware, usable_cores()))
    files, functions = [*export.images, *export.sources, export.table], _functions(name, export, ranged=True)
    form = "triton" if export.needs is None else "cuda"
    return {"format": form, "name": name, "files": files, "header": export.header, "needs": export.needs,
            "functions": functions, "arithmetic": export.arithmetic}  # fmt: skip


def _functions(name: str, export: TritonExport | GpuRangeExport, *, ranged: bool = False) -> list[dict[str, object]]:
    """Return the functions of a header: names, purposes, declarations, and the tensors of the launch function."""
    declared = prototypes_of_triton(name, export.launches, export.arguments, export.needs is None, ranged=ranged)
    functions: list[dict[str, object]] = [
        {"name": declaration.split("(")[0].split()[-1], "purpose": purpose, "prototype": declaration}
        for purpose, declaration in declared.items()
    ]
    functions[0]["arguments"] = export.arguments
    return functions


def _cuda(schedule: Schedule, name: str, folder: Path) -> dict[str, object]:
    """Write CUDA C, cubin and header, and return the manifest's fields about them."""
    export = write_cuda(schedule, name, folder)
    kernel = export.kernel
    functions: list[dict[str, object]] = [
        {"name": function, "purpose": purpose, "prototype": declaration}
        for function, (purpose, declaration) in prototypes(kernel, export.arguments).items()
    ]
    functions[0]["arguments"] = export.arguments
    around: dict[str, object] = {
        kind: [_launch(launch) for launch in launches]
        for kind, launches in (("before", kernel.before), ("after", kernel.after))
        if launches
    }
    if kernel.workspace is not None:
        around["workspace_bytes"] = kernel.workspace.num_bytes
    return {
        "format": "cuda",
        "source": export.source,
        "cubin": export.cubin,
        "header": export.header,
        "launch": {**_launch(kernel), **around},
        "needs": export.needs,
        "alignment_bytes": CUDA_ALIGNMENT_BYTES,
        "compiler": {"version": compiler_version(), "flags": FLAGS, **export.facts.numbers()},
        "functions": functions,
    }


def _triton(schedule: Schedule, name: str, form: str, folder: Path) -> dict[str, object]:
    """Write a Python file and, unless `form` is "py", machine code and header; return the manifest's fields."""
    file, call = write_launcher(schedule, name, folder)
    fields: dict[str, object] = {
        "format": "py",
        "source": file,
        "functions": [{"name": "run", "purpose": "computes on tensors of PyTorch", "prototype": f"{call} in {file}"}],
    }
    if form == "py":
        return fields
    images = images_apart(schedule)
    written = write_triton(schedule, images, name, folder)
    functions = _functions(name, written)
    facts = images[0].facts.numbers()
    return {
        "format": "triton",
        "source": file,
        "header": written.header,
        "images": written.images,
        "launches": [
            {**_launch(launch), "file": launch.image, "scratch_bytes": launch.scratch_bytes}
            for launch in written.launches
        ],
        "workspace_bytes": sum(one.num_bytes for one in written.arguments[len(schedule.workload.tensors) :]),
        "needs": written.needs,
        "alignment_bytes": CUDA_ALIGNMENT_BYTES,
        "compiler": {"version": describe_compilers([schedule.template])[0], "flags": TRITON_FLAGS, **facts},
        "functions": [*functions, *fields["functions"]],  # type: ignore[misc]
    }


def _launch(kernel: CudaKernel | Launch) -> dict[str, object]:
    """Return the launch configuration of a kernel."""
    return {
        "kernel": kernel.name,
        "grid": [kernel.grid, 1, 1],
        "block": [kernel.block, 1, 1],
        "shared_bytes": kernel.shared_bytes,
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "parameters": [parameter.tensor for parameter in kernel.parameters],
    }


def _module(schedule: Schedule, name: str, folder: Path, threads: int) -> dict[str, object]:
    """Write the IRModule ``<name>.tvm.json``, and return the manifest's fields about it."""
    text, target = tvm_module_json(schedule, threads=threads)
    file = f"{name}.tvm.json"
    (folder / file).write_text(text, encoding="utf-8")
    arguments = [
        {"tensor": access.tensor, "dtype": access.dtype, "shape": access.shape} for access in schedule.workload.tensors
    ]
    return {
        "format": "tvm",
        "module": file,
        "load": f"tvm.ir.load_json(open({file!r}).read())",
        "target": msgspec.json.decode(target),
        "threads": threads,
        "functions": [{"name": "main", "purpose": "all tensors in the workload's own layouts", "arguments": arguments}],
    }


def _schedule_fields(schedule: Schedule) -> dict[str, object]:
    return {
        "workload": workload_text(schedule.workload),
        "arithmetic": find_arithmetic(schedule),
        "hardware": schedule.hardware.name,
        "arch": schedule.hardware.arch,
        "anatune": __version__,
    }

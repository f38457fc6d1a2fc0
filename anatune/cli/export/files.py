"""An export with its manifest: what was written, how it is called, what it needs, and the schedule it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from anatune.codegen.arithmetic import arithmetic_of
from anatune.codegen.cpu.dispatch import dispatch_of
from anatune.codegen.cpu.export.header import ALIGNMENT_BYTES, prototype
from anatune.codegen.cpu.export.ranges import write_c_range
from anatune.codegen.cpu.export.write import CLibrary, write_c_library
from anatune.codegen.cuda.export.header import ALIGNMENT_BYTES as CUDA_ALIGNMENT_BYTES
from anatune.codegen.cuda.export.header import prototypes
from anatune.codegen.cuda.export.ranges import write_cuda_range
from anatune.codegen.cuda.export.write import write_cuda
from anatune.codegen.cuda.nvrtc import FLAGS, compiler_version
from anatune.codegen.devices import tvm_module_json
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.model.ranges.plan import RangePlan
from anatune.records.export import workload_text
from anatune.templates.gpu.kernel import CudaKernel
from anatune.version import __version__

__all__ = ["export_cuda", "export_library", "export_module", "export_range"]


def export_library(schedule: Schedule, name: str, folder: Path, form: str, threads: int) -> dict[str, Any]:
    """Write a schedule of the CPU template as a library for C programs; arguments and errors as `write_c_library`."""
    made = write_c_library(schedule, name, folder, threads=threads, form=form)
    return {**_library(made, name, form), **_about(schedule, _functions(made))}


def export_range(plan: RangePlan, name: str, folder: Path, form: str, threads: int) -> dict[str, Any]:
    """Write the programs of a range for C programs, with the dispatch table: one library, or cubins and their header.

    Errors as `write_c_range` and `write_cuda_range`.
    """
    if not isinstance(plan.hardware, CpuSpec):
        return _range_of_cubins(plan, name, folder)
    made = write_c_range(dispatch_of(plan), name, folder, threads=threads, form=form)
    schedule = plan.programs[-1].schedule
    about = _about(schedule, _functions(made))
    del about["schedule"]
    words = {"workload": plan.workload.describe(), "dispatch": plan.dispatch(), "loss": plan.loss}
    return {**_library(made, name, form), **about, **words, "range": plan}


def _range_of_cubins(plan: RangePlan, name: str, folder: Path) -> dict[str, Any]:
    """Write the programs of a range on a GPU; the manifest's entries say what was written."""
    made = write_cuda_range(plan, name, folder)
    shown = [one.tensor for one in made.arguments]
    launch = f"CUresult {name}_launch(const {name}_t *self, CUstream stream, int extent, "
    functions: list[dict[str, Any]] = [
        {
            "name": f"{name}_launch",
            "purpose": "launches the kernel that serves an extent",
            "prototype": f"{launch}{', '.join(f'CUdeviceptr {tensor}' for tensor in shown)});",
            "arguments": made.arguments,
        },
        {
            "name": f"{name}_load",
            "purpose": "loads all cubins from a folder",
            "prototype": f"CUresult {name}_load({name}_t *self, const char *folder);",
        },
    ]
    about = _about(plan.programs[-1].schedule, functions)
    del about["schedule"]
    words = {"workload": plan.workload.describe(), "dispatch": plan.dispatch(), "loss": plan.loss}
    files = {"files": [*made.cubins, *made.sources, made.table], "header": made.header, "needs": made.needs}
    return {"format": "cuda", "name": name, **files, **about, **words, "range": plan}


def _library(made: CLibrary, name: str, form: str) -> dict[str, Any]:
    """Return what a library is called and needs."""
    return {
        "format": form,
        "library": made.library,
        "header": made.header,
        "link": made.link,
        "supported": f"int {name}_supported(void);",
        "mcpu": made.needs.cpu,
        "features": made.needs.features,
        "threads": made.needs.threads,
        "needs_openmp": bool(made.needs.openmp),
        "alignment_bytes": ALIGNMENT_BYTES,
    }


def _functions(made: CLibrary) -> list[dict[str, Any]]:
    """Return how a library's functions are called."""
    return [
        {
            "name": one.name,
            "purpose": one.purpose,
            "prototype": f"{prototype(one)};",
            "arguments": one.arguments,
            "workspace_bytes": one.workspace_bytes,
        }
        for one in made.functions
    ]


def export_cuda(schedule: Schedule, name: str, folder: Path) -> dict[str, Any]:
    """Write a schedule of a GPU template as CUDA C, cubin and header; errors as `write_cuda`."""
    made = write_cuda(schedule, name, folder)
    kernel = made.kernel
    functions: list[dict[str, Any]] = [
        {"name": function, "purpose": purpose, "prototype": declaration}
        for function, (purpose, declaration) in prototypes(kernel, made.arguments).items()
    ]
    return {
        "format": "cuda",
        "source": made.source,
        "cubin": made.cubin,
        "header": made.header,
        "launch": {
            "kernel": kernel.name,
            "grid": [kernel.grid, 1, 1],
            "block": [kernel.block, 1, 1],
            "shared_bytes": kernel.shared_bytes,
            "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
            "parameters": [parameter.tensor for parameter in kernel.parameters],
            **_around(kernel),
        },
        "needs": made.needs,
        "alignment_bytes": CUDA_ALIGNMENT_BYTES,
        "compiler": {"version": compiler_version(), "flags": FLAGS, **msgspec.structs.asdict(made.facts)},
        **_about(schedule, [{**functions[0], "arguments": made.arguments}, *functions[1:]]),
    }


def _around(kernel: CudaKernel) -> dict[str, Any]:
    """Return what is launched before and after the principal kernel, and the workspace: only what there is."""
    found: dict[str, Any] = {
        kind: [
            {
                "kernel": launch.name,
                "grid": [launch.grid, 1, 1],
                "block": [launch.block, 1, 1],
                "shared_bytes": launch.shared_bytes,
                "dynamic_shared_bytes": launch.dynamic_shared_bytes,
                "parameters": [parameter.tensor for parameter in launch.parameters],
            }
            for launch in launches
        ]
        for kind, launches in (("before", kernel.before), ("after", kernel.after))
        if launches
    }
    if kernel.workspace is not None:
        found["workspace_bytes"] = kernel.workspace.num_bytes
    return found


def export_module(schedule: Schedule, name: str, folder: Path, threads: int) -> dict[str, Any]:
    """Write a schedule as ``<name>.tvm.json``, an IRModule; errors as `tvm_module_json`."""
    text, target = tvm_module_json(schedule, threads=threads)
    file = f"{name}.tvm.json"
    (folder / file).write_text(text, encoding="utf-8")
    tensors = schedule.workload.tensors
    arguments = [{"tensor": one.tensor, "dtype": one.dtype, "shape": one.shape} for one in tensors]
    main = {"name": "main", "purpose": "all tensors in the workload's own layouts", "arguments": arguments}
    return {
        "format": "tvm",
        "module": file,
        "load": f"tvm.ir.load_json(open({file!r}).read())",
        "target": msgspec.json.decode(target),
        "threads": threads,
        **_about(schedule, [main]),
    }


def _about(schedule: Schedule, functions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "functions": functions,
        "workload": workload_text(schedule.workload),
        "arithmetic": arithmetic_of(schedule),
        "hardware": schedule.hardware.name,
        "arch": schedule.hardware.arch,
        "anatune": __version__,
        "schedule": schedule,
    }

"""Everything that depends on TVM's version: imports, targets, compiling, reading of programs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.extremes import register_pipeline
from anatune.codegen.quick_reader import make_quick_reader
from anatune.core.generation import vendor_limit
from anatune.core.hardware.dot import dot_features, tile_features
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import BuildError, MissingDependencyError, RecordError, SpaceError, WorkloadError
from anatune.requirements import pip_line
from anatune.untyped import TvmObject, ir, tirx, tvm

__all__ = [
    "PARTS_OF_ISA",
    "TVM_ERRORS",
    "DevicePart",
    "TvmObject",
    "build_measured",
    "compile_module",
    "convert_to_array",
    "find_triple",
    "generate_cuda_source",
    "has_same_structure",
    "import_meta_schedule",
    "import_tvm",
    "lacks_feature",
    "last_line",
    "list_features",
    "list_unlowered_operators",
    "lower_device_part",
    "make_bare_target",
    "make_gpu_target",
    "parse_program",
    "register_errors",
    "schedule_of_module",
    "set_pool_threads",
    "target_of",
]

_IMPORTED: set[str] = set()
"""Packages whose import has finished."""
PARTS_OF_ISA: dict[str, tuple[str, str]] = {
    "avx512": ("x86_64-linux-gnu", "+avx512f,+avx512vl,+avx512bw,+avx512dq,+fma,+f16c"),
    "avx2": ("x86_64-linux-gnu", "+avx2,+fma,+f16c"),
    "avx": ("x86_64-linux-gnu", "+avx"),
    "sse": ("x86_64-linux-gnu", "+sse4.2"),
    "neon": ("aarch64-linux-gnu", "+neon"),
    "sve": ("aarch64-linux-gnu", "+neon"),
}
"""Instruction set -> (LLVM triple, features that are requested in addition to the processor's own)."""

TVM_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""Exceptions that TVM raises when it refuses a program: its own are RuntimeErrors, C++ may throw the others by name."""


def import_tvm() -> ModuleType:
    """Import and return the package tvm.

    Raises
    ------
    MissingDependencyError
        TVM is not installed, or a package that it needs has another version.
    """
    if _IMPORTED and (loaded := sys.modules.get("tvm")) is not None:  # fast path: each call of a compiled model
        return loaded
    try:
        with _without_torch():
            import tvm
            import tvm.s_tir
            import tvm.script
    except ImportError as error:
        raise MissingDependencyError(
            f"building kernels needs Apache TVM, which cannot be imported ({error}); install it with: {pip_line('tvm')}"
        ) from None
    _IMPORTED.add("tvm")
    package: ModuleType = tvm
    return package


class _NoTorch:
    """An import finder that hides PyTorch from one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        """Return None, so that other finders search; raise ImportError for a hidden module."""
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("anatune keeps TVM from importing torch", name=name)


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Prevent this thread from importing PyTorch, unless it is loaded: TVM does not need it, and it takes 2.6 s.

    TVM imports it first for the sake of Windows. Source: tvm_ffi 0.1, `__init__`.
    """
    if {"tvm", "torch"} & sys.modules.keys():
        yield
        return
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]


def set_pool_threads(threads: int) -> int:
    """Let parallel loops that this thread starts run on `threads` threads; return how many they get.

    By default TVM uses half the logical processors of an x86 machine, as if each core had two, when it makes the pool
    and again at every launch; if that is one, it runs the loop in the calling thread despite the request. The
    variable TVM_NUM_THREADS, unless the user has set it, therefore states the number from here on. A pool that was made
    before keeps its size.
    """
    tvm = import_tvm()
    os.environ.setdefault("TVM_NUM_THREADS", str(max(threads, os.cpu_count() or 1)))
    tvm.get_global_func("runtime.config_threadpool")(1, threads)
    return int(tvm.get_global_func("runtime.NumThreads")())


def import_meta_schedule() -> ModuleType:
    """Import and return TVM's meta_schedule package.

    Raises
    ------
    MissingDependencyError
        TVM is not installed, or a package that its meta_schedule needs (psutil, cloudpickle, ...).
    """
    import_tvm()
    from importlib import import_module

    try:
        package = import_module("tvm.s_tir.meta_schedule")
        for name in ("arg_info", "database"):
            import_module(f"{package.__name__}.{name}")
        for name in ("psutil", "cloudpickle"):  # imported late by its search and its builder
            import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"TVM's MetaSchedule cannot be used ({error}); install it with: {pip_line('metaschedule')}"
        ) from None
    return package


def register_errors() -> None:
    """Make errors of functions that TVM calls back keep their class; TVM turns unknown ones into RuntimeErrors."""
    import tvm_ffi

    for error in (RecordError, SpaceError, WorkloadError):
        tvm_ffi.register_error(error)


def target_of(hardware: CpuSpec, *, threads: int = 1) -> tvm.target.Target:
    """Return the TVM target of a CPU spec: LLVM for its processor, instruction set and triple.

    Features that the machine lacks are removed; the processor's instruction scheduling remains.
    """
    import platform

    tvm = import_tvm()
    triple, features = PARTS_OF_ISA[hardware.compute.isa]
    options: dict[str, object] = {"kind": "llvm", "mcpu": hardware.arch, "num-cores": threads}
    if not triple.startswith(platform.machine()) and not (platform.machine() == "arm64" and "aarch64" in triple):
        options["mtriple"] = triple
    hidden = [f"-{name}" for name in hardware.hidden_features or ()]
    if attributes := [*(features.split(",") if "mtriple" in options else ()), *hidden]:
        options["mattr"] = attributes
    target = tvm.target.Target(options)
    has = tvm.get_global_func("target.target_has_feature")
    if missing := [f"+{name}" for name in (*dot_features(hardware), *tile_features(hardware)) if not has(name, target)]:
        options["mattr"] = [*features.split(","), *hidden, *missing]
        target = tvm.target.Target(options)
    return target


def find_triple(target: tvm.target.Target) -> str:
    """Return the LLVM triple of a target."""
    import_tvm()
    from tvm.target.codegen import llvm_get_system_triple

    return str(target.attrs.get("mtriple") or llvm_get_system_triple())


def make_bare_target(machine: str) -> tvm.target.Target:
    """Return the TVM target of the simplest Linux processor of an architecture, "x86_64" or "aarch64"."""
    mcpu = {"x86_64": "x86-64", "aarch64": "generic"}[machine]
    options = {"kind": "llvm", "mcpu": mcpu, "mtriple": f"{machine}-linux-gnu"}
    return import_tvm().target.Target(options)


def lacks_feature(target: tvm.target.Target, hardware: CpuSpec) -> str:
    """Return an LLVM feature that the microkernels of `hardware` need and `target` lacks; "" if there is none."""
    tvm = import_tvm()
    has = tvm.get_global_func("target.target_has_feature")
    _, features = PARTS_OF_ISA[hardware.compute.isa]
    names = [*(name[1:] for name in features.split(",")), *dot_features(hardware)]
    return next((name for name in names if not has(name, target)), "")


def list_features(target: tvm.target.Target) -> frozenset[str]:
    """Return LLVM's names of the features that the processor of an LLVM target has."""
    return frozenset(str(name) for name in import_tvm().get_global_func("target.llvm_get_cpu_features")(target))


def make_gpu_target(hardware: GpuSpec) -> tvm.target.Target:
    """Return the TVM target of a GPU spec.

    Raises
    ------
    BuildError
        The device is not an NVIDIA GPU.
    """
    tvm = import_tvm()
    if limit := vendor_limit(hardware):
        raise BuildError(limit)
    shared, compute = hardware.shared_memory, hardware.compute
    return tvm.target.Target(
        {
            "kind": "cuda",
            "arch": hardware.arch,
            "max_threads_per_block": compute.max_threads_per_block,
            "max_shared_memory_per_block": shared.per_block_bytes,
            "thread_warp_size": compute.warp_size,
        }
    ).with_host("llvm")


class DevicePart(NamedTuple):
    """The device functions of a lowered module, and the target that they are compiled for."""

    module: tvm.IRModule
    target: tvm.target.Target

    def compile_module(self) -> tvm.runtime.Module:
        """Compile the functions to a CUDA module of TVM; errors are TVM's."""
        return import_tvm().get_global_func("target.build.cuda")(self.module, self.target)


def lower_device_part(module: tvm.IRModule, target: tvm.target.Target, *, has_scalars: bool = False) -> DevicePart:
    """Lower a module with one kernel; no GPU, driver or NVIDIA compiler is needed.

    Loops marked for unrolling keep their pragma: the source stays short, and NVRTC unrolls them.

    Parameters
    ----------
    has_scalars : bool
        Whether the function also takes numbers. Expressions of them that several kernels or grids use then stay in
        place; as common subexpressions TVM would compute them on the CPU and pass each to the kernels as an argument.

    Raises
    ------
    BuildError
        TVM refuses the module; the message is the last line of TVM's.
    """
    tvm = import_tvm()
    from tvm import tirx
    from tvm.tirx.build import split_host_device_mods

    try:
        options: dict[str, object] = {"tirx.UnrollLoop": {"explicit_unroll": False, "auto_max_step": 0}}
        if has_scalars:
            options["tirx.disable_cse_tir"] = True
        with tvm.transform.PassContext(config=options):
            bound = tirx.transform.BindTarget(target)(module)
            pipeline, _, finalize_device = tirx.get_tir_pipeline(register_pipeline(tvm))
            _, devices = split_host_device_mods(pipeline(bound))
            ((device_target, device),) = devices.items()
            return DevicePart(finalize_device()(device), device_target)
    except TVM_ERRORS as error:
        raise BuildError(f"TVM cannot generate CUDA C: {last_line(error)}") from None


def generate_cuda_source(part: DevicePart) -> str:
    """Return the CUDA C that TVM generates for device functions.

    Raises
    ------
    BuildError
        TVM refuses the functions; the message is the last line of TVM's.
    """
    try:
        return str(part.compile_module().inspect_source())
    except TVM_ERRORS as error:
        raise BuildError(f"TVM cannot generate CUDA C: {last_line(error)}") from None


def convert_to_array(tensor: tvm.runtime.Tensor) -> NDArray[np.generic]:
    """Return a tensor as a NumPy array, without a copy if DLPack supports its dtype."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError):  # bool, in some versions; bfloat16
        array: NDArray[np.generic] = tensor.numpy()
        return array


def last_line(error: BaseException) -> str:
    """Return the last line of an error message: TVM prints the reason after its traces."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else repr(error)


def parse_program(text: str, llvm: str) -> tirx.PrimFunc:
    """Return the PrimFunc for a text in TVMScript; the name LL in it stands for the LLVM IR module `llvm`."""
    tvm = import_tvm()
    from tvm.script import tirx

    names = {"T": tirx, "LL": llvm}
    read = make_quick_reader(text)
    return tvm.script.from_source(text, names) if read is None else read(tvm, names)


def list_unlowered_operators(module: tvm.IRModule) -> list[str]:
    """Return the Relax operators of a module that ``LegalizeOps`` would turn into functions, in order."""
    tvm = import_tvm()
    from tvm import relax
    from tvm.relax.transform import legalize_ops  # noqa: F401 - it registers how

    operators: dict[str, None] = {}

    def visit(node: ir.Expr) -> None:
        operator = getattr(node, "op", None)
        if isinstance(operator, tvm.ir.Op) and operator.get_attr("FLegalize") is not None:
            operators[str(operator.name)] = None

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return list(operators)


def has_same_structure(first: tvm.runtime.Object, second: tvm.runtime.Object) -> bool:
    """Return whether two modules are equal except for names."""
    import tvm_ffi

    return bool(tvm_ffi.structural_equal(first, second, map_free_vars=True))


def schedule_of_module(module: tvm.IRModule) -> tvm.s_tir.Schedule:
    """Return a ``tvm.s_tir.Schedule`` of an IRModule."""
    tvm = import_tvm()
    return tvm.s_tir.Schedule(module)


def compile_module(module: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    """Compile an IRModule.

    Raises
    ------
    BuildError
        TVM or LLVM refuses it; the message is their last line.
    """
    tvm = import_tvm()
    try:
        return tvm.compile(module, target=target)
    except TVM_ERRORS as error:
        raise BuildError(f"TVM cannot compile the program: {last_line(error)}") from None


def build_measured(module: tvm.IRModule, target: tvm.target.Target, _params: object = None) -> tvm.runtime.Executable:
    """Build a candidate of MetaSchedule as its own builder does, without the intrinsics of other devices.

    Builder processes of MetaSchedule call this function; they need to import nothing else.
    Source: tvm.s_tir.meta_schedule.builder.local_builder, default_build.
    """
    tvm = import_tvm()
    from tvm.driver import build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=tvm.target.Target(target))

"""Everything that depends on TVM's version: imports, targets, compiling, the text of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anatune.core.hardware import CpuSpec
from anatune.errors import BuildError, MissingDependencyError

__all__ = [
    "PARTS_OF_ISA",
    "compile_module",
    "import_tvm",
    "link_library",
    "parse_program",
    "schedule_of_module",
    "target_of",
]

PARTS_OF_ISA: dict[str, tuple[str, str]] = {
    "avx512": ("x86_64-linux-gnu", "+avx512f,+avx512vl,+avx512bw,+avx512dq,+fma,+f16c"),
    "avx2": ("x86_64-linux-gnu", "+avx2,+fma,+f16c"),
    "avx": ("x86_64-linux-gnu", "+avx"),
    "sse": ("x86_64-linux-gnu", "+sse4.2"),
    "neon": ("aarch64-linux-gnu", "+neon"),
    "sve": ("aarch64-linux-gnu", "+neon"),
}
"""Instruction set -> (LLVM triple, features that are asked for beside the processor's own)."""


def import_tvm() -> Any:
    """Return the tvm package.

    Raises
    ------
    MissingDependencyError
        It is not installed, or a package it needs is of another version.
    """
    try:
        import tvm
        import tvm.s_tir
        import tvm.script
    except ImportError as error:
        raise MissingDependencyError(
            f"building kernels needs Apache TVM, which cannot be imported ({error}); "
            "install it with: pip install 'anatune[tvm]'"
        ) from None
    return tvm


def target_of(hardware: CpuSpec, *, threads: int = 1) -> Any:
    """Return the TVM target of a CPU spec: LLVM for its processor, its instruction set and triple."""
    import platform

    tvm = import_tvm()
    triple, features = PARTS_OF_ISA[hardware.compute.isa]
    options: dict[str, Any] = {"kind": "llvm", "mcpu": hardware.arch, "num-cores": threads}
    if not triple.startswith(platform.machine()) and not (platform.machine() == "arm64" and "aarch64" in triple):
        options["mtriple"] = triple
        options["mattr"] = features.split(",")
    return tvm.target.Target(options)


def parse_program(text: str, llvm: str) -> Any:
    """Return the PrimFunc that `text` (TVMScript) describes; the name LL in it is the LLVM IR module `llvm`."""
    tvm = import_tvm()
    from tvm.script import tirx

    return tvm.script.from_source(text, {"T": tirx, "LL": llvm})


def schedule_of_module(module: Any) -> Any:
    """Return a ``tvm.s_tir.Schedule`` of an IRModule."""
    tvm = import_tvm()
    return tvm.s_tir.Schedule(module)


def compile_module(module: Any, target: Any) -> Any:
    """Compile an IRModule.

    Raises
    ------
    BuildError
        TVM or LLVM refuses it; the message is the last line of theirs.
    """
    tvm = import_tvm()
    try:
        return tvm.compile(module, target=target)
    except (tvm.error.TVMError, RuntimeError, ValueError, TypeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BuildError(f"TVM cannot compile the program: {lines[-1].strip() if lines else error!r}") from None


def link_library(compiled: Any, path: Path) -> None:
    """Write what `compile_module` returned as a shared library.

    Raises
    ------
    BuildError
        There is no linker, or no space; the message is the last line of theirs.
    """
    try:
        compiled.export_library(str(path))
    except (RuntimeError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise BuildError(f"cannot link {path.name}: {lines[-1]}; is a C compiler (cc) installed?") from None

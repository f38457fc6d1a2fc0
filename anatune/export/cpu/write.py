"""Exporting a CPU schedule as a library with a plain C interface; linking and running it does not need TVM.

TVM's object file has the kernel with TVM's calling convention, and needs a few functions of TVM's runtime. A small C
file has those functions (memory, and OpenMP for parallel loops) and plain C entries. All other symbols are hidden, so
that one program can link many such libraries.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.compat import PARTS_OF_ISA, compile_module, list_features
from anatune.codegen.cpu.features import check_source, code_features
from anatune.codegen.cpu.lower import lower
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError
from anatune.export.cpu.entries import c_entries, runtime
from anatune.export.cpu.header import CFunction, CNeeds, c_functions, c_header
from anatune.files import replace_file, temporary_folder
from anatune.untyped import tvm

__all__ = ["CLibrary", "CProgram", "Tools", "find_tools", "write_c_library", "write_program"]


class CProgram(NamedTuple):
    """The content of a library.

    Attributes
    ----------
    schedule : Schedule
        The schedule, with the processor and the arithmetic.
    title : str
        The description of the workload.
    module, target
        The TVM module and target.
    functions : tuple of CFunction
        The C functions.
    symbols : tuple of str
        The functions of the module that `entries` call.
    entries : list of str
        The lines of C.
    is_parallel : bool
        Whether it has loops for several threads.
    more_codes : str
        The additional return codes, see `c_header`.
    """

    schedule: Schedule
    title: str
    module: tvm.IRModule
    target: tvm.target.Target
    functions: tuple[CFunction, ...]
    symbols: tuple[str, ...]
    entries: list[str]
    is_parallel: bool
    more_codes: str = ""


class CLibrary(NamedTuple):
    """A written library: file names, functions, requirements, and the arguments to link it."""

    library: str
    header: str
    functions: tuple[CFunction, ...]
    needs: CNeeds
    link: tuple[str, ...]


class Tools(NamedTuple):
    """The tools: the C compiler, objcopy (which hides symbols), and ar (for static libraries); "" if not needed."""

    compiler: str
    objcopy: str
    ar: str


def write_c_library(schedule: Schedule, name: str, folder: Path, *, threads: int, form: str = "so") -> CLibrary:
    """Write a library for C programs and ``<name>.h`` into `folder`.

    Parameters
    ----------
    schedule : Schedule
        A schedule of the template `cpu`. Another instruction set needs a cross compiler (aarch64-linux-gnu-gcc).
    name : str
        A C identifier: the function with all tensors in the workload's own layouts. If operands are packed in advance,
        ``<name>_pack_<tensor>`` packs one, and ``<name>_packed`` takes the packed form. ``<name>_supported`` returns
        whether the current processor can run them.
    folder : Path
        An existing folder.
    threads : int
        The threads of a parallel loop.
    form : {"so", "o", "a"}
        The form: ``lib<name>.so``, ``<name>.o`` or ``lib<name>.a``. Only these functions are visible outside.

    Raises
    ------
    BuildError
        The schedule cannot be lowered, compiled or linked.
    """
    if schedule.options.get("extension") == "amx":
        raise BuildError("schedules with AMX cannot be exported: programs have to ask Linux for tile registers first")
    tools = find_tools(form, schedule)
    lowered = lower(schedule, threads=threads)
    sizes, workspace = lowered.program.packed_sizes, lowered.program.workspace_bytes
    tensors = tuple(Buffer.of(access) for access in schedule.workload.tensors)
    functions = c_functions(name, tensors, sizes, workspace, "once")
    program = CProgram(
        schedule,
        schedule.workload.describe(),
        lowered.module,
        lowered.target,
        functions,
        ("main", *(f"pack_{function.arguments[0].tensor}" for function in functions[1:-1])),
        c_entries(functions),
        threads > 1 and bool(schedule.options.get("parallel", False)),
    )
    return write_program(program, name, folder, tools, form, threads)


def write_program(program: CProgram, name: str, folder: Path, tools: Tools, form: str, threads: int) -> CLibrary:
    """Compile and link a program, and write the library and its header; see `write_c_library` for the parameters.

    Raises
    ------
    BuildError
        The program cannot be compiled or linked.
    """
    schedule, functions = program.schedule, program.functions
    family = _family_of(schedule)
    openmp = _openmp_library(tools.compiler) if program.is_parallel else ""
    features = code_features(list_features(program.target), family)
    needs = CNeeds(schedule.hardware.arch, features, threads if program.is_parallel else 1, openmp)
    library = f"{name}.o" if form == "o" else f"lib{name}.{form}"
    others = [f"-l{openmp}", "-lpthread"] if openmp else []
    link = (f"-l{name}",) if form == "so" else (library, *others, "-lm")
    header = c_header(name, program.title, schedule, functions, needs, link, program.more_codes)
    check = check_source(features, family)
    start = runtime(name, check, threads, functions, program.symbols, openmp=program.is_parallel)
    executable = compile_module(program.module, program.target)
    with temporary_folder() as scratch:
        (scratch / f"{name}.h").write_text(header)
        (scratch / "c-entries.c").write_text("\n".join([*start, *program.entries]))  # no C identifier
        executable.mod.write_to_file(str(scratch / "of-tvm.o"), "o")
        _link(tools, scratch, name, library, openmp=program.is_parallel)
        for written in (scratch / library, scratch / f"{name}.h"):
            # replace the file instead of overwriting it, because a program may have the old library loaded
            replace_file(folder / written.name, written.read_bytes())
    return CLibrary(library, f"{name}.h", functions, needs, link)


def _link(tools: Tools, folder: Path, name: str, library: str, *, openmp: bool) -> None:
    """Link `library` from c-entries.c and of-tvm.o in a folder."""
    hidden, flags = f"{name}.o", ["-fopenmp"] * openmp
    compile_entries = [tools.compiler, "-O2", "-fPIC", *flags, "-c", "c-entries.c", "-o", "c-entries.o"]
    on_mac = [f"-Wl,-exported_symbol,_{name}", f"-Wl,-exported_symbol,_{name}_*"] * (sys.platform == "darwin")
    _run(compile_entries, folder)
    _run([tools.compiler, "-r", "-nostdlib", *on_mac, "c-entries.o", "of-tvm.o", "-o", hidden], folder)
    if tools.objcopy:
        kept = [f"--keep-global-symbol={name}", f"--keep-global-symbol={name}_*"]
        _run([tools.objcopy, "--wildcard", "--strip-debug", *kept, hidden], folder)
    if library.endswith(".so"):
        _run([tools.compiler, "-shared", *flags, hidden, "-o", library, "-lm"], folder)
    elif library.endswith(".a"):
        _run([tools.ar, "rcs", library, hidden], folder)


def _family_of(schedule: Schedule) -> str:
    """Return the family of a schedule's processor, "x86_64" or "aarch64".

    Raises
    ------
    BuildError
        The hardware is not a CPU.
    """
    hardware = schedule.hardware
    if hardware.kind != "cpu":
        raise BuildError(f"the schedule is for {hardware.name}, expected a CPU; export.cuda.write is for GPUs")
    return PARTS_OF_ISA[hardware.compute.isa][0].split("-")[0]


def find_tools(form: str, schedule: Schedule) -> Tools:
    """Return the tools that make a library for a schedule's processor.

    Raises
    ------
    BuildError
        A tool is missing, or the hardware is not a CPU.
    """
    family = _family_of(schedule)
    here = "aarch64" if platform.machine() == "arm64" else platform.machine()
    if family != here:
        triple = f"{family}-linux-gnu"
        missing = (
            f"{schedule.hardware.name} is a {family} processor, but this machine is {here} and has no cross compiler "
            f"({triple}-gcc with its binutils); install one, or export a TVM module with --format tvm"
        )
        return Tools(*(_find_tool((f"{triple}-{tool}",), missing) for tool in ("gcc", "objcopy", "ar")))
    missing = "no C compiler was found (cc, gcc, clang), which the export needs; install one"
    compiler = _find_tool(("cc", "gcc", "clang"), missing)
    if sys.platform == "darwin":  # the linker hides symbols
        objcopy = ""
    else:
        objcopy = _find_tool(("objcopy", "llvm-objcopy"), "no objcopy was found, which hides symbols; install binutils")
    ar = _find_tool(("ar", "llvm-ar"), "no ar was found; install binutils") if form == "a" else ""
    return Tools(compiler, objcopy, ar)


def _find_tool(names: Sequence[str], missing: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise BuildError(missing)


def _openmp_library(compiler: str) -> str:
    """Return the name of the OpenMP library of a compiler."""
    macros = subprocess.run([compiler, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True, check=False)
    return "omp" if "__clang__" in macros.stdout else "gomp"


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        message = (lines or done.stderr.splitlines() or [f"status {done.returncode}"])[0]
        raise BuildError(f"{Path(command[0]).name} failed to make the library: {message.strip()}")

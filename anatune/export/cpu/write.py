"""A schedule for other programs: a library with a plain C interface, or a TVM module.

Nothing of TVM is needed to link or run the library.

TVM's object file holds the kernel behind TVM's calling convention, and asks for a few functions of TVM's runtime. A
small C file, compiled with it, has those functions (memory, and OpenMP for parallel loops) and plain C entries. All
other symbols stay inside, so that one program may link many such libraries.
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

from anatune.codegen.compat import PARTS_OF_ISA, compile_module, features_of
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
    """What a library is made of.

    Attributes
    ----------
    schedule : Schedule
        Says which processor it is for, and the arithmetic.
    title : str
        What it computes.
    module, target
        TVM's.
    functions : tuple of CFunction
    symbols : tuple of str
        Functions of the module that `entries` call.
    entries : list of str
        Lines of C.
    is_parallel : bool
        Whether it has loops for several threads.
    more_codes : str
        As `c_header` takes them.
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
    """What was written: file names, the functions, what they need, words that link the library."""

    library: str
    header: str
    functions: tuple[CFunction, ...]
    needs: CNeeds
    link: tuple[str, ...]


class Tools(NamedTuple):
    """Programs: the C compiler, what hides symbols of an object, what makes a static library ("": not needed)."""

    compiler: str
    objcopy: str
    ar: str


def write_c_library(schedule: Schedule, name: str, folder: Path, *, threads: int, form: str = "so") -> CLibrary:
    """Write a library for C programs and ``<name>.h`` into `folder`.

    Parameters
    ----------
    schedule : Schedule
        Of the CPU template. For another machine's instruction set a cross compiler is needed (aarch64-linux-gnu-gcc).
    name : str
        A C identifier: the function with all tensors in the workload's own layouts. Where operands are packed ahead,
        ``<name>_pack_<tensor>`` packs one and ``<name>_packed`` takes the packed form; ``<name>_supported`` says
        whether the present processor can run them.
    folder : Path
        Must exist.
    threads : int
        Threads of a parallel loop.
    form : {"so", "o", "a"}
        ``lib<name>.so``, ``<name>.o`` or ``lib<name>.a``. Only the functions are visible outside.

    Raises
    ------
    BuildError
        It cannot be lowered, compiled or linked.
    """
    if schedule.options.get("extension") == "amx":
        raise BuildError("AMX: programs have to ask Linux for tile registers first, so that none is exported")
    tools = find_tools(form, schedule)
    lowered = lower(schedule, threads=threads)
    sizes, workspace = lowered.program.packed_sizes, lowered.program.workspace_bytes
    own = tuple(Buffer.of(access) for access in schedule.workload.tensors)
    functions = c_functions(name, own, sizes, workspace, "once")
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
    """Compile and link a program; write the library and its header; parameters as `write_c_library`.

    Raises
    ------
    BuildError
        It cannot be compiled or linked.
    """
    schedule, functions = program.schedule, program.functions
    family = _family_of(schedule)
    openmp = _openmp_library(tools.compiler) if program.is_parallel else ""
    features = code_features(features_of(program.target), family)
    needs = CNeeds(schedule.hardware.arch, features, threads if program.is_parallel else 1, openmp)
    library = f"{name}.o" if form == "o" else f"lib{name}.{form}"
    others = [f"-l{openmp}", "-lpthread"] if openmp else []
    link = (f"-l{name}",) if form == "so" else (library, *others, "-lm")
    header = c_header(name, program.title, schedule, functions, needs, link, program.more_codes)
    check = check_source(features, family)
    start = runtime(name, check, threads, functions, program.symbols, openmp=program.is_parallel)
    executable = compile_module(program.module, program.target)
    with temporary_folder() as place:
        (place / f"{name}.h").write_text(header)
        (place / "c-entries.c").write_text("\n".join([*start, *program.entries]))  # no C identifier, as the name is
        executable.mod.write_to_file(str(place / "of-tvm.o"), "o")
        _link(tools, place, name, library, openmp=program.is_parallel)
        for written in (place / library, place / f"{name}.h"):
            # Replaced, not overwritten: a program may have the old library loaded.
            replace_file(folder / written.name, written.read_bytes())
    return CLibrary(library, f"{name}.h", functions, needs, link)


def _link(tools: Tools, place: Path, name: str, library: str, *, openmp: bool) -> None:
    """Make `library` of c-entries.c and of-tvm.o, which lie in `place`."""
    hidden, flags = f"{name}.o", ["-fopenmp"] * openmp
    compile_entries = [tools.compiler, "-O2", "-fPIC", *flags, "-c", "c-entries.c", "-o", "c-entries.o"]
    on_mac = [f"-Wl,-exported_symbol,_{name}", f"-Wl,-exported_symbol,_{name}_*"] * (sys.platform == "darwin")
    _run(compile_entries, place)
    _run([tools.compiler, "-r", "-nostdlib", *on_mac, "c-entries.o", "of-tvm.o", "-o", hidden], place)
    if tools.objcopy:
        kept = [f"--keep-global-symbol={name}", f"--keep-global-symbol={name}_*"]
        _run([tools.objcopy, "--wildcard", "--strip-debug", *kept, hidden], place)
    if library.endswith(".so"):
        _run([tools.compiler, "-shared", *flags, hidden, "-o", library, "-lm"], place)
    elif library.endswith(".a"):
        _run([tools.ar, "rcs", library, hidden], place)


def _family_of(schedule: Schedule) -> str:
    """Return the family of a schedule's processor, "x86_64" or "aarch64".

    Raises
    ------
    BuildError
        It is no CPU.
    """
    hardware = schedule.hardware
    if hardware.kind != "cpu":
        raise BuildError(f"schedule is for {hardware.name}, expected a CPU; codegen.export_cuda writes those of GPUs")
    return PARTS_OF_ISA[hardware.compute.isa][0].split("-")[0]


def find_tools(form: str, schedule: Schedule) -> Tools:
    """Return the programs that make a library for a schedule's processor.

    Raises
    ------
    BuildError
        One is missing; it is no CPU.
    """
    family = _family_of(schedule)
    here = "aarch64" if platform.machine() == "arm64" else platform.machine()
    if family != here:
        triple = f"{family}-linux-gnu"
        missing = (
            f"{schedule.hardware.name} is a {family} machine, this one is {here}, and there is no cross compiler "
            f"({triple}-gcc with its binutils); install one, or --format tvm exports what TVM can compile there"
        )
        return Tools(*(_found((f"{triple}-{tool}",), missing) for tool in ("gcc", "objcopy", "ar")))
    missing = "no C compiler was found (cc, gcc, clang), which the library's entries need; install one"
    compiler = _found(("cc", "gcc", "clang"), missing)
    if sys.platform == "darwin":  # its linker hides symbols
        objcopy = ""
    else:
        objcopy = _found(("objcopy", "llvm-objcopy"), "no objcopy was found, which hides symbols; install binutils")
    ar = _found(("ar", "llvm-ar"), "no ar was found; install binutils") if form == "a" else ""
    return Tools(compiler, objcopy, ar)


def _found(names: Sequence[str], missing: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise BuildError(missing)


def _openmp_library(compiler: str) -> str:
    """Return the name of the OpenMP library that code of a compiler calls."""
    macros = subprocess.run([compiler, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True, check=False)
    return "omp" if "__clang__" in macros.stdout else "gomp"


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        said = (lines or done.stderr.splitlines() or [f"status {done.returncode}"])[0]
        raise BuildError(f"{Path(command[0]).name} cannot make the library: {said.strip()}")

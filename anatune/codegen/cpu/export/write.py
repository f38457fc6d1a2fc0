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

from anatune.codegen.arithmetic import arithmetic_of
from anatune.codegen.compat import PARTS_OF_ISA, TvmObject, compile_module, features_of
from anatune.codegen.cpu.export.entries import c_entries
from anatune.codegen.cpu.export.features import check_source, code_features
from anatune.codegen.cpu.export.header import CFunction, CNeeds, c_header
from anatune.codegen.cpu.lower import LoweredCpu, lower
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError
from anatune.files import replace_file, temporary_folder

__all__ = [
    "CLibrary",
    "Tools",
    "device_of",
    "family_of",
    "find_tools",
    "names_of",
    "needs_of",
    "write_c_library",
    "write_files",
]


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
    family = family_of(schedule)
    tools = find_tools(form, schedule, family)
    lowered = lower(schedule, threads=threads)
    parallel = threads > 1 and bool(schedule.options.get("parallel", False))
    functions = _functions(lowered, name)
    needs = needs_of(schedule, lowered.target, tools, threads if parallel else 1)
    library, link = names_of(name, form, needs)
    header = c_header(
        schedule.workload.describe(), device_of(schedule), name, functions, arithmetic_of(schedule), needs, link
    )
    source = c_entries(name, functions, check_source(needs.features, family), threads, openmp=parallel)
    write_files(compile_module(lowered.module, lowered.target), source, header, name, folder, tools, library, needs)
    return CLibrary(library, f"{name}.h", functions, needs, link)


def needs_of(schedule: Schedule, target: TvmObject, tools: Tools, threads: int) -> CNeeds:
    """Return what code for a schedule's processor needs; `threads` of its parallel loops, 1: it has none."""
    features = code_features(features_of(target), family_of(schedule))
    return CNeeds(schedule.hardware.arch, features, threads, _openmp_library(tools.compiler) if threads > 1 else "")


def device_of(schedule: Schedule) -> str:
    """Return the processor in words."""
    return f"{schedule.hardware.name} ({schedule.hardware.arch})"


def names_of(name: str, form: str, needs: CNeeds) -> tuple[str, tuple[str, ...]]:
    """Return the library's file name, and the words that link it."""
    library = f"{name}.o" if form == "o" else f"lib{name}.{form}"
    others = [f"-l{needs.openmp}", "-lpthread"] if needs.openmp else []
    return library, (f"-l{name}",) if form == "so" else (library, *others, "-lm")


def write_files(
    executable: TvmObject,
    source: str,
    header: str,
    name: str,
    folder: Path,
    tools: Tools,
    library: str,
    needs: CNeeds,
) -> None:
    """Compile and link; write the library and its header into `folder`.

    Raises
    ------
    BuildError
        It cannot be compiled or linked.
    """
    with temporary_folder() as place:
        (place / f"{name}.h").write_text(header)
        (place / "c-entries.c").write_text(source)  # no C identifier, as the library's name is
        executable.mod.write_to_file(str(place / "of-tvm.o"), "o")
        _link(tools, place, name, library, openmp=bool(needs.openmp))
        for written in (place / library, place / f"{name}.h"):
            # Replaced, not overwritten: a program may have the old library loaded.
            replace_file(folder / written.name, written.read_bytes())


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


def family_of(schedule: Schedule) -> str:
    """Return the family of a schedule's processor, "x86_64" or "aarch64".

    Raises
    ------
    BuildError
        It is no CPU.
    """
    hardware = schedule.hardware
    if not isinstance(hardware, CpuSpec):
        raise BuildError(f"schedule is for {hardware.name}, expected a CPU; codegen.export_cuda writes those of GPUs")
    return PARTS_OF_ISA[hardware.compute.isa][0].split("-")[0]


def find_tools(form: str, schedule: Schedule, family: str) -> Tools:
    """Return the programs that make a library for processors of `family`.

    Raises
    ------
    BuildError
        One is missing.
    """
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


def _functions(lowered: LoweredCpu, name: str) -> tuple[CFunction, ...]:
    workload, sizes = lowered.schedule.workload, lowered.program.packed_sizes
    tensors = workload.tensors
    own = tuple(Buffer.of(access) for access in tensors)
    workspace = lowered.program.workspace_bytes
    copies = sum(sizes[t.tensor] * DTYPE_BYTES[t.dtype] for t in own if t.tensor in sizes)
    functions = [CFunction(name, "all tensors in the workload's own layouts", own, workspace + copies)]
    if sizes:
        packed = {t.tensor: Buffer(f"{t.tensor}_packed", t.dtype, (sizes[t.tensor],)) for t in own if t.tensor in sizes}
        functions += [
            CFunction(f"{name}_pack_{t.tensor}", f"packs {t.tensor}, once", (t, packed[t.tensor]))
            for t in own
            if t.tensor in sizes
        ]
        arguments = tuple(packed.get(buffer.tensor, buffer) for buffer in own)
        functions.append(CFunction(f"{name}_packed", "the same with packed constants", arguments, workspace))
    return tuple(functions)

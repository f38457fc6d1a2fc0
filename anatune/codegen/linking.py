"""Linking: compiled modules become object files and shared libraries."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from anatune.codegen.compat import TVM_ERRORS, import_tvm, last_line
from anatune.errors import BuildError
from anatune.files import scratch_folder
from anatune.untyped import tirx, tvm

__all__ = ["link_library", "link_objects", "load_static_object", "object_of"]

_OBJECT_BYTES = 1 << 22
"""Size that is larger than any object file of a function: LLVM ends the process if it cannot write."""


def object_of(symbol: str, function: tirx.PrimFunc, target: tvm.target.Target, pipeline: str) -> bytes:
    """Compile a function to an object file.

    The function does not check its arguments, which would take longer to compile than many kernels: its callers are
    built together with it. Functions that contain assertions keep them. There is no entry for programs (`main`), which
    LLVM would optimise as well.

    Parameters
    ----------
    symbol : str
        Name of the function in the object file.
    pipeline : str
        Name of a pipeline of TVM passes.

    Raises
    ------
    BuildError
        TVM refuses the function (the message is the last line of TVM's), or the disk is full.
    """
    tvm = import_tvm()
    import tvm_ffi

    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    folder = scratch_folder(BuildError, _OBJECT_BYTES)
    try:
        asserts: list[object] = []
        tvm_ffi.structural_walk(function.body, (tvm.tirx.AssertStmt, asserts.append))
        settings = {"tirx.disable_assert": not asserts}
        with tvm.transform.PassContext(config=settings, disabled_pass=["tirx.AnnotateEntryFunc"]):
            file = folder / "function.o"
            tvm.tirx.build(module, target=target, pipeline=pipeline).write_to_file(str(file), "o")
            return file.read_bytes()
    except (*TVM_ERRORS, OSError) as error:
        raise BuildError(last_line(error)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_static_object(file: Path, symbol: str) -> tvm.runtime.Module:
    """Return an object file with one function as a TVM module that others can import."""
    import_tvm()
    from tvm.runtime.module import load_static_library

    return load_static_library(str(file), [symbol])


@cache
def _find_linker(prefix: str = "") -> tuple[str, ...]:
    """Return the first words of a call of the linker itself; () if the C compiler has to call it.

    The linker alone takes 3 ms of CPU time, with gcc's driver 15 (2026-11, Zen 4). LLVM's objects need none of C's
    start files, and only those libraries that every Python process has loaded, except for libgcc's conversions.

    Parameters
    ----------
    prefix : str
        Prefix of the tools' names for another processor.
    """
    linker, compiler = shutil.which(f"{prefix}ld"), shutil.which(f"{prefix}gcc")
    if not sys.platform.startswith("linux") or linker is None or compiler is None:
        return ()
    answer = subprocess.run([compiler, "-print-libgcc-file-name"], capture_output=True, text=True, check=False)
    library = answer.stdout.strip()
    return (linker, "-shared", "--eh-frame-hdr", library) if Path(library).is_file() else ()


_ELF_MACHINES = {0x3E: ("x86_64", "elf_x86_64"), 0xB7: ("aarch64", "aarch64linux")}
"""Number of a processor in ELF files -> (its name in names of tools, its name for ld.lld)."""


def _elf_machine(path: str) -> int:
    """Return the number of the processor that an object file is for; 0 if it is no ELF file."""
    with open(path, "rb") as file:
        header = file.read(20)
    return int.from_bytes(header[18:20], "little") if header[:4] == b"\x7fELF" else 0


def _link_across(output: str, objects: list[str], machine: int, aliases: Sequence[str]) -> None:
    """Link objects for another processor; `aliases` are options of the linker."""
    name, emulation = _ELF_MACHINES.get(machine, ("", ""))
    prefix = f"{name}-linux-gnu-"
    if linker_words := _find_linker(prefix):
        start, *first, library = linker_words
        words = [start, *first, "-o", output, *aliases, *objects, library]
    elif lld := shutil.which("ld.lld"):
        words = [lld, "-m", emulation, "-shared", "--eh-frame-hdr", "-o", output, *aliases, *objects]
    else:
        raise BuildError(
            f"linking for {name} needs a cross linker: {prefix}ld with {prefix}gcc, or ld.lld; install "
            f"gcc-{name.replace('_', '-')}-linux-gnu (Debian), or lld"
        )
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{Path(words[0]).name} cannot link for {name}: {last_line(RuntimeError(result.stderr))}")


def _link(output: str, objects: list[str], aliases: Sequence[str], options: Sequence[str]) -> None:
    """Link objects as TVM's `create_shared` does, but faster where possible, and also for other processors.

    Parameters
    ----------
    aliases, options
        Words for the linker, and for a C compiler.
    """
    machine = _elf_machine(objects[0])
    if machine in _ELF_MACHINES and _ELF_MACHINES[machine][0] != _find_present_machine():
        _link_across(output, objects, machine, aliases)
        return
    if _find_linker():
        start, *first, library = _find_linker()
        words = [start, *first, "-o", output, *aliases, *objects, library]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return
    from tvm.support.cc import create_shared, get_cc

    if get_cc() is None and sys.platform != "win32":
        raise BuildError(
            "no C compiler is found (gcc, clang or cc in PATH, or the variable CC), linking needs one; install one, "
            "on Debian with apt-get install gcc, from conda-forge as gxx"
        )
    create_shared(output, objects, options=[*options, *(f"-Wl,{word}" for word in aliases)])


def _find_present_machine() -> str:
    """Return the processor that the ELF files of this system are for."""
    import platform

    return platform.machine() if sys.platform.startswith("linux") else ""


def link_library(
    compiled: tvm.runtime.Executable, path: Path, aliases: Mapping[str, str] = MappingProxyType({}), triple: str = ""
) -> None:
    """Write the result of `compile_module` as a shared library.

    Parameters
    ----------
    aliases : mapping of str to str
        Further name of a symbol -> the symbol.
    triple : str
        LLVM's triple of the processor and system; only if all code is in object files.

    Raises
    ------
    BuildError
        There is no linker, or the disk is full; the message is the linker's last line.
    """
    words = _alias_options(aliases)

    def link(output: str, objects: list[str], options: Sequence[str] = ()) -> None:
        _link(output, objects, words, options)

    if triple:
        link.get_target_triple = lambda: triple  # type: ignore[attr-defined]
    with _report_linker_errors(path):
        compiled.export_library(str(path), fcompile=link)


def link_objects(objects: list[str], path: Path, aliases: Mapping[str, str]) -> None:
    """Link object files; `aliases` and errors as in `link_library`."""
    with _report_linker_errors(path):
        _link(str(path), objects, _alias_options(aliases), ())


def _alias_options(aliases: Mapping[str, str]) -> list[str]:
    return [f"--defsym={name}={symbol}" for name, symbol in aliases.items()]


@contextlib.contextmanager
def _report_linker_errors(path: Path) -> Iterator[None]:
    """Raise a linker's error as a BuildError of one line."""
    try:
        yield
    except BuildError:
        raise
    except (RuntimeError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        messages = [line for line in lines if not line.startswith("Command line:")] or [type(error).__name__]
        full = next((line for line in lines if "no space left" in line.lower()), None)
        advice = "is a C compiler (cc) installed?"
        if full is not None:
            advice = f"free some space in {path.parent}, or set TMPDIR to another folder"
        raise BuildError(f"cannot link {path.name}: {full or messages[-1]}; {advice}") from None

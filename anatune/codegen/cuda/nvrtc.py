"""Compilation of CUDA C to cubins in this process, and the assembler's facts; neither a GPU nor nvcc is needed.

Only `FLAGS` determines how kernels are compiled. Kernels that are measured, exported and inspected all go through
`compile_cuda`, so that the reported registers and spills are those of the kernel that runs.
"""

from __future__ import annotations

import functools
import re
import struct
from importlib import metadata
from typing import Any

import msgspec

from anatune.core.compiler_facts import CompilerFacts
from anatune.errors import BuildError, MissingDependencyError
from anatune.requirements import pip_line

FLAGS: tuple[str, ...] = ("--std=c++17", "-default-device", "--minimal", "--disable-warnings", "--ptxas-options=-v")
"""Options beside the architecture. There is no fast math: divisions and functions of epilogues are rounded as in the
float64 reference; multiply-adds are contracted by default. Everything else (optimisation level, register usage) has the
compiler's defaults. --minimal leaves textures and the runtime's types out of the language, which saves 12 ms a kernel;
-v makes the assembler print its facts."""

_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")
_FIRST_SPECIFIC = 90
"""First architecture with specific features, requested as sm_90a. Source: [CUDA-guide] compute capabilities."""
_PACKAGES = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
_MESSAGE_CHARACTERS = 200


class Cubin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled kernel. Immutable.

    Attributes
    ----------
    name, arch : str
        Name of the kernel's function, and its architecture ("sm_86").
    image : bytes
        The cubin, which a driver can load.
    facts : CompilerFacts
        The assembler's facts about the kernel.
    log : str
        Output of the compiler, without times.
    threads, dynamic_shared_bytes : int or None
        Threads of a block, and shared memory that the launch requests, if the compiler chooses them (Triton).
    scratch_bytes : int or None
        See `templates.gpu.kernel.Launch`.
    """

    name: str
    arch: str
    image: bytes
    facts: CompilerFacts
    log: str = ""
    threads: int | None = None
    dynamic_shared_bytes: int | None = None
    scratch_bytes: int | None = None


def import_nvrtc() -> Any:
    """Import and return NVIDIA's bindings of NVRTC, and load the compiler's library.

    Raises
    ------
    MissingDependencyError
        The bindings or the compiler's library are not installed.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise MissingDependencyError(
            f"compiling CUDA C needs NVIDIA's bindings, which cannot be imported ({error}); install them with: "
            f"{pip_line('cuda')}"
        ) from None
    try:
        _check_status(nvrtc, nvrtc.nvrtcVersion(), "nvrtcVersion")
    except (RuntimeError, OSError) as error:  # the bindings load the library at the first call
        reason = (str(error).splitlines() or [type(error).__name__])[0][:_MESSAGE_CHARACTERS]
        raise MissingDependencyError(
            f"the compiler NVRTC cannot be loaded ({reason}); install it with: {pip_line('cuda')}"
        ) from None
    return nvrtc


def _check_status(nvrtc: Any, answer: tuple[Any, ...], function: str) -> tuple[Any, ...]:
    """Return the values of a call of the bindings, without its status.

    Raises
    ------
    BuildError
        The status is an error.
    """
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC: {function} failed with {status.name}")
    return tuple(values)


@functools.cache
def compiler_release() -> tuple[int, int]:
    """Return the compiler's version, for example (12, 9); raise MissingDependencyError without a compiler."""
    nvrtc = import_nvrtc()
    major, minor = _check_status(nvrtc, nvrtc.nvrtcVersion(), "nvrtcVersion")
    return int(major), int(minor)


@functools.cache
def compiler_version() -> str:
    """Return the compiler's name and version, "NVRTC 12.9 (12.9.86)", with the package's release if there is one.

    Raises
    ------
    MissingDependencyError
        The compiler is not installed.
    """
    major, minor = compiler_release()
    for package in _PACKAGES:
        try:
            release = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if release.startswith(f"{major}.{minor}."):
            return f"NVRTC {major}.{minor} ({release})"
    return f"NVRTC {major}.{minor}"


@functools.cache
def known_archs() -> tuple[str, ...]:
    """Return the architectures that the installed compiler knows, oldest first: "sm_50", ..., "sm_121".

    Raises
    ------
    MissingDependencyError
        The compiler is not installed.
    """
    nvrtc = import_nvrtc()
    (numbers,) = _check_status(nvrtc, nvrtc.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")
    return tuple(f"sm_{number}" for number in sorted(numbers))


def check_arch(arch: str) -> None:
    """Raise BuildError if the compiler does not know `arch`; "sm_90a" counts as "sm_90"."""
    match = _ARCH.fullmatch(arch)
    archs = known_archs()
    if match is None:
        raise BuildError(f"arch {arch!r} is no NVIDIA GPU's, expected one such as sm_86; {_list_known(archs)}")
    number = int(match[1])
    if f"sm_{number}" in archs and not (match[2] and number < _FIRST_SPECIFIC):
        return
    step = "choose one of these"
    if number < int(archs[0][3:]):
        step = "install an older cuda-bindings and NVRTC for it"
    elif number > int(archs[-1][3:]):
        step = "install a newer cuda-bindings and NVRTC for it"
    raise BuildError(f"arch {arch} is unknown to this compiler; {_list_known(archs)}; {step}")


def _list_known(archs: tuple[str, ...]) -> str:
    return f"{compiler_version()} knows {', '.join(archs)}"


def compile_cuda(source: str, arch: str, *, name: str = "main_kernel") -> Cubin:
    """Compile CUDA C without includes.

    Parameters
    ----------
    source : str
        The source, with one ``extern "C" __global__`` function.
    arch : str
        Architecture: "sm_86"; "sm_90a" for features that only this architecture has.
    name : str
        Name of the function.

    Returns
    -------
    Cubin
        The result is the same for the same source and compiler, except for a few kernels to which NVRTC 12.9.86
        sometimes gives two registers more (depthwise convolutions, once in eight calls).

    Raises
    ------
    BuildError
        The compiler does not know the architecture, or refuses the source; the message is its first error.
    MissingDependencyError
        The compiler is not installed.
    """
    nvrtc = import_nvrtc()
    check_arch(arch)
    options = [f"--gpu-architecture={arch}".encode(), *(flag.encode() for flag in FLAGS)]
    (program,) = _check_status(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []), "nvrtcCreateProgram"
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        (size,) = _check_status(nvrtc, nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        text = bytearray(size)
        _check_status(nvrtc, nvrtc.nvrtcGetProgramLog(program, text), "nvrtcGetProgramLog")
        log = re.sub(r".*Compile time.*\n?", "", text.decode(errors="replace").replace("\0", "")).strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(f"NVRTC refuses {name} for {arch}: {_first_error(log) or status.name}")
        (size,) = _check_status(nvrtc, nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        image = bytearray(size)
        _check_status(nvrtc, nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(name, arch, bytes(image), parse_log(log, name, code_bytes=code_size(bytes(image), name)), log)


def _first_error(log: str) -> str:
    """Return the first error in a compiler's log, with single blanks."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
    return (errors or lines or [""])[0][:_MESSAGE_CHARACTERS]


def parse_log(log: str, name: str, *, code_bytes: int = 0) -> CompilerFacts:
    """Read the assembler's facts about the kernel `name` from the compiler's log.

    Raises
    ------
    BuildError
        The log contains no such kernel.
    """
    start = re.search(rf"Compiling entry function '{re.escape(name)}'", log)
    text = log[start.end() :] if start else ""
    following = text.find("Compiling entry function")
    text = text if following < 0 else text[:following]
    registers = re.search(r"Used (\d+) registers", text)
    if registers is None:
        raise BuildError(f"NVRTC's log does not mention a kernel {name!r}; expected the name of the source's function")

    def number(words: str) -> int:
        match = re.search(rf"(\d+) bytes {words}", text)
        return int(match[1]) if match else 0

    return CompilerFacts(
        registers=int(registers[1]),
        shared_bytes=number("smem"),
        spill_bytes=number("spill stores"),
        spill_load_bytes=number("spill loads"),
        local_bytes=number("stack frame"),
        code_bytes=code_bytes,
    )


def code_size(image: bytes, name: str) -> int:
    """Return the size of a kernel's machine code in a cubin (a 64-bit little-endian ELF file), bytes; 0 if none."""
    if image[:6] != b"\x7fELF\x02\x01":
        return 0
    (table,) = struct.unpack_from("<Q", image, 40)
    entry_bytes, count, names_at = struct.unpack_from("<HHH", image, 58)
    # a section header: name (4 bytes), type (4), flags, address, offset, size (8 each)
    sections = [struct.unpack_from("<II4Q", image, table + entry_bytes * index) for index in range(count)]
    names = sections[names_at][4]
    wanted = f".text.{name}\0".encode()
    for section in sections:
        position = names + section[0]
        if image[position : position + len(wanted)] == wanted:
            return int(section[5])
    return 0

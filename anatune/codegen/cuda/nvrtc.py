"""CUDA C to cubins in this process, and what the assembler says about them: neither a GPU nor nvcc is needed.

`FLAGS` is the only place that says how kernels are compiled. What is measured, exported and inspected goes through
`compile_cuda`, so registers and spills that are read are those of the kernel that runs.
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
"""Beside the architecture. No fast math: divisions and functions of epilogues round as in float64's reference, and
multiply-adds are contracted by default. Everything else (optimisation level, register usage) is left to the compiler's
defaults. --minimal leaves textures and the runtime's types out of the language, which saves 12 ms a kernel; -v is what
makes the assembler tell its facts."""

_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")
_FIRST_SPECIFIC = 90
"""First architecture that has features of its own, asked for as sm_90a. Source: [CUDA-guide] compute capabilities."""
_PACKAGES = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
_MESSAGE_CHARACTERS = 200


class Cubin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One compiled kernel. Immutable.

    Attributes
    ----------
    name, arch : str
        The kernel's function; what it was compiled for ("sm_86").
    image : bytes
        The cubin: what a driver loads.
    facts : CompilerFacts
        What the assembler says about it.
    log : str
        What the compiler said, without how long it took.
    threads, dynamic_shared_bytes : int or None
        Threads of a block, and shared memory that the launch asks for, where the compiler chooses them (Triton's).
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
    """Return NVIDIA's bindings of NVRTC, with the compiler's library loaded.

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
        _check(nvrtc, nvrtc.nvrtcVersion(), "nvrtcVersion")
    except (RuntimeError, OSError) as error:  # bindings load the library at the first call
        reason = (str(error).splitlines() or [type(error).__name__])[0][:_MESSAGE_CHARACTERS]
        raise MissingDependencyError(
            f"the compiler NVRTC cannot be loaded ({reason}); install it with: {pip_line('cuda')}"
        ) from None
    return nvrtc


def _check(nvrtc: Any, answer: tuple[Any, ...], function: str) -> tuple[Any, ...]:
    """Return what a call of the bindings returned behind its status.

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
    """Return the compiler's version, (12, 9); MissingDependencyError if there is no compiler."""
    nvrtc = import_nvrtc()
    major, minor = _check(nvrtc, nvrtc.nvrtcVersion(), "nvrtcVersion")
    return int(major), int(minor)


@functools.cache
def compiler_version() -> str:
    """Return what compiles: "NVRTC 12.9 (12.9.86)", with the release of the package where it is one.

    Raises
    ------
    MissingDependencyError
        There is no compiler.
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
        There is no compiler.
    """
    nvrtc = import_nvrtc()
    (numbers,) = _check(nvrtc, nvrtc.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")
    return tuple(f"sm_{number}" for number in sorted(numbers))


def check_arch(arch: str) -> None:
    """Raise BuildError if the compiler does not know `arch`; "sm_90a" counts as sm_90's."""
    match = _ARCH.fullmatch(arch)
    known = known_archs()
    if match is None:
        raise BuildError(f"arch {arch!r} is no NVIDIA GPU's, expected one such as sm_86; {_known_text(known)}")
    number = int(match[1])
    if f"sm_{number}" in known and not (match[2] and number < _FIRST_SPECIFIC):
        return
    step = "name one of these"
    if number < int(known[0][3:]):
        step = "install an older cuda-bindings and NVRTC for it"
    elif number > int(known[-1][3:]):
        step = "install a newer cuda-bindings and NVRTC for it"
    raise BuildError(f"arch {arch} is unknown to this compiler; {_known_text(known)}; {step}")


def _known_text(known: tuple[str, ...]) -> str:
    return f"{compiler_version()} knows {', '.join(known)}"


def compile_cuda(source: str, arch: str, *, name: str = "main_kernel") -> Cubin:
    """Compile CUDA C that includes nothing.

    Parameters
    ----------
    source : str
        With one ``extern "C" __global__`` function.
    arch : str
        "sm_86"; "sm_90a" for what only that architecture has.
    name : str
        The function.

    Returns
    -------
    Cubin
        The same for the same input and compiler, but for a few kernels: NVRTC 12.9.86 now and then gives one of them
        two registers more (depthwise convolutions, once in eight calls).

    Raises
    ------
    BuildError
        The compiler does not know the architecture, or refuses the source: the message is its first error.
    MissingDependencyError
        There is no compiler.
    """
    nvrtc = import_nvrtc()
    check_arch(arch)
    options = [f"--gpu-architecture={arch}".encode(), *(flag.encode() for flag in FLAGS)]
    (program,) = _check(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []), "nvrtcCreateProgram"
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        (size,) = _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        text = bytearray(size)
        _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, text), "nvrtcGetProgramLog")
        log = re.sub(r".*Compile time.*\n?", "", text.decode(errors="replace").replace("\0", "")).strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(f"NVRTC refuses {name} for {arch}: {_first_error(log) or status.name}")
        (size,) = _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        image = bytearray(size)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(name, arch, bytes(image), parse_log(log, name, code_bytes=code_size(bytes(image), name)), log)


def _first_error(log: str) -> str:
    """Return the first error of a compiler's log, without the blanks between its words."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
    return (errors or lines or [""])[0][:_MESSAGE_CHARACTERS]


def parse_log(log: str, name: str, *, code_bytes: int = 0) -> CompilerFacts:
    """Read the assembler's facts about the kernel `name` from the compiler's log.

    Raises
    ------
    BuildError
        The log does not tell about such a kernel.
    """
    start = re.search(rf"Compiling entry function '{re.escape(name)}'", log)
    text = log[start.end() :] if start else ""
    following = text.find("Compiling entry function")
    text = text if following < 0 else text[:following]
    registers = re.search(r"Used (\d+) registers", text)
    if registers is None:
        raise BuildError(f"NVRTC's log tells nothing about a kernel {name!r}; is that the source's function?")

    def number(words: str) -> int:
        found = re.search(rf"(\d+) bytes {words}", text)
        return int(found[1]) if found else 0

    return CompilerFacts(
        registers=int(registers[1]),
        shared_bytes=number("smem"),
        spill_bytes=number("spill stores"),
        spill_load_bytes=number("spill loads"),
        local_bytes=number("stack frame"),
        code_bytes=code_bytes,
    )


def code_size(image: bytes, name: str) -> int:
    """Return the bytes of machine code of the kernel `name` in a cubin, a 64-bit little-endian ELF file; 0 if none."""
    if image[:6] != b"\x7fELF\x02\x01":
        return 0
    (table,) = struct.unpack_from("<Q", image, 40)
    entry_bytes, count, names_at = struct.unpack_from("<HHH", image, 58)
    # a section header: name (4 bytes), type (4), flags, address, offset, size (8 each)
    sections = [struct.unpack_from("<II4Q", image, table + entry_bytes * index) for index in range(count)]
    names = sections[names_at][4]
    wanted = f".text.{name}\0".encode()
    for section in sections:
        at = names + section[0]
        if image[at : at + len(wanted)] == wanted:
            return int(section[5])
    return 0

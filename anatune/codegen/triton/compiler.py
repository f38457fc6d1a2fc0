"""Compilation of Triton kernels to machine code, for GPUs that need not be present.

A failing pass prints its whole program to standard error, and a defect of the compiler may end the process. This code
therefore runs in builder processes (`anatune.measure.run.build_processes`), never in the user's process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import warnings
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from anatune.codegen.cuda.build_cache import BuildCache, default_folder
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.triton.facts import read_amd_facts, read_nvidia_facts
from anatune.core.hardware.spec import GpuSpec
from anatune.emit.buffer import Buffer
from anatune.errors import AnatuneError, BuildError, MissingDependencyError, SpaceError, no_scratch
from anatune.files import temporary_folder
from anatune.named import import_optional
from anatune.requirements import pip_line
from anatune.templates.gpu.kernel import SCRATCH_ALIGNMENT
from anatune.templates.triton.instructions import TENSOR_COLUMNS
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

FLAGS: tuple[str, ...] = ("disable_line_info",)
"""Settings beside a kernel's own options: no positions in source files, which differ from build to build."""

_VERSIONS = ((3, 7), (3, 10))
"""First version with the launches, metadata and options that are used here, and first version that was not tested."""
_ARCH = re.compile(r"sm_(\d{2,3})[af]?")
_TYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
    "int8": "i8", "int16": "i16", "uint8": "u8", "int32": "i32", "int64": "i64", "bool": "i1",
    "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_ALIGNMENT = 16
"""Alignment of every pointer, bytes."""
_MESSAGE_CHARACTERS = 200
_PATH = re.compile(r"^\S*?\.py:(\d+):\d+: ")


@functools.cache
def compiler_version() -> str:
    """Return the compiler's name and version: "Triton 3.9.0".

    Raises
    ------
    MissingDependencyError
        Triton is not installed, or its version was not tested.
    """
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        raise MissingDependencyError(
            f"compiling schedules of the template triton needs Triton, which is not installed; {pip_line('triton')}"
        ) from None
    number = tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
    least, beyond = (".".join(map(str, one)) for one in _VERSIONS)
    if not _VERSIONS[0] <= number < _VERSIONS[1]:
        raise MissingDependencyError(
            f"Triton is {version}, expected >={least},<{beyond} to compile schedules; pip install 'triton>={least},"
            f"<{beyond}'"
        )
    return f"Triton {version}"


def check_target(hardware: GpuSpec) -> None:
    """Raise an error if nothing can be compiled for a device.

    Raises
    ------
    BuildError
        The device is neither from NVIDIA nor from AMD.
    MissingDependencyError
        As in `compiler_version`.
    """
    compiler_version()
    _describe_target(hardware)


def pointer_type(dtype: str) -> str:
    """Return Triton's name of a pointer to elements of a dtype: "*fp16"."""
    return f"*{_TYPES[dtype]}"


def compile_kernel(
    program: TritonProgram, kernel: TritonKernel, hardware: GpuSpec, cache: BuildCache | None = None
) -> Cubin:
    """Compile one kernel of a program, or read its machine code from the cache.

    Parameters
    ----------
    program, kernel
        A module, and one of its functions.
    hardware : GpuSpec
        The device, which need not be present.
    cache : BuildCache, optional
        The cache; by default the user's own.

    Returns
    -------
    Cubin
        Its image is a cubin, or an hsaco for AMD GPUs.

    Raises
    ------
    BuildError
        Triton refuses the kernel; the message is its first error.
    MissingDependencyError
        As in `compiler_version`.
    """
    cache = BuildCache(default_folder()) if cache is None else cache
    key = _key(program, kernel, hardware)
    image = cache.load(key)
    if image is None:
        image = _compile(program, kernel, hardware)
        cache.store(key, image)
    return image


def _key(program: TritonProgram, kernel: TritonKernel, hardware: GpuSpec) -> str:
    """Return the hash of everything that an image depends on: source, function, device, options, Triton's version."""
    description = msgspec.json.encode(kernel, order="sorted").decode()
    warp = str(hardware.compute.warp_size)
    parts = ("3", program.source, description, hardware.arch, warp, *FLAGS, compiler_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _describe_target(hardware: GpuSpec) -> tuple[str, int | str, int]:
    """Return Triton's description of a device: back end, architecture, threads of a warp."""
    match = _ARCH.fullmatch(hardware.arch)
    if match is not None:
        return "cuda", int(match[1]), hardware.compute.warp_size
    if hardware.arch.startswith("gfx"):
        return "hip", hardware.arch, hardware.compute.warp_size
    raise BuildError(
        f"{hardware.name}: arch {hardware.arch!r} is neither NVIDIA's nor AMD's, expected one such as sm_90 or gfx942"
    )


def _compile(program: TritonProgram, kernel: TritonKernel, hardware: GpuSpec) -> Cubin:
    """Compile a kernel with Triton in temporary folders."""
    target = _describe_target(hardware)
    log_start = _stderr_position()
    log = io.StringIO()
    try:
        with temporary_folder() as folder, _apply_settings(folder), contextlib.redirect_stdout(log):
            function = getattr(_import_program(program, folder), kernel.name)
            built = _build(function, kernel, target)
    except (AnatuneError, MemoryError):
        raise
    except OSError as error:
        raise BuildError(no_scratch(error)) from None
    except Exception as error:  # noqa: BLE001  Triton raises errors of many kinds; each is the kernel's outcome
        message = f"{error}\n{error.__cause__ or ''}"  # an error in a function contains only its location
        raise BuildError(
            f"Triton refuses {kernel.name} for {hardware.arch}: {_first_error(message, _read_stderr(log_start))}"
        ) from None
    return _make_image(built, log.getvalue(), kernel, hardware)


def _import_program(program: TritonProgram, folder: Path) -> ModuleType:
    """Return a program's module, imported from a file, because Triton reads the source of functions from there."""
    name = f"anatune_triton_{hashlib.sha256(program.source.encode()).hexdigest()[:16]}"
    path = folder / f"{name}.py"
    path.write_text(program.source, encoding="utf-8")
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(function: Any, kernel: TritonKernel, target: tuple[str, int | str, int]) -> Any:
    triton = import_optional("triton", "triton", "compiling")
    compiler = import_optional("triton.backends.compiler", "triton", "compiling")
    names = function.arg_names
    types = [pointer_type(buffer.dtype) for buffer in kernel.parameters]
    types += ["i32"] * (len(names) - len(types))  # an extent, without a known divisor
    source = triton.compiler.ASTSource(
        fn=function,
        signature=dict(zip(names, types, strict=True)),
        constexprs={},
        attrs={(at,): _attributes(buffer, target[0]) for at, buffer in enumerate(kernel.parameters)},
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **kernel.options}
    return triton.compile(source, target=compiler.GPUTarget(*target), options=options)


def _attributes(buffer: Buffer, back_end: str) -> list[list[str | int]]:
    """Return the properties of a pointer that the compiler may assume, as Triton's launcher does for PyTorch tensors.

    AMD GPUs address tensors below 2 GiB with 32-bit offsets. Source: Triton 3.9, ``get_tensor_specialization`` of
    ``backends/amd/compiler.py``.
    """
    small = back_end == "hip" and buffer.num_bytes < 1 << 31
    attributes: list[list[str | int]] = [["tt.divisibility", _ALIGNMENT]]
    return [*attributes, ["tt.pointer_range", 32]] if small else attributes


def _make_image(built: Any, log: str, kernel: TritonKernel, hardware: GpuSpec) -> Cubin:
    """Return the machine code that Triton built, with the metadata that its launcher would read."""
    metadata, code = built.metadata, built.asm
    tensor_memory = getattr(metadata, "tmem_size", None) or 0
    if tensor_memory > TENSOR_COLUMNS:  # Triton's code for such a kernel would be empty
        raise SpaceError(
            f"the compiled kernel needs {tensor_memory} columns of tensor memory, {hardware.name} has "
            f"{TENSOR_COLUMNS}; choose smaller tiles or fewer stages"
        )
    if metadata.profile_scratch_size or metadata.global_scratch_align > SCRATCH_ALIGNMENT or metadata.num_ctas != 1:
        raise BuildError(f"{kernel.name}: anatune cannot launch it, because of Triton's metadata: {metadata!s:.200}")
    if "cubin" in code:
        image, facts = code["cubin"], read_nvidia_facts(log, code["ptx"], code["cubin"], metadata.name)
    else:
        image, facts = code["hsaco"], read_amd_facts(code["amdgcn"])
    return Cubin(
        name=metadata.name,
        arch=hardware.arch,
        image=image,
        facts=facts,
        log=log,
        threads=metadata.num_warps * hardware.compute.warp_size,  # warp specialisation adds warps
        dynamic_shared_bytes=metadata.shared,
        scratch_bytes=metadata.global_scratch_size,
    )


@contextlib.contextmanager
def _apply_settings(folder: Path) -> Iterator[None]:
    """Make Triton keep no cache, print the assembler's output, and leave out positions in files."""
    knobs = import_optional("triton", "triton", "compiling").knobs
    with knobs.cache.scope(), knobs.compilation.scope(), knobs.nvidia.scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a default that every kernel's options set
        knobs.cache.dir = str(folder / "cache")
        knobs.compilation.disable_line_info = True
        knobs.nvidia.dump_ptxas_log = True
        yield


def _stderr_position() -> int:
    """Return how much this process has written to standard error, if that is a file, as in builder processes."""
    try:
        return os.lseek(2, 0, os.SEEK_END)
    except OSError:
        return 0


def _read_stderr(began: int) -> str:
    """Return the beginning of the text written to standard error since then; "" if it is no file."""
    try:
        return os.pread(2, 1 << 16, began).decode(errors="replace")
    except OSError:
        return ""


def _first_error(message: str, said: str) -> str:
    """Return the first line that states an error, from an exception and the text on standard error."""
    lines = [line.strip() for text in (said, message) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal|LLVM ERROR)\b", line) and "pipeline" not in line]
    chosen = errors[0] if errors else (lines or ["no message"])[-1]
    match = _PATH.match(chosen)
    if match is not None:
        chosen = f"{chosen[match.end() :].removeprefix('error: ')} (line {match[1]})"
    return " ".join(chosen.split())[:_MESSAGE_CHARACTERS]

"""CUDA C that NVRTC, nvcc and clang compile, alone or together with other code.

The source that NVRTC compiles for measurements declares NVIDIA's types itself, and has ``alignas`` where only NVIDIA's
compilers allow it. Here everything is put into a separate namespace, so that names do not collide with CUDA's headers,
the C library's headers, or a second kernel. The machine code stays the same.
"""

from __future__ import annotations

import re

import msgspec

from anatune.templates.gpu.kernel import CudaKernel

_UNUSED = re.compile(r"^ *\w+ (cse_v\d+) = .*;\n", re.MULTILINE)
_HEXADECIMAL = re.compile(r"(-?0x[0-9a-f.]+p[+-]\d+)f/\*.*?\*/")
"""A hexadecimal float as TVM prints it, which C++ only has since C++17."""


def make_portable(kernel: CudaKernel, name: str) -> CudaKernel:
    """Return a kernel as the function `name` (a C identifier) in the namespace ``anatune_<name>``.

    Kernels that are launched before and after it get the names ``<name>_before`` and ``<name>_after``.
    """
    around = {
        kind: tuple(
            msgspec.structs.replace(launch, name=f"{name}_{kind}{number or ''}")
            for number, launch in enumerate(launches)
        )
        for kind, launches in (("before", kernel.before), ("after", kernel.after))
    }
    names = (*(one.name for one in around["before"]), name, *(one.name for one in around["after"]))
    source = kernel.source
    for launch, new_name in zip(kernel.launches, names, strict=True):
        source = source.replace(f" {launch.name}(", f" {new_name}(")
    source = source.replace("__shared__ alignas(", "__shared__ __align__(")  # clang only accepts alignas before it
    source = _HEXADECIMAL.sub(_decimal, _remove_unused(source))
    space = f"anatune_{name}"
    source = f"namespace {space} {{\n\n{source.rstrip()}\n\n}}  // namespace {space}\n"
    return msgspec.structs.replace(kernel, name=name, source=source, **around)


def _decimal(number: re.Match[str]) -> str:
    """Return a float in decimal, with enough digits to be exact."""
    text = f"{float.fromhex(number[1]):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _remove_unused(source: str) -> str:
    """Remove common subexpressions that TVM names but does not use, because compilers warn about each."""
    words = re.findall(r"\bcse_v\d+\b", source)
    kept = _UNUSED.sub(lambda line: line[0] if words.count(line[1]) > 1 else "", source)
    return source if kept == source else _remove_unused(kept)  # those that only the removed ones used

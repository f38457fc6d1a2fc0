"""CUDA C that every compiler takes: NVRTC, nvcc and clang, alone or beside other code.

What NVRTC compiles for measurements declares NVIDIA's types itself, under their own names, and puts ``alignas`` where
only NVIDIA's compilers allow it. Here all of it lies in a namespace of its own, so that nothing meets the names of
CUDA's or the C library's headers, or of a second kernel. The machine code stays the same.
"""

from __future__ import annotations

import re

import msgspec

from anatune.templates.gpu.kernel import CudaKernel

_UNUSED = re.compile(r"^ *\w+ (cse_v\d+) = .*;\n", re.MULTILINE)
_HEXADECIMAL = re.compile(r"(-?0x[0-9a-f.]+p[+-]\d+)f/\*.*?\*/")
"""A float as TVM prints it: C++ knows such numbers since 2017."""


def portable(kernel: CudaKernel, name: str) -> CudaKernel:
    """Return a kernel as the function `name` (a C identifier), in the namespace ``anatune_<name>``.

    Those that are launched before and after it are ``<name>_before`` and ``<name>_after``.
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
    for launch, own in zip(kernel.launches, names, strict=True):
        source = source.replace(f" {launch.name}(", f" {own}(")
    source = source.replace("__shared__ alignas(", "__shared__ __align__(")  # clang: the standard's place is before it
    source = _HEXADECIMAL.sub(_decimal, _without_unused(source))
    space = f"anatune_{name}"
    source = f"namespace {space} {{\n\n{source.rstrip()}\n\n}}  // namespace {space}\n"
    return msgspec.structs.replace(kernel, name=name, source=source, **around)


def _decimal(number: re.Match[str]) -> str:
    """Return a float with as many digits as tell it from all others."""
    text = f"{float.fromhex(number[1]):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _without_unused(source: str) -> str:
    """Remove the common subexpressions that TVM names and then writes out all the same: compilers warn of each."""
    words = re.findall(r"\bcse_v\d+\b", source)
    kept = _UNUSED.sub(lambda line: line[0] if words.count(line[1]) > 1 else "", source)
    return source if kept == source else _without_unused(kept)  # what only these used goes, too

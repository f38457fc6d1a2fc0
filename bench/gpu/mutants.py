"""Generated kernels with one fault put in: what a check of correctness must find."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from anatune.codegen.cuda.kernel import CudaKernel

__all__ = ["mutants"]

_BARRIER = re.compile(r"__syncthreads\(\);")
_WAIT = re.compile(r"cp\.async\.wait_(?:group \d+|all)\s*;")
_INDEX = re.compile(r"(?<!\w )\b(\w+_ptr)(\[| \+ \()")
"""Uses; in declarations a type stands before the name."""


def mutants(kernel: CudaKernel) -> Iterator[tuple[str, CudaKernel]]:
    """Yield (what was done, kernel): each barrier removed, each wait removed, each array's first index shifted.

    A block of a single thread needs no barriers: they stay.
    """
    for number, match in enumerate(_BARRIER.finditer(kernel.source if kernel.block > 1 else ""), 1):
        yield f"barrier {number} removed", _replaced(kernel, match.start(), match.end(), ";")
    for number, match in enumerate(_WAIT.finditer(kernel.source), 1):
        yield f"wait {number} removed", _replaced(kernel, match.start(), match.end(), "")
    bodies = sorted(kernel.source.index("{", kernel.source.rindex(f"{one.name}(")) for one in kernel.launches)
    for body, end in zip(bodies, [*bodies[1:], len(kernel.source)], strict=True):
        seen = set()
        for match in _INDEX.finditer(kernel.source, body, end):
            if match.group(1) not in seen:
                seen.add(match.group(1))
                yield f"index of {match.group(1)} shifted", _replaced(kernel, match.end(), match.end(), "1 + ")


def _replaced(kernel: CudaKernel, start: int, stop: int, text: str) -> CudaKernel:
    return msgspec.structs.replace(kernel, source=kernel.source[:start] + text + kernel.source[stop:])

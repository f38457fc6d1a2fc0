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
    """Yield (what was done, kernel): each barrier removed, each wait removed, indices of each array shifted.

    A block of a single thread needs no barriers: they stay.
    """
    for number, match in enumerate(_BARRIER.finditer(kernel.source if kernel.block > 1 else ""), 1):
        yield f"barrier {number} removed", _replaced(kernel, match.start(), match.end(), ";")
    for number, match in enumerate(_WAIT.finditer(kernel.source), 1):
        yield f"wait {number} removed", _replaced(kernel, match.start(), match.end(), "")
    parameters = {f"{tensor.tensor}_ptr" for launch in kernel.launches for tensor in launch.parameters}
    bodies = sorted(kernel.source.index("{", kernel.source.rindex(f"{one.name}(")) for one in kernel.launches)
    for body, end in zip(bodies, [*bodies[1:], len(kernel.source)], strict=True):
        uses: dict[str, list[int]] = {}
        for match in _INDEX.finditer(kernel.source, body, end):
            uses.setdefault(match.group(1), []).append(match.end())
        for name, places in uses.items():
            if name not in parameters and len(places) == 1:
                continue  # set and never read
            mutant = kernel
            # the first use may be one that no block comes to; of the kernel's own arrays all together would move alike
            for place in reversed(places if name in parameters else places[:1]):
                mutant = _replaced(mutant, place, place, "1 + ")
            yield f"index of {name} shifted", mutant


def _replaced(kernel: CudaKernel, start: int, stop: int, text: str) -> CudaKernel:
    return msgspec.structs.replace(kernel, source=kernel.source[:start] + text + kernel.source[stop:])

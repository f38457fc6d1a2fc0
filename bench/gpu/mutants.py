"""Generated kernels with one fault put in: what a check of correctness must find.

A fault that changes nothing is no mutant. Left out are barriers of blocks of a single thread; those that TVM adds, not
anatune: to pipelines through registers, because it cannot tell that buffers alternate (what follows goes into the
buffer that all threads have read before the barrier of the step), and to streams whose threads store their own sums,
because it cannot tell that each reads what it has written itself; on tensor cores those behind which nobody uses
shared memory: the last one, before the results, where every block stores the sums of a part from its registers, and
that of the next stage where there is a single one; and indices of what a kernel sets and never reads.
The first index of a thread's own array is mutated, even where it has a single element: the emulator knows the sizes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

import msgspec

from anatune.core.schedule import Schedule
from anatune.templates import PIPELINED, THIN
from anatune.templates.cuda.program.nest import CudaNest
from anatune.templates.gpu.kernel import CudaKernel
from anatune.templates.thin.program.layout import ThinLayout

__all__ = ["mutants", "spare_barriers"]

_BARRIER = re.compile(r"__syncthreads\(\);")
_WAIT = re.compile(r"cp\.async\.wait_(?:group \d+|all)\s*;")
_INDEX = re.compile(r"(?<!\w )\b(\w+_ptr)(\[| \+ \()")
"""Uses; in declarations a type stands before the name."""


def spare_barriers(schedule: Schedule) -> frozenset[int]:
    """Return which barriers of a schedule's CUDA C, from 1, order nothing: see above."""
    if schedule.template == THIN.name:
        return frozenset({1} if ThinLayout(schedule).is_apart else ())
    if schedule.template == PIPELINED.name:
        nest = CudaNest(schedule)
        return frozenset({2} if nest.copies_through_registers and nest.stages > 1 else ())
    return frozenset()


def mutants(kernel: CudaKernel, spare: Container[int] = ()) -> Iterator[tuple[str, CudaKernel]]:
    """Yield (what was done, kernel): each barrier removed, each wait removed, indices of each array shifted.

    A block of a single thread needs no barriers: they stay, and so do spare ones.
    """
    for number, match in enumerate(_BARRIER.finditer(kernel.source if kernel.block > 1 else ""), 1):
        if number in spare:
            continue
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

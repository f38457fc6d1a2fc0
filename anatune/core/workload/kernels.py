"""Bodies that are more than one statement: what language models compute between and around their products.

Their axes and accesses say what is read and written where, as any nest's; what happens inside has a name here. Only
templates that know that name have code for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from anatune.core.workload.access import FLOAT8_DTYPES, Access
from anatune.core.workload.visible import attention_iterations, attention_read_bytes
from anatune.errors import WorkloadError

__all__ = ["KERNELS", "Kernel", "check_kernel_dtypes"]

_FLOATS = ("float32", "float16", "bfloat16")
_HALVES = ("float16", "bfloat16")
_SMALL = (*_HALVES, *FLOAT8_DTYPES)


class Kernel(NamedTuple):
    """One such body.

    Attributes
    ----------
    reduces : bool
        Whether it has reduction axes.
    operands : tuple of tuple of str
        Dtypes that each operand may have, in order; those behind `least` may be missing.
    least : int
        Operands that it has at least.
    results : tuple of str
        Dtypes that the result may have.
    iterations : callable, optional
        ``(extents, attributes) -> int``: iterations that are computed, where they are fewer than the nest's.
    read_bytes : callable, optional
        ``(reads, extents, attributes) -> int``: bytes of operands that have to be read once, where accesses do not say.
    """

    reduces: bool
    operands: tuple[tuple[str, ...], ...]
    least: int
    results: tuple[str, ...]
    iterations: Callable[[Mapping[str, int], Mapping[str, object]], int] | None = None
    read_bytes: Callable[[Sequence[Access], Mapping[str, int], Mapping[str, object]], int] | None = None

    @property
    def forms(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Least and most operands under a reduction, and without one; None: there is no such form."""
        count = (self.least, len(self.operands))
        return (count, None) if self.reduces else (None, count)


KERNELS: dict[str, Kernel] = {
    "softmax": Kernel(False, (_FLOATS,), 1, _FLOATS),
    "attention": Kernel(
        True, (_SMALL, _SMALL, _SMALL, ("int32",)), 3, _HALVES, attention_iterations, attention_read_bytes
    ),
}
"""Body -> what it takes. "softmax": over the last axis, exp(x - largest) over their sum. "attention": see
`operators.attention`, queries, keys, values and perhaps a block table."""


def check_kernel_dtypes(operator: str, body: str, reads: Sequence[Access], write: Access) -> None:
    """Raise unless operands and result have dtypes that a body of `KERNELS` takes.

    Raises
    ------
    WorkloadError
        The message names the tensor.
    """
    kernel = KERNELS[body]
    for access, dtypes in (*zip(reads, kernel.operands, strict=False), (write, kernel.results)):
        if access.dtype not in dtypes:
            raise WorkloadError(
                f"{operator}: {access.tensor!r} is {access.dtype}, expected one of {', '.join(dtypes)} for {body}"
            )
        if access.zero_point:
            raise WorkloadError(f"{operator}: {access.tensor!r} has a zero point, expected none; leave it out")

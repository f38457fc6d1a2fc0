"""The matrix products that a tile compiler computes: sizes, number and types of operands."""

from __future__ import annotations

from numbers import Integral

import msgspec

from anatune.arguments import quote
from anatune.errors import SpaceError

__all__ = ["DTYPES", "MatmulProblem"]

DTYPES: dict[str, int] = {
    "float32": 4,
    "tf32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int8": 1,
}
"""Operand type -> bytes. "tf32": float32 operands that matrix units round. "float32": not rounded (on NVIDIA GPUs: CUDA
cores). "fp8": 8-bit floats of the type that the device multiplies."""


class MatmulProblem(msgspec.Struct, frozen=True):
    """A matrix product m x k times k x n, or several of the same size.

    Attributes
    ----------
    dtype : str
        Operand type, one of `DTYPES`.
    out_bytes : int
        Bytes of a result. 0: 4 for 32-bit operands and integers, else 2.
    a_along_k, b_along_n : bool
        Whether rows of the operand in memory run along that index. Both are true for row-major operands.
    batch : int
        Number of products.
    right_bytes : float
        Bytes of an element of the right operand in memory, if the kernel converts it to `dtype`: 1 for 8-bit weights,
        0.5 for 4-bit weights. 0: as many as the left operand has.
    atomic : bool
        Whether parts of a split sum are added to the result atomically. Otherwise they are kept in float32, and a
        second kernel adds them up in order.
    touched : (int, int)
        Elements in memory of one product's left and right operands. There are fewer than m x k and k x n if windows of
        a convolution overlap. 0: as many.
    epilogue_bytes : int
        Bytes of the operands that the epilogues of all products read, such as a residual.
    runs : (int, int)
        Neighbouring elements in memory along a fetched row of the left and of the right operand; windows and groups of
        a convolution have shorter ones than rows. 0: as long as the row.
    guards : (int, int)
        Dimensions of the left and of the right operand in which windows reach beyond it.

    Raises
    ------
    SpaceError
        An extent is below 1, the dtype is unknown, or `right_bytes` is larger than an element of it.
    """

    m: int
    n: int
    k: int
    dtype: str = "float16"
    out_bytes: int = 0
    a_along_k: bool = True
    b_along_n: bool = True
    batch: int = 1
    right_bytes: float = 0
    atomic: bool = True
    touched: tuple[int, int] = (0, 0)
    epilogue_bytes: int = 0
    runs: tuple[int, int] = (0, 0)
    guards: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            extent = getattr(self, name)
            if isinstance(extent, bool) or not isinstance(extent, Integral) or extent < 1:
                raise SpaceError(f"matrix product: {name} is {quote(extent)}, expected an integer >= 1")
        if self.dtype not in DTYPES:
            raise SpaceError(f"matrix product: dtype is {quote(self.dtype)}, expected one of {', '.join(DTYPES)}")
        if self.right_bytes not in (0.5, *range(DTYPES[self.dtype] + 1)):
            raise SpaceError(
                f"matrix product: right_bytes is {quote(self.right_bytes)}, expected 0, 0.5 or up to "
                f"{DTYPES[self.dtype]} for {self.dtype}"
            )

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of the operands."""
        return DTYPES[self.dtype]

    @property
    def right_element_bytes(self) -> float:
        """Bytes of an element of the right operand in memory."""
        return self.right_bytes or self.element_bytes

    @property
    def is_float8(self) -> bool:
        """True if operands are 8-bit floats."""
        return self.dtype == "fp8" or self.dtype.startswith("float8")

    @property
    def converts(self) -> bool:
        """True if the kernel converts the right operand to `dtype`."""
        return self.right_element_bytes != self.element_bytes

    @property
    def result_bytes(self) -> int:
        """Bytes of a result."""
        return self.out_bytes or (4 if self.element_bytes == 4 or self.dtype == "int8" else 2)

    def describe(self) -> str:
        """Return the sizes and the operand type in words."""
        right = f" x {8 * self.right_bytes:g} bits" if self.converts else ""
        return f"{self.m} x {self.n} x {self.k} {self.dtype}{right}"

"""What a tile compiler multiplies: one matrix product, or several alike, with the types of its operands."""

from __future__ import annotations

from numbers import Integral

import msgspec

from anatune.arguments import shown
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
"""Operand type -> bytes. "tf32": float32 operands, rounded for matrix units; "float32": not rounded (NVIDIA: CUDA
cores); "fp8": 8-bit floats of the type that the device multiplies."""


class MatmulProblem(msgspec.Struct, frozen=True):
    """One matrix product: m x k times k x n.

    Attributes
    ----------
    dtype : str
        Of `DTYPES`.
    out_bytes : int
        Of one result; 0: 4 for 32-bit operands and integers, else 2.
    a_along_k, b_along_n : bool
        Whether rows of the operand in memory run along that index (both: row-major, not transposed).
    batch : int
        Products of this size.
    right_bytes : float
        Of an element of the right operand in memory, where the kernel converts it to `dtype` (1: weights of 8 bits, 0.5
        of 4); 0: as the left operand's.
    atomic : bool
        Whether parts of a split sum are added to the result where they are made; else they are kept in float32, and a
        second kernel adds them up in order.
    touched : (int, int)
        Elements of one product's left and right operands in memory, fewer than m x k and k x n where windows of a
        convolution overlap; 0: as many.

    Raises
    ------
    SpaceError
        An extent is below 1, the dtype is unknown, or `right_bytes` are more than it has.
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

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            extent = getattr(self, name)
            if isinstance(extent, bool) or not isinstance(extent, Integral) or extent < 1:
                raise SpaceError(f"matrix product: {name} is {shown(extent)}, expected an integer >= 1")
        if self.dtype not in DTYPES:
            raise SpaceError(f"matrix product: dtype is {shown(self.dtype)}, expected one of {', '.join(DTYPES)}")
        if self.right_bytes not in (0.5, *range(DTYPES[self.dtype] + 1)):
            raise SpaceError(
                f"matrix product: right_bytes is {shown(self.right_bytes)}, expected 0, 0.5 or up to "
                f"{DTYPES[self.dtype]} for {self.dtype}"
            )

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand's element."""
        return DTYPES[self.dtype]

    @property
    def right_element_bytes(self) -> float:
        """Bytes of an element of the right operand in memory."""
        return self.right_bytes or self.element_bytes

    @property
    def is_float8(self) -> bool:
        """Whether operands are floats of 8 bits."""
        return self.dtype == "fp8" or self.dtype.startswith("float8")

    @property
    def converts(self) -> bool:
        """Whether the kernel converts the right operand to `dtype`."""
        return self.right_element_bytes != self.element_bytes

    @property
    def result_bytes(self) -> int:
        """Bytes of a result."""
        return self.out_bytes or (4 if self.element_bytes == 4 or self.dtype == "int8" else 2)

    def describe(self) -> str:
        """Return the sizes and the operand type in words."""
        right = f" x {8 * self.right_bytes:g} bits" if self.converts else ""
        return f"{self.m} x {self.n} x {self.k} {self.dtype}{right}"

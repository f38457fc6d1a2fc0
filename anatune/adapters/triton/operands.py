"""Operands as calls of Triton's kernels pass them: tensors of whatever package, or host-side tensor descriptors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from anatune.arguments import shown
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.triton.problem import DTYPES, MatmulProblem

Argument: TypeAlias = Any
"""Of a kernel: a tensor of whatever package, a number, or anything else; what it has is looked at."""
Arguments: TypeAlias = Mapping[str, Argument]
"""Of a call, by the kernel's names: arguments, meta-parameters, grid."""

KERNEL_DTYPES = {
    "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "int8": "int8", "uint8": "int8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8",
    **{name: name for name in DTYPES},
}  # fmt: skip
"""Names of operand types, of PyTorch and JAX -> those of `MatmulProblem`."""
_TRITON = {
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz", "fp8e5b16": "float8_e5m2fnuz",
    "fp8e4b15": "fp8",
}  # fmt: skip
"""Triton's own names of 8-bit floats. Source: triton.language.core of Triton 3.9."""
PACKED = "int4"
"""What the right operand's type is called where an element of 8 bits holds two weights."""
_FLOATS_OF_8_BITS = ("fp8", "float8")

_SIZES = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}
_ROW_BYTES = 16
"""Rows under a tensor descriptor start at multiples of it. Source: CUDA driver API, cuTensorMapEncodeTiled."""


def dtype_name(given: object) -> str:
    """Return the operand type that a name or a dtype object means.

    Raises
    ------
    SpaceError
        It is unknown; the message lists the known ones.
    """
    word = str(given).rpartition(".")[2].lower()
    word = _TRITON.get(word, word)
    if word not in KERNEL_DTYPES:
        raise SpaceError(f"dtype is {shown(str(given))}, expected one of {', '.join((*KERNEL_DTYPES, *_TRITON))}")
    return KERNEL_DTYPES[word]


def matmul_problem(workload: Workload) -> MatmulProblem:
    """Return the product of a workload of `anatune.matmul`, float32 as "tf32"; raise SpaceError for another one."""
    if workload.operator != "matmul":
        raise SpaceError(f"{workload.describe()} is no product of two matrices, expected one of anatune.matmul(...)")
    own, extents = workload.attribute, workload.extents
    return MatmulProblem(
        extents["i"],
        extents["j"],
        extents["k"],
        dtype="tf32" if workload.dtype == "float32" else dtype_name(workload.dtype),
        a_along_k=not own["transpose_a"],
        b_along_n=not own["transpose_b"],
    )


class Operand(NamedTuple):
    """A matrix in memory.

    Attributes
    ----------
    shape, strides : tuple of int
        In elements, first index first; empty where the call does not say.
    dtype
        As its package has it, None where the call does not say.
    element_bytes : int
        0 where the call does not say.
    is_described : bool
        Whether the kernel gets a tensor descriptor instead of a pointer.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Argument
    element_bytes: int
    is_described: bool = False

    @classmethod
    def of(cls, value: Argument) -> Operand | None:
        """Return what an argument is a matrix of; None for numbers, NumPy's among them."""
        if isinstance(value, cls):
            return value
        base = getattr(value, "base", None)
        if hasattr(value, "block_shape") and base is not None:  # Triton's TensorDescriptor
            dtype, element = getattr(base, "dtype", None), _element_bytes(base)
            return cls(_integers(value.shape), _integers(value.strides), dtype, element, is_described=True)
        shape = _integers(getattr(value, "shape", ()))
        if not shape:
            return None
        stride = getattr(value, "stride", None)
        strides = _integers(stride()) if callable(stride) else ()
        return cls(shape, strides, getattr(value, "dtype", None), _element_bytes(value))

    def turned(self) -> Operand:
        """Return its transpose."""
        return self._replace(shape=self.shape[::-1], strides=self.strides[::-1])

    def runs_along_second(self, extents: tuple[int, int]) -> bool:
        """Return whether a matrix of these extents runs along the second one in memory; True where it does not say.

        Its shape may be the other way round: a weight is often stored with the other index first.
        """
        if len(self.strides) != 2:
            return True
        second = 0 if self.shape == extents[::-1] and extents[0] != extents[1] else 1
        return self.strides[second] == 1 or self.strides[1 - second] != 1


def operand_types(left: Operand | None, right: Operand | None, given: tuple[str, ...]) -> tuple[str, float]:
    """Return the type that a kernel multiplies, and the bytes of the right operand's elements if it converts them.

    Parameters
    ----------
    given : tuple of str
        What the caller says: nothing, the type, or the types of both operands.

    Raises
    ------
    SpaceError
        The types are unknown, or differ otherwise than in a right operand of 8 bits.
    """
    if len(given) == 2:
        return _mixed(*given, f"dtype is {given}")
    if given:
        stored = right.element_bytes if right is not None else 0
        return given[0], stored if stored < DTYPES.get(given[0], 1) else 0
    if left is None or left.dtype is None:
        raise SpaceError(
            "no argument of the kernel has a dtype; name the left operand, as names={'a': 'a_ptr'}, or dtype='float16'"
        )
    known = [operand.dtype for operand in (left, right) if operand is not None and operand.dtype is not None]
    types = ["tf32" if name == "float32" else name for name in map(dtype_name, known)]  # tl.dot's default
    said = f"operands are {left.dtype!s:.20} and {'' if right is None else right.dtype!s:.20}"
    return _mixed(types[0], types[-1], said)


def _mixed(left: str, right: str, said: str) -> tuple[str, float]:
    if right == PACKED and DTYPES.get(left, 1) > 1:
        return left, 0.5
    if left == right or (left.startswith(_FLOATS_OF_8_BITS) and right.startswith(_FLOATS_OF_8_BITS)):
        return left, 0
    if DTYPES.get(right, 1) == 1 < DTYPES.get(left, 1):
        return left, 1
    raise SpaceError(f"{said}, expected one type or a right operand of 8 bits; say dtype= to count both as one")


def check_operands(problem: MatmulProblem, operands: Mapping[str, Operand | None]) -> None:
    """Refuse operands that are more than the matrices of one product.

    Parameters
    ----------
    operands : mapping
        "a", "b", "c" -> a matrix, or None where the call does not say.

    Raises
    ------
    SpaceError
        An operand has three dimensions or more, and several times the elements of one product; it has steps between
        its elements along both dimensions; or elements of 8 bits hold several weights each.
    """
    for name, sizes in _SIZES.items():
        operand = operands.get(name)
        if operand is None:
            continue
        count, one = math.prod(operand.shape), math.prod(getattr(problem, size) for size in sizes)
        if len(operand.shape) > 2 and count > one and count % one == 0:
            raise SpaceError(f"operand {name} has {len(operand.shape)} dimensions: a batch of products")
        long = [step for step, extent in zip(operand.strides, operand.shape, strict=False) if extent > 1]
        if len(operand.shape) == 2 and long and 1 not in long:
            raise SpaceError(f"operand {name} has no dimension without steps between elements")
        if name == "b" and problem.converts and len(operand.shape) == 2:
            stored = math.ceil(one * problem.right_bytes / max(operand.element_bytes, 1))
            if count < stored:
                raise SpaceError(
                    f"operand b has {count} elements, expected {stored}; of weights of 4 bits say "
                    f"dtype=({problem.dtype!r}, {PACKED!r})"
                )


def descriptor_fault(operands: Mapping[str, Operand | None], problem: MatmulProblem) -> str:
    """Return why operands cannot have tensor descriptors, "" where they can."""
    inner = {"a": problem.k if problem.a_along_k else problem.m, "b": problem.n if problem.b_along_n else problem.k}
    bytes_of = {"a": problem.element_bytes, "b": problem.right_element_bytes}
    for name, extent in inner.items():
        operand = operands.get(name)
        pitch = max(operand.strides, default=extent) if operand is not None and len(operand.strides) == 2 else extent
        row = max(pitch, extent) * bytes_of[name]
        if row % _ROW_BYTES:
            return f"rows of {name} take {row:g} bytes, a tensor descriptor needs a multiple of {_ROW_BYTES}; pad them"
    return ""


def _integers(extents: Argument) -> tuple[int, ...]:
    return tuple(int(extent) for extent in extents) if isinstance(extents, tuple | list) else ()


def _element_bytes(tensor: Argument) -> int:
    size = getattr(tensor, "element_size", None)
    return int(size()) if callable(size) else int(getattr(getattr(tensor, "dtype", None), "itemsize", 0))

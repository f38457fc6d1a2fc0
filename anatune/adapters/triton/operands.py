"""Operands in calls of Triton's kernels: tensors of any package, or host-side tensor descriptors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from anatune.arguments import quote
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.triton.problem import DTYPES, MatmulProblem

Argument: TypeAlias = Any
"""An argument of a kernel: a tensor of any package, a number, or anything else."""
Arguments: TypeAlias = Mapping[str, Argument]
"""The arguments of a call by the kernel's names: arguments, meta-parameters, grid."""

KERNEL_DTYPES = {
    "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "int8": "int8", "uint8": "int8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8",
    **{name: name for name in DTYPES},
}  # fmt: skip
"""Names of operand types in PyTorch and JAX -> the names of `MatmulProblem`."""
_TRITON = {
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz", "fp8e5b16": "float8_e5m2fnuz",
    "fp8e4b15": "fp8",
}  # fmt: skip
"""Triton's own names of 8-bit float types. Source: triton.language.core of Triton 3.9."""
PACKED = "int4"
"""The name of the right operand's type if an element of 8 bits holds two weights."""
_FLOATS_OF_8_BITS = ("fp8", "float8")

_SIZES = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}
_ROW_BYTES = 16
"""The alignment in bytes of rows under a tensor descriptor. Source: CUDA driver API, cuTensorMapEncodeTiled."""


def dtype_name(given: object) -> str:
    """Return the operand type that a name or a dtype object means.

    Raises
    ------
    SpaceError
        The type is unknown. The message lists all known types.
    """
    word = str(given).rpartition(".")[2].lower()
    word = _TRITON.get(word, word)
    if word not in KERNEL_DTYPES:
        raise SpaceError(f"dtype is {quote(str(given))}, expected one of {', '.join((*KERNEL_DTYPES, *_TRITON))}")
    return KERNEL_DTYPES[word]


def matmul_problem(workload: Workload) -> MatmulProblem:
    """Return the product of a workload of `anatune.matmul` (float32 as "tf32"); raise SpaceError for others."""
    if workload.operator != "matmul":
        raise SpaceError(f"{workload.describe()} is not a product of two matrices, expected one of anatune.matmul(...)")
    attributes, extents = workload.attribute, workload.extents
    return MatmulProblem(
        extents["i"],
        extents["j"],
        extents["k"],
        dtype="tf32" if workload.dtype == "float32" else dtype_name(workload.dtype),
        a_along_k=not attributes["transpose_a"],
        b_along_n=not attributes["transpose_b"],
    )


class Operand(NamedTuple):
    """A matrix in memory.

    Attributes
    ----------
    shape, strides : tuple of int
        The shape and strides in elements, first index first; empty if not known.
    dtype
        The dtype object of the tensor's package, or None if not known.
    element_bytes : int
        The size of an element, or 0 if not known.
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
        """Return the operand that an argument is, or None for numbers (also NumPy's)."""
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

    def transpose(self) -> Operand:
        """Return the transposed operand."""
        return self._replace(shape=self.shape[::-1], strides=self.strides[::-1])

    def runs_along_second(self, extents: tuple[int, int]) -> bool:
        """Return whether the second dimension is contiguous in memory; True if not known.

        The operand's shape may be reversed, because weights are often stored transposed.
        """
        if len(self.strides) != 2:
            return True
        second = 0 if self.shape == extents[::-1] and extents[0] != extents[1] else 1
        return self.strides[second] == 1 or self.strides[1 - second] != 1


def operand_types(left: Operand | None, right: Operand | None, declared: tuple[str, ...]) -> tuple[str, float]:
    """Return the type that a kernel multiplies, and the bytes of a right element if the kernel converts them (else 0).

    Parameters
    ----------
    declared : tuple of str
        The types that the caller declares: none, one for both operands, or one for each.

    Raises
    ------
    SpaceError
        A type is unknown, or the types differ and the right operand does not have 8 bits.
    """
    if len(declared) == 2:
        return _combine_types(*declared, f"dtype is {declared}")
    if declared:
        stored = right.element_bytes if right is not None else 0
        return declared[0], stored if stored < DTYPES.get(declared[0], 1) else 0
    if left is None or left.dtype is None:
        raise SpaceError(
            "no argument of the kernel has a dtype; name the left operand, for example names={'a': 'a_ptr'}, or pass "
            "the type, for example dtype='float16'"
        )
    tensor_types = [operand.dtype for operand in (left, right) if operand is not None and operand.dtype is not None]
    types = ["tf32" if name == "float32" else name for name in map(dtype_name, tensor_types)]  # tl.dot's default
    types_text = f"operand types are {left.dtype!s:.20} and {'' if right is None else right.dtype!s:.20}"
    return _combine_types(types[0], types[-1], types_text)


def _combine_types(left: str, right: str, types_text: str) -> tuple[str, float]:
    if right == PACKED and DTYPES.get(left, 1) > 1:
        return left, 0.5
    if left == right or (left.startswith(_FLOATS_OF_8_BITS) and right.startswith(_FLOATS_OF_8_BITS)):
        return left, 0
    if DTYPES.get(right, 1) == 1 < DTYPES.get(left, 1):
        return left, 1
    raise SpaceError(f"{types_text}, expected equal types, or a right operand of 8 bits; pass dtype= otherwise")


def check_operands(problem: MatmulProblem, operands: Mapping[str, Operand | None]) -> None:
    """Check that operands are the matrices of a single product.

    Parameters
    ----------
    operands : mapping
        The operands "a", "b" and "c", or None if not known.

    Raises
    ------
    SpaceError
        An operand is a batch of matrices (three or more dimensions), neither of its dimensions is contiguous, or its
        8-bit elements hold several weights each.
    """
    for name, sizes in _SIZES.items():
        operand = operands.get(name)
        if operand is None:
            continue
        count, element_count = math.prod(operand.shape), math.prod(getattr(problem, size) for size in sizes)
        if len(operand.shape) > 2 and count > element_count and count % element_count == 0:
            raise SpaceError(f"operand {name} has {len(operand.shape)} dimensions (a batch), expected a single product")
        long = [step for step, extent in zip(operand.strides, operand.shape, strict=False) if extent > 1]
        if len(operand.shape) == 2 and long and 1 not in long:
            raise SpaceError(f"operand {name} has strides {operand.strides}, expected a contiguous dimension")
        if name == "b" and problem.converts and len(operand.shape) == 2:
            stored = math.ceil(element_count * problem.right_bytes / max(operand.element_bytes, 1))
            if count < stored:
                raise SpaceError(
                    f"operand b has {count} elements, expected {stored}; for weights of 4 bits pass "
                    f"dtype=({problem.dtype!r}, {PACKED!r})"
                )


def descriptor_fault(operands: Mapping[str, Operand | None], problem: MatmulProblem) -> str:
    """Return why operands cannot have tensor descriptors, or an empty text if they can."""
    inner = {"a": problem.k if problem.a_along_k else problem.m, "b": problem.n if problem.b_along_n else problem.k}
    bytes_of = {"a": problem.element_bytes, "b": problem.right_element_bytes}
    for name, extent in inner.items():
        operand = operands.get(name)
        pitch = max(operand.strides, default=extent) if operand is not None and len(operand.strides) == 2 else extent
        row = max(pitch, extent) * bytes_of[name]
        if row % _ROW_BYTES:
            return f"rows of {name} have {row:g} bytes, a tensor descriptor needs a multiple of {_ROW_BYTES}; pad them"
    return ""


def _integers(extents: Argument) -> tuple[int, ...]:
    return tuple(int(extent) for extent in extents) if isinstance(extents, tuple | list) else ()


def _element_bytes(tensor: Argument) -> int:
    size = getattr(tensor, "element_size", None)
    return int(size()) if callable(size) else int(getattr(getattr(tensor, "dtype", None), "itemsize", 0))

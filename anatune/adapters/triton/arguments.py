"""What a Triton kernel's arguments and configurations are called, and what they say about the product."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

from anatune.adapters.triton.checks import Argument, Arguments, check_operands
from anatune.arguments import shown
from anatune.errors import SpaceError
from anatune.model.foreign.triton_tiles import TILE_FIELDS, MatmulProblem

__all__ = ["KERNEL_DTYPES", "SIZES", "ArgumentNames", "KernelNames", "dtype_name"]

KernelNames: TypeAlias = Mapping[str, str | Callable[[Arguments], int]]
"""What anatune calls something -> what the kernel calls it, or for sizes a function of all arguments."""

SIZES = ("m", "n", "k")
OPERANDS = ("a", "b", "c")
_SPELLINGS: dict[str, tuple[str, ...]] = {
    **{f"block_{s}": (f"block{s}", f"blocksize{s}", f"block{s}size", f"tile{s}", f"b{s}") for s in SIZES},
    **{size: (size,) for size in SIZES},
    "group_m": ("groupm", "groupsizem", "groupsize", "group"),
    "split_k": ("splitk", "ksplit"),
    "num_warps": ("numwarps",),
    "num_stages": ("numstages",),
    "a": ("a", "aptr", "ptra", "x", "xptr"),
    "b": ("b", "bptr", "ptrb", "w", "wptr", "y", "yptr"),
    "c": ("c", "cptr", "ptrc", "out", "outptr", "o", "optr", "z", "zptr"),
}
_MANDATORY = ("block_m", "block_n", "block_k")
KERNEL_DTYPES = {
    "float16": "float16", "fp16": "float16", "half": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16",
    "tf32": "tf32", "float32": "float32", "fp32": "float32", "fp8": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8", "fp8e4nv": "fp8", "fp8e5": "fp8", "fp8e4b15": "fp8",
}  # fmt: skip
"""KernelNames of operand types, of PyTorch, NumPy and Triton -> those of `MatmulProblem`."""


def dtype_name(given: object) -> str:
    """Return the operand type that a name or a dtype object means.

    Raises
    ------
    SpaceError
        It is unknown; the message lists the known ones.
    """
    word = str(given).rpartition(".")[2].lower()
    if word not in KERNEL_DTYPES:
        raise SpaceError(f"dtype is {shown(str(given))}, expected one of {', '.join(KERNEL_DTYPES)}")
    return KERNEL_DTYPES[word]


class ArgumentNames:
    """Finds tile sizes in configurations, and the product in the arguments of a call.

    Parameters
    ----------
    names : mapping, optional
        What the kernel calls things; of what is left out, usual spellings are recognised.
    dtype : str, optional
        Of the operands; left out: that of the first one, float32 as "tf32" (Triton's default precision).

    Raises
    ------
    SpaceError
        A key of `names` is unknown, or the dtype is.
    """

    def __init__(self, names: KernelNames | None = None, dtype: object | None = None) -> None:
        if names is not None and not isinstance(names, Mapping):
            raise SpaceError(f"names is {shown(names)}, expected a mapping such as {{'block_m': 'BLOCK_SIZE_M'}}")
        self.names = dict(names or {})
        for key, value in self.names.items():
            if key not in _SPELLINGS:
                raise SpaceError(f"names: unknown key {shown(key)}, expected some of {', '.join(_SPELLINGS)}")
            if not (isinstance(value, str) or (callable(value) and key in SIZES)):
                raise SpaceError(f"names[{key!r}] is {shown(value)}, expected the name that the kernel uses")
        self.dtype = None if dtype is None else dtype_name(dtype)
        self._of_config: dict[tuple[str, ...], list[str | None]] = {}

    def tile(self, kwargs: Arguments, num_warps: object, num_stages: object) -> list[int]:
        """Return the tile of one configuration, in the order of `TILE_FIELDS`.

        Raises
        ------
        SpaceError
            A block size is not among its meta-parameters, or something is no positive integer.
        """
        keys = tuple(kwargs)
        found = self._of_config.get(keys)
        if found is None:
            found = self._of_config[keys] = [self._in_config(field, keys) for field in TILE_FIELDS]
        row = [1 if key is None else kwargs[key] for key in found]
        for at, given in ((3, num_warps), (4, num_stages)):
            row[at] = row[at] if found[at] is not None else given
        for field, value in zip(TILE_FIELDS, row, strict=True):
            # a bool is an int; a split or a number of stages of 0 means none, and is taken as 1
            if type(value) is not int or value < (0 if field in ("num_stages", "split_k", "group_m") else 1):
                raise SpaceError(f"configuration {shown(dict(kwargs))}: {field} is {shown(value)}, expected an integer")
        return [max(1, value) for value in row]

    def problem(self, arguments: Arguments) -> MatmulProblem:
        """Return the product that a call computes.

        Raises
        ------
        SpaceError
            An extent or the dtype cannot be found among the arguments, the operands differ in type, or they are no
            matrices of one product.
        """
        sizes = {size: self._size(size, arguments) for size in SIZES}
        operands = {name: self._operand(name, arguments) for name in OPERANDS}
        a, b, c = (operands[name] for name in OPERANDS)
        dtype = self.dtype
        if dtype is None:
            if not hasattr(a, "dtype"):
                raise SpaceError(
                    "no argument of the kernel has a dtype; name the left operand, as names={'a': 'a_ptr'}, "
                    "or dtype='float16'"
                )
            dtype = dtype_name(a.dtype)
            if hasattr(b, "dtype") and dtype_name(b.dtype) != dtype:
                raise SpaceError(f"operands are {a.dtype!s:.20} and {b.dtype!s:.20}; say dtype= to count both as one")
            dtype = "tf32" if dtype == "float32" else dtype  # tl.dot's default
        problem = MatmulProblem(
            **sizes,
            dtype=dtype,
            out_bytes=int(c.element_size()) if hasattr(c, "element_size") else 0,
            a_along_k=_is_inner(a, (sizes["m"], sizes["k"])),
            b_along_n=_is_inner(b, (sizes["k"], sizes["n"])),
        )
        check_operands(problem, operands)
        return problem

    def _in_config(self, field: str, keys: tuple[str, ...]) -> str | None:
        given = self.names.get(field)
        if isinstance(given, str):
            if given in keys:
                return given
            if field in _MANDATORY:
                raise SpaceError(f"configuration with {', '.join(keys)}: names says {given} for {field}, which is none")
            return None
        matches = [key for key in keys if _plain(key) in _SPELLINGS[field]]
        if not matches and field in _MANDATORY:
            raise SpaceError(
                f"configuration with {', '.join(keys) or 'no meta-parameters'}: which one is {field}? "
                f"say so, as names={{{field!r}: {keys[0] if keys else 'BLOCK_M'!r}}}"
            )
        return matches[0] if matches else None

    def _size(self, size: str, arguments: Arguments) -> int:
        given = self.names.get(size)
        if callable(given):
            try:
                return given(arguments)
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                raise SpaceError(f"names[{size!r}] fails: {type(error).__name__}: {error!s:.60}") from error
        key = given if given is not None else next((key for key in arguments if _plain(key) == size), None)
        if key is None or key not in arguments:
            raise SpaceError(
                f"the kernel's arguments {', '.join(arguments)}: which one is {size}? say so, as "
                f"names={{{size!r}: 'NAME'}}, or as a function of all arguments"
            )
        return arguments[key]  # type: ignore[no-any-return]  # MatmulProblem checks it

    def _operand(self, name: str, arguments: Arguments) -> Argument:
        given = self.names.get(name)
        if isinstance(given, str):
            return arguments.get(given)
        for key, value in arguments.items():
            if _plain(key) in _SPELLINGS[name] and hasattr(value, "dtype"):
                return value
        tensors = [value for value in arguments.values() if hasattr(value, "dtype")]
        return tensors[0] if name == "a" and tensors else None


@functools.lru_cache(maxsize=1024)
def _plain(word: str) -> str:
    return word.lower().replace("_", "")


def _is_inner(tensor: Argument, extents: tuple[int, int]) -> bool:
    """Return whether a matrix of these extents runs along the second one in memory; True where it does not say.

    Its shape may be the other way round: a weight is often stored with the other index first.
    """
    stride, shape = getattr(tensor, "stride", None), tuple(getattr(tensor, "shape", ()))
    if not callable(stride) or len(strides := tuple(stride())) != 2:
        return True
    second = 0 if shape == extents[::-1] and extents[0] != extents[1] else 1
    return bool(strides[second] == 1 or strides[1 - second] != 1)

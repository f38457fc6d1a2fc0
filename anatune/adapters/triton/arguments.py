"""What a Triton kernel's arguments and configurations are called, and what they say about the product."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

from anatune.adapters.triton.operands import (
    PACKED,
    Argument,
    Arguments,
    Operand,
    check_operands,
    dtype_name,
    operand_types,
)
from anatune.arguments import shown
from anatune.errors import SpaceError
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import OPTION_FIELDS, TILE_FIELDS

KernelNames: TypeAlias = Mapping[str, str | bool | Callable[[Arguments], int]]
"""What anatune calls something -> what the kernel calls it; for sizes also a function of all arguments, for options
also whether it always has them."""
DtypeLike: TypeAlias = str | tuple[str, str]
"""Type of the operands, or of the left and the right one ("int4": two weights in an element of 8 bits)."""

SIZES = ("m", "n", "k")
OPERANDS = ("a", "b", "c")
SPELLINGS: dict[str, tuple[str, ...]] = {
    **{f"block_{s}": (f"block{s}", f"blocksize{s}", f"b{s}", f"block{s}size", f"tile{s}") for s in SIZES},
    **{size: (size,) for size in SIZES},
    "group_m": ("groupm", "groupsizem", "groupsize", "group"),
    "split_k": ("splitk", "ksplit"),
    "num_warps": ("numwarps",),
    "num_stages": ("numstages",),
    "a": ("a", "aptr", "ptra", "adesc", "desca", "adescptr", "x", "xptr", "xdesc"),
    "b": ("b", "bptr", "ptrb", "bdesc", "descb", "bdescptr", "w", "wptr", "wdesc", "y", "yptr", "ydesc"),
    "c": ("c", "cptr", "ptrc", "cdesc", "descc", "cdescptr", "out", "outptr", "o", "optr", "odesc", "z", "zptr"),
    "descriptors": ("usetma", "usedescriptors", "usetensordescriptor", "descriptors"),
    "persistent": ("persistent", "ispersistent"),
    "num_sms": ("numsms", "numsm", "nsms"),
}
_MANDATORY = ("block_m", "block_n", "block_k")
_TRANSPOSED = ".T"


class ArgumentNames:
    """Finds tile sizes in configurations, and the product in the arguments of a call.

    Parameters
    ----------
    names : mapping, optional
        What the kernel calls things; of what is left out, usual spellings are recognised.
    dtype : str or pair of str, optional
        Of the operands; left out: theirs, float32 as "tf32" (Triton's default precision).

    Raises
    ------
    SpaceError
        A key of `names` is unknown, or the dtype is.
    """

    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = SPELLINGS
    """What `names` may name -> usual names, in lower case without underscores."""
    sizes: ClassVar[tuple[str, ...]] = SIZES
    """Of these, numbers that may be functions of all arguments."""

    def __init__(self, names: KernelNames | None = None, dtype: object | None = None) -> None:
        if names is not None and not isinstance(names, Mapping):
            raise SpaceError(f"names is {shown(names)}, expected a mapping such as {{'block_m': 'BLOCK_SIZE_M'}}")
        self.names = dict(names or {})
        for key, value in self.names.items():
            if key not in self.spellings:
                raise SpaceError(f"names: unknown key {shown(key)}, expected some of {', '.join(self.spellings)}")
            fits = (callable(value) and key in self.sizes) or (isinstance(value, bool) and key in OPTION_FIELDS)
            if not (isinstance(value, str) or fits):
                raise SpaceError(f"names[{key!r}] is {shown(value)}, expected the name that the kernel uses")
        self.dtypes = given_dtypes(dtype)
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

    def fixed(self, arguments: Arguments) -> dict[str, Argument]:
        """Return the block sizes that a call passes itself; a configuration's own come first."""
        found = [self._named(field, arguments) for field in _MANDATORY]
        return {key: arguments[key] for key in found if key is not None and key in arguments}

    def option(self, field: str, arguments: Arguments) -> bool | None:
        """Return whether a call, with a configuration's meta-parameters, says that it has one of `OPTION_FIELDS`."""
        given = self.names.get(field)
        if isinstance(given, bool):
            return given
        key = self._named(field, arguments)
        return None if key is None or key not in arguments else bool(arguments[key])

    def num_programs(self, arguments: Arguments) -> int | None:
        """Return the number of persistent blocks that a kernel is told, None where it is not."""
        key = self._named("num_sms", arguments)
        value = None if key is None else arguments.get(key)
        return value if type(value) is int and value > 0 else None

    def product(self, arguments: Arguments) -> tuple[MatmulProblem, dict[str, Operand | None]]:
        """Return the product that a call computes, and its operands.

        Raises
        ------
        SpaceError
            An extent or the dtype cannot be found among the arguments, the operands differ in type, or they are no
            matrices of one product.
        """
        sizes = {size: self._size(size, arguments) for size in SIZES}
        operands = {name: self._operand(name, arguments) for name in OPERANDS}
        a, b, c = (operands[name] for name in OPERANDS)
        dtype, right_bytes = operand_types(a, b, self.dtypes)
        problem = MatmulProblem(
            sizes["m"],
            sizes["n"],
            sizes["k"],
            dtype=dtype,
            out_bytes=0 if c is None else c.element_bytes,
            a_along_k=a is None or a.runs_along_second((sizes["m"], sizes["k"])),
            b_along_n=b is None or b.runs_along_second((sizes["k"], sizes["n"])),
            right_bytes=right_bytes,
        )
        check_operands(problem, operands)
        return problem, operands

    def _in_config(self, field: str, keys: tuple[str, ...]) -> str | None:
        given = self.names.get(field)
        if isinstance(given, str):
            if given in keys:
                return given
            if field in _MANDATORY:
                raise SpaceError(f"configuration with {', '.join(keys)}: names says {given} for {field}, which is none")
            return None
        matches = [key for key in keys if _plain(key) in self.spellings[field]]
        if not matches and field in _MANDATORY:
            raise SpaceError(
                f"configuration with {', '.join(keys) or 'no meta-parameters'}: which one is {field}? "
                f"say so, as names={{{field!r}: {keys[0] if keys else 'BLOCK_M'!r}}}"
            )
        return matches[0] if matches else None

    def _named(self, field: str, arguments: Arguments) -> str | None:
        """Return what a call's argument is called, None where no spelling of it is among them."""
        given = self.names.get(field)
        return (
            given
            if isinstance(given, str)
            else next((k for k in arguments if _plain(k) in self.spellings[field]), None)
        )

    def _size(self, size: str, arguments: Arguments) -> int:
        given = self.names.get(size)
        if callable(given):
            try:
                return given(arguments)
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                raise SpaceError(f"names[{size!r}] fails: {type(error).__name__}: {error!s:.60}") from error
        key = self._named(size, arguments)
        if key is None or key not in arguments:
            raise SpaceError(
                f"the kernel's arguments {', '.join(arguments)}: which one is {size}? say so, as "
                f"names={{{size!r}: 'NAME'}}, or as a function of all arguments"
            )
        return arguments[key]  # type: ignore[no-any-return]  # MatmulProblem checks it

    def _operand(self, name: str, arguments: Arguments) -> Operand | None:
        given = self.names.get(name)
        if isinstance(given, str):
            found = Operand.of(arguments.get(given.removesuffix(_TRANSPOSED)))
            return found.turned() if found is not None and given.endswith(_TRANSPOSED) else found
        operands = {key: found for key, value in arguments.items() if (found := Operand.of(value)) is not None}
        spelled = (found for key, found in operands.items() if _plain(key) in self.spellings[name])
        return next(spelled, next(iter(operands.values()), None) if name == "a" else None)


def given_dtypes(dtype: object | None) -> tuple[str, ...]:
    """Return the types that a caller says the operands have: none, one for both, or one each.

    Raises
    ------
    SpaceError
        One is unknown, or the pair is no pair that kernels multiply.
    """
    if dtype is None:
        return ()
    if not isinstance(dtype, tuple | list):
        return (dtype_name(dtype),)
    if len(dtype) != len(OPERANDS) - 1:
        raise SpaceError(f"dtype is {shown(dtype)}, expected one type, or a pair as ('bfloat16', 'int8')")
    left, right = dtype
    names = (dtype_name(left), PACKED if str(right) == PACKED else dtype_name(right))
    operand_types(None, None, names)
    return names


@functools.lru_cache(maxsize=1024)
def _plain(word: str) -> str:
    return word.lower().replace("_", "")

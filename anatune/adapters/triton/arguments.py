"""The names of a Triton kernel's arguments and meta-parameters, and the product that they describe."""

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
from anatune.arguments import quote
from anatune.errors import SpaceError
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import OPTION_FIELDS, TILE_FIELDS

KernelNames: TypeAlias = Mapping[str, str | bool | Callable[[Arguments], int]]
"""anatune's name -> the kernel's name of it. The value may also be a function of all arguments (for sizes), or a bool
that says whether the kernel always has an option."""
DtypeLike: TypeAlias = str | tuple[str, str]
"""The type of both operands, or the types of the left and the right one ("int4": two weights in an 8-bit element)."""

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
        The kernel's names. Usual spellings are recognised for names that are not given.
    dtype : str or pair of str, optional
        The type of the operands. The default is the type of the tensors, with float32 as "tf32" (Triton's default
        precision).

    Raises
    ------
    SpaceError
        A key of `names` or the dtype is unknown.
    """

    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = SPELLINGS
    """The keys that `names` may have -> usual names, in lower case without underscores."""
    sizes: ClassVar[tuple[str, ...]] = SIZES
    """The keys whose values may be functions of all arguments."""

    def __init__(self, names: KernelNames | None = None, dtype: object | None = None) -> None:
        if names is not None and not isinstance(names, Mapping):
            raise SpaceError(f"names is {quote(names)}, expected a mapping such as {{'block_m': 'BLOCK_SIZE_M'}}")
        self.names = dict(names or {})
        for key, value in self.names.items():
            if key not in self.spellings:
                raise SpaceError(f"names: key {quote(key)} is unknown, expected keys among {', '.join(self.spellings)}")
            fits = (callable(value) and key in self.sizes) or (isinstance(value, bool) and key in OPTION_FIELDS)
            if not (isinstance(value, str) or fits):
                raise SpaceError(f"names[{key!r}] is {quote(value)}, expected the kernel's name of it")
        self.dtypes = parse_dtypes(dtype)
        self._of_config: dict[tuple[str, ...], list[str | None]] = {}

    def tile(self, kwargs: Arguments, num_warps: object, num_stages: object) -> list[int]:
        """Return the tile of one configuration, in the order of `TILE_FIELDS`.

        Raises
        ------
        SpaceError
            A block size is not among the meta-parameters, or a value is not a positive integer.
        """
        keys = tuple(kwargs)
        keys_of_fields = self._of_config.get(keys)
        if keys_of_fields is None:
            keys_of_fields = self._of_config[keys] = [self._find_in_config(field, keys) for field in TILE_FIELDS]
        row = [1 if key is None else kwargs[key] for key in keys_of_fields]
        for index, declared in ((3, num_warps), (4, num_stages)):
            row[index] = row[index] if keys_of_fields[index] is not None else declared
        for field, value in zip(TILE_FIELDS, row, strict=True):
            # a bool is an int; 0 for split_k, group_m or num_stages means 1
            if type(value) is not int or value < (0 if field in ("num_stages", "split_k", "group_m") else 1):
                raise SpaceError(f"configuration {quote(dict(kwargs))}: {field} is {quote(value)}, expected an integer")
        return [max(1, value) for value in row]

    def find_block_sizes(self, arguments: Arguments) -> dict[str, Argument]:
        """Return the block sizes among the arguments of a call; those of a configuration have priority."""
        names = [self._find_name(field, arguments) for field in _MANDATORY]
        return {key: arguments[key] for key in names if key is not None and key in arguments}

    def option(self, field: str, arguments: Arguments) -> bool | None:
        """Return whether the arguments of a call set one of `OPTION_FIELDS`, or None if they do not say."""
        declared = self.names.get(field)
        if isinstance(declared, bool):
            return declared
        key = self._find_name(field, arguments)
        return None if key is None or key not in arguments else bool(arguments[key])

    def num_programs(self, arguments: Arguments) -> int | None:
        """Return the number of persistent blocks that the kernel gets as an argument, or None."""
        key = self._find_name("num_sms", arguments)
        value = None if key is None else arguments.get(key)
        return value if type(value) is int and value > 0 else None

    def product(self, arguments: Arguments) -> tuple[MatmulProblem, dict[str, Operand | None]]:
        """Return the product that a call computes, and its operands.

        Raises
        ------
        SpaceError
            An extent or the dtype is not among the arguments, the operands have different types, or they are not the
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

    def _find_in_config(self, field: str, keys: tuple[str, ...]) -> str | None:
        declared = self.names.get(field)
        if isinstance(declared, str):
            if declared in keys:
                return declared
            if field in _MANDATORY:
                raise SpaceError(f"configuration with {', '.join(keys)}: no {declared}, which names gives for {field}")
            return None
        matches = [key for key in keys if _plain(key) in self.spellings[field]]
        if not matches and field in _MANDATORY:
            raise SpaceError(
                f"configuration with {', '.join(keys) or 'no meta-parameters'}: {field} is not among them; name it, "
                f"for example names={{{field!r}: {keys[0] if keys else 'BLOCK_M'!r}}}"
            )
        return matches[0] if matches else None

    def _find_name(self, field: str, arguments: Arguments) -> str | None:
        """Return the kernel's name of an argument, or None if no usual spelling is among the arguments."""
        declared = self.names.get(field)
        return (
            declared
            if isinstance(declared, str)
            else next((k for k in arguments if _plain(k) in self.spellings[field]), None)
        )

    def _size(self, size: str, arguments: Arguments) -> int:
        declared = self.names.get(size)
        if callable(declared):
            try:
                return declared(arguments)
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                raise SpaceError(f"names[{size!r}] fails: {type(error).__name__}: {error!s:.60}") from error
        key = self._find_name(size, arguments)
        if key is None or key not in arguments:
            raise SpaceError(
                f"the kernel's arguments {', '.join(arguments)}: {size} is not among them; name it with "
                f"names={{{size!r}: 'NAME'}}, or give a function of all arguments"
            )
        return arguments[key]  # type: ignore[no-any-return]  # MatmulProblem checks it

    def _operand(self, name: str, arguments: Arguments) -> Operand | None:
        declared = self.names.get(name)
        if isinstance(declared, str):
            operand = Operand.of(arguments.get(declared.removesuffix(_TRANSPOSED)))
            return operand.transpose() if operand is not None and declared.endswith(_TRANSPOSED) else operand
        operands = {key: operand for key, value in arguments.items() if (operand := Operand.of(value)) is not None}
        spelled = (found for key, found in operands.items() if _plain(key) in self.spellings[name])
        return next(spelled, next(iter(operands.values()), None) if name == "a" else None)


def parse_dtypes(dtype: object | None) -> tuple[str, ...]:
    """Return the operand types of the argument `dtype`: no type, one type for both operands, or one each.

    Raises
    ------
    SpaceError
        A type is unknown, or kernels cannot multiply the pair.
    """
    if dtype is None:
        return ()
    if not isinstance(dtype, tuple | list):
        return (dtype_name(dtype),)
    if len(dtype) != len(OPERANDS) - 1:
        raise SpaceError(f"dtype is {quote(dtype)}, expected one type, or a pair such as ('bfloat16', 'int8')")
    left, right = dtype
    names = (dtype_name(left), PACKED if str(right) == PACKED else dtype_name(right))
    operand_types(None, None, names)
    return names


@functools.lru_cache(maxsize=1024)
def _plain(word: str) -> str:
    return word.lower().replace("_", "")

"""The constructor of products of tensors in Einstein notation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from anatune.arguments import quote
from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.number_formats import Formats, accumulated_dtype, format_word
from anatune.core.workload.operators._arguments import check_dtype, check_extent, check_shape
from anatune.core.workload.operators._product import check_product_formats, make_access
from anatune.errors import WorkloadError

__all__ = ["einsum"]

_NAMES = "ABCDEFGHIJKLMNOPQRSUVWXYZ"
"""Names of the tensors, in order; generated programs use T for something else."""


def _split_subscripts(subscripts: object) -> tuple[tuple[str, ...], str]:
    """Return the letters of each operand and of the result."""
    example = "write for example 'bij,bjk->bik'"
    if not isinstance(subscripts, str):
        raise WorkloadError(f"einsum: subscripts is {quote(subscripts)}, expected text; {example}")
    text = subscripts.replace(" ", "")
    if "." in text:
        raise WorkloadError(f"einsum: {subscripts!r} holds an ellipsis, expected one letter a dimension; {example}")
    if not re.fullmatch(r"[A-Za-z]+(,[A-Za-z]+)*(->[A-Za-z]*)?", text):
        raise WorkloadError(f"einsum: {subscripts!r} does not parse, expected letters, commas and one '->'; {example}")
    left, arrow, result = text.partition("->")
    operands = tuple(left.split(","))
    if len(operands) >= len(_NAMES):
        raise WorkloadError(f"einsum: {len(operands)} operands, expected at most {len(_NAMES) - 1}; split the product")
    for letters in (*operands, result):
        if len(set(letters)) != len(letters):
            raise WorkloadError(
                f"einsum: {letters!r} of {subscripts!r} repeats a letter, expected each once per tensor "
                f"(diagonals are not supported); {example}"
            )
    if not arrow:
        result = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    missing = sorted(set(result) - set(left))
    if missing:
        raise WorkloadError(
            f"einsum: result letters {', '.join(missing)} of {subscripts!r} are in no operand, "
            f"expected letters of the operands; {example}"
        )
    return operands, result


def _extents(operands: tuple[str, ...], shapes: object) -> dict[str, int]:
    """Return the extent of every letter, in order of appearance."""
    letters = list(dict.fromkeys("".join(operands)))
    if isinstance(shapes, Mapping):
        if set(shapes) != set(letters):
            raise WorkloadError(
                f"einsum: extents are given for {', '.join(map(str, shapes))}, "
                f"expected {', '.join(letters)}; give one extent for each letter"
            )
        return {letter: check_extent("einsum", f"extent of {letter}", shapes[letter]) for letter in letters}
    if not isinstance(shapes, (tuple, list)) or len(shapes) != len(operands):
        raise WorkloadError(
            f"einsum: shapes is {quote(shapes)}, expected {len(operands)} shapes; give one shape for each operand"
        )
    extents: dict[str, int] = {}
    for name, word, operand_shape in zip(_NAMES, operands, shapes, strict=False):
        shape = check_shape("einsum", f"shape of {name}", operand_shape)
        if len(shape) != len(word):
            raise WorkloadError(
                f"einsum: operand {name} ({word}) has shape {shape}, expected {len(word)} dimensions; "
                "give one extent for each letter"
            )
        for letter, extent in zip(word, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise WorkloadError(
                    f"einsum: {letter} is {extents[letter]} in one operand and {extent} in {name} ({word}), "
                    "expected the same extent everywhere; correct the shapes"
                )
    return extents


def einsum(subscripts: str, shapes: Sequence[Sequence[int]] | Mapping[str, int], dtype: str = "float32") -> Workload:
    """Return a product of tensors that is summed over the letters that the result lacks.

    Parameters
    ----------
    subscripts : str
        Letters of each operand and of the result, for example "bij,bjk->bik". Without "->" the result has the letters
        that occur once, in alphabetical order, as in NumPy. Diagonals and ellipses are not supported.
    shapes : sequence of shapes, or mapping of letter to extent
        One shape for each operand, or the extent of each letter, in elements, >= 1.
    dtype : {"float32", "float16", "bfloat16", "int8"}
        Dtype of the operands, which are called A, B, ...; the result (the next letter) has the same dtype, or int32 for
        products or sums of int8. For two operands and a sum, all dtypes of `matmul` are allowed.

    Returns
    -------
    Workload
        Its axes are the letters: those of the result, then those that are summed over. n operands cost n operations for
        each point (n - 1 if nothing is summed).

    Raises
    ------
    WorkloadError
        The notation cannot be parsed, or the sizes contradict it.
    """
    operands, result = _split_subscripts(subscripts)
    extents = _extents(operands, shapes)
    summed = [letter for letter in extents if letter not in result]
    is_single = len(operands) == 1
    body = ("add" if is_single else "multiply_add") if summed else ("copy" if is_single else "multiply")
    if body == "multiply_add" and len(operands) == 2:
        formats = check_product_formats("einsum", dtype, ())
    else:
        element = check_dtype("einsum", dtype)
        formats = Formats(element, element, element if body == "copy" else accumulated_dtype(element))

    def access(tensor: str, letters: str, element: str) -> Access:
        return make_access(tensor, element, [(extents[letter], (Term(letter),), 0) for letter in letters])

    elements = (formats.left, *(formats.right for _ in operands[1:]))
    return Workload(
        operator="einsum",
        axes=(
            *(Axis(letter, extents[letter], "spatial") for letter in result),
            *(Axis(letter, extents[letter], "reduction") for letter in summed),
        ),
        reads=tuple(access(*each) for each in zip(_NAMES, operands, elements, strict=False)),
        write=access(_NAMES[len(operands)], result, formats.result),
        body=body,
        flop_per_point=len(operands) if summed else len(operands) - 1,
        attributes=(
            ("subscripts", f"{','.join(operands)}->{result}"),
            ("shapes", tuple(tuple(extents[letter] for letter in word) for word in operands)),
            ("dtype", format_word(formats[:2], formats.result, ()) if body == "multiply_add" else formats.left),
        ),
    )

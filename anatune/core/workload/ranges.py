"""Ranged workloads, in which the extent of one axis varies: their workload at each extent, and their text.

``matmul 1..8192x4096x4096`` ranges over i from 1 to 8192; ``64..4096:64`` takes steps of 64, ``1,2,4,8`` is a list.

Notation
--------
ranged axis : the axis whose extent varies; a kernel for a range receives the extent when it is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.arguments import is_iterable, quote
from anatune.core.workload.access import MAX_INTEGER, Access
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.text import parse_workload
from anatune.errors import SpaceError, WorkloadError

MOST_EXTENTS = 65_536
"""Largest number of extents of one range, because each of them is planned."""
_EXAMPLE = "matmul 1..8192x4096x4096, 64..4096:64x768x768 or 1,2,4,8x4096x4096"
_WORD = re.compile(r"[0-9.,:]+(x[0-9.,:]+)*")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})(?::([0-9]{1,18}))?")
_LIST = re.compile(r"[0-9]{1,18}(,[0-9]{1,18})+")


class RangedWorkload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A workload with many extents of one axis. Immutable, hashable; JSON both ways.

    Attributes
    ----------
    largest : Workload
        The workload at the largest extent.
    axis : str
        The axis that varies.
    extents : tuple of int
        All extents of the axis, ascending, without repetition.
    """

    largest: Workload
    axis: str
    extents: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.axis not in self.largest.extents:
            axes = ", ".join(self.largest.extents)
            raise WorkloadError(
                f"range: {self.largest.operator} has no axis {quote(self.axis)}, expected one of {axes}"
            )
        if not self.extents or self.extents[-1] != self.largest.extents[self.axis]:
            raise WorkloadError(f"range: extents {quote(self.extents)} do not end with the workload's own")
        check_rangeable(self.largest, self.axis)

    def __repr__(self) -> str:
        return f"RangedWorkload({self.describe()})"

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The extents, (num_extents,) int64, ascending."""
        return np.array(self.extents, dtype=np.int64)

    def at(self, extent: int) -> Workload:
        """Return the workload at an extent, which need not be listed."""
        return _resize(self.largest, self.axis, int(extent), self._attribute)

    @cached_property
    def _attribute(self) -> str:
        return _find_attribute(self.largest, self.axis)

    def format_extents(self) -> str:
        """Return the extents as short text: "1..8192", "64..4096:64", or a list of all."""
        steps = np.unique(np.diff(self.numbers))
        if len(self.extents) > 2 and len(steps) == 1:
            step = int(steps[0])
            return f"{self.extents[0]}..{self.extents[-1]}" + ("" if step == 1 else f":{step}")
        return ",".join(map(str, self.extents))

    def describe(self) -> str:
        """Return one line: operator, axes with extents, and dtypes."""
        loops = " ".join(
            f"{axis.name}={self.format_extents() if axis.name == self.axis else axis.extent}"
            for axis in self.largest.axes
        )
        tail = "".join(f"+{step}" for step in self.largest.epilogue)
        return f"{self.largest.operator}{tail} {loops} {self.largest.formats}"


def check_rangeable(workload: Workload, axis: str) -> None:
    """Raise WorkloadError unless the extent of an axis can vary alone.

    It can if each tensor that uses the axis has a dimension for this axis alone: a kernel then needs only the extent.
    The window of a convolution and the positions that it slides over share dimensions.
    """
    obstacle = _obstacle(workload, axis)
    if obstacle is None:
        return
    free = ", ".join(name for name in workload.extents if _obstacle(workload, name) is None)
    raise WorkloadError(
        f"range: axis {axis} of {workload.operator} cannot vary, because {obstacle}, expected by the axis alone; range "
        f"over {free or 'an axis of another workload'}"
    )


def _obstacle(workload: Workload, axis: str) -> str | None:
    """Return a description of a dimension that the axis shares with others, or None if there is none."""
    for access in workload.tensors:
        for dimension, (terms, offset, size) in enumerate(
            zip(access.indices, access.offsets, access.shape, strict=True)
        ):
            if all(term.axis != axis for term in terms):
                continue
            alone = len(terms) == 1 and terms[0].coefficient == 1
            if alone and offset == 0 and size == workload.extents[axis]:
                continue
            index = " + ".join(t.axis if t.coefficient == 1 else f"{t.coefficient} {t.axis}" for t in terms)
            index += f" - {-offset}" if offset < 0 else f" + {offset}" if offset else ""
            return f"dimension {dimension} of {access.tensor} is indexed by {index}"
    return None


def _resize(workload: Workload, axis: str, extent: int, attribute: str) -> Workload:
    """Return a workload with another extent of an axis that has its own dimensions."""
    if extent == workload.extents[axis]:
        return workload

    def resize_access(access: Access) -> Access:
        shape = tuple(
            extent if any(term.axis == axis for term in terms) else size
            for terms, size in zip(access.indices, access.shape, strict=True)
        )
        return msgspec.structs.replace(access, shape=shape)

    return msgspec.structs.replace(
        workload,
        axes=tuple(msgspec.structs.replace(a, extent=extent) if a.name == axis else a for a in workload.axes),
        reads=tuple(map(resize_access, workload.reads)),
        write=resize_access(workload.write),
        epilogue_reads=tuple(map(resize_access, workload.epilogue_reads)),
        attributes=tuple((key, extent if key == attribute else value) for key, value in workload.attributes),
    )


def _find_attribute(workload: Workload, axis: str) -> str:
    """Return the argument of the constructor that is the extent of an axis.

    It is found by trial: the argument that, increased by one, makes this axis longer by one and no other.

    Raises
    ------
    WorkloadError
        The constructor has no such argument.
    """
    attributes = workload.attribute
    for name, value in attributes.items():
        if value != workload.extents[axis] or isinstance(value, bool) or not isinstance(value, int):
            continue
        try:
            larger = CONSTRUCTORS[workload.operator](**{**attributes, name: value + 1})
        except (KeyError, WorkloadError):
            continue
        if dict(larger.extents) == {**workload.extents, axis: value + 1}:
            return name
    raise WorkloadError(
        f"range: axis {axis} of {workload.operator} is not an argument of its constructor; expected for example the "
        "rows of a matrix product or the batch of a convolution"
    )


def make_ranged_workload(workload: Workload, axis: object, extents: object) -> RangedWorkload:
    """Return a workload with many extents of one axis.

    Parameters
    ----------
    workload : Workload
        The workload at any extent of the axis.
    axis : str
        Name of the axis.
    extents : str, or iterable of int
        "1..8192", "64..4096:64", "1,2,4,8", ``range(1, 8193)``, or a list; in any order.

    Raises
    ------
    WorkloadError
        The axis does not exist or cannot vary alone, or the extents are empty, too many, or not integers >= 1.
    """
    if not isinstance(workload, Workload):
        raise WorkloadError(f"range: workload is {quote(workload)}, expected a Workload, as anatune.matmul(...) makes")
    if not isinstance(axis, str) or axis not in workload.extents:
        axes = ", ".join(workload.extents)
        raise WorkloadError(f"range: {workload.operator} has no axis {quote(axis)}, expected one of {axes}")
    check_rangeable(workload, axis)
    if isinstance(extents, str):
        numbers: Iterable[object] = _parse_extents(extents)
    elif is_iterable(extents):
        numbers = extents
    else:
        raise WorkloadError(f"range: extents are {quote(extents)}, expected '1..8192', range(1, 8193) or a list")
    unique = _check_extents(numbers)
    return RangedWorkload(_resize(workload, axis, unique[-1], _find_attribute(workload, axis)), axis, unique)


def _check_extents(numbers: Iterable[object]) -> tuple[int, ...]:
    """Return the extents in ascending order without repetition."""
    unique: set[int] = set()
    for number in numbers:
        if not isinstance(number, Integral) or isinstance(number, bool) or not 1 <= int(number) <= MAX_INTEGER:
            raise WorkloadError(f"range: {quote(number)} is no extent, expected integers from 1 to {MAX_INTEGER}")
        unique.add(int(number))
        if len(unique) > MOST_EXTENTS:
            raise WorkloadError(
                f"range: more than {MOST_EXTENTS:,} extents; expected fewer; use steps, for example 64..4096:64"
            )
    if not unique:
        raise WorkloadError("range: no extents, expected at least one; write for example 1..8192")
    return tuple(sorted(unique))


# ---- as text -------------------------------------------------------------------------------------


def _parse_extents(text: str) -> Sequence[int]:
    """Return the extents of a range, a list, or a single number.

    Raises
    ------
    WorkloadError
        The text is none of these, or the range is reversed or has steps of 0.
    """
    if re.fullmatch("[0-9]{1,18}", text):
        return [int(text)]
    if _LIST.fullmatch(text):
        return [int(part) for part in text.split(",")]
    match = _RANGE.fullmatch(text)
    if match is None:
        raise WorkloadError(f"range {text!r:.60}: expected FIRST..LAST, FIRST..LAST:STEP or a list; write {_EXAMPLE}")
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first > last:
        raise WorkloadError(f"range {text}: the first extent is larger than the last; write {last}..{first}")
    if first < 1 or step < 1:
        problem = "starts at 0" if first < 1 else "has steps of 0"
        raise WorkloadError(f"range {text} {problem}, expected extents and steps from 1; write for example 1..8192")
    return range(first, last + 1, step)


def has_range(words: Sequence[str]) -> bool:
    """Return whether a word of a workload's text contains a range or a list of extents."""
    return any(_has_several_extents(word) for word in words)


def _has_several_extents(word: str) -> bool:
    return _WORD.fullmatch(word) is not None and (".." in word or "," in word)


def parse_ranged_workload(words: Sequence[str], **options: Any) -> RangedWorkload:
    """Return the workload of words of which one extent is a range or a list; options as in `parse_workload`.

    Raises
    ------
    WorkloadError, UnknownNameError
        As in `parse_workload` and `ranged`; there is no range, or more than one.

    Examples
    --------
    >>> parse_ranged_workload(["matmul", "1..8192x4096x4096"]).axis
    'i'
    """
    positions = [
        (at, place)
        for at, word in enumerate(words)
        if _has_several_extents(word)
        for place, part in enumerate(word.split("x"))
        if not re.fullmatch("[0-9]*", part)
    ]
    if len(positions) != 1:
        raise WorkloadError(
            f"range: {' '.join(words)!r:.80} has {len(positions)} ranges, expected one extent that varies; write "
            f"{_EXAMPLE}"
        )
    word_index, part_index = positions[0]
    parts = words[word_index].split("x")
    extents = _check_extents(_parse_extents(parts[part_index]))

    def make_workload(extent: int) -> Workload:
        parts[part_index] = str(extent)
        return parse_workload([*words[:word_index], "x".join(parts), *words[word_index + 1 :]], **options)

    largest = make_workload(extents[-1])
    # Find the axis of the word: build the workload with a second extent, which no constructor refuses, and compare.
    other = make_workload(extents[0] if len(extents) > 1 else extents[-1] + 1)
    changed = [name for name in largest.extents if _differs(largest, other, name)]
    if len(changed) != 1 or largest.extents[changed[0]] != extents[-1]:
        raise WorkloadError(
            f"range: {words[word_index]} changes {' and '.join(changed) or 'no axis'} of {largest.operator}, expected "
            "the extent of one axis; range over the batch, the channels or a side of a product"
        )
    return RangedWorkload(largest, changed[0], extents)


def _differs(first: Workload, other: Workload, axis: str) -> bool:
    return first.extents[axis] != other.extents.get(axis)


def check_range_arguments(workload: object, axis: object, extents: object) -> RangedWorkload:
    """Return the ranged workload that the arguments of `anatune.plan_range` describe.

    Raises
    ------
    SpaceError, WorkloadError
        The arguments have wrong types, or there is no such range.
    """
    if isinstance(workload, Workload) and (axis is None or extents is None):
        raise SpaceError("plan_range: a Workload needs axis and extents, for example axis='i', extents='1..8192'")
    if isinstance(workload, Workload):
        return make_ranged_workload(workload, axis, extents)
    if axis is not None or extents is not None:
        raise SpaceError("plan_range: axis and extents are given, but the workload has a range; leave them out")
    if isinstance(workload, str):
        return parse_ranged_workload(workload.split())
    if not isinstance(workload, RangedWorkload):
        raise SpaceError(
            f"plan_range: workload is {quote(workload)}, expected text such as 'matmul 1..8192x4096x4096', or a "
            "Workload with axis and extents"
        )
    return workload

"""Group the nests that one kernel computes: a nest reads what another one has computed from registers.

Notation
--------
row-major : element (i, j, ..) of a nest has the number ``i * size_of_all_inner + ..``; spatial loops come first.
rows, cols : a kernel's elements form a matrix. Nests that reduce compute one number per row of it; others one per
    element, or one per row. A kernel without reductions has elements only.
full : a nest or tensor with all elements; otherwise it has one per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anatune.network.relax.device.ir import DeviceNest, Element, elements_in
from anatune.network.relax.device.steps import KernelCall, NestStep, Tensor

__all__ = ["MOST_COLS", "LoopForm", "NestGroup", "form_of", "group_nests", "is_same", "join_independent"]

MOST_COLS = 1 << 14
"""Most elements of a row that a kernel holds at once; longer rows are reduced in steps, by a separate kernel."""

_MOST_GROUPS = 4
"""Most groups in one launch."""


class LoopForm(NamedTuple):
    """The loops of a nest as one row-major number.

    Attributes
    ----------
    spatial, reduced : tuple of int
        Indices of the loops.
    size, depth : int
        Iterations of all spatial loops, and of all reductions (1 without reductions).
    strides : tuple of int
        Stride of each loop in the row-major number, separately for spatial loops and reductions.
    """

    spatial: tuple[int, ...]
    reduced: tuple[int, ...]
    size: int
    depth: int
    strides: tuple[int, ...]


def form_of(nest: DeviceNest) -> LoopForm:
    """Return the loops of a nest as one row-major number."""
    spatial = tuple(place for place, reduces in enumerate(nest.is_reduction) if not reduces)
    reduced = tuple(place for place, reduces in enumerate(nest.is_reduction) if reduces)
    strides = [0] * len(nest.extents)
    sizes = []
    for places in (spatial, reduced):
        step = 1
        for loop in reversed(places):
            strides[loop], step = step, step * nest.extents[loop]
        sizes.append(step)
    return LoopForm(spatial, reduced, sizes[0], sizes[1], tuple(strides))


@dataclass(eq=False)
class NestGroup:
    """The nests of one kernel.

    Attributes
    ----------
    units : list of NestStep
    rows, cols : int
        Size of its matrix of elements; without reductions cols is 0, and rows counts all elements.
    full : dict of Tensor to bool
        The tensors that its nests compute, and whether each is full.
    is_open : bool
        Whether other nests may join, because the first one writes its elements in order.
    """

    units: list[NestStep]
    rows: int
    cols: int
    full: dict[Tensor, bool] = field(default_factory=dict)
    is_open: bool = True

    @property
    def total(self) -> int:
        """Number of all elements."""
        return self.rows * max(self.cols, 1)


def group_nests(steps: Sequence[KernelCall | NestStep]) -> list[KernelCall | NestGroup]:
    """Return steps with nests that can share a kernel in one group, at the position of the first of them."""
    items: list[KernelCall | NestGroup] = []
    makers: dict[Tensor, int] = {}
    """Tensor -> index in `items` of the step that computes it."""
    for step in steps:
        index = len(items)
        if isinstance(step, NestStep):
            needed = [makers[one] for one in step.reads if one in makers]
            for candidate in sorted({one for one in needed if isinstance(items[one], NestGroup)}, reverse=True):
                group = items[candidate]
                assert isinstance(group, NestGroup)
                if max(needed) == candidate and _try_join(group, step):
                    index = candidate
                    break
        if index == len(items):
            items.append(_new_group(step) if isinstance(step, NestStep) else step)
        makers.update(dict.fromkeys(step.writes, index))
    return items


def join_independent(items: Sequence[KernelCall | NestGroup]) -> list[KernelCall | tuple[NestGroup, ...]]:
    """Return items with independent groups joined, at the position of the earliest of them."""
    joined: list[KernelCall | tuple[NestGroup, ...]] = []
    makers: dict[Tensor, int] = {}
    for item in items:
        steps = item.units if isinstance(item, NestGroup) else [item]
        index = len(joined)
        if not isinstance(item, NestGroup):
            joined.append(item)
        else:
            needed = max((makers[one] for step in steps for one in step.reads if one in makers), default=-1)
            for candidate in range(index - 1, needed, -1):
                others = joined[candidate]
                if isinstance(others, tuple) and not isinstance(others, KernelCall) and len(others) < _MOST_GROUPS:
                    index, joined[candidate] = candidate, (*others, item)
                    break
            else:
                joined.append((item,))
        makers.update((tensor, index) for step in steps for tensor in step.writes)
    return joined


def _new_group(unit: NestStep) -> NestGroup:
    form = form_of(unit.nest)
    group = NestGroup([], form.size, form.depth if form.reduced else 0)
    group.is_open = _writes_in_order(unit.nest, form)
    _add_unit(group, unit, form)
    return group


def _add_unit(group: NestGroup, unit: NestStep, form: LoopForm) -> None:
    group.units.append(unit)
    is_full = not form.reduced and form.size == group.total
    group.full.update(dict.fromkeys(unit.writes, is_full))


def _try_join(group: NestGroup, unit: NestStep) -> bool:
    """Add a nest to a group if it fits; return whether it did."""
    form = form_of(unit.nest)
    rows, cols = group.rows, group.cols
    if form.reduced:
        if not cols and form.size * form.depth == rows:
            rows, cols = form.size, form.depth
        if (form.size, form.depth) != (rows, cols) or cols > MOST_COLS:
            return False
    elif form.size not in ((rows * cols, rows) if cols else (rows,)) or (cols > MOST_COLS and form.size != rows):
        return False
    is_last = not _writes_in_order(unit.nest, form)  # it writes elsewhere, such as cache rows: nothing can join it
    if not group.is_open or (is_last and (form.reduced or form.size != rows * max(cols, 1))):
        return False
    is_full = bool(form.reduced) or form.size == rows * max(cols, 1)
    for element in elements_in(unit.nest):
        tensor = unit.tensors[element.buffer]
        if tensor in unit.writes or tensor not in group.full:
            continue
        if not is_same(unit.nest, form, element, cols, is_full, full=group.full[tensor]):
            return False
    if cols and not group.cols:  # the elements become elements of several rows
        group.rows, group.cols = rows, cols
    group.is_open = not is_last
    _add_unit(group, unit, form)
    return True


def _writes_in_order(nest: DeviceNest, form: LoopForm) -> bool:
    """Return whether a nest's results lie in memory in the order of its spatial loops."""
    factors = nest.target.factors
    if factors is None or factors[-1]:
        return False
    for loop, (factor, extent) in enumerate(zip(factors[:-1], nest.extents, strict=True)):
        wanted = 0 if loop in form.reduced else form.strides[loop]
        if extent != 1 and factor != wanted:
            return False
    return True


def is_same(nest: DeviceNest, form: LoopForm, element: Element, cols: int, is_full: bool, *, full: bool) -> bool:
    """Return whether an element of a tensor is the one that the same element of the nest, or its row, has computed."""
    factors = element.factors
    if factors is None or factors[-1] or (full and not is_full):
        return False
    width = max(cols, 1)
    for loop, (factor, extent) in enumerate(zip(factors[:-1], nest.extents, strict=True)):
        if extent == 1:
            continue
        step = form.strides[loop]
        if form.reduced:  # in rows and columns
            wanted = (step if loop in form.reduced else step * width) if full else (0 if loop in form.reduced else step)
        elif full or not is_full:
            wanted = step
        elif step * extent <= width:
            wanted = 0
        else:
            wanted = step // width
            if step % width:
                return False
        if factor != wanted:
            return False
    return True

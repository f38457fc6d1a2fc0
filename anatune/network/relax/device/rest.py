"""Write a group of nests as tiles of rows and columns for Triton; results stay in registers for the next nest."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anatune.core.hardware.spec import GpuSpec
from anatune.emit.buffer import Buffer
from anatune.network.relax.device.functions import expand, join, reduce_tile
from anatune.network.relax.device.groups import LoopForm, NestGroup, form_of, is_same
from anatune.network.relax.device.ir import (
    Assign,
    CallExpr,
    Cast,
    ChoiceExpr,
    Element,
    Expanded,
    Expr,
    For,
    Full,
    Infix,
    Load,
    Name,
    Number,
    Reduction,
    Statement,
    Store,
    clamp_finite,
    compensated_sum,
    equal,
    names_in,
    where,
)  # fmt: skip
from anatune.network.relax.device.steps import NestStep, Tensor
from anatune.network.relax.rest.sums import BLOCK

__all__ = ["KernelPart", "write_part"]

_TILE = 2048
"""Elements of a tile: 16 for each lane of four warps."""
_LEAST_TILE = 256
_MOST_WARPS = 16
_LANES, _ELEMENTS = 32, 8
_STEP = 64
"""Rows of a tile whose neighbours in memory are rows, and most columns of it."""
_NARROW = 1 << 31
_HALVES = ("float16", "bfloat16")
_MOST = 3.4028234663852886e38
_NEUTRAL = {"Add": (0,), "Max": (-_MOST, -math.inf), "Min": (_MOST, math.inf), "Or": (0,), "And": (1,), "Mul": (1,)}
"""Kind of a reduction -> neutral values that it begins with."""
_AT, _ROW, _COL = Name("at"), Name("row"), Name("col")
"""The number of an element without reductions, of a row, and of a column."""
_INSIDE, _WITHIN = Name("inside"), Name("within")
"""Masks: the element or row exists, and the column exists."""


class KernelPart(NamedTuple):
    """A group's statements, where ``program`` is the index of one of `grid` programs, and the data of `RestKernel`."""

    name: str
    shape: str
    statements: list[Statement]
    names: Mapping[Tensor, str]
    reads: list[Tensor]
    writes: list[Tensor]
    grid: int
    warps: int
    num_bytes: int
    terms: int


def write_part(
    group: NestGroup, is_kept: Callable[[Tensor], bool], dtype_of: Callable[[Tensor], str], hardware: GpuSpec
) -> KernelPart:
    """Return the statements of a group. Parameters and errors are those of `modules.make_rest_kernel`."""
    return _TileWriter(group, is_kept, dtype_of, hardware).write_part()


def _next_power(number: float) -> int:
    """Return the next power of two."""
    return 1 << max(0, math.ceil(math.log2(max(number, 1))))


class _TileWriter:
    def __init__(
        self, group: NestGroup, is_kept: Callable[[Tensor], bool], dtype_of: Callable[[Tensor], str], hardware: GpuSpec
    ) -> None:
        self.group, self.kept, self.dtype_of = group, is_kept, dtype_of
        self.statements: list[Statement] = []
        self.count = 0
        """Number of statements, which makes names unique."""
        self.loops: dict[str, Expr] = {}
        """Loops of a nest -> their values."""
        self.names: dict[Tensor, str] = {}
        """Tensors in memory -> parameters."""
        self.registers: dict[Tensor, Name] = {}
        """Tensors in registers -> values."""
        self.loaded: dict[Expr, Name] = {}
        self.loads: Counter[Tensor] = Counter()
        """Number of different elements that are read of each tensor."""
        self.reads: list[Tensor] = []
        self.writes: list[Tensor] = []
        self.terms = 0
        self.unit: NestStep = group.units[0]
        self.full = True
        self.is_flat = not group.cols
        self._choose_tile(hardware)

    # -- tiles -------------------------------------------------------------------------------------------------------

    def _choose_tile(self, hardware: GpuSpec) -> None:
        group, most = self.group, hardware.compute.num_sms
        if self.is_flat:
            self.block_rows, self.block_cols = min(_next_power(group.rows), _TILE // 2), 1
            while self.block_rows > _LEAST_TILE // 2 and group.rows < most * self.block_rows:
                self.block_rows //= 2
        else:
            across = self._is_across()
            whole = _next_power(group.cols)
            self.block_cols = min(whole, _STEP) if across else whole if self._is_whole() else min(whole, _TILE)
            self.block_rows = min(_next_power(group.rows), _STEP if across else max(1, _TILE // self.block_cols))
            least = _LANES if across else 1
            while self.block_rows > least and group.rows < most * self.block_rows:
                self.block_rows //= 2
        self.is_stepped = not self.is_flat and self.block_cols < group.cols
        tile = self.block_rows * self.block_cols
        self.warps = min(_MOST_WARPS, _next_power(max(1, tile // (_LANES * _ELEMENTS))))
        self.grid = -(-group.rows // self.block_rows)

    def _reductions(self) -> list[tuple[NestStep, LoopForm]]:
        return [(unit, form) for unit, form in ((one, form_of(one.nest)) for one in self.group.units) if form.reduced]

    def _is_whole(self) -> bool:
        """Return whether a row has to be in registers as a whole, because of several reductions."""
        return len(self._reductions()) > 1 or any(self.group.full.values())

    def _is_across(self) -> bool:
        """Return whether neighbours in memory are rows, which only a lone reduction over distant elements has."""
        if self._is_whole():
            return False
        ((unit, form),) = self._reductions()
        moves = unit.nest.moves
        along = any(steps[place] == 1 for steps in moves for place in form.reduced)
        return not along and any(steps[place] == 1 for steps in moves for place in form.spatial)

    # -- the module --------------------------------------------------------------------------------------------------

    def write_part(self) -> KernelPart:
        """Return the statements and data of the group."""
        group = self.group
        for unit in group.units:
            self._write_unit(unit)
        shape = f"{group.rows} rows of {group.cols}" if group.cols else f"{group.rows} elements"
        most = max(
            form.size * form.depth for form in (form_of(unit.nest) for unit in group.units)
        )  # of tables, parts are read
        num_bytes = sum(
            Buffer("", self.dtype_of(one), (min(max(1, one.size), most * max(1, self.loads[one])),)).num_bytes
            for one in (*self.reads, *self.writes)
        )
        return KernelPart(
            self._kernel_name(), shape, [*self._head(), *self.statements], self.names, self.reads, self.writes,
            self.grid, self.warps, num_bytes, self.terms,
        )  # fmt: skip

    def _kernel_name(self) -> str:
        names = (unit.nest.name.removeprefix("fused_").rstrip("0123456789") for unit in self.group.units)
        name = "_".join(dict.fromkeys(names))
        return _identifier(name if len(name) <= 60 else f"{name[:56]}_etc") or "rest"

    def _head(self) -> list[Statement]:
        group, program = self.group, Name("program")
        most = max(group.total, *(one.size for one in (*self.reads, *self.writes)))
        first = (Cast(program, "int64") if most >= _NARROW else program) * self.block_rows
        rows = first + _lanes(self.block_rows)
        if self.is_flat:
            return [Assign("at", rows), *self._mask(_INSIDE, _AT, self.block_rows, group.rows)]
        lines = [Assign("row", Expanded(rows, 0)), *self._mask(_INSIDE, _ROW, self.block_rows, group.rows)]
        return lines if self.is_stepped else [*lines, *self._columns()]

    def _mask(self, name: Name, number: Name, block: int, extent: int) -> list[Statement]:
        return [Assign(name.name, number < extent)] if extent % block else []

    def _columns(self, first: Expr | None = None) -> list[Statement]:
        lanes: Expr = Expanded(_lanes(self.block_cols), 1)
        columns = Assign("col", lanes if first is None else first + lanes)
        return [columns, *self._mask(_WITHIN, _COL, self.block_cols, self.group.cols)]

    # -- nests -------------------------------------------------------------------------------------------------------

    def _add(self, *statements: Statement) -> None:
        self.statements += statements
        self.count += len(statements)

    def _write_unit(self, unit: NestStep) -> None:
        """Write one nest."""
        form, value = form_of(unit.nest), unit.nest.value
        self.unit = unit
        self.full = self.group.full[unit.writes[0]] or bool(form.reduced)
        self._bind(unit, form)
        self.terms += form.size * form.depth
        result = self._reduction(value) if isinstance(value, Reduction) else self._value(value)
        self._finish(unit.writes[0], unit.nest.target, result)

    def _bind(self, unit: NestStep, form: LoopForm) -> None:
        """Set the values of a nest's loops."""
        width = max(self.group.cols, 1)
        for loop, extent in enumerate(unit.nest.extents):
            step = form.strides[loop]
            if extent == 1:
                value: Expr = Number(0)
            elif self.is_flat:
                value = _loop_value(_AT, step, extent, form.size)
            elif loop in form.reduced:
                value = _loop_value(_COL, step, extent, form.depth)
            elif form.reduced or not self.full:
                value = _loop_value(_ROW, step, extent, form.size)
            elif step * extent <= width and width % (step * extent) == 0:
                value = _loop_value(_COL, step, extent, width)
            elif step % width == 0:
                value = _loop_value(_ROW, step // width, extent, self.group.rows)
            else:
                value = _loop_value(_ROW * width + _COL, step, extent, form.size)
            self.loops[f"i{loop}"] = value

    def _finish(self, tensor: Tensor, target: Element, value: Expr) -> None:
        """Keep a nest's result in registers and, if something else reads it, store it."""
        register = self._assign(self._result_prefix(), value)
        self.registers[tensor] = register
        if not self.kept(tensor):
            return
        if tensor not in self.names:
            self.names[tensor] = f"out{len(self.writes)}"
            self.writes.append(tensor)
        is_full = self.full and not form_of(self.unit.nest).reduced
        numbers = self._numbers(is_full=is_full)
        index = _cover_tile(self._index(target, None), numbers)
        mask = _join_conditions([guard for guard, number in self._guards().items() if number in numbers])
        stored = clamp_finite(register, self.dtype_of(tensor)) if tensor.dtype == "float32" else register
        self._add(Store(self.names[tensor], index, stored, mask))

    def _numbers(self, *, is_full: bool) -> tuple[Name, ...]:
        """Return the names of the numbers that identify an element of a tile."""
        return (_AT,) if self.is_flat else (_ROW, _COL) if is_full else (_ROW,)

    def _index(self, element: Element, where: Expr | None) -> Expr:
        """Return the index of an element in memory."""
        nest, form, cols = self.unit.nest, form_of(self.unit.nest), self.group.cols
        if is_same(nest, form, element, cols, self.full, full=True):
            return _AT if self.is_flat else _ROW * cols + _COL
        if not self.is_flat and is_same(nest, form, element, cols, self.full, full=False):
            return _ROW
        return self._value(element.index, where)

    def _result_prefix(self) -> str:
        return _identifier(self.unit.nest.name.removeprefix("fused_").rstrip("0123456789"))[:24] or "v"

    def _assign(self, word: str, value: Expr) -> Name:
        """Assign a value to a new name and return it."""
        name = Name(f"{word}_{self.count}")
        self._add(Assign(name.name, value))
        return name

    def _name_value(self, value: Expr) -> Expr:
        """Return a name for a value that is used more than once."""
        return value if isinstance(value, Name) else self._assign("v", value)

    # -- values ------------------------------------------------------------------------------------------------------

    def _value(self, node: Expr, where: Expr | None = None) -> Expr:
        """Return a value of a nest for the elements of a tile; elements are loaded where a condition holds."""
        match node:
            case Name(name):
                return self.loops[name]
            case Infix(sign, left, right):
                return Infix(sign, self._value(left, where), self._value(right, where))
            case Element():
                return self._load(node, where)
            case ChoiceExpr():
                return self._choice(node, where)
            case Cast():
                return self._cast(node, where)
            case CallExpr(function, arguments, keywords):
                given = [self._value(one, where) for one in arguments]
                return expand(function, given, keywords, self._name_value)
        return node

    def _choice(self, node: ChoiceExpr, where: Expr | None) -> Expr:
        test = self._name_value(self._value(node.condition, where))
        inside, outside = (one if where is None else where & one for one in (test, equal(test, 0)))
        first, second = self._value(node.first, inside), self._value(node.second, outside)
        return CallExpr("where", (test, first, second))

    def _cast(self, node: Cast, where: Expr | None) -> Expr:
        value, dtype = self._value(node.value, where), node.dtype
        if dtype in _HALVES or (dtype == "float32" and node.before in _HALVES):
            dtype = "float32"  # values are rounded when they are stored
        if dtype == node.before:
            return value
        if isinstance(node.value, Name | Number):  # it has no Triton dtype
            value = value + Full((1,), Number(0), "float32" if node.before.startswith("float") else "int32")
        return Infix("!=", value, Number(0)) if dtype == "bool" else Cast(value, dtype)

    def _load(self, element: Element, where: Expr | None) -> Expr:
        """Return the elements that a nest loads, from registers or from memory."""
        tensor = self.unit.tensors[element.buffer]
        if tensor in self.registers:
            return self.registers[tensor]
        if tensor not in self.names:
            self.names[tensor] = f"in{len(self.reads)}"
            self.reads.append(tensor)
        index = self._index(element, where)
        # masked elements have any value, and a condition is evaluated for the whole tile
        used = names_in(index)
        is_guarded = where is not None or bool(used - {"row", "col", "at"})
        guards = [guard for guard, number in self._guards().items() if is_guarded or number.name in used]
        mask = _join_conditions([*([] if where is None else [where]), *guards])
        if is_guarded:
            index = _cover_tile(index, self._numbers(is_full=self.full))
        dtype = self.dtype_of(tensor)
        other = None if mask is None else Number(0 if dtype == "bool" or "int" in dtype else 0.0)
        load: Expr = Load(self.names[tensor], index, mask, other)
        load = Cast(load, "float32") if dtype in _HALVES else load
        if load not in self.loaded:
            self.loaded[load] = self._assign(self.names[tensor], load)
            self.loads[tensor] += 1
        return self.loaded[load]

    def _guards(self) -> dict[Name, Name]:
        """Return the masks of existing elements, and the numbers that they test."""
        guards = {_INSIDE: _AT if self.is_flat else _ROW} if self.group.rows % self.block_rows else {}
        if not self.is_flat and self.full and self.group.cols % self.block_cols:
            guards[_WITHIN] = _COL
        return guards

    # -- reductions --------------------------------------------------------------------------------------------------

    def _reduction(self, node: Reduction) -> Expr:
        neutral = _neutral(node)
        value: Expr = Name("parts")
        if self.is_stepped:
            self._write_steps(node, neutral)
        else:
            value = self._term(node, neutral)
        reduced: Expr = reduce_tile(node.kind, Cast(value, "int32") if node.dtype == "bool" else value)
        first = self._value(node.first)
        if not (isinstance(first, Number) and first.value in _NEUTRAL[node.kind]):
            reduced = join(node.kind, reduced, first)
        return Infix("!=", reduced, Number(0)) if node.dtype == "bool" else reduced

    def _write_steps(self, node: Reduction, neutral: Number) -> None:
        """Reduce rows that are longer than a tile into ``parts``, one tile after the other."""
        dtype, shape = node.dtype, (self.block_rows, self.block_cols)
        register = "float32" if dtype in _HALVES else "int32" if dtype == "bool" else dtype
        self.loaded = {}
        parts = Name("parts")
        is_long = node.kind == "Add" and register == "float32" and self.group.cols > 2 * BLOCK * self.block_cols
        if is_long:
            self._add(Assign("parts_lost", Full(shape, Number(0.0), register)))
        self._add(Assign("parts", Full(shape, neutral, register)))
        outer, self.statements = self.statements, []
        self.count += 1
        self._add(*self._columns(Name("first")))
        value = self._term(node, neutral)
        self._add(*(compensated_sum(parts, value) if is_long else [Assign("parts", join(node.kind, parts, value))]))
        self.statements = [*outer, For("first", self.group.cols, self.block_cols, tuple(self.statements))]
        self.loaded = {}

    def _term(self, node: Reduction, neutral: Number) -> Expr:
        """Return the terms of a tile, with neutral values where there are no columns."""
        value = self._assign("term", self._value(node.term))
        return where(_WITHIN, value, neutral) if self.group.cols % self.block_cols else value


def _neutral(node: Reduction) -> Number:
    """Return the neutral value of a reduction."""
    kind, is_float = node.kind, "float" in node.dtype
    if kind in ("Max", "Min"):
        if is_float:
            return Number(-math.inf if kind == "Max" else math.inf)
        limits = np.iinfo("int8" if node.dtype == "bool" else node.dtype)
        return Number(int(limits.min if kind == "Max" else limits.max))
    value = 1 if kind in ("And", "Mul") else 0
    return Number(float(value) if node.dtype in ("float32", *_HALVES) else value)


def _loop_value(number: Expr, step: int, extent: int, total: int) -> Expr:
    """Return the value of one loop from the row-major number of all loops."""
    value = number if step == 1 else number // step
    return value % extent if step * extent < total else value


def _lanes(count: int) -> Expr:
    return CallExpr("arange", (Number(0), Number(count)))


def _join_conditions(conditions: Sequence[Expr]) -> Expr | None:
    """Return the conjunction of conditions; None without any."""
    if not conditions:
        return None
    first, *others = conditions
    return functools.reduce(lambda left, right: left & right, others, first)


def _cover_tile(index: Expr, numbers: Sequence[Name]) -> Expr:
    """Return an index with a value for every element of a tile, even if it does not depend on all numbers."""
    for number in numbers:
        if number.name not in names_in(index):
            index = index + number * 0
    return index


def _identifier(name: str) -> str:
    return "".join(one if one.isalnum() or one == "_" else "_" for one in name).strip("_")

"""A group of nests as Triton: tiles of rows and columns, each nest's results in registers for the next."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from anatune.codegen.compat import TvmObject, import_tvm
from anatune.core.hardware.spec import GpuSpec
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.errors import BuildError
from anatune.network.relax.device.expressions import HELPERS, KEEPS_NAN, Expressions, compensated, finite, triton_type
from anatune.network.relax.device.groups import Form, Group, flat_index, form_of, is_same, simplified
from anatune.network.relax.device.steps import Tensor, Unit, stores_in
from anatune.network.relax.rest.sums import BLOCK

__all__ = ["Part", "part_of"]

_TILE = 2048
"""Elements of a tile: 16 of each of four warps' lanes."""
_LEAST_TILE = 256
_MOST_WARPS = 16
_LANES, _ELEMENTS = 32, 8
_STEP = 64
"""Rows of a tile whose neighbours in memory are rows, and columns at most."""
_NARROW = 1 << 31
_WIDE = ("float16", "bfloat16")
_LOWEST, _HIGHEST = "-3.4028234663852886e+38", "3.4028234663852886e+38"
_NOTHING = {
    "Add": ("0", "0.0"), "Max": (_LOWEST, '-float("inf")', 'float("-inf")'), "Min": (_HIGHEST, 'float("inf")'),
    "Or": ("0",), "And": ("1",), "Mul": ("1", "1.0"),
}  # fmt: skip
"""What a reduction begins with that changes nothing."""
_NEUTRAL = {"Add": "0", "Or": "0", "And": "1", "Mul": "1"}
_JOINS = {
    "Add": ("({0} + {1})", "tl.sum"), "Max": (f"tl.maximum({{0}}, {{1}}, {KEEPS_NAN})", "_max"),
    "Min": (f"tl.minimum({{0}}, {{1}}, {KEEPS_NAN})", "_min"), "Or": ("({0} | {1})", "tl.max"),
    "And": ("({0} & {1})", "tl.min"), "Mul": ("({0} * {1})", "_product"),
}  # fmt: skip
"""What joins two parts of a reduction -> Triton for two, and for all of an axis."""


class Part(NamedTuple):
    """A group's lines, where ``program`` is which of its `grid` programs runs, and what `RestKernel` says of it."""

    name: str
    shape: str
    lines: list[str]
    helpers: set[str]
    names: Mapping[Tensor, str]
    reads: list[Tensor]
    writes: list[Tensor]
    grid: int
    warps: int
    num_bytes: int
    terms: int


def part_of(group: Group, kept: Callable[[Tensor], bool], dtype_of: Callable[[Tensor], str], hardware: GpuSpec) -> Part:
    """Return the lines of a group; parameters and errors as `modules.rest_kernel`."""
    return _Writer(group, kept, dtype_of, hardware).part()


def _power(number: float) -> int:
    """Return the next power of two."""
    return 1 << max(0, math.ceil(math.log2(max(number, 1))))


class _Writer:
    def __init__(
        self, group: Group, kept: Callable[[Tensor], bool], dtype_of: Callable[[Tensor], str], hardware: GpuSpec
    ) -> None:
        self.tvm = import_tvm()
        self.group, self.kept, self.dtype_of = group, kept, dtype_of
        self.text = Script()
        self.expressions = Expressions(self.tvm, self.text, self.load)
        self.names: dict[Tensor, str] = {}
        """Tensors in memory -> parameters."""
        self.held: dict[Tensor, str] = {}
        """Tensors in registers -> values."""
        self.loaded: dict[str, str] = {}
        self.loads: Counter[Tensor] = Counter()
        """Of each tensor: at how many places an element reads it."""
        self.reads: list[Tensor] = []
        self.writes: list[Tensor] = []
        self.terms = 0
        self.unit: Unit = group.units[0]
        self.full = True
        self.is_flat = not group.cols
        self._sizes(hardware)

    # -- tiles -------------------------------------------------------------------------------------------------------

    def _sizes(self, hardware: GpuSpec) -> None:
        group, most = self.group, hardware.compute.num_sms
        if self.is_flat:
            self.block_rows, self.block_cols = min(_power(group.rows), _TILE // 2), 1
            while self.block_rows > _LEAST_TILE // 2 and group.rows < most * self.block_rows:
                self.block_rows //= 2
        else:
            across = self._is_across()
            whole = _power(group.cols)
            self.block_cols = min(whole, _STEP) if across else whole if self._is_whole() else min(whole, _TILE)
            self.block_rows = min(_power(group.rows), _STEP if across else max(1, _TILE // self.block_cols))
            least = _LANES if across else 1
            while self.block_rows > least and group.rows < most * self.block_rows:
                self.block_rows //= 2
        self.is_stepped = not self.is_flat and self.block_cols < group.cols
        tile = self.block_rows * self.block_cols
        self.warps = min(_MOST_WARPS, _power(max(1, tile // (_LANES * _ELEMENTS))))
        self.grid = -(-group.rows // self.block_rows)

    def _reductions(self) -> list[tuple[Unit, Form]]:
        return [(unit, form) for unit, form in ((one, form_of(one)) for one in self.group.units) if form.reduced]

    def _is_whole(self) -> bool:
        """Whether rows have to be seen whole: by more than one reduction."""
        return len(self._reductions()) > 1 or any(self.group.full.values())

    def _is_across(self) -> bool:
        """Whether neighbours in memory are rows: of a lone reduction whose loads move along its last spatial loop."""
        if self._is_whole():
            return False
        ((unit, form),) = self._reductions()
        moves = [access.steps for access in unit.nest.accesses if not access.is_store]
        along = any(steps[place] == 1 for steps in moves for place in form.reduced)
        return not along and any(steps[place] == 1 for steps in moves for place in form.spatial)

    # -- the module --------------------------------------------------------------------------------------------------

    def part(self) -> Part:
        """Return it."""
        group = self.group
        for unit in group.units:
            self._write(unit)
        shape = f"{group.rows} rows of {group.cols}" if group.cols else f"{group.rows} elements"
        most = max(form.size * form.depth for form in map(form_of, group.units))  # of tables, parts are read
        num_bytes = sum(
            Buffer("", self.dtype_of(one), (min(max(1, one.size), most * max(1, self.loads[one])),)).num_bytes
            for one in (*self.reads, *self.writes)
        )
        return Part(
            self._name(), shape, [*self._head(), *self.text.lines], self.expressions.helpers, self.names, self.reads,
            self.writes, self.grid, self.warps, num_bytes, self.terms,
        )  # fmt: skip

    def _name(self) -> str:
        words = dict.fromkeys(re.sub(r"\d+$", "", unit.name.removeprefix("fused_")) for unit in self.group.units)
        name = "_".join(words)
        return re.sub(r"\W", "_", name if len(name) <= 60 else f"{name[:56]}_etc").strip("_") or "rest"

    def _head(self) -> list[str]:
        group = self.group
        wide = (
            ".to(tl.int64)" if max(group.total, *(one.size for one in (*self.reads, *self.writes))) >= _NARROW else ""
        )
        rows = f"program{wide} * {self.block_rows} + tl.arange(0, {self.block_rows})"
        if self.is_flat:
            return [f"at = {rows}", *self._mask_line("inside", "at", self.block_rows, group.rows)]
        lines = [f"row = ({rows})[:, None]", *self._mask_line("inside", "row", self.block_rows, group.rows)]
        return lines if self.is_stepped else [*lines, *self._column_lines("")]

    def _mask_line(self, name: str, number: str, block: int, extent: int) -> list[str]:
        return [f"{name} = {number} < {extent}"] if extent % block else []

    def _column_lines(self, first: str) -> list[str]:
        cols = self.group.cols
        lanes = f"{first}tl.arange(0, {self.block_cols})[None, :]"
        return [f"col = {lanes}", *self._mask_line("within", "col", self.block_cols, cols)]

    # -- nests -------------------------------------------------------------------------------------------------------

    def _write(self, unit: Unit) -> None:
        """Write one nest."""
        form = form_of(unit)
        self.unit = unit
        self.full = self.group.full[unit.writes[0]] or bool(form.reduced)
        self._bind(unit, form)
        if form.reduced:
            self._reduction(unit, form)
        else:
            store = stores_in(unit.nest.body)[0]
            self.terms += form.size
            self._finish(unit.writes[0], store, self.expressions.value(store.value))

    def _bind(self, unit: Unit, form: Form) -> None:
        """Say what the loops of a nest are."""
        extents = [int(extent) for extent in unit.nest.extents]
        bound: dict[TvmObject, str] = {}
        width = max(self.group.cols, 1)
        for place, (variable, extent) in enumerate(zip(unit.nest.variables, extents, strict=True)):
            step = form.strides[place]
            if extent == 1:
                bound[variable] = "0"
            elif self.is_flat:
                bound[variable] = _digit("at", step, extent, form.size)
            elif place in form.reduced:
                bound[variable] = _digit("col", step, extent, form.depth)
            elif form.reduced or not self.full:
                bound[variable] = _digit("row", step, extent, form.size)
            elif step * extent <= width and width % (step * extent) == 0:
                bound[variable] = _digit("col", step, extent, width)
            elif step % width == 0:
                bound[variable] = _digit("row", step // width, extent, self.group.rows)
            else:
                bound[variable] = _digit(f"(row * {width} + col)", step, extent, form.size)
        self.expressions.bound(bound)

    def _finish(self, tensor: Tensor, store: TvmObject, value: str) -> None:
        """Keep what a nest has made of a tensor, in registers and, where anything else reads it, in memory."""
        value = self._named(self.unit.name, value)
        self.held[tensor] = value
        if not self.kept(tensor):
            return
        if tensor not in self.names:
            self.names[tensor] = f"out{len(self.writes)}"
            self.writes.append(tensor)
        wanted, index = self._spread(self._index(store.buffer, store.indices, ""))
        mask = f", mask={wanted}" if wanted else ""
        value = finite(value, self.dtype_of(tensor)) if tensor.dtype == "float32" else value
        self.text.line(f"tl.store({self.names[tensor]}_ptr + {index}, {value}{mask})")

    def _spread(self, index: str) -> tuple[str, str]:
        """Return which elements of a tile are there, and places of all of a tile though an index says less."""
        is_full = self.full and not form_of(self.unit).reduced
        numbers = ("at",) if self.is_flat else ("row", "col") if is_full else ("row",)
        for number in numbers:
            index = _whole(index, number)
        return " & ".join(name for name, number in self._guards().items() if number in numbers), index

    def _index(self, buffer: TvmObject, indices: Sequence[TvmObject], where: str) -> str:
        """Return the number of an element in memory."""
        flat, form = flat_index(buffer, list(indices)), form_of(self.unit)
        if self.is_flat and is_same(self.tvm, self.unit, form, flat, 0, self.full, full=True):
            return "at"
        if not self.is_flat and is_same(self.tvm, self.unit, form, flat, self.group.cols, self.full, full=True):
            return f"(row * {self.group.cols} + col)"
        if not self.is_flat and is_same(self.tvm, self.unit, form, flat, self.group.cols, self.full, full=False):
            return "row"
        return self.expressions.value(simplified(self.tvm, self.unit, flat), where)

    def _named(self, word: str, value: str) -> str:
        word = re.sub(r"\W|\d+$", "_", word.removeprefix("fused_")).strip("_")[:24] or "v"
        name = f"{word}_{len(self.text.lines)}"
        self.text.line(f"{name} = {value}")
        return name

    def load(self, node: TvmObject, where: str) -> str:
        """Return the elements that a nest loads: those in registers, or from memory."""
        tensor = self.unit.tensors[node.source]
        if tensor in self.held:
            return self.held[tensor]
        if tensor not in self.names:
            self.names[tensor] = f"in{len(self.reads)}"
            self.reads.append(tensor)
        index = self._index(node.source, node.indices, where)
        # where an element is not there, what was loaded may say anything, and a condition has a value for all of a tile
        is_guarded = bool(where) or self._reads_loaded(index)
        parts = [where] if where else []
        parts += [name for name, number in self._guards().items() if is_guarded or number in _words(index)]
        if is_guarded:
            for number in ("at",) if self.is_flat else ("row", "col") if self.full else ("row",):
                index = _whole(index, number)
        dtype = self.dtype_of(tensor)
        zero = "0" if dtype == "bool" or "int" in dtype else "0.0"
        mask = f", mask={' & '.join(parts)}, other={zero}" if parts else ""
        narrow = ".to(tl.float32)" if dtype in _WIDE else ""
        text = f"tl.load({self.names[tensor]}_ptr + {index}{mask}){narrow}"
        if text not in self.loaded:
            name = f"{self.names[tensor]}_{len(self.text.lines)}"
            self.text.line(f"{name} = {text}")
            self.loaded[text] = name
            self.loads[tensor] += 1
        return self.loaded[text]

    def _guards(self) -> dict[str, str]:
        """Return which elements of a tile are there: names of masks, and the numbers that they are about."""
        found = {"inside": "at" if self.is_flat else "row"} if self.group.rows % self.block_rows else {}
        if not self.is_flat and self.full and self.group.cols % self.block_cols:
            found["within"] = "col"
        return found

    def _reads_loaded(self, index: str) -> bool:
        """Whether an index is made of what was loaded: of what is not there it may be anything."""
        return any(word not in ("row", "col", "at", "tl") and not word.isdigit() for word in _words(index))

    # -- reductions --------------------------------------------------------------------------------------------------

    def _reduction(self, unit: Unit, form: Form) -> None:
        stores = stores_in(unit.nest.body)
        self.terms += form.size * form.depth
        if len(stores) > 1:
            raise BuildError(f"{unit.name}: a reduction to several results has no Triton source")
        store = stores[0]
        kind = type(store.value).__name__
        sides = [store.value.a, store.value.b] if kind in _JOINS else []
        own = [one for one in sides if self._is_own(one, store)]
        if not own:
            raise BuildError(f"{unit.name}: the reduction {store.value!s:.60} has no Triton source")
        (term,) = (one for one in sides if not any(one.same_as(other) for other in own))
        dtype = str(store.value.ty)
        neutral = self._neutral(kind, dtype)
        join, whole = _JOINS[kind]
        if not self.is_stepped:
            value = self._masked(self._named("term", self.expressions.value(term)), neutral)
        else:
            register = triton_type("float32" if dtype in _WIDE else "int32" if dtype == "bool" else dtype)
            self.loaded = {}
            is_long = kind == "Add" and register == "float32" and self.group.cols > 2 * BLOCK * self.block_cols
            if is_long:
                self.text.line(f"parts_lost = tl.zeros(({self.block_rows}, {self.block_cols}), tl.float32)")
            self.text.line(f"parts = tl.full(({self.block_rows}, {self.block_cols}), {neutral}, tl.{register})")
            with self.text.scope(f"for first in range(0, {self.group.cols}, {self.block_cols}):"):
                for line in self._column_lines("first + "):
                    self.text.line(line)
                value = self._masked(self._named("term", self.expressions.value(term)), neutral)
                for line in compensated("parts", value) if is_long else [f"parts = {join.format('parts', value)}"]:
                    self.text.line(line)
            self.loaded = {}
            value = "parts"
        if dtype == "bool":
            value = f"{value}.to(tl.int32)"
        self.expressions.helpers |= {whole} & HELPERS.keys()
        made = f"{whole}({value}, axis=1, keep_dims=True)"
        first = self.expressions.value(stores_in(unit.nest.first)[0].value)
        if first not in _NOTHING[kind]:
            made = join.format(made, first)
        self._finish(unit.writes[0], store, f"({made} != 0)" if dtype == "bool" else made)

    def _masked(self, value: str, neutral: str) -> str:
        """Return a value with what joins to nothing where there are no columns."""
        if not self.group.cols % self.block_cols:
            return value
        return f"tl.where(within, {value}, {neutral})"

    def _neutral(self, kind: str, dtype: str) -> str:
        """Return what changes nothing."""
        if kind in ("Max", "Min"):
            if dtype in ("float32", "float64", *_WIDE):
                return ("-" if kind == "Max" else "") + 'float("inf")'
            bits = int(re.sub(r"\D", "", dtype) or 8)
            least, most = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return str(least if kind == "Max" else most)
        return _NEUTRAL[kind] + (".0" if dtype in ("float32", *_WIDE) else "")

    def _is_own(self, node: TvmObject, store: TvmObject) -> bool:
        return isinstance(node, self.tvm.ir.expr.TensorLoad) and node.source.same_as(store.buffer)


def _digit(number: str, step: int, extent: int, total: int) -> str:
    """Return one loop's value, of the number that all of them make."""
    value = number if step == 1 else f"{number} // {step}"
    if step * extent < total:
        value = f"{value} % {extent}"
    return f"({value})" if value != number else number


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _whole(index: str, name: str) -> str:
    """Return an index that has a value for every element of a tile."""
    return index if name in _words(index) else f"({index} + {name} * 0)"

"""Reading of TVM's loop nests as workloads: the computation of a PrimFunc's block, from its indices.

A block is understood if it sums products of two tensors (a contraction or a convolution, in any layout, also blocked).
Indices are affine; a grouped convolution may divide its channel by the channels of a group; a padded operand is an
`if_then_else` whose condition describes exactly the inside of the tensor. Loops of one iteration are left out. Axes and
tensors get the names that the constructors of `anatune.core.workload.operators` use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anatune.core.workload.nest import DTYPE_BYTES, Access, Axis, Term, Workload
from anatune.errors import WorkloadError
from anatune.untyped import ir, tirx, tvm

__all__ = ["BlockNest", "check_loops", "read_block"]

_REDUCTION = 2
"""Type of a reduction in tirx.IterVar; 0 is spatial."""

_EXACT_CASTS = {("int8", "int16"), ("int8", "int32"), ("int16", "int32")}
"""Casts of factors that keep every value; other casts change the computation, and kernels do not have them."""

Atom = tuple[int, str]
"""The position of an iterator in its block, and a part of it: "" for all, "div" and "mod" if its index is divided."""


@dataclass(frozen=True)
class BlockNest:
    """The workload of a TVM block, and its buffers.

    Attributes
    ----------
    workload : Workload
        The computation.
    buffers : tuple
        TVM's buffers of the operands and the result, in the order of ``workload.reads`` and ``workload.write``.
    """

    workload: Workload
    buffers: tuple[tirx.Buffer, ...]


@dataclass
class _Affine:
    """An affine index: ``sum(coefficient * atom) + constant``."""

    terms: dict[Atom, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: _Affine, factor: int = 1) -> _Affine:
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * coefficient
        return _Affine({a: c for a, c in terms.items() if c}, self.constant + factor * other.constant)


@dataclass
class _BlockOperand:
    buffer: tirx.Buffer
    indices: list[_Affine]
    conditions: list[_Affine]
    """Expressions that are all >= 0 where the tensor is read; otherwise the operand is 0."""


class _BlockReader:
    """A reader of the expressions of one block."""

    def __init__(self, block: tvm.s_tir.SBlock) -> None:
        self.name = str(block.name_hint)
        self.variables = [item.var for item in block.iter_vars]
        self.extents: list[int] = []
        for item in block.iter_vars:
            low, extent = _integer(item.dom.min), _integer(item.dom.extent)
            if low != 0 or extent is None:
                raise self.error(f"iterator {item.var} runs over {item.dom}, expected a constant range from 0")
            self.extents.append(extent)
        self.reduces = [int(item.iter_type) == _REDUCTION for item in block.iter_vars]
        self.divisors: dict[int, int] = {}

    def error(self, what: str) -> WorkloadError:
        return WorkloadError(f"block {self.name}: {what}")

    def affine(self, expression: ir.Expr) -> _Affine:
        """Return an index expression.

        Raises
        ------
        WorkloadError
            The expression is not affine.
        """
        kind = type(expression).__name__
        if kind == "IntImm":
            return _Affine({}, int(expression.value))
        if kind == "Var":
            for axis, variable in enumerate(self.variables):
                if variable.same_as(expression):
                    return _Affine({(axis, ""): 1})
        elif kind == "Cast":
            return self.affine(expression.value)
        elif kind in ("Add", "Sub"):
            return self.affine(expression.a).plus(self.affine(expression.b), 1 if kind == "Add" else -1)
        elif kind == "Mul":
            left, right = self.affine(expression.a), self.affine(expression.b)
            if not left.terms:
                left, right = right, left
            if not right.terms:
                return _Affine().plus(left, right.constant)
        elif kind in ("FloorDiv", "FloorMod"):
            return self._convert_division(expression, "div" if kind == "FloorDiv" else "mod")
        raise self.error(f"index {expression} is not affine in the block's iterators")

    def _convert_division(self, expression: ir.prim.BinaryOpExpr, part: str) -> _Affine:
        whole, divisor = self.affine(expression.a), _integer(expression.b)
        (axis, piece), *more = list(whole.terms) or [(-1, "")]
        simple = not more and not piece and axis >= 0 and whole.terms[axis, piece] == 1 and not whole.constant
        if not simple or not divisor or self.extents[axis] % divisor or self.divisors.get(axis, divisor) != divisor:
            raise self.error(f"index {expression} is not affine in the block's iterators")
        self.divisors[axis] = divisor
        return _Affine({(axis, part): 1})

    def settle(self, index: _Affine) -> _Affine:
        """Return an index with divided iterators as two atoms, without atoms of one iteration."""
        settled = _Affine({}, index.constant)
        for (axis, part), coefficient in index.terms.items():
            divisor = self.divisors.get(axis)
            if divisor and not part:
                settled = settled.plus(_Affine({(axis, "div"): coefficient * divisor, (axis, "mod"): coefficient}))
            else:
                settled = settled.plus(_Affine({(axis, part): coefficient}))
        settled.terms = {atom: c for atom, c in settled.terms.items() if self.extent(atom) > 1}
        return settled

    def extent(self, atom: Atom) -> int:
        axis, part = atom
        divisor = self.divisors.get(axis, 1)
        return {"": self.extents[axis], "div": self.extents[axis] // divisor, "mod": divisor}[part]

    def atoms(self) -> Iterator[Atom]:
        """Yield the atoms with more than one iteration, in the block's order."""
        for axis in range(len(self.extents)):
            for part in ("div", "mod") if axis in self.divisors else ("",):
                if self.extent((axis, part)) > 1:
                    yield axis, part

    def operand(self, expression: ir.Expr) -> _BlockOperand:
        """Return a factor: a load, perhaps cast or guarded by a condition."""
        kind = type(expression).__name__
        if kind == "Cast":
            factor = self.operand(expression.value)
            value = expression.value
            steps = (str(factor.buffer.dtype if type(value).__name__ == "TensorLoad" else value.ty), str(expression.ty))
            if steps not in _EXACT_CASTS:
                raise self.error(f"a factor is cast from {steps[0]} to {steps[1]}, expected int8 to int32 or none")
            return factor
        if kind == "TensorLoad":
            return _BlockOperand(expression.source, [self.affine(index) for index in expression.indices], [])
        if kind in ("Call", "Select"):
            condition, value, other = self._choice(expression)
            factor = self.operand(value)
            if _is_zero(other):
                factor.conditions += self._conditions(condition)
                return factor
        raise self.error(f"factor {expression} is not a tensor, expected a tensor, perhaps padded with zeros")

    def _choice(self, expression: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        if type(expression).__name__ == "Select":
            return expression.condition, expression.true_value, expression.false_value
        if str(getattr(expression.op, "name", "")).endswith("if_then_else"):
            return tuple(expression.args)  # type: ignore[return-value]
        raise self.error(f"factor {expression} is not a tensor, expected a tensor, perhaps padded with zeros")

    def _conditions(self, expression: ir.Expr) -> list[_Affine]:
        kind = type(expression).__name__
        if kind == "And":
            return self._conditions(expression.a) + self._conditions(expression.b)
        if kind in ("LE", "LT", "GE", "GT"):
            small, large = (expression.a, expression.b) if kind[0] == "L" else (expression.b, expression.a)
            gap = self.affine(large).plus(self.affine(small), -1)
            return [gap.plus(_Affine({}, -1 if kind[1] == "T" else 0))]
        raise self.error(f"condition {expression} is no bound of an index")


def read_block(block: tvm.s_tir.SBlock) -> BlockNest:
    """Return the workload of a block (``tvm.s_tir.SBlock``).

    Raises
    ------
    WorkloadError
        The block is no sum of products of two tensors, or an index is not affine; the message names block and part.
    """
    reader = _BlockReader(block)
    store = block.body
    if type(store).__name__ != "BufferStore" or type(store.value).__name__ != "Add":
        raise reader.error("its statement is not a sum, expected result += left * right")
    if block.init is None or type(block.init).__name__ != "BufferStore" or not _is_zero(block.init.value):
        raise reader.error("its sum does not start from 0")
    if len(block.match_buffers):
        raise reader.error("it reads parts of tensors under other names")
    left, right = store.value.a, store.value.b
    if not _loads_buffer(left, store.buffer):
        left, right = right, left
    if not _loads_buffer(left, store.buffer) or type(right).__name__ != "Mul":
        raise reader.error("its statement is not result += left * right")
    operands = [reader.operand(right.a), reader.operand(right.b)]
    result = _BlockOperand(store.buffer, [reader.affine(index) for index in store.indices], [])
    accumulated = [reader.settle(reader.affine(index)) for index in left.indices]
    initialised = [reader.settle(reader.affine(index)) for index in block.init.indices]
    for operand in (*operands, result):
        operand.indices = [reader.settle(index) for index in operand.indices]
        operand.conditions = [reader.settle(index) for index in operand.conditions]
    if accumulated != result.indices or initialised != accumulated or not block.init.buffer.same_as(store.buffer):
        raise reader.error("it does not add to the element that it sets to 0 and writes")
    _check_result(reader, accumulated)
    buffers = [operand.buffer for operand in (*operands, result)]
    for buffer in buffers:
        _check_buffer(reader, buffer)
    if any(a.same_as(b) for place, a in enumerate(buffers) for b in buffers[:place]):
        raise reader.error("a tensor is used twice, expected two operands and a result")
    for operand in operands:
        _check_padding(reader, operand)
    return _make_nest(reader, operands, result)


def _make_nest(reader: _BlockReader, operands: list[_BlockOperand], result: _BlockOperand) -> BlockNest:
    atoms = list(reader.atoms())
    if not any(reader.reduces[place] for place, _ in atoms):
        raise reader.error("nothing is summed over")
    if not _slides_window(reader, operands[0]) and _slides_window(reader, operands[1]):
        operands = operands[::-1]  # the weights are the second operand
    names = _axis_names(reader, operands, result, atoms)
    axes = [
        Axis(names[atom], reader.extent(atom), "reduction" if reader.reduces[atom[0]] else "spatial") for atom in atoms
    ]
    axes.sort(key=lambda axis: axis.kind, reverse=True)
    windows = sum(name in ("z", "y", "x") for name in names.values())
    tensors = ("data", "weight", "output") if windows else ("A", "B", "C")
    accesses = []
    for tensor, operand in zip(tensors, (*operands, result), strict=True):
        shape = [_integer(extent) for extent in operand.buffer.shape]
        dtype = str(operand.buffer.dtype)
        if dtype not in DTYPE_BYTES:
            raise reader.error(f"{tensor} is {dtype}, expected one of {', '.join(DTYPE_BYTES)}")
        indices = tuple(
            tuple(Term(names[atom], coefficient) for atom, coefficient in sorted(index.terms.items()))
            for index in operand.indices
        )
        offsets = tuple(index.constant for index in operand.indices)
        accesses.append(Access(tensor, dtype, tuple(int(e) for e in shape if e is not None), indices, offsets))
    dtypes = [access.dtype for access in accesses]
    result_dtype = "int32" if dtypes[0] == "int8" else dtypes[0]
    if dtypes != [dtypes[0], dtypes[0], result_dtype]:
        raise reader.error(f"{' times '.join(dtypes[:2])} is kept as {dtypes[2]}, expected one dtype, or int8 as int32")
    plain = {axis.name for axis in axes} in ({"i", "j", "k"}, {"b", "i", "j", "k"})
    operator = f"conv{windows}d" if windows else ("batch_matmul" if len(axes) == 4 else "matmul") if plain else "einsum"
    workload = Workload(
        operator=operator,
        axes=tuple(axes),
        reads=tuple(accesses[:-1]),
        write=accesses[-1],
        body="multiply_add",
        flop_per_point=2,
    )
    return BlockNest(workload, tuple(operand.buffer for operand in (*operands, result)))


def check_loops(module: tvm.IRModule, function: str, block: str) -> None:
    """Raise unless a block runs once for each of its iterations: in plain loops, bound one to one, without a condition.

    Raises
    ------
    WorkloadError
        The block has a condition, its loops do not cover it, or an iterator is bound to more than a loop.
    """
    realize, loops = _find(module[function].body.block.body, block, [])
    if realize is None:
        raise WorkloadError(f"block {block}: it lies under a condition or inside another block, expected plain loops")
    if not _is_one(realize.predicate):
        raise WorkloadError(f"block {block}: it runs only where {realize.predicate}, expected no condition")
    free = list(loops)
    for item, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        extent = _integer(item.dom.extent)
        if extent == 1 and _is_zero(value):
            continue
        loop = next((loop for loop in free if loop.loop_var.same_as(value)), None)
        if loop is None or _integer(loop.min) != 0 or _integer(loop.extent) != extent:
            raise WorkloadError(f"block {block}: iterator {item.var} is bound to {value}, expected its own loop")
        free.remove(loop)
    if any(_integer(loop.extent) != 1 for loop in free):
        raise WorkloadError(f"block {block}: a loop around it belongs to no iterator")


def _find(node: tirx.Stmt, block: str, loops: list[tirx.For]) -> tuple[tvm.s_tir.SBlockRealize | None, list[tirx.For]]:
    """Return the realization of a block under plain loops, and these loops; (None, ...) if there is none."""
    kind = type(node).__name__
    if kind == "For":
        return _find(node.body, block, [*loops, node])
    if kind == "SeqStmt":
        results = (_find(part, block, loops) for part in node.seq)
        return next((pair for pair in results if pair[0] is not None), (None, []))
    if kind == "SBlockRealize" and str(node.block.name_hint) == block:
        return node, loops
    return None, []


def _check_result(reader: _BlockReader, indices: Sequence[_Affine]) -> None:
    """Raise unless each iteration of the spatial iterators writes its own element."""
    seen: set[Atom] = set()
    for index in indices:
        terms = sorted((coefficient, reader.extent(atom)) for atom, coefficient in index.terms.items())
        mixed = len(terms) > 2 or (len(terms) == 2 and terms[0][0] * terms[0][1] > terms[1][0])
        if index.constant or mixed or seen & set(index.terms):
            raise reader.error("two iterations may write the same element, or the result does not begin at index 0")
        seen |= set(index.terms)


def _slides_window(reader: _BlockReader, operand: _BlockOperand) -> bool:
    return any(len({reader.reduces[place] for place, _ in index.terms}) == 2 for index in operand.indices)


def _axis_names(
    reader: _BlockReader, operands: Sequence[_BlockOperand], result: _BlockOperand, atoms: Sequence[Atom]
) -> dict[Atom, str]:
    """Return the constructors' names for the axes."""
    used = [{atom for index in operand.indices for atom in index.terms} for operand in (*operands, result)]
    spatial = [atom for atom in atoms if not reader.reduces[atom[0]]]
    partner: dict[Atom, Atom] = {}
    for index in operands[0].indices:
        inside = [atom for atom in index.terms if reader.reduces[atom[0]]]
        along = [atom for atom in index.terms if not reader.reduces[atom[0]] and atom not in used[1]]
        if len(inside) == len(along) == 1:
            partner[inside[0]] = along[0]
    sliding = [atom for atom in spatial if atom in partner.values()]
    if len(sliding) > 3:
        raise reader.error(f"{len(sliding)} indices slide a window, expected at most 3")
    positions = dict(zip(sliding, ("z", "y", "x")[3 - len(sliding) :], strict=True))
    words = ("g", "n", "f", "rc") if sliding else ("b", "i", "j", "k")
    kinds: dict[Atom, str] = {}
    for atom in atoms:
        if reader.reduces[atom[0]]:
            kinds[atom] = f"r{positions[partner[atom]]}" if atom in partner else words[3]
        elif atom not in used[2]:
            raise reader.error("a spatial iterator is in no index of the result")
        else:
            kinds[atom] = positions.get(atom) or words[(0 if atom in used[0] else 2) if atom in used[1] else 1]
        if not any(atom in tensor for tensor in used):
            raise reader.error("an iterator is in no index")
    names: dict[Atom, str] = {}
    for atom, kind in kinds.items():
        same = [other for other, word in kinds.items() if word == kind]
        names[atom] = kind if len(same) == 1 else f"{kind}{same.index(atom)}"
    return names


def _check_padding(reader: _BlockReader, operand: _BlockOperand) -> None:
    """Raise unless the conditions describe exactly where the indices are inside the tensor."""
    wanted = []
    for extent, index in zip(operand.buffer.shape, operand.indices, strict=True):
        size = _integer(extent) or 0
        low = index.constant + sum(min(0, c * (reader.extent(a) - 1)) for a, c in index.terms.items())
        high = index.constant + sum(max(0, c * (reader.extent(a) - 1)) for a, c in index.terms.items())
        if any(coefficient < 1 for coefficient in index.terms.values()):
            raise reader.error("an index decreases when an iterator increases")
        below, above = index, _Affine({}, size - 1).plus(index, -1)
        wanted += [(below, low < 0), (above, high >= size)]
    if any(condition not in [bound for bound, _ in wanted] and not _always_holds(reader, condition)
           for condition in operand.conditions):  # fmt: skip
        raise reader.error("a condition does not check where its tensor ends")
    if any(needed and bound not in operand.conditions for bound, needed in wanted):
        raise reader.error("an index leaves its tensor, and no condition prevents that")


def _check_buffer(reader: _BlockReader, buffer: tirx.Buffer) -> None:
    """Raise unless a tensor is stored as kernels expect it: as a whole, in rows without gaps, with known extents."""
    if any(_integer(extent) is None for extent in buffer.shape):
        raise reader.error(f"{buffer.name} is of shape {list(buffer.shape)}, expected constant extents")
    if len(buffer.strides) or not _is_zero(buffer.elem_offset) or buffer.scope() != "global":
        raise reader.error(f"{buffer.name} has strides, an offset or a scope, expected contiguous global data")


def _always_holds(reader: _BlockReader, condition: _Affine) -> bool:
    least = condition.constant + sum(min(0, c * (reader.extent(a) - 1)) for a, c in condition.terms.items())
    return least >= 0


def _integer(expression: ir.Expr) -> int | None:
    """Return the value of a constant, or None for other expressions."""
    if isinstance(expression, int):
        return expression
    return int(expression.value) if type(expression).__name__ == "IntImm" else None


def _is_zero(expression: ir.Expr) -> bool:
    if isinstance(expression, int):
        return expression == 0
    return type(expression).__name__ in ("FloatImm", "IntImm") and float(expression.value) == 0.0


def _is_one(expression: ir.Expr) -> bool:
    return expression is True or (type(expression).__name__ == "IntImm" and int(expression.value) == 1)


def _loads_buffer(expression: ir.Expr, buffer: tirx.Buffer) -> bool:
    return type(expression).__name__ == "TensorLoad" and bool(expression.source.same_as(buffer))

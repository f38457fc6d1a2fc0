"""Common parts of kernels that are TVMScript loops around functions in LLVM IR.

A function takes a pointer and an offset in elements for each tensor, then numbers, all of 64 bits. The loops around its
calls carry its LLVM IR, which TVM compiles together with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from anatune.core.sizes import is_run_time, least_size, symbols_of
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.llvm import LlvmCode, lane_mask
from anatune.emit.script import Script, buffer_type, open_function, shape_tuple, whole_region

Function = tuple[str, set[str]]
"""A function in LLVM IR, and the declarations that it needs."""

CARRIER = 'for _ in T.serial(1, annotations={"pragma_import_llvm": LL}):'
"""A loop of one iteration that tells TVM which LLVM IR the calls inside need."""


# ---- TVMScript ----


def widen_index(index: str) -> str:
    """Return an index in the 64 bits that a function takes; TVM narrows indices that were never cast to 32 bits."""
    return f'T.Cast("int64", T.Cast("int32", {index}))'


def emit_call(text: Script, function: str, places: Iterable[tuple[str, str]], *numbers: str) -> None:
    """Append the call of a function with tensors and offsets in them, then plain numbers."""
    words = [f"{tensor}.data, {widen_index(offset)}" for tensor, offset in places]
    words += [widen_index(number) for number in numbers]
    text.line(f'T.evaluate(T.call_extern("void", "{function}", {", ".join(words)}))')


def write_loop_head(variable: str, count: int, *, parallel: bool) -> str:
    """Return the head of a loop, parallel or serial."""
    return f"for {variable} in T.{'parallel' if parallel else 'serial'}({count}):"


def write_spread_loop(
    text: Script, variable: str, count: int, write: Callable[[], None], *, threads: int, work: int, least: int
) -> None:
    """Append a loop whose body `write` writes; it is parallel if it has at least `least` of `work`.

    If `work` is known only at run time, both versions of the loop are written.
    """
    may_spread = threads > 1 and (is_run_time(count) or count > 1)
    needs_check = may_spread and is_run_time(work) and least_size(work) < least
    with text.scope(f"if {work} >= {least}:" if needs_check else ""):
        parallel = needs_check or (may_spread and least_size(work) >= least)
        with text.scope(write_loop_head(variable, count, parallel=parallel)):
            write()
    if needs_check:
        with text.scope("else:", write_loop_head(variable, count, parallel=False)):
            write()


def open_kernel(
    text: Script,
    name: str,
    block: str,
    shapes: Mapping[str, Sequence[int]],
    buffers: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> None:
    """Append the head of a kernel up to the loop that carries its LLVM IR, and enter it.

    Symbols of sizes that are known only at run time are parameters before the last tensor, in alphabetical order, as
    Relax calls functions.

    Parameters
    ----------
    block : str
        Name of the block that contains the whole kernel for TVM.
    shapes : mapping of str to sequence of int
        The tensors in order; the last one is written.
    buffers : mapping of str to int, optional
        Memory that the kernel allocates -> number of elements.
    dtypes : mapping of str to str, optional
        Dtypes of tensors that are not float32.
    """
    buffers = buffers or {}

    def dtype_of(tensor: str) -> str:
        return (dtypes or {}).get(tensor, "float32")

    symbols = sorted(symbols_of((*map(tuple, shapes.values()), *buffers.values())))
    unknown = [tensor for tensor, shape in shapes.items() if is_run_time(tuple(shape))]
    *parameters, result = (
        (f"{tensor}_argument", "T.handle") if tensor in unknown else (tensor, buffer_type(shape, dtype_of(tensor)))
        for tensor, shape in shapes.items()
    )
    open_function(text, name, [*parameters, *((symbol, "T.int64") for symbol in symbols), result])
    for tensor in unknown:
        text.line(f'{tensor} = T.match_buffer({tensor}_argument, {shape_tuple(shapes[tensor])}, "{dtype_of(tensor)}")')
    for buffer, size in buffers.items():
        text.line(f'{buffer} = T.sblock_alloc_buffer(({size},), "float32")')
    *read, written = (f"{tensor}[{whole_region(shape)}]" for tensor, shape in shapes.items())
    text.open(f'with T.sblock("{block}"):')
    text.line(f"T.reads({', '.join(read)})")
    text.line(f"T.writes({', '.join([written, *(f'{buffer}[0:{size}]' for buffer, size in buffers.items())])})")
    text.open(CARRIER)


# ---- LLVM IR ----


def vector_attributes(lanes: int) -> str:
    """Return the attributes of a function with vectors of `lanes` 32-bit lanes, so that LLVM does not split them."""
    bits = 32 * lanes
    return f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'


def start_function(code: LlvmCode, name: str, tensors: int, *numbers: str, spills: bool = True) -> None:
    """Append the head of a function of `tensors` tensors (%p0, %o0, %p1, ...) and of the named `numbers`.

    Parameters
    ----------
    spills : bool
        Whether there may be more vectors than registers; the stack is then aligned for them.
    """
    arguments = [f"ptr noalias %p{place}, i64 %o{place}" for place in range(tensors)]
    arguments += [f"i64 %{number}" for number in numbers]
    attributes = vector_attributes(code.lanes * DTYPE_BYTES[code.accumulator] // 4)
    code.line(f"define internal void @{name}({', '.join(arguments)}) noinline nounwind {attributes} {{")
    code.line("entry:")
    if spills:
        code.align_frame(4 * code.lanes)


def element_addresses(code: LlvmCode, types: Sequence[str]) -> list[str]:
    """Return the addresses of the elements that the function's arguments name, for tensors of these LLVM types."""
    return [code.emit(f"getelementptr {kind}, ptr %p{place}, i64 %o{place}") for place, kind in enumerate(types)]


def finish_function(code: LlvmCode) -> Function:
    """Close a function and return it."""
    code.line("  ret void")
    code.line("}")
    return "\n".join(code.lines), code.declared


class Loops:
    """A writer of loops of one function that carry vectors, one after another or nested, from the block `block` on."""

    def __init__(self, code: LlvmCode, block: str = "entry") -> None:
        self.code, self.block, self.number = code, block, 0

    def over(
        self, start: str, end: str, step: str, state: Sequence[str], body: Callable[[str, list[str]], Sequence[str]]
    ) -> list[str]:
        """Append a loop from one number to another, and return the carried vectors after it.

        Parameters
        ----------
        start, end, step : str
            Numbers of 64 bits; the loop does nothing if the end is the start.
        state : sequence of str
            The carried vectors, with their values before the loop.
        body : callable
            Function that takes the number and the vectors, writes one step and returns the new vectors.
        """
        code, before = self.code, self.block
        self.number += 1
        label = f"loop{self.number}"
        is_any = code.emit(f"icmp ult i64 {start}, {end}")
        code.line(f"  br i1 {is_any}, label %{label}, label %{label}_end")
        code.line(f"{label}:")
        names = [code.name() for _ in state]
        counter, following = code.name(), code.name()
        head = len(code.lines)
        self.block = label
        behind = body(counter, names)
        last = self.block  # the last block of a loop in the body, if it has one
        ways = [
            f"phi {code.vector} [{old}, %{before}], [{new}, %{last}]" for old, new in zip(state, behind, strict=True)
        ]
        phis = [f"  {name} = {way}" for name, way in zip(names, ways, strict=True)]
        code.lines[head:head] = [f"  {counter} = phi i64 [{start}, %{before}], [{following}, %{last}]", *phis]
        code.line(f"  {following} = add nuw nsw i64 {counter}, {step}")
        is_more = code.emit(f"icmp ult i64 {following}, {end}")
        code.line(f"  br i1 {is_more}, label %{label}, label %{label}_end, !llvm.loop !0")
        code.line(f"{label}_end:")
        self.block = f"{label}_end"
        return [code.emit(way) for way in ways]


def write_reciprocal(code: LlvmCode, number: int, name: str) -> str:
    """Return a vector of one over a number; a number known only at run time is the function's argument `name`."""
    if not is_run_time(number):
        return code.constant(1.0 / number)
    return code.splat(code.emit(f"fdiv float 1.0, {code.emit(f'uitofp i64 %{name} to float')}"))


def mask_lanes_below(code: LlvmCode, count: str) -> str:
    """Return a mask of the first lanes, whose number is a 64-bit value at run time; below 0 none."""
    kind = f"<{code.lanes} x i32>"
    numbers = ", ".join(f"i32 {lane}" for lane in range(code.lanes))
    return code.emit(f"icmp slt {kind} <{numbers}>, {code.splat(code.emit(f'trunc i64 {count} to i32'), 'i32')}")


def select_lanes(code: LlvmCode, value: str, used: int | str, other: str) -> str:
    """Return a vector with `other` in the lanes after the first `used`, or in those that a mask leaves out."""
    if used == code.lanes:
        return value
    mask = lane_mask(used, code.lanes)
    return code.emit(f"select <{code.lanes} x i1> {mask}, {code.vector} {value}, {code.vector} {other}")

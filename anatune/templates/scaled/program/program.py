"""A schedule of the template "scaled" as TVMScript and LLVM IR: the loops around digits and microkernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from anatune.core.generation import MOST_ELEMENTS, too_large_text
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Access
from anatune.emit.kernels import CARRIER, Function, emit_call, write_loop_head
from anatune.emit.script import Script, buffer_type, open_function, whole_region
from anatune.errors import BuildError
from anatune.templates.cpu.program.extents import FIXED, Extents
from anatune.templates.cpu.program.microkernel import module_ir
from anatune.templates.cpu.program.program import CpuProgram, open_program
from anatune.templates.cpu.rules import cpu_of
from anatune.templates.scaled.program.floats import float_function, unpack_function
from anatune.templates.scaled.program.functions import ProductKernel, digits_function
from anatune.templates.scaled.rules import FLOAT_PIECE, FLOAT_ROWS, FLOATS_FROM, product_of

__all__ = ["program_of"]

_FLOAT_BYTES = 1 << 16
"""Most memory of a part of a tile's unpacked weights: between an eighth and a half of usual L2 caches."""


class _ScaledWriter:
    """Writes the program of one schedule."""

    def __init__(self, schedule: Schedule, threads: int, prefix: str, extents: Extents) -> None:
        self.workload, self.extents, self.prefix = schedule.workload, extents, prefix
        self.product = product = product_of(schedule.workload, cpu_of(schedule))
        (_, self.calls, self.rows), (self.tiles, self.vectors, _) = schedule.tiles["i"], schedule.tiles["j"]
        self.digits = int(str(schedule.options["digits"]))
        self.is_parallel = threads > 1 and bool(schedule.options.get("parallel", False))
        self.width = self.vectors * product.lanes
        self.row_words = product.row_words(self.digits)
        self.piece = self.calls * self.rows
        most = max(self.piece * self.row_words, *(self.size(access) for access in self.packed))
        if most > MOST_ELEMENTS:
            raise BuildError(too_large_text("digits or packed weights", most))
        for access in self.workload.tensors:
            if access.num_elements > MOST_ELEMENTS:
                raise BuildError(too_large_text(access.tensor, access.num_elements))
        self.functions: dict[str, Function] = {}
        self.has_floats = bool(schedule.options.get("floats", False)) and (
            extents is not FIXED or product.rows >= FLOATS_FROM
        )
        self.workers = threads if self.is_parallel else 1
        unit = product.run if product.group == product.depth else max(product.group, product.run)
        self.part = min(product.depth, max(1, _FLOAT_BYTES // 4 // self.width // unit) * unit)
        """Number of elements along k that are unpacked at once."""

    @property
    def packed(self) -> tuple[Access, ...]:
        """Operands that are packed before the kernel runs."""
        return self.workload.reads[1:]

    def size(self, access: Access) -> int:
        """Return the elements of an operand's packed form. Columns that do not exist are zeros."""
        return self.tiles * self.width * access.shape[1]

    def main(self, *, prepacked: bool) -> str:
        """Return the text of the kernel."""
        text, output = Script(), self.workload.write
        data = self.workload.reads[0]
        shapes = {access.tensor: self.extents.shape(access) for access in self.workload.operands}
        if prepacked:
            shapes |= {access.tensor: (self.size(access),) for access in self.packed}
        shapes[output.tensor] = self.extents.shape(output)
        open_program(text, "main", shapes, {access.tensor: access.dtype for access in self.workload.tensors})
        names = {access.tensor: access.tensor for access in self.workload.tensors}
        if not prepacked:
            for access in self.packed:
                names[access.tensor] = f"{access.tensor}_copy"
                text.line(f'{access.tensor}_copy = T.sblock_alloc_buffer(({self.size(access)},), "{access.dtype}")')
            for access in self.packed:
                self._pack(text, access, names[access.tensor])
        rows = str(shapes[data.tensor][0])
        held = min(self.piece, self.product.rows) if self.extents is FIXED else self.piece
        text.line(f'digits = T.sblock_alloc_buffer(({held * self.row_words},), "int32")')
        if self.has_floats:
            text.line(f'floats = T.sblock_alloc_buffer(({self.workers * self.part * self.width},), "float32")')
        text.open('with T.sblock("nest"):')
        regions = [f"{data.tensor}[{whole_region(shapes[data.tensor])}]"]
        regions += [f"{names[access.tensor]}[0:{self.size(access)}]" for access in self.packed]
        added = (access.tensor for access in self.workload.epilogue_reads)
        regions += [f"{tensor}[{whole_region(shapes[tensor])}]" for tensor in added]
        text.line(f"T.reads({', '.join(regions)})")
        written = [f"{output.tensor}[{whole_region(shapes[output.tensor])}]", f"digits[0:{held * self.row_words}]"]
        if self.has_floats:
            written.append(f"floats[0:{self.workers * self.part * self.width}]")
        text.line(f"T.writes({', '.join(written)})")
        with text.scope(CARRIER):
            if not self.has_floats or self.extents is not FIXED:
                with text.scope(f"if {rows} < {FLOATS_FROM}:" if self.has_floats else ""):
                    self._write_digits(text, names, rows)
            if self.has_floats:
                with text.scope("else:" if self.extents is not FIXED else ""):
                    self._write_floats(text, names, rows)
        text.close()
        return str(text)

    def _write_digits(self, text: Script, names: dict[str, str], rows: str) -> None:
        """Write the products of digits."""
        data = self.workload.reads[0]
        is_one = self.extents is FIXED and self.product.rows <= self.piece
        pieces = "1" if is_one else f"T.truncdiv({rows} + {self.piece - 1}, {self.piece})"
        with text.scope(f"for piece in range({pieces}):"):
            first = f"piece * {self.piece}"
            total = rows if is_one else f"T.min({self.piece}, {rows} - {first})"
            self.functions["digits"] = digits_function(f"{self.prefix}_digits", self.product, self.digits)
            places = [
                (data.tensor, f"({first} + row) * {self.product.depth}"), ("digits", f"row * {self.row_words}")
            ]  # fmt: skip
            spreads = self.is_parallel and total != "1"
            needs_check = spreads and not total.isdigit()  # one row is not worth the start of threads
            for head, parallel in (
                (f"if {total} > 1:" if needs_check else "", spreads),
                *([("else:", False)] * needs_check),
            ):
                with text.scope(head, f"for row in T.{'parallel' if parallel else 'serial'}({total}):"):
                    emit_call(text, f"{self.prefix}_digits", places)
            sizes = [self.rows, *(size for size in (4, 2, 1) if size < self.rows)]
            with text.scope(write_loop_head("tile", self.tiles, parallel=self.is_parallel)):
                calls = partial(self._write_calls, text, names, first)
                self._write_tile(text, lambda columns: self._write_rows(text, total, sizes, partial(calls, columns)))

    def _write_floats(self, text: Script, names: dict[str, str], rows: str) -> None:
        """Write the products of unpacked weights, part by part along k, each unpacked for all rows of a piece."""
        product, part, data = self.product, self.part, self.workload.reads[0].tensor
        is_one = rows.isdigit() and int(rows) <= FLOAT_PIECE
        pieces = "1" if is_one else f"T.truncdiv({rows} + {FLOAT_PIECE - 1}, {FLOAT_PIECE})"
        each_piece = f"T.truncdiv({rows} + {pieces} - 1, {pieces})"  # pieces as equal as microkernels allow
        size_of_piece = f"(T.truncdiv({each_piece} + {FLOAT_ROWS - 1}, {FLOAT_ROWS}) * {FLOAT_ROWS})"
        each, turns = 32 // product.bits, -(-self.tiles // self.workers)
        self.functions["unpack"] = unpack_function(f"{self.prefix}_unpack", product, self.vectors)
        scratch = f"worker * {part * self.width}"

        def multiply(start: str, size: int, columns: int, k: str, depth: int, *, goes_on: bool, ends: bool) -> None:
            used = [min(product.lanes, max(0, columns - vector * product.lanes)) for vector in range(self.vectors)]
            present = [vector for vector in range(self.vectors) if used[vector]]
            for begin in range(0, len(present), 2):
                vectors = present[begin : begin + 2]
                name = f"{self.prefix}_f{size}x{vectors[0]}to{vectors[-1]}of{columns}_{int(goes_on)}{int(ends)}"
                if name not in self.functions:
                    self.functions[name] = float_function(
                        name, product, rows=size, vectors=vectors, width=self.vectors, used=used,
                        steps=self.workload.epilogue if ends else (), goes_on=goes_on,
                    )  # fmt: skip
                row = f"(piece * {size_of_piece} + {start})"
                result = f"{row} * {product.columns} + tile * {self.width}"
                places = [(data, f"{row} * {product.depth} + {k}"), ("floats", scratch)]
                for access in self.workload.epilogue_reads if ends else ():
                    places.append((access.tensor, result if len(access.shape) > 1 else f"tile * {self.width}"))
                emit_call(text, name, [*places, (self.workload.write.tensor, result)], str(depth))

        def write_parts(columns: int) -> None:
            for start in range(0, product.depth, part):
                depth = min(part, product.depth - start)
                places = []
                for access in self.packed:
                    scale_offset = start * access.shape[1] // product.depth if access.shape[1] > 1 else 0
                    places.append(
                        (names[access.tensor], f"tile * {self.width * access.shape[1]} + {scale_offset * self.width}")
                    )
                emit_call(text, f"{self.prefix}_unpack", [*places, ("floats", scratch)], str(depth // each))
                ends = start + depth == product.depth
                call_of = partial(multiply, columns=columns, k=str(start), depth=depth, goes_on=start > 0, ends=ends)
                self._write_rows(text, total, [FLOAT_ROWS, 4, 2, 1], call_of)

        with text.scope(f"for piece in range({pieces}):"):
            total = rows if is_one else f"T.min({size_of_piece}, {rows} - piece * {size_of_piece})"
            ends = f"worker * {turns}, T.min({self.tiles}, (worker + 1) * {turns})"
            with text.scope(
                write_loop_head("worker", self.workers, parallel=self.workers > 1), f"for tile in range({ends}):"
            ):
                self._write_tile(text, write_parts)

    def _write_tile(self, text: Script, write: Callable[[int], None]) -> None:
        """Write the statements for a tile of columns. The last tile may have fewer columns."""
        last_width = self.product.columns - (self.tiles - 1) * self.width
        if last_width == self.width or self.tiles == 1:
            write(last_width)
            return
        with text.scope(f"if tile < {self.tiles - 1}:"):
            write(self.width)
        with text.scope("else:"):
            write(last_width)

    def _write_rows(self, text: Script, total: str, sizes: Sequence[int], write: Callable[[str, int], None]) -> None:
        """Write the calls for all rows. Smaller tiles cover the remaining rows."""
        before = "0"
        for number, size in enumerate(sizes):
            left = total if not number else f"({total} - {before})"
            count = f"T.truncdiv({left}, {size})"
            if total.isdigit():
                done = 0 if not number else int(before)
                count = str((int(total) - done) // size)
            if count != "0":
                variable = f"call{size}"
                with self._loop(text, variable, count) as loop_variable:
                    write(f"{before} + {loop_variable} * {size}", size)
            before = str(int(before) + int(count) * size) if total.isdigit() else f"({before} + {count} * {size})"

    @contextmanager
    def _loop(self, text: Script, variable: str, count: str) -> Iterator[str]:
        with text.scope(f"for {variable} in range({count}):" if count != "1" else ""):
            yield variable if count != "1" else "0"

    def _write_calls(
        self, text: Script, names: dict[str, str], first: str, columns: int, start: str, rows: int
    ) -> None:
        """Write the calls of microkernels of some rows, each with as many vectors as its registers hold."""
        product, lanes = self.product, self.product.lanes
        used = [min(lanes, max(0, columns - vector * lanes)) for vector in range(self.vectors)]
        present = [vector for vector in range(self.vectors) if used[vector]]
        at_once = product.vectors_at_once(rows, self.vectors, self.digits)
        for begin in range(0, len(present), at_once):
            vectors = present[begin : begin + at_once]
            name = f"{self.prefix}_{rows}x{vectors[0]}to{vectors[-1]}of{columns}"
            if name not in self.functions:
                self.functions[name] = ProductKernel(
                    name, product, self.digits, rows, vectors, self.vectors, used, self.workload.epilogue
                ).function
            places = [(names[access.tensor], f"tile * {self.width * access.shape[1]}") for access in (*self.packed,)]
            places.append(("digits", f"({start}) * {self.row_words}"))
            result_index = f"({first} + {start}) * {product.columns} + tile * {self.width}"
            for access in self.workload.epilogue_reads:
                places.append((access.tensor, result_index if len(access.shape) > 1 else f"tile * {self.width}"))
            emit_call(text, name, [*places, (self.workload.write.tensor, result_index)])

    def packing(self, access: Access) -> str:
        """Return the function that packs an operand."""
        text = Script()
        parameters = [(access.tensor, access.shape), (f"{access.tensor}_packed", (self.size(access),))]
        open_function(
            text, f"pack_{access.tensor}", [(tensor, buffer_type(shape, access.dtype)) for tensor, shape in parameters]
        )
        self._pack(text, access, f"{access.tensor}_packed")
        return str(text)

    def _pack(self, text: Script, access: Access, target: str) -> None:
        """Write the loops that place rows of an operand side by side: words of weights, single scales."""
        unit = 4 if access.tensor == "weight" else 1
        count, pitch = access.shape[1] // unit, self.width * access.shape[1]
        whole, last_columns = divmod(self.product.columns, self.width)
        with text.scope(f'with T.sblock("pack_{access.tensor}"):'):
            text.line(f"T.reads({access.tensor}[{whole_region(access.shape)}])")
            text.line(f"T.writes({target}[0:{self.size(access)}])")
            for tiles, first, columns in ((whole, 0, self.width), (1 if last_columns else 0, whole, last_columns)):
                if not tiles:
                    continue
                with text.scope(
                    f"for t in range({tiles}):", f"for w in range({count}):",
                    f"for c in range({columns}):", f"for b in range({unit}):",
                ):  # fmt: skip
                    to = f"t * {pitch} + w * {self.width * unit} + c * {unit} + b + {first * pitch}"
                    source = f"t * {self.width} + c + {first * self.width}, w * {unit} + b"
                    text.line(f"{target}[{to}] = {access.tensor}[{source}]")
                if columns < self.width:
                    with text.scope(
                        f"for w in range({count}):", f"for c in range({(self.width - columns) * unit}):"
                    ):  # fmt: skip
                        to = f"w * {self.width * unit} + c + {columns * unit + first * pitch}"
                        text.line(f'{target}[{to}] = T.Cast("{access.dtype}", 0)')


def program_of(
    schedule: Schedule, *, threads: int = 1, prepacked: bool = True, prefix: str = "scaled", extents: Extents = FIXED
) -> CpuProgram:
    """Write a schedule of the template "scaled" as TVMScript and LLVM IR.

    Parameters
    ----------
    threads : int
        Number of threads. With 1 the parallel loop is serial.
    prepacked : bool
        Whether weights, scales and zero points are passed in packed form. Otherwise the kernel packs them in every run.
    prefix : str
        Prefix of the functions' names.
    extents : Extents
        Extents of the kernel, if the number of rows is known at run time only. The schedule is then for any number.

    Raises
    ------
    BuildError
        A buffer is too large for 32-bit indices.
    """
    writer = _ScaledWriter(schedule, threads, prefix, extents)
    main = writer.main(prepacked=prepacked)
    return CpuProgram(
        main=main,
        packing={access.tensor: writer.packing(access) for access in writer.packed} if prepacked else {},
        packed_sizes={access.tensor: writer.size(access) for access in writer.packed} if prepacked else {},
        llvm=module_ir(list(writer.functions.values())),
        kernels=(),
    )

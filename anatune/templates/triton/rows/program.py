"""Kernels on rows in Triton."""

from __future__ import annotations

from contextlib import AbstractContextManager

from anatune.core.schedule import Schedule
from anatune.core.workload.kernels import EPSILON, LARGEST
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.module import module_text
from anatune.templates.triton.program.steps import TRITON_TYPES
from anatune.templates.triton.rows.rules import rows_of

__all__ = ["row_program"]

_WIDE = 2**31
_LOWEST = -3.4028234663852886e38
"""Least float32 number. Rows consist of it where masks hide everything."""
_ROUNDED = 1.5 * 2.0**23
"""Constant that rounds a float32 number up to 2^22 to nearest, ties to even, if it is added and subtracted."""


def row_program(schedule: Schedule) -> TritonProgram:
    """Return the Triton module of a schedule.

    Raises
    ------
    SpaceError
        The schedule is not legal.
    """
    return _RowWriter(schedule.check()).program()


class _RowWriter:
    """Writes the module of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.workload = schedule, schedule.workload
        self.rows = rows_of(self.workload)
        (self.row_blocks, self.block_rows), (self.col_blocks, self.block_cols) = (
            schedule.tiles[index] for index in ("rows", "cols")
        )
        self.in_steps = self.rows.is_whole and self.col_blocks > 1
        self.grid = self.row_blocks * (1 if self.rows.is_whole else self.col_blocks)
        self.text = Script()
        self.is_one = self.block_rows == 1
        self.row_mask = self.rows.rows % self.block_rows > 0
        self.col_mask = self.rows.cols % self.block_cols > 0

    def program(self) -> TritonProgram:
        """Write the module and return it with its launch."""
        workload = self.workload
        # the result comes last
        tensors = tuple(Buffer.of(access) for access in (*workload.reads, *workload.further, workload.write))
        warps = self.schedule.options["num_warps"]
        assert isinstance(warps, int)
        kernel = TritonKernel(workload.operator, tensors, self.grid, warps, 1, {"enable_fp_fusion": True})
        self.text.line("@triton.jit")
        with self.text.scope(f"def {kernel.name}({', '.join(f'{tensor.tensor}_ptr' for tensor in tensors)}):"):
            self._write_rows()
            getattr(self, f"_write_{workload.body}")()
        further = tuple(access.tensor for access in workload.further)
        title = " and ".join(access.tensor for access in (workload.write, *workload.further))
        source = module_text(self.schedule, title, (kernel,), self._constants(), str(self.text))
        return TritonProgram(self.schedule.key, source, (kernel,), workload.write.tensor, further=further)

    def _constants(self) -> dict[str, int | float]:
        return {
            "ROWS": self.rows.rows,
            "COLS": self.rows.cols,
            "BLOCK_ROWS": self.block_rows,
            "BLOCK_COLS": self.block_cols,
            "COL_BLOCKS": self.col_blocks,
            "HEADS": self.workload.extents.get("h", 1),
            "EPSILON": EPSILON,
            "LARGEST": LARGEST.get(self.workload.write.dtype, 0.0),
            "ROUNDED": _ROUNDED,
        }

    # ---- addresses and masks ----

    def _write_rows(self) -> None:
        """Write the rows of a program, and its columns unless it loops over them in steps."""
        text, split = self.text, not self.rows.is_whole and self.col_blocks > 1
        program = "tl.program_id(0)"
        if split:
            text.line(f"program = {program}")
            program = "program // COL_BLOCKS"
        reach = max(access.num_elements for access in self.workload.tensors)
        cast = ".to(tl.int64)" if reach + self.block_rows * self.rows.cols * 2 >= _WIDE else ""
        if cast:
            program = f"({program}){cast}"
        if self.is_one:
            text.line(f"row = {program}")
        else:
            program = f"({program})" if split and not cast else program
            text.line(f"row = {program} * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]")
        if not self.in_steps:
            self._write_cols("(program % COL_BLOCKS) * BLOCK_COLS + " if split else "")

    def _write_cols(self, start: str) -> None:
        """Write the columns of a tile and its mask."""
        self.text.line(f"col = {start}tl.arange(0, BLOCK_COLS){'' if self.is_one else '[None, :]'}")
        terms = ["row < ROWS"] * self.row_mask + ["col < COLS"] * self.col_mask
        if terms:
            self.text.line(f"mask = {terms[0] if len(terms) == 1 else ' & '.join(f'({term})' for term in terms)}")

    @property
    def _has_mask(self) -> bool:
        return self.row_mask or self.col_mask

    def _loop(self) -> AbstractContextManager[None]:
        """Open the loop over a row, if it has several steps."""
        return self.text.scope("for start in range(0, COLS, BLOCK_COLS):" if self.in_steps else "")

    def _step(self) -> None:
        """Write the columns of a step, if there are several steps."""
        if self.in_steps:
            self._write_cols("start + ")

    def _load(self, tensor: str, index: str, other: str = "", mask: str = "mask") -> str:
        """Return the expression of elements in float32."""
        has = {"mask": self._has_mask, "col < COLS": self.col_mask, "row < ROWS": self.row_mask}[mask]
        masked = f", mask={mask}{f', other={other}' if other else ''}" if has else ""
        access = self.workload.tensor(tensor)
        cast = "" if access.dtype == "float32" else ".to(tl.float32)"
        return f"tl.load({tensor}_ptr + {index}{masked}){cast}"

    def _store(self, value: str, index: str, tensor: str = "output") -> None:
        """Write the store of elements in the tensor's own type."""
        access = next(a for a in (self.workload.write, *self.workload.further) if a.tensor == tensor)
        cast = "" if access.dtype == "float32" else f".to(tl.{TRITON_TYPES[access.dtype]})"
        value = f"({value})" if cast and not value.isidentifier() and not value.endswith(")") else value
        self.text.line(f"tl.store({tensor}_ptr + {index}, {value}{cast}{', mask=mask' if self._has_mask else ''})")

    def _reduce_row(self, what: str, value: str) -> str:
        """Return a reduction over the columns of a tile."""
        return f"tl.{what}({value}, axis=0)" if self.is_one else f"tl.{what}({value}, axis=1, keep_dims=True)"

    @property
    def _tile(self) -> str:
        return "[BLOCK_COLS]" if self.is_one else "[BLOCK_ROWS, BLOCK_COLS]"

    def _zero_outside(self, value: str) -> str:
        """Return a value that is zero beyond the end of the row."""
        return f"tl.where(col < COLS, {value}, 0.0)" if self.col_mask else value

    # ---- bodies ----

    def _write_softmax(self) -> None:
        text, x = self.text, self._load("data", "row * COLS + col", '-float("inf")')
        if not self.in_steps:
            text.line(f"x = {x}")
            text.line(f"power = tl.exp(x - {self._reduce_row('max', 'x')})")
            self._store(f"power / {self._reduce_row('sum', 'power')}", "row * COLS + col")
            return
        text.line("# every lane keeps its own largest element and sum; they come together behind the row")
        text.line(f"largest = tl.full({self._tile}, {_LOWEST!r}, tl.float32)")
        text.line(f"total = tl.zeros({self._tile}, tl.float32)")
        with self._loop():
            self._step()
            text.line(f"x = {x}")
            text.line("larger = tl.maximum(largest, x)")
            text.line("total = total * tl.exp(largest - larger) + tl.exp(x - larger)")
            text.line("largest = larger")
        text.line(f"most = {self._reduce_row('max', 'largest')}")
        text.line(f"scale = 1.0 / {self._reduce_row('sum', 'total * tl.exp(largest - most)')}")
        with self._loop():
            self._step()
            text.line(f"x = {x}")
            self._store("tl.exp(x - most) * scale", "row * COLS + col")

    def _accumulate(self, name: str, value: str, *lines: str) -> str:
        """Write the sum over a row of a value that `lines` compute, in one or several steps. Return its expression."""
        text = self.text
        if self.in_steps:
            text.line(f"{name} = tl.zeros({self._tile}, tl.float32)")
        with self._loop():
            self._step()
            for line in lines:
                text.line(line)
            if self.in_steps:
                text.line(f"{name} += {value}")
        return self._reduce_row("sum", name if self.in_steps else value)

    def _write_layer_norm(self) -> None:
        text, x = self.text, f"x = {self._load('data', 'row * COLS + col', '0.0')}"
        text.line(f"mean = {self._accumulate('total', 'x', x)} / COLS")
        centred = f"centred = {self._zero_outside('x - mean')}"
        again = [x] * self.in_steps
        squares = self._accumulate("squares", "centred * centred", *again, centred)
        text.line(f"scale = tl.rsqrt({squares} / COLS + EPSILON)")
        with self._loop():
            self._step()
            if self.in_steps:
                text.line(x)
            text.line(f"weight = {self._load('weight', 'col', mask='col < COLS')}")
            text.line(f"bias = {self._load('bias', 'col', mask='col < COLS')}")
            self._store(f"{'(x - mean)' if self.in_steps else 'centred'} * scale * weight + bias", "row * COLS + col")

    def _write_rms_norm(self, *residual: str) -> None:
        text, index = self.text, "row * COLS + col"
        x = " + ".join(self._load(tensor, index, "0.0") for tensor in ("data", *residual))
        lines = [f"x = {x}"]
        if not residual:
            squares = self._accumulate("squares", "x * x", *lines)
        else:
            squares = self._accumulate("squares", "x * x", *lines, self._sum_line())
        text.line(f"scale = tl.rsqrt({squares} / COLS + EPSILON)")
        with self._loop():
            self._step()
            if self.in_steps:
                text.line(lines[0])
            text.line(f"weight = {self._load('weight', 'col', mask='col < COLS')}")
            self._store("x * scale * weight", index)

    def _sum_line(self) -> str:
        """Return the line that stores the sum with a residual."""
        written, self.text = self.text, Script()
        self._store("x", "row * COLS + col", "sum")
        (line,), self.text = self.text.lines, written
        return line

    def _write_add_rms_norm(self) -> None:
        self._write_rms_norm("residual")

    def _write_silu_multiply(self) -> None:
        self.text.line(f"gate = {self._load('data', 'row * (2 * COLS) + col')}")
        self.text.line(f"up = {self._load('data', 'row * (2 * COLS) + COLS + col')}")
        self._store("gate / (1.0 + tl.exp(-gate)) * up", "row * COLS + col")

    def _write_rotary(self) -> None:
        text = self.text
        text.line("# a row is a head of a token, a column a pair of its elements")
        text.line("token = row // HEADS")
        for name in ("cos", "sin"):
            text.line(f"{name} = {self._load(name, 'token * COLS + col')}")
        text.line(f"x = {self._load('data', 'row * (2 * COLS) + col')}")
        text.line(f"y = {self._load('data', 'row * (2 * COLS) + COLS + col')}")
        self._store("x * cos - y * sin", "row * (2 * COLS) + col")
        self._store("y * cos + x * sin", "row * (2 * COLS) + COLS + col")

    def _store_narrow(self, scale: str) -> None:
        """Write x times the reciprocal of its scale, saturated and rounded."""
        self.text.line(f"x = tl.clamp(x * {scale}, -LARGEST, LARGEST)")
        rounded = "x + ROUNDED - ROUNDED" if self.workload.write.dtype == "int8" else "x"
        self._store(rounded, "row * COLS + col")

    def _write_quantise_tensor(self) -> None:
        self.text.line("inverse = 1.0 / tl.load(scale_ptr)")
        self.text.line(f"x = {self._load('data', 'row * COLS + col')}")
        self._store_narrow("inverse")

    def _write_quantise_rows(self) -> None:
        text, x = self.text, f"x = {self._load('data', 'row * COLS + col', '0.0')}"
        if self.in_steps:
            text.line(f"largest = tl.zeros({self._tile}, tl.float32)")
        with self._loop():
            self._step()
            text.line(x)
            if self.in_steps:
                text.line("largest = tl.maximum(largest, tl.abs(x))")
        largest = self._reduce_row("max", "largest" if self.in_steps else "tl.abs(x)")
        text.line(f"scale = tl.maximum({largest}, 1e-10) / LARGEST")
        mask = ", mask=row < ROWS" if self.row_mask else ""
        text.line(f"tl.store(scales_ptr + row, scale{mask})")
        text.line("inverse = 1.0 / scale")
        with self._loop():
            self._step()
            if self.in_steps:
                text.line(x)
            self._store_narrow("inverse")

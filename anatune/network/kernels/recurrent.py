"""Recurrent layers as one kernel: a loop over all steps, each a product of the state with packed weights.

Weights are packed in blocks of a vector of units with all gates of each unit, so that a call reads whole lines. A
function in LLVM IR sums the gates of some units in registers, adds the inputs' part, and computes the new state without
a store in between. The products of the inputs of all steps with their weights are computed before, by one planned
product of the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from anatune.core.hardware.spec import CpuSpec
from anatune.emit.elementary import QUOTIENTS
from anatune.emit.kernels import (
    CARRIER,
    Function,
    element_addresses,
    emit_call,
    finish_function,
    start_function,
    write_loop_head,
)
from anatune.emit.llvm import LlvmCode
from anatune.emit.script import Script, buffer_type, open_function, whole_region
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["RecurrentKernel", "recurrent_program"]

_FLOAT = "float32"
_SUMS = 8
"""The number of independent sums: the latency of an addition times the additions of a cycle."""
_MOST_ROWS = 6
_PARALLEL_FROM = 1 << 19
"""The least products in a parallel loop: those of a step if its units run in several threads."""
_ROWS_FROM_L2, _ROWS_FROM_L3 = 4, 16
"""The least rows of a thread that runs all steps of its rows: their products take longer than reading the weights."""


@dataclass(frozen=True)
class RecurrentKernel:
    """A recurrent layer in one direction; the fields are those of `anatune.network.graph.operators.RECURRENT`."""

    kind: str
    steps: int
    batch: int
    hidden: int
    functions: tuple[str, ...]
    is_late: bool
    is_turned: bool
    has_term: bool
    has_peepholes: bool
    joins_forget: bool
    has_lengths: bool

    @property
    def gates(self) -> int:
        """The number of gates of a unit."""
        return {"rnn": 1, "gru": 3, "lstm": 4}[self.kind]

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """The gates that are computed together; a GRU that resets its state first needs two products."""
        return ((0, 1), (2,)) if self.kind == "gru" and not self.is_late else (tuple(range(self.gates)),)


_Sums = dict[tuple[int, int, int], str]
"""(chain, row, gate) -> sum."""


def recurrent_program(kernel: RecurrentKernel, name: str, threads: int, hardware: CpuSpec) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR that it calls).

    Parameters: products of the inputs (steps, batch, gates * hidden); weights (blocks, hidden, gates, lanes) of each
    phase; the state and for an LSTM its cells (batch, hidden); term (hidden,), peepholes (3 * hidden,), lengths
    (batch,) int64; the result (steps + states, batch, hidden).
    """
    return _RecurrentWriter(kernel, name, threads, hardware).program()


class _RecurrentWriter:
    def __init__(self, kernel: RecurrentKernel, name: str, threads: int, hardware: CpuSpec) -> None:
        self.kernel, self.name, self.threads = kernel, name, threads
        self.lanes = hardware.fp32_lanes
        self.registers = hardware.compute.num_vector_registers
        fits_l2 = 4 * kernel.gates * kernel.hidden**2 <= hardware.l2.size_bytes
        self.thread_rows = _ROWS_FROM_L2 if fits_l2 else _ROWS_FROM_L3
        self.functions: dict[tuple[int, int, int], tuple[str, Function]] = {}

    def program(self) -> tuple[str, str]:
        kernel, text = self.kernel, Script()
        steps, batch, hidden = kernel.steps, kernel.batch, kernel.hidden
        states = 2 if kernel.kind == "lstm" else 1
        shapes: dict[str, tuple[int, ...]] = {"x": (steps, batch, kernel.gates * hidden)}
        for phase, gates in enumerate(kernel.phases):
            shapes[f"w{phase}"] = (-(-hidden // self.lanes), hidden, len(gates), self.lanes)
        shapes["first"] = (batch, hidden)
        if kernel.kind == "lstm":
            shapes["cells"] = (batch, hidden)
        if kernel.has_term:
            shapes["term"] = (hidden,)
        if kernel.has_peepholes:
            shapes["peepholes"] = (3 * hidden,)
        if kernel.has_lengths:
            shapes["lengths"] = (batch,)
        shapes["result"] = (steps + states, batch, hidden)
        kinds = {tensor: "int64" if tensor == "lengths" else _FLOAT for tensor in shapes}
        open_function(text, self.name, [(p, buffer_type(shape, kinds[p])) for p, shape in shapes.items()])
        buffers = {"state": (2, batch, hidden), "kept": (2, batch, hidden)}
        for buffer, shape in buffers.items():
            text.line(f'{buffer} = T.sblock_alloc_buffer({shape}, "{_FLOAT}")')
        regions = [f"{tensor}[{whole_region(shape)}]" for tensor, shape in shapes.items()]
        text.open('with T.sblock("recurrent"):')
        text.line(f"T.reads({', '.join(regions[:-1])})")
        written = [regions[-1], *(f"{p}[{whole_region(shape)}]" for p, shape in buffers.items())]
        text.line(f"T.writes({', '.join(written)})")
        text.open(CARRIER)
        with text.scope(f"for b, j in T.grid({batch}, {hidden}):"):
            text.line("state[0, b, j] = first[b, j]")
            if kernel.kind == "lstm":
                text.line(f"result[{steps + 1}, b, j] = cells[b, j]")
        parts, work = min(self.threads, batch // self.thread_rows), batch * hidden * kernel.gates * hidden
        spreads_units = self.threads > parts and work >= _PARALLEL_FROM
        size = batch if spreads_units or parts < 2 or steps * work < _PARALLEL_FROM else -(-batch // parts)
        whole, remaining_rows = divmod(batch, size)
        with text.scope(write_loop_head("part", whole + (remaining_rows > 0), parallel=size < batch)):
            for condition, rows in ((f"if part < {whole}:", size), ("else:", remaining_rows)):
                if rows:
                    with text.scope(condition if remaining_rows else "", write_loop_head("t", steps, parallel=False)):
                        for phase in range(len(kernel.phases)):
                            self.phase(text, phase, f"part * {size}", rows, spreads_units=spreads_units)
        with text.scope(f"for b, j in T.grid({batch}, {hidden}):"):
            text.line(f"result[{steps}, b, j] = state[{steps % 2}, b, j]")
        return str(text), module_ir([function for _, function in self.functions.values()])

    def phase(self, text: Script, phase: int, first_row: str, num_rows: int, *, spreads_units: bool) -> None:
        """Write the calls of one product of a step for some rows."""
        kernel = self.kernel
        gates = len(kernel.phases[phase])
        whole, remainder = divmod(kernel.hidden, self.lanes)
        is_single = kernel.batch == 1 or kernel.has_lengths
        rows = 1 if is_single else max(1, min(_MOST_ROWS, (self.registers - 3) // gates, num_rows))
        for start, count, used in ((0, whole, self.lanes), (whole, 1, remainder)):
            if not (count and used):
                continue
            with text.scope(write_loop_head("block", count, parallel=spreads_units and count > 1)):
                groups, remaining_rows = divmod(num_rows, rows)
                for first, times, size in ((0, groups, rows), (groups * rows, 1, remaining_rows)):
                    if times and size:
                        with text.scope(write_loop_head("group", times, parallel=False)):
                            row = f"({first_row} + group * {size} + {first})"
                            self.step(text, phase, used, size, row, f"(block + {start})")

    def step(self, text: Script, phase: int, used: int, rows: int, row: str, block: str) -> None:
        """Write the call for some rows and the first `used` units of a block."""
        kernel, hidden = self.kernel, self.kernel.hidden
        gates = len(kernel.phases[phase])
        key, unit = (phase, rows, used), f"{block} * {self.lanes}"
        if key not in self.functions:
            function = f"{self.name}_{len(self.functions)}"
            self.functions[key] = (function, _StepWriter(kernel, function, self.lanes, phase, rows, used).function)
        time = f"({kernel.steps - 1} - t)" if kernel.is_turned else "t"
        base = f"{row} * {hidden}"
        old, new = f"(t % 2) * {kernel.batch * hidden}", f"((t + 1) % 2) * {kernel.batch * hidden}"
        is_second = phase == 1
        offsets = [
            ("x", f"({time} * {kernel.batch} + {row}) * {kernel.gates * hidden} + {unit}"),
            (f"w{phase}", f"{unit} * {hidden * gates}"),
            ("kept" if is_second else "state", f"{kernel.batch * hidden} + {base}" if is_second else f"{old} + {base}"),
            ("state", f"{old} + {base} + {unit}"),
            ("state", f"{new} + {base} + {unit}"),
            ("result", f"({time} * {kernel.batch} + {row}) * {hidden} + {unit}"),
            ("result", f"({kernel.steps + 1} * {kernel.batch} + {row}) * {hidden} + {unit}")
            if kernel.kind == "lstm"
            else ("kept", f"{base} + {unit}"),
        ]
        if kernel.has_term:
            offsets.append(("term", unit))
        if kernel.has_peepholes:
            offsets.append(("peepholes", unit))
        name = self.functions[key][0]
        if not kernel.has_lengths:
            emit_call(text, name, offsets)
            return
        with text.scope(f'if T.Cast("int64", t) < lengths[{row}]:'):
            emit_call(text, name, offsets)
        with text.scope("else:"), text.scope(f"for j in T.serial({used}):"):
            text.line(f"state[(t + 1) % 2, {row}, {unit} + j] = state[t % 2, {row}, {unit} + j]")
            text.line(f"result[{time}, {row}, {unit} + j] = T.float32(0)")


class _StepWriter:
    """Writes the function for some rows and units of one phase.

    Its tensors: the inputs' part, the weights, the rows that are multiplied, the old state of the units, the new one,
    the result, an LSTM's cells (for a GRU the update gates, followed by the reset state), the term and the peepholes.
    """

    def __init__(self, kernel: RecurrentKernel, name: str, lanes: int, phase: int, rows: int, used: int) -> None:
        self.kernel, self.lanes, self.used, self.rows = kernel, lanes, used, rows
        self.gates = kernel.phases[phase]
        tensors = 7 + kernel.has_term + kernel.has_peepholes
        self.code = code = LlvmCode(lanes, _FLOAT, "add")
        start_function(code, name, tensors)
        self.bases = element_addresses(code, ["float"] * tensors)
        sums = self.products()
        for row in range(rows):
            gates = [
                code.binary("add", sums[row][number], self.load(0, row, gate * kernel.hidden))
                if not (kernel.kind == "gru" and kernel.is_late and gate == 2)
                else sums[row][number]
                for number, gate in enumerate(self.gates)
            ]
            self.finish(phase, row, gates)
        self.function = finish_function(code)

    def products(self) -> list[list[str]]:
        """Return the sums by row and gate: products of the rows with the weights."""
        code, hidden = self.code, self.kernel.hidden
        count = len(self.gates)
        chains = max(1, -(-_SUMS // (self.rows * count)))
        unroll = max(chains, 2)
        flat = [(c, r, g) for c in range(chains) for r in range(self.rows) for g in range(count)]
        sums: _Sums = dict.fromkeys(flat, "zeroinitializer")
        whole, remainder = divmod(hidden, unroll)

        def write_step(index: str, previous: _Sums, inner: int) -> _Sums:
            new, chain = dict(previous), inner % chains
            row_start = code.emit(f"getelementptr float, ptr {self.bases[2]}, i64 {index}")
            offset = code.emit(f"mul i64 {index}, {count * self.lanes}")
            weights = code.emit(f"getelementptr float, ptr {self.bases[1]}, i64 {offset}")
            values = [
                code.load_vector(code.address(row_start, _FLOAT, row * hidden + inner), _FLOAT, 0, self.lanes)
                for row in range(self.rows)
            ]
            for gate in range(count):
                position = (inner * count + gate) * self.lanes
                weight = code.load_vector(code.address(weights, _FLOAT, position), _FLOAT, 1, self.lanes)
                for row in range(self.rows):
                    key = (chain, row, gate)
                    new[key] = code.multiply_add(values[row], weight, new[key])
            return new

        if whole:
            code.line("  br label %loop")
            code.line("loop:")
            names = {key: code.name() for key in flat}
            trip, following, done = code.name(), code.name(), code.name()
            head = len(code.lines)
            index = code.emit(f"mul i64 {trip}, {unroll}")
            carried = dict(names)
            for inner in range(unroll):
                carried = write_step(index, carried, inner)
            code.lines[head:head] = [
                f"  {trip} = phi i64 [0, %entry], [{following}, %loop]",
                *(
                    f"  {names[key]} = phi {code.vector} [zeroinitializer, %entry], [{carried[key]}, %loop]"
                    for key in flat
                ),
            ]
            code.line(f"  {following} = add nuw nsw i64 {trip}, 1")
            code.line(f"  {done} = icmp eq i64 {following}, {whole}")
            code.line(f"  br i1 {done}, label %behind, label %loop, !llvm.loop !0")
            code.line("behind:")
            sums = carried
        for inner in range(remainder):
            sums = write_step(str(whole * unroll), sums, inner)
        sums_of_rows = []
        for row in range(self.rows):
            gates = []
            for gate in range(count):
                value = sums[0, row, gate]
                for chain in range(1, chains):
                    value = code.binary("add", value, sums[chain, row, gate])
                gates.append(value)
            sums_of_rows.append(gates)
        return sums_of_rows

    def load(self, tensor: int, row: int, more: int = 0) -> str:
        """Return a vector of units, `more` elements after the first unit."""
        pitch = {0: self.kernel.gates * self.kernel.hidden}.get(tensor, self.kernel.hidden)
        index = row * pitch + more
        return self.code.load_vector(self.code.address(self.bases[tensor], _FLOAT, index), _FLOAT, 1, self.used)

    def store(self, value: str, tensor: int, row: int, more: int = 0) -> None:
        index = row * self.kernel.hidden + more
        self.code.store_vector(value, self.code.address(self.bases[tensor], _FLOAT, index), _FLOAT, self.used)

    def activation(self, number: int, value: str) -> tuple[str, str]:
        """Return an activation of a value as a dividend and a divisor."""
        return QUOTIENTS[self.kernel.functions[number]](self.code, value)

    def apply_activation(self, number: int, value: str) -> str:
        return self.code.binary("div", *self.activation(number, value))

    def multiply(self, first: tuple[str, str], second: tuple[str, str]) -> str:
        """Return the product of two activations."""
        dividend, divisor = (self.code.binary("mul", *parts) for parts in zip(first, second, strict=True))
        return self.code.binary("div", dividend, divisor)

    def finish(self, phase: int, row: int, gates: list[str]) -> None:
        """Write the new state of the units from their sums."""
        kernel, code = self.kernel, self.code
        if kernel.kind == "lstm":
            new = self.lstm(row, gates)
        elif kernel.kind == "rnn":
            new = self.apply_activation(0, gates[0])
        elif phase == 0 and not kernel.is_late:
            update, reset = (self.apply_activation(0, gate) for gate in gates)
            self.store(update, 6, row)
            reset = code.binary("mul", reset, self.load(3, row))
            self.store(reset, 6, row, kernel.batch * kernel.hidden)
            return
        else:
            new = self.gru(row, gates)
        self.store(new, 4, row)
        self.store(new, 5, row)

    def gru(self, row: int, gates: list[str]) -> str:
        kernel, code = self.kernel, self.code
        if kernel.is_late:
            update, reset = (self.apply_activation(0, gate) for gate in gates[:2])
            inner = gates[2]
            if kernel.has_term:
                inner = code.binary("add", inner, self.load(7, 0))
            inner = code.multiply_add(reset, inner, self.load(0, row, 2 * kernel.hidden))
        else:
            update, inner = self.load(6, row), gates[0]
        new = self.apply_activation(1, inner)
        difference = code.binary("sub", self.load(3, row), new)
        return code.multiply_add(update, difference, new)

    def lstm(self, row: int, gates: list[str]) -> str:
        """Return the new state; gates are input, output, forget, cell."""
        kernel, code = self.kernel, self.code
        cells = self.load(6, row)
        peep = 7 + kernel.has_term

        def add_peephole(gate: str, cells_seen: str, order: int) -> str:
            if not kernel.has_peepholes:
                return gate
            return code.multiply_add(cells_seen, self.load(peep, 0, order * kernel.hidden), gate)

        input_gate = self.activation(0, add_peephole(gates[0], cells, 0))
        if kernel.joins_forget:
            forget_gate = code.binary("sub", code.constant(1.0), code.binary("div", *input_gate))
        else:
            forget_gate = self.apply_activation(0, add_peephole(gates[2], cells, 2))
        new = self.multiply(input_gate, self.activation(1, gates[3]))
        cells = code.multiply_add(forget_gate, cells, new)
        self.store(cells, 6, row)
        output_gate = self.activation(0, add_peephole(gates[1], cells, 1))
        return self.multiply(output_gate, self.activation(2, cells))

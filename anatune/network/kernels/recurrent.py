"""Recurrent layers as one kernel: all steps in a loop, each a product of the state with packed weights.

The weights lie in blocks of `UNITS` units: of each unit all gates, so that a function in LLVM IR sums the gates of some
units in registers, adds what the inputs contribute, and computes the new state from them without a store between. What
comes before the state is there, the products with the inputs of all steps, is one planned product of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.kernels import CARRIER, Function, call, finished, loop_over, start_function, starts_of
from anatune.emit.llvm import LlvmCode
from anatune.emit.script import Script, buffer_type, open_function, whole_region
from anatune.network.graph.operators import UNITS
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["RecurrentKernel", "recurrent_program"]

_FLOAT = "float32"
_SUMS = 8
"""Sums next to each other: the latency of an addition times those of a cycle."""
_MOST_ROWS = 6
_PARALLEL_FROM = 1 << 19
"""Products of a step from which on its units are spread over threads."""


@dataclass(frozen=True)
class RecurrentKernel:
    """A layer in one direction; names as of `anatune.network.graph.operators.RECURRENT`."""

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
        """Gates of a unit."""
        return {"rnn": 1, "gru": 3, "lstm": 4}[self.kind]

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """Gates that are computed together: those of a GRU that resets its state first need two products."""
        return ((0, 1), (2,)) if self.kind == "gru" and not self.is_late else (tuple(range(self.gates)),)


_Sums = dict[tuple[int, int, int, int], str]
"""By chain, row, gate and vector."""


class _Part(NamedTuple):
    """Units of a call: the first one in a block, and how many lanes of each vector exist."""

    first: int
    used: tuple[int, ...]


def recurrent_program(kernel: RecurrentKernel, name: str, threads: int, hardware: CpuSpec) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR it calls).

    Its parameters: products of the inputs (steps, batch, gates * hidden); weights (blocks, hidden, gates, `UNITS`) of
    each phase; the state, of an LSTM its cells (batch, hidden); term (hidden,), peepholes (3 * hidden,), lengths
    (batch,) int64; the result (steps + states, batch, hidden).
    """
    return _Writer(kernel, name, threads, hardware).program()


class _Writer:
    def __init__(self, kernel: RecurrentKernel, name: str, threads: int, hardware: CpuSpec) -> None:
        self.kernel, self.name, self.threads = kernel, name, threads
        self.lanes = hardware.fp32_lanes
        self.registers = hardware.compute.num_vector_registers
        self.functions: dict[tuple[int, int, tuple[int, ...]], tuple[str, Function]] = {}

    def program(self) -> tuple[str, str]:
        own, text = self.kernel, Script()
        steps, batch, hidden = own.steps, own.batch, own.hidden
        states = 2 if own.kind == "lstm" else 1
        blocks = -(-hidden // UNITS)
        shapes: dict[str, tuple[int, ...]] = {"x": (steps, batch, own.gates * hidden)}
        for phase, gates in enumerate(own.phases):
            shapes[f"w{phase}"] = (blocks, hidden, len(gates), UNITS)
        shapes["first"] = (batch, hidden)
        if own.kind == "lstm":
            shapes["cells"] = (batch, hidden)
        if own.has_term:
            shapes["term"] = (hidden,)
        if own.has_peepholes:
            shapes["peepholes"] = (3 * hidden,)
        if own.has_lengths:
            shapes["lengths"] = (batch,)
        shapes["result"] = (steps + states, batch, hidden)
        kinds = {tensor: "int64" if tensor == "lengths" else _FLOAT for tensor in shapes}
        open_function(text, self.name, [(one, buffer_type(shape, kinds[one])) for one, shape in shapes.items()])
        buffers = {"state": (2, batch, hidden), "kept": (2, batch, hidden)}
        for buffer, shape in buffers.items():
            text.line(f'{buffer} = T.sblock_alloc_buffer({shape}, "{_FLOAT}")')
        regions = [f"{tensor}[{whole_region(shape)}]" for tensor, shape in shapes.items()]
        text.open('with T.sblock("recurrent"):')
        text.line(f"T.reads({', '.join(regions[:-1])})")
        written = [regions[-1], *(f"{one}[{whole_region(shape)}]" for one, shape in buffers.items())]
        text.line(f"T.writes({', '.join(written)})")
        text.open(CARRIER)
        with text.scope(f"for b, j in T.grid({batch}, {hidden}):"):
            text.line("state[0, b, j] = first[b, j]")
            if own.kind == "lstm":
                text.line(f"result[{steps + 1}, b, j] = cells[b, j]")
        with text.scope(loop_over("t", steps, parallel=False)):
            for phase in range(len(own.phases)):
                self.phase(text, phase)
        with text.scope(f"for b, j in T.grid({batch}, {hidden}):"):
            text.line(f"result[{steps}, b, j] = state[{steps % 2}, b, j]")
        return str(text), module_ir([function for _, function in self.functions.values()])

    def phase(self, text: Script, phase: int) -> None:
        """Write the calls of one product of a step."""
        own = self.kernel
        gates = len(own.phases[phase])
        whole, rest = divmod(own.hidden, UNITS)
        if own.batch == 1 or own.has_lengths:
            rows, width = 1, UNITS
        else:
            most = min(_MOST_ROWS, (self.registers - 3) // gates, own.batch)
            rows, width = max(1, most), self.lanes
        work = own.batch * own.hidden * own.gates * own.hidden
        spread = self.threads > 1 and work >= _PARALLEL_FROM
        for start, count, units in ((0, whole, UNITS), (whole, 1, rest)):
            if not (count and units):
                continue
            parts = [
                _Part(
                    first,
                    tuple(min(self.lanes, units - at) for at in range(first, min(first + width, units), self.lanes)),
                )
                for first in range(0, units, width)
            ]
            with text.scope(loop_over("block", count, parallel=spread and count > 1)):
                for part in parts:
                    unit = f"(block + {start}) * {UNITS} + {part.first}"
                    groups, over = divmod(own.batch, rows)
                    for first, times, size in ((0, groups, rows), (groups * rows, 1, over)):
                        if times and size:
                            with text.scope(loop_over("group", times, parallel=False)):
                                row = f"(group * {size} + {first})"
                                self.step(text, phase, part, size, row, unit, start)

    def step(self, text: Script, phase: int, part: _Part, rows: int, row: str, unit: str, start: int) -> None:
        """Write the call for some rows and units."""
        own, hidden = self.kernel, self.kernel.hidden
        gates = len(own.phases[phase])
        key = (phase, rows, part.used)
        if key not in self.functions:
            function = f"{self.name}_{len(self.functions)}"
            self.functions[key] = (function, _Step(own, function, self.lanes, phase, rows, part.used).function)
        time = f"({own.steps - 1} - t)" if own.is_turned else "t"
        place = f"{row} * {hidden}"
        old, new = f"(t % 2) * {own.batch * hidden}", f"((t + 1) % 2) * {own.batch * hidden}"
        weight = f"(block + {start}) * {hidden * gates * UNITS} + {part.first}"
        is_second = phase == 1
        places = [
            ("x", f"({time} * {own.batch} + {row}) * {own.gates * hidden} + {unit}"),
            (f"w{phase}", weight),
            ("kept" if is_second else "state", f"{own.batch * hidden} + {place}" if is_second else f"{old} + {place}"),
            ("state", f"{old} + {place} + {unit}"),
            ("state", f"{new} + {place} + {unit}"),
            ("result", f"({time} * {own.batch} + {row}) * {hidden} + {unit}"),
            ("result", f"({own.steps + 1} * {own.batch} + {row}) * {hidden} + {unit}")
            if own.kind == "lstm"
            else ("kept", f"{place} + {unit}"),
        ]
        if own.has_term:
            places.append(("term", unit))
        if own.has_peepholes:
            places.append(("peepholes", unit))
        name = self.functions[key][0]
        if not own.has_lengths:
            call(text, name, places)
            return
        with text.scope(f'if T.Cast("int64", t) < lengths[{row}]:'):
            call(text, name, places)
        with text.scope("else:"), text.scope(f"for j in T.serial({sum(part.used)}):"):
            text.line(f"state[(t + 1) % 2, {row}, {unit} + j] = state[t % 2, {row}, {unit} + j]")
            text.line(f"result[{time}, {row}, {unit} + j] = T.float32(0)")


class _Step:
    """Writes the function of some rows and units of one phase.

    Its tensors: what the inputs contribute, the weights, the rows that are multiplied, the old state of the units, the
    new one, the result, an LSTM's cells (else the update gates, behind which lies the state as it was reset), the term
    and the peepholes.
    """

    def __init__(
        self, kernel: RecurrentKernel, name: str, lanes: int, phase: int, rows: int, used: Sequence[int]
    ) -> None:
        self.kernel, self.lanes, self.used, self.rows = kernel, lanes, used, rows
        self.gates = kernel.phases[phase]
        tensors = 7 + kernel.has_term + kernel.has_peepholes
        self.code = code = LlvmCode(lanes, _FLOAT, "add")
        start_function(code, name, tensors)
        self.bases = starts_of(code, ["float"] * tensors)
        sums = self.products()
        for row in range(rows):
            for vector in range(len(used)):
                gates = [
                    code.binary("add", sums[row][number][vector], self.load(0, row, vector, gate * kernel.hidden))
                    if not (kernel.kind == "gru" and kernel.is_late and gate == 2)
                    else sums[row][number][vector]
                    for number, gate in enumerate(self.gates)
                ]
                self.finish(phase, row, vector, gates)
        self.function = finished(code)

    def products(self) -> list[list[list[str]]]:
        """Return the sums by row, gate and vector: products of the rows with the weights."""
        code, hidden = self.code, self.kernel.hidden
        count, vectors = len(self.gates), len(self.used)
        chains = max(1, -(-_SUMS // (self.rows * count * vectors)))
        unroll = max(chains, 2)
        flat = [
            (c, r, g, v) for c in range(chains) for r in range(self.rows) for g in range(count) for v in range(vectors)
        ]
        sums: _Sums = dict.fromkeys(flat, "zeroinitializer")
        whole, rest = divmod(hidden, unroll)

        def step(place: str, known: _Sums, inner: int) -> _Sums:
            new, chain = dict(known), inner % chains
            row_start = code.emit(f"getelementptr float, ptr {self.bases[2]}, i64 {place}")
            offset = code.emit(f"mul i64 {place}, {count * UNITS}")
            weights = code.emit(f"getelementptr float, ptr {self.bases[1]}, i64 {offset}")
            values = [
                code.load_vector(code.address(row_start, _FLOAT, row * hidden + inner), _FLOAT, 0, self.lanes)
                for row in range(self.rows)
            ]
            for gate in range(count):
                for vector in range(vectors):
                    at = inner * count * UNITS + gate * UNITS + vector * self.lanes
                    weight = code.load_vector(code.address(weights, _FLOAT, at), _FLOAT, 1, self.lanes)
                    for row in range(self.rows):
                        own = (chain, row, gate, vector)
                        new[own] = code.multiply_add(values[row], weight, new[own])
            return new

        if whole:
            code.line("  br label %loop")
            code.line("loop:")
            names = {key: code.name() for key in flat}
            trip, following, done = code.name(), code.name(), code.name()
            head = len(code.lines)
            place = code.emit(f"mul i64 {trip}, {unroll}")
            behind = dict(names)
            for inner in range(unroll):
                behind = step(place, behind, inner)
            code.lines[head:head] = [
                f"  {trip} = phi i64 [0, %entry], [{following}, %loop]",
                *(
                    f"  {names[key]} = phi {code.vector} [zeroinitializer, %entry], [{behind[key]}, %loop]"
                    for key in flat
                ),
            ]
            code.line(f"  {following} = add nuw nsw i64 {trip}, 1")
            code.line(f"  {done} = icmp eq i64 {following}, {whole}")
            code.line(f"  br i1 {done}, label %behind, label %loop, !llvm.loop !0")
            code.line("behind:")
            sums = behind
        for inner in range(rest):
            sums = step(str(whole * unroll), sums, inner)
        found = []
        for row in range(self.rows):
            gates = []
            for gate in range(count):
                own = []
                for vector in range(vectors):
                    value = sums[0, row, gate, vector]
                    for chain in range(1, chains):
                        value = code.binary("add", value, sums[chain, row, gate, vector])
                    own.append(value)
                gates.append(own)
            found.append(gates)
        return found

    def load(self, tensor: int, row: int, vector: int, more: int = 0) -> str:
        """Return a vector of the units; `more`: elements further on."""
        pitch = {0: self.kernel.gates * self.kernel.hidden}.get(tensor, self.kernel.hidden)
        at = row * pitch + more + vector * self.lanes
        return self.code.load_vector(self.code.address(self.bases[tensor], _FLOAT, at), _FLOAT, 1, self.used[vector])

    def store(self, value: str, tensor: int, row: int, vector: int, more: int = 0) -> None:
        at = row * self.kernel.hidden + more + vector * self.lanes
        self.code.store_vector(value, self.code.address(self.bases[tensor], _FLOAT, at), _FLOAT, self.used[vector])

    def function_of(self, number: int, value: str) -> str:
        return FUNCTIONS[self.kernel.functions[number]](self.code, value)

    def finish(self, phase: int, row: int, vector: int, gates: list[str]) -> None:
        """Write what becomes of the sums."""
        kernel, code = self.kernel, self.code
        if kernel.kind == "lstm":
            new = self.lstm(row, vector, gates)
        elif kernel.kind == "rnn":
            new = self.function_of(0, gates[0])
        elif phase == 0 and not kernel.is_late:
            update, reset = (self.function_of(0, gate) for gate in gates)
            self.store(update, 6, row, vector)
            reset = code.binary("mul", reset, self.load(3, row, vector))
            self.store(reset, 6, row, vector, kernel.batch * kernel.hidden)
            return
        else:
            new = self.gru(row, vector, gates)
        self.store(new, 4, row, vector)
        self.store(new, 5, row, vector)

    def gru(self, row: int, vector: int, gates: list[str]) -> str:
        kernel, code = self.kernel, self.code
        if kernel.is_late:
            update, reset = (self.function_of(0, gate) for gate in gates[:2])
            inner = gates[2]
            if kernel.has_term:
                inner = code.binary("add", inner, self.load(7, 0, vector))
            inner = code.multiply_add(reset, inner, self.load(0, row, vector, 2 * kernel.hidden))
        else:
            update, inner = self.load(6, row, vector), gates[0]
        new = self.function_of(1, inner)
        away = code.binary("sub", self.load(3, row, vector), new)
        return code.multiply_add(update, away, new)

    def lstm(self, row: int, vector: int, gates: list[str]) -> str:
        """Return the new state; gates are input, output, forget, cell."""
        kernel, code = self.kernel, self.code
        cells = self.load(6, row, vector)
        peep = 7 + kernel.has_term

        def peeped(gate: str, seen: str, order: int) -> str:
            if not kernel.has_peepholes:
                return gate
            return code.multiply_add(seen, self.load(peep, 0, vector, order * kernel.hidden), gate)

        taken = self.function_of(0, peeped(gates[0], cells, 0))
        if kernel.joins_forget:
            kept = code.binary("sub", code.constant(1.0), taken)
        else:
            kept = self.function_of(0, peeped(gates[2], cells, 2))
        new = code.binary("mul", taken, self.function_of(1, gates[3]))
        cells = code.multiply_add(kept, cells, new)
        self.store(cells, 6, row, vector)
        shown = self.function_of(0, peeped(gates[1], cells, 1))
        return code.binary("mul", shown, self.function_of(2, cells))

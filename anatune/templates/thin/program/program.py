"""Code generation of a thin schedule as TVMScript text.

Each thread holds its part of a step of the large operand in registers. As soon as an element is used, the load for the
next step replaces it, so that as many loads are in flight as the schedule says. Elements of the small operand stay in
L1. At the end, the lanes of a warp that share a result add their sums by shuffles, and the warps of a block add theirs
in shared memory, in a fixed order. From there, neighbouring threads store neighbouring results.

Loads are predicated: elements outside the extents or the tensor (padding) are the neutral element.
"""

from __future__ import annotations

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Access
from anatune.templates.gpu.index import axis_values, condition_head, element, inside_tests, join_conditions, sum_of
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.gpu.splitting import StepRange
from anatune.templates.gpu.writer import ROLLED, KernelWriter, neutral
from anatune.templates.thin.program.layout import ThinLayout, words
from anatune.templates.thin.program.pieces import dot_of_bytes, element_value, load_call, shuffle_xor
from anatune.templates.thin.rules import DOTS_SINCE

__all__ = ["ThinWriter"]

_STEP = f"{ROLLED}_step"
"""Name of the loop that is never unrolled, so that the loads for the next iteration are in flight when it begins.

If loads were used in the same iteration, the compiler would move them to their use, two or three at once, to save
registers.
"""


class ThinWriter(KernelWriter[ThinLayout]):
    """Writes the kernel of one schedule; parameters and errors as `KernelLayout` and `KernelWriter`."""

    def __init__(self, schedule: Schedule, ranged: Ranged | None = None) -> None:
        super().__init__(ThinLayout(schedule, ranged))
        self.nest = self.layout.nest

    def _principal(self, part: StepRange) -> None:
        """Write the kernel that streams the large operand."""
        text, layout, self.part = self.text, self.layout, part
        self._allocate_shared(layout.slots * layout.results, layout.accumulator, layout.shared_bytes)
        self._allocate("sums", layout.num_sums, layout.accumulator)
        self._allocate("acc", layout.num_accumulators, layout.accumulator)
        self._allocate("big", layout.each["k"] * layout.each["n"] * layout.load_words, "uint32")
        if self.nest.small is not None:
            self._allocate("few", self._small_words, "uint32")
        self._place()
        with text.scope(f"for r in T.unroll({layout.num_sums}):"):
            text.line(f"sums[r] = {neutral(self.workload.body, layout.accumulator)}")
        with text.scope(f"for u in T.unroll({layout.each['k']}):"):
            self._load_big("u", "0")
        with text.scope(f"for {_STEP} in T.serial({part.turns}):"):
            if self.nest.small is None:
                self._reduce()
            elif self.nest.along_k:
                self._multiply_along_k()
            else:
                self._multiply_along_n()
        self._exchange_sums()
        with text.scope(f"if tx < {layout.num_keepers}:" if layout.num_keepers < layout.num_threads else ""):
            self._collect()
            self.reduction.store(text, "unroll", self._store, self._store)

    def _sum_of_parts(self) -> None:
        """Write the kernel that adds the parts of split sums and stores the results."""
        self._allocate("acc", self.layout.num_accumulators, self.layout.accumulator)
        self._place()
        self.reduction.add_up(self.text, "unroll", self._combine)
        self._store()

    def _place(self) -> None:
        """Set the tile of the block, and the position of the thread in it."""
        layout, nest = self.layout, self.nest
        batches, blocks = nest.extents["batch"], layout.grid["n"]
        block = "bx" if batches == 1 else f"bx % {blocks}"
        self.batch = f"bx // {blocks}" if batches > 1 else "0"
        self.first = f"({block}) * {layout.tile('n')}" if blocks > 1 else "0"
        inner = "k" if nest.along_k else "n"
        outer = "n" if nest.along_k else "k"
        size = layout.thread[inner]
        self.lane = {
            inner: "0" if size == 1 else f"tx % {size}" if layout.thread[outer] > 1 else "tx",
            outer: "0" if layout.thread[outer] == 1 else f"tx // {size}",
        }

    # -- positions ---------------------------------------------------------------------------------------------

    def _column(self, each: str) -> str:
        """Return the position of a load along n, from the start of the tile of the block."""
        layout = self.layout
        number = sum_of(f"{each} * {layout.thread['n']}" if layout.each["n"] > 1 else "0", self.lane["n"])
        return f"({number}) * {layout.vector['n']}" if number != "0" else "0"

    def _depth(self, each: str, step: str) -> str:
        """Return the position of a load along k. The loads of a thread are neighbours if vectors follow n."""
        layout = self.layout
        step = self.part.step(step)
        step = f"{step} * {layout.tile('k')}" if layout.grid["k"] > 1 and step != "0" else "0"
        if not self.nest.along_k:
            lane = "0" if self.lane["k"] == "0" else f"({self.lane['k']}) * {layout.each['k']}"
            return sum_of(step, lane, each if layout.each["k"] > 1 else "0")
        number = sum_of(f"{each} * {layout.thread['k']}" if layout.each["k"] > 1 else "0", self.lane["k"])
        return sum_of(step, f"({number}) * {layout.vector['k']}" if number != "0" else "0")

    def _guarded_element(
        self, access: Access, guarded: tuple[bool, ...], positions: dict[str, str]
    ) -> tuple[str, list[str]]:
        """Return the element at these positions, and the conditions that it is inside."""
        values = axis_values(self.nest, self.workload, positions)
        tests = [
            f"{positions[index]} < {self.nest.extents[index]}"
            for index in ("n", "k")
            if index in positions and self.layout.is_loose(index)
        ]
        tests += inside_tests(access, guarded, self.workload, values)
        return element(access, values), tests

    # -- loads and arithmetic ----------------------------------------------------------------------------------

    def _load_big(self, u: str, step: str) -> None:
        """Load the elements number `u` along k of the large operand for a step."""
        layout, nest, text = self.layout, self.nest, self.text
        with text.scope(f"for c in T.unroll({layout.each['n']}):"):
            positions = {"batch": self.batch, "n": sum_of(self.first, self._column("c")), "k": self._depth(u, step)}
            source, tests = self._guarded_element(nest.big, nest.guarded, positions)
            if step != "0":
                tests = [f"{step} < {self.part.turns}", *tests]
            base = f"({u} * {layout.each['n']} + c) * {layout.load_words}"
            num_bytes = layout.load * layout.element_bytes
            condition = join_conditions(tests) or "True"
            text.line(load_call("big", base, num_bytes, source, condition, nest.big.dtype, self.workload.body))

    def _load_next(self, u: str) -> None:
        """Load the elements of the next step into the registers of used elements."""
        if self.part.most > 1:
            self._load_big(u, f"({_STEP} + 1)")

    def _big_element(self, u: str, lane: int) -> str:
        """Return an element of load (`u`, ``c``) of the large operand in the dtype of the accumulators."""
        base = f"({u} * {self.layout.each['n']} + c) * {self.layout.load_words}"
        return element_value("big", base, lane, self.workload.dtype)

    @property
    def _small_words(self) -> int:
        layout = self.layout
        return layout.small_depth // layout.small_load * words(layout.small_load * layout.element_bytes)

    def _load_small(self, depth: str) -> None:
        """Load the elements of row ``r`` of the small operand from `depth` on."""
        layout, nest = self.layout, self.nest
        assert nest.small is not None
        width = layout.small_load
        size = words(width * layout.element_bytes)
        for number in range(layout.small_depth // width):
            positions = {"batch": self.batch, "m": "r", "k": sum_of(depth, str(number * width))}
            source, tests = self._guarded_element(nest.small, nest.small_guarded, positions)
            num_bytes, condition = width * layout.element_bytes, join_conditions(tests) or "True"
            self.text.line(load_call("few", str(number * size), num_bytes, source, condition, nest.small.dtype, "add"))

    def _small_element(self, number: int) -> str:
        """Return an element of the small operand in the dtype of the accumulators."""
        width = self.layout.small_load
        base = number // width * words(width * self.layout.element_bytes)
        return element_value("few", str(base), number % width, self.workload.dtype)

    def _add(self, target: str, value: str) -> None:
        self.text.line(f"sums[{target}] = {self._combine(f'sums[{target}]', value)}")

    def _reduce(self) -> None:
        layout, text = self.layout, self.text
        with text.scope(f"for u in T.unroll({layout.each['k']}):"):
            with text.scope(f"for c in T.unroll({layout.each['n']}):"):
                for lane in range(layout.load):
                    self._add("c" if self.nest.along_k else f"c * {layout.load} + {lane}", self._big_element("u", lane))
            self._load_next("u")

    def _multiply_along_k(self) -> None:
        layout, text = self.layout, self.text
        target = f"r * {layout.each['n']} + c"
        with text.scope(f"for u in T.unroll({layout.each['k']}):"):
            with text.scope(f"for r in T.unroll({layout.rows}):"):
                self._load_small(self._depth("u", _STEP))
                text.open(f"for c in T.unroll({layout.each['n']}):")
                base = f"(u * {layout.each['n']} + c) * {layout.load_words}"
                for word in range(layout.load_words if self._has_dots else 0):
                    dot = dot_of_bytes(f"big[{base} + {word}]", f"few[{word}]", f"sums[{target}]")
                    text.line(f"sums[{target}] = {dot}")
                for lane in range(0 if self._has_dots else layout.load):
                    self._add(target, f"{self._big_element('u', lane)} * {self._small_element(lane)}")
            self._load_next("u")

    @property
    def _has_dots(self) -> bool:
        """True if one instruction sums four products of bytes: neighbours along k fill words of both operands."""
        layout = self.layout
        capable = (layout.hardware.compute_capability or 0.0) >= DOTS_SINCE
        return capable and self.workload.dtype == "int8" and layout.load % 4 == 0 and layout.small_load % 4 == 0

    def _multiply_along_n(self) -> None:
        layout, text = self.layout, self.text
        with text.scope(f"for r in T.unroll({layout.rows}):"):
            self._load_small(self._depth("0", _STEP))
            text.open(f"for c in T.unroll({layout.each['n']}):")
            for u in range(layout.each["k"]):
                for lane in range(layout.load):
                    target = f"(r * {layout.each['n']} + c) * {layout.load} + {lane}"
                    self._add(target, f"{self._big_element(str(u), lane)} * {self._small_element(u)}")
        if self.part.most > 1:
            with text.scope(f"for u in T.unroll({layout.each['k']}):"):
                self._load_next("u")

    # -- sums and results --------------------------------------------------------------------------------------

    def _exchange_sums(self) -> None:
        """Add the sums of threads along k: by shuffles in a warp, then write them to shared memory."""
        layout, text, nest = self.layout, self.text, self.nest
        distance = layout.stride
        while distance < layout.stride * layout.lanes:
            with text.scope(f"for r in T.unroll({layout.num_sums}):"):
                other = shuffle_xor("sums[r]", distance, min(layout.num_threads, layout.warp), layout.accumulator)
                self._add("r", other)
            distance *= 2
        slot = self.lane["k"] if layout.lanes == 1 else f"({self.lane['k']}) // {layout.lanes}"
        leads = f"if ({self.lane['k']}) % {layout.lanes} == 0:" if layout.lanes > 1 else ""
        with text.scope(leads, f"for r in T.unroll({layout.rows}):", f"for c in T.unroll({layout.each['n']}):"):
            for lane in range(layout.vector["n"]):
                column = sum_of(self._column("c"), str(lane))
                inner = f"({column}) * {layout.rows} + r" if nest.rows_inside else f"r * {layout.tile('n')} + {column}"
                offset = sum_of(f"({slot}) * {layout.results}" if layout.slots > 1 else "0", inner)
                source = f"(r * {layout.each['n']} + c) * {layout.vector['n']} + {lane}"
                text.line(f"smem[{offset}] = sums[{source}]")
        if not layout.is_apart:
            text.line('T.tvm_storage_sync("shared")')

    def _collect(self) -> None:
        """Set ``acc`` to results of the block; neighbouring threads have neighbouring results."""
        layout, text = self.layout, self.text
        offset = self._place_of_result()
        tests = self._result_tests(offset)
        with text.scope(f"for turn in T.unroll({layout.num_accumulators}):"):
            if tests:  # accumulators without a result have to be the same in every run, too
                text.line(f"acc[turn] = {neutral(self.workload.body, layout.accumulator)}")
                text.open(condition_head(tests))
            text.line(f"acc[turn] = smem[{offset}]")
            if layout.slots > 1:
                with text.scope(f"for slot in T.serial({layout.slots - 1}):"):
                    other = f"smem[(slot + 1) * {layout.results} + {offset}]"
                    text.line(f"acc[turn] = {self._combine('acc[turn]', other)}")

    def _place_of_result(self) -> str:
        return f"(turn * {self.layout.num_keepers} + tx)" if self.layout.num_accumulators > 1 else "tx"

    def _result_tests(self, offset: str) -> list[str]:
        """Return the condition that a thread has a result in its last iteration, or nothing if it always has one."""
        layout = self.layout
        return [f"{offset} < {layout.results}"] if layout.results % layout.num_keepers else []

    def _store(self) -> None:
        """Store the results in ``acc``, with mean and epilogue applied."""
        layout, text = self.layout, self.text
        offset = self._place_of_result()
        if self.nest.rows_inside:
            row, column = f"({offset} % {layout.rows})", f"({offset} // {layout.rows})"
        else:
            row, column = f"({offset} // {layout.tile('n')})", f"({offset} % {layout.tile('n')})"
        column = sum_of(self.first, column)
        tests = self._result_tests(offset)
        tests += [f"{column} < {self.nest.extents['n']}"] if layout.is_loose("n") else []
        with text.scope(f"for turn in T.unroll({layout.num_accumulators}):", condition_head(tests)):
            values = axis_values(self.nest, self.workload, {"batch": self.batch, "m": row, "n": column})
            result = self._finish_result("acc[turn]", lambda access: element(access, values))
            text.line(f"{element(self.workload.write, values)} = {result}")

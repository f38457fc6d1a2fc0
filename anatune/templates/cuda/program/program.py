"""A schedule for CUDA cores as TVMScript: SSSRRSRS loops with staging in shared memory.

Loops, outer to inner: blockIdx.x (block), threadIdx.x (thread) | k0: fetch the tiles, barrier | k1 | reg_outer | k2 |
vthread, reg_inner | barrier. Vthreads are register tiles that lie a whole block of threads apart; TVM's virtual threads
become the same in CUDA C. All threads fetch the tiles together, in vectors if these are aligned. Fragments are read in
vectors, too. All addresses are affine, so that the shared memory holds exactly the bounding boxes of the tiles.

With ``stages`` buffers the fetch of a later step overlaps the arithmetic of the current step. It uses cp.async from
sm_80 on for copies of 4, 8 or 16 bytes, and registers otherwise (two buffers).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Access
from anatune.emit.script import write_affine
from anatune.templates.cuda.program.fetch import StagedTile
from anatune.templates.cuda.program.hints import expected_blocks, use_byte_offsets
from anatune.templates.cuda.program.nest import CudaNest
from anatune.templates.cuda.program.staging import Staging, Terms, digits, inside_conditions, origin
from anatune.templates.gpu.index import join_conditions
from anatune.templates.gpu.kernel import STATIC_SHARED_BYTES
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.gpu.splitting import StepRange
from anatune.templates.gpu.writer import ROLLED, KernelWriter, cast, neutral

__all__ = ["CudaKernelWriter"]

_REGISTER = ("vthread", "reg_inner")


class CudaKernelWriter(KernelWriter[CudaNest]):
    """Writes the kernel of one schedule. Parameters and errors are those of `CudaNest` and `KernelWriter`."""

    def __init__(self, schedule: Schedule, ranged: Ranged | None = None) -> None:
        super().__init__(CudaNest(schedule, ranged))
        self.nest = nest = self.layout
        self.dtype, self.accumulator = self.workload.dtype, nest.accumulator
        self.output_axes = tuple(dict.fromkeys(self.workload.output_axes))
        self.vector = self._result_width()
        self.staging = Staging(nest, self.text)
        self.finish = use_byte_offsets
        if nest.shared_bytes > STATIC_SHARED_BYTES:
            self.resident_blocks = expected_blocks(nest)

    # -- all kernels -------------------------------------------------------------------------------------------

    def _principal(self, part: StepRange) -> None:
        (self._write_staged if self.nest.tiles else self._write_direct)(part)

    def _write_staged(self, part: StepRange) -> None:
        nest, text = self.nest, self.text
        self._allocate_shared(nest.stages * nest.shared_elements, self.dtype, nest.shared_bytes)
        self._allocate("acc", nest.num_accumulators, self.accumulator)
        if nest.is_static:
            for tile in nest.tiles:
                steps = nest.vector_steps if tile.along_reduction else 1
                size = nest.register_extent(tile.access) * steps
                self._allocate(f"frag_{tile.access.tensor}", size, self.dtype)
        kind = self._accumulator_loop
        with text.scope(f"for r in T.{kind}({nest.num_accumulators}):" if nest.num_accumulators > 1 else ""):
            index = "r" if nest.num_accumulators > 1 else "0"
            text.line(f"acc[{index}] = {neutral(self.workload.body, self.accumulator)}")
        self._write_pipeline(part)
        self.reduction.store(text, kind, self._store_sums, self._add_sums)

    def _sum_of_parts(self) -> None:
        """Write the body of the kernel that sums parts and stores the results."""
        self._allocate("acc", self.nest.num_accumulators, self.accumulator)
        self.reduction.add_up(self.text, self._accumulator_loop, self._combine)
        self._store_sums()

    @property
    def _accumulator_loop(self) -> str:
        """Kind of a loop over all accumulators: "unroll" or "serial"."""
        return "unroll" if self.nest.is_static and "reg_outer" in self.nest.unrolled_levels else "serial"

    def _store_sums(self) -> None:
        self._store(lambda index: f"acc[{index}]")

    def _add_sums(self) -> None:
        """Add the accumulators to the result, one at a time."""
        width, self.vector = self.vector, 1
        self._store(lambda index: f"acc[{index}]", adds=True)
        self.vector = width

    # -- staging -----------------------------------------------------------------------------------------------

    def _write_pipeline(self, part: StepRange) -> None:
        """Write the loop over the staging steps."""
        nest = self.nest
        if nest.is_async:
            self._write_async_pipeline(part)
            return
        if nest.copies_through_registers:
            for tile in nest.tiles:
                self._allocate(_next_tile(tile), tile.walk.copies * tile.fetch, self.dtype)
        if nest.stages == 1:
            with self.text.scope(f"for step in range({part.turns}):" if part.most > 1 else ""):
                self._stage(part.step("step" if part.most > 1 else "0"))
                self._write_barrier()
                self._compute("")
                if part.most > 1:
                    self._write_barrier()
            return
        # Registers hold step n + 1 while step n is computed. Then they are copied to the other buffer: all threads read
        # it last before the barrier of step n, and read it again after the barrier of step n + 1.
        self._stage(part.step("0"))
        with self.text.scope(f"for step in range({part.turns}):"):
            self._write_barrier()
            with self.text.scope(part.condition_before_last(1)):
                self._fetch(part.step("(step + 1)"))
            self._compute(f"step % {nest.stages} * {nest.shared_elements} + ")
            with self.text.scope(part.condition_before_last(1)):
                for tile in nest.tiles:
                    self.staging.put(tile, _next_tile(tile), f"(step + 1) % {nest.stages} * {nest.shared_elements} + ")

    def _stage(self, step: str) -> None:
        """Copy all tiles of a step into the first buffer."""
        self._fetch(step)
        for tile in self.nest.tiles if self.nest.copies_through_registers else ():
            self.staging.put(tile, _next_tile(tile))

    def _fetch(self, step: str) -> None:
        """Copy all tiles of a step into registers, or directly into the first buffer."""
        held, staging = self.nest.copies_through_registers, self.staging
        staging.write_step(
            step, lambda tile, guards: staging.fetch(tile, step, guards, target=_next_tile(tile) if held else "")
        )

    def _write_async_pipeline(self, part: StepRange) -> None:
        """Write the loop with cp.async: step n + stages - 1 is being fetched while step n is computed.

        One barrier per step is enough: after it, all copies of step n are there, and all threads have read the buffer
        of step n - 1, which the next copies overwrite. Source: [PTX-ISA] cp.async; [CUTLASS] multistage mainloop.
        """
        nest = self.nest
        ahead = nest.stages - 1
        for number in range(ahead):
            condition = part.condition_of(number)
            if condition is not None:
                with self.text.scope(condition):
                    self._copy_async(part.step(str(number)), f"{number * nest.shared_elements} + ")
            self.text.line('T.evaluate(T.ptx["cp.async.commit_group"]())')
        with self.text.scope(f"for step in range({part.turns}):"):
            self.text.line(f'T.evaluate(T.ptx["cp.async.wait_group"]({ahead - 1}))')
            self._write_barrier()
            with self.text.scope(part.condition_before_last(ahead)):
                buffer = f"(step + {ahead}) % {nest.stages} * {nest.shared_elements} + "
                self._copy_async(part.step(f"(step + {ahead})"), buffer)
            self.text.line('T.evaluate(T.ptx["cp.async.commit_group"]())')
            self._compute(f"step % {nest.stages} * {nest.shared_elements} + ")

    def _copy_async(self, step: str, offset: str) -> None:
        staging = self.staging
        staging.write_step(step, lambda tile, guards: staging.copy_async(tile, step, guards, offset))

    def _write_barrier(self) -> None:
        self.text.line('T.evaluate(T.tvm_storage_sync("shared"))')

    # -- arithmetic --------------------------------------------------------------------------------------------

    def _loops(self, axes: Sequence[str], level: str) -> list[str]:
        """Return the heads of the loops of one level, outer to inner."""
        return [self._loop(f"{level}_{a}", self.nest.extent(a, level), level) for a in axes]

    def _loop(self, name: str, extent: int, level: str) -> str:
        if extent == 1:
            return ""
        if level in self.nest.unrolled_levels:
            return f"for {name} in T.unroll({extent}):"
        return f"for {'' if level == 'k1' else ROLLED}{name} in range({extent}):"

    def _variable(self, axis: str, level: str) -> str:
        return f"{'' if level in (*self.nest.unrolled_levels, 'k1') else ROLLED}{level}_{axis}"

    def _compute(self, offset: str) -> None:
        """Write the arithmetic of one staging step."""
        nest = self.nest
        last = nest.last
        others = [axis for axis in nest.reduction if axis != last]
        rounds, body = nest.run // nest.body_steps, nest.body_steps // nest.vector_steps
        heads = self._loops(others, "k1")
        heads.append(self._loop(f"k1_{last}", rounds if nest.is_fused else nest.extent(last, "k1"), "k1"))
        heads += [*self._loops(nest.spatial, "reg_outer"), *self._loops(others, "k2")]
        if nest.is_fused:
            heads.append(f"for k2_{last} in T.unroll({body}):" if body > 1 else "")
        else:
            heads.append(self._loop(f"k2_{last}", nest.run // nest.vector_steps, "k2"))
        with self.text.scope(*heads):
            for tile in nest.tiles:
                if nest.is_static and tile.along_reduction:
                    self._read_fragment(tile, offset)
            with self.text.scope(f"for s in T.unroll({nest.vector_steps}):" if nest.vector_steps > 1 else ""):
                for tile in nest.tiles:
                    if nest.is_static and not tile.along_reduction:
                        self._read_fragment(tile, offset)
                self._multiply(offset)

    def _reduction_terms(self, tile: StagedTile) -> Terms:
        """Return the distance by which the current iteration of the reduction moves the address in a tile."""
        nest = self.nest
        terms: Terms = []
        for axis in nest.reduction:
            step = tile.stride(axis)
            is_last = axis == nest.last
            for level in ("k1", "k2"):
                count, size = nest.extent(axis, level), step * nest.stride(axis, level)
                if is_last and nest.is_fused:
                    counts = {"k1": nest.run // nest.body_steps, "k2": nest.body_steps // nest.vector_steps}
                    count, size = counts[level], step * (nest.body_steps if level == "k1" else nest.vector_steps)
                elif is_last and level == "k2":
                    count, size = nest.run // nest.vector_steps, step * nest.vector_steps
                if count > 1:
                    name = f"k2_{axis}" if is_last and nest.is_fused and level == "k2" else self._variable(axis, level)
                    terms.append((name, size))
            if is_last and nest.vector_steps > 1 and not tile.along_reduction:
                terms.append(("s", step))
        return [(name, size) for name, size in terms if size]

    def _tile_address(self, tile: StagedTile, registers: Terms) -> str:
        """Return the address in shared memory of the element of the current iteration."""
        nest = self.nest
        terms: Terms = []
        for axis in nest.spatial:
            step = tile.stride(axis)
            if step:
                terms += [(name, size * step) for name, size in digits(nest, "tx", nest.spatial, "thread", axis)]
                if nest.extent(axis, "reg_outer") > 1:
                    terms.append((self._variable(axis, "reg_outer"), nest.stride(axis, "reg_outer") * step))
        terms += self._reduction_terms(tile)
        return write_affine(terms + registers, tile.base)

    def _register_loops(self, axes: Sequence[str]) -> list[tuple[str, str]]:
        """Return (axis, level) of the register loops of `axes`, outer to inner."""
        pairs = itertools.product(axes, _REGISTER)
        return [(axis, level) for axis, level in pairs if self.nest.extent(axis, level) > 1]

    def _read_fragment(self, tile: StagedTile, offset: str) -> None:
        """Read a thread's elements of a tile for one reduction iteration, or `vector_steps` of a tile along them."""
        nest = self.nest
        axes = self._fragment_axes(tile)
        along, chunk = tile.along_reduction, nest.vector_steps
        heads: list[str] = []
        source: Terms = []
        target: Terms = [(name, size * (chunk if along else 1)) for name, size in self._fragment_terms(tile)]
        for axis, level in self._register_loops(axes):
            count = nest.extent(axis, level)
            step = tile.stride(axis) * nest.stride(axis, level)
            name = f"{level}_{axis}"
            if (axis, level) == tile.load_level:
                count //= tile.load
                target = [(n, size * tile.load if n == name else size) for n, size in target]
                target = [(n, size) for n, size in target if n != name or count > 1]
                step *= tile.load
            if count > 1:
                heads.append(f"for {name} in T.unroll({count}):")
                source.append((name, step))
        if along and chunk > tile.load:
            heads.append(f"for m in T.unroll({chunk // tile.load}):")
            source.append(("m", tile.load))
            target.append(("m", tile.load))
        if tile.load > 1:
            heads.append(f"for v in T.vectorized({tile.load}):")
            source.append(("v", 1))
            target.append(("v", 1))
        elif along:
            raise AssertionError("a tile along the reduction is read in vectors")
        with self.text.scope(*heads):
            self.text.line(
                f"frag_{tile.access.tensor}[{write_affine(target)}] = smem[{offset}{self._tile_address(tile, source)}]"
            )

    def _fragment_axes(self, tile: StagedTile) -> list[str]:
        """Return the spatial axes of a tile. The axis along which vectors are read comes last."""
        axes = [axis for axis in self.nest.spatial if tile.access.uses(axis)]
        if tile.load_level is not None and tile.load_level[0] in axes:
            axes.remove(tile.load_level[0])
            axes.append(tile.load_level[0])
        return axes

    def _fragment_terms(self, tile: StagedTile) -> Terms:
        """Return the position of an element in a thread's fragment of `tile`."""
        terms: Terms = []
        size = 1
        for axis, level in reversed(self._register_loops(self._fragment_axes(tile))):
            terms.append((f"{level}_{axis}", size))
            size *= self.nest.extent(axis, level)
        return terms[::-1]

    def _accumulator_terms(self) -> Terms:
        """Return the position of the current result among the accumulators; the last output axis changes fastest."""
        nest = self.nest
        terms: Terms = []
        size = 1
        for axis in reversed(self.output_axes):
            for level in ("reg_inner", "reg_outer", "vthread"):
                if nest.extent(axis, level) > 1:
                    terms.append((self._variable(axis, level), size))
                    size *= nest.extent(axis, level)
        return terms[::-1]

    def _multiply(self, offset: str) -> None:
        """Write the statement of the register tile."""
        nest = self.nest
        values = []
        for tile in nest.tiles:
            if nest.is_static:
                along = tile.along_reduction
                scale = nest.vector_steps if along else 1
                terms = [(name, size * scale) for name, size in self._fragment_terms(tile)]
                values.append(f"frag_{tile.access.tensor}[{write_affine([*terms, ('s', 1)] if along else terms)}]")
                continue
            registers = [
                (self._variable(axis, level), tile.stride(axis) * nest.stride(axis, level))
                for axis, level in self._register_loops(nest.spatial)
                if tile.stride(axis)
            ]
            values.append(f"smem[{offset}{self._tile_address(tile, registers)}]")
        axes = self.output_axes
        with self.text.scope(*self._loops(axes, "vthread"), *self._loops(axes, "reg_inner")):
            index = write_affine(self._accumulator_terms())
            self.text.line(f"acc[{index}] = {self._update_expression(f'acc[{index}]', values)}")

    def _update_expression(self, before: str, values: Sequence[str]) -> str:
        """Return the expression that combines the accumulator with the operands."""
        values = [cast(value, self.dtype, self.accumulator) for value in values]
        return self._combine(before, values[0] if self.workload.body == "max" else " * ".join(values))

    # -- results -----------------------------------------------------------------------------------------------

    def _result_width(self) -> int:
        """Return how many results a thread can store at once: neighbours along the last output axis."""
        nest, access = self.nest, self.workload.write
        if not {"vthread", "reg_inner", "reg_outer"} <= nest.unrolled_levels or not access.indices:
            return 1
        axis = self.output_axes[-1]
        inner = nest.extent(axis, "reg_inner")
        width = min(16 // max(4, DTYPE_BYTES[access.dtype]), inner & -inner)
        tensors = [access, *self.workload.epilogue_reads, *(() if nest.tiles else self.workload.reads)]
        extent, tensors = nest.multiple_of(axis), [nest.limit_alignment(tensor) for tensor in tensors]
        # along a guarded axis a vector must lie inside or outside as a whole
        while width > 1 and (extent % width or not all(_is_aligned(tensor, axis, width) for tensor in tensors)):
            width //= 2
        return width

    def _index(self, access: Access, lane: str) -> str:
        """Return the element of a tensor with the shape of the result (or of an operand) for the current iteration."""
        indices = []
        for terms in access.indices:
            parts: Terms = []
            for term in terms:
                parts += [(name, size * term.coefficient) for name, size in self._position_terms(term.axis)]
            indices.append(write_affine(self._widen_terms(parts)))
            if lane and terms and any(term.axis == self.output_axes[-1] for term in terms):
                indices[-1] += lane
        return f"{access.tensor}[{', '.join(indices) or '()'}]"

    def _position_terms(self, axis: str) -> Terms:
        """Return the current iteration of a spatial axis."""
        nest = self.nest
        terms = [*origin(nest, axis, "0"), *digits(nest, "tx", nest.spatial, "thread", axis)]
        for level in ("vthread", "reg_outer", "reg_inner"):
            if nest.extent(axis, level) > 1:
                terms.append((self._variable(axis, level), nest.stride(axis, level)))
        return terms

    def _widen_terms(self, terms: Terms) -> Terms:
        """Return `terms` for a loop over vectors of results."""
        if self.vector == 1:
            return terms
        axis = self.output_axes[-1]
        name = self._variable(axis, "reg_inner")
        whole = self.nest.extent(axis, "reg_inner") == self.vector
        return [(n, s * self.vector if n == name else s) for n, s in terms if not (whole and n == name)]

    def _store(self, value: Callable[[str], str], *, adds: bool = False) -> None:
        """Write the epilogue and the stores. `value` returns the expression of a result from its position.

        If axes are guarded, the stores are written twice, with and without tests for being inside. With `adds` the
        results are added to the elements in memory.
        """
        nest = self.nest
        inside = inside_conditions(nest)
        if inside:
            with self.text.scope(f"if {join_conditions(inside)}:"):
                self._write_results(value, [], adds=adds)
        with self.text.scope("else:" if inside else ""):
            self._write_results(value, [axis for axis in self.output_axes if axis in nest.guarded_axes], adds=adds)

    def _write_results(self, value: Callable[[str], str], guarded: Sequence[str], *, adds: bool) -> None:
        """Write the results that lie inside the axes `guarded_axes`."""
        nest, write = self.nest, self.workload.write
        axes = self.output_axes
        heads = [*self._loops(axes, "vthread"), *self._loops(axes, "reg_outer"), *self._loops(axes, "reg_inner")]
        lane = ""
        if self.vector > 1:
            last = axes[-1]
            heads[-1] = self._loop(f"reg_inner_{last}", nest.extent(last, "reg_inner") // self.vector, "reg_inner")
            heads.append(f"for v in T.vectorized({self.vector}):")
            lane = " + v"
        tests = [f"{write_affine(self._widen_terms(self._position_terms(a)))} < {nest.end(a)}" for a in guarded]
        if tests:  # outside of the loop over a vector
            heads.insert(len(heads) - (self.vector > 1), f"if {join_conditions(tests)}:")
        with self.text.scope(*heads):
            result = value(write_affine(self._widen_terms(self._accumulator_terms())) + lane)
            result = self._finish_result(result, lambda access: self._index(access, lane))
            target = self._index(write, lane)
            if adds:
                self.text.line(
                    f'T.evaluate(T.call_extern("{write.dtype}", "atomicAdd", T.address_of({target}), {result}))'
                )
            else:
                self.text.line(f"{target} = {result}")

    def _write_direct(self, _: StepRange) -> None:
        """Write an operator without a reduction: operands are read directly from global memory."""
        body = self.workload.body
        lane = " + v" if self.vector > 1 else ""

        def value(_: str) -> str:
            values = [cast(self._index(a, lane), a.dtype, self.accumulator) for a in self.workload.reads]
            if body in ("multiply_add", "multiply"):
                return " * ".join(values)
            if body == "max" and len(values) > 1:
                return f"T.max({values[0]}, {values[1]})"
            if body == "relu":
                return f"T.max({values[0]}, T.{self.accumulator}(0))"
            return " + ".join(values)

        self._store(value)


def _is_aligned(access: Access, axis: str, width: int) -> bool:
    """Return whether `width` neighbours along `axis` are an aligned vector of the tensor, or the same element."""
    if not access.uses(axis):
        return True
    places = [(d, term) for d, terms in enumerate(access.indices) for term in terms if term.axis == axis]
    if len(places) > 1 or places[0][0] != len(access.shape) - 1 or places[0][1].coefficient != 1:
        return False
    others = all(term.coefficient % width == 0 for term in access.indices[-1] if term.axis != axis)
    return others and access.shape[-1] % width == 0 and access.offsets[-1] % width == 0


def _next_tile(tile: StagedTile) -> str:
    """Return the name of a thread's array for the elements of a tile that it copies."""
    return f"next_{tile.access.tensor}"

"""Split reductions as TVMScript: the tile and steps of each block, and the sums of the parts.

The first ``whole`` blocks of the principal kernel compute a tile each. The others compute a part each, ``split`` blocks
per tile. A part keeps its accumulators in a workspace, those of neighbouring threads side by side. A second kernel adds
the parts in a fixed order, so that results do not depend on which block ends first. It has one block per split tile
with the same threads, and stores results as the principal kernel does. Atomic parts are added to the result itself,
which a kernel before sets to zero.

``bx`` is the number of the tile in all kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from anatune.core.generation import MOST_ELEMENTS, too_large_text
from anatune.core.workload.access import Access
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script, whole_region
from anatune.errors import BuildError
from anatune.templates.gpu.kernel import LaunchSize
from anatune.templates.gpu.layout import KernelLayout
from anatune.templates.gpu.ranged import Growth, product

__all__ = ["SplitReduction", "StepRange"]

_WORKSPACE = "workspace"
"""The array that holds the parts of the sums."""
_BLOCK = "block"
"""The loop variable for the number of a block that is not the number of a tile."""
_ZEROING_THREADS = 256
"""Threads of a block that zeroes the result."""
_LOADS = 32
"""Loads that a thread has in flight while it sums parts."""


class StepRange(NamedTuple):
    """The steps of a tile that a block computes.

    Attributes
    ----------
    first : str
        Expression of the first step. "": it is 0 in every block.
    turns : str
        Expression of the number of steps.
    least, most : int
        Smallest and largest number of steps over all blocks.
    """

    first: str
    turns: str
    least: int
    most: int

    def step(self, number: str) -> str:
        """Return the expression of the step of the tile that is step `number` of the block."""
        if not self.first:
            return number
        return f"({self.first})" if number == "0" else f"({self.first} + {number})"

    def condition_of(self, number: int) -> str | None:
        """Return the condition that a block has a step `number`: "" if all blocks have it, None if no block has it."""
        if number < self.least:
            return ""
        return f"if {number} < {self.turns}:" if number < self.most else None

    def condition_before_last(self, count: int) -> str:
        """Return the condition that ``step`` is not among the last `count` steps: "if False:" if it always is."""
        return f"if step < {self.turns_minus(count)}:" if self.most > count else "if False:"

    def turns_minus(self, count: int) -> str:
        """Return the expression of the number of steps minus `count`."""
        return f"{self.turns} - {count}" if self.least < self.most else str(self.most - count)


class SplitReduction:
    """Writes the parts of a kernel's program that a split reduction adds. Without a split it adds nothing.

    Parameters
    ----------
    layout : KernelLayout
        The layout of the principal kernel.

    Attributes
    ----------
    workspace : Buffer or None
        Memory for the parts of the sums.
    before, after : tuple of LaunchSize
        The kernels that are launched before and after the principal one.
    growth : Growth or None
        How the number of blocks of the principal kernel follows from the extent that varies.

    Raises
    ------
    BuildError
        The workspace is too large for 32-bit addresses.
    """

    def __init__(self, layout: KernelLayout) -> None:
        self._layout, self.workload = layout, layout.workload
        split, ranged, growth, tiles = layout.split, layout.ranged, layout.growth, layout.num_tiles
        self.split = split
        self._steps, self._threads, self._accumulators = layout.steps, layout.num_keepers, layout.num_accumulators
        self.growth = Growth(growth.blocks * split.split, growth.iterations) if growth else None
        self._size = LaunchSize(layout.num_blocks, layout.num_threads, growth=self.growth)
        self._result = self._region(self.workload.write)
        self.workspace: Buffer | None = None
        self.before: tuple[LaunchSize, ...] = ()
        self.after: tuple[LaunchSize, ...] = ()
        if split.atomic:
            elements = self.workload.write.num_elements
            self.before = (LaunchSize(-(-elements // _ZEROING_THREADS), _ZEROING_THREADS),)
            if ranged is not None and growth is not None:  # a block covers the iterations that its threads zero at once
                each = elements // ranged.most
                at_once = max(1, _ZEROING_THREADS // each)
                zeroing = Growth(-(-at_once * each // _ZEROING_THREADS), at_once)
                self.before = (LaunchSize(zeroing.grid(ranged.most), _ZEROING_THREADS, growth=zeroing),)
        elif split.is_split:
            self.after = (LaunchSize(tiles - split.whole, self._threads, layout.result_bytes, growth),)
            size = split.num_parts(tiles) * self._accumulators * self._threads
            if size > MOST_ELEMENTS:
                raise BuildError(too_large_text(_WORKSPACE, size))
            self.workspace = Buffer(_WORKSPACE, layout.accumulator, (size,))

    def write(
        self, text: Script, name: str, principal: Callable[[StepRange], None], finish: Callable[[], None]
    ) -> None:
        """Write all kernels.

        Parameters
        ----------
        name : str
            Name of the block of the principal kernel.
        principal : callable
            Writes the body of that kernel, given its steps.
        finish : callable
            Writes the body of the kernel that sums parts, and calls `add_up`.
        """
        operands = [*map(self._region, self.workload.operands)]
        if not self.split.is_split:
            with self._kernel(text, "bx", name, self._size, operands, [self._result]):
                principal(StepRange("", self._steps.text, self._steps.least, self._steps.most))
            return
        with text.scope('with T.sblock("root"):'):
            text.line("T.reads()")
            text.line("T.writes()")
            workspace_region = []
            if self.workspace is not None:
                text.line(f'{_WORKSPACE} = T.sblock_alloc_buffer({self.workspace.shape}, "{self.workspace.dtype}")')
                workspace_region = [f"{_WORKSPACE}[{whole_region(self.workspace.shape)}]"]
            for size in self.before:
                with self._kernel(text, _BLOCK, "zero", size, [], [self._result]):
                    self._zero(text, size)
            with self._kernel(text, _BLOCK, name, self._size, operands, [*workspace_region, self._result]):
                principal(self._part(text))
            for size in self.after:
                with self._kernel(text, _BLOCK, "sum", size, [*workspace_region, *operands], [self._result]):
                    text.line(f"bx: T.int32 = {_BLOCK}{f' + {self.split.whole}' if self.split.whole else ''}")
                    finish()

    def _region(self, access: Access) -> str:
        """Return the region of a whole tensor."""
        return f"{access.tensor}[{whole_region(self._layout.shape(access))}]"

    @contextmanager
    def _kernel(
        self, text: Script, block: str, name: str, size: LaunchSize, reads: list[str], writes: list[str]
    ) -> Iterator[None]:
        grid = str(size.grid)
        if self._layout.ranged is not None and size.growth is not None:
            grid = size.growth.text(self._layout.ranged.parameter)
        heads = (
            f'for {block} in T.thread_binding({grid}, thread="blockIdx.x"):',
            f'for tx in T.thread_binding({size.block}, thread="threadIdx.x"):',
            f'with T.sblock("{name}"):',
        )
        with text.scope(*heads):
            text.line(f"T.reads({', '.join(reads)})")
            text.line(f"T.writes({', '.join(writes)})")
            yield

    def _part(self, text: Script) -> StepRange:
        """Write which tile and which steps a block has, and return the steps."""
        split, steps = self.split, self._steps.most
        if self._steps.least < steps:
            return self._varying_part(text)
        per = split.steps(steps)
        least = steps - (split.split - 1) * per
        if split.whole:
            alone, beyond = f"{_BLOCK} < {split.whole}", f"{_BLOCK} - {split.whole}"
            tile = f"T.truncdiv({beyond}, {split.split}) + {split.whole}"
            text.line(f"bx: T.int32 = T.Select({alone}, {_BLOCK}, {tile})")
            text.line(f"first: T.int32 = T.Select({alone}, 0, T.truncmod({beyond}, {split.split}) * {per})")
            text.line(f"steps: T.int32 = T.Select({alone}, {steps}, T.min({steps} - first, {per}))")
            return StepRange("first", "steps", least, steps)
        text.line(f"bx: T.int32 = {_BLOCK} // {split.split}")
        text.line(f"first: T.int32 = {_BLOCK} % {split.split} * {per}")
        if least == per:
            return StepRange("first", str(per), per, per)
        text.line(f"steps: T.int32 = T.min({steps} - first, {per})")
        return StepRange("first", "steps", least, per)

    def _varying_part(self, text: Script) -> StepRange:
        """Write the same for a number of steps that varies with the extent: parts that are as equal as possible."""
        split, steps = self.split.split, self._steps
        text.line(f"bx: T.int32 = {_BLOCK} // {split}")
        text.line(f"first: T.int32 = T.truncdiv({_BLOCK} % {split} * {steps.text}, {split})")
        text.line(f"steps: T.int32 = T.truncdiv(({_BLOCK} % {split} + 1) * {steps.text}, {split}) - first")
        return StepRange("first", "steps", steps.least // split, self.split.steps(steps.most))

    def store(self, text: Script, kind: str, store: Callable[[], None], add: Callable[[], None]) -> None:
        """Write the end of the principal kernel.

        Parameters
        ----------
        kind : str
            Kind of loops over accumulators: "unroll" or "serial".
        store, add : callable
            Write the stores of complete sums; write the additions of parts to the result.
        """
        split = self.split
        if not split.is_split:
            store()
            return
        if split.whole:
            with text.scope(f"if {_BLOCK} < {split.whole}:"):
                store()
        with text.scope("else:" if split.whole else ""):
            if split.atomic:
                add()
                return
            part = f"({_BLOCK} - {split.whole})" if split.whole else _BLOCK
            with text.scope(f"for r in T.{kind}({self._accumulators}):"):
                index = f"({part} * {self._accumulators} + r) * {self._threads} + tx"
                text.line(f"{_WORKSPACE}[{index}] = acc[r]")

    def add_up(self, text: Script, kind: str, combine: Callable[[str, str], str]) -> None:
        """Write the loops that set ``acc`` to the sums of the parts of a tile, in a fixed order.

        Parameters
        ----------
        kind : str
            Kind of loops over accumulators: "unroll" or "serial".
        combine : callable
            Returns the expression of two sums.
        """
        count, split = self._accumulators, self.split.split
        head = f"for r in T.{kind}({count}):"

        def part(number: str) -> str:
            return f"{_WORKSPACE}[(({_BLOCK} * {split} + {number}) * {count} + r) * {self._threads} + tx]"

        with text.scope(head):
            text.line(f"acc[r] = {part('0')}")
        at_once = max(1, _LOADS // count)
        rounds, remainder = divmod(split - 1, at_once)
        for first, rolled, unrolled in ((1, rounds, at_once), (1 + rounds * at_once, 1, remainder)):
            if rolled and unrolled:
                with text.scope(f"for s in range({rolled}):", f"for p in T.unroll({unrolled}):", head):
                    text.line(f"acc[r] = {combine('acc[r]', part(f'(s * {unrolled} + p + {first})'))}")

    def _zero(self, text: Script, size: LaunchSize) -> None:
        """Write the loop that zeroes the result."""
        write = self.workload.write
        number, indices = f"({_BLOCK} * {size.block} + tx)", []
        inner: int | str = 1
        for extent in reversed(self._layout.shape(write)):
            quotient = f"T.truncdiv({number}, {inner})" if isinstance(inner, str) else f"{number} // {inner}"
            indices.append(f"T.truncmod({quotient}, {extent})" if isinstance(extent, str) else f"{quotient} % {extent}")
            inner = product(inner, extent)
        is_whole = isinstance(inner, int) and inner % size.block == 0
        with text.scope("" if is_whole else f"if {number} < {inner}:"):
            text.line(f"{write.tensor}[{', '.join(reversed(indices)) or '()'}] = T.{write.dtype}(0)")

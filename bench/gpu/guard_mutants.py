"""Kernels whose tests for edges, neutral elements or parts of sums have one fault, put in where they are written.

A fault that changes nothing is no mutant. Left out are: tests for blocks inside, of copies along a spatial axis whose
elements behind the end still lie in the tensor, or are tested for padding (nobody stores what becomes of them; other
elements seldom change a largest one: where the last elements are repeated, only the first dimension counts), and of
atomic additions that stay in the result (what is added there is zero); neutral elements where nothing that is read
outside becomes part of a stored result (no padding, no guarded reduction axis).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import msgspec

from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Access
from anatune.templates.cuda.program import program as programs
from anatune.templates.cuda.program import staging
from anatune.templates.cuda.program.fetch import Guard, StagedTile
from anatune.templates.cuda.program.nest import CudaNest
from anatune.templates.cuda.program.program import CudaKernelWriter
from anatune.templates.cuda.program.staging import Staging
from anatune.templates.gpu import splitting
from anatune.templates.gpu.kernel import CudaKernel
from anatune.templates.gpu.splitting import SplitReduction

__all__ = ["guard_mutants", "launch_mutants"]

_ONE_MORE = " + 1"


def launch_mutants(kernel: CudaKernel) -> Iterator[tuple[str, CudaKernel]]:
    """Yield (what was done, kernel): a launch before or behind the principal one dropped, or on its other side."""
    if kernel.before:
        yield "zeroing dropped", msgspec.structs.replace(kernel, before=())
        yield "zeroing launched last", msgspec.structs.replace(kernel, before=(), after=kernel.before)
    if kernel.after:
        yield "sum of parts dropped", msgspec.structs.replace(kernel, after=())
        yield "sum of parts launched first", msgspec.structs.replace(kernel, before=kernel.after, after=())


def guard_mutants(schedule: Schedule) -> Iterator[tuple[str, CudaKernel]]:
    """Yield (what was done, kernel) for a schedule on CUDA cores: faulty guards, neutral elements, parts of sums."""
    nest = CudaNest(schedule)
    for what, patches in _faults(nest):
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield what, cuda_kernel(schedule)


Patches = Sequence[Any]


def _faults(nest: CudaNest) -> Iterator[tuple[str, Patches]]:
    for tile in nest.tiles:
        for d, guard in enumerate(tile.guards):
            for side in Guard._fields:
                if getattr(guard, side) and not (d > 0 and _repeats(nest)):
                    yield f"test {side} an edge of a load off by one", [_loose_load(tile.access.tensor, d, side)]
    inside = bool(nest.tiles) and staging.inside_conditions(nest, "step") is not None
    for axis in nest.guarded_axes if inside else ():
        counts = axis in nest.reduction and nest.workload.body != "max"
        if not counts and not any(_leaves(nest, tile.access, tile.padding, axis) for tile in nest.tiles):
            continue
        yield "test for copies inside off by one", [_loose_inside(staging, nest, axis, stores=False)]
    spatial = [axis for axis in nest.guarded_axes if axis in nest.spatial]
    for axis in spatial:
        adds_zeros = nest.split.atomic and not _leaves(nest, nest.workload.write, (), axis)
        if all(nest.extent(other, "block") > 1 for other in spatial) and not adds_zeros:
            yield "test for stores inside off by one", [_loose_inside(programs, nest, axis, stores=True)]
        yield "test of a store off by one", [_loose_store(axis)]
        yield "test of a store removed", [_without_test(axis)]
    if any(any(guard) for tile in nest.tiles for guard in tile.padding) or set(nest.guarded_axes) & set(nest.reduction):
        if not nest.is_async:
            yield "neutral element replaced", [mock.patch.object(staging, "neutral", _not_neutral)]
        elif nest.workload.body != "max":
            yield "zeros of asynchronous copies missing", [_without_zeros()]
    if nest.split.is_split and not nest.split.atomic:
        yield "a part left out", [_without_part()]
        yield "index of the workspace shifted", [_shifted_workspace()]


def _leaves(nest: CudaNest, access: Access, padding: Sequence[Guard], axis: str) -> bool:
    """Whether blocks and steps inside reach behind a tensor's last element if an axis is not tested."""
    reach = {
        other: nest.total_extents[other]
        if other == axis
        else extent - (extent % nest.tile_extent(other) if other in nest.guarded_axes else 0)
        for other, extent in nest.workload.extents.items()
    }
    last, stride = 0, 1
    for d in reversed(range(len(access.shape))):
        position = access.offsets[d] + sum(term.coefficient * (reach[term.axis] - 1) for term in access.indices[d])
        last += stride * (min(position, access.shape[d] - 1) if padding and padding[d].behind else position)
        stride *= access.shape[d]
    return last >= stride


def _repeats(nest: CudaNest) -> bool:
    """Whether copies behind an end are the last ones before it instead."""
    return nest.is_async and nest.workload.body == "max"


def _loose_load(tensor: str, dimension: int, side: str) -> Any:
    original: Callable[..., tuple[str, list[str]]] = Staging._element

    def element(self: Staging, tile: StagedTile, *arguments: Any, **options: Any) -> tuple[str, list[str]]:
        text, conditions = original(self, tile, *arguments, **options)
        guards: Sequence[Guard] = arguments[2]
        if tile.access.tensor == tensor and options.get("repeats"):
            extent = tile.access.shape[dimension]
            return text.replace(f", {extent} - ", f", {extent}{_ONE_MORE} - ", 1), conditions
        order = [(d, name) for d, guard in enumerate(guards) for name in ("behind", "before") if getattr(guard, name)]
        if tile.access.tensor == tensor and (dimension, side) in order and len(order) == len(conditions):
            at = order.index((dimension, side))
            conditions[at] = f"{conditions[at]}{_ONE_MORE}" if side == "behind" else f"-1{conditions[at][1:]}"
        return text, conditions

    return mock.patch.object(Staging, "_element", element)


def _loose_inside(module: Any, nest: CudaNest, axis: str, *, stores: bool) -> Any:
    original = staging.inside_conditions
    tested = [other for other in nest.guarded_axes if not stores or other in nest.spatial]
    at = tested.index(axis)

    def conditions(*arguments: Any) -> list[str] | None:
        tests = original(*arguments)
        return tests and [f"{test}{_ONE_MORE}" if number == at else test for number, test in enumerate(tests)]

    return mock.patch.object(module, "inside_conditions", conditions)


def _loose_store(axis: str) -> Any:
    original = CudaKernelWriter._write_results

    def results(self: CudaKernelWriter, *arguments: Any, **options: Any) -> None:
        end = CudaNest.end

        def one_more(nest: CudaNest, name: str) -> int | str:
            return f"{end(nest, name)}{_ONE_MORE}" if name == axis else end(nest, name)

        with mock.patch.object(CudaNest, "end", one_more):
            original(self, *arguments, **options)

    return mock.patch.object(CudaKernelWriter, "_write_results", results)


def _without_test(axis: str) -> Any:
    original = CudaKernelWriter._write_results

    def results(self: CudaKernelWriter, value: Any, guarded: Sequence[str], **options: Any) -> None:
        original(self, value, [other for other in guarded if other != axis], **options)

    return mock.patch.object(CudaKernelWriter, "_write_results", results)


def _not_neutral(body: str, dtype: str) -> str:
    if body == "max":
        return f'T.max_value("{dtype}")'
    return f'T.Cast("{dtype}", 1)' if dtype in ("float16", "bfloat16") else f"T.{dtype}(1)"


def _without_zeros() -> Any:
    original = Staging._element

    def element(self: Staging, *arguments: Any, **options: Any) -> tuple[str, list[str]]:
        return original(self, *arguments, **options)[0], []

    return mock.patch.object(Staging, "_element", element)


def _without_part() -> Any:
    original = SplitReduction.add_up

    def add_up(self: SplitReduction, text: Any, kind: str, combine: Callable[[str, str], str]) -> None:
        count = self._accumulators
        last = self.split.split - 1

        def all_but_last(one: str, part: str) -> str:
            number = part[part.index(f" * {last + 1} + ") + len(f" * {last + 1} + ") : part.index(f") * {count} + r")]
            return f"T.if_then_else({number} < {last}, {combine(one, part)}, {one})"

        original(self, text, kind, all_but_last)

    return mock.patch.object(SplitReduction, "add_up", add_up)


def _shifted_workspace() -> Any:
    original = SplitReduction.add_up

    def add_up(self: SplitReduction, *arguments: Any) -> None:
        with mock.patch.object(splitting, "_BLOCK", f"({splitting._BLOCK} + 1)"):
            original(self, *arguments)

    return mock.patch.object(SplitReduction, "add_up", add_up)

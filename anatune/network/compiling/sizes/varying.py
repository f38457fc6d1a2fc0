"""Models for ranges of sizes on CPUs: one plan, applied to readings at a few sizes, and one graph from all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache

import msgspec
import numpy as np

from anatune.core.schedule import Schedule
from anatune.core.sizes import Size, is_run_time
from anatune.core.workload.ranges import make_ranged_workload
from anatune.errors import WorkloadError
from anatune.network.compiling.attention import PlannedAttention, attention_at_run_time
from anatune.network.compiling.planning import PlannedKernel, ProductPlanner, strip_epilogue
from anatune.network.graph.nodes import Graph, Node, tensor_type
from anatune.network.graph.operators import BATCH_MATMUL, CONVOLUTION, MATMUL, SCALED_MATMUL
from anatune.network.graph.products import constant_operands
from anatune.network.graph.state import StatePair
from anatune.network.graph.varying import MoreReadingsError, SizedReading, join_readings
from anatune.network.relax.kernels import RangedCalls
from anatune.network.relax.ranges import Ranges, name_of
from anatune.templates.cpu.range_space import schedule_at
from anatune.templates.scaled.rules import change_rows

__all__ = ["environments", "extend_attention", "extend_products", "merge_readings", "varying_ranges"]

_LEAST = 5
"""Least size of a reading: smaller numbers occur in a model for other reasons, and size 1 is a special case."""
_MOST_PRIME = 1 << 15
_MOST_READINGS = 32
"""Most sizes that a model is read at."""
_AXES = {MATMUL: "i", SCALED_MATMUL: "i", BATCH_MATMUL: "b"}
"""Product -> its axis that may vary; for convolutions that is the batch."""
_MOST_ROWS = 29
"""Most rows that products are planned for. Source: Zen 3, products of 768 to 3072 columns planned for 29 rows take 1.00
to 1.05 times as long as plans for the exact size from 64 to 2048 rows, and up to 1.09 times at 17 rows. Plans for 113
rows take up to 1.5 times as long at 17 rows: few rows wait for weights, many do not."""


def varying_ranges(ranges: Ranges) -> dict[str, tuple[int, int]]:
    """Return the ranges that have more than one value."""
    return {symbol: ends for symbol, ends in ranges.items() if ends[0] < ends[1]}


def environments(ranges: Ranges, state: Sequence[StatePair] = (), *, within: bool = False) -> list[dict[str, int]]:
    """Return the sets of sizes that a model is read at: the planned sizes first, the largest last.

    Each symbol has three different values, so that no two expressions of it agree on all of them. Values are primes
    except the largest, and differ between symbols, so that none equals another size or a constant of the model by
    chance. Small ranges also use other numbers, or numbers beyond the range. In the last set a growing state is empty
    and the input is as large as the state may become: constants, such as the positions of tokens, then have all rows.

    Parameters
    ----------
    within : bool
        Prefer 2 to a size beyond the range: a table may have no more rows, but a slice of 2 elements often has another
        meaning.
    """
    fixed = {symbol: ends[0] for symbol, ends in ranges.items() if ends[0] == ends[1]}
    middle: dict[str, int] = {}
    second: dict[str, int] = {}
    for symbol, (least, most) in varying_ranges(ranges).items():
        middle[symbol] = _choose_size(least, most, math.isqrt(max(least, 1) * most), middle.values())
    for symbol, (least, most) in varying_ranges(ranges).items():
        used = (*middle.values(), *second.values())
        is_within = within and least <= middle[symbol] <= most
        second[symbol] = _choose_size(least, most, middle[symbol] // 2 + 1, used, (2,) if is_within else ())
    size_sets = [middle, *({**middle, symbol: value} for symbol, value in second.items()), second]
    size_sets.append({})
    for symbol, (_, most) in varying_ranges(ranges).items():
        beyond = max(middle[symbol], second[symbol])
        size_sets[-1][symbol] = most if beyond < most else next(p for p in _primes() if p > beyond)
    for pair in state:
        if pair.symbol and pair.by in middle:
            sums = (one[pair.symbol] + one[pair.by] for one in size_sets[:-1])
            size_sets[-1] |= {pair.symbol: 0, pair.by: max(pair.most, *sums)}
    return [{**fixed, **one} for one in {tuple(one.items()): one for one in size_sets}.values()]


def _choose_size(least: int, most: int, start: int, taken: Collection[int], extra: Sequence[int] = ()) -> int:
    """Return an unused size: a prime from `start` on below the largest, another number there, or one beyond it.

    Parameters
    ----------
    extra : sequence of int
        Sizes that are preferred to one beyond the range.
    """
    inside = [p for p in _primes() if max(least, _LEAST) <= p < most]
    small = [n for n in (3, 4, *range(_LEAST, 2 * _LEAST), *range(least, least + _LEAST), *extra) if least <= n < most]
    chosen = [*(p for p in inside if p >= start), *reversed(inside), *(n for n in small if n > 2 or n in extra)]
    beyond = (p for p in _primes() if p >= max(start, most + 1, _LEAST))
    sizes: Iterator[int] = itertools.chain(chosen, beyond)
    return next(size for size in sizes if size not in taken)


def merge_readings(
    read: Callable[[Mapping[str, int]], Graph],
    size_sets: Sequence[Mapping[str, int]],
    name: str,
    ranges: Ranges,
    fallback_sizes: Sequence[Mapping[str, int]] = (),
) -> tuple[Graph, dict[Node, Node]]:
    """Read a model at several sizes and return one graph of all sizes, and its node for each node of the first reading.

    Parameters
    ----------
    read : callable
        Takes sizes, and returns the model after all passes.
    size_sets : sequence of mapping of str to int
        The sizes from `environments`.
    name : str
        Name of the model for messages.
    fallback_sizes : sequence of mapping of str to int, optional
        Other sizes, used if the model cannot be read at the first ones, or computes something else there.

    Raises
    ------
    WorkloadError
        As `graph.varying.join_readings`, or an expression of the sizes is ambiguous.
    """
    if fallback_sizes and fallback_sizes != size_sets:
        try:
            return merge_readings(read, size_sets, name, ranges)
        except WorkloadError as error:
            try:
                return merge_readings(read, fallback_sizes, name, ranges)
            except WorkloadError:
                raise error from None
    readings = [SizedReading(sizes, read(sizes)) for sizes in size_sets]
    while True:
        try:
            return join_readings(readings, name, ranges)
        except MoreReadingsError as more:
            if len(readings) > _MOST_READINGS:
                raise WorkloadError(
                    f"{name} uses the sizes {', '.join(map(name_of, ranges))} in a way that readings at several sizes "
                    "do not determine; compile it for fixed sizes, or for a smaller range"
                ) from more
            readings.insert(-1, SizedReading(more.sizes, read(more.sizes)))


def extend_products(
    kernels: Sequence[PlannedKernel], node_map: Mapping[Node, Node], planner: ProductPlanner, ranges: Ranges
) -> Iterator[PlannedKernel]:
    """Yield the kernels of a model's products, extended from the planned sizes to all sizes.

    Products with two sizes that vary get no kernel: TVM compiles them.

    Parameters
    ----------
    node_map : mapping of Node to Node
        Node at the planned sizes -> node of all sizes.
    ranges : mapping of str to (int, int)
        Ranges of the symbols.

    Raises
    ------
    WorkloadError
        The sizes of images or of weights vary.
    SpaceError
        No schedule of a product runs for a range.
    """
    ends = [{symbol: pair[end] for symbol, pair in ranges.items()} for end in (0, 1)]
    for kernel in kernels:
        groups: dict[tuple[str, int, int] | None, list[Node]] = {}
        for node in kernel.nodes:
            ranged_node = node_map[node]
            axis = _AXES.get(ranged_node.op, "n")
            extent = tensor_type(ranged_node.arguments[0]).shape[0]
            others = (
                tensor_type(ranged_node.arguments[0]).shape[1:],
                tensor_type(ranged_node.arguments[1]).shape[ranged_node.op == BATCH_MATMUL :],
            )
            if is_run_time(others):
                if ranged_node.op == CONVOLUTION:
                    raise WorkloadError(
                        f"a convolution of {tensor_type(ranged_node.arguments[0])}: image sizes vary, but only "
                        "the batch may; compile the model for fixed sizes (example inputs), or run it by "
                        "anatune.adapters.onnx.InferenceSession, which compiles it for each size"
                    )
                continue
            key = None
            if isinstance(extent, Size):
                key = (axis, extent.at(ends[0]), extent.at(ends[1]))
                if key[1] < 1:
                    raise WorkloadError(
                        f"{name_of(extent)} may be {key[1]}, but a product needs at least 1 row; give its sizes a "
                        "range that begins with 1 (--size NAME=1..512)"
                    )
            groups.setdefault(key, []).append(ranged_node)
        for number, (key, nodes) in enumerate(groups.items()):
            name = kernel.name if not number else f"{kernel.name}_{number}"
            if key is None:
                yield kernel._replace(name=name, nodes=tuple(nodes))
                continue
            yield _extend_product(kernel, name, nodes, key, planner)


def extend_attention(planned: PlannedAttention, node_map: Mapping[Node, Node]) -> PlannedAttention:
    """Return an attention extended from the planned sizes to all sizes; `node_map` as in `extend_products`."""
    nodes = tuple(node_map[node] for node in planned.nodes)
    return planned._replace(kernel=attention_at_run_time(planned.kernel, nodes[0]), nodes=nodes)


def _extend_product(
    kernel: PlannedKernel, name: str, nodes: Sequence[Node], key: tuple[str, int, int], planner: ProductPlanner
) -> PlannedKernel:
    """Return the kernel of a product for all extents of an axis; `key` is (axis, least, largest)."""
    axis, least, most = key
    workload, constants = kernel.workload, constant_operands(nodes[0])
    middle, extent = math.isqrt(least * most), workload.extents[axis]
    usual = _prime_below(max(_LEAST, min(middle, _MOST_ROWS))) if axis == "i" else max(least, min(middle, _LEAST))
    planned = planner.ranged_choice(
        make_ranged_workload(strip_epilogue(workload), axis, (usual,)).largest, constants, axis, most
    )
    planned_extent = planned.workload.extents[axis]

    def with_steps(schedule: Schedule, extent: int) -> Schedule:
        return msgspec.structs.replace(schedule, workload=make_ranged_workload(workload, axis, (extent,)).largest)

    if axis == "i":

        def schedule_for(extent: int) -> Schedule:
            if workload.is_kernel:
                return change_rows(planned, make_ranged_workload(workload, axis, (extent,)).largest)
            return with_steps(schedule_at(planned, axis, extent), extent)

        prediction = planner.predict(schedule_for(extent), constants)
        planned = schedule_for(most)
    else:
        planned = with_steps(planned, planned_extent)
        prediction = planner.predict(planned, constants)
        prediction = msgspec.structs.replace(prediction, time_s=prediction.time_s * extent / planned_extent)
    return PlannedKernel(name, planned, prediction, tuple(nodes), span=RangedCalls(axis, least, most))


@cache
def _primes() -> list[int]:
    """Return the primes that readings use as sizes, ascending."""
    sieve = np.ones(_MOST_PRIME, bool)
    sieve[:2] = False
    for number in range(2, math.isqrt(_MOST_PRIME) + 1):
        sieve[number * number :: number] = False
    return [int(prime) for prime in np.flatnonzero(sieve)]


def _prime_below(number: int) -> int:
    """Return the largest prime up to a number."""
    return max(prime for prime in _primes() if prime <= number)

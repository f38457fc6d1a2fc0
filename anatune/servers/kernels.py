"""The products of a layer as workloads, a server's tiles as schedules of their kernels, and measured times."""

from __future__ import annotations

from dataclasses import dataclass, field

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.scaled import grouped_matmul, scaled_matmul
from anatune.core.workload.scaling import SIDE
from anatune.errors import SpaceError
from anatune.servers.defaults import Tile
from anatune.servers.shapes import Experts, Product
from anatune.templates.triton.grouped.problem import scaled_problem_of
from anatune.templates.triton.grouped.rules import options_of

_FORMATS = {
    "auto": ("bfloat16", "tensor"),
    "fp8_w8a8": ("float8_e4m3fn", "tensor"),
    "int8_w8a8": ("int8", "rows"),
    "int8_w8a16": ("bfloat16xint8", "tensor"),
    "int4_w4a16": ("bfloat16xint4", "tensor"),
}
"""The servers' names of operand types -> dtype and scales (unless they are for blocks) of anatune's workloads."""

Times = dict[tuple[int, Tile, int], float]
"""The measured seconds by rows, tile and number of the kernel in the order of `workloads_of`."""


@dataclass
class MeasuredTiles:
    """The measured times of a layer's tiles, filled while they run.

    Attributes
    ----------
    kernels : int
        The number of kernels for a tile, see `workloads_of`.
    times : Times
        The times of kernels that ran.
    failed : dict
        The reason in one line why a kernel has no time, by rows.
    """

    kernels: int
    times: Times = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def parts(self, rows: int, tile: Tile) -> list[float] | None:
        """Return the seconds of a tile's kernels, or None unless all of them ran."""
        seconds = [time_s for part in range(self.kernels) if (time_s := self.times.get((rows, tile, part))) is not None]
        return seconds if len(seconds) == self.kernels else None


def workloads_of(shape: Experts | Product, tokens: int, exponent: float | None = None) -> tuple[Workload, ...]:
    """Return the up (and gate) product and the down product of a layer of experts, or the only product.

    As in servers, the activation is a separate kernel. If ranks share the experts, each row that is expected on this
    rank counts as a separate token.

    Raises
    ------
    SpaceError
        Scales are for blocks of a size that anatune's kernels do not support.
    """
    if shape.block not in (None, (SIDE, SIDE)):
        raise SpaceError(f"block shape is {list(shape.block or ())}, only {SIDE},{SIDE} can be measured")
    dtype, scales = _FORMATS[shape.dtype]
    scales = scales if shape.block is None else "blocks"
    if isinstance(shape, Product):
        return (scaled_matmul(tokens, shape.n, shape.k, dtype, scales),)
    top_k = shape.top_k
    if shape.ranks > 1:
        tokens, top_k = max(1, round(tokens * top_k / shape.ranks)), 1
    routing = "uniform" if exponent is None else f"power:{exponent:.6f}"

    def product(n: int, k: int, expanded: bool) -> Workload:
        return grouped_matmul(
            tokens, shape.experts, top_k, n, k, dtype, scales, shape.group, routing=routing, expanded=expanded
        )

    return product(2 * shape.intermediate, shape.hidden, False), product(shape.hidden, shape.intermediate, True)


def schedule_of(workload: Workload, tile: Tile, spec: GpuSpec) -> Schedule:
    """Return the schedule of anatune's kernel with a server's tile."""
    problem = scaled_problem_of(workload)
    sizes = {"m": (problem.rows, tile[0]), "n": (problem.columns, tile[1]), "k": (problem.k, tile[2])}
    launch = {"num_warps": tile[3], "num_stages": tile[4], "split_k": tile[5], "group_m": tile[6]}
    options = {name: launch.get(name, 0) for name in options_of(problem, spec)}
    tiles = {axis: (-(-extent // block), block) for axis, (extent, block) in sizes.items()}
    return Schedule(workload, spec, "triton", tiles, options=options)

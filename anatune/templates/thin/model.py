"""The analytical model of thin schedules, for batches of points of one workload on one device."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.implicit_gemm import pattern_of
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Columns, Floats, Points, Rule
from anatune.templates.base.rules import sort_rules
from anatune.templates.gpu.model import BLOCK_RESOURCES, MEMORY_LANES, TRAFFIC, BaseGpuModel
from anatune.templates.gpu.pack import address_instructions, rows_are_loose
from anatune.templates.gpu.rules import GRID_RULE, block_rules
from anatune.templates.thin.rules import DOTS_SINCE, check_supported
from anatune.templates.thin.space import ThinSpace
from anatune.templates.thin.times.block import MOST_PRODUCTS, ThinRule
from anatune.templates.thin.times.columns import ThinCol, ThinStream
from anatune.templates.thin.times.time import run_streams

__all__ = ["ThinModel"]

PARTS = ("fma_s", "issue_s", "l1_s", "l2_s", "dram_s", "latency_s", "meet_s", "tail_s", "second_s", "launch_s")
RESOURCES = ("registers_per_thread", *BLOCK_RESOURCES, "loads_in_flight", "bytes_in_flight", *TRAFFIC)
_CONVERSIONS = {"float32": 0.0, "float16": 1.0, "bfloat16": 1.0, "int8": 2.0}
"""Instructions that convert an element of a loaded word to the dtype of the sums.

They are a half-precision conversion, a mask or a shift, and two shifts.
"""


class ThinModel(BaseGpuModel):
    """Predicts the times of thin schedules of `workload` on `hardware`, and ranks them exactly.

    Guarantees: deterministic; every prediction depends on its own point only; safe for concurrent use.

    Raises
    ------
    SpaceError
        The template does not apply (`check_supported`).
    """

    space: ThinSpace
    parts, resources, rows = PARTS, RESOURCES, ThinCol.__members__
    composition = Composition(
        lanes=(Lane(("fma_s", "issue_s", "l1_s"), ("latency_s", "meet_s", "tail_s")), *MEMORY_LANES),
        added=("launch_s", "second_s"),
    )

    def __init__(self, workload: Workload, hardware: GpuSpec) -> None:
        check_supported(workload, hardware)
        super().__init__(workload, hardware)
        self.space = ThinSpace(workload, hardware, self._is_legal)
        self._stream = _pack_stream(self.space)
        self.rules = sort_rules(
            ThinRule,
            *block_rules(hardware, "bytes of sums that meet", "sums and loads in flight of a thread"),
            Rule("products_per_step", "unrolled products of a thread and step", float(MOST_PRODUCTS)),
            Rule("split", "parts of a sum that would have no step", 0.0),
            GRID_RULE,
        )

    @property
    def _sharing_threads(self) -> int:
        return 0

    def _fill(
        self, points: Points, task: int, compiled: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        run_streams(points, self._stream, self._gpu, compiled, rules, times, columns)

    def _own_columns(self, out: Floats) -> Columns:
        flop = float(self.workload.flop)
        return {
            "OI_Global_Mem": flop / np.maximum(out[ThinCol.L2_BYTES], 1.0),
            "OI_Shared_Mem": flop / np.maximum(out[ThinCol.SHARED_TRAFFIC], 1.0),
            "Reg_Reuse_Factor": np.full(out.shape[1], float(self.space.nest.extents["m"])),
            "ILP": out[ThinCol.ACCUMULATORS],
            "shared_traffic_bytes": out[ThinCol.SHARED_TRAFFIC],
            "loads_in_flight": out[ThinCol.LOADS],
            "bytes_in_flight": out[ThinCol.FLIGHT_BYTES],
        }

    @cached_property
    def floor_s(self) -> float:
        """A lower bound on the seconds of every schedule: the compulsory bytes, and the launch."""
        gpu = self._gpu
        return self.workload.compulsory_bytes / gpu.dram_bytes_cycle / gpu.clock_hz + gpu.launch_s

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the keys that order points of equal time, least important first: fewest loads, then widest loads."""
        return points[:, 1] * points[:, 4], -points[:, 2] * points[:, 5]


def _pack_stream(space: ThinSpace) -> ThinStream:
    workload, nest, hardware = space.workload, space.nest, space.hardware
    pattern = pattern_of(nest.big, nest.axes("k" if nest.along_k else "n"), workload)
    element, extents = DTYPE_BYTES[workload.dtype], nest.extents
    return ThinStream(
        batch=extents["batch"],
        m=extents["m"],
        n=extents["n"],
        k=extents["k"],
        element_bytes=element,
        products=int(nest.small is not None),
        along_k=int(nest.along_k),
        run=pattern.run,
        step=pattern.step,
        misaligned=rows_are_loose(nest.width, pattern.run, element),
        small_width=nest.small_width,
        convert=_CONVERSIONS[workload.dtype],
        dots=int(nest.along_k and workload.dtype == "int8" and (hardware.compute_capability or 0.0) >= DOTS_SINCE),
        address=float(address_instructions(nest.axes("k"), nest.guarded, workload)),
        small_address=float(address_instructions(nest.axes("k"), nest.small_guarded, workload)) if nest.small else 0.0,
        large_bytes=float(nest.big.touched_elements(workload.extents) * element),
        small_bytes=0.0 if nest.small is None else float(nest.small.touched_elements(workload.extents) * element),
        result_bytes=float(workload.write.num_bytes),
        epilogue_bytes=float(sum(access.num_bytes for access in workload.epilogue_reads)),
    )

"""The analytical model of products with 8-bit or 4-bit weights on one CPU, for batches of points.

The work of a core is the instructions of the microkernels, counted from their code. Ports execute them in parallel:
loads, integer products (as many per cycle as multiply-adds), all vector arithmetic (one port more), and issue. Weights
and scales stream once per piece of rows, from the first cache that holds them all or from memory. They are prefetched,
so that memory levels overlap each other and the work, except for a share of the shorter time.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import RELAXED
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import PREDICT, Columns, Floats, Points, Rule, Scores, Shown
from anatune.templates.base.ranking import ExhaustiveModel
from anatune.templates.base.rules import Limit, find_first_broken
from anatune.templates.cpu.model.pack import pack_machine
from anatune.templates.cpu.model.scoring import parallel_rule
from anatune.templates.scaled.rules import FLOAT_PIECE, FLOAT_ROWS, FLOATS_FROM, OTHERS
from anatune.templates.scaled.space import ScaledSpace

__all__ = ["ScaledModel"]

PARTS = ("product_s", "unpack_s", "digits_s", "l2_s", "l3_s", "dram_s", "start_s")
_COLUMNS = (*PARTS, "registers", "accumulators", "threads", "chunks", "weight_bytes", "digit_bytes")
_CALL_CYCLES = 20.0
"""Cycles to enter, leave and drain a microkernel."""
_UNPACKED = 5.0
"""Vector operations to unpack a vector of weights."""
_DIGIT_OPERATIONS = {1: 12.0, 2: 16.0, 3: 20.0}
"""Number of digits -> vector operations to make them from a vector of activations. Counted from the code."""


class ScaledModel(ExhaustiveModel):
    """Predicts the time of schedules of the template "scaled", and ranks them exactly.

    `accuracy` is the accuracy of the arithmetic of the space's schedules, "standard" or "relaxed".

    Models are deterministic, and threads may share them. Every prediction depends on its own point only.

    Raises
    ------
    SpaceError
        The template does not take the workload (`rules.product_of`), or the accuracy is unknown.
    """

    composition = Composition(
        lanes=(Lane((), ("product_s", "unpack_s", "digits_s")), Lane(("l2_s", "l3_s", "dram_s"))), added=("start_s",)
    )
    hardware: CpuSpec
    space: ScaledSpace

    def __init__(self, workload: Workload, hardware: CpuSpec, accuracy: str = RELAXED) -> None:
        super().__init__(workload, hardware)
        self.space = ScaledSpace(workload, hardware, self._is_legal, accuracy)
        self.machine = pack_machine(hardware)
        self.rules = find_first_broken(self._limits(np.zeros(0), np.zeros(0, dtype=bool)))[0]

    def _limits(self, registers: Floats, alone: NDArray[np.bool_]) -> tuple[Limit, ...]:
        """Return the table of rules. `alone`: points that are parallel but leave no work for a second core."""
        most = self.hardware.compute.num_vector_registers
        held = Rule("microkernel_registers", "vector registers of the microkernel", most)
        return Limit(held, registers), Limit(parallel_rule(self.hardware), registers, alone)

    @cached_property
    def streamed_bytes(self) -> float:
        """Bytes of weights, scales and zero points."""
        return float(sum(access.num_bytes for access in self.workload.reads[1:]))

    def _cycles(self, rows: Floats, vectors: Floats, digits: Floats) -> tuple[Floats, Floats, Floats]:
        """Return (cycles of a run's products, cycles of its unpacking, vector registers that it uses)."""
        core, product = self.machine.core, self.space.product
        units = float(product.digit_words)  # words of a digit: one product for each vector of columns and each row
        tiles = rows * vectors
        is_dot, is_short = product.instruction == "vpdpbusd", product.instruction == "maddubs"
        products = tiles * digits * (units + (1.0 if is_short else 0.0))
        added = 0.0 if is_dot else tiles * digits * (units - 1.0)
        joined = tiles * (2.0 * digits + 1.0)  # conversion to float32, powers, scales
        loads = rows * (digits * units + 2.0) + vectors
        widths = 1.0 if product.bits == 8 and product.digit_bits == 8 else 3.0
        unpacked = vectors * product.words * (widths if product.bits == 4 or product.digit_bits == 16 else 1.0)
        fetched = vectors * product.words
        simple = core.fma_per_cycle + 1.0

        def busy(multiplied: Floats, arithmetic: Floats, loaded: Floats) -> Floats:
            issued = (arithmetic + loaded + core.loop_instructions) / core.issue_width
            ports = np.maximum(multiplied / core.fma_per_cycle, arithmetic / simple)
            return np.maximum(ports, np.maximum(loaded / core.loads, issued))

        arithmetic = products + added + joined
        whole = busy(products + 2.0 * tiles, arithmetic + unpacked, loads + fetched)
        alone = busy(products + 2.0 * tiles, arithmetic, loads)
        return alone, whole - alone, tiles * (digits + 1.0) + 3.0

    def _run(
        self, points: Points, task: int = PREDICT, *, full: bool = False, compiled: Floats | None = None
    ) -> Scores:
        """Return (rule codes, seconds, quantities if `full`) of points."""
        calls, row, vector, _, digits, floats, split = np.atleast_2d(points).astype(np.float64).T
        core, product = self.machine.core, self.space.product
        width = vector * product.lanes
        tiles, is_float = np.ceil(product.columns / width), floats > 0
        piece = np.where(is_float, FLOAT_PIECE, calls * row)
        pieces = np.ceil(product.rows / piece)
        threads = np.where(split > 0, np.minimum(core.num_cores, tiles), 1.0)
        at_once = np.maximum(1.0, np.minimum(vector, (core.registers - OTHERS) // (row * digits)))
        multiply, unpack, registers = self._cycles(row, at_once, digits)
        registers = np.where(is_float, FLOAT_ROWS * np.minimum(vector, 2.0) + 3.0, registers)
        _, rules, _ = find_first_broken(self._limits(registers, (split > 0) & ((tiles < 2) | (core.num_cores < 2))))
        share = np.where(split > 0, np.ceil(tiles / threads) / tiles, 1.0)
        kernels = np.ceil(product.rows / row) * tiles * vector / at_once
        seconds = share / core.clock_hz
        product_s = kernels * (product.runs * multiply + _CALL_CYCLES) * seconds
        unpack_s = kernels * product.runs * unpack * seconds
        operations = np.array([_DIGIT_OPERATIONS[int(one)] for one in digits])
        digits_s = product.rows * product.depth / product.lanes * operations / (core.fma_per_cycle + 1.0)
        digits_s = digits_s / core.clock_hz / np.where(split > 0, np.minimum(threads, product.rows), 1.0)
        rows_each = np.ceil(product.rows / FLOAT_ROWS) * tiles * np.ceil(vector / 2.0)
        at_a_time = np.minimum(vector, 2.0)
        step = np.maximum(FLOAT_ROWS * at_a_time / core.fma_per_cycle, (FLOAT_ROWS + at_a_time) / core.loads)
        step = np.maximum(step, core.fma_latency)  # the sums of a step depend on those of the step before
        multiply_s = rows_each * product.depth * step * seconds
        fetched = np.ceil(product.rows / FLOAT_PIECE) * tiles * vector * product.depth
        product_s = np.where(is_float, multiply_s / core.reachable, product_s)
        unpack_s = np.where(is_float, fetched * _UNPACKED / (core.fma_per_cycle + 1.0) * seconds, unpack_s)
        digits_s = np.where(is_float, 0.0, digits_s)
        row_bytes = 4.0 * np.where(is_float, product.depth, product.runs * (digits * product.digit_words + 2.0))
        digit_bytes = np.minimum(piece, product.rows) * row_bytes
        kernels = np.where(is_float, rows_each, kernels)
        each_bytes = digit_bytes / np.where(is_float, FLOAT_PIECE / FLOAT_ROWS, calls)
        vectors_at_once = np.where(is_float, np.minimum(vector, 2.0), at_once)

        size = self.machine.size_bytes[None, :] / np.minimum(threads[:, None], self.machine.shared_by[None, :])
        fill_s = 1.0 / (self.machine.fill_bytes_per_cycle * core.clock_hz)
        dram_s = 1.0 / np.minimum(core.dram_core_bytes_s, core.dram_socket_bytes_s / threads)
        tile_bytes = self.streamed_bytes / tiles
        operands = float(sum(access.num_bytes for access in (self.workload.reads[0], self.workload.write)))
        transfers = np.zeros((3, len(calls)))
        levels = size.shape[1]
        for level in range(levels):
            held = size[:, level]
            # Weights move once per tile for each call of a piece, or all for each piece. Digits move for each tile.
            again = np.where(tile_bytes + each_bytes > held, kernels * tile_bytes / vector * vectors_at_once, 0.0)
            each = pieces * self.streamed_bytes
            moved = np.where(self.streamed_bytes + digit_bytes > held, each, 0.0)
            moved = np.maximum(moved, again)
            moved = moved + np.where(digit_bytes + tile_bytes > held, pieces * tiles * digit_bytes, 0.0)
            moved = moved + np.where(operands + self.streamed_bytes > held, operands, 0.0)
            transfers[level] = share * moved * (dram_s if level == levels - 1 else fill_s[level])
        core_s = product_s + unpack_s + digits_s
        memory_s = transfers[0]
        for level in range(1, 3):
            memory_s = np.maximum(memory_s, transfers[level]) + core.exposed_share * np.minimum(
                memory_s, transfers[level]
            )
        start_s = np.where(split > 0, pieces * (1.0 + (product.rows > 1)) * core.start_s, 0.0)
        times = np.maximum(core_s, memory_s) + core.exposed_share * np.minimum(core_s, memory_s) + start_s
        if not full:
            return rules, times, np.empty((0, 0))
        chunks = np.where(split > 0, tiles, 1.0)
        bytes_ = np.full(len(calls), self.streamed_bytes)
        quantities = [product_s, unpack_s, digits_s, *transfers, start_s, registers, row * at_once]
        return rules, times, np.stack([*quantities, threads, chunks, bytes_, digit_bytes])

    def _columns(self, quantities: Floats, time_s: Floats) -> Columns:
        """Return the quantities of a prediction by name."""
        columns = dict(zip(_COLUMNS, quantities, strict=True))
        columns["occupancy"] = columns["threads"] / self.hardware.compute.num_cores
        columns["waves"] = columns["chunks"] / columns["threads"]
        columns["product_share"] = columns["product_s"] / time_s
        columns["stream_share"] = quantities[3:6].max(axis=0) / time_s
        return columns

    def _select_shown(self, columns: Columns) -> Shown:
        resources = ("registers", "accumulators", "threads", "weight_bytes", "digit_bytes")
        return Shown(PARTS, ("product_share", "stream_share"), resources, {}, ["parallel_loop"] * len(columns["waves"]))

    @cached_property
    def floor_s(self) -> float:
        """A time that no schedule of the space can beat, in seconds: weights stream once from the nearest cache."""
        core = self.machine.core
        rate = self.machine.fill_bytes_per_cycle[0] * core.clock_hz * core.num_cores
        return 0.0 if self.streamed_bytes <= self.machine.size_bytes[0] else self.streamed_bytes / rate * 0.5

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the tie-break keys, least important first: wide tiles, then pieces near `FLOATS_FROM` rows."""
        calls, rows, vectors = points[:, :3].T
        return -vectors, np.abs(calls * rows - FLOATS_FROM), -rows

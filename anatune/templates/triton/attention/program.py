"""Kernels of attention in Triton: a running softmax over steps of keys."""

from __future__ import annotations

import math

from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.attention.problem import problem_of
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.lines import fold_lines
from anatune.templates.triton.program.module import module_text
from anatune.templates.triton.program.steps import TRITON_TYPES

__all__ = ["COMBINED_ROWS", "attention_program"]

COMBINED_ROWS = 4
"""Rows of a program that combines parts: one per warp."""
_PARTS, _COMBINE = "parts", "combine_parts"
_NARROW = 2**31
_HIDDEN = "-1e38"
"""Score of a key that is not seen. It is finite, so that a row that has seen no key makes no NaN."""
_PROMOTED_DEPTH = 64
"""Keys after which sums of 8-bit floats leave the tensor core's accumulators."""


def attention_program(schedule: Schedule) -> TritonProgram:
    """Return the Triton module of a schedule.

    Raises
    ------
    SpaceError
        The schedule is not legal.
    """
    return _AttentionWriter(schedule.check()).program()


class _AttentionWriter:
    """Writes the module of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.workload, self.hardware = schedule, schedule.workload, gpu_of(schedule)
        self.problem = problem_of(self.workload)
        p, options = self.problem, schedule.options
        self.block_m, self.block_n = schedule.tiles["m"][-1], schedule.tiles["n"][-1]
        self.split, self.warps, self.stages = (int(str(options[o])) for o in ("split_kv", "num_warps", "num_stages"))
        self.described = bool(options.get("descriptors"))
        self.tiles = -(-p.rows // self.block_m)
        self.elements = self.workload.write.num_elements
        reach = max(access.num_elements for access in self.workload.tensors)
        self.wide = max(reach, (self.split > 1) * self.split * self.elements) + p.head_dim * 256 >= _NARROW
        self.total_rows = self.elements // p.head_dim
        self.workspace: Buffer | None = None
        if self.split > 1:
            # sums of each part, then the logarithm of each row's share of it
            self.workspace = Buffer(_PARTS, "float32", (self.split * (self.elements + self.total_rows),))
        parts = slice(0 if p.page_size else 2, 3)  # without pages, pointers already point to a sequence's head
        self.has_own_values = p.places[1][parts] != p.places[2][parts]
        self.is_masked = p.causal or bool(p.counted) or p.seq_kv % self.block_n > 0
        self.keys, self.later = ("there", "later") if p.counted else ("SEQ_KV", "LATER")
        self.text = Script()

    def program(self) -> TritonProgram:
        """Write the module and return it with its launches."""
        reads = tuple(Buffer.of(access) for access in self.workload.reads)
        result = Buffer.of(self.workload.write)
        options: dict[str, bool | int | str] = {"enable_fp_fusion": True}
        if waves := self.schedule.options.get("waves_per_eu", 0):
            options["waves_per_eu"] = waves  # type: ignore[assignment]
        grid = self.problem.groups * self.tiles * self.split
        kernels = [
            TritonKernel("attention", (*reads, self.workspace or result), grid, self.warps, self.stages, {**options})
        ]
        self._write_step(reads)
        self._write_kernel(kernels[0])
        if self.workspace is not None:
            grid = -(-self.total_rows // COMBINED_ROWS)
            kernels.append(TritonKernel(_COMBINE, (self.workspace, result), grid, 4, 1, {"enable_fp_fusion": True}))
            self._write_combine()
        title = f"output = softmax(queries keys^T / sqrt({self.problem.head_dim})) values"
        between = None if self.workspace is None else (self.workspace, "sums of parts and what they weigh")
        source = fold_lines(module_text(self.schedule, title, kernels, self._constants(), str(self.text), between))
        return TritonProgram(self.schedule.key, source, tuple(kernels), result.tensor, self.workspace)

    def _constants(self) -> dict[str, int | float]:
        p = self.problem
        return {
            "SEQ_Q": p.seq_q,
            "SEQ_KV": p.seq_kv,
            "DIM": p.head_dim,
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_D": p.depth,
            "GROUPS": p.groups,
            "KV_HEADS": p.kv_heads,
            "HEADS": p.heads,
            "SHARED": p.shared,
            "ROWS": p.rows,
            "TILES": self.tiles,
            "WINDOW": p.window,
            "LATER": p.seq_kv - p.seq_q,
            **{
                f"{tensor}_{step}": stride
                for tensor, place in zip(("QUERIES", "KEYS", "VALUES"), p.places, strict=True)
                for step, stride in zip(("BATCH", "HEAD", "ROW"), place, strict=True)
            },
            "PAGE": p.page_size,
            "PAGES": -(-p.seq_kv // p.page_size) if p.page_size else 0,
            "SPLIT": self.split,
            "ELEMENTS": self.elements,
            "OUT_ROWS": self.total_rows,
            "COMBINED": COMBINED_ROWS,
            "SCALE": math.log2(math.e) / math.sqrt(p.head_dim),
        }

    # ---- the loop over keys ----

    def _write_step(self, reads: tuple[Buffer, ...]) -> None:
        """Write the function that loops over a range of keys."""
        text, p = self.text, self.problem
        masked = ", MASKED: tl.constexpr" if self.is_masked else ""
        text.line("@triton.jit")
        with text.scope(f"def attend(sums, total, highest, queries, query, {self._locations()}, first, last{masked}):"):
            text.line('"""Add the keys from first to last to sums of values; highest: score so far, of each row."""')
            text.line("lane_n = tl.arange(0, BLOCK_N)")
            text.line("lane_d = tl.arange(0, BLOCK_D)")
            text.open("for start in range(first, last, BLOCK_N):")
            text.line("key = start + lane_n")
            self._write_places()
            text.line(f"keys = {self._load_expression('keys')}")
            text.line("scores = tl.dot(queries, keys.T)")
            self._write_mask()
            text.line("highest_now = tl.maximum(highest, tl.max(scores, 1))")
            text.line("powers = tl.exp2((scores - highest_now[:, None]) * SCALE)  # never above 1")
            text.line("shrink = tl.exp2((highest - highest_now) * SCALE)")
            text.line("total = total * shrink + tl.sum(powers, 1)")
            text.line("sums = sums * shrink[:, None]")
            text.line(f"values = {self._load_expression('values')}")
            text.line(f"sums = tl.dot(powers.to(tl.{TRITON_TYPES[p.dtype]}), values, sums{self._promote()})")
            text.line("highest = highest_now")
            text.close()
            text.line("return sums, total, highest")
        text.line("\n")

    def _promote(self) -> str:
        if not self.problem.dtype.startswith("float8"):
            return ""
        return f", max_num_imprecise_acc={min(_PROMOTED_DEPTH, self.block_n)}"

    def _write_places(self) -> None:
        """Write the positions of the keys of a step: elements from the beginning of their tensor, or of their head."""
        text, p = self.text, self.problem
        if self.described:
            return
        if not p.page_size:
            wide = ".to(tl.int64)" if p.seq_kv * max(row for _, _, row in p.places[1:]) >= _NARROW else ""
            text.line(f"places = key{wide}[:, None] * KEYS_ROW + lane_d[None, :]")
            if self.has_own_values:
                text.line(f"value_places = key{wide}[:, None] * VALUES_ROW + lane_d[None, :]")
            return
        wide = ".to(tl.int64)" if self.wide else ""
        if p.page_size % self.block_n == 0:
            text.line("page = tl.load(block_table_ptr + batch * PAGES + start // PAGE)" + wide)
            slot = "(start % PAGE + lane_n)"
        else:
            text.line(f"inside = key < {self.keys}")
            text.line("page = tl.load(block_table_ptr + batch * PAGES + key // PAGE, mask=inside, other=0)" + wide)
            slot = "(key % PAGE)"
        for name, tensor in (("places", "KEYS"), ("value_places", "VALUES"))[: 1 + self.has_own_values]:
            text.line(f"place = page * {tensor}_BATCH + head * {tensor}_HEAD + {slot} * {tensor}_ROW")
            text.line(f"{name} = place[:, None] + lane_d[None, :]")

    def _load_expression(self, tensor: str) -> str:
        p = self.problem
        if self.described:
            return f"{tensor}_tiles.load([group, start, 0]).reshape(BLOCK_N, BLOCK_D)"
        guards = []
        if p.counted or p.seq_kv % self.block_n:
            guards.append(f"(key[:, None] < {self.keys})")
        if p.depth != p.head_dim:
            guards.append("(lane_d[None, :] < DIM)")
        mask = f", mask={' & '.join(guards)}, other=0.0" if guards else ""
        places = "value_places" if tensor == "values" and self.has_own_values else "places"
        return f"tl.load({tensor}_ptr + {places}{mask})"

    def _write_mask(self) -> None:
        """Write the mask of keys that a row does not see."""
        text, p = self.text, self.problem
        if not self.is_masked:
            return
        with text.scope("if MASKED:"):
            if not p.causal:
                text.line(f"scores = tl.where(key[None, :] < {self.keys}, scores, {_HIDDEN})")
                return
            text.line(f"seen = key[None, :] <= query[:, None] + {self.later}")
            if p.window:
                text.line(f"seen &= key[None, :] > query[:, None] + ({self.later} - WINDOW)")
            if p.counted or (p.seq_kv % self.block_n and (p.rows % self.block_m or p.window)):
                text.line(f"seen &= key[None, :] < {self.keys}")
            text.line(f"scores = tl.where(seen, scores, {_HIDDEN})")

    # ---- the principal kernel ----

    def _write_kernel(self, kernel: TritonKernel) -> None:
        text, p = self.text, self.problem
        text.line("@triton.jit")
        with text.scope(f"def attention({', '.join(f'{buffer.tensor}_ptr' for buffer in kernel.parameters)}):"):
            text.line("program = tl.program_id(0)")
            text.line("# tiles of a head are neighbours: its keys stay in the L2 cache")
            tile = "TILES - 1 - program % TILES" if p.causal and self.tiles > 1 else "program % TILES"
            text.line(f"tile = {tile}" + ("  # the longest first" if "- 1" in tile else ""))
            if self.split > 1:
                text.line("part = program // TILES % SPLIT")
                text.line("group = program // (TILES * SPLIT)")
            else:
                text.line("group = program // TILES")
            text.line("batch = group // KV_HEADS")
            text.line("head = group % KV_HEADS")
            text.line("row = tile * BLOCK_M + tl.arange(0, BLOCK_M)")
            text.line("lane_d = tl.arange(0, BLOCK_D)")
            text.line("query = row // SHARED" if p.shared > 1 else "query = row")
            own_head = "head * SHARED + row % SHARED" if p.shared > 1 else "head"
            if p.strides:
                out = f"(batch * SEQ_Q + query) * HEADS + {own_head}"
            else:
                out = f"(batch * HEADS + {own_head}) * SEQ_Q + query" if p.shared > 1 else "group * SEQ_Q + row"
            text.line("# heads of queries that share a head of keys lie beside each other in a tile")
            text.line(f"out_row = {out}")
            wide = ".to(tl.int64)" if self.wide else ""
            text.line(f"places = out_row{wide}[:, None] * DIM + lane_d[None, :]")
            guards = self._row_guards()
            mask = f", mask={guards}, other=0.0" if guards else ""
            where = "places"
            if p.strides:
                token = f"batch{wide} * QUERIES_BATCH + ({own_head}){wide} * QUERIES_HEAD + query{wide} * QUERIES_ROW"
                text.line(f"token = {token}")
                where = "token[:, None] + lane_d[None, :]"
            text.line(f"queries = tl.load(queries_ptr + {where}{mask})")
            self._write_descriptors()
            text.line("sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)")
            text.line("total = tl.zeros((BLOCK_M,), tl.float32)")
            text.line(f"highest = tl.full((BLOCK_M,), {_HIDDEN}, tl.float32)")
            self._write_ranges()
            self._write_result(guards)

    def _row_guards(self) -> str:
        p = self.problem
        guards = ["(row[:, None] < ROWS)"] if p.rows % self.block_m else []
        guards += ["(lane_d[None, :] < DIM)"] if p.depth != p.head_dim else []
        return " & ".join(guards)

    def _write_descriptors(self) -> None:
        if self.described:
            for tensor in ("keys", "values"):
                self.text.line(f"{tensor}_tiles = tl.make_tensor_descriptor(")
                self.text.line(f"    {tensor}_ptr, shape=[GROUPS, SEQ_KV, DIM], strides=[SEQ_KV * DIM, DIM, 1],")
                self.text.line("    block_shape=[1, BLOCK_N, BLOCK_D],")
                self.text.line(")")
        elif not self.problem.page_size:
            wide = ".to(tl.int64)" if self.wide else ""
            for tensor in ("keys", "values"):
                name = tensor.upper()
                self.text.line(f"{tensor}_ptr += batch{wide} * {name}_BATCH + head{wide} * {name}_HEAD")

    def _write_ranges(self) -> None:
        """Write the calls that loop over all keys: those that all rows of the tile see, and those before and after."""
        text, p = self.text, self.problem
        text.line("first = 0")
        if p.counted == "held":
            text.line("later = tl.load(held_ptr)")
            text.line("there = later + SEQ_Q")
        if p.counted == "lengths":
            text.line("later = tl.load(lengths_ptr + batch) - SEQ_Q")
            text.line("there = tl.minimum(tl.maximum(later + SEQ_Q, 0), SEQ_KV)")
        text.line(f"last = {self.keys}")
        if p.causal:
            text.line("lowest = tile * BLOCK_M // SHARED" if p.shared > 1 else "lowest = tile * BLOCK_M")
            text.line("largest = tl.minimum(tile * BLOCK_M + BLOCK_M, ROWS) - 1")
            if p.shared > 1:
                text.line("largest = largest // SHARED")
            last = f"largest + {self.later} + 1"
            text.line(
                f"last = tl.minimum(tl.maximum({last}, 0), there)" if p.counted == "lengths" else f"last = {last}"
            )
            if p.window:
                text.line(f"first = tl.maximum(lowest + ({self.later} - WINDOW + 1), 0) // BLOCK_N * BLOCK_N")
        if self.split > 1:
            text.line("# each part goes over its share of the steps")
            text.line("steps = tl.cdiv(tl.cdiv(last - first, BLOCK_N), SPLIT) * BLOCK_N")
            text.line("first += part * steps")
            text.line("last = tl.minimum(last, first + steps)")
        if not self.is_masked:
            self._call("first", "last", "")
            return
        if p.causal:
            least = f"lowest + {self.later} + 1"
            least = f"tl.minimum({least}, there)" if p.counted == "lengths" else f"({least})"
            text.line(f"seen_by_all = {least} // BLOCK_N * BLOCK_N")
        else:
            text.line(f"seen_by_all = {self.keys} // BLOCK_N * BLOCK_N")
        text.line("middle = tl.maximum(tl.minimum(seen_by_all, last), first)")
        if p.window and p.window < p.seq_kv:
            rows = -(-self.block_m // p.shared)
            if p.window < rows + 2 * self.block_n:
                self._call("first", "last", ", True")  # hardly a step is seen by all rows
                return
            text.line(f"after = tl.cdiv(tl.maximum(largest + ({self.later} - WINDOW + 1), 0), BLOCK_N) * BLOCK_N")
            text.line("begin = tl.minimum(tl.maximum(after, first), middle)")
            self._call("first", "begin", ", True")
            self._call("begin", "middle", ", False")
        else:
            self._call("first", "middle", ", False")
        self._call("middle", "last", ", True")

    def _call(self, first: str, last: str, masked: str) -> None:
        text = self.text
        text.line("sums, total, highest = attend(")
        text.line(f"    sums, total, highest, queries, query, {self._locations()}, {first}, {last}{masked}")
        text.line(")")

    def _locations(self) -> str:
        """Return the arguments that locate keys and values."""
        if self.described:
            return "keys_tiles, values_tiles, group"
        words = ["keys_ptr", "values_ptr"]
        words += ["block_table_ptr", "batch", "head"] if self.problem.page_size else []
        return ", ".join([*words, *(["later", "there"] if self.problem.counted else [])])

    def _write_result(self, guards: str) -> None:
        text = self.text
        mask = f", mask={guards}" if guards else ""
        if self.problem.counted == "lengths" and self.problem.causal:
            seen = "query + later >= 0"
            if self.problem.window:
                seen = f"({seen}) & (query + later < SEQ_KV + WINDOW - 1)"
            text.line(f"sums = tl.where(({seen})[:, None], sums, 0.0)  # others see no key")
        if self.split == 1:
            result_type = TRITON_TYPES[self.workload.write.dtype]
            if self.problem.counted == "lengths":
                text.line("total = tl.where(total == 0.0, 1.0, total)")
            text.line("sums = sums / total[:, None]")
            text.line(f"tl.store(output_ptr + places, sums.to(tl.{result_type}){mask})")
            text.line("\n")
            return
        wide = ".to(tl.int64)" if self.wide else ""
        text.line("# each part has a place of its own; combine_parts weighs them by the sums of their powers")
        text.line("total = tl.where(total == 0.0, 1.0, total)")
        text.line(f"tl.store(parts_ptr + part{wide} * ELEMENTS + places, sums / total[:, None]{mask})")
        row_mask = ", mask=row < ROWS" if self.problem.rows % self.block_m else ""
        text.line("weights_ptr = parts_ptr + SPLIT * ELEMENTS")
        text.line(f"tl.store(weights_ptr + part * OUT_ROWS + out_row, highest * SCALE + tl.log2(total){row_mask})")
        text.line("\n")

    def _write_combine(self) -> None:
        """Write the second kernel. It adds parts in a fixed order, so that results do not change from run to run."""
        text, p = self.text, self.problem
        guards = ["(row[:, None] < OUT_ROWS)"] if self.total_rows % COMBINED_ROWS else []
        row_mask = ", mask=row < OUT_ROWS, other=0.0" if guards else ""
        guards += ["(lane_d[None, :] < DIM)"] if p.depth != p.head_dim else []
        mask = f", mask={' & '.join(guards)}" if guards else ""
        wide = ".to(tl.int64)" if self.wide else ""
        text.line("@triton.jit")
        with text.scope(f"def {_COMBINE}(parts_ptr, output_ptr):"):
            text.line(f"row = tl.program_id(0){wide} * COMBINED + tl.arange(0, COMBINED)")
            text.line("lane_d = tl.arange(0, BLOCK_D)")
            text.line("places = row[:, None] * DIM + lane_d[None, :]")
            text.line("weights_ptr = parts_ptr + SPLIT * ELEMENTS")
            text.line(f"highest = tl.full((COMBINED,), {_HIDDEN}, tl.float32)")
            with text.scope("for part in range(SPLIT):"):
                text.line(f"highest = tl.maximum(highest, tl.load(weights_ptr + part * OUT_ROWS + row{row_mask}))")
            text.line("sums = tl.zeros((COMBINED, BLOCK_D), tl.float32)")
            text.line("total = tl.zeros((COMBINED,), tl.float32)")
            with text.scope("for part in range(SPLIT):"):
                text.line(f"weight = tl.exp2(tl.load(weights_ptr + part * OUT_ROWS + row{row_mask}) - highest)")
                other = f"{mask}, other=0.0" if mask else ""
                text.line(f"sums += weight[:, None] * tl.load(parts_ptr + part{wide} * ELEMENTS + places{other})")
                text.line("total += weight")
            result_type = TRITON_TYPES[self.workload.write.dtype]
            text.line(f"tl.store(output_ptr + places, (sums / total[:, None]).to(tl.{result_type}){mask})")

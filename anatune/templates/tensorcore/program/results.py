"""The end of a tensor-core kernel as TVMScript: accumulators to memory, with the fused epilogue.

Accumulators lie scattered over the lanes of a warp. Each warp writes 16 rows of its results to a part of the shared
memory of its own (the ring is not needed any more) and reads them again row by row, four neighbours a lane, so that
the epilogue's operands and the result are read and written in whole sectors.
"""

from __future__ import annotations

from collections.abc import Mapping

from anatune.core.workload.implicit_gemm import vector_width
from anatune.core.workload.nest import DTYPE_BYTES, Access
from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.activations import activated
from anatune.emit.script import Script
from anatune.templates.gpu.index import axis_values, element, if_all, sum_of
from anatune.templates.tensorcore.program.layout import TileLayout

__all__ = ["RESULT_ARRAYS", "write_results"]

_LANE_RESULTS = 4
"""Neighbouring results that a lane handles at once."""
RESULT_ARRAYS = (("value", 4, "float32"), ("word", 4, "uint32"), ("extra", 1, "float32"))
"""Registers that `write_results` takes: name, elements, dtype."""
_FUNCTION = "__device__ __forceinline__ void "
_SOURCES = {
    "anatune_put_f32x2": "(void* p, float a, float b) {\n  *(float2*)p = make_float2(a, b);\n}\n",
    "anatune_get_f32x4": """(float& a, float& b, float& c, float& d, const void* p, int r) {
  float4 v = *(const float4*)((const char*)p - r);
  a = v.x; b = v.y; c = v.z; d = v.w;
}
""",
    "anatune_load_u16x1": "(unsigned int& a, const void* p) {\n  a = *(const unsigned short*)p;\n}\n",
    "anatune_load_u32x1": "(unsigned int& a, const void* p) {\n  a = *(const unsigned int*)p;\n}\n",
    "anatune_load_u32x2": """(unsigned int& a, unsigned int& b, const void* p) {
  uint2 v = *(const uint2*)p;
  a = v.x; b = v.y;
}
""",
    "anatune_load_u32x4": """(unsigned int& a, unsigned int& b, unsigned int& c, unsigned int& d, const void* p) {
  uint4 v = *(const uint4*)p;
  a = v.x; b = v.y; c = v.z; d = v.w;
}
""",
    "anatune_store_u16x1": "(void* p, unsigned int a) {\n  *(unsigned short*)p = (unsigned short)a;\n}\n",
    "anatune_store_u32x1": "(void* p, unsigned int a) {\n  *(unsigned int*)p = a;\n}\n",
    "anatune_store_u32x2": "(void* p, unsigned int a, unsigned int b) {\n  *(uint2*)p = make_uint2(a, b);\n}\n",
    "anatune_store_u32x4": """(void* p, unsigned int a, unsigned int b, unsigned int c, unsigned int d) {
  *(uint4*)p = make_uint4(a, b, c, d);
}
""",
}


def _call(name: str, *arguments: str) -> str:
    source = f"{_FUNCTION}{name}{_SOURCES[name]}"
    return f'T.evaluate(T.cuda.func_call("{name}", {", ".join(arguments)}, source_code={source!r}))'


def write_results(text: Script, layout: TileLayout, origin: Mapping[str, str], *, adds: bool = False) -> None:
    """Append the loop over the 16-row slices of a warp's results.

    Parameters
    ----------
    origin : mapping of str to str
        "batch", "m", "n" -> where the block's tile starts.
    adds : bool
        Whether float32 results are added to what is there.
    """
    _Results(text, layout, origin, adds).write()


class _Results:
    def __init__(self, text: Script, layout: TileLayout, origin: Mapping[str, str], adds: bool) -> None:
        self.text = text
        self.layout = layout
        self.workload = layout.workload
        self.write_access = self.workload.write
        self.origin, self.adds = origin, adds
        self.is_half = DTYPE_BYTES[self.write_access.dtype] == 2

    def write(self) -> None:
        text, layout = self.text, self.layout
        per_float = 4 // layout.element_bytes  # elements of the shared buffer in a float32
        pitch, columns = layout.result_pitch, layout.warp_columns
        own = f"tx // 32 * {16 * pitch * per_float}"
        with text.scope(f"for mi in T.unroll({layout.mma['m']}):"):
            with text.scope(f"for ni in T.unroll({layout.mma['n']}):"):
                for half in range(2):
                    place = f"(tx % 32 // 4 + {8 * half}) * {pitch * per_float} + (ni * 8 + tx % 4 * 2) * {per_float}"
                    sums = ", ".join(f"acc[(mi * {layout.mma['n']} + ni) * 4 + {2 * half + e}]" for e in range(2))
                    text.line(_call("anatune_put_f32x2", f"T.address_of(smem[{own} + {place}])", sums))
            text.line("T.cuda.warp_sync()")
            with text.scope(f"for it in T.unroll({columns // 8}):"):
                self._write_row(own, per_float)
            text.line("T.cuda.warp_sync()")

    def _write_row(self, own: str, per_float: int) -> None:
        """Write one turn of the loop over a slice: each lane takes neighbouring results from the shared memory."""
        layout = self.layout
        columns, warps = layout.warp_columns, layout.warps
        lanes = columns // _LANE_RESULTS  # lanes of a row
        row, column = f"((it * 32 + tx % 32) // {lanes})", f"((it * 32 + tx % 32) % {lanes} * {_LANE_RESULTS})"
        place = f"{row} * {layout.result_pitch * per_float} + {column} * {per_float}"
        values = ", ".join(f"value[{e}]" for e in range(_LANE_RESULTS))
        # named by their last element: TVM makes shared memory as small as the elements that a program names
        last = f"T.address_of(smem[{own} + {place} + {_LANE_RESULTS * per_float - 1}])"
        self.text.line(_call("anatune_get_f32x4", values, last, str(4 * _LANE_RESULTS - layout.element_bytes)))
        warp_row = f"tx // {32 * warps['n']} * {layout.block['m'] // warps['m']}" if warps["m"] > 1 else "0"
        warp_column = f"tx // 32 % {warps['n']} * {columns}" if warps["n"] > 1 else "0"
        self.m = sum_of(self.origin["m"], warp_row, f"mi * 16 + {row}")
        self.n = sum_of(self.origin["n"], warp_column, column)
        self._finish()

    def _values(self, offset: int) -> dict[str, str]:
        n = f"{self.n} + {offset}" if offset else self.n
        return axis_values(self.layout.gemm, self.workload, {"batch": self.origin["batch"], "m": self.m, "n": n})

    def _finish(self) -> None:
        """Apply the epilogue to ``value`` and store it, where it lies inside the result."""
        layout, text = self.layout, self.text
        width, extents = layout.gemm.store_width, layout.gemm.extents
        loose = {index: layout.grid[index] * layout.block[index] > extents[index] for index in ("m", "n")}
        for start in range(0, _LANE_RESULTS, width):
            tests = [f"{self.m} < {extents['m']}"] if loose["m"] else []
            if loose["n"]:
                tests.append(f"{self.n} + {start} < {extents['n']}")
            with text.scope(if_all(tests)):
                self._epilogue(start, width)
                self._store(start, width)

    def _epilogue(self, start: int, width: int) -> None:
        extra = iter(self.workload.epilogue_reads)
        for step in self.workload.epilogue:
            if STEP_OPERANDS[step] is None:
                for e in range(start, start + width):
                    self.text.line(f"value[{e}] = {activated(step, f'value[{e}]', 'float32')}")
            else:
                self._add(next(extra), start, width)

    def _add(self, access: Access, start: int, width: int) -> None:
        """Add an operand of the epilogue, read in vectors where its neighbours along n lie together."""
        gemm = self.layout.gemm
        moves = any(access.uses(axis) and self.workload.extents[axis] > 1 for axis in gemm.n)
        step = min(width, vector_width(access, gemm.n, self.workload, _LANE_RESULTS)) if moves else width
        for first in range(start, start + width, step):
            self._load(access, self._values(first), step if moves else 1)
            for e in range(step):
                self._convert(access.dtype, e if moves else 0)
                self.text.line(f"value[{first + e}] = value[{first + e}] + extra[0]")

    def _load(self, access: Access, values: Mapping[str, str], count: int) -> None:
        """Read `count` neighbours into ``word``."""
        half = DTYPE_BYTES[access.dtype] == 2
        words = max(1, count // 2) if half else count
        name = "anatune_load_u16x1" if half and count == 1 else f"anatune_load_u32x{words}"
        targets = (f"word[{w}]" for w in range(words))
        self.text.line(_call(name, *targets, f"T.address_of({element(access, values)})"))

    def _convert(self, dtype: str, e: int) -> None:
        """Set ``extra[0]`` to element `e` of what `_load` read."""
        if dtype == "float32":
            self.text.line(f'extra[0] = T.reinterpret("float32", word[{e}])')
        elif dtype == "bfloat16":
            bits = f"word[{e // 2}]"
            upper = f"T.bitwise_and({bits}, T.uint32(4294901760))" if e % 2 else f"T.shift_left({bits}, T.uint32(16))"
            self.text.line(f'extra[0] = T.reinterpret("float32", {upper})')
        else:
            bits = f"T.shift_right(word[{e // 2}], T.uint32({16 * (e % 2)}))"
            self.text.line(f'T.ptx["cvt.f32.f16"](extra[0], T.Cast("uint16", {bits}))')

    def _store(self, start: int, width: int) -> None:
        if self.adds:
            for e in range(start, start + width):
                there = f"T.address_of({element(self.write_access, self._values(e))})"
                self.text.line(f'T.evaluate(T.call_extern("float32", "atomicAdd", {there}, value[{e}]))')
            return
        target = f"T.address_of({element(self.write_access, self._values(start))})"
        if not self.is_half:
            words = [f'T.reinterpret("uint32", value[{e}])' for e in range(start, start + width)]
            self.text.line(_call(f"anatune_store_u32x{width}", target, *words))
            return
        kind = {"float16": "f16x2", "bfloat16": "bf16x2"}[self.write_access.dtype]
        for w in range(max(1, width // 2)):
            low = start + 2 * w
            high = low + 1 if width > 1 else low
            self.text.line(f'T.ptx["cvt.rn.{kind}.f32"](word[{w}], value[{high}], value[{low}])')
        name = "anatune_store_u16x1" if width == 1 else f"anatune_store_u32x{width // 2}"
        self.text.line(_call(name, target, *(f"word[{w}]" for w in range(max(1, width // 2)))))

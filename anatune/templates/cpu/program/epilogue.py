"""The part of a microkernel after its reduction, as LLVM IR: sums of earlier calls, fused steps, and stores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from anatune.core.workload.number_formats import FACTOR_STEPS
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.llvm import LlvmCode
from anatune.templates.cpu.program.register_tile import Bases, Microkernel, Result, Tile

__all__ = ["add_earlier_sums", "apply_step", "finish"]


def add_earlier_sums(code: LlvmCode, kernel: Microkernel, bases: Bases, final: Tile) -> Tile:
    """Add the sums of earlier calls, unless this call is the first one.

    This happens after the reduction. If the reduction started from these sums, the first product would wait for them,
    from as far away as the result is. Here they were prefetched long ago.
    """
    before = "done" if kernel.trips else "entry"
    code.line("  %bit = and i32 %flags, 1")
    code.line("  %goes_on = icmp ne i32 %bit, 0")
    code.line("  br i1 %goes_on, label %reload, label %added")
    code.line("reload:")
    loaded = _load_result(code, kernel, *kernel.sums(bases))
    join = code.maximum if kernel.body == "max" else partial(code.binary, "add")
    joined = {tile: join(loaded[tile], value) for tile, value in final.items()}
    code.line("  br label %added")
    code.line("added:")
    return {
        tile: code.emit(f"phi {code.vector} [{value}, %{before}], [{joined[tile]}, %reload]")
        for tile, value in final.items()
    }


def _load_result(code: LlvmCode, kernel: Microkernel, base: str, result: Result) -> Tile:
    """Load the tile of sums that earlier calls stored."""
    loaded: Tile = {}
    for vector in range(kernel.num_vectors):
        used = kernel.used_lanes(vector)
        start = vector * kernel.lanes * result.lane_stride
        if result.lane_stride == 1 or not result.groups:
            for row, offset in enumerate(result.rows):
                pointer = code.address(base, result.dtype, offset + start)
                loaded[row, vector] = code.load_vector(pointer, result.dtype, result.lane_stride, used)
            continue
        for group in result.groups:
            columns = []
            for lane in range(used):
                offset = result.rows[group[0]] + start + lane * result.lane_stride
                columns.append(code.load_vector(code.address(base, result.dtype, offset), result.dtype, 1, len(group)))
            rows = code.transpose(columns)
            for number, row in enumerate(group):
                loaded[row, vector] = rows[number]
    return loaded


def finish(code: LlvmCode, kernel: Microkernel, bases: Bases, final: Tile) -> None:
    """Divide and apply the epilogue (in the last call only), and store."""
    result = kernel.result
    if kernel.simd_reduction:
        _finish_scalar(code, kernel, bases, final)
        return
    has_end = kernel.count != 1 or kernel.epilogue or kernel.keeps_sums
    if has_end and kernel.is_partial:
        code.line("  %more_bit = and i32 %flags, 2")
        code.line("  %more = icmp ne i32 %more_bit, 0")
        code.line("  br i1 %more, label %keep, label %finish")
        code.line("finish:")
        _store(*_epilogue(code, kernel, bases, final), bases.result, result, kernel)
        code.line("  ret void")
        code.line("keep:")
        _store(code, final, *kernel.sums(bases), kernel)
        return
    code, final = _epilogue(code, kernel, bases, final) if has_end else (code, final)
    _store(code, final, bases.result, result, kernel)


def _epilogue(code: LlvmCode, kernel: Microkernel, bases: Bases, final: Tile) -> tuple[LlvmCode, Tile]:
    """Apply the fused steps; return code that computes in the dtype of the values, and the values."""
    pointers = iter(bases.epilogue)
    values = dict(final)
    if kernel.count != 1:
        values = {tile: code.divide(v, kernel.count) for tile, v in values.items()}
    for step, operand in kernel.epilogue:
        pointer = next(pointers) if operand is not None else ""
        loaded: Tile = {}
        next_code = code
        for (row, vector), value in values.items():
            key = (0, 0)
            if operand is not None:
                start = vector * kernel.lanes * operand.lane_stride
                key = (operand.rows[row], start)
                if key not in loaded:
                    address = code.address(pointer, operand.dtype, operand.rows[row] + start)
                    view = code.of("float32") if step in FACTOR_STEPS else code
                    used = kernel.used_lanes(vector)
                    loaded[key] = view.load_vector(address, operand.dtype, operand.lane_stride, used)
            next_code, values[row, vector] = apply_step(code, step, value, loaded.get(key, ""), kernel.result)
        code = next_code
    return code, values


def apply_step(code: LlvmCode, step: str, value: str, operand: str, result: Result) -> tuple[LlvmCode, str]:
    """Return (code, vector) after a fused step with its operand, if it has one; the code computes in the new dtype."""
    if not operand:
        return code, FUNCTIONS[step](code, value)
    if step not in FACTOR_STEPS:
        return code, code.binary("add", value, operand)
    value, code = code.to_float(value), code.of("float32")
    value = code.round_product(code.binary("mul", value, operand))
    if step == "requantize":
        return code.of("int32"), code.quantise(value, result.dtype, result.zero_point)
    return code, value


def _store(code: LlvmCode, values: Tile, base: str, result: Result, kernel: Microkernel) -> None:
    """Store the tile: whole vectors, transposed groups of rows, or element by element."""
    for vector in range(kernel.num_vectors):
        used = kernel.used_lanes(vector)
        start = vector * kernel.lanes * result.lane_stride
        if result.lane_stride == 1:
            for row, offset in enumerate(result.rows):
                pointer = code.address(base, result.dtype, offset + start)
                code.store_vector(values[row, vector], pointer, result.dtype, used)
        elif result.groups:
            for group in result.groups:
                columns = code.transpose([values[row, vector] for row in group])
                for lane in range(used):
                    offset = result.rows[group[0]] + start + lane * result.lane_stride
                    pointer = code.address(base, result.dtype, offset)
                    code.store_vector(columns[lane], pointer, result.dtype, len(group))
        else:
            for row, offset in enumerate(result.rows):
                narrowed = code.narrow(values[row, vector], result.dtype, kernel.lanes)
                pointer = code.address(base, result.dtype, offset + start)
                code.store_lanes(narrowed, pointer, result.dtype, result.lane_stride, used)


def _finish_scalar(code: LlvmCode, kernel: Microkernel, bases: Bases, final: Tile) -> None:
    """Reduce each accumulator to one element, and add, divide, finish and store it as lane 0 of a vector."""
    result = kernel.result
    sums_base, sums = kernel.sums(bases)
    if kernel.is_partial:
        code.line("  %bit = and i32 %flags, 1")
        code.line("  %goes_on = icmp ne i32 %bit, 0")
    neutral = code.neutral() if kernel.body == "max" else code.constant(0.0)
    for (row, _), value in final.items():
        total = code.splat(code.horizontal(value))
        if kernel.is_partial:  # before the first call the element can hold anything, even NaN
            address = code.address(sums_base, sums.dtype, sums.rows[row])
            old = code.load_vector(address, sums.dtype, 0, 1)
            old = code.emit(f"select i1 %goes_on, {code.vector} {old}, {code.vector} {neutral}")
            total = code.maximum(old, total) if kernel.body == "max" else code.binary("add", old, total)
            code.store_lanes(total, address, sums.dtype, 1, 1)
        done = code.divide(total, kernel.count) if kernel.count != 1 else total
        end, finished = _epilogue(code, replace(kernel, count=1), bases, {(row, 0): done})
        done = finished[row, 0]
        if kernel.is_partial and not kernel.keeps_sums:  # else the sums are in their own buffer
            code.line("  %more_bit" + str(row) + " = and i32 %flags, 2")
            more = code.emit(f"icmp ne i32 %more_bit{row}, 0")
            done = code.emit(f"select i1 {more}, {code.vector} {total}, {code.vector} {done}")
        address = code.address(bases.result, result.dtype, result.rows[row])
        end.store_lanes(end.narrow(done, result.dtype, kernel.lanes), address, result.dtype, 1, 1)

"""Transposition of inputs whose columns are neighbours: a band of rows becomes vectors of channels, as LLVM IR."""

from __future__ import annotations

from anatune.emit.kernels import Function, finish_function
from anatune.emit.llvm import LlvmCode
from anatune.templates.winograd.program.layout import WinogradLayout
from anatune.templates.winograd.program.transforms import FLOAT, begin_function

__all__ = ["band_ir"]


def band_ir(name: str, layout: WinogradLayout, used: int) -> Function:
    """Return ``void name(ptr data, i64 offset, ptr band, i64 offset, i64 y, i64 x, i64 columns)``.

    It fills ``band[rows][columns][lanes]`` with rows from y on and columns from x on of an image, and with zeros
    outside of it. The last columns of a whole vector are filled, too. `used` channels of the vector exist.
    """
    convolution, lanes = layout.convolution, layout.lanes
    height, width, band, rows = convolution.height, convolution.width, layout.band_width, layout.transform.inputs
    code, (source, target) = begin_function(name, lanes, (FLOAT, FLOAT), "y", "x", "columns")
    channel, row = convolution.data["c"], convolution.data["y"]
    code.line("  br label %rows")
    code.line("rows:")
    code.line("  %r = phi i64 [0, %entry], [%r_next, %row_end]")
    image_row = code.emit("add i64 %y, %r")
    is_row = code.emit(f"icmp ult i64 {image_row}, {height}")  # a negative number is large as an unsigned one
    start = code.emit(f"getelementptr float, ptr {source}, i64 {code.emit(f'mul i64 {image_row}, {row}')}")
    out = code.emit(f"getelementptr float, ptr {target}, i64 {code.emit(f'mul i64 %r, {band * lanes}')}")
    code.line("  br label %columns_head")
    code.line("columns_head:")
    code.line("  %j = phi i64 [0, %rows], [%j_next, %column_end]")
    first = code.emit("add i64 %x, %j")
    source_address = code.emit(f"getelementptr float, ptr {start}, i64 {first}")
    target_address = code.emit(f"getelementptr float, ptr {out}, i64 {code.emit(f'mul i64 %j, {lanes}')}")
    code.line(f"  br i1 {is_row}, label %some, label %zeros")

    def store(vectors: list[str]) -> None:
        for number, value in enumerate(vectors):
            code.store_vector(value, code.address(target_address, FLOAT, number * lanes), FLOAT, lanes)
        code.line("  br label %column_end")

    code.line("some:")
    is_low = code.emit(f"icmp sge i64 {first}, 0")
    is_high = code.emit(f"icmp sle i64 {first}, {width - lanes}")
    code.line(f"  br i1 {code.emit(f'and i1 {is_low}, {is_high}')}, label %whole, label %part")
    code.line("whole:")
    store(_transpose_columns(code, source_address, channel, used, None))
    code.line("part:")
    places = ", ".join(f"i64 {lane}" for lane in range(lanes))
    column = code.emit(f"add <{lanes} x i64> {code.splat(first, 'i64')}, <{places}>")
    most = ", ".join(f"i64 {width}" for _ in range(lanes))
    mask = code.emit(f"icmp ult <{lanes} x i64> {column}, <{most}>")
    store(_transpose_columns(code, source_address, channel, used, mask))
    code.line("zeros:")
    store(["zeroinitializer"] * lanes)
    code.line("column_end:")
    code.line(f"  %j_next = add nuw nsw i64 %j, {lanes}")
    code.line("  %j_more = icmp slt i64 %j_next, %columns")
    code.line("  br i1 %j_more, label %columns_head, label %row_end, !llvm.loop !0")
    code.line("row_end:")
    code.line("  %r_next = add nuw nsw i64 %r, 1")
    code.line(f"  %r_more = icmp slt i64 %r_next, {rows}")
    code.line("  br i1 %r_more, label %rows, label %done, !llvm.loop !1")
    code.line("done:")
    return finish_function(code)


def _transpose_columns(code: LlvmCode, base: str, channel: int, used: int, mask: str | None) -> list[str]:
    """Return a vector of channels for each of the columns from `base` on; those under `mask` exist."""
    lanes = code.lanes
    count = min(used, lanes)
    loaded = [code.load_vector(code.address(base, FLOAT, c * channel), FLOAT, 1, mask or lanes) for c in range(count)]
    return code.transpose(loaded + ["zeroinitializer"] * (lanes - count))

"""Instructions that the present machine need not have, as functions in LLVM IR."""

import re

from anatune.errors import RunError
from anatune.measure.cpu.features import allow_tiles

_ROUNDS = re.compile(r"@llvm\.x86\.avx512bf16\.cvtneps2bf16\.(\d+)")


def without_rounding(llvm: str) -> str:
    """Return a module with a function in the place of VCVTNEPS2BF16: rounds to nearest, ties to even."""
    for bits in sorted(set(_ROUNDS.findall(llvm))):
        lanes = int(bits) // 32
        words, name = f"<{lanes} x i32>", f"@own_cvtneps2bf16_{bits}"

        def same(number: int, lanes: int = lanes) -> str:
            return "<" + ", ".join(f"i32 {number}" for _ in range(lanes)) + ">"

        lines = [
            line for line in llvm.splitlines() if not (line.startswith("declare") and f"cvtneps2bf16.{bits}" in line)
        ]
        lines += [
            f"define internal <{lanes} x bfloat> {name}(<{lanes} x float> %x) {{",
            f"  %bits = bitcast <{lanes} x float> %x to {words}",
            f"  %high = lshr {words} %bits, {same(16)}",
            f"  %odd = and {words} %high, {same(1)}",
            f"  %bias = add {words} %odd, {same(0x7FFF)}",
            f"  %sum = add {words} %bits, %bias",
            f"  %shifted = lshr {words} %sum, {same(16)}",
            f"  %small = trunc {words} %shifted to <{lanes} x i16>",
            f"  %result = bitcast <{lanes} x i16> %small to <{lanes} x bfloat>",
            f"  ret <{lanes} x bfloat> %result",
            "}",
        ]
        llvm = "\n".join([*lines, ""]).replace(f"@llvm.x86.avx512bf16.cvtneps2bf16.{bits}", name)
    return llvm


def refused_tiles() -> str:
    """Return why kernels on tiles do not run here, "": they do."""
    try:
        allow_tiles(["amx-bf16", "amx-int8"])
    except RunError as error:
        return str(error)
    return ""


def _loop(name, count, body):
    """Return LLVM IR that runs `body` for each i32 %name below `count`, between labels of that name."""
    return f"""
  br label %{name}_in
{name}_in:
  br label %{name}_head
{name}_head:
  %{name} = phi i32 [0, %{name}_in], [%{name}_next, %{name}_latch]
  %{name}_is = icmp ult i32 %{name}, {count}
  br i1 %{name}_is, label %{name}_body, label %{name}_out
{name}_body:{body}
  br label %{name}_latch
{name}_latch:
  %{name}_next = add i32 %{name}, 1
  br label %{name}_head
{name}_out:"""


def _copying(to_tile):
    """Return the body of a loop that copies a row between %tile and memory."""
    ends = ("%own", "%other") if to_tile else ("%other", "%own")
    return _loop("r", "%rows", f"""
  %at = mul i32 %r, 64
  %own = getelementptr i8, ptr %tile, i32 %at
  %r64 = zext i32 %r to i64
  %far = mul i64 %r64, %stride
  %other = getelementptr i8, ptr %pointer, i64 %far
  call void @llvm.memcpy.p0.p0.i32(ptr {ends[0]}, ptr {ends[1]}, i32 %bytes, i1 false)""")  # fmt: skip


def _product(kind):
    """Return the body that adds the products of the groups %x and %y to %c as %sum."""
    if kind == "tdpfp16ps":
        lines, before = ["%start = bitcast i32 %c to float"], "%start"
        for part in range(2):
            for operand in "xy":
                lines += [f"%{operand}s{part} = lshr i32 %{operand}, {16 * part}"]
                lines += [f"%{operand}t{part} = trunc i32 %{operand}s{part} to i16"]
                lines += [f"%{operand}h{part} = bitcast i16 %{operand}t{part} to half"]
                lines += [f"%{operand}f{part} = fpext half %{operand}h{part} to float"]
            lines += [f"%p{part} = fmul float %xf{part}, %yf{part}", f"%s{part} = fadd float {before}, %p{part}"]
            before = f"%s{part}"
        return [*lines, f"%sum = bitcast float {before} to i32"]
    if kind == "tdpbf16ps":
        lines, before = ["%start = bitcast i32 %c to float"], "%start"
        for part, place in ((0, "shl i32 {0}, 16"), (1, "and i32 {0}, -65536")):
            for operand in "xy":
                lines += [f"%{operand}b{part} = " + place.format(f"%{operand}")]
                lines += [f"%{operand}f{part} = bitcast i32 %{operand}b{part} to float"]
            lines += [f"%p{part} = fmul float %xf{part}, %yf{part}", f"%s{part} = fadd float {before}, %p{part}"]
            before = f"%s{part}"
        return [*lines, f"%sum = bitcast float {before} to i32"]
    lines, before = [], "%c"
    for part in range(4):
        for operand, extend in (("x", "zext" if kind == "tdpbusd" else "sext"), ("y", "sext")):
            lines += [f"%{operand}s{part} = lshr i32 %{operand}, {8 * part}"]
            lines += [f"%{operand}t{part} = trunc i32 %{operand}s{part} to i8"]
            lines += [f"%{operand}i{part} = {extend} i8 %{operand}t{part} to i32"]
        lines += [f"%p{part} = mul i32 %xi{part}, %yi{part}", f"%s{part} = add i32 {before}, %p{part}"]
        before = f"%s{part}"
    return [*lines, f"%sum = add i32 {before}, 0"]


def _stand_ins():
    """Return functions in LLVM IR that do what AMX's instructions do, on tiles as vectors of 256 words."""
    tile = "<256 x i32>"
    numbers = "%rows = zext i16 %m to i32\n  %bytes = zext i16 %n to i32\n  %tile = alloca [1024 x i8], align 64"
    zero = f"store {tile} zeroinitializer, ptr %tile"
    texts = [
        f"define internal {tile} @amx_tilezero(i16 %m, i16 %n) {{\n  ret {tile} zeroinitializer\n}}",
        f"define internal {tile} @amx_tileload(i16 %m, i16 %n, ptr %pointer, i64 %stride) {{\n  {numbers}\n  {zero}"
        f"{_copying(True)}\n  %v = load {tile}, ptr %tile\n  ret {tile} %v\n}}",
        f"define internal void @amx_tilestore(i16 %m, i16 %n, ptr %pointer, i64 %stride, {tile} %v) {{\n  {numbers}\n"
        f"  store {tile} %v, ptr %tile{_copying(False)}\n  ret void\n}}",
        "declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)",
    ]
    for kind in ("tdpbf16ps", "tdpfp16ps", "tdpbusd", "tdpbssd"):
        places = {"x": ("%left", "%r", "%g"), "y": ("%right", "%g", "%l"), "c": ("%tile", "%r", "%l")}
        inner = "".join(
            f"\n  %{v}r = mul i32 {row}, 16\n  %{v}a = add i32 %{v}r, {column}\n"
            f"  %{v}p = getelementptr i32, ptr {base}, i32 %{v}a\n  %{v} = load i32, ptr %{v}p"
            for v, (base, row, column) in places.items()
        )
        inner += "".join(f"\n  {line}" for line in _product(kind)) + "\n  store i32 %sum, ptr %cp"
        body = _loop("r", "%rows", _loop("l", "%lanes", _loop("g", "%groups", inner)))
        texts.append(
            f"define internal {tile} @amx_{kind}(i16 %m, i16 %n, i16 %k, {tile} %c0, {tile} %a, {tile} %b) {{\n"
            f"  {numbers}\n  %lanes = lshr i32 %bytes, 2\n  %depth = zext i16 %k to i32\n"
            f"  %groups = lshr i32 %depth, 2\n  %left = alloca {tile}\n  %right = alloca {tile}\n"
            f"  store {tile} %a, ptr %left\n  store {tile} %b, ptr %right\n  store {tile} %c0, ptr %tile"
            f"{body}\n  %v = load {tile}, ptr %tile\n  ret {tile} %v\n}}"
        )
    return "\n".join(texts)


def without_tiles(text):
    """Return a module with functions in the place of AMX's intrinsics."""
    lines = [line for line in text.splitlines() if not (line.startswith("declare") and "x86_amx" in line)]
    text = "\n".join(lines).replace("x86_amx", "<256 x i32>")
    text = re.sub(r"@llvm\.x86\.(tilezero|tileload|tilestore|tdp\w+)(d64)?\.internal", r"@amx_\1", text)
    return without_rounding(f"{text}\n{_stand_ins()}\n")

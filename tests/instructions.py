"""Instructions that the present machine need not have, as functions in LLVM IR."""

import re

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

"""TVMScript expressions for thin kernels: predicated loads, elements of words, shuffles."""

from __future__ import annotations

from anatune.core.workload.nest import DTYPE_BYTES

__all__ = ["dot_of_bytes", "element_value", "load_call", "shuffle_xor"]

_FUNCTION = "__device__ __forceinline__ "
_KINDS = {1: "u8", 2: "u16", 4: "u32", 8: "v2.u32", 16: "v4.u32"}
"""PTX types of loads by their bytes."""
_LEAST = {"float32": "0xff800000u", "float16": "0xfc00fc00u", "bfloat16": "0xff80ff80u", "int8": "0x80808080u"}
"""Words that hold the smallest value of each dtype."""
_HALF = """(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
"""


def _call(name: str, arguments: str, source: str, return_type: str) -> str:
    return f'T.cuda.func_call("{name}", {arguments}, source_code={_FUNCTION + source!r}, return_type="{return_type}")'


def load_call(array: str, base: str, num_bytes: int, source: str, condition: str, dtype: str, body: str) -> str:
    """Return the statement that loads `num_bytes` at `source` into words of `array` from index `base` on.

    Parameters
    ----------
    condition : str
        A condition. If it is false, the words become the neutral element of `body`, "add" or "max".
    """
    count, fill = -(-num_bytes // 4), _LEAST[dtype] if body == "max" else "0u"
    guarded = condition != "True"
    name = f"anatune_load{num_bytes}" + ("_inside" if guarded else "") + (f"_least_{dtype}" if body == "max" else "")
    words = "abcd"[:count]
    targets = ", ".join(f"unsigned int& {register}" for register in words)
    registers = ", ".join(f"{array}[{base} + {word}]" for word in range(count))
    operands = ", ".join(f"%{number}" for number in range(count))
    load = f"ld.global.nc.{_KINDS[num_bytes]} {f'{{{operands}}}' if count > 1 else operands}, [%{count}];"
    outputs = ", ".join(f'"{"+" if guarded else "="}r"({register})' for register in words)
    if not guarded:
        text = f'void {name}({targets}, const void* p) {{\n  asm volatile("{load}" : {outputs} : "l"(p));\n}}\n'
        return f"T.evaluate({_call(name, f'{registers}, T.address_of({source})', text, 'void')})"
    filled = " ".join(f"{register} = {fill};" for register in words)
    text = f"void {name}({targets}, const void* p, bool inside) {{\n  {filled}\n"
    text += f'  asm volatile("{{ .reg .pred in; setp.ne.b32 in, %{count + 1}, 0; @in {load} }}"\n'
    text += f'    : {outputs} : "l"(p), "r"((int)inside));\n}}\n'
    return f"T.evaluate({_call(name, f'{registers}, T.address_of({source}), {condition}', text, 'void')})"


def element_value(array: str, base: str, lane: int, dtype: str) -> str:
    """Return element `lane` of the words of `array` from index `base` on, as float32 (int32 for bytes)."""
    offset = lane * DTYPE_BYTES[dtype]
    word, bits = f"{array}[{base} + {offset // 4}]", 8 * (offset % 4)
    if dtype == "float32":
        return f'T.reinterpret("float32", {word})'
    if dtype == "bfloat16":
        upper = f"T.bitwise_and({word}, T.uint32(4294901760))" if bits else f"T.shift_left({word}, T.uint32(16))"
        return f'T.reinterpret("float32", {upper})'
    if dtype == "float16":
        half = f'T.Cast("uint16", T.shift_right({word}, T.uint32({bits})))'
        return _call("anatune_half", half, f"float anatune_half{_HALF}", "float32")
    high = f'T.reinterpret("int32", T.shift_left({word}, T.uint32({24 - bits})))'
    return f"T.shift_right({high}, 24)"


def dot_of_bytes(left: str, right: str, total: str) -> str:
    """Return the sum of four products of bytes and a total."""
    name = "anatune_dot4"
    source = f"int {name}(unsigned int a, unsigned int b, int c) {{\n  return __dp4a((int)a, (int)b, c);\n}}\n"
    return _call(name, f"{left}, {right}, {total}", source, "int32")


def shuffle_xor(value: str, distance: int, threads: int, dtype: str) -> str:
    """Return the value of the lane whose number differs in the bit `distance`; the warp has `threads` threads."""
    ctype = {"float32": "float", "int32": "int"}[dtype]
    name = f"anatune_other_{ctype}{threads}"
    mask = f"0x{(1 << threads) - 1:x}u"
    source = f"{ctype} {name}({ctype} value, int distance) {{\n  return __shfl_xor_sync({mask}, value, distance);\n}}\n"
    return _call(name, f"{value}, {distance}", source, dtype)

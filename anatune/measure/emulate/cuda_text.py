"""Rewriting CUDA C for a C++ compiler, line by line, where no macro of cuda_shim.h suffices.

- ``__shared__ float x[8];`` becomes a pointer to memory between guard pages that the shim allocates.
- ``float x[8];`` in the kernel is filled with a marker, so that registers used before they are set are detected.
- Inline PTX becomes calls: ``asm("op.a %0, [%1], 4;" : "=r"(x) : "r"(y));`` becomes ``ptx_op_a((x), (y), 4);``.
- ``#include`` lines go; the shim is told which of NVIDIA's headers were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from anatune.errors import RunError
from anatune.templates.gpu.kernel import CudaKernel

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([\w/.]+)>.*$", re.MULTILINE)
_HEADERS = {
    "cstdint": "SHIM_CSTDINT",
    "stdint.h": "SHIM_CSTDINT",
    "cuda_fp16.h": "SHIM_CUDA_FP16",
    "cuda_bf16.h": "SHIM_CUDA_BF16",
}
_ALIGNED = r"(?:(?:alignas|__align__)\s*\(\s*\w+\s*\)\s*)?"
_SHARED = re.compile(
    rf"(extern\s+)?(?:static\s+)?__shared__\s+{_ALIGNED}((?:(?:un)?signed\s+)?[\w:]+)\s+{_ALIGNED}(\w+)\s*((?:\[[^\]]*\])+)\s*;"
)
_LOCAL = re.compile(
    rf"^[ \t]*{_ALIGNED}(?!return\b|extern\b)(?:(?:un)?signed\s+)?\w+\s+(\w+)\[[^\]]*\]\s*;", re.MULTILINE
)
_ASM = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile|__volatile__)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'\s*(?:\[\w+\]\s*)?"([^"]*)"\s*\(')
_PTX_REGISTERS = {"pred": "bool", "b32": "unsigned", "u32": "unsigned", "s32": "int", "f32": "float"}


def cpp_source(kernel: CudaKernel, shim: str, *, traced: bool) -> str:
    """Return the C++ source of a kernel: the shim's headers, the CUDA C, and the entry that the shim calls.

    Parameters
    ----------
    kernel
        The kernel to run.
    shim : str
        Lines that include the shim.
    traced : bool
        Whether it will be compiled to report its memory accesses.

    Raises
    ------
    RunError
        The source has no such kernel, or holds inline assembly that is not understood.
    """
    text = kernel.source
    for launch in kernel.launches:
        if not re.search(rf"\b{re.escape(launch.name)}\s*\(", text):
            raise RunError(f"the CUDA source has no function {launch.name}")
    wanted = {_HEADERS[name] for name in _INCLUDE.findall(text) if name in _HEADERS}
    text = _INCLUDE.sub("", text)
    text = _local_arrays(_shared_arrays(_assembly(text)), [launch.name for launch in kernel.launches])
    scalars = [*map(str, kernel.scalars)]
    calls = [
        f"if (launch == {number}) {launch.name}({', '.join(words)});"
        for number, launch in enumerate(kernel.launches)
        for words in [[f"shim_any{{arguments[{at}]}}" for at in range(len(launch.parameters))] + scalars]
    ]
    architecture = int(re.sub(r"\D", "", kernel.arch) or 0) * 10
    return "\n".join(
        [
            f"#define __CUDA_ARCH__ {architecture}",
            *(f"#define {word}" for word in sorted(wanted)),
            shim,
            '#line 1 "kernel.cu"',
            text,
            "struct shim_any { void* p; template <class T> operator T*() const { return (T*)p; } };",
            f'extern "C" const int shim_traced; extern "C" const int shim_traced = {int(traced)};',
            f'extern "C" void shim_kernel(int launch, void** arguments) {{ {" ".join(calls)} }}',
            "",
        ]
    )


def _shared_arrays(text: str) -> str:
    slot = 0

    def declare(match: re.Match[str]) -> str:
        nonlocal slot
        dynamic, kind, name, extents = match.groups()
        sizes = re.findall(r"\[([^\]]*)\]", extents)
        inner = "".join(f"[{size}]" for size in sizes[1:])
        pointer = f"{kind} (*{name}){inner}" if inner else f"{kind}* {name}"
        cast = f"{kind} (*){inner}" if inner else f"{kind}*"
        if dynamic:
            return f'{pointer} = ({cast})shim_dynamic_shared("{name}");'
        slot += 1
        count = " * ".join(f"({size})" for size in sizes)
        return f'{pointer} = ({cast})shim_shared({slot}, "{name}", sizeof({kind}) * {count});'

    text = _SHARED.sub(declare, text)
    if "__shared__" in text:
        line = next(line for line in text.splitlines() if "__shared__" in line)
        raise RunError(f"the emulator does not support this declaration of shared memory: {line.strip():.80}")
    return text


def _local_arrays(text: str, names: Iterable[str]) -> str:
    """Fill the local arrays of kernels with the marker."""
    body = min([match.end() for match in re.finditer(rf"\b{re.escape(name)}\s*\(", text)][-1] for name in names)
    filled = _LOCAL.sub(r"\g<0> SHIM_FILL(\g<1>)", text[body:])
    return text[:body] + filled


def _assembly(text: str) -> str:
    pieces, position = [], 0
    for match in _ASM.finditer(text):
        if match.start() < position:
            continue
        stop = _closing(text, match.end())
        statement = text[match.end() : stop]
        pieces += [text[position : match.start()], "{ ", _calls(statement), " }", "\n" * statement.count("\n")]
        position = stop + 1
    return "".join([*pieces, text[position:]])


def _closing(text: str, start: int) -> int:
    """Return the position after the parenthesis that closes the one opened before `start`."""
    depth, position = 1, start
    while depth:
        string = _STRING.match(text, position)
        if string:
            position = string.end()
            continue
        if position >= len(text):
            raise RunError("the CUDA source ends inside an asm statement")
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position - 1


def _calls(statement: str) -> str:
    """Translate the inside of asm(...) to C++ calls."""
    template, position = "", 0
    while string := re.compile(r"\s*" + _STRING.pattern).match(statement, position):
        template += string.group(1)
        position = string.end()
    operands: list[str] = []
    while operand := _next_operand(statement, position):
        stop = _closing(statement, operand.end())
        operands.append(statement[operand.end() : stop])
        position = stop + 1
    code = re.sub(r"//[^\n]*", "", template.replace(r"\n", "\n").replace(r"\t", " "))
    return " ".join(_call(line, operands) for line in _instructions(code))


def _next_operand(statement: str, position: int) -> re.Match[str] | None:
    separators = re.compile(r"[\s:,]*").match(statement, position)
    return _OPERAND.match(statement, separators.end() if separators else position)


def _instructions(code: str) -> Iterator[str]:
    """Yield the statements of PTX code; braces of a scope are statements, those of operand lists are not."""
    for part in code.split(";"):
        part = part.strip()
        while part[:1] in ("{", "}") and part:
            yield part[0]
            part = part[1:].strip()
        if part:
            yield part


def _call(instruction: str, operands: list[str]) -> str:
    if instruction in ("{", "}"):
        return instruction
    condition = ""
    if guard := re.match(r"@(!?)(\w+)\s+", instruction):
        condition = f"if ({guard.group(1)}{guard.group(2)}) "
        instruction = instruction[guard.end() :]
    if register := re.match(r"\.reg\s+\.(\w+)\s+", instruction):
        if register.group(1) not in _PTX_REGISTERS:
            raise RunError(f"the emulator does not support this PTX instruction: {instruction:.80}")
        return f"{_PTX_REGISTERS[register.group(1)]} {instruction[register.end() :]};"
    name, _, rest = re.sub(r"\s+", " ", instruction).partition(" ")
    words = [re.sub(r"[\[\]{}]", "", word).strip() for word in rest.split(",")]
    arguments = ", ".join(re.sub(r"%(\d+)", lambda m: f"({operands[int(m.group(1))]})", word) for word in words)
    return f"{condition}ptx_{re.sub('[.:]', '_', name)}({arguments});"

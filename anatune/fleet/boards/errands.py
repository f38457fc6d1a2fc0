"""Errands: functions that a board runs for us besides kernels, as a small library of LLVM IR around its C library.

A board with TVM's runtime can only load libraries and call their functions. This library reads files, allocates and
fills memory, computes digests of it, and ends the process after a time limit or a crash. It is generated for the oldest
processor of the board's architecture, and needs neither a compiler nor Python on the board.

Every function takes and returns 64-bit integers. Addresses are those of the board.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from anatune.codegen.compat import compile_module, import_tvm, make_bare_target, parse_program
from anatune.codegen.linking import link_library
from anatune.emit.kernels import CARRIER

PAGE_BYTES = 4096
"""The alignment of memory from `allocate`."""


class _Errand(NamedTuple):
    """An errand: its number of arguments, its body (%a0, %a1, ...; ends with ``ret i64``), and its declarations."""

    arguments: int
    body: str
    declares: str = ""


_ERRANDS: dict[str, _Errand] = {
    "allocate": _Errand(
        1,
        f"""  %place = alloca ptr
  store ptr null, ptr %place
  %failed = call i32 @posix_memalign(ptr %place, i64 {PAGE_BYTES}, i64 %a0)
  %found = load ptr, ptr %place
  %ok = icmp eq i32 %failed, 0
  %number = ptrtoint ptr %found to i64
  %result = select i1 %ok, i64 %number, i64 0
  ret i64 %result
""",
        "declare i32 @posix_memalign(ptr, i64, i64)\n",
    ),
    "release": _Errand(
        1, "  %p = inttoptr i64 %a0 to ptr\n  call void @free(ptr %p)\n  ret i64 0\n", "declare void @free(ptr)\n"
    ),
    # arguments: path, address for the text, first byte, most bytes; result: number of bytes, -1 for an error
    "read": _Errand(
        4,
        """  %path = inttoptr i64 %a0 to ptr
  %to = inttoptr i64 %a1 to ptr
  %file = call i32 (ptr, i32, ...) @open(ptr %path, i32 0)
  %missing = icmp slt i32 %file, 0
  br i1 %missing, label %none, label %some
some:
  %got = call i64 @pread(i32 %file, ptr %to, i64 %a3, i64 %a2)
  %closed = call i32 @close(i32 %file)
  ret i64 %got
none:
  ret i64 -1
""",
        "declare i32 @open(ptr, i32, ...)\ndeclare i64 @pread(i32, ptr, i64, i64)\ndeclare i32 @close(i32)\n",
    ),
    # arguments: address, byte, number of bytes
    "fill": _Errand(
        3,
        """  %p = inttoptr i64 %a0 to ptr
  %byte = trunc i64 %a1 to i8
  call void @llvm.memset.p0.i64(ptr %p, i8 %byte, i64 %a2, i1 false)
  ret i64 0
""",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n",
    ),
    # arguments: address, number of 64-bit words; result: FNV-1a over words, which a change of one word always changes
    "digest": _Errand(
        2,
        """  %p = inttoptr i64 %a0 to ptr
  br label %test
test:
  %i = phi i64 [0, %entry], [%next, %loop]
  %h = phi i64 [-3750763034362895579, %entry], [%mixed, %loop]
  %more = icmp ult i64 %i, %a1
  br i1 %more, label %loop, label %done
loop:
  %at = getelementptr i64, ptr %p, i64 %i
  %word = load i64, ptr %at, align 8
  %both = xor i64 %h, %word
  %mixed = mul i64 %both, 1099511628211
  %next = add nuw i64 %i, 1
  br label %test
done:
  ret i64 %h
""",
    ),
    # arguments: address of a name, address of its value
    "variable": _Errand(
        2,
        """  %name = inttoptr i64 %a0 to ptr
  %value = inttoptr i64 %a1 to ptr
  %failed = call i32 @setenv(ptr %name, ptr %value, i32 1)
  %result = sext i32 %failed to i64
  ret i64 %result
""",
        "declare i32 @setenv(ptr, ptr, i32)\n",
    ),
    # argument: the entry of the auxiliary vector (16 AT_HWCAP, 26 AT_HWCAP2)
    "capability": _Errand(
        1, "  %result = call i64 @getauxval(i64 %a0)\n  ret i64 %result\n", "declare i64 @getauxval(i64)\n"
    ),
}
"""The errands that are the same on every architecture, by name."""

_LEAVE = {
    "x86_64": "lea 1f(%rip), $0; jmp 2f; 1: xor %edi, %edi; mov $$231, %eax; syscall; 2:",
    "aarch64": "adr $0, 1f; b 2f; 1: mov x0, #0; mov x8, #94; svc #0; 2:",
}
"""Assembly for the address of code that ends the process with status 0 (exit_group). The code is inside the function
that needs the address, because TVM inlines or drops functions of imported IR."""

_SIGNALS = (4, 6, 7, 8, 11, 13, 14)
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGPIPE, SIGALRM of Linux on x86 and Arm."""


def _make_limit(machine: str) -> _Errand:
    """Return the errand that ends the process after a number of seconds (0: no limit), or instead of a crash.

    The process ends with status 0, because a server in Python stops serving after any other status.
    """
    handlers = [f"  %s{number} = call ptr @signal(i32 {number}, ptr %leave)" for number in _SIGNALS]
    body = [f'  %leave = call ptr asm "{_LEAVE[machine]}", "=r"()', *handlers, "  %seconds = trunc i64 %a0 to i32"]
    body += ["  %before = call i32 @alarm(i32 %seconds)", "  ret i64 0", ""]
    return _Errand(1, "\n".join(body), "declare ptr @signal(i32, ptr)\ndeclare i32 @alarm(i32)\n")


# HWCAP_CPUID, 1 << 11: the system lets programs read the register that identifies the processor.
_PROCESSOR = {
    "aarch64": _Errand(
        0,
        """  %has = call i64 @getauxval(i64 16)
  %bit = and i64 %has, 2048
  %may = icmp ne i64 %bit, 0
  br i1 %may, label %ask, label %none
ask:
  %found = call i64 asm "mrs $0, MIDR_EL1", "=r"()
  ret i64 %found
none:
  ret i64 0
""",
        "declare i64 @getauxval(i64)\n",
    ),
    "x86_64": _Errand(0, "  ret i64 0\n"),
}
"""The errand that returns MIDR_EL1 of an Arm processor, and 0 on others."""


def build_errands(machine: str, path: Path) -> None:
    """Build the library of errands for a processor ("x86_64", "aarch64") and write it to `path`.

    Raises
    ------
    BuildError
        There is no linker for that processor.
    MissingDependencyError
        TVM is not installed.
    """
    tvm = import_tvm()
    functions = {}
    for name, errand in {**_ERRANDS, "limit": _make_limit(machine), "processor": _PROCESSOR[machine]}.items():
        typed = ", ".join(f"i64 %a{place}" for place in range(errand.arguments))
        llvm = f"{errand.declares}define internal i64 @errand_{name}({typed}) noinline {{\nentry:\n{errand.body}}}\n"
        names = [f"a{place}" for place in range(errand.arguments)]
        called = ['"int64"', f'"errand_{name}"', *names]
        lines = [
            "@T.prim_func(s_tir=True)",
            f"def {name}({', '.join(f'{argument}: T.int64' for argument in names)}):",
            f'    T.func_attr({{"global_symbol": "{name}"}})',
            f"    {CARRIER}",
            f"        return T.call_extern({', '.join(called)})",
        ]
        functions[name] = parse_program("\n".join(lines) + "\n", llvm)
    link_library(compile_module(tvm.IRModule(functions), make_bare_target(machine)), path)

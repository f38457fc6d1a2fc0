"""A schedule for other programs: a shared library with a plain C interface, or a TVM module.

Nothing of TVM is needed to link or run the library.

TVM's object file holds the kernel behind TVM's calling convention, and asks for a few functions of TVM's runtime. A
small C file, compiled with it, has those functions (memory, and OpenMP for parallel loops) and plain C entries. All
other symbols stay inside, so that one program may link many such libraries.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.artifact import Buffer
from anatune.codegen.compat import PARTS_OF_ISA, compile_module, import_tvm
from anatune.codegen.cpu import LoweredProgram, lower
from anatune.codegen.gpu import LoweredGpu, lower_gpu
from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import BuildError

__all__ = ["ALIGNMENT_BYTES", "CFunction", "CLibrary", "prototype", "tvm_module_json", "write_c_library"]

ALIGNMENT_BYTES = 64
_C_TYPES = {
    "float32": ("float", 2, 32),
    "float16": ("uint16_t", 2, 16),
    "bfloat16": ("uint16_t", 4, 16),
    "int8": ("int8_t", 0, 8),
    "int32": ("int32_t", 0, 32),
}
"""dtype -> C type (of narrow floating-point numbers: their bits), DLPack's code and bits."""

_RUNTIME = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
%(include)s

typedef struct { int32_t type_index; uint32_t zero; union { void *pointer; int64_t number; } value; } Any;
typedef struct {
  void *data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes;
  int64_t *shape, *strides; uint64_t byte_offset;
} Tensor;
typedef struct { void *sync; int32_t num_task; } ParallelGroup;
typedef int (*Task)(int id, ParallelGroup *group, void *data);

/* What TVM's runtime would have. */
static void *allocate(int type, int id, uint64_t bytes, int code, int bits) {
  void *memory = NULL;
  (void)type; (void)id; (void)code; (void)bits;
  return posix_memalign(&memory, %(alignment)d, bytes ? bytes : 1) ? NULL : memory;
}
static int release(int type, int id, void *memory) { (void)type; (void)id; free(memory); return 0; }
static int launch(Task task, void *data, int num_task) {
%(launch)s
}
extern void *__TVMBackendAllocWorkspace __attribute__((weak));
extern void *__TVMBackendFreeWorkspace __attribute__((weak));
extern void *__TVMBackendParallelLaunch __attribute__((weak));
__attribute__((constructor)) static void provide(void) {
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = (void *)allocate;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = (void *)release;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = (void *)launch;
}
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t number) {
  (void)kind; (void)parts; (void)number;
}

static int call(int (*function)(void *, const Any *, int32_t, Any *), const Tensor *tensors, int number) {
  Any arguments[%(most)d], result;
  memset(&result, 0, sizeof result);
  for (int i = 0; i < number; ++i) {
    if (!tensors[i].data || (uintptr_t)tensors[i].data %% %(alignment)d) return -1;
    arguments[i].type_index = 7; /* a pointer to a DLTensor */
    arguments[i].zero = 0;
    arguments[i].value.pointer = (void *)&tensors[i];
  }
  return function(NULL, arguments, number, &result) ? -3 : 0;
}
"""

_SERIAL = """  ParallelGroup group = {NULL, 1};
  (void)num_task;
  return task(0, &group, data);"""

_PARALLEL = """  int failed = 0;
  if (num_task <= 0) num_task = %(threads)d;
  #pragma omp parallel num_threads(num_task) reduction(|:failed)
  {
    ParallelGroup group = {NULL, omp_get_num_threads()};
    failed |= task(omp_get_thread_num(), &group, data) != 0;
  }
  return failed ? -1 : 0;"""


class CFunction(NamedTuple):
    """A function of the library: its name, what it does, its arguments in order (the last one is written)."""

    name: str
    purpose: str
    arguments: tuple[Buffer, ...]


class CLibrary(NamedTuple):
    """What was written: file names, the functions, the threads of parallel loops (1: none), whether it needs OpenMP."""

    library: str
    header: str
    functions: tuple[CFunction, ...]
    threads: int
    openmp: bool


def write_c_library(schedule: Schedule, name: str, folder: Path, *, threads: int) -> CLibrary:
    """Write ``lib<name>.so`` and ``<name>.h`` into `folder`.

    Parameters
    ----------
    schedule : Schedule
        Of the CPU template, for this machine's instruction set.
    name : str
        A C identifier: the function with all tensors in the workload's own layouts. Where operands are packed ahead,
        ``<name>_pack_<tensor>`` packs one and ``<name>_packed`` takes the packed form.
    folder : Path
        Must exist.
    threads : int
        Threads of a parallel loop.

    Raises
    ------
    BuildError
        It cannot be lowered, compiled or linked.
    """
    compiler = _compiler(schedule)
    lowered = lower(schedule, threads=threads)
    openmp = threads > 1 and bool(schedule.options.get("parallel", False))
    functions = _functions(lowered, name)
    header, source = _header(schedule, name, functions, openmp), _source(lowered, name, functions, threads, openmp)
    executable = compile_module(lowered.module, lowered.target)
    library = f"lib{name}.so"
    with tempfile.TemporaryDirectory(prefix="anatune-") as scratch:
        place = Path(scratch)
        (place / f"{name}.h").write_text(header)
        (place / "entries.c").write_text(source)
        (place / "exports.map").write_text(f"{{ global: {name}; {name}_*; local: *; }};\n")
        executable.mod.write_to_file(str(place / "kernel.o"), "o")
        hide = (
            ["-Wl,-exported_symbol,_" + name, f"-Wl,-exported_symbol,_{name}_*"]
            if sys.platform == "darwin"
            else [f"-Wl,--version-script={place / 'exports.map'}"]
        )
        _run(
            [
                compiler, "-O2", "-fPIC", "-shared", *(["-fopenmp"] if openmp else []), *hide, "-I", scratch,
                str(place / "entries.c"), str(place / "kernel.o"), "-o", str(place / library), "-lm",
            ]
        )  # fmt: skip
        for written in (place / library, place / f"{name}.h"):
            # Replaced, not overwritten: a program may have the old library loaded.
            shutil.copyfile(written, folder / f".{written.name}.new")
            os.replace(folder / f".{written.name}.new", folder / written.name)
    return CLibrary(library, f"{name}.h", functions, threads if openmp else 1, openmp)


def tvm_module_json(schedule: Schedule, *, threads: int) -> tuple[str, str]:
    """Return an IRModule as JSON (``tvm.ir.load_json`` reads it), and the target to compile it for, as JSON.

    Its function ``main`` takes all tensors in the workload's own layouts.

    Raises
    ------
    BuildError
        The schedule cannot be lowered.
    """
    lowered: LoweredProgram | LoweredGpu
    if isinstance(schedule.hardware, GpuSpec):
        lowered = lower_gpu(schedule)
    else:
        lowered = lower(schedule, threads=threads, prepacked=False)
    return str(import_tvm().ir.save_json(lowered.module)), str(lowered.target)


def _compiler(schedule: Schedule) -> str:
    """Return a C compiler for the schedule's machine.

    Raises
    ------
    BuildError
        There is none.
    """
    hardware = schedule.hardware
    if isinstance(hardware, CpuSpec):
        family = PARTS_OF_ISA[hardware.compute.isa][0].split("-")[0]
        here = "aarch64" if platform.machine() == "arm64" else platform.machine()
        if family != here:
            raise BuildError(
                f"{hardware.name} is a {family} machine, this one is {here}: a library can only be linked on a machine "
                "of its kind; --format tvm exports what TVM can compile there"
            )
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return found
    raise BuildError("no C compiler was found (cc, gcc, clang), which the library's entries need; install one")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        said = (lines or done.stderr.splitlines() or [f"status {done.returncode}"])[0]
        raise BuildError(f"the C compiler cannot make the library: {said.strip()}")


def _functions(lowered: LoweredProgram, name: str) -> tuple[CFunction, ...]:
    workload, sizes = lowered.schedule.workload, lowered.program.packed_sizes
    tensors = (*workload.reads, *workload.epilogue_reads, workload.write)
    own = tuple(Buffer(access.tensor, access.dtype, access.shape) for access in tensors)
    functions = [CFunction(name, "all tensors in the workload's own layouts", own)]
    if sizes:
        packed = {t.tensor: Buffer(f"{t.tensor}_packed", t.dtype, (sizes[t.tensor],)) for t in own if t.tensor in sizes}
        functions += [
            CFunction(f"{name}_pack_{t.tensor}", f"packs {t.tensor}, once", (t, packed[t.tensor]))
            for t in own
            if t.tensor in sizes
        ]
        arguments = tuple(packed.get(buffer.tensor, buffer) for buffer in own)
        functions.append(CFunction(f"{name}_packed", "the same with packed constants", arguments))
    return tuple(functions)


def prototype(function: CFunction) -> str:
    """Return the C declaration of a function, without the semicolon."""
    words = [f"const {_C_TYPES[b.dtype][0]} *{b.tensor}" for b in function.arguments[:-1]]
    last = function.arguments[-1]
    return f"int {function.name}({', '.join([*words, f'{_C_TYPES[last.dtype][0]} *{last.tensor}'])})"


def _header(schedule: Schedule, name: str, functions: Sequence[CFunction], openmp: bool) -> str:
    guard = f"{name.upper()}_H"
    lines = [
        f"/* {schedule.workload.describe()}",
        f"   for {schedule.hardware.name} ({schedule.hardware.arch}); made by anatune.",
        "",
        f"   Arrays are row-major and aligned to {ALIGNMENT_BYTES} bytes. Functions return 0; -1: an argument is NULL",
        "   or not aligned; -2: no memory; -3: the kernel failed. They may be called from several threads at once.",
        "   The last argument is written and must not overlap any other.",
        f"   Link with -l{name}{' (it needs OpenMP: its run-time library comes with the compiler)' * openmp}. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "#include <stdint.h>",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
    ]
    for function in functions:
        lines.append(f"/* {function.purpose[0].upper()}{function.purpose[1:]}:")
        for buffer in function.arguments:
            lines.append(f"   {buffer.tensor}: {buffer.dtype}[{']['.join(map(str, buffer.shape)) or '1'}]")
        lines[-1] += " */"
        lines += [f"{prototype(function)};", ""]
    lines += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _tensor(buffer: Buffer, number: int, pointer: str) -> list[str]:
    shape = buffer.shape or (1,)
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    _, code, bits = _C_TYPES[buffer.dtype]
    rank = len(buffer.shape)
    return [
        f"  int64_t shape{number}[] = {{{', '.join(map(str, shape))}}};",
        f"  int64_t strides{number}[] = {{{', '.join(map(str, strides))}}};",
        f"  Tensor tensor{number} = {{(void *){pointer}, 1, 0, {rank}, {code}, {bits}, 1, shape{number}, "
        f"strides{number}, 0}};",
    ]


def _call(function: CFunction, symbol: str, *, clear: bool = False) -> list[str]:
    """Return a C function that calls `symbol`; `clear`: zero the result before, for the padding of packed constants."""
    lines: list[str] = []
    if clear:
        last = function.arguments[-1]
        lines.append(
            f"  if ({last.tensor}) memset({last.tensor}, 0, {math.prod(last.shape)}ull * sizeof *{last.tensor});"
        )
    for number, buffer in enumerate(function.arguments):
        lines += _tensor(buffer, number, buffer.tensor)
    names = ", ".join(f"tensor{number}" for number in range(len(function.arguments)))
    return [
        f"{prototype(function)} {{",
        *lines,
        f"  Tensor tensors[] = {{{names}}};",
        f"  return call({symbol}, tensors, {len(function.arguments)});",
        "}",
        "",
    ]


def _source(lowered: LoweredProgram, name: str, functions: Sequence[CFunction], threads: int, openmp: bool) -> str:
    symbols = ["main", *(f"pack_{tensor}" for tensor in lowered.program.packed_sizes)]
    lines = [
        f'#include "{name}.h"',
        _RUNTIME
        % {
            "include": "#include <omp.h>" if openmp else "",
            "alignment": ALIGNMENT_BYTES,
            "launch": _PARALLEL % {"threads": threads} if openmp else _SERIAL,
            "most": max(len(function.arguments) for function in functions),
        },
        *(f"extern int __tvm_ffi_{symbol}(void *, const Any *, int32_t, Any *);" for symbol in symbols),
        "",
    ]
    own, *others = functions
    if not others:
        return "\n".join([*lines, *_call(own, "__tvm_ffi_main")])
    *packers, packed = others
    for function in packers:
        lines += _call(function, f"__tvm_ffi_{function.name.removeprefix(f'{name}_')}", clear=True)
    lines += _call(packed, "__tvm_ffi_main")
    lines += [f"{prototype(own)} {{", "  int status = -2;"]
    for function in packers:
        source, target = function.arguments
        kind = _C_TYPES[target.dtype][0]
        lines.append(f"  {kind} *{target.tensor} = allocate(1, 0, {target.shape[0]}ull * sizeof({kind}), 0, 0);")
    targets = [function.arguments[1].tensor for function in packers]
    lines.append(f"  if ({' && '.join(targets)}) {{")
    lines.append("    status = 0;")
    for function in packers:
        source, target = function.arguments
        lines.append(f"    if (!status) status = {function.name}({source.tensor}, {target.tensor});")
    passed = ", ".join(buffer.tensor for buffer in packed.arguments)
    lines += [f"    if (!status) status = {packed.name}({passed});", "  }"]
    lines += [f"  free({target});" for target in targets]
    return "\n".join([*lines, "  return status;", "}", ""])

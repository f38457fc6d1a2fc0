"""The C file that is compiled into an exported kernel: the needed part of TVM's runtime, and plain C entries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from anatune.emit.buffer import Buffer
from anatune.export.cpu.header import ALIGNMENT_BYTES, C_TYPES, CFunction, prototype

_RUNTIME = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
%(include)s
%(check)s
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
  if (!cpu_is_right()) return -4;
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


def describe_tensor(buffer: Buffer, shape: Sequence[int | str], number: int, pointer: str) -> list[str]:
    """Return the C lines that describe an argument to TVM; the first extent may be an expression."""
    rank, shape = len(shape), shape or (1,)
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * int(extent))
    _, code, bits = C_TYPES[buffer.dtype]
    return [
        f"  int64_t shape{number}[] = {{{', '.join(map(str, shape))}}};",
        f"  int64_t strides{number}[] = {{{', '.join(map(str, strides))}}};",
        f"  Tensor tensor{number} = {{(void *){pointer}, 1, 0, {rank}, {code}, {bits}, 1, shape{number}, "
        f"strides{number}, 0}};",
    ]


def _call(function: CFunction, symbol: str, *, clear: bool = False) -> list[str]:
    """Return a C function that calls `symbol`; `clear` zeroes the result first, for the padding of packed constants."""
    lines: list[str] = []
    if clear:
        last = function.arguments[-1]
        lines.append(
            f"  if ({last.tensor}) memset({last.tensor}, 0, {math.prod(last.shape)}ull * sizeof *{last.tensor});"
        )
    for number, buffer in enumerate(function.arguments):
        lines += describe_tensor(buffer, buffer.shape, number, buffer.tensor)
    names = ", ".join(f"tensor{number}" for number in range(len(function.arguments)))
    return [
        f"{prototype(function)} {{",
        *lines,
        f"  Tensor tensors[] = {{{names}}};",
        f"  return call({symbol}, tensors, {len(function.arguments)});",
        "}",
        "",
    ]


def c_entries(functions: Sequence[CFunction]) -> list[str]:
    """Return the C functions: the kernel and, if operands are packed, a packing function each and the packed kernel."""
    kernel_function, *others = functions
    if not others:
        return _call(kernel_function, "__tvm_ffi_main")
    *packers, packed = others
    lines: list[str] = []
    for function in packers:
        lines += _call(function, f"__tvm_ffi_pack_{function.arguments[0].tensor}", clear=True)
    return [*lines, *_call(packed, "__tvm_ffi_main"), *packing_entry(kernel_function, packers, packed)]


def runtime(
    name: str, check: str, threads: int, functions: Sequence[CFunction], symbols: Iterable[str], *, openmp: bool
) -> list[str]:
    """Return the lines before the entries: TVM's runtime, and declarations of the functions that the entries call.

    Parameters
    ----------
    check : str
        The C code of ``cpu_is_right``, see `codegen.cpu.features.check_source`.
    threads : int
        The threads of parallel loops, with `openmp`.
    symbols : iterable of str
        The names of TVM's functions.
    """
    return [
        f'#include "{name}.h"',
        _RUNTIME
        % {
            "include": "#include <omp.h>" if openmp else "",
            "check": check,
            "alignment": ALIGNMENT_BYTES,
            "launch": _PARALLEL % {"threads": threads} if openmp else _SERIAL,
            "most": max(len(function.arguments) for function in functions),
        },
        f"int {name}_supported(void) {{ return cpu_is_right(); }}",
        *(f"extern int __tvm_ffi_{symbol}(void *, const Any *, int32_t, Any *);" for symbol in symbols),
        "",
    ]


def packing_entry(kernel_function: CFunction, packers: Sequence[CFunction], packed: CFunction) -> list[str]:
    """Return a C function that packs constants into new memory and calls `packed`."""
    lines = [f"{prototype(kernel_function)} {{", "  int status = -2;"]
    for function in packers:
        source, target = function.arguments
        kind = C_TYPES[target.dtype][0]
        lines.append(f"  {kind} *{target.tensor} = allocate(1, 0, {target.shape[0]}ull * sizeof({kind}), 0, 0);")
    targets = [function.arguments[1].tensor for function in packers]
    lines.append(f"  if ({' && '.join(targets)}) {{")
    lines.append("    status = 0;")
    for function in packers:
        source, target = function.arguments
        lines.append(f"    if (!status) status = {function.name}({source.tensor}, {target.tensor});")
    passed = ", ".join([*["extent"] * packed.is_ranged, *(buffer.tensor for buffer in packed.arguments)])
    lines += [f"    if (!status) status = {packed.name}({passed});", "  }"]
    lines += [f"  free({target});" for target in targets]
    return [*lines, "  return status;", "}", ""]

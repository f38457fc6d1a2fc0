"""The kernels of a range for C programs: one library with one function that dispatches on the extent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.cpu.dispatch import Dispatch, LoweredRange, lower_range
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.core.workload.ranges import make_ranged_workload
from anatune.emit.buffer import Buffer
from anatune.export.cpu.entries import describe_tensor, packing_entry
from anatune.export.cpu.header import ALIGNMENT_BYTES, CFunction, c_functions, prototype, shape_of
from anatune.export.cpu.write import CLibrary, CProgram, find_tools, write_program

_OUTSIDE_CODE = -5
"""The return code for an extent outside the range."""


def write_c_range(dispatch: Dispatch, name: str, folder: Path, *, threads: int, form: str = "so") -> CLibrary:
    """Write a library of all kernels of a range, and ``<name>.h``, into `folder`.

    Parameters
    ----------
    name : str
        A C identifier: ``name(extent, tensors...)`` takes all tensors in the workload's own layouts. If operands are
        packed in advance, ``<name>_pack_<tensor>`` packs one for all extents, and ``<name>_packed`` takes the packed
        form. ``<name>_supported`` returns whether the current processor can run them.
    folder, threads, form
        The same as in `write_c_library`.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        The errors of `lower_range`, or the library cannot be compiled or linked.
    """
    last = dispatch.schedules[dispatch.programs[-1]]
    tools = find_tools(form, last)
    lowered = lower_range(dispatch, threads=threads)
    tensors = tuple(Buffer.of(access, dispatch.axis) for access in last.workload.tensors)
    forms = {buffer.tensor: _forms(lowered, buffer) for buffer in tensors if buffer.tensor in lowered.forms}
    sizes = {tensor: known[-1].offset + math.prod(known[-1].shape) for tensor, known in forms.items()}
    functions = c_functions(name, tensors, sizes, lowered.workspace_bytes, "once for all extents")
    whole = range(dispatch.first, dispatch.lasts[-1] + 1)
    mains = (f"main_{number}" for number in range(len(dispatch.schedules)))
    packing = (f"pack_{tensor}_{number}" for tensor, known in lowered.forms.items() for number in range(len(known)))
    program = CProgram(
        last,
        make_ranged_workload(last.workload, dispatch.axis, whole).describe(),
        lowered.module,
        lowered.target,
        functions,
        (*mains, *packing),
        _entries(dispatch, lowered, functions),
        threads > 1 and any(bool(schedule.options.get("parallel", False)) for schedule in dispatch.schedules),
        f"; {_OUTSIDE_CODE}: extent is not {dispatch.first} to {dispatch.lasts[-1]}",
    )
    return write_program(program, name, folder, tools, form, threads)


class _PackedForm(NamedTuple):
    """A packed form (or copy) of a constant: its offset in elements in the memory of all forms, and its shape."""

    offset: int
    shape: tuple[int, ...]
    is_copy: bool = False


def _forms(lowered: LoweredRange, source: Buffer) -> list[_PackedForm]:
    """Return the aligned forms of a constant; the last one (-1) is a copy, if some kernel takes it unpacked."""
    unit = ALIGNMENT_BYTES // DTYPE_BYTES[source.dtype]
    forms, end = [], 0
    for size in lowered.forms[source.tensor]:
        forms.append(_PackedForm(end, (size,)))
        end += -(-size // unit) * unit
    if -1 in lowered.form_of[source.tensor]:
        forms.append(_PackedForm(end, source.shape, is_copy=True))
    return forms


def _entries(dispatch: Dispatch, lowered: LoweredRange, functions: Sequence[CFunction]) -> list[str]:
    """Return the lines of all C functions."""
    kernel_function, *others = functions
    *packers, packed = others or [kernel_function]
    lines = [line for function in packers for line in _packing_function(lowered, function)]
    constants = {packer.arguments[1].tensor: packer.arguments[0] for packer in packers}
    lines += _dispatch_function(dispatch, lowered, packed, constants)
    return [*lines, *(packing_entry(kernel_function, packers, packed) if packers else [])]


def _packing_function(lowered: LoweredRange, function: CFunction) -> list[str]:
    """Return the C function that writes all packed forms of a constant, one after the other."""
    source, target = function.arguments
    lines = [
        f"{prototype(function)} {{",
        "  int status = 0;",
        f"  if (!{source.tensor} || !{target.tensor}) return -1;",
        f"  memset({target.tensor}, 0, {target.num_bytes}ull);",
        *describe_tensor(source, source.shape, 0, source.tensor),
    ]
    for number, form in enumerate(_forms(lowered, source)):
        target_pointer = f"({target.tensor} + {form.offset})"
        if form.is_copy:
            lines.append(f"  memcpy({target_pointer}, {source.tensor}, {source.num_bytes}ull);")
            continue
        lines += [
            "  if (!status) {",
            *describe_tensor(target, form.shape, 1, target_pointer),
            "    Tensor tensors[] = {tensor0, tensor1};",
            f"    status = call(__tvm_ffi_pack_{source.tensor}_{number}, tensors, 2);",
            "  }",
        ]
    return [*lines, "  return status;", "}", ""]


def _dispatch_function(
    dispatch: Dispatch, lowered: LoweredRange, function: CFunction, constants: Mapping[str, Buffer]
) -> list[str]:
    """Return the C function that calls the kernel of an extent; `constants` maps packed arguments to their sources."""
    lines = [
        f"{prototype(function)} {{",
        f"  if (extent < {dispatch.first} || extent > {dispatch.lasts[-1]}) return {_OUTSIDE_CODE};",
        *(f"  if (!{buffer.tensor}) return -1;" for buffer in function.arguments if buffer.tensor in constants),
    ]
    for last, number in zip(dispatch.lasts, dispatch.programs, strict=True):
        lines.append(f"  if (extent <= {last}) {{")
        for number_of_argument, buffer in enumerate(function.arguments):
            shape, pointer = shape_of(buffer), buffer.tensor
            if buffer.tensor in constants:
                source = constants[buffer.tensor]
                form = _forms(lowered, source)[lowered.form_of[source.tensor][number]]
                shape, pointer = form.shape, f"({pointer} + {form.offset})"
            lines += ["  " + line for line in describe_tensor(buffer, shape, number_of_argument, pointer)]
        names = ", ".join(f"tensor{place}" for place in range(len(function.arguments)))
        lines += [
            f"    Tensor tensors[] = {{{names}}};",
            f"    return call(__tvm_ffi_main_{number}, tensors, {len(function.arguments)});",
            "  }",
        ]
    return [*lines, f"  return {_OUTSIDE_CODE};", "}", ""]

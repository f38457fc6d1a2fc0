"""The programs of a range for C: one library, one function that takes the extent and dispatches on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.cpu.dispatch import Dispatch, LoweredRange, lower_range
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.core.workload.ranges import ranged
from anatune.emit.buffer import Buffer
from anatune.export.cpu.entries import describe_tensor, with_packing
from anatune.export.cpu.header import ALIGNMENT_BYTES, CFunction, c_functions, prototype, shape_of
from anatune.export.cpu.write import CLibrary, CProgram, find_tools, write_program

_OUTSIDE = -5
"""What functions return for an extent that no program serves."""


def write_c_range(dispatch: Dispatch, name: str, folder: Path, *, threads: int, form: str = "so") -> CLibrary:
    """Write a library of all programs for C programs, and ``<name>.h``, into `folder`.

    Parameters
    ----------
    name : str
        A C identifier: ``name(extent, tensors...)`` takes all tensors in the workload's own layouts. Where operands are
        packed ahead, ``<name>_pack_<tensor>`` packs one for all extents and ``<name>_packed`` takes the packed form;
        ``<name>_supported`` says whether the present processor can run them.
    folder, threads, form
        As in `write_c_library`.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `lower_range`; they cannot be compiled or linked.
    """
    last = dispatch.schedules[dispatch.programs[-1]]
    tools = find_tools(form, last)
    lowered = lower_range(dispatch, threads=threads)
    own = tuple(Buffer.of(access, dispatch.axis) for access in last.workload.tensors)
    forms = {buffer.tensor: _forms(lowered, buffer) for buffer in own if buffer.tensor in lowered.forms}
    sizes = {tensor: known[-1].offset + math.prod(known[-1].shape) for tensor, known in forms.items()}
    functions = c_functions(name, own, sizes, lowered.workspace_bytes, "once for all extents")
    whole = range(dispatch.first, dispatch.lasts[-1] + 1)
    mains = (f"main_{number}" for number in range(len(dispatch.schedules)))
    packing = (f"pack_{tensor}_{number}" for tensor, known in lowered.forms.items() for number in range(len(known)))
    program = CProgram(
        last,
        ranged(last.workload, dispatch.axis, whole).describe(),
        lowered.module,
        lowered.target,
        functions,
        (*mains, *packing),
        _entries(dispatch, lowered, functions),
        threads > 1 and any(bool(schedule.options.get("parallel", False)) for schedule in dispatch.schedules),
        f"; {_OUTSIDE}: extent is not {dispatch.first} to {dispatch.lasts[-1]}",
    )
    return write_program(program, name, folder, tools, form, threads)


class _Form(NamedTuple):
    """One packed form of a constant, or a copy of the constant: where it begins in the memory of all, elements."""

    offset: int
    shape: tuple[int, ...]
    is_copy: bool = False


def _forms(lowered: LoweredRange, source: Buffer) -> list[_Form]:
    """Return the forms of a constant, aligned; last, at -1, that of programs which take it as it is, if any do."""
    unit = ALIGNMENT_BYTES // DTYPE_BYTES[source.dtype]
    forms, end = [], 0
    for size in lowered.forms[source.tensor]:
        forms.append(_Form(end, (size,)))
        end += -(-size // unit) * unit
    if -1 in lowered.form_of[source.tensor]:
        forms.append(_Form(end, source.shape, is_copy=True))
    return forms


def _entries(dispatch: Dispatch, lowered: LoweredRange, functions: Sequence[CFunction]) -> list[str]:
    """Return the lines of C functions."""
    own, *others = functions
    *packers, packed = others or [own]
    lines = [line for function in packers for line in _pack(lowered, function)]
    constants = {packer.arguments[1].tensor: packer.arguments[0] for packer in packers}
    lines += _dispatched(dispatch, lowered, packed, constants)
    return [*lines, *(with_packing(own, packers, packed) if packers else [])]


def _pack(lowered: LoweredRange, function: CFunction) -> list[str]:
    """Return the function that writes all packed forms of a constant, one behind the other."""
    source, target = function.arguments
    lines = [
        f"{prototype(function)} {{",
        "  int status = 0;",
        f"  if (!{source.tensor} || !{target.tensor}) return -1;",
        f"  memset({target.tensor}, 0, {target.num_bytes}ull);",
        *describe_tensor(source, source.shape, 0, source.tensor),
    ]
    for number, form in enumerate(_forms(lowered, source)):
        place = f"({target.tensor} + {form.offset})"
        if form.is_copy:
            lines.append(f"  memcpy({place}, {source.tensor}, {source.num_bytes}ull);")
            continue
        lines += [
            "  if (!status) {",
            *describe_tensor(target, form.shape, 1, place),
            "    Tensor tensors[] = {tensor0, tensor1};",
            f"    status = call(__tvm_ffi_pack_{source.tensor}_{number}, tensors, 2);",
            "  }",
        ]
    return [*lines, "  return status;", "}", ""]


def _dispatched(
    dispatch: Dispatch, lowered: LoweredRange, function: CFunction, constants: Mapping[str, Buffer]
) -> list[str]:
    """Return the function that calls the program of an extent; `constants`: packed argument -> what it is packed of."""
    lines = [
        f"{prototype(function)} {{",
        f"  if (extent < {dispatch.first} || extent > {dispatch.lasts[-1]}) return {_OUTSIDE};",
        *(f"  if (!{buffer.tensor}) return -1;" for buffer in function.arguments if buffer.tensor in constants),
    ]
    for last, number in zip(dispatch.lasts, dispatch.programs, strict=True):
        lines.append(f"  if (extent <= {last}) {{")
        for place, buffer in enumerate(function.arguments):
            shape, pointer = shape_of(buffer), buffer.tensor
            if buffer.tensor in constants:
                source = constants[buffer.tensor]
                form = _forms(lowered, source)[lowered.form_of[source.tensor][number]]
                shape, pointer = form.shape, f"({pointer} + {form.offset})"
            lines += ["  " + line for line in describe_tensor(buffer, shape, place, pointer)]
        names = ", ".join(f"tensor{place}" for place in range(len(function.arguments)))
        lines += [
            f"    Tensor tensors[] = {{{names}}};",
            f"    return call(__tvm_ffi_main_{number}, tensors, {len(function.arguments)});",
            "  }",
        ]
    return [*lines, f"  return {_OUTSIDE};", "}", ""]

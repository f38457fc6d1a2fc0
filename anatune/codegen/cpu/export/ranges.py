"""The programs of a range for C: one library, one function that takes the extent and dispatches on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.arithmetic import arithmetic_of
from anatune.codegen.compat import compile_module
from anatune.codegen.cpu.dispatch import Dispatch, LoweredRange, lower_range
from anatune.codegen.cpu.export.entries import describe_tensor, runtime, with_packing
from anatune.codegen.cpu.export.features import check_source
from anatune.codegen.cpu.export.header import ALIGNMENT_BYTES, CFunction, c_header, prototype, shape_of
from anatune.codegen.cpu.export.write import (
    CLibrary,
    device_of,
    family_of,
    find_tools,
    names_of,
    needs_of,
    write_files,
)
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.core.workload.ranges import ranged
from anatune.emit.buffer import Buffer

__all__ = ["write_c_range"]

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
    tools = find_tools(form, last, family_of(last))
    lowered = lower_range(dispatch, threads=threads)
    parallel = threads > 1 and any(bool(schedule.options.get("parallel", False)) for schedule in dispatch.schedules)
    needs = needs_of(last, lowered.target, tools, threads if parallel else 1)
    library, link = names_of(name, form, needs)
    functions = _functions(dispatch, lowered, name)
    words = ranged(last.workload, dispatch.axis, range(dispatch.first, dispatch.lasts[-1] + 1)).describe()
    served = f"; {_OUTSIDE}: extent is not {dispatch.first} to {dispatch.lasts[-1]}"
    header = c_header(words, device_of(last), name, functions, arithmetic_of(last), needs, link, served)
    check = check_source(needs.features, family_of(last))
    source = _entries(
        dispatch,
        lowered,
        name,
        functions,
        runtime(name, check, threads, len(functions[0].arguments), _symbols(dispatch, lowered), openmp=parallel),
    )
    executable = compile_module(lowered.module, lowered.target)
    write_files(executable, source, header, name, folder, tools, library, needs)
    return CLibrary(library, f"{name}.h", functions, needs, link)


def _symbols(dispatch: Dispatch, lowered: LoweredRange) -> list[str]:
    mains = [f"main_{number}" for number in range(len(dispatch.schedules))]
    return [*mains, *(f"pack_{tensor}_{form}" for tensor, sizes in lowered.forms.items() for form in range(len(sizes)))]


class _Form(NamedTuple):
    """One packed form of a constant, or a copy of the constant: where it begins in the memory of all, elements."""

    offset: int
    shape: tuple[int, ...]
    is_copy: bool = False


def _forms(lowered: LoweredRange, source: Buffer) -> list[_Form]:
    """Return the forms of a constant, aligned; last, at -1, that of programs which take it as it is, if any do."""
    unit = ALIGNMENT_BYTES // DTYPE_BYTES[source.dtype]
    found, end = [], 0
    for size in lowered.forms[source.tensor]:
        found.append(_Form(end, (size,)))
        end += -(-size // unit) * unit
    if -1 in lowered.form_of[source.tensor]:
        found.append(_Form(end, source.shape, is_copy=True))
    return found


def _functions(dispatch: Dispatch, lowered: LoweredRange, name: str) -> tuple[CFunction, ...]:
    workload = dispatch.schedules[dispatch.programs[-1]].workload
    own = tuple(Buffer.of(access, dispatch.axis) for access in workload.tensors)
    workspace = lowered.workspace_bytes
    packed = {
        one.tensor: Buffer(f"{one.tensor}_packed", one.dtype, (form.offset + math.prod(form.shape),))
        for one in own
        if one.tensor in lowered.forms
        for form in _forms(lowered, one)[-1:]
    }
    copies = sum(buffer.num_bytes for buffer in packed.values())
    functions = [CFunction(name, "all tensors in the workload's own layouts", own, workspace + copies)]
    if packed:
        functions += [
            CFunction(
                f"{name}_pack_{one.tensor}", f"packs {one.tensor}, once for all extents", (one, packed[one.tensor])
            )
            for one in own
            if one.tensor in packed
        ]
        arguments = tuple(packed.get(one.tensor, one) for one in own)
        purpose = "the same with packed constants"
        functions.append(CFunction(f"{name}_packed", purpose, arguments, workspace))
    return tuple(functions)


def _entries(
    dispatch: Dispatch, lowered: LoweredRange, name: str, functions: Sequence[CFunction], lines: list[str]
) -> str:
    """Return the C file that begins with `lines`."""
    own, *others = functions
    *packers, packed = others or [own]
    for function in packers:
        lines += _pack(lowered, function)
    lines += _dispatched(
        dispatch, lowered, packed, {packer.arguments[1].tensor: packer.arguments[0] for packer in packers}
    )
    return "\n".join([*lines, *(with_packing(own, packers, packed) if packers else [])])


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

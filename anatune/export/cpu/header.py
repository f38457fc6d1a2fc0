"""The C functions of an exported kernel: names, declarations, and the header that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.codegen.arithmetic import find_arithmetic, format_comment
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer

ALIGNMENT_BYTES = 64
C_TYPES = {
    "float32": ("float", 2, 32),
    "float16": ("uint16_t", 2, 16),
    "bfloat16": ("uint16_t", 4, 16),
    "int8": ("int8_t", 0, 8),
    "uint8": ("uint8_t", 1, 8),
    "int32": ("int32_t", 0, 32),
}
"""The C type (for narrow floating-point numbers, the type of their bits) and DLPack's code and bits of each dtype."""


class CFunction(NamedTuple):
    """A function of the library: name, purpose, and arguments in order (the last one is written).

    A call allocates and releases `workspace_bytes`. If a dimension of the arguments varies, its length is the first
    argument.
    """

    name: str
    purpose: str
    arguments: tuple[Buffer, ...]
    workspace_bytes: int = 0

    @property
    def is_ranged(self) -> bool:
        """True if the first argument is the length of the varying dimensions."""
        return any(buffer.varying for buffer in self.arguments)


def c_functions(
    name: str, tensors: tuple[Buffer, ...], packed_sizes: Mapping[str, int], workspace_bytes: int, once: str
) -> tuple[CFunction, ...]:
    """Return a library's functions: the kernel and, for packed constants, packing functions and the packed kernel.

    Parameters
    ----------
    tensors : tuple of Buffer
        The tensors in the workload's own layouts.
    packed_sizes : mapping of str to int
        The elements of each constant's packed form.
    workspace_bytes : int
        The workspace of the kernel without packing.
    once : str
        The words that say how often a constant is packed.
    """
    packed = {
        buffer.tensor: Buffer(f"{buffer.tensor}_packed", buffer.dtype, (packed_sizes[buffer.tensor],))
        for buffer in tensors
        if buffer.tensor in packed_sizes
    }
    copies = sum(buffer.num_bytes for buffer in packed.values())
    whole = CFunction(name, "all tensors in the workload's own layouts", tensors, workspace_bytes + copies)
    if not packed:
        return (whole,)
    packers = [
        CFunction(f"{name}_pack_{buffer.tensor}", f"packs {buffer.tensor}, {once}", (buffer, packed[buffer.tensor]))
        for buffer in tensors
        if buffer.tensor in packed
    ]
    arguments = tuple(packed.get(buffer.tensor, buffer) for buffer in tensors)
    return (whole, *packers, CFunction(f"{name}_packed", "the same with packed constants", arguments, workspace_bytes))


def shape_of(buffer: Buffer) -> tuple[int | str, ...]:
    """Return an argument's shape as C expressions."""
    return tuple("extent" if place in buffer.varying else length for place, length in enumerate(buffer.shape))


class CNeeds(NamedTuple):
    """The requirements of a library.

    Attributes
    ----------
    cpu : str
        LLVM's name of the processor that it was compiled for ("-mcpu").
    features : tuple of str
        The features of the processor that it needs.
    threads : int
        The threads of its parallel loops; 1 if there are none.
    openmp : str
        The name of the OpenMP library ("gomp"), "" if none.
    """

    cpu: str
    features: tuple[str, ...]
    threads: int
    openmp: str


def prototype(function: CFunction) -> str:
    """Return the C declaration of a function, without the semicolon."""
    words = [f"const {C_TYPES[b.dtype][0]} *{b.tensor}" for b in function.arguments[:-1]]
    last = function.arguments[-1]
    first = ["int64_t extent"] if function.is_ranged else []
    return f"int {function.name}({', '.join([*first, *words, f'{C_TYPES[last.dtype][0]} *{last.tensor}'])})"


_HEADER = """\
/* {title}
 * for {device}; made by anatune.
 {arithmetic}
 *
 * Arrays are row-major and aligned to {alignment} bytes; the last argument is written and must not overlap any other.
 * Functions return 0; -1: an argument is NULL or not aligned; -2: no memory; -3: the kernel failed; -4: the processor
 * lacks an instruction{more_codes}. They may be called from several threads at once.
 *
 {needs}
 *
 * Link with {link}
 */
#ifndef {guard}_H
#define {guard}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

/* Whether the present processor has the instructions that the others use: 1 or 0. */
int {name}_supported(void);

{functions}
#ifdef __cplusplus
}}
#endif
#endif
"""


def c_header(
    name: str,
    title: str,
    schedule: Schedule,
    functions: Sequence[CFunction],
    needs: CNeeds,
    link: Sequence[str],
    more_codes: str = "",
) -> str:
    """Return the header of an exported kernel.

    Parameters
    ----------
    schedule : Schedule
        The schedule, with the processor and the arithmetic.
    link : sequence of str
        The arguments of the linker.
    more_codes : str
        The text about additional return codes.
    """
    needed = f"Needs: {', '.join(needs.features) or 'nothing special'} (compiled for -mcpu={needs.cpu}). "
    needed += f"Loops run on {needs.threads} threads (OpenMP)." if needs.openmp else "It runs on the calling thread."
    declared = []
    for function in functions:
        rows = [
            f" *   {argument.tensor}: {argument.dtype}[{']['.join(map(str, shape_of(argument))) or '1'}]"
            for argument in function.arguments
        ]
        purpose = function.purpose[0].upper() + function.purpose[1:]
        if function.workspace_bytes:
            purpose += f"; allocates {function.workspace_bytes} bytes for its time"
        declared.append(f"/* {purpose}:\n{chr(10).join(rows)} */\n{prototype(function)};\n")
    return _HEADER.format(
        title=title,
        device=f"{schedule.hardware.name} ({schedule.hardware.arch})",
        arithmetic=format_comment(find_arithmetic(schedule).sentences(), "* ", " * "),
        alignment=ALIGNMENT_BYTES,
        needs=format_comment(needed, "* ", " * "),
        link=" ".join(link),
        guard=name.upper(),
        name=name,
        more_codes=more_codes,
        functions="\n".join(declared),
    )

"""The facts of Triton's compilers about a kernel: registers, spills, and the matrix instructions in its code."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from anatune.codegen.cuda.nvrtc import code_size, parse_log
from anatune.core.compiler_facts import CompilerFacts
from anatune.errors import BuildError

_MATRIX = re.compile(
    r"^\s*(?:@!?%?\w+\s+)?((?:mma\.sync|wgmma\.mma_async|tcgen05\.mma|cp\.async\.bulk\.tensor|v_s?mfma_)[\w.:]*)",
    re.MULTILINE,
)
"""A line of PTX or AMD assembler with a product on a matrix unit, or a copy with a tensor descriptor."""
_REGISTER_BYTES = 4


def count_matrix_instructions(text: str) -> dict[str, int]:
    """Return the number of occurrences of each product on a matrix unit and each copy with a tensor descriptor.

    Parameters
    ----------
    text : str
        PTX, or LLVM's assembler output for AMD GPUs.
    """
    return dict(sorted(Counter(_MATRIX.findall(text)).items()))


def read_nvidia_facts(log: str, ptx: str, image: bytes, name: str) -> CompilerFacts:
    """Return the facts about a function of a cubin.

    Parameters
    ----------
    log : str
        Output of ``ptxas -v``.
    ptx : str
        The PTX that it assembled.

    Raises
    ------
    BuildError
        The log does not mention the function.
    """
    facts = parse_log(log, name, code_bytes=code_size(image, name))
    return msgspec.structs.replace(facts, instructions=count_matrix_instructions(ptx))


def read_amd_facts(text: str) -> CompilerFacts:
    """Return the facts about AMD code, from the metadata at the end of the assembler's text.

    On CDNA ``.vgpr_count`` counts vector and accumulation registers together. Source: LLVM's AMDGPU usage, Code Object
    V5 metadata. Each spilled register counts once as stored and once as loaded.

    Raises
    ------
    BuildError
        The text has no metadata.
    """

    def number(pattern: str) -> int:
        match = re.search(pattern, text)
        return int(match[1]) if match else 0

    if ".vgpr_count:" not in text:
        raise BuildError("Triton's assembler code for AMD does not state the registers; this is a defect of anatune")
    spilled = _REGISTER_BYTES * number(r"\.vgpr_spill_count:\s*(\d+)")
    return CompilerFacts(
        registers=number(r"\.vgpr_count:\s*(\d+)"),
        shared_bytes=number(r"\.group_segment_fixed_size:\s*(\d+)"),
        spill_bytes=spilled,
        spill_load_bytes=spilled,
        local_bytes=number(r"\.private_segment_fixed_size:\s*(\d+)"),
        code_bytes=number(r"codeLenInByte = (\d+)"),
        instructions=count_matrix_instructions(text),
    )

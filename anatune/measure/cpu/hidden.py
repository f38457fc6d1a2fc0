"""Which features LLVM takes an x86 processor to have that the present machine does not offer.

A hypervisor may hide instructions from its guests: the family and model still name the processor, and so LLVM's -mcpu,
whose code would use them. What is offered is what the system's flags name. They come from CPUID and from what Linux
knows, so that a feature newer than the kernel counts as hidden, too: code is then slower, never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["hidden_features"]

_V2 = frozenset({"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"})
_IVY = _V2 | {"avx", "f16c"}
_V3 = _IVY | {"avx2", "bmi", "bmi2", "fma", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_CLX = _V4 | {"avx512vnni"}
_ICL = _CLX | {"avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vpopcntdq", "gfni"}
_SPR = _ICL | {"avx512bf16", "avx512fp16", "avxvnni", "amx-tile", "amx-int8", "amx-bf16"}
_ZEN4 = _ICL | {"avx512bf16", "sse4a"}

_FEATURES: dict[str, frozenset[str]] = {
    **dict.fromkeys(("haswell", "broadwell", "skylake", "x86-64-v3"), _V3),
    **dict.fromkeys(("skylake-avx512", "x86-64-v4"), _V4),
    **dict.fromkeys(("icelake-client", "icelake-server", "tigerlake", "rocketlake"), _ICL),
    **dict.fromkeys(("sapphirerapids", "emeraldrapids", "graniterapids"), _SPR),
    **dict.fromkeys(("alderlake", "raptorlake"), _V3 | {"avxvnni", "gfni"}),
    **dict.fromkeys(("znver1", "znver2", "znver3"), _V3 | {"sse4a"}),
    "x86-64": frozenset(),
    "sandybridge": _V2 | {"avx"},
    "ivybridge": _IVY,
    "cascadelake": _CLX,
    "cooperlake": _CLX | {"avx512bf16"},
    "znver4": _ZEN4,
    "znver5": _ZEN4 | {"avxvnni"},
}
"""LLVM's -mcpu -> those of its features that matter to code: what LLVM uses by itself (as
`codegen.cpu.export.features`), and AMX. Others need intrinsics that nothing here has, or do nothing where they are not
offered (PREFETCHW). Linux names no flag for AMX's float16 products. Source: LLVM 22, X86TargetParser.cpp and X86.td; a
test asks the LLVM of TVM."""

_FLAGS = {"sse3": "pni", "bmi": "bmi1", "lzcnt": "abm"}
"""LLVM's name -> Linux' flag, where more than punctuation differs. Source: Linux, arch/x86/.../cpufeatures.h."""


def hidden_features(arch: str, flags: Collection[str]) -> tuple[str, ...]:
    """Return LLVM's names of the features of `arch` that the system's flags do not show, sorted.

    Parameters
    ----------
    arch : str
        LLVM's -mcpu name of an x86 processor.
    flags : collection of str
        Of /proc/cpuinfo: ``avx512_bf16``, ``amx_tile``, ...
    """
    offered = {_letters(flag) for flag in flags}
    return tuple(sorted(name for name in _FEATURES[arch] if _letters(_FLAGS.get(name, name)) not in offered))


def _letters(name: str) -> str:
    """Return a name without punctuation: LLVM's avx512bf16, sse4.1 and amx-tile are Linux' avx512_bf16 and so on."""
    return re.sub(r"[-_.]", "", name)

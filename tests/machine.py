"""The present machine, for tests that need to know more of it than a saved spec may say, or less."""

import msgspec
import pytest

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.measure.cpu.detect import detect_cpu

_X86, _ARM = ("ryzen_3700x", "x86-64-v3"), ("cortex_a72", "generic")
_FIXED = {"avx512": _X86, "avx2": _X86, "neon": _ARM, "sve": _ARM}
"""Instruction set of the present machine -> a packaged spec, and LLVM's name of a processor that has no more."""


def host() -> CpuSpec:
    """Return the spec that "host" names, with what the machine hides now: a file may be older than that key."""
    spec = anatune.hardware("host")
    assert isinstance(spec, CpuSpec)
    return msgspec.structs.replace(spec, hidden_features=detect_cpu().hidden_features)


def fixed() -> CpuSpec:
    """Return a spec whose code runs here and whose plans are those of every machine: what is chosen can be tested."""
    isa = detect_cpu().compute.isa
    if isa not in _FIXED:
        pytest.skip(f"no packaged processor's code runs on one with {isa}")
    name, arch = _FIXED[isa]
    spec = anatune.hardware(name)
    assert isinstance(spec, CpuSpec)
    return msgspec.structs.replace(spec, arch=arch)

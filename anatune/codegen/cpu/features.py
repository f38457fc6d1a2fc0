"""Instructions that compiled code may use, and a C function that tests whether the present processor has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_EAX, _EBX, _ECX, _EDX = range(4)
_AVX_STATE, _AVX512_STATE = 0x6, 0xE6
_X86: dict[str, tuple[int, int, int, int]] = {
    **{name: (1, 0, _ECX, bit) for name, bit in {
        "sse3": 0, "ssse3": 9, "fma": 12, "sse4.1": 19, "sse4.2": 20, "movbe": 22, "popcnt": 23, "avx": 28, "f16c": 29,
    }.items()},
    **{name: (7, 0, _EBX, bit) for name, bit in {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "avx512ifma": 21, "avx512cd": 28,
        "avx512bw": 30, "avx512vl": 31,
    }.items()},
    **{name: (7, 0, _ECX, bit) for name, bit in {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "avx512vnni": 11, "avx512bitalg": 12, "avx512vpopcntdq": 14,
    }.items()},
    "avx512fp16": (7, 0, _EDX, 23),
    **{name: (7, 1, _EAX, bit) for name, bit in {"avxvnni": 4, "avx512bf16": 5, "avxifma": 23}.items()},
    **{name: (7, 1, _EDX, bit) for name, bit in {"avxvnniint8": 4, "avxneconvert": 5, "avxvnniint16": 10}.items()},
    **{name: (0x80000001, 0, _ECX, bit) for name, bit in {
        "lzcnt": 5, "sse4a": 6, "xop": 11, "fma4": 16, "tbm": 21,
    }.items()},
}  # fmt: skip
"""LLVM's name of a feature -> (leaf, subleaf, register, bit) of CPUID, for features that LLVM may use on its own.
Features that only intrinsics use (AES, SHA, ...) or that only concern the system are not listed. Source: Intel 64 and
IA-32 Architectures Software Developer's Manual, CPUID; AMD64 Architecture Programmer's Manual, volume 3, appendix E."""

_AARCH64: dict[str, tuple[int, int]] = {
    "neon": (16, 1 << 1), "fullfp16": (16, 3 << 9), "rdm": (16, 1 << 12), "complxnum": (16, 1 << 14),
    "dotprod": (16, 1 << 20), "sve": (16, 1 << 22), "fp16fml": (16, 1 << 23),
    "sve2": (26, 1 << 1), "fptoint": (26, 1 << 8), "i8mm": (26, 1 << 13), "bf16": (26, 1 << 14),
}  # fmt: skip
"""LLVM's name of a feature -> (type, bits) in the auxiliary vector, type AT_HWCAP or AT_HWCAP2. Source: Linux,
Documentation/arch/arm64/elf_hwcaps.rst and uapi/asm/hwcap.h."""

_ASK_X86 = """\
#include <cpuid.h>
static int cpu_has(unsigned leaf, unsigned subleaf, int place, unsigned bits) {
  unsigned found[4] = {0, 0, 0, 0};
  return __get_cpuid_count(leaf, subleaf, &found[0], &found[1], &found[2], &found[3]) && (found[place] & bits) == bits;
}
"""
_ASK_SYSTEM = """\
static int system_keeps(unsigned registers) {
  unsigned low, high;
  if (!cpu_has(1, 0, 2, 1u << 27)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  (void)high;
  return (low & registers) == registers;
}
"""
_ASK_AARCH64 = """\
#ifdef __linux__
#include <sys/auxv.h>
static int cpu_has(unsigned long type, unsigned long bits) { return (getauxval(type) & bits) == bits; }
#else
static int cpu_has(unsigned long type, unsigned long bits) { (void)type; (void)bits; return 1; } /* nobody to ask */
#endif
"""
_FUNCTION = """\
static int cpu_is_right(void) {
  static int known; /* 1: no, 2: yes */
  int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (!now) {
    now = 1 + (%s);
    __atomic_store_n(&known, now, __ATOMIC_RELAXED);
  }
  return now == 2;
}
"""


def code_features(features: Collection[str], family: str) -> tuple[str, ...]:
    """Return those features of a processor that compiled code may use, sorted.

    Parameters
    ----------
    family : str
        "x86_64" or "aarch64".
    """
    return tuple(sorted(set(features) & set(_X86 if family == "x86_64" else _AARCH64)))


def check_source(features: Sequence[str], family: str) -> str:
    """Return the C code of a function ``cpu_is_right()`` that returns 1 if the processor has all of `code_features`."""
    if not features:
        return _FUNCTION % "1"
    if family == "x86_64":
        tests = _x86_tests(features)
        system = _ASK_SYSTEM if "system_keeps" in tests[-1] else ""
        return _ASK_X86 + system + _FUNCTION % "\n               && ".join(tests)
    bits = {kind: sum(_AARCH64[name][1] for name in features if _AARCH64[name][0] == kind) for kind in (16, 26)}
    return _ASK_AARCH64 + _FUNCTION % " && ".join(
        f"cpu_has({kind}, 0x{mask:x}ul)" for kind, mask in bits.items() if mask
    )


def _x86_tests(features: Sequence[str]) -> list[str]:
    masks: dict[tuple[int, int, int], int] = {}
    for name in features:
        *position, bit = _X86[name]
        leaf, subleaf, register = position
        masks[leaf, subleaf, register] = masks.get((leaf, subleaf, register), 0) | 1 << bit
    tests = [f"cpu_has(0x{leaf:x}, {sub}, {place}, 0x{mask:x}u)" for (leaf, sub, place), mask in sorted(masks.items())]
    wide = any(name.startswith("avx512") for name in features)
    if any(name.startswith("avx") or name in ("fma", "f16c", "xop", "fma4") for name in features):
        tests.append(f"system_keeps(0x{_AVX512_STATE if wide else _AVX_STATE:x}u)")
    return tests

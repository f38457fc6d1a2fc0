"""Which of LLVM's features the present processor offers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["lacking_features"]

_LINUX = {"pni": "sse3", "abm": "lzcnt", "bmi1": "bmi", "asimd": "neon"}
"""Linux's name of a feature -> LLVM's, where they differ by more than '_' and '.'."""


def lacking_features(features: Iterable[str], cpuinfo: str | Path = "/proc/cpuinfo") -> tuple[str, ...]:
    """Return those of `features` (LLVM's names) that the processor does not offer; (): none, or nobody can tell.

    Virtual machines may hide what their processor has.
    """
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    words = next(
        (line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))), []
    )
    if not words:
        return ()
    offered = {_LINUX.get(word, word).replace("_", "") for word in words}
    return tuple(name for name in features if name.replace(".", "") not in offered)

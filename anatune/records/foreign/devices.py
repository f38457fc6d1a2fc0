"""Which spec a log's device is: what it states is believed, checked against the device given, and never guessed.

A name means the spec that has it (as name, alias or product), unless it is also the beginning of other specs' names
("v100": of the SXM2 and the PCIe card): then the device has to be given. An architecture narrows and never identifies,
not even where only one spec has it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from anatune.core.hardware.files import list_hardware
from anatune.core.hardware.spec import CpuSpec, HardwareSpec
from anatune.records.foreign.targets import DeviceStatement
from anatune.records.traces import UnfitError

__all__ = ["NO_DEVICE", "Devices"]

NO_DEVICE = "the log does not say which device it was measured on: give it with --hw NAME"
_MAKERS = {"nvidia", "amd", "ati", "intel", "geforce", "tesla", "quadro", "radeon", "instinct", "gpu", "cpu", "r", "tm"}
"""Words of product names that say nothing more about a device."""
_X86_LEVELS = ("sse", "avx", "avx2", "avx512")
_X86 = {
    "x86-64": "sse", "x86-64-v2": "sse", "nehalem": "sse", "westmere": "sse", "corei7": "sse", "sandybridge": "avx",
    "ivybridge": "avx", "corei7-avx": "avx", "core-avx-i": "avx", "haswell": "avx2", "broadwell": "avx2",
    "skylake": "avx2", "core-avx2": "avx2", "alderlake": "avx2", "x86-64-v3": "avx2", "znver1": "avx2",
    "znver2": "avx2", "znver3": "avx2", "skylake-avx512": "avx512", "cannonlake": "avx512", "cascadelake": "avx512",
    "cooperlake": "avx512", "icelake-client": "avx512", "icelake-server": "avx512", "rocketlake": "avx512",
    "tigerlake": "avx512", "sapphirerapids": "avx512", "emeraldrapids": "avx512", "graniterapids": "avx512",
    "x86-64-v4": "avx512", "knl": "avx512", "znver4": "avx512", "znver5": "avx512",
}  # fmt: skip
"""LLVM's processors -> widest vectors. Source: LLVM's X86.td (features of each processor)."""
_ARM = re.compile(r"(cortex|neoverse|apple|thunderx|a64fx|carmel|kryo|exynos|ampere|grace|falkor|tsv110)")


class Devices:
    """Resolves what a log says about devices; the specs are read once.

    Parameters
    ----------
    given : HardwareSpec, optional
        The device that the user names for the log.
    specs : sequence of HardwareSpec, optional
        What there is, `list_hardware()` by default.
    """

    def __init__(self, given: HardwareSpec | None, specs: Sequence[HardwareSpec] | None = None) -> None:
        self._given = given
        self._specs = specs
        self._known: dict[DeviceStatement | None, HardwareSpec | str] = {}

    def resolve(self, statement: DeviceStatement | None) -> HardwareSpec:
        """Return the spec of a stated device.

        Raises
        ------
        UnfitError
            It is another one than the given, unknown, or several may be meant; the text says which.
        """
        if statement not in self._known:
            try:
                self._known[statement] = self._resolved(statement)
            except UnfitError as reason:
                self._known[statement] = str(reason)
        found = self._known[statement]
        if isinstance(found, str):
            raise UnfitError(found)
        return found

    def _resolved(self, said: DeviceStatement | None) -> HardwareSpec:
        given = self._given
        if said is None or not (said.name or given):
            if given is None:
                raise UnfitError(NO_DEVICE if said is None else f"{said.text!r}: {NO_DEVICE}")
            return given
        if given is not None and not said.name:
            _check_kind(said, given)
            return given
        meant = self._named(said)
        if given is not None:
            if given not in meant and _canonical(said.name) not in _own_names(given):
                raise UnfitError(f"measured on {said.name!r}, not on --hw {given.name}")
            _check_kind(said, given)
            return given
        if not meant:
            raise UnfitError(f"device {said.name!r} has no spec: see `anatune hw list`, or add one with that alias")
        if len(meant) > 1:  # an architecture beside the name may settle it
            meant = [spec for spec in meant if _fits(said, spec)] or meant
        if len(meant) > 1:
            names = " or ".join(spec.name for spec in meant)
            raise UnfitError(f"device {said.name!r} may be {names}: import again with --hw and the right one")
        _check_kind(said, meant[0])
        return meant[0]

    def _named(self, said: DeviceStatement) -> list[HardwareSpec]:
        """Return the specs that a name may mean."""
        if self._specs is None:
            self._specs = list_hardware()
        wanted = _canonical(said.name)
        named = [spec for spec in self._specs if wanted in map(_canonical, (spec.name, *spec.aliases))]
        if not named:
            return [spec for spec in self._specs if wanted in _own_names(spec)]
        others = [spec for spec in self._specs if spec not in named and wanted in _beginnings(spec.name)]
        return named + others


def _canonical(name: str) -> str:
    """Return a name without makers' words, punctuation and case; "16 GB" is "16gb"."""
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in _MAKERS]


def _beginnings(name: str) -> set[str]:
    """Return what a name may be shortened to: "v100" and "v100sxm2" for v100_sxm2, but not "l4" for l40s."""
    return set(itertools.accumulate(_words(name)))


def _own_names(spec: HardwareSpec) -> set[str]:
    return {_canonical(name) for name in (spec.name, *spec.aliases, spec.model, spec.model.partition("(")[0])}


def _fits(said: DeviceStatement, spec: HardwareSpec) -> bool:
    try:
        _check_kind(said, spec)
    except UnfitError:
        return False
    return True


def _check_kind(said: DeviceStatement, spec: HardwareSpec) -> None:
    """Raise UnfitError if a statement contradicts a spec."""
    if said.kind not in ("", spec.kind):
        raise UnfitError(f"measured with target {said.text.split()[0]!r}, but {spec.name} is a {spec.kind.upper()}")
    if spec.kind == "gpu":
        if said.vendor not in ("", spec.vendor):
            raise UnfitError(f"measured on a device of {said.vendor}, but {spec.name} is of {spec.vendor}")
        if said.arch and said.arch != spec.arch:
            raise UnfitError(f"measured on {said.arch}, but {spec.name} is of {spec.arch}")
    else:
        _check_cpu(said, spec)


def _check_cpu(said: DeviceStatement, spec: CpuSpec) -> None:
    """Raise UnfitError if code for the stated processor cannot run on a CPU."""
    family = "arm" if spec.compute.isa in ("neon", "sve") else "x86"
    level = _X86.get(said.arch)
    stated = said.family or ("x86" if level else "arm" if _ARM.match(said.arch) else "")
    if stated not in ("", family):
        raise UnfitError(f"compiled for {said.arch or stated}, but {spec.name} is of {spec.arch}")
    if level and _X86_LEVELS.index(level) > _X86_LEVELS.index(spec.compute.isa):
        raise UnfitError(f"compiled for {said.arch} ({level}), but {spec.name} has {spec.compute.isa} at most")

"""Installed packages and what anatune asks of them, by their metadata: nothing is imported."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from anatune.version import __version__

__all__ = ["EXTRAS", "Need", "Serves", "module_of", "needs", "problem", "version_lines", "version_of"]


class Need(NamedTuple):
    """A package that anatune, or one of its extras, asks for. Immutable."""

    name: str
    """Of the distribution, in lower case with hyphens: "scikit-learn"."""
    specifier: str
    """Versions that do: ">=0.60", "" for any."""


class Serves(NamedTuple):
    """What an extra is for."""

    what: str
    """In the words of a report."""
    commands: str


EXTRAS = {
    "tvm": Serves("kernels of CPUs and GPUs", "tune, compile, run, export, hw calibrate, anatune.build, verify"),
    "cuda": Serves("kernels of NVIDIA GPUs, no GPU needed", "plan --compile, tune, compile and export for GPUs"),
    "learn": Serves("learned corrections", "plan --model, tune, records train"),
    "onnx": Serves("ONNX models", "compile MODEL.onnx"),
    "report": Serves("reports as pages", "--html, anatune.plots"),
    "cluster": Serves("many machines", "worker, cluster, tune --cluster"),
    "boards": Serves("boards behind TVM's tracker", "tune --tracker, hw detect --tracker"),
    "postgres": Serves("records on a PostgreSQL server", "--records postgresql://..."),
    "triton": Serves("pruning for Triton", "anatune.adapters.triton"),
    "kernel-tuner": Serves("pruning for Kernel Tuner", "prune --for kernel-tuner, anatune.adapters.kernel_tuner"),
    "metaschedule": Serves("TVM's MetaSchedule", "prune --for metaschedule, anatune.adapters.metaschedule"),
    "optuna": Serves("pruning for Optuna", "anatune.adapters.optuna"),
}
"""Extra -> what it is for. Those for developers (dev, docs) are left out."""

_MODULES = {
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
    "cuda-bindings": "cuda.bindings.nvrtc",
    "nvidia-cuda-nvrtc-cu12": "",  # a library; `trials.compiler` loads it
    "nvidia-ml-py": "pynvml",
    "scikit-learn": "sklearn",
}
_WHY = {
    "apache-tvm-ffi": "0.1.15.post2 crashes in tvm.ir.save_json",
    "cuda-bindings": "the compiler of 13 has dropped sm_70 and older",
    "nvidia-cuda-nvrtc-cu12": "the compiler of 13 has dropped sm_70 and older",
}
"""Why versions are pinned, where they are."""

_EXTRA = r"""extra\s*==\s*['"]([\w.-]+)['"]"""
"""Part of a requirement's marker."""

_TOLD = (
    *("numpy", "numba", "llvmlite", "scipy", "msgspec", "pandas", "SQLAlchemy", "apache-tvm", "apache-tvm-ffi"),
    *("cuda-bindings", "nvidia-cuda-nvrtc-cu12", "lightgbm", "scikit-learn", "onnx", "torch", "triton", "optuna"),
    *("kernel-tuner", "distributed", "psycopg", "plotly"),
)
"""Packages whose versions `anatune --version` tells."""


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution; None: there is none, or its metadata are damaged."""
    try:
        return metadata.version(name) or None
    except (metadata.PackageNotFoundError, KeyError, TypeError, OSError):
        return None


def version_lines() -> list[str]:
    """Return ``anatune X.Y.Z``, Python and the system, and a line for each installed package whose version matters."""
    lines = [
        f"anatune {__version__}",
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}",
    ]
    found = {name: version_of(name) for name in _TOLD}
    lines += [f"{name} {version}" for name, version in found.items() if version is not None]
    missing = [name for name, version in found.items() if version is None]
    return [*lines, *([f"not installed: {', '.join(missing)}"] if missing else [])]


def needs() -> dict[str, list[Need]]:
    """Return what anatune asks for, by extra; "" is what it always needs. {}: neither metadata nor a checkout tell.

    Extras that name others of anatune's hold what these hold.
    """
    texts: dict[str, list[str]] = {}
    for extra, text in _requirements():
        texts.setdefault(extra, []).append(text)
    return {extra: list(dict.fromkeys(_expanded(extra, texts))) for extra in texts}


def _expanded(extra: str, texts: Mapping[str, list[str]]) -> Iterator[Need]:
    for text in texts.get(extra, ()):
        name, names, specifier = _parts(text)
        if name == "anatune":
            for other in names:
                yield from _expanded(other, texts)
        else:
            yield Need(name, specifier)


def _parts(text: str) -> tuple[str, list[str], str]:
    """Return the name, the extras in brackets and the versions of a requirement without its marker."""
    found = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?", text)
    if found is None:
        return text.strip(), [], ""
    names = [name.strip() for name in (found[2] or "").split(",") if name.strip()]
    return re.sub(r"[-_.]+", "-", found[1]).lower(), names, found[3].replace(" ", "")


def _requirements() -> Iterator[tuple[str, str]]:
    """Yield (extra, requirement) of those that apply to this interpreter and system."""
    for text in _stated():
        requirement, _, marker = text.partition(";")
        extra = re.search(_EXTRA, marker)
        if _applies(marker, extra[1] if extra else ""):
            yield (extra[1] if extra else ""), requirement


def _stated() -> list[str]:
    """Return the requirements of the checkout around the package, else those of the installation's metadata."""
    try:
        import tomllib

        text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        project: dict[str, Any] = tomllib.loads(text)["project"]
        assert project["name"] == "anatune"  # else it is the pyproject.toml of whoever copied the package
    except (ImportError, OSError, ValueError, KeyError, AssertionError):
        try:
            return metadata.requires("anatune") or []
        except metadata.PackageNotFoundError:
            return []
    stated = list(project["dependencies"])
    for extra, texts in project["optional-dependencies"].items():
        for text in texts:
            requirement, _, marker = text.partition(";")
            also = f"({marker}) and " if marker.strip() else ""
            stated.append(f'{requirement}; {also}extra == "{extra}"')
    return stated


def _applies(marker: str, extra: str) -> bool:
    """Whether a marker holds here; without the package packaging none but an extra's name is taken to."""
    if not marker.strip():
        return True
    try:
        from packaging.markers import Marker
    except Exception:  # noqa: BLE001 - a broken package may raise anything, and is told of where it is asked for
        return re.fullmatch(rf"\s*{_EXTRA}\s*", marker) is not None
    return bool(Marker(marker).evaluate({"extra": extra}))


def problem(need: Need) -> str:
    """Return what is wrong with the installed version of a package, "" where nothing is."""
    version = version_of(need.name)
    if version is None:
        return f"{need.name} is not installed"
    try:
        from packaging.specifiers import SpecifierSet

        fits = SpecifierSet(need.specifier).contains(version, prereleases=True)
    except Exception:  # noqa: BLE001 - as in `_applies`; and versions that are none
        return ""
    why = f" ({_WHY[need.name]})" if need.name in _WHY else ""
    return "" if fits else f"{need.name} {version} is installed, {need.specifier} is asked for{why}"


def module_of(name: str) -> str:
    """Return the module that a distribution is imported as; "": none, or none that is there."""
    module = _MODULES.get(name, name.replace("-", "_"))
    root = module.partition(".")[0]
    if not root or root in sys.modules:
        return module
    try:
        return module if find_spec(root) else ""
    except (ImportError, ValueError):
        return module  # damaged: the trial says how

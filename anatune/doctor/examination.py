"""The checks of `anatune doctor` in the order of the report: packages, compilers, GPUs, folders, machine."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from anatune.doctor.findings import Finding
from anatune.doctor.folders import folder_findings
from anatune.doctor.machine import compiler_findings, gpu_findings, machine_findings, shell_findings
from anatune.doctor.packages import EXTRAS, Serves, module_of, problem, version_of
from anatune.doctor.trials import IS_TRIED, Told, run_trials
from anatune.requirements import Need, needs, pip_line
from anatune.version import __version__

_BASIS = "To plan"
_MORE = "More commands"
_LEAST_PYTHON = (3, 10)
_AGAIN = "install anatune again: pip install . in its clone"
_SHELL = "typer"
"""The package that the command line needs; whether the library can plan is tried."""
_SERVED = {
    "packaging": "doctor",
    "pandas": "anatune.predict, Plan.to_frame",
    "rich": "tables and progress on terminals",
    "sqlalchemy": "tune, records, plan --records",
}
_DEEPER = {"tvm": "*tvm"}
"""Extras for which more than an import is tried."""
_REPLACED = {"pycuda": "cuda-bindings (extra cuda) does the same"}
"""Extras that no command needs -> reason."""
_FOR_DEVELOPERS = ("dev", "docs")


def examine(*, imports: bool = True) -> list[Finding]:
    """Run all checks and return the findings.

    Parameters
    ----------
    imports : bool
        Also import the packages of extras, in separate processes; that takes 8 s of CPU time if all are installed.
        Otherwise only their versions are checked.
    """
    required = needs()
    hidden = {"", *_FOR_DEVELOPERS, *EXTRAS}
    extras = [name for name in [*EXTRAS, *(name for name in required if name not in hidden)] if name in required]
    complete = [name for name in extras if all(version_of(need.name) is not None for need in required[name])]
    trials: dict[str, Sequence[str]] = {}
    if imports:  # a package is tried with the first extra that needs it
        seen: set[str] = set()
        for name in complete:
            words = [word for word in _words(required[name], name) if word not in seen]
            seen.update(words)
            trials |= {name: words} if words else {}
    trials |= {"": _words(required.get("", ())), "*planning": ["*planning"], "*gpu": ["*gpu"]}
    if "cuda" in complete:
        trials["*compiler"] = ["*compiler"]
    told = run_trials(trials)
    failures = {word: reason for answer in told.values() for word, reason in _failures(answer)}
    return [
        *_basis(required.get("", ()), failures, told["*planning"]),
        *(_extra(name, required[name], failures, tried=imports) for name in extras),
        _torch(),
        *compiler_findings(),
        *gpu_findings(told["*gpu"], told.get("*compiler")),
        *folder_findings(),
        *machine_findings(told["*planning"]),
        *shell_findings(),
    ]


def _words(wanted: Sequence[Need], extra: str = "") -> list[str]:
    """Return what to try of packages: their modules, and the trials in `_DEEPER`."""
    modules = [module_of(need.name) for need in wanted]
    return [*filter(None, modules), *([_DEEPER[extra]] if extra in _DEEPER else [])]


def _failures(answer: Told) -> Iterator[tuple[str, str]]:
    """Yield (word, reason) of each failed trial."""
    for word, reason in answer.items():
        if word != "died" and isinstance(reason, str):
            # the last message of a process that died says what it tried
            told = answer.get("died", "its process ended") if reason == IS_TRIED else reason
            yield word, told if word.startswith("*") else f"{word} cannot be imported ({told})"


def _basis(wanted: Sequence[Need], failures: Mapping[str, str], planned: Told) -> Iterator[Finding]:
    package_folder = Path(__file__).parents[1]
    python = f"Python {platform.python_version()} ({sys.executable})"
    if sys.version_info < _LEAST_PYTHON:
        text = f"{python} is older than {'.'.join(map(str, _LEAST_PYTHON))}"
        yield Finding(_BASIS, "error", "Python", text, "everything", "install a newer Python")
    else:
        yield Finding(_BASIS, "ok", "Python", python)
    installed = version_of("anatune")
    if installed == __version__:
        yield Finding(_BASIS, "ok", "anatune", f"{__version__} in {package_folder}")
    else:
        said = f"the installed package has version {installed}" if installed else "no package anatune is installed"
        text = f"version {__version__} was imported from {package_folder}, but {said}"
        yield Finding(_BASIS, "warning", "anatune", text, "", _AGAIN)
    works = planned.get("compiled") is True
    for need in wanted:
        wrong, damaged = problem(need), failures.get(module_of(need.name), "")
        if wrong or damaged:
            essential = not works or need.name == _SHELL
            served = "everything" if essential else _SERVED.get(need.name, "some commands")
            fix = f"pip install {shlex.quote(str(need))}" if wrong else f"pip install --force-reinstall {need.name}"
            yield Finding(_BASIS, "error" if essential else "broken", need.name, wrong or damaged, served, fix)
    if not works:
        reason = planned.get("died") or planned.get("*planning") or "no answer"
        yield Finding(_BASIS, "error", "planning", f"a space cannot be made: {reason}", "everything", _AGAIN)
        return
    names = ", ".join(f"{need.name} {version_of(need.name)}" for need in wanted if version_of(need.name))
    yield Finding(_BASIS, "ok", "planning", f"spaces and compiled code work ({names})")
    specs = planned.get("specs")
    if not isinstance(specs, int):
        fix = "run anatune hw check FILE, then correct or remove the file"
        yield Finding(_BASIS, "broken", "specs", str(specs), "hw list", fix)


def _extra(name: str, wanted: Sequence[Need], failures: Mapping[str, str], *, tried: bool) -> Finding:
    """Return the finding about an extra: its packages work, or the first problem."""
    what, serves = EXTRAS.get(name, Serves(f"the extra {name}", "some commands"))
    fix = pip_line(name)
    missing = [need.name for need in wanted if version_of(need.name) is None]
    if missing:
        text = f"{what}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        if name in _REPLACED:
            return Finding(_MORE, "note", name, f"{text}; {_REPLACED[name]}", serves, fix)
        return Finding(_MORE, "missing", name, text, serves, fix)
    wrong = list(filter(None, (problem(need) for need in wanted)))
    wrong = wrong or [failures[word] for word in _words(wanted, name) if word in failures]
    if wrong:
        return Finding(_MORE, "broken", name, f"{what}: {wrong[0]}", serves, fix)
    names = ", ".join(f"{need.name} {version_of(need.name)}" for need in wanted)
    untried = "" if tried else ", not tried"
    return Finding(_MORE, "ok", name, f"{what} ({names}{untried})", serves)


def _torch() -> Finding:
    """Return the finding about PyTorch, which no extra installs because it has a build for each kind of GPU."""
    version = version_of("torch")
    serves = "compile MODEL.pt2, torch.compile(backend='anatune')"
    if version is None:
        fix = f"pip install torch, and {pip_line('tvm').removeprefix('pip install ')}"
        return Finding(_MORE, "missing", "PyTorch", "models of PyTorch: torch is not installed", serves, fix)
    return Finding(_MORE, "ok", "PyTorch", f"models of PyTorch (torch {version}, not tried)", serves)

"""The whole look: packages, folders, machine, compilers, in the order of the report."""

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
"""Without it there is no command line; whether the library plans is tried."""
_SERVED = {
    "packaging": "doctor",
    "pandas": "anatune.predict, Plan.to_frame",
    "rich": "tables and progress on terminals",
    "sqlalchemy": "tune, records, plan --records",
}
_DEEPER = {"tvm": "*tvm"}
"""Extras of which more than an import is tried."""
_REPLACED = {"pycuda": "cuda-bindings (extra cuda) does the same"}
"""Extras that no command lacks -> why not."""
_FOR_DEVELOPERS = ("dev", "docs")


def examine(*, imports: bool = True) -> list[Finding]:
    """Look at everything, and return what was found.

    Parameters
    ----------
    imports : bool
        Also import the packages of extras, in processes of their own: 8 s of CPU time where all are installed.
        Without, their versions alone are judged.
    """
    asked = needs()
    hidden = {"", *_FOR_DEVELOPERS, *EXTRAS}
    extras = [name for name in [*EXTRAS, *(name for name in asked if name not in hidden)] if name in asked]
    complete = [name for name in extras if all(version_of(need.name) is not None for need in asked[name])]
    trials: dict[str, Sequence[str]] = {}
    if imports:  # what takes longest is the first extra's
        seen: set[str] = set()
        for name in complete:
            words = [word for word in _words(asked[name], name) if word not in seen]
            seen.update(words)
            trials |= {name: words} if words else {}
    trials |= {"": _words(asked.get("", ())), "*planning": ["*planning"], "*gpu": ["*gpu"]}
    if "cuda" in complete:
        trials["*compiler"] = ["*compiler"]
    told = run_trials(trials)
    failures = {word: reason for answer in told.values() for word, reason in _failures(answer)}
    return [
        *_basis(asked.get("", ()), failures, told["*planning"]),
        *(_extra(name, asked[name], failures, tried=imports) for name in extras),
        _torch(),
        *compiler_findings(),
        *gpu_findings(told["*gpu"], told.get("*compiler")),
        *folder_findings(),
        *machine_findings(told["*planning"]),
        *shell_findings(),
    ]


def _words(wanted: Sequence[Need], extra: str = "") -> list[str]:
    """Return what is tried of packages: their modules, and what `_DEEPER` says."""
    modules = [module_of(need.name) for need in wanted]
    return [*filter(None, modules), *([_DEEPER[extra]] if extra in _DEEPER else [])]


def _failures(answer: Told) -> Iterator[tuple[str, str]]:
    """Yield (word, reason) of what was tried in vain."""
    for word, reason in answer.items():
        if word != "died" and isinstance(reason, str):
            # what a process told last before it died: that it tries this
            told = answer.get("died", "its process ended") if reason == IS_TRIED else reason
            yield word, told if word.startswith("*") else f"{word} cannot be imported ({told})"


def _basis(wanted: Sequence[Need], failures: Mapping[str, str], planned: Told) -> Iterator[Finding]:
    place = Path(__file__).parents[1]
    python = f"Python {platform.python_version()} ({sys.executable})"
    if sys.version_info < _LEAST_PYTHON:
        text = f"{python} is older than {'.'.join(map(str, _LEAST_PYTHON))}"
        yield Finding(_BASIS, "error", "Python", text, "everything", "install a newer Python")
    else:
        yield Finding(_BASIS, "ok", "Python", python)
    installed = version_of("anatune")
    if installed == __version__:
        yield Finding(_BASIS, "ok", "anatune", f"{__version__} in {place}")
    else:
        said = f"the installed package says {installed}" if installed else "no package of it is installed"
        text = f"{__version__} in {place}, and {said}: another copy comes first, or none is installed"
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
        yield Finding(_BASIS, "error", "planning", f"a tile space cannot be made: {reason}", "everything", _AGAIN)
        return
    names = ", ".join(f"{need.name} {version_of(need.name)}" for need in wanted if version_of(need.name))
    yield Finding(_BASIS, "ok", "planning", f"spaces and compiled code work ({names})")
    specs = planned.get("specs")
    if not isinstance(specs, int):
        fix = "anatune hw check FILE says more; remove or mend it"
        yield Finding(_BASIS, "broken", "specs", str(specs), "hw list", fix)


def _extra(name: str, wanted: Sequence[Need], failures: Mapping[str, str], *, tried: bool) -> Finding:
    """Return one line on an extra: all its packages are there and work, or what is wrong first."""
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
    """Return one line on PyTorch: no extra installs it, for it has builds of its own for each kind of GPU."""
    version = version_of("torch")
    serves = "compile MODEL.pt2, torch.compile(backend='anatune')"
    if version is None:
        fix = f"pip install torch, beside {pip_line('tvm').removeprefix('pip install ')}"
        return Finding(_MORE, "missing", "PyTorch", "models of PyTorch: torch is not installed", serves, fix)
    return Finding(_MORE, "ok", "PyTorch", f"models of PyTorch (torch {version}, not tried)", serves)

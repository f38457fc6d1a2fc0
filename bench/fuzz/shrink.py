"""A failing program made small: fewer runs, outputs, steps, attributes while it fails the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bench.fuzz.program import Outcome, Program, live, settings_of, with_input, with_runs

__all__ = ["shrunk", "signature"]

_WORDS = re.compile(r"v\d+|x\d+|0x[0-9a-f]+|-?\d+(\.\d+)?(e[+-]?\d+)?|'[^']*'|\([^)]*\)|\[[^\]]*\]")


def pattern(why: str) -> str:
    """Return the message of a failure without its numbers and names."""
    return " ".join(_WORDS.sub("", why).split())[:100]


def signature(outcome: Outcome) -> str:
    """Return what failures have in common that are one: state, operators, the message of what was raised."""
    program = outcome.program
    steps = getattr(program, "steps", None)
    operators = " ".join(sorted({step.op for step in steps})) if steps else " ".join(outcome.operators)
    words = "" if outcome.state == "wrong" else pattern(outcome.why)
    return f"{outcome.state}: {operators}: {words}"


def _same(first: Outcome, second: Outcome) -> bool:
    if first.state != second.state:
        return False
    return first.state != "raw" or pattern(first.why)[:40] == pattern(second.why)[:40]


def shrunk(outcome: Outcome, judge: Callable[[Program], Outcome], values: Callable[[Program], Any], *,
           limit_s: float = 60.0) -> Outcome:  # fmt: skip
    """Return the failure of a smaller program.

    Parameters
    ----------
    outcome : Outcome
        A failure, with its program.
    judge : callable
        Returns what becomes of a program.
    values : callable
        Returns each value of a program in each run: what can stand in its place; something else where that fails.
    limit_s : float
        Begin nothing new after so many seconds.
    """
    ends = time.monotonic() + limit_s
    is_smaller = True
    while is_smaller and time.monotonic() < ends:
        is_smaller = False
        for candidate in _smaller(outcome.program, values):
            if time.monotonic() > ends:
                break
            tried = judge(candidate)
            if tried.is_failure and _same(outcome, tried):
                kept = candidate if tried.state != "wrong" else tried.program
                outcome, is_smaller = replace(tried, program=kept), True
                break
    return outcome


def _smaller(program: Program, values: Callable[[Program], Any]) -> Iterator[Program]:
    """Yield smaller programs, those that save most first."""
    if program.num_runs > 1:
        for run in range(program.num_runs):
            yield with_runs(program, [run])
    names = [name for step in program.steps for name in step.outputs if name]
    if len(program.steps) > 1:
        yield from _alone(program, values)
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield live(program, (name,))
    for name in names:
        if name not in program.outputs:
            smaller = live(program, (name,))
            if len(smaller.steps) < len(program.steps):
                yield smaller
    if len(program.steps) > 1:
        recorded = values(program)
        if isinstance(recorded, dict):
            for name in reversed(names):
                if name in recorded and name not in program.outputs:
                    yield with_input(program, name, recorded[name])
    for name, value in (("threads", 1), ("varies", False), ("route", "session")):
        if name in program.settings and program.settings[name] != value:
            yield settings_of(program, **{name: value})
    for place, step in enumerate(program.steps):
        for name in step.attributes:
            fewer = {other: value for other, value in step.attributes.items() if other != name}
            steps = (*program.steps[:place], replace(step, attributes=fewer), *program.steps[place + 1 :])
            yield replace(program, steps=steps)
    yield from _plainer(program)


def _alone(program: Program, values: Callable[[Program], Any]) -> Iterator[Program]:
    """Yield each step by itself, given what it reads: one of them often fails."""
    recorded = values(program)
    if not isinstance(recorded, dict):
        return
    for step in program.steps:
        if all(name in recorded or name in program.inputs or name in program.weights for name in step.inputs if name):
            given = {name: recorded[name] for name in step.inputs if name in recorded}
            inputs = {**program.inputs, **given}
            yield live(replace(program, steps=(step,), inputs=inputs), tuple(name for name in step.outputs if name))


def _plainer(program: Program) -> Iterator[Program]:
    """Yield programs with plainer numbers; integers may be indices and stay."""
    for name, arrays in program.inputs.items():
        for change in (np.ones_like, np.round):
            if all(array.dtype.kind == "f" for array in arrays):
                plain = tuple(change(array) for array in arrays)
                if any((one != other).any() for one, other in zip(plain, arrays, strict=True)):
                    yield replace(program, inputs={**program.inputs, name: plain})
    for name, array in program.weights.items():
        for change in (np.ones_like, np.round):
            if array.dtype.kind == "f" and array.size > 1 and (change(array) != array).any():
                yield replace(program, weights={**program.weights, name: change(array)})

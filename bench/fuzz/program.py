"""A random program as values: steps, what they read, the arrays of several runs; independent of who runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

__all__ = ["Array", "Outcome", "Program", "Step", "live", "settings_of", "with_input", "with_runs", "words"]

Array = Any
"""A NumPy array; of a torch program in bfloat16 an array of `ml_dtypes.bfloat16`."""


@dataclass(frozen=True)
class Step:
    """One operator.

    Attributes
    ----------
    op : str
        ONNX: its name. PyTorch: the text of an expression with {0}, {1}, ... for what it reads.
    inputs, outputs : tuple of str
        Names of values; "" for an input that is left out.
    attributes : mapping
        ONNX: attributes. PyTorch: names of modules that the expression calls, and the texts that construct them.
    domain : str
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""


@dataclass(frozen=True)
class Program:
    """A program with all that one of its runs needs.

    Attributes
    ----------
    kind : str
    seed : int
        Of the noise that the oracle adds.
    steps : tuple of Step
    inputs : mapping of str to tuple of array
        One array for each run.
    weights : mapping of str to array
    outputs : tuple of str
    settings : mapping
        Opset, threads, axes that vary, how it is called: what its kind says.
    """

    kind: str
    seed: int
    steps: tuple[Step, ...]
    inputs: Mapping[str, tuple[Array, ...]]
    weights: Mapping[str, Array]
    outputs: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def num_runs(self) -> int:
        """How many runs there are."""
        return len(next(iter(self.inputs.values()), ((),)))

    def feeds(self, run: int) -> dict[str, Array]:
        """Return the inputs of a run."""
        return {name: arrays[run] for name, arrays in self.inputs.items()}


@dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes
    ----------
    state : str
        "right", "wrong", "raw" (an exception that is none of anatune's), "crash", "hang", "refused", or "skipped": the
        oracle cannot say.
    why : str
    operators : tuple of str
    program : object
        The program, where it failed.
    """

    state: str
    why: str = ""
    operators: tuple[str, ...] = ()
    program: Any = None

    @property
    def is_failure(self) -> bool:
        """Whether somebody has to look at it."""
        return self.state in ("wrong", "raw", "crash", "hang")


def live(program: Program, outputs: tuple[str, ...] | None = None) -> Program:
    """Return a program without what none of its outputs needs."""
    outputs = program.outputs if outputs is None else outputs
    wanted, kept = set(outputs), []
    for step in reversed(program.steps):
        if wanted.intersection(step.outputs):
            kept.append(step)
            wanted.update(step.inputs)
    inputs = {name: arrays for name, arrays in program.inputs.items() if name in wanted}
    if not inputs:  # what takes nothing is still called with something
        inputs = dict([next(iter(program.inputs.items()))])
    weights = {name: array for name, array in program.weights.items() if name in wanted}
    return replace(program, steps=tuple(reversed(kept)), inputs=inputs, weights=weights, outputs=outputs)


def with_input(program: Program, name: str, arrays: tuple[Array, ...]) -> Program:
    """Return a program that is given a value, one array for each run, instead of computing it."""
    steps = tuple(step for step in program.steps if name not in step.outputs)
    outputs = tuple(one for one in program.outputs if one != name and any(one in step.outputs for step in steps))
    return live(replace(program, steps=steps, inputs={**program.inputs, name: arrays}), outputs)


def with_runs(program: Program, runs: list[int]) -> Program:
    """Return a program with some of its runs."""
    return replace(
        program, inputs={name: tuple(arrays[run] for run in runs) for name, arrays in program.inputs.items()}
    )


def settings_of(program: Program, **changes: Any) -> Program:
    """Return a program with other settings."""
    return replace(program, settings={**program.settings, **changes})


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


Judge = Callable[[Program], Outcome]


def literal(array: Array) -> str:
    """Return an array as text of a NumPy expression that gives exactly its numbers."""
    name = array.dtype.name
    if name == "bfloat16":
        return f"np.array({_numbers(array.astype('float32'))}, 'float32')"
    if array.size > 4 and array.dtype.kind in "fiu" and (array == array.reshape(-1)[0]).all():
        return f"np.full({array.shape}, {_numbers(array.reshape(-1)[0])}, {name!r})"
    return f"np.array({_numbers(array)}, {name!r})" + (f".reshape({array.shape})" if 0 in array.shape else "")


def _numbers(array: Array) -> str:
    return repr(np.asarray(array).tolist()).replace("inf", "np.inf").replace("nan", "np.nan")

"""Random PyTorch modules: made expression by expression, compiled by anatune, compared with samples in float64."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.fuzz.builder import MOST_ELEMENTS, VARYING, Builder, Skip
from bench.fuzz.oracle import NUM_SAMPLES, Noise, fault
from bench.fuzz.program import Array, Outcome, Program, Step, literal, with_runs
from bench.fuzz.torch.oracle import Sampling, as_array, as_tensor, default_dtype, doubles, outputs_of

__all__ = ["TorchBuilder", "judge", "make", "module_of", "recorded", "text"]

_NAMES = {"torch": torch, "F": torch.nn.functional}
MOST_SIZE = 16
"""The largest of a size that varies."""


class TorchBuilder(Builder):
    """A module that grows."""

    kind = "torch"
    dtypes = ("float32",) * 10 + ("float16", "bfloat16", "float64")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.refusal = ""

    def call(self, expression: str, *inputs: str, outputs: int = 1, modules: Sequence[str] = (), **numbers: Any) -> str:
        """Return the name of the first result of a new step.

        Parameters
        ----------
        expression : str
            With {0}, {1}, ... for inputs, {NAME} for `numbers`, {m0}, ... for `modules`.
        modules : sequence of str
            Texts that construct modules.

        Raises
        ------
        Skip
            PyTorch does not admit it.
        """
        named = {f"m{self._count}_{place}": one for place, one in enumerate(modules)}
        for place, name in enumerate(named):
            expression = expression.replace(f"{{m{place}}}", f"self.{name}")
        for name, number in numbers.items():
            expression = expression.replace(f"{{{name}}}", repr(number))
        expression = expression.replace("{T}", f"torch.{self.dtype}")
        step = Step(expression, tuple(inputs), tuple(self._named() for _ in range(outputs)), named)
        single = Program("torch", self.seed, (step,), {name: (self.arrays[name],) for name in dict.fromkeys(inputs)} or
                         {"x": (np.zeros(1, "float32"),)}, {}, step.outputs, {"dtype": self.dtype})  # fmt: skip
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                found = outputs_of(module_of(single)(*(as_tensor(arrays[0]) for arrays in single.inputs.values())))
        except Exception as error:
            self.refusal = f"{expression}: {type(error).__name__}: {error}"
            raise Skip from error
        arrays = [as_array(one) for one in found]
        if any(one.size > 4 * MOST_ELEMENTS or one.dtype.kind == "c" for one in arrays):
            raise Skip
        if any(
            one.dtype.name != self.dtype and (one.dtype.kind == "f" or one.dtype.name == "bfloat16") for one in arrays
        ):
            raise Skip  # the oracle knows one dtype of floats
        self.arrays.update(zip(step.outputs, arrays, strict=True))
        self.steps.append(step)
        return step.outputs[0]

    def settings(self) -> dict[str, Any]:
        """Return how the program is run."""
        return {**super().settings(), "dtype": self.dtype}


def make(seed: int) -> Program:
    """Return the program of a seed."""
    from bench.fuzz.torch.operators import OPERATORS

    builder = TorchBuilder(seed)
    builder.grow(OPERATORS, builder.integer(1, 7))
    if not builder.steps:
        builder.call("torch.relu({0})", builder.new((3, 5), weight=False))
    return builder.finished()


def source_of(program: Program, name: str = "M") -> str:
    """Return the text of a program's module, which takes its weights by name."""
    lines = [f"class {name}(torch.nn.Module):", "    def __init__(self, weights):", "        super().__init__()"]
    lines += [
        "        for name, one in weights.items():",
        "            is_float = one.is_floating_point()",
        "            own = torch.nn.Parameter(one, requires_grad=False) if is_float else torch.nn.Buffer(one)",
        "            setattr(self, name, own)",
        f"        torch.manual_seed({program.seed})",
    ]
    cast = f".to(torch.{program.settings['dtype']})" if program.settings["dtype"] != "float32" else ""
    lines += [f"        self.{one} = {words}{cast}" for step in program.steps for one, words in step.attributes.items()]
    lines.append(f"    def forward(self, {', '.join(program.inputs)}):")
    for step in program.steps:
        names = [f"self.{one}" if one in program.weights else one for one in step.inputs]
        lines.append(f"        {', '.join(step.outputs)} = {step.op.format(*names)}")
    return "\n".join([*lines, f"        return {', '.join(program.outputs)}"]) + "\n"


_count = iter(range(1 << 60))


def module_of(program: Program) -> torch.nn.Module:
    """Return a program's module, with its weights."""
    source = source_of(program)
    file = f"<fuzz {program.kind} {program.seed} {next(_count)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # PyTorch's compiler reads it
    names = dict(_NAMES)
    exec(compile(source, file, "exec"), names)
    weights = {name: as_tensor(array) for name, array in program.weights.items()}
    return names["M"](weights).eval().requires_grad_(False)


def dynamic_shapes(program: Program) -> Any:
    """Return which axes of a program's inputs vary, as PyTorch's export takes them; None: none does."""
    if not program.settings["varies"]:
        return None
    size = torch.export.Dim("n", min=1, max=MOST_SIZE)
    shapes = tuple(
        {axis: size for axis in range(arrays[0].ndim) if arrays[0].shape[axis] == VARYING}
        for arrays in program.inputs.values()
    )
    return shapes if any(shapes) else None


def sampled_outputs(program: Program, module: torch.nn.Module, run: int, num_samples: int = NUM_SAMPLES) -> Any:
    """Return samples of each output of a run, and whether they are exact and their zeros have signs.

    Raises
    ------
    UndefinedError
        PyTorch does not say what it computes.
    Exception
        PyTorch refuses these inputs.
    """
    samples: list[list[Array]] = []
    modes = []
    with torch.no_grad(), warnings.catch_warnings(), default_dtype(torch.float64):
        warnings.simplefilter("ignore")
        for sample in range(num_samples):
            inputs = [doubles(as_tensor(array)) for array in program.feeds(run).values()]
            mode = Sampling(Noise(sample, program.seed), program.settings["dtype"])
            with mode:
                found = outputs_of(module(*inputs))
            samples.append([as_array(one) for one in found])
            modes.append(mode)
    return list(zip(*samples, strict=True)), modes[0].is_exact, modes[0].has_signs


def judge(program: Program) -> Outcome:
    """Return what becomes of a program; exceptions of anatune's pass."""
    import anatune
    from anatune.errors import AnatuneError

    operators = tuple(step.op for step in program.steps)
    torch.set_num_threads(1)
    plain = module_of(program)
    try:
        dtypes = [as_array(one).dtype.name for one in _eager(program, plain, 0)]
    except Exception as error:  # noqa: BLE001  of PyTorch
        return Outcome("skipped", f"{type(error).__name__}: {error}"[:200], operators)
    wide = module_of(program).double()
    first = tuple(as_tensor(array) for array in program.feeds(0).values())
    shapes = dynamic_shapes(program)
    if program.settings["varies"] and not _is_exported(plain, first, shapes):
        return Outcome("skipped", "torch.export refuses it", operators)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = anatune.compile(
            plain, first, dynamic_shapes=shapes, threads=program.settings["threads"], check=False
        )
    for run in range(program.num_runs):
        try:
            outputs, exact, signs = sampled_outputs(program, wide, run)
        except Exception:  # noqa: BLE001  a quotient by zero, an integer of NaN: anatune may refuse or not, but lives
            outputs = None
        inputs = [as_tensor(array) for array in program.feeds(run).values()]
        if outputs is None:
            try:
                compiled(*inputs)
            except AnatuneError:
                continue
            continue
        results = outputs_of(compiled(*inputs))
        for name, result, samples, dtype in zip(program.outputs, results, outputs, dtypes, strict=True):
            why = fault(samples, as_array(torch.as_tensor(result)), dtype, exact=exact, signs=signs)
            if why:
                return Outcome("wrong", f"run {run}: {name} {why}", operators, with_runs(program, [run]))
    return Outcome("right", "", operators)


def _eager(program: Program, module: torch.nn.Module, run: int) -> list[Any]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outputs_of(module(*(as_tensor(array) for array in program.feeds(run).values())))


def _is_exported(module: torch.nn.Module, inputs: Sequence[torch.Tensor], shapes: Any) -> bool:
    """Return whether PyTorch itself exports a module for sizes that vary."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    except Exception:  # noqa: BLE001  of PyTorch, of many kinds
        return False
    return True


def recorded(program: Program) -> dict[str, tuple[Array, ...]]:
    """Return what each value of a program is in each run: what can stand in its place as an input."""
    names = tuple(name for step in program.steps for name in step.outputs)
    whole = replace(program, outputs=names)
    module = module_of(whole)
    runs = [[as_array(one) for one in _eager(whole, module, run)] for run in range(program.num_runs)]
    return {name: tuple(run[place] for run in runs) for place, name in enumerate(names)}


def text(program: Program) -> str:
    """Return a program as Python that compares anatune with PyTorch in float64."""
    varies = dynamic_shapes(program)
    shapes = [sorted(one) for one in varies] if varies else None
    lines = [
        "import numpy as np, torch, torch.nn.functional as F, anatune", source_of(program).rstrip(),
        "def tensor(array, dtype): return torch.from_numpy(array).to(dtype)", "weights = {",
    ]  # fmt: skip
    lines += [f"    {name!r}: tensor({literal(one)}, torch.{one.dtype.name})," for name, one in program.weights.items()]
    lines += ["}", "inputs = ["]
    lines += [f"    tensor({literal(one[0])}, torch.{one[0].dtype.name})," for one in program.inputs.values()]
    lines += ["]", "m = M(weights).eval()", "n = torch.export.Dim('n', min=1, max=16)" if shapes else ""]
    given = f"dynamic_shapes=tuple({{axis: n for axis in axes}} for axes in {shapes}), " if shapes else ""
    lines += [
        f"c = anatune.compile(m, tuple(inputs), {given}threads={program.settings['threads']}, check=False)",
        "print('anatune', c(*inputs))", "double = lambda one: one.double() if one.is_floating_point() else one",
        "torch.set_default_dtype(torch.float64)",
        "with torch.no_grad(): print('float64', m.double()(*map(double, inputs)))",
    ]  # fmt: skip
    return "\n".join(line for line in lines if line) + "\n"

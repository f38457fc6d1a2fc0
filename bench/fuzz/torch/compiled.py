"""Random functions under `torch.compile(backend="anatune")`: views, changes in place, graph breaks, new weights.

A function is called several times; numbers are compared with samples in float64, and with eager PyTorch what is not a
number: strides, which results share memory with each other and with inputs, what inputs hold after the call.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.fuzz.oracle import NUM_SAMPLES, Noise, fault
from bench.fuzz.program import Array, Outcome, Program
from bench.fuzz.torch.cases import TorchBuilder, module_of, recorded
from bench.fuzz.torch.cases import text as torch_text
from bench.fuzz.torch.oracle import Sampling, as_array, as_tensor, default_dtype, doubles, outputs_of

__all__ = ["judge", "make", "recorded", "text"]

_ALIASES = (
    "{0}.view(-1)", "{0}.t()", "{0}.transpose(0, -1)", "{0}[1:]", "{0}[..., :1]", "{0}.unsqueeze(0)", "{0}.detach()",
    "{0}.reshape(-1)", "{0}.view_as({0})", "{0}.squeeze()", "{0}.T", "{0}.flatten()", "{0}[0]", "{0}.contiguous()",
    "{0}.expand(2, *{0}.shape)", "{0}.movedim(0, -1)", "{0}.chunk(2)[0]",
)  # fmt: skip
_CHANGES = (
    "{0}.mul_(2)", "{0}.add_({1})", "{0}.copy_({1})", "{0}.zero_()", "{0}.relu_()", "{0}.clamp_(min=0.5)", "{0}.neg_()",
    "torch.add({0}, {1}, out={0})", "{0}.fill_(3)", "{0}.sub_(1)",
)  # fmt: skip
_BREAK = "(torch._dynamo.graph_break(), {0})[1]"
_EDITS = (
    "{w}.data.mul_(2)",
    "{w}.data = {w}.data * 2",
    "{w}.mul_(0.5)",
    "{w}.data += {w}.data",
    "{w}.data.copy_({w}.data.flip(0))",
    "{w}.data[0] = 4",
    "{w}.zero_()",
    "{w}.detach().mul_(4)",
    "{w}.numpy().__imul__(2)",
    "{w}.data.neg_()",
)
"""What changes a weight between calls, exactly in any dtype."""
_LAYOUTS = ("", "", "", "transposed", "channels_last", "sliced")


class CompileBuilder(TorchBuilder):
    """A function of PyTorch that grows, with views and changes."""

    kind = "compile"
    dtypes = ("float32",) * 12 + ("bfloat16",)

    def settings(self) -> dict[str, Any]:
        """Return how the program is run."""
        weights = [name for name, array in self.weights.items() if array.dtype.name == self.dtype and array.ndim]
        edits = [""] * 4
        if weights and self.chance(0.5):
            edits = [self.choice(_EDITS).replace("{w}", f"m.{self.choice(weights)}") for _ in edits]
        layouts = {name: self.choice(_LAYOUTS) for name in self.inputs}
        for step in self.steps:
            if "ldexp" in step.op:  # PyTorch says other strides of its result than the result has
                layouts |= {name: "" for name in step.inputs if name in layouts}
        settings = {
            "varies": False,
            "threads": 1,
            "edits": edits,
            "layouts": layouts,
            "callers": 2 if self.chance(0.2) else 1,
        }
        return {**super().settings(), **settings}


def _aliased(b: TorchBuilder) -> None:
    b.call(b.choice(_ALIASES), b.pick(low=1, high=4))


def _changed(b: TorchBuilder) -> None:
    x = b.pick(low=1, high=4)
    if x in b.weights or b.arrays[x].size == 0:
        return
    b.call(b.choice(_CHANGES), x, b.new(b.arrays[x].shape))


def _broken(b: TorchBuilder) -> None:
    b.call(_BREAK, b.pick(low=1))


def _weighed(b: TorchBuilder) -> None:
    x = b.pick(low=1, high=3)
    b.call(
        b.choice(["{0} @ {1}", "F.linear({0}, {1}.t())"]),
        x,
        b.new((b.arrays[x].shape[-1], b.choice([1, 5, 8])), weight=True),
    )


def make(seed: int) -> Program:
    """Return the program of a seed."""
    from bench.fuzz.torch.operators import OPERATORS

    builder = CompileBuilder(seed)
    builder.varies = False
    some = [builder.choice(sorted(OPERATORS)) for _ in range(6)]
    more = {
        f"{name} {place}": function
        for name, function in (("view", _aliased), ("change", _changed), ("break", _broken), ("weight", _weighed))
        for place in range(2)
    }
    builder.grow({**{name: OPERATORS[name] for name in some}, **more}, builder.integer(2, 7))
    if not builder.steps:
        builder.call("torch.relu({0})", builder.new((3, 5), weight=False))
    program = builder.finished()
    last = [name for step in program.steps for name in step.outputs][-3:]
    return replace(program, outputs=tuple(dict.fromkeys([*program.outputs, *last])))


def _laid(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor of the same numbers that lies otherwise in memory."""
    if layout == "transposed" and tensor.ndim > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "channels_last" and tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "sliced" and tensor.ndim:
        return torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]]
    return tensor


def _inputs(program: Program, run: int, change: Any = lambda one: one) -> list[torch.Tensor]:
    layouts = program.settings["layouts"]
    return [_laid(change(as_tensor(array)), layouts.get(name, "")) for name, array in program.feeds(run).items()]


def _edit(program: Program, module: torch.nn.Module, run: int) -> None:
    words = program.settings["edits"][run] if run < len(program.settings["edits"]) else ""
    if words and words.split(".")[1].split("[")[0] in dict(module.named_parameters()):
        with torch.no_grad():
            exec(words, {"m": module, "torch": torch})


def _called(program: Program, module: torch.nn.Module, call: Any, change: Any = lambda one: one) -> list[Any]:
    """Return (inputs, results) of all calls, weights edited between them."""
    calls = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in range(program.num_runs):
            inputs = _inputs(program, run, change)
            calls.append((inputs, outputs_of(call(*inputs))))
            _edit(program, module, run)
    return calls


def _samples(program: Program) -> tuple[list[list[list[Array]]], Sampling]:
    """Return samples of all outputs and inputs behind the calls: sample -> run -> values."""
    samples = []
    modules = [module_of(program).double() for _ in range(NUM_SAMPLES)]  # first: they draw numbers in the default dtype
    with default_dtype(torch.float64):
        for sample, module in enumerate(modules):
            mode = Sampling(Noise(sample, program.seed), program.settings["dtype"])

            def call(*inputs: torch.Tensor, mode: Sampling = mode, module: torch.nn.Module = module) -> Any:
                with mode:
                    return module(*inputs)

            calls = _called(program, module, call, doubles)
            samples.append([[as_array(one) for one in (*results, *inputs)] for inputs, results in calls])
    return samples, mode


def _structure(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[str]:
    """Return words on each result: its strides, and the first value that it shares memory with."""
    values = [*inputs, *results]
    memories = [one.untyped_storage().data_ptr() if one.numel() else 0 for one in values]
    words = []
    for place, one in enumerate(results, start=len(inputs)):
        first = memories.index(memories[place]) if memories[place] else place
        shared = "own memory" if first == place else f"memory of value {first} from {one.storage_offset()}"
        strides = [step for step, size in zip(one.stride(), one.shape, strict=True) if size > 1] if one.numel() else []
        words.append(f"{shared}, strides {strides}")
    return words


def _traced_structure(program: Program, run: int, name: str) -> str:
    """Return the words of `_structure` on a result where PyTorch's own tracing compiles the function; "": none.

    It decomposes some operators (one_hot) into others, whose results lie otherwise in memory: that is PyTorch's choice.
    """
    torch._dynamo.reset()
    module = module_of(program)
    try:
        inputs, results = _called(program, module, torch.compile(module, backend="aot_eager"))[run]
    except Exception:  # noqa: BLE001  of PyTorch
        return ""
    return dict(zip(program.outputs, _structure(inputs, results), strict=True))[name]


def judge(program: Program) -> Outcome:
    """Return what becomes of a program; exceptions of anatune's and of PyTorch's compiler pass."""
    operators = tuple(step.op for step in program.steps)
    torch.set_num_threads(1)
    try:
        samples, mode = _samples(program)
        plain = module_of(program)
        eager = _called(program, plain, plain)
    except Exception as error:  # noqa: BLE001  of PyTorch: a change that does not fit, a quotient by zero
        return Outcome("skipped", f"{type(error).__name__}: {error}"[:200], operators)
    torch._dynamo.reset()
    module = module_of(program)
    compiled = torch.compile(module, backend="anatune", options={"threads": 1, "check": False, "min_block_size": 1})
    try:
        calls = _called(program, module, compiled)
    except Exception:
        if _is_refused_by_dynamo(program):
            return Outcome("skipped", "PyTorch's compiler refuses it with any backend", operators)
        raise
    for run, ((inputs, results), (other_inputs, others)) in enumerate(zip(calls, eager, strict=True)):
        wrong = _difference(program, samples, run, (*results, *inputs), (*others, *other_inputs), mode)
        for name, one, other in zip(
            program.outputs, _structure(inputs, results), _structure(other_inputs, others), strict=True
        ):
            if one != other and not wrong and one != _traced_structure(program, run, name):
                wrong = f"{name} has {one}, in eager PyTorch {other}"
        if wrong:
            return Outcome("wrong", f"call {run}: {wrong}", operators, program)
    if program.settings["callers"] > 1 and not any(program.settings["edits"]):
        wrong = _from_threads(program, compiled, samples, eager, mode)
        if wrong:
            return Outcome("wrong", f"from threads: {wrong}", operators, program)
    return Outcome("right", "", operators)


def _is_refused_by_dynamo(program: Program) -> bool:
    """Return whether PyTorch's compiler cannot read a function, whoever would compile it."""
    torch._dynamo.reset()
    module = module_of(program)
    try:
        _called(program, module, torch.compile(module, backend="eager"))
    except Exception:  # noqa: BLE001  of PyTorch
        return True
    return False


def _difference(
    program: Program, samples: Any, run: int, values: Sequence[Any], others: Sequence[Any], mode: Sampling
) -> str:
    """Return what is wrong with the numbers of results, and of inputs after the call."""
    names = (*program.outputs, *(f"input {name} after the call" for name in program.inputs))
    for place, (name, one, other) in enumerate(zip(names, values, others, strict=True)):
        some = [sample[run][place] for sample in samples]
        why = fault(some, as_array(one), as_array(other).dtype.name, exact=mode.is_exact)
        # what is left to PyTorch has its results: sinh of 89 is infinite in its vectors
        if why and not np.array_equal(as_array(one), as_array(other), equal_nan=True):
            return f"{name} {why}"
    return ""


def _from_threads(program: Program, compiled: Any, samples: Any, eager: Any, mode: Sampling) -> str:
    """Return what is wrong with calls from several threads at a time; "": nothing."""
    wrong: list[str] = []

    def work(first: int) -> None:
        with torch.no_grad():
            for turn in range(12):
                run = (first + turn) % program.num_runs
                inputs = _inputs(program, run)
                results = outputs_of(compiled(*inputs))
                others, other_inputs = eager[run][1], eager[run][0]
                why = _difference(program, samples, run, (*results, *inputs), (*others, *other_inputs), mode)
                if why:
                    wrong.append(why)
                    return

    def guarded(first: int) -> None:
        try:
            work(first)
        except Exception as error:  # noqa: BLE001  told by the thread that waits
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(first,)) for first in range(program.settings["callers"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong[0] if wrong else ""


def text(program: Program) -> str:
    """Return a program as Python that calls the compiled and the eager function."""
    whole = torch_text(program).split("m = M(weights).eval()")[0]
    lines = [
        whole.rstrip(), "def run(compiled):", "    m = M({name: one.clone() for name, one in weights.items()}).eval()",
        "    call = torch.compile(m, backend='anatune', options={'threads': 1, 'check': False}) if compiled else m",
        f"    # layouts of inputs: {program.settings['layouts']}", "    with torch.no_grad():",
    ]  # fmt: skip
    for words in program.settings["edits"][: program.num_runs]:
        lines += ["        given = [one.clone() for one in inputs]", "        results = call(*given)"]
        lines += [
            "        all_results = results if isinstance(results, tuple) else [results]",
            "        print(results, [one.stride() for one in all_results], given)",
        ]
        lines += [f"        {words}"] if words else []
    return "\n".join([*lines, "run(False); print(); run(True)"]) + "\n"

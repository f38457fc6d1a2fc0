"""``torch.compile(model, backend="anatune")``: sub-graphs of PyTorch's compiler as models of anatune's.

Sub-graphs are compiled at their first call, when the values of their weights are known: weights become constants,
packed once. PyTorch hands parameters as inputs, and the sub-graphs of two modules of one class are one; so each set of
weights has a compiled model of its own, and one that was changed in place since is compiled anew. Operators that
cannot be imported stay with PyTorch, between compiled blocks (`torch_blocks.py`), as does a sub-graph without anything
to gain; a warning says so once.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from anatune.adapters.torch_blocks import (
    divided,
    number_places,
    unsupported,
    varying_sizes,
    with_constants,
    with_numbers,
)
from anatune.arguments import checked_flag, checked_integer, shown
from anatune.codegen.relax.frontends import decomposed, exported
from anatune.compiling import session
from anatune.compiling.compiled import CompiledModel
from anatune.errors import AnatuneError, SpaceError, WorkloadError
from anatune.graph.nodes import HALVES
from anatune.report import units
from anatune.untyped import TorchObject

__all__ = ["OPTIONS", "backend"]

_COMPILE = inspect.signature(session.compile).parameters
OPTIONS = (*(name for name, word in _COMPILE.items() if word.kind is word.KEYWORD_ONLY), "min_block_size", "strict")
"""Names of options: keywords of `anatune.compile`; "min_block_size": operators that a block between two that cannot be
imported has at least; "strict": raise where PyTorch would have to run something."""

_MOST_MODELS = 8
"""Sets of weights that one sub-graph is compiled for: as many as PyTorch compiles a function again."""

Settings: TypeAlias = dict[str, Any]
"""Keywords of `anatune.compile`."""
Call = Callable[..., TorchObject]


def backend(
    graph: TorchObject, example_inputs: Sequence[TorchObject], *, options: Mapping[str, object] | None = None
) -> Call:
    """Return what runs a sub-graph; PyTorch calls this, by the name "anatune".

    Parameters
    ----------
    graph : torch.fx.GraphModule
    example_inputs : sequence
        Fake tensors and symbolic sizes; only their kinds are looked at.
    options : mapping, optional
        As `OPTIONS` says.

    Raises
    ------
    SpaceError
        An option is unknown.
    """
    settings: Settings = dict(options or {})
    for name in settings:
        if name not in OPTIONS:
            raise SpaceError(f"torch.compile: option {name!r}, expected some of {', '.join(OPTIONS)}")
    strict = checked_flag("torch.compile: strict", settings.pop("strict", False))
    fewest = checked_integer("torch.compile: min_block_size", settings.pop("min_block_size", 1), 1, 1 << 30)
    return _SubGraph(graph, settings, strict, fewest).run


class _Compiled(NamedTuple):
    """What runs for one set of weights, and lives as long as they do.

    Attributes
    ----------
    weights : tuple of weakref.ref
    numbers : tuple of float
        Values of the arguments that are tensors and read as numbers.
    versions : tuple of int
        PyTorch's counters of changes in place.
    call : callable
        Takes the inputs that are no weights, and no sizes.
    takes : callable
        Whether it was compiled for the sizes of such inputs.
    """

    weights: tuple[TorchObject, ...]
    numbers: tuple[float, ...]
    versions: tuple[int, ...]
    call: Call
    takes: Callable[[Sequence[TorchObject]], bool]


class _SubGraph:
    """A sub-graph, and its models so far."""

    def __init__(self, graph: TorchObject, settings: Settings, strict: bool, fewest: int) -> None:
        self._graph, self._settings, self._strict, self._fewest = graph, settings, strict, fewest
        self._torch = import_module("torch")
        self._numbers = number_places(graph)
        self._models: list[_Compiled] = []
        self._left = False
        self._said: set[str] = set()

    def run(self, *arguments: TorchObject) -> TorchObject:
        """Return the outputs, a tuple."""
        if self._left:
            return self._graph(*arguments)
        weights = [argument for argument in arguments if _is_weight(argument)]
        inputs = self._inputs(arguments)
        versions = tuple(self._version(weight) for weight in weights)
        numbers = tuple(float(arguments[place]) for place in sorted(self._numbers))
        same = (one for one in self._models if _is_of(one, weights, versions) and one.numbers == numbers)
        own = (one for one in same if one.takes(inputs))
        compiled = next(own, None)
        if compiled is None:
            try:
                compiled = self._compiled(arguments, weights, versions)
            except AnatuneError as error:
                if self._strict:
                    raise
                self._left = True
                self._warn(f"anatune leaves a sub-graph to PyTorch ({self._words()}): {error}")
                return self._graph(*arguments)
        outputs = compiled.call(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _inputs(self, arguments: Sequence[TorchObject]) -> tuple[TorchObject, ...]:
        """Return the tensors among arguments that are no weights and no numbers."""
        return tuple(
            one
            for place, one in enumerate(arguments)
            if isinstance(one, self._torch.Tensor) and not _is_weight(one) and place not in self._numbers
        )

    def _compiled(
        self, arguments: Sequence[TorchObject], weights: Sequence[TorchObject], versions: tuple[int, ...]
    ) -> _Compiled:
        """Compile for a set of weights.

        Raises
        ------
        AnatuneError
            It cannot be compiled; the message says why.
        """
        self._check(arguments)
        self._models = [model for model in self._models if all(ref() is not None for ref in model.weights)]
        if len(self._models) >= _MOST_MODELS:
            raise WorkloadError(
                f"it has run with {_MOST_MODELS} sets of weights, expected weights that stay as they are"
            )
        inputs, known = self._inputs(arguments), dict(enumerate(arguments))
        known = {place: one for place, one in known.items() if _is_weight(one) or place in self._numbers}
        call = self._torch.compiler.disable(self._call)(known, inputs)
        shapes = [one.shape for one in inputs]
        takes = call.takes if isinstance(call, CompiledModel) else lambda given: [one.shape for one in given] == shapes
        numbers = tuple(float(arguments[place]) for place in sorted(self._numbers))
        made = _Compiled(tuple(weakref.ref(weight) for weight in weights), numbers, versions, call, takes)
        self._models.append(made)
        return made

    def _call(self, known: dict[int, TorchObject], inputs: tuple[TorchObject, ...]) -> Call:
        """Return what computes the sub-graph; errors as `_compiled`."""
        axes, sizes = varying_sizes(self._torch, self._graph, known)
        numbers = {place: float(known[place]) for place in self._numbers}
        graph = with_constants(self._torch, with_numbers(self._torch, self._graph, numbers), known, sizes)
        if any(axes):
            automatic = self._torch.export.Dim.AUTO
            shapes = (tuple(dict.fromkeys(own, automatic) or None for own in axes),)
            try:
                return self._model(decomposed(exported(graph, inputs, shapes), "it"), inputs)
            except WorkloadError as error:
                self._warn(f"anatune compiles a sub-graph for each size ({self._words()}): {error}")
        program = decomposed(exported(graph, inputs), "it")
        left = unsupported(program)
        if not left:
            return self._model(program, inputs)
        names = ", ".join(f"{name} ({count})" for name, count in left.items())
        if self._strict:
            raise WorkloadError(f"operators that cannot be imported: {names}; leave out strict to run them by PyTorch")
        parts = divided(program, inputs, self._model, self._fewest)
        more = f"; and other blocks: {'; '.join(parts.failed)}" if parts.failed else ""
        text = f"anatune leaves {names} to PyTorch, between {len(parts.models)} compiled blocks"
        self._warn(text, f": {units.percent(parts.left_share)} of the time of a run{more}")
        return parts.run

    def _model(self, model: TorchObject, inputs: tuple[TorchObject, ...]) -> Call:
        """Return a compiled program or module; errors as `_compiled`."""
        compiled = session.compile(model, inputs, **self._settings)
        if not compiled.summary.kernels:
            raise WorkloadError("it has no convolution and no matrix product, and nothing would be gained")
        return compiled

    def _check(self, arguments: Sequence[TorchObject]) -> None:
        """Raise WorkloadError for arguments that no model can be compiled for."""
        torch = self._torch
        if not any(isinstance(argument, torch.Tensor) and not _is_weight(argument) for argument in arguments):
            raise WorkloadError("it has no inputs beside weights")
        (returned,) = (node.args[0] for node in self._graph.graph.nodes if node.op == "output")
        for node in returned:
            if not isinstance(getattr(node, "meta", {}).get("example_value"), torch.Tensor):
                raise WorkloadError(f"it returns {shown(node)}, expected tensors alone")
        kinds = self._kinds(arguments)
        for argument in arguments:
            if isinstance(argument, int) and not isinstance(argument, bool):
                continue  # a size of another argument
            if not isinstance(argument, torch.Tensor):
                raise WorkloadError(f"it takes {shown(argument)}, expected tensors and sizes of tensors")
            if argument.device.type not in kinds or argument.layout != torch.strided:
                raise WorkloadError(
                    f"it has a tensor on {argument.device} ({argument.layout}), expected dense ones on the CPU, or all "
                    "inputs on a GPU"
                )
            if argument.requires_grad and torch.is_grad_enabled():
                raise WorkloadError("gradients may be asked for; call it under torch.no_grad()")

    def _kinds(self, arguments: Sequence[TorchObject]) -> tuple[str, ...]:
        """Return the kinds of devices that tensors may be on; where that is a GPU, compile for it.

        Raises
        ------
        WorkloadError
            Nobody said in which precision.
        """
        version = self._torch.version  # AMD's GPUs are called "cuda", too
        if {one.device.type for one in self._inputs(arguments)} != {"cuda"} or not (version.cuda or version.hip):
            return ("cpu",)
        tensors = (one for one in arguments if isinstance(one, self._torch.Tensor))
        halves = {str(one.dtype).removeprefix("torch.") for one in tensors} & set(HALVES)
        if not halves and "precision" not in self._settings:
            raise WorkloadError(
                "it is on a GPU and has no 16 bits, in which its products would be; call model.bfloat16(), or say "
                'options={"precision": "bfloat16"}'
            )
        self._settings = {"hw": "host_gpu", "precision": min(halves, default=None), **self._settings}
        return ("cpu", "cuda")

    def _version(self, weight: TorchObject) -> int:
        return 0 if weight.is_inference() else int(weight._version)

    def _warn(self, text: str, more: str = "") -> None:
        """Say something, once of each sub-graph: another set of weights is left to PyTorch in the same words."""
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text + more, stacklevel=3)

    def _words(self) -> str:
        """Return what the sub-graph is, for people: its first operators."""
        called = [node for node in self._graph.graph.nodes if node.op.startswith("call")]
        names = [str(getattr(node.target, "__name__", node.target)) for node in called]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"{', '.join(names[:3])}{more}" or "no operators"


def _is_weight(argument: object) -> bool:
    """Whether PyTorch's compiler took an argument from a module: a parameter, a buffer, another attribute."""
    return getattr(argument, "_dynamo_static_input_type", None) is not None


def _is_of(compiled: _Compiled, weights: Sequence[TorchObject], versions: tuple[int, ...]) -> bool:
    if compiled.versions != versions:
        return False
    return all(ref() is weight for ref, weight in zip(compiled.weights, weights, strict=True))

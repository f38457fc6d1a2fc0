"""``torch.compile(model, backend="anatune")``: sub-graphs of PyTorch's compiler as models of anatune's.

Sub-graphs are compiled at their first call, when the values of their weights are known: weights become constants,
packed once. PyTorch hands parameters as inputs, and the sub-graphs of two modules of one class are one; so each set of
contents of weights has a compiled model, and each call reads the weights to see which (`torch_weights.py`). Outputs
share memory with inputs and with each other as PyTorch's compiler expects (`torch_outputs.py`). Operators that cannot
be imported stay with PyTorch, between compiled blocks (`torch_blocks.py`), as does a sub-graph without anything to
gain, or one that writes into its inputs; a warning says so once.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from anatune.arguments import checked_flag, checked_integer, shown
from anatune.errors import AnatuneError, SpaceError, WorkloadError
from anatune.network.backends.torch_blocks import (
    check_effects,
    divided,
    number_places,
    unsupported,
    varying_sizes,
    with_constants,
    with_numbers,
)
from anatune.network.backends.torch_outputs import Outputs
from anatune.network.backends.torch_weights import WeightDigests, is_static, tensors_held
from anatune.network.compiling import session
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.graph.nodes import HALVES
from anatune.network.relax.frontends import decomposed, exported
from anatune.report import units
from anatune.threads import in_turn, new_lock, one_by_one
from anatune.untyped import ExportedProgram, TorchArgument, TorchTensor, fx, nn

__all__ = ["OPTIONS", "backend"]

_COMPILE = inspect.signature(session.compile).parameters
_KEYWORDS = tuple(name for name, word in _COMPILE.items() if word.kind is word.KEYWORD_ONLY)
OPTIONS = (*_KEYWORDS, "min_block_size", "strict", "weights")
"""Names of options: keywords of `anatune.compile`; "min_block_size": operators that a block between two that cannot be
imported has at least; "strict": raise where PyTorch would have to run something; "weights": "checked" (each call reads
the weights, and those that have changed are packed again) or "frozen" (the caller promises that they change by nothing
but operators in place outside of inference mode, which PyTorch counts, so that no call reads them)."""

_MOST_MODELS = 8
"""Sets of contents of weights that one sub-graph is compiled for: as many as PyTorch compiles a function again."""

Settings: TypeAlias = dict[str, Any]
"""Keywords of `anatune.compile`."""
Call: TypeAlias = "Callable[[Mapping[int, TorchTensor], Sequence[TorchArgument]], object]"
"""Takes the constants by their places among the arguments, and the inputs."""


def backend(
    graph: fx.GraphModule, example_inputs: Sequence[TorchArgument], *, options: Mapping[str, object] | None = None
) -> Callable[..., object]:
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
    word = settings.pop("weights", "checked")
    if word not in ("checked", "frozen"):
        raise SpaceError(f"torch.compile: weights is {shown(word)}, expected 'checked' or 'frozen'")
    return _SubGraph(graph, settings, strict, fewest, is_checked=word == "checked").run


@dataclass
class _Compiled:
    """What runs for some contents of weights, and lives as long as they do.

    Attributes
    ----------
    weights : tuple of weakref.ref
        The weights that it ran with last.
    mark : tuple
        What it was compiled for: places of weights, numbers, and what `_SubGraph._mark` says of contents.
    call : callable
    takes : callable
        Whether it was compiled for the sizes of inputs.
    """

    weights: tuple[weakref.ref[TorchTensor], ...]
    mark: tuple[object, ...]
    call: Call
    takes: Callable[[Sequence[TorchArgument]], bool]

    def is_of(self, weights: Sequence[TorchTensor]) -> bool:
        """Whether it ran with these weights last."""
        return all(ref() is weight for ref, weight in zip(self.weights, weights, strict=True))


class _SubGraph:
    """A sub-graph, and its models so far."""

    def __init__(
        self, graph: fx.GraphModule, settings: Settings, strict: bool, fewest: int, *, is_checked: bool = True
    ) -> None:
        self._graph, self._settings, self._strict, self._fewest = graph, settings, strict, fewest
        self._torch = import_module("torch")
        self._numbers = number_places(graph)
        self._held = tensors_held(self._torch, graph)
        self._digests = WeightDigests(self._torch) if is_checked else None
        self._outputs: Outputs | None = None
        self._models: list[_Compiled] = []
        self._lock = new_lock()
        self._left = False
        self._said: set[str] = set()

    def run(self, *arguments: TorchArgument) -> object:
        """Return the outputs, a tuple."""
        if self._left:
            return self._graph(*arguments)
        known = {place: one for place, one in enumerate(arguments) if is_static(one) or place in self._numbers}
        weights = [one for place, one in known.items() if place not in self._numbers]
        inputs = self._inputs(arguments)
        compiled, pieces = self._model_of(known, weights, inputs), None
        if compiled is None:
            compiled, pieces = self._compile(arguments, known, weights)
            if compiled is None:
                return self._graph(*arguments)
        assert self._outputs is not None
        pieces = compiled.call(known, inputs) if pieces is None else pieces
        return self._outputs.restore(arguments, pieces if isinstance(pieces, tuple) else (pieces,))

    def _mark(self, known: Mapping[int, TorchTensor], weights: Sequence[TorchTensor]) -> tuple[object, ...]:
        """Return what a model of these constants is known by."""
        numbers = tuple(float(known[place]) for place in sorted(self._numbers))
        if self._digests is not None:
            return (tuple(known), numbers, self._digests.digest([*weights, *self._held]))
        return (tuple(known), numbers, *((self._version(weight), weight.data_ptr()) for weight in weights))

    @in_turn
    def _model_of(
        self, known: Mapping[int, TorchTensor], weights: Sequence[TorchTensor], inputs: Sequence[TorchArgument]
    ) -> _Compiled | None:
        """Return a model that was compiled for equal constants and for inputs of these sizes."""
        mark = self._mark(known, weights)
        for model in self._models:
            if model.mark != mark or not model.takes(inputs):
                continue
            if not model.is_of(weights):
                if self._digests is None:
                    continue
                model.weights = tuple(map(weakref.ref, weights))
            return model
        return None

    def _inputs(self, arguments: Sequence[TorchArgument]) -> tuple[TorchTensor, ...]:
        """Return the tensors among arguments that are no weights and no numbers."""
        return tuple(
            one
            for place, one in enumerate(arguments)
            if isinstance(one, self._torch.Tensor) and not is_static(one) and place not in self._numbers
        )

    @one_by_one  # before the lock of this sub-graph, as where a thread that compiles calls sub-graphs
    @in_turn
    def _compile(
        self, arguments: Sequence[TorchArgument], known: Mapping[int, TorchTensor], weights: Sequence[TorchTensor]
    ) -> tuple[_Compiled | None, object]:
        """Return a model for a set of weights, and what it returns where compiling has run it; None: PyTorch runs it.

        Raises
        ------
        AnatuneError
            It cannot be compiled, and that is to be an error.
        """
        if self._left or (model := self._model_of(known, weights, self._inputs(arguments))) is not None:
            return (None if self._left else model), None  # another thread has compiled it
        try:
            return self._compile_new(arguments, known, weights)
        except AnatuneError as error:
            if self._strict:
                raise
            self._left = True
            self._warn(f"anatune leaves a sub-graph to PyTorch ({self._words()}): {error}")
            return None, None

    def _compile_new(
        self, arguments: Sequence[TorchArgument], known: Mapping[int, TorchTensor], weights: Sequence[TorchTensor]
    ) -> tuple[_Compiled, object]:
        """Compile for a set of weights; return the model, and what it returns where compiling has run it.

        Raises
        ------
        AnatuneError
            It cannot be compiled; the message says why. Nothing was run.
        """
        self._check(arguments)
        self._outputs = self._outputs or Outputs(self._torch, self._graph)
        self._models = [model for model in self._models if all(ref() is not None for ref in model.weights)]
        if len(self._models) >= _MOST_MODELS:
            raise WorkloadError(
                f"it has run with {_MOST_MODELS} sets of weights, expected weights that stay as they are"
            )
        inputs, mark = self._inputs(arguments), self._mark(known, weights)  # before they are read: they may change
        call, pieces = self._torch.compiler.disable(self._call)(self._outputs.module, known, inputs)
        shapes = [one.shape for one in inputs]
        if isinstance(call, CompiledModel):
            model = _Compiled((), mark, lambda _, given: call(*given), call.takes)
        else:
            model = _Compiled((), mark, call, lambda given: [one.shape for one in given] == shapes)
        model.weights = tuple(map(weakref.ref, weights))
        self._models.append(model)
        return model, pieces

    def _call(
        self, module: fx.GraphModule, known: Mapping[int, TorchTensor], inputs: tuple[TorchTensor, ...]
    ) -> tuple[CompiledModel | Call, object]:
        """Return what computes a sub-graph, and what it returns where that was run; errors as `_compile_new`."""
        axes, sizes = varying_sizes(self._torch, module, known)
        numbers = {place: float(known[place]) for place in self._numbers}
        graph = with_constants(self._torch, with_numbers(self._torch, module, numbers), known, sizes)
        if any(axes):
            automatic = self._torch.export.Dim.AUTO
            shapes = (tuple(dict.fromkeys(own, automatic) or None for own in axes),)
            try:
                program = exported(graph, inputs, shapes)
                check_effects(self._torch, program)
                return self._model(decomposed(program, "it"), inputs), None
            except WorkloadError as error:
                self._warn(f"anatune compiles a sub-graph for each size ({self._words()}): {error}")
        program = exported(graph, inputs)
        check_effects(self._torch, program)
        program = decomposed(program, "it")
        left = unsupported(program)
        if not left:
            return self._model(program, inputs), None
        names = ", ".join(f"{name} ({count})" for name, count in left.items())
        if self._strict:
            raise WorkloadError(f"operators that cannot be imported: {names}; leave out strict to run them by PyTorch")
        parts = divided(program, inputs, self._model, self._fewest)
        more = f"; and other blocks: {'; '.join(parts.failed)}" if parts.failed else ""
        if not parts.models:
            self._left = True
            self._warn(f"anatune leaves a sub-graph to PyTorch ({self._words()}): {parts.failed[0]}")
        else:
            text = f"anatune leaves {names} to PyTorch, between {len(parts.models)} compiled blocks"
            self._warn(text, f": {units.percent(parts.left_share)} of the time of the first run{more}")
        return parts.run, parts.pieces

    def _model(self, model: nn.Module | ExportedProgram, inputs: tuple[TorchTensor, ...]) -> CompiledModel:
        """Return a compiled program or module; errors as `_compile_new`."""
        compiled = session.compile(model, inputs, **self._settings)
        if not compiled.summary.kernels:
            raise WorkloadError("it has no convolution and no matrix product, and nothing would be gained")
        return compiled

    def _check(self, arguments: Sequence[TorchArgument]) -> None:
        """Raise WorkloadError for arguments that no model can be compiled for."""
        torch = self._torch
        if not self._inputs(arguments):
            raise WorkloadError("it has no inputs beside weights")
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

    def _kinds(self, arguments: Sequence[TorchArgument]) -> tuple[str, ...]:
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

    def _version(self, weight: TorchTensor) -> int:
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

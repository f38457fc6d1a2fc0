"""``torch.compile(model, backend="anatune")``: compile the sub-graphs of PyTorch's compiler.

A sub-graph is compiled at its first call, when the values of its weights are known: weights become constants, packed
once. PyTorch passes parameters as inputs, and two modules of one class share a sub-graph. Therefore each set of weight
contents has its own compiled model, and each call reads the weights to find it (`torch_weights.py`). Outputs share
memory with inputs and with each other as PyTorch's compiler expects (`torch_outputs.py`). PyTorch runs the operators
that anatune cannot import, between compiled blocks (`torch_blocks.py`). It also runs a whole sub-graph that has nothing
to gain, or that writes into its inputs; one warning says so.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from anatune.arguments import check_flag, check_integer, quote
from anatune.errors import AnatuneError, SpaceError, WorkloadError
from anatune.network.backends.torch_blocks import (
    bind_constants,
    check_effects,
    compile_blocks,
    count_refused_operators,
    find_varying_sizes,
    number_arguments,
    replace_numbers,
)
from anatune.network.backends.torch_outputs import SubGraphOutputs
from anatune.network.backends.torch_weights import WeightDigests, attribute_tensors, is_static
from anatune.network.compiling import session
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.graph.nodes import HALVES
from anatune.network.relax.frontends import decompose, export_module
from anatune.report import units
from anatune.threads import compile_in_turn, new_lock, run_in_turn
from anatune.untyped import ExportedProgram, TorchArgument, TorchTensor, fx, nn

__all__ = ["OPTIONS", "backend"]

_COMPILE = inspect.signature(session.compile).parameters
_KEYWORDS = tuple(name for name, word in _COMPILE.items() if word.kind is word.KEYWORD_ONLY)
OPTIONS = (*_KEYWORDS, "min_block_size", "strict", "weights")
"""Names of options: the keywords of `anatune.compile`; "min_block_size": least number of operators in a block between
two operators that anatune cannot import; "strict": raise an error instead of leaving work to PyTorch; "weights":
"checked" (each call reads the weights, and packs those that changed) or "frozen" (no call reads them; the caller
promises that only in-place operators outside of inference mode change them, which PyTorch counts)."""

_MOST_MODELS = 8
"""Most sets of weights that one sub-graph is compiled for; PyTorch recompiles a function as often."""

Settings: TypeAlias = dict[str, Any]
"""Keywords of `anatune.compile`."""
Call: TypeAlias = "Callable[[Mapping[int, TorchTensor], Sequence[TorchArgument]], object]"
"""A function of the constants, by their index among the arguments, and of the inputs."""


def backend(
    graph: fx.GraphModule, example_inputs: Sequence[TorchArgument], *, options: Mapping[str, object] | None = None
) -> Callable[..., object]:
    """Return a function that runs a sub-graph; PyTorch calls this under the name "anatune".

    Parameters
    ----------
    graph : torch.fx.GraphModule
    example_inputs : sequence
        Fake tensors and symbolic sizes; only their types matter.
    options : mapping, optional
        Options, see `OPTIONS`.

    Raises
    ------
    SpaceError
        An option is unknown.
    """
    settings: Settings = dict(options or {})
    for name in settings:
        if name not in OPTIONS:
            raise SpaceError(f"torch.compile: option {name!r} is unknown, expected one of {', '.join(OPTIONS)}")
    strict = check_flag("torch.compile: strict", settings.pop("strict", False))
    fewest = check_integer("torch.compile: min_block_size", settings.pop("min_block_size", 1), 1, 1 << 30)
    word = settings.pop("weights", "checked")
    if word not in ("checked", "frozen"):
        raise SpaceError(f"torch.compile: weights is {quote(word)}, expected 'checked' or 'frozen'")
    return _SubGraph(graph, settings, strict, fewest, is_checked=word == "checked").run


@dataclass
class _CompiledSubGraph:
    """A compiled sub-graph for one set of weight contents; it lives as long as these weights.

    Attributes
    ----------
    weights : tuple of weakref.ref
        The weights of its last run.
    key : tuple
        Its key: indices of constants, numbers, and the contents of weights, see `_SubGraph._make_key`.
    call : callable
    takes : callable
        Returns whether it was compiled for the sizes of given inputs.
    """

    weights: tuple[weakref.ref[TorchTensor], ...]
    key: tuple[object, ...]
    call: Call
    takes: Callable[[Sequence[TorchArgument]], bool]

    def has_weights(self, weights: Sequence[TorchTensor]) -> bool:
        """Return whether its last run had these weights."""
        return all(ref() is weight for ref, weight in zip(self.weights, weights, strict=True))


class _SubGraph:
    """A sub-graph and the models compiled for it so far."""

    def __init__(
        self, graph: fx.GraphModule, settings: Settings, strict: bool, fewest: int, *, is_checked: bool = True
    ) -> None:
        self._graph, self._settings, self._strict, self._fewest = graph, settings, strict, fewest
        self._torch = import_module("torch")
        self._numbers = number_arguments(graph)
        self._attribute_tensors = attribute_tensors(self._torch, graph)
        self._digests = WeightDigests(self._torch) if is_checked else None
        self._outputs: SubGraphOutputs | None = None
        self._models: list[_CompiledSubGraph] = []
        self._lock = new_lock()
        self._is_left = False
        self._warned: set[str] = set()

    def run(self, *arguments: TorchArgument) -> object:
        """Return the outputs as a tuple."""
        if self._is_left:
            return self._graph(*arguments)
        constants = {place: one for place, one in enumerate(arguments) if is_static(one) or place in self._numbers}
        weights = [one for place, one in constants.items() if place not in self._numbers]
        inputs = self._inputs(arguments)
        compiled, result = self._find_model(constants, weights, inputs), None
        if compiled is None:
            compiled, result = self._compile(arguments, constants, weights)
            if compiled is None:
                return self._graph(*arguments)
        assert self._outputs is not None
        result = compiled.call(constants, inputs) if result is None else result
        return self._outputs.restore(arguments, result if isinstance(result, tuple) else (result,))

    def _make_key(self, constants: Mapping[int, TorchTensor], weights: Sequence[TorchTensor]) -> tuple[object, ...]:
        """Return the key of a model with these constants."""
        numbers = tuple(float(constants[place]) for place in sorted(self._numbers))
        if self._digests is not None:
            return (tuple(constants), numbers, self._digests.digest([*weights, *self._attribute_tensors]))
        return (tuple(constants), numbers, *((self._version(weight), weight.data_ptr()) for weight in weights))

    @run_in_turn
    def _find_model(
        self, constants: Mapping[int, TorchTensor], weights: Sequence[TorchTensor], inputs: Sequence[TorchArgument]
    ) -> _CompiledSubGraph | None:
        """Return a model compiled for equal constants and for inputs of these sizes; None without one."""
        key = self._make_key(constants, weights)
        for model in self._models:
            if model.key != key or not model.takes(inputs):
                continue
            if not model.has_weights(weights):
                if self._digests is None:
                    continue
                model.weights = tuple(map(weakref.ref, weights))
            return model
        return None

    def _inputs(self, arguments: Sequence[TorchArgument]) -> tuple[TorchTensor, ...]:
        """Return the tensors among arguments that are neither weights nor numbers."""
        return tuple(
            one
            for place, one in enumerate(arguments)
            if isinstance(one, self._torch.Tensor) and not is_static(one) and place not in self._numbers
        )

    @compile_in_turn  # taken before the lock of this sub-graph, as by a thread that calls sub-graphs while it compiles
    @run_in_turn
    def _compile(
        self, arguments: Sequence[TorchArgument], constants: Mapping[int, TorchTensor], weights: Sequence[TorchTensor]
    ) -> tuple[_CompiledSubGraph | None, object]:
        """Return a model for a set of weights, and the result if compiling ran it; None: PyTorch runs it.

        Raises
        ------
        AnatuneError
            The sub-graph cannot be compiled, and "strict" is set.
        """
        if self._is_left or (model := self._find_model(constants, weights, self._inputs(arguments))) is not None:
            return (None if self._is_left else model), None  # another thread compiled it
        try:
            return self._compile_new(arguments, constants, weights)
        except AnatuneError as error:
            if self._strict:
                raise
            self._is_left = True
            self._warn(f"anatune leaves a sub-graph to PyTorch ({self._describe()}): {error}")
            return None, None

    def _compile_new(
        self, arguments: Sequence[TorchArgument], constants: Mapping[int, TorchTensor], weights: Sequence[TorchTensor]
    ) -> tuple[_CompiledSubGraph, object]:
        """Compile for a set of weights; return the model, and the result if compiling has run it.

        Raises
        ------
        AnatuneError
            The sub-graph cannot be compiled; the message says why. Nothing was run.
        """
        self._check(arguments)
        self._outputs = self._outputs or SubGraphOutputs(self._torch, self._graph)
        self._models = [model for model in self._models if all(ref() is not None for ref in model.weights)]
        if len(self._models) >= _MOST_MODELS:
            raise WorkloadError(
                f"it was compiled for {_MOST_MODELS} sets of weights, expected weights that do not change"
            )
        # the key is made before the weights are read, because they may change
        inputs, key = self._inputs(arguments), self._make_key(constants, weights)
        call, pieces = self._torch.compiler.disable(self._make_call)(self._outputs.module, constants, inputs)
        shapes = [one.shape for one in inputs]
        if isinstance(call, CompiledModel):
            model = _CompiledSubGraph((), key, lambda _, given: call(*given), call.takes)
        else:
            model = _CompiledSubGraph((), key, call, lambda given: [one.shape for one in given] == shapes)
        model.weights = tuple(map(weakref.ref, weights))
        self._models.append(model)
        return model, pieces

    def _make_call(
        self, module: fx.GraphModule, constants: Mapping[int, TorchTensor], inputs: tuple[TorchTensor, ...]
    ) -> tuple[CompiledModel | Call, object]:
        """Return a function that computes a sub-graph, and its result if it was run. Errors: as `_compile_new`."""
        axes, sizes = find_varying_sizes(self._torch, module, constants)
        numbers = {place: float(constants[place]) for place in self._numbers}
        graph = bind_constants(self._torch, replace_numbers(self._torch, module, numbers), constants, sizes)
        if any(axes):
            automatic = self._torch.export.Dim.AUTO
            shapes = (tuple(dict.fromkeys(argument_axes, automatic) or None for argument_axes in axes),)
            try:
                program = export_module(graph, inputs, shapes)
                check_effects(self._torch, program)
                return self._compile_model(decompose(program, "it"), inputs), None
            except WorkloadError as error:
                self._warn(f"anatune compiles a sub-graph again for each size ({self._describe()}): {error}")
        program = export_module(graph, inputs)
        check_effects(self._torch, program)
        program = decompose(program, "it")
        refused_counts = count_refused_operators(program)
        if not refused_counts:
            return self._compile_model(program, inputs), None
        names = ", ".join(f"{name} ({count})" for name, count in refused_counts.items())
        if self._strict:
            raise WorkloadError(f"operators cannot be imported: {names}; leave strict out to run them by PyTorch")
        parts = compile_blocks(program, inputs, self._compile_model, self._fewest)
        more = f"; and other blocks: {'; '.join(parts.failed)}" if parts.failed else ""
        if not parts.models:
            self._is_left = True
            self._warn(f"anatune leaves a sub-graph to PyTorch ({self._describe()}): {parts.failed[0]}")
        else:
            text = f"anatune leaves {names} to PyTorch, between {len(parts.models)} compiled blocks"
            self._warn(text, f": {units.percent(parts.left_share)} of the time of the first run{more}")
        return parts.run, parts.pieces

    def _compile_model(self, model: nn.Module | ExportedProgram, inputs: tuple[TorchTensor, ...]) -> CompiledModel:
        """Compile a program or module. Raises the errors of `_compile_new`."""
        compiled = session.compile(model, inputs, **self._settings)
        if not compiled.summary.kernels:
            raise WorkloadError("it has no convolution and no matrix product, so there is nothing to gain")
        return compiled

    def _check(self, arguments: Sequence[TorchArgument]) -> None:
        """Raise WorkloadError for arguments that no model can be compiled for."""
        torch = self._torch
        if not self._inputs(arguments):
            raise WorkloadError("it has no inputs except weights")
        kinds = self._allowed_devices(arguments)
        for argument in arguments:
            if isinstance(argument, int) and not isinstance(argument, bool):
                continue  # the size of another argument
            if not isinstance(argument, torch.Tensor):
                raise WorkloadError(f"it takes {quote(argument)}, expected tensors and sizes of tensors")
            if argument.device.type not in kinds or argument.layout != torch.strided:
                raise WorkloadError(
                    f"it takes a tensor on {argument.device} ({argument.layout}), expected dense tensors on the CPU, "
                    "or all inputs on a GPU"
                )
            if argument.requires_grad and torch.is_grad_enabled():
                raise WorkloadError("it may need gradients; call the model under torch.no_grad()")

    def _allowed_devices(self, arguments: Sequence[TorchArgument]) -> tuple[str, ...]:
        """Return the kinds of devices that tensors may be on; if inputs are on a GPU, set options that compile for it.

        Raises
        ------
        WorkloadError
            No precision is given.
        """
        version = self._torch.version  # AMD's GPUs are called "cuda", too
        if {one.device.type for one in self._inputs(arguments)} != {"cuda"} or not (version.cuda or version.hip):
            return ("cpu",)
        tensors = (one for one in arguments if isinstance(one, self._torch.Tensor))
        halves = {str(one.dtype).removeprefix("torch.") for one in tensors} & set(HALVES)
        if not halves and "precision" not in self._settings:
            raise WorkloadError(
                "it is on a GPU and has no 16-bit numbers, which its products would need; call model.bfloat16(), or "
                "give "
                'options={"precision": "bfloat16"}'
            )
        self._settings = {"hw": "host_gpu", "precision": min(halves, default=None), **self._settings}
        return ("cpu", "cuda")

    def _version(self, weight: TorchTensor) -> int:
        return 0 if weight.is_inference() else int(weight._version)

    def _warn(self, text: str, more: str = "") -> None:
        """Warn once for each text and sub-graph; other sets of weights would repeat it."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text + more, stacklevel=3)

    def _describe(self) -> str:
        """Return the first operators of the sub-graph, which describe it in warnings."""
        called = [node for node in self._graph.graph.nodes if node.op.startswith("call")]
        names = [str(getattr(node.target, "__name__", node.target)) for node in called]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"{', '.join(names[:3])}{more}" or "no operators"

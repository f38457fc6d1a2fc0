"""``torch.compile(model, backend="anatune")``: sub-graphs of PyTorch's compiler as models of anatune's.

Sub-graphs are compiled at their first call, when the values of their weights are known: weights become constants,
packed once. PyTorch hands parameters as inputs, and the sub-graphs of two modules of one class are one; so each set of
weights has a compiled model of its own, and one that was changed in place since is compiled anew. What cannot be
compiled is run by PyTorch, and a warning says so once.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from anatune.arguments import checked_flag
from anatune.compiling import session
from anatune.compiling.compiled import CompiledModel
from anatune.errors import AnatuneError, SpaceError, WorkloadError

__all__ = ["OPTIONS", "backend"]

_COMPILE = inspect.signature(session.compile).parameters
OPTIONS = (*(name for name, one in _COMPILE.items() if one.kind is one.KEYWORD_ONLY), "strict")
"""Names of options: keywords of `anatune.compile`, and "strict": raise where PyTorch would have to run something."""

_MOST_MODELS = 8
"""Sets of weights that one sub-graph is compiled for: as many as PyTorch compiles a function again."""

Call = Callable[..., Any]


def backend(graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Call:
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
    settings = dict(options or {})
    for name in settings:
        if name not in OPTIONS:
            raise SpaceError(f"torch.compile: option {name!r}, expected some of {', '.join(OPTIONS)}")
    strict = checked_flag("torch.compile: strict", settings.pop("strict", False))
    return _SubGraph(graph, settings, strict).run


class _Compiled(NamedTuple):
    """A model for one set of weights, which lives as long as they do.

    Attributes
    ----------
    weights : tuple of weakref.ref
    versions : tuple of int
        PyTorch's counters of changes in place.
    model : CompiledModel
    """

    weights: tuple[Any, ...]
    versions: tuple[int, ...]
    model: CompiledModel


class _SubGraph:
    """A sub-graph, and its models so far."""

    def __init__(self, graph: Any, settings: dict[str, Any], strict: bool) -> None:
        self._graph, self._settings, self._strict = graph, settings, strict
        self._torch = import_module("torch")
        self._models: list[_Compiled] = []
        self._left = False

    def run(self, *arguments: Any) -> Any:
        """Return the outputs, a tuple."""
        if self._left:
            return self._graph(*arguments)
        weights = [one for one in arguments if _is_weight(one)]
        versions = tuple(self._version(one) for one in weights)
        found = next((one for one in self._models if _is_of(one, weights, versions)), None)
        if found is None:
            try:
                found = self._compiled(arguments, weights, versions)
            except AnatuneError as error:
                if self._strict:
                    raise
                self._left = True
                warnings.warn(f"anatune leaves a sub-graph to PyTorch ({self._words()}): {error}", stacklevel=2)
                return self._graph(*arguments)
        outputs = found.model(*(one for one in arguments if not _is_weight(one)))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _compiled(self, arguments: Sequence[Any], weights: Sequence[Any], versions: tuple[int, ...]) -> _Compiled:
        """Compile for a set of weights.

        Raises
        ------
        AnatuneError
            It cannot be compiled; the message says why.
        """
        self._check(arguments)
        self._models = [one for one in self._models if all(ref() is not None for ref in one.weights)]
        if len(self._models) >= _MOST_MODELS:
            raise WorkloadError(
                f"it has run with {_MOST_MODELS} sets of weights, expected weights that stay as they are"
            )
        frozen = self._frozen(arguments)
        inputs = tuple(one for one in arguments if not _is_weight(one))
        compiler = self._torch.compiler.disable(functools.partial(session.compile, **self._settings))
        model = compiler(frozen, inputs)
        if not model.summary.kernels:
            raise WorkloadError("it has no convolution and no matrix product, and nothing would be gained")
        made = _Compiled(tuple(weakref.ref(one) for one in weights), versions, model)
        self._models.append(made)
        return made

    def _check(self, arguments: Sequence[Any]) -> None:
        """Raise WorkloadError for arguments that no model can be compiled for."""
        torch = self._torch
        if not any(isinstance(one, torch.Tensor) and not _is_weight(one) for one in arguments):
            raise WorkloadError("it has no inputs beside weights")
        for one in arguments:
            if not isinstance(one, torch.Tensor):
                raise WorkloadError("it has dynamic sizes; torch.compile(..., dynamic=False) compiles each size")
            if one.device.type != "cpu" or one.layout != torch.strided:
                raise WorkloadError(f"it has a tensor on {one.device} ({one.layout}), expected dense ones on the CPU")
            if one.requires_grad and torch.is_grad_enabled():
                raise WorkloadError("gradients may be asked for; call it under torch.no_grad()")

    def _frozen(self, arguments: Sequence[Any]) -> Any:
        """Return the sub-graph as a module of its inputs, weights being buffers."""
        torch, graph = self._torch, self._graph

        class SubGraph(torch.nn.Module):  # type: ignore[misc,name-defined]
            """A sub-graph with its weights."""

            def __init__(self) -> None:
                super().__init__()
                self.graph = graph
                for place, one in enumerate(arguments):
                    if _is_weight(one):
                        self.register_buffer(f"weight{place}", one.detach())
                self.places = [None if _is_weight(one) else place for place, one in enumerate(arguments)]

            def forward(self, *inputs: Any) -> Any:
                given = iter(inputs)
                listed = [
                    getattr(self, f"weight{number}") if place is None else next(given)
                    for number, place in enumerate(self.places)
                ]
                return self.graph(*listed)

        return SubGraph().eval()

    def _version(self, weight: Any) -> int:
        return 0 if weight.is_inference() else int(weight._version)

    def _words(self) -> str:
        """Return what the sub-graph is, for people: its first operators."""
        called = [node for node in self._graph.graph.nodes if node.op.startswith("call")]
        names = [str(getattr(node.target, "__name__", node.target)) for node in called]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"{', '.join(names[:3])}{more}" or "no operators"


def _is_weight(argument: Any) -> bool:
    """Whether PyTorch's compiler took an argument from a module: a parameter, a buffer, another attribute."""
    return getattr(argument, "_dynamo_static_input_type", None) is not None


def _is_of(compiled: _Compiled, weights: Sequence[Any], versions: tuple[int, ...]) -> bool:
    if compiled.versions != versions:
        return False
    return all(ref() is one for ref, one in zip(compiled.weights, weights, strict=True))

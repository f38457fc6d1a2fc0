"""What an imported model computes, by its own library, in float64: what compiled outputs are compared with.

Weights stay in float32 and are converted where an operator reads them, each for that moment: a whole copy in float64
would be twice the model's size.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from importlib import import_module

import numpy as np

from anatune.codegen.compat import last_line
from anatune.errors import RunError
from anatune.graph.nodes import Array
from anatune.graph.state import StatePair
from anatune.untyped import OnnxObject, TorchObject

__all__ = ["Arrays", "Reference", "onnx_reference", "reordered", "torch_reference"]

_log = logging.getLogger(__name__)
Arrays = list[Array]
Reference = Callable[[Arrays], tuple[Arrays, str]]
"""Inputs -> outputs, and who computed them, how."""

_REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""What an operator raises that has no float64, or none of the kind."""


def torch_reference(torch: TorchObject, source: TorchObject, name: str, written: Sequence[str | int] = ()) -> Reference:
    """Return what a module of PyTorch's computes: inputs -> outputs, in float64 where its operators have that.

    Parameters
    ----------
    torch
        The package.
    source : torch.nn.Module
    name : str
        For messages.
    written : sequence of str or int
        What it writes into: buffers, which are its last inputs then, and inputs by their number. These are its last
        outputs.
    """
    buffers = [word for word in written if isinstance(word, str)]

    def run(arrays: Arrays, *, is_wide: bool = False) -> Arrays:
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        count = len(tensors) - len(buffers)
        held = dict(zip(buffers, tensors[count:], strict=True))
        if is_wide:
            held = {word: one.double() if one.dtype == torch.float32 else one for word, one in held.items()}
        with torch.no_grad():
            outputs = torch.func.functional_call(source, held, tuple(tensors[:count]))
        changed = [held[word] if isinstance(word, str) else tensors[word] for word in written]
        listed = [*torch.utils._pytree.tree_leaves(outputs), *changed]
        return [tensor.numpy() for tensor in listed if isinstance(tensor, torch.Tensor)]

    return _reference(lambda arrays: _in_float64(torch, partial(run, is_wide=True), arrays), run, "PyTorch", name)


def reordered(reference: Reference, pairs: Sequence[StatePair], count: int) -> Reference:
    """Return a reference whose last inputs and outputs are a model's state; `count`: its inputs."""
    taken = [pair.input for pair in pairs]
    inputs = [*(place for place in range(count) if place not in taken), *taken]
    held = [pair.output for pair in pairs]

    def run(arrays: Arrays) -> tuple[Arrays, str]:
        given = dict(zip(inputs, arrays, strict=True))
        found, library = reference([given[place] for place in range(count)])
        return [
            *(one for place, one in enumerate(found) if place not in held),
            *(found[place] for place in held),
        ], library

    return run


def _in_float64(torch: TorchObject, run: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
    """Return what `run` does while PyTorch's operators read float32 tensors as float64.

    Both where Python calls an operator (some look at dtypes before they are dispatched) and where it is dispatched.
    """
    dispatch: TorchObject = import_module("torch.utils._python_dispatch").TorchDispatchMode
    function_mode: TorchObject = import_module("torch.overrides").TorchFunctionMode
    tree_map = torch.utils._pytree.tree_map

    def wide(value: TorchObject) -> TorchObject:
        is_narrow = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.double() if is_narrow else value

    def widened(
        names: Iterable[str], written: Collection[str], args: TorchObject, kwargs: TorchObject
    ) -> tuple[list[TorchObject], TorchObject]:
        """Return arguments, those of `written` names as they are."""
        given = [value if name in written else tree_map(wide, value) for name, value in zip(names, args, strict=False)]
        named = {name: value if name in written else tree_map(wide, value) for name, value in kwargs.items()}
        if named.get("dtype") == torch.float32:
            named["dtype"] = torch.float64
        return given, named

    class Dispatched(dispatch):  # type: ignore[misc]
        """Converts what an operator reads, not what it writes into."""

        def __torch_dispatch__(
            self, function: TorchObject, types: object, args: TorchObject = (), kwargs: TorchObject = None
        ) -> TorchObject:
            schema = function._schema.arguments
            written = {value.name for value in schema if value.alias_info is not None and value.alias_info.is_write}
            if function is torch.ops.aten._to_copy.default:  # what converts needs no conversion, which would be a copy
                written.add(schema[0].name)
            given, named = widened([value.name for value in schema], written, args, kwargs or {})
            return function(*given, **named)

    class Called(function_mode):  # type: ignore[misc]
        """The same; what is written is the first argument of a function whose name ends so, and ``out``."""

        def __torch_function__(
            self, function: TorchObject, types: object, args: TorchObject = (), kwargs: TorchObject = None
        ) -> TorchObject:
            name = getattr(function, "__name__", "")
            if name == "__get__":
                return function(*args, **kwargs or {})
            short = name.partition(".")[0]
            is_written = short.startswith(("__i", "__set")) or (short.endswith("_") and not short.endswith("__"))
            names = ["0" if is_written else "", *[""] * len(args)]
            given, named = widened(names, ("0", "out"), args, kwargs or {})
            return function(*given, **named)

    with Called(), Dispatched():
        return run(arrays)


def onnx_reference(model: OnnxObject, name: str) -> Reference:
    """Return what an ONNX model computes, by ONNX's reference evaluator: inputs in its order -> outputs.

    In float64 where its operators have that. The model is not read a second time, which would take twice its size.

    Parameters
    ----------
    model : onnx.ModelProto
    name : str
        For messages.
    """

    def run(arrays: Arrays, by_nodes: bool) -> Arrays:
        onnx, evaluator = import_module("onnx"), import_module("onnx.reference").ReferenceEvaluator
        weights = {weight.name: weight for weight in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in weights]
        given = dict(zip(names, arrays, strict=True))
        evaluate = functools.partial(evaluator, new_ops=[_gather_elements()])
        return _by_nodes(onnx, evaluate, model, weights, given) if by_nodes else list(evaluate(model).run(None, given))

    wide, narrow = functools.partial(run, by_nodes=True), functools.partial(run, by_nodes=False)
    return _reference(wide, narrow, "ONNX's reference evaluator", name)


def _gather_elements() -> OnnxObject:
    """Return an implementation of GatherElements: the evaluator's own fails from 65 elements of an axis on (1.23)."""
    run: OnnxObject = import_module("onnx.reference.op_run").OpRun

    class GatherElements(run):  # type: ignore[misc]
        """As the standard says."""

        op_domain = ""

        def _run(self, data: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
            return (np.take_along_axis(data, indices, axis or 0),)

    return GatherElements


def _reference(
    wide: Callable[[Arrays], Arrays], narrow: Callable[[Arrays], Arrays], library: str, name: str
) -> Reference:
    """Return what computes in float64 (`wide`), or, where that is refused, in the model's own dtypes (`narrow`)."""

    def reference(arrays: Arrays) -> tuple[Arrays, str]:
        try:
            return wide(arrays), f"{library} in float64"
        except _REFUSALS as error:
            _log.info("%s does not run in float64: %s", name, last_line(error))
        try:
            return narrow(arrays), library
        except _REFUSALS as error:
            raise RunError(
                f"check: {library} cannot run {name} on random inputs: {last_line(error):.200}; check=False "
                "(--no-check) builds it without a comparison"
            ) from None

    return reference


def _by_nodes(
    onnx: OnnxObject, evaluator: OnnxObject, model: OnnxObject, weights: dict[str, OnnxObject], given: dict[str, Array]
) -> Arrays:
    """Return a model's outputs; each node is evaluated alone, and what it reads converted for that.

    Results are dropped behind their last reader.
    """
    versions = {operators.domain: operators.version for operators in model.opset_import}
    nodes = list(model.graph.node)
    readers = Counter(name for node in nodes for name in node.input)
    wanted = [output.name for output in model.graph.output]
    readers.update(wanted)
    known = {name: _wide(array) for name, array in given.items()}

    def value(name: str) -> Array:
        return known[name] if name in known else _wide(onnx.numpy_helper.to_array(weights[name]))

    def place(name: str) -> OnnxObject:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None)

    for node in nodes:
        names = [name for name in dict.fromkeys(node.input) if name]
        # a branch, a loop: they read what is around them
        if any(entry.g.node or entry.graphs for entry in node.attribute):
            names = list({**known, **weights})
        results = [name for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", list(map(place, names)), list(map(place, results)))
        alone = evaluator(graph, opsets=versions, functions=list(model.functions))
        computed = alone.run(None, {name: value(name) for name in names})
        known.update((name, _wide(array)) for name, array in zip(results, computed, strict=True))
        for name in node.input:
            readers[name] -= 1
            if not readers[name]:
                known.pop(name, None)
    return [value(name) for name in wanted]


def _wide(array: Array) -> Array:
    is_narrow = isinstance(array, np.ndarray) and array.dtype == np.float32
    return array.astype(np.float64) if is_narrow else array

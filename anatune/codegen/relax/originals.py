"""What an imported model computes, by its own library, in float64: what compiled outputs are compared with.

Weights stay in float32 and are converted where an operator reads them, each for that moment: a whole copy in float64
would be twice the model's size.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.compat import last_line
from anatune.errors import RunError

__all__ = ["Arrays", "Reference", "onnx_reference", "torch_reference"]

_log = logging.getLogger(__name__)
Arrays = list[NDArray[Any]]
Reference = Callable[[Arrays], tuple[Arrays, str]]
"""Inputs -> outputs, and who computed them, how."""

_REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""What an operator raises that has no float64, or none of the kind."""


def torch_reference(torch: Any, source: Any, name: str) -> Reference:
    """Return what a module of PyTorch's computes: inputs -> outputs, in float64 where its operators have that.

    Parameters
    ----------
    torch
        The package.
    source : torch.nn.Module
    name : str
        For messages.
    """

    def run(arrays: Arrays) -> Arrays:
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        with torch.no_grad():
            found = source(*tensors)
        listed = torch.utils._pytree.tree_leaves(found)
        return [one.numpy() for one in listed if isinstance(one, torch.Tensor)]

    return _reference(lambda arrays: _in_float64(torch, run, arrays), run, "PyTorch", name)


def _in_float64(torch: Any, run: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
    """Return what `run` does while PyTorch's operators read float32 tensors as float64.

    Both where Python calls an operator (some look at dtypes before they are dispatched) and where it is dispatched.
    """
    dispatch: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
    function_mode: Any = import_module("torch.overrides").TorchFunctionMode
    tree_map = torch.utils._pytree.tree_map

    def wide(value: Any) -> Any:
        is_narrow = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.double() if is_narrow else value

    def widened(names: Iterable[str], written: Collection[str], args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        """Return arguments, those of `written` names as they are."""
        given = [one if name in written else tree_map(wide, one) for name, one in zip(names, args, strict=False)]
        named = {name: one if name in written else tree_map(wide, one) for name, one in kwargs.items()}
        if named.get("dtype") == torch.float32:
            named["dtype"] = torch.float64
        return given, named

    class Dispatched(dispatch):  # type: ignore[misc]
        """Converts what an operator reads, not what it writes into."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            schema = function._schema.arguments
            written = {one.name for one in schema if one.alias_info is not None and one.alias_info.is_write}
            if function is torch.ops.aten._to_copy.default:  # what converts needs no conversion, which would be a copy
                written.add(schema[0].name)
            given, named = widened([one.name for one in schema], written, args, kwargs or {})
            return function(*given, **named)

    class Called(function_mode):  # type: ignore[misc]
        """The same; what is written is the first argument of a function whose name ends so, and ``out``."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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


def onnx_reference(model: Any, name: str) -> Reference:
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
        weights = {one.name: one for one in model.graph.initializer}
        names = [one.name for one in model.graph.input if one.name not in weights]
        given = dict(zip(names, arrays, strict=True))
        evaluate = functools.partial(evaluator, new_ops=[_gather_elements()])
        return _by_nodes(onnx, evaluate, model, weights, given) if by_nodes else list(evaluate(model).run(None, given))

    wide, narrow = functools.partial(run, by_nodes=True), functools.partial(run, by_nodes=False)
    return _reference(wide, narrow, "ONNX's reference evaluator", name)


def _gather_elements() -> Any:
    """Return an implementation of GatherElements: the evaluator's own fails from 65 elements of an axis on (1.23)."""
    run: Any = import_module("onnx.reference.op_run").OpRun

    class GatherElements(run):  # type: ignore[misc]
        """As the standard says."""

        op_domain = ""

        def _run(self, data: Any, indices: Any, axis: int | None = None) -> Any:
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


def _by_nodes(onnx: Any, evaluator: Any, model: Any, weights: dict[str, Any], given: dict[str, NDArray[Any]]) -> Arrays:
    """Return a model's outputs; each node is evaluated alone, and what it reads converted for that.

    Results are dropped behind their last reader.
    """
    versions = {one.domain: one.version for one in model.opset_import}
    nodes = list(model.graph.node)
    readers = Counter(name for node in nodes for name in node.input)
    wanted = [one.name for one in model.graph.output]
    readers.update(wanted)
    known = {name: _wide(array) for name, array in given.items()}

    def value(name: str) -> NDArray[Any]:
        return known[name] if name in known else _wide(onnx.numpy_helper.to_array(weights[name]))

    def place(name: str) -> Any:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None)

    for node in nodes:
        names = [name for name in dict.fromkeys(node.input) if name]
        if any(one.g.node or one.graphs for one in node.attribute):  # a branch, a loop: they read what is around them
            names = list({**known, **weights})
        results = [name for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", list(map(place, names)), list(map(place, results)))
        alone = evaluator(graph, opsets=versions, functions=list(model.functions))
        found = alone.run(None, {name: value(name) for name in names})
        known.update((name, _wide(array)) for name, array in zip(results, found, strict=True))
        for name in node.input:
            readers[name] -= 1
            if not readers[name]:
                known.pop(name, None)
    return [value(name) for name in wanted]


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    is_narrow = isinstance(array, np.ndarray) and array.dtype == np.float32
    return array.astype(np.float64) if is_narrow else array

"""Import models: PyTorch modules and exported programs, ONNX files, and Relax modules.

PyTorch and ONNX are imported only for models of theirs. Each imported model has a reference, with which compiled
outputs are compared: the original, computed by its own library, in float64 if possible.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anatune.arguments import plain_array, quote
from anatune.codegen.compat import import_tvm, last_line
from anatune.errors import MissingDependencyError, WorkloadError
from anatune.network.graph.nodes import HALVES, Array, Graph
from anatune.network.graph.onnx.reading import graph_of_onnx
from anatune.network.graph.passes.precision import WIDE, compute_in_float32
from anatune.network.graph.state import StatePair, attach_state, choose_probes, find_growth, find_pairs
from anatune.network.graph.torch.arrays import any_array, array_of_torch, torch_of_array
from anatune.network.relax.onnx_files import load_onnx, onnx_shapes
from anatune.network.relax.originals import Arrays, Reference, onnx_reference, reorder_reference, torch_reference
from anatune.network.relax.ranges import Ranges, Sizes, check_symbols, make_symbol, name_of, narrow_ranges, parse_ranges
from anatune.untyped import OnnxObject, TorchObject

__all__ = ["ImportedModel", "decompose", "export_module", "import_model"]

Example = TorchObject
"""A NumPy array or torch tensor, or a sequence of them; None without inputs."""

KINDS = "a torch.nn.Module, a torch.export.ExportedProgram, an ONNX file or model, a .pt2 file or a Relax module"


@dataclass(frozen=True)
class ImportedModel:
    """A model that can be read as a graph.

    Attributes
    ----------
    read : callable
        Returns the graph at values of the symbols of `ranges`, read anew each time, so that weights which passes have
        replaced can be freed. Raises the errors of `import_model`.
    name : str
        Name for messages: the class or the file.
    reference : callable, optional
        Takes the inputs as arrays; returns the original's outputs and the name of the library that computed them.
    example : list of ndarray, optional
        Inputs that the caller gave.
    is_single : bool
        Whether the model returns one tensor besides its state, even if the graph returns several.
    ranges : mapping of str to (int, int)
        Symbol of a size that varies -> least and largest value.
    onnx : tuple, optional
        For ONNX models the model (onnx.ModelProto), and the sizes of its inputs.
    state : tuple of StatePair
        The state; its tensors are the last inputs and outputs of the graph and of the reference.
    is_wide : bool
        Whether the graph computes in float32 although the model computes in 16 bits.
    is_described : bool
        Whether weights have shapes and dtypes only, and no values.
    graphs : dict, optional
        The graphs so far by sizes, if the model keeps them.
    """

    read: Callable[[Mapping[str, int]], Graph]
    name: str
    reference: Reference | None
    example: Arrays | None
    is_single: bool = False
    ranges: Ranges = field(default_factory=dict)
    onnx: tuple[OnnxObject, dict[str, list[int]]] | None = None
    state: tuple[StatePair, ...] = ()
    is_wide: bool = False
    is_described: bool = False
    graphs: dict[frozenset[tuple[str, int]], Graph] | None = None

    def keep_graphs(self) -> ImportedModel:
        """Return the model that keeps its graphs, so that it is read once at each of its sizes."""
        return replace(self, graphs={})

    def widen(self) -> ImportedModel:
        """Return the model with 16-bit computation and state in float32."""
        return replace(self, is_wide=True, state=tuple(map(_widen_pair, self.state)))

    def graph(self, sizes: Mapping[str, int] | None = None) -> Graph:
        """Return the graph of the model at values of its symbols."""
        graphs, key = {} if self.graphs is None else self.graphs, frozenset((sizes or {}).items())
        if key not in graphs:
            graph, state = self.read(sizes or {}), self.state
            if self.is_wide:
                graph = compute_in_float32(graph, [pair.input for pair in state], [pair.output for pair in state])
            graphs[key] = attach_state(graph, state, self.name) if state else graph
            graphs[key].is_tuple = graphs[key].is_tuple and (not self.is_single or bool(state))
        return graphs[key]


def import_model(
    model: object,
    example_inputs: Example = None,
    sizes: Sizes | None = None,
    dynamic_shapes: object = None,
    state: str | Mapping[str, str] | None = None,
) -> ImportedModel:
    """Import a model.

    Parameters
    ----------
    model
        One of `KINDS`.
    example_inputs : array, or sequence of arrays, optional
        NumPy or torch; needed for a ``nn.Module``. An ONNX file with dynamic axes is compiled for their shapes, unless
        `sizes` is given.
    sizes : mapping of str to int, str or (int, int), optional
        Symbol -> the range of its values ("1..512", (1, 512)), or its only value.
    dynamic_shapes : optional
        For a ``nn.Module``, as ``torch.export.export`` takes them.
    state : str or mapping of str to str, optional
        As `anatune.compile`.

    Raises
    ------
    WorkloadError
        The model is of another kind, its file is damaged, an operator is unknown, or inputs are missing.
    MissingDependencyError
        TVM, PyTorch or ONNX is not installed.
    """
    import_tvm()
    requested = _Request(parse_ranges(sizes), state)
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(model).__mro__}
    if dynamic_shapes is not None and "torch.Module" not in kinds:
        name = str(model) if isinstance(model, str | os.PathLike) else quote(model)
        raise WorkloadError(
            f"compile: dynamic_shapes is for a torch.nn.Module; give sizes for the varying dimensions of {name}"
        )
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise WorkloadError(f"{path} {what}, expected an ONNX file (.onnx) or a saved torch.export program (.pt2)")
        if path.suffix == ".pt2":
            return _import_pt2(path, example_inputs, requested)
        return _import_onnx(load_onnx(path), path.name, str(path), example_inputs, requested)
    if "torch.ExportedProgram" in kinds:
        return _import_program(model, type(model).__name__, example_inputs, requested)
    if "torch.Module" in kinds:
        program = export_module(model, example_inputs, dynamic_shapes)
        return _import_program(program, type(model).__name__, example_inputs, requested, model)
    if "onnx.ModelProto" in kinds:
        return _import_onnx(model, "ONNX model", "ONNX model", example_inputs, requested)
    if "tvm.IRModule" in kinds:
        from anatune.network.relax.reading import graph_of

        check_symbols({}, requested.ranges, "Relax module")
        return _add_state(
            ImportedModel(lambda _: graph_of(model), "Relax module", None, _arrays(example_inputs)), requested
        )
    raise WorkloadError(f"compile: model is {quote(model)}, expected {KINDS}")


def _widen_pair(pair: StatePair) -> StatePair:
    is_half = pair.initial is not None and pair.initial.dtype.name in HALVES
    return pair._replace(initial=pair.initial.astype(WIDE)) if is_half and pair.initial is not None else pair


class _Request(NamedTuple):
    """The sizes and the state that a caller asks for."""

    ranges: Ranges
    state: str | Mapping[str, str] | None = None


def _import_torch() -> TorchObject:
    try:
        return import_module("torch")
    except ImportError as error:
        raise MissingDependencyError(
            f"PyTorch models need torch, which cannot be imported ({error}); install it with: pip install torch"
        ) from error


def _tensors(inputs: Example) -> tuple[TorchObject, ...]:
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return tuple(
        torch_of_array(plain_array("an example input", one, WorkloadError)) if isinstance(one, np.ndarray) else one
        for one in values
    )


def _arrays(inputs: Example) -> Arrays | None:
    if inputs is None:
        return None
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    arrays = [any_array("an example input", array, WorkloadError) for array in values]
    for value, array in zip(values, arrays, strict=True):
        if array.dtype.kind in "OU" and not isinstance(value, np.ndarray):
            raise WorkloadError(f"an example input is a {type(value).__name__}, expected an array or a tensor")
    return arrays


def export_module(model: TorchObject, example_inputs: Example, dynamic_shapes: object = None) -> TorchObject:
    """Export a PyTorch module as a ``torch.export.ExportedProgram``. See `import_model` for parameters and errors."""
    torch = _import_torch()
    name = type(model).__name__
    if example_inputs is None:
        raise WorkloadError(
            f"compile: {name} needs example_inputs, tensors of the sizes to compile for: anatune.compile(model, x)"
        )
    if model.training:
        raise WorkloadError(f"compile: {name} is in training mode; call model.eval() first")
    try:
        with torch.no_grad():
            return torch.export.export(model, _tensors(example_inputs), dynamic_shapes=dynamic_shapes)
    except Exception as error:
        raise WorkloadError(f"torch.export cannot export {name}: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """Return the first line of PyTorch's message; hints for debugging follow it."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def _import_pt2(path: Path, example_inputs: Example, requested: _Request) -> ImportedModel:
    torch = _import_torch()
    try:
        with _silence_logs():
            program = torch.export.load(str(path))
    except Exception as error:
        raise WorkloadError(
            f"{path}: {last_line(error):.200}; expected a file of torch.export.save; export it again"
        ) from error
    return _import_program(program, path.name, example_inputs, requested)


@contextlib.contextmanager
def _silence_logs() -> Iterator[None]:
    """Suppress PyTorch's log messages, tracebacks included, for files whose errors become one line."""
    loggers = [logger for name, logger in logging.root.manager.loggerDict.items() if name.partition(".")[0] == "torch"]
    handlers = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    for handler in handlers:
        handler.addFilter(_drop_record)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_drop_record)


def _drop_record(_record: logging.LogRecord) -> bool:
    return False


def _import_program(
    program: TorchObject, name: str, example_inputs: Example, requested: _Request, original: TorchObject = None
) -> ImportedModel:
    from anatune.network.graph.torch.reading import graph_of_program, initial_buffer, list_mutated, symbols_of_program

    torch = _import_torch()
    example = _arrays(example_inputs)
    if example is None and program.example_inputs is not None:
        given = program.example_inputs[0]
        example = _arrays(given) if all(isinstance(tensor, torch.Tensor) for tensor in given) else None
    simple = decompose(program, name, may_write=True)
    targets = list_mutated(simple)
    buffers = {word: array_of_torch(initial_buffer(simple, word)) for word, is_buffer in targets if is_buffer}
    inputs = list(simple.graph_signature.user_inputs)
    places = [word if is_buffer else inputs.index(word) for word, is_buffer in targets]

    source = original if original is not None and not targets else program.module()
    reference = torch_reference(torch, source, name, places)
    returns = program.call_spec.out_spec
    symbols = {make_symbol(symbol.name): symbol for symbol in symbols_of_program(simple)}
    model_ranges = {word: (symbol.least, symbol.most, symbol.seen) for word, symbol in symbols.items()}

    def read(sizes: Mapping[str, int]) -> Graph:
        return graph_of_program(simple, name, {symbol.expression: sizes[word] for word, symbol in symbols.items()})

    is_single = returns is None or returns.is_leaf()
    ranges = narrow_ranges(model_ranges, requested.ranges, name)
    is_described = any(
        getattr(one, "is_meta", False) for one in (*simple.state_dict.values(), *simple.constants.values())
    )
    model = ImportedModel(read, name, reference, example, is_single, ranges, is_described=is_described)
    return _add_state(model, requested, model_ranges, written=[(word, buffers.get(word)) for word, _ in targets])


def _decomposition_table(program: TorchObject) -> TorchObject:
    """Return the table of PyTorch's decompositions, without operators that are read directly.

    Those are recurrent layers without projected states, functions that lose digits or overflow when decomposed, and
    torchao's weights of few bits, of which only floats would remain.
    """
    torch = _import_torch()
    table, aten = torch.export.default_decompositions(), torch.ops.aten
    if hasattr(torch.ops.torchao, "dequantize_affine"):
        table.pop(torch.ops.torchao.dequantize_affine.default, None)
    roots = (getattr(one, overload) for one in (aten.std, aten.std_mean) for overload in one.overloads())
    for operator in (aten.hardswish.default, aten.mish.default, *roots):
        table.pop(operator, None)
    for node in program.graph.nodes:
        if node.target == aten.lstm.input and _is_projected(node.args[2], 4 if node.args[3] else 2):
            return table
    for operator in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input):
        table.pop(operator, None)
    return table


def _is_projected(parameters: Sequence[TorchObject], count: int) -> bool:
    """Return whether an LSTM has a projected state; without one it has `count` parameters per layer."""
    gates, hidden = parameters[1].meta["val"].shape
    return len(parameters) % count != 0 or bool(gates != 4 * hidden)


def _add_state(
    source: ImportedModel,
    requested: _Request,
    model_ranges: Mapping[str, tuple[int, int | None, int]] | None = None,
    names: Sequence[str] = (),
    written: Sequence[tuple[str, Array | None]] = (),
) -> ImportedModel:
    """Return a model with its state.

    Parameters
    ----------
    model_ranges : mapping of str to (int, int), optional
        Ranges that the model takes.
    names : sequence of str
        Names of its outputs; by default they are numbered.
    written : sequence of (str, ndarray)
        The targets of the last outputs: an input, or a buffer with its values, which is one of the last inputs.

    Raises
    ------
    WorkloadError
        See `graph.state`.
    """
    if not written and requested.state is None:
        return source
    probe_ranges = {  # by how much a state grows may be fixed now, and is another size of the model's
        symbol: ends if symbol not in (model_ranges or {}) or ends[0] < ends[1] else (model_ranges or {})[symbol][:2]
        for symbol, ends in source.ranges.items()
    }
    sizes = choose_probes(probe_ranges)  # type: ignore[arg-type]
    graphs = [source.read(one) for one in sizes]
    inputs = [value.name for value in graphs[0].inputs]
    count = len(graphs[0].outputs)
    buffers = [word for word, array in written if array is not None]
    pairs = []
    for output_index, (word, array) in enumerate(written, count - len(written)):
        number = inputs.index(word) if array is None else len(inputs) - len(buffers) + buffers.index(word)
        pairs.append(StatePair(word, output_index, number, array if array is not None and array.any() else None))
    if requested.state is not None:
        outputs = names or [f"output{number}" for number in range(count - len(written))]
        named_pairs = find_pairs(requested.state, inputs, outputs, source.name)
        pairs += [StatePair(inputs[number], output, number) for output, number in named_pairs]
    pairs = find_growth(graphs, sizes, pairs, source.name)
    counted = {pair.symbol for pair in pairs if pair.symbol}
    ranges = narrow_ranges(model_ranges or {}, requested.ranges, source.name, counted)
    for symbol in counted:
        if ranges[symbol][0]:
            raise WorkloadError(
                f"state: {source.name} holds nothing at first, but size {name_of(symbol)} has the range "
                f"{ranges[symbol][0]}..{ranges[symbol][1]}, expected one from 0 (sizes, --size; Dim(min=0))"
            )
    pairs = [pair._replace(most=ranges[pair.symbol][1]) if pair.symbol else pair for pair in pairs]
    for pair in pairs:
        if pair.by:
            least, most = ranges[pair.by]
            if least > pair.most:
                raise WorkloadError(
                    f"state: a call has {least} of {name_of(pair.by)} or more, but {source.name} holds at most "
                    f"{pair.most} of {name_of(pair.symbol)}; give a smaller number or a larger range (sizes, --size)"
                )
            ranges[pair.by] = (min(least, pair.most), min(most, pair.most))
    reference = source.reference and reorder_reference(source.reference, pairs, len(inputs))
    example = source.example
    if example is not None:
        state_inputs = {pair.input for pair in pairs}
        example = [array for place, array in enumerate(example) if place not in state_inputs]
    outputs_left = count - len(pairs)
    if not outputs_left:
        raise WorkloadError(f"state: {source.name} returns nothing besides its state, expected another output")
    is_single = source.is_single or (requested.state is not None and outputs_left == 1)
    return replace(
        source, ranges=ranges, state=tuple(pairs), reference=reference, example=example, is_single=is_single
    )  # fmt: skip


def decompose(program: TorchObject, name: str, *, may_write: bool = False) -> TorchObject:
    """Decompose a program into PyTorch's core operators; `may_write` allows in-place writes into inputs and buffers.

    Raises
    ------
    WorkloadError
        PyTorch refuses the program, or the program changes an input or a buffer in place.
    """
    try:
        with warnings.catch_warnings(), _import_torch().no_grad():
            warnings.simplefilter("ignore")
            simple = program.run_decompositions(_decomposition_table(program))
    except Exception as error:
        raise WorkloadError(f"PyTorch cannot decompose {name}: {_cause(error)}") from error
    from anatune.network.graph.torch.reading import list_mutated

    changed = list_mutated(simple)
    if changed and not may_write:
        raise WorkloadError(f"{name} writes into {changed[0][0]} in place, expected a model that only returns values")
    return simple


def _import_onnx(model: OnnxObject, name: str, where: str, example_inputs: Example, request: _Request) -> ImportedModel:
    """Import an ONNX model; `where` begins its messages."""
    if not model.graph.output:
        raise WorkloadError(f"{where}: it is not an ONNX model with operators and outputs; export it again")
    example = _arrays(example_inputs)
    shapes = onnx_shapes(model, where, example if not request.ranges else None)
    symbols = dict.fromkeys(size for shape in shapes.values() for size in shape if isinstance(size, str))
    model_ranges = dict.fromkeys(symbols, (0, None, 1))

    def read(sizes: Mapping[str, int]) -> Graph:
        input_shapes = {
            word: [size if isinstance(size, int) else sizes[size] for size in shape] for word, shape in shapes.items()
        }
        return graph_of_onnx(model, input_shapes, name)

    ranges = narrow_ranges(model_ranges, request.ranges, name)
    least = {word: ends[0] for word, ends in ranges.items()}  # the only sizes if none varies
    fixed = {word: [size if isinstance(size, int) else least[size] for size in shape] for word, shape in shapes.items()}
    model_source = ImportedModel(read, name, onnx_reference(model, name), example, ranges=ranges, onnx=(model, fixed))
    return _add_state(model_source, request, model_ranges, [output.name for output in model.graph.output])

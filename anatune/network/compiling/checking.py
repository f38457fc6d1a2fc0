"""Compare the outputs of a compiled model with the original's, and find the operator that computes something else.

To find it, the model is built once more so that it returns the result of every operator. Each of anatune's kernels, and
each of TVM's operators that can be evaluated here, is then compared with float64 on the very operands that it read.
Errors therefore do not propagate: the first operator that differs is wrong itself.
"""

from __future__ import annotations

import functools
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anatune.codegen.compat import convert_to_array
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.core.workload.text import workload_to_text
from anatune.errors import AnatuneError, BuildError, DivisionError, RunError, WorkloadError
from anatune.files import scratch_folder
from anatune.measure.cpu.blocks import tensor_of
from anatune.measure.run.reference import reference
from anatune.network.compiling.compiled import CompiledModel, draw_state
from anatune.network.compiling.memory import release_freed_memory, views
from anatune.network.compiling.planning import PlannedKernel
from anatune.network.compiling.sizes.called import fit_state_sizes
from anatune.network.compiling.weights import pack_weights
from anatune.network.graph.folding import evaluate_node
from anatune.network.graph.nodes import Array, Constant, Graph, Node, TensorType, Value, iterate_values
from anatune.network.graph.operators import PRODUCTS
from anatune.network.graph.products import workload_of
from anatune.network.graph.summary import Check, ModelSummary
from anatune.network.relax.building import build_library
from anatune.network.relax.frontends import ImportedModel
from anatune.network.relax.kernels import ModelKernel
from anatune.network.relax.machine import LibraryRunner
from anatune.network.relax.writing import write_model
from anatune.untyped import tvm

__all__ = ["TOLERANCE", "FaultSearch", "check_outputs", "compare_outputs", "error_of", "tolerance_of"]

_log = logging.getLogger(__name__)
Arrays = Sequence[Array]
Blame = Callable[[Arrays, Arrays], str]
"""A function from inputs and the original's outputs to words that say what is wrong with the compiled model."""

_LARGER_FACTOR = 3
"""A size that varies is also checked at this multiple of the planned size."""
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-10}
"""Largest error of a result, over its largest magnitude; integers and truth values have to be equal."""


def tolerance_of(array: Array) -> float:
    """Return the largest error that an array may have."""
    return TOLERANCE.get(array.dtype.name, 0.0)


def error_of(result: Array, other: Array) -> float:
    """Return the largest difference over the largest magnitude; equal infinities and NaNs do not differ."""
    if result.shape != other.shape:
        return float("inf")
    if not result.size:
        return 0.0
    if result.dtype.name not in TOLERANCE:
        return 0.0 if np.array_equal(result, other) else float("inf")
    first, second = result.astype(np.float64), other.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    scale = _largest(second)
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(first - second))
    worst = float(np.nan_to_num(difference, nan=np.inf).max())
    return worst / scale if scale else worst


_ROUNDED_FACTOR, _ROUNDED_UNITS, _MOST_ROUNDED = 3, 4, 0.25
"""Tolerance of a model that rounds to integers on its way: multiples of the original's error in float32, units of an
8-bit result, and the largest tolerance. A value almost halfway between two integers may be rounded either way, and all
that follows differs; which values are is chance, in the original as in kernels. Measured error over the largest
magnitude, compiled and onnxruntime: ResNet-18 0.007 and 0.014, MobileNet-V2 0.008 and 0.023, BERT 0.063 and 0.079."""


def check_outputs(
    compiled: CompiledModel, source: ImportedModel, blame: Blame, *, allowed: float = 0.0, rounds: bool = False
) -> Check:
    """Return the largest error of a model's outputs on random inputs, compared with the original's.

    `allowed` is the error that the arithmetic of its kernels explains, if it is more than `TOLERANCE`.

    Integer inputs are the caller's, if given, because ids have to be valid. A model with sizes that vary runs at those
    of `_sizes_of`. A fast model of fixed sizes also runs on `_EDGE_INPUTS`.

    Parameters
    ----------
    rounds : bool
        Whether numbers become integers on the way, see `_ROUNDED_FACTOR`.

    Raises
    ------
    RunError
        See `compare_outputs`.
    """
    release_freed_memory()  # that compilers left
    checks = [_check(compiled, source, blame, sizes, allowed, rounds=rounds) for sizes in _sizes_of(compiled.summary)]
    return max(checks, key=lambda one: one.error)


def _sizes_of(summary: ModelSummary) -> list[dict[str, int]]:
    """Return the sizes to run a model at: the planned sizes, the least, and for each size a larger one."""
    ranges = summary.ranges
    planned, least = ({name: getattr(one, word) for name, one in ranges.items()} for word in ("usual", "least"))
    others = [{**least, name: min(one.most, _LARGER_FACTOR * one.usual)} for name, one in ranges.items()]
    tried = [fit_state_sizes(summary, sizes) for sizes in (planned, least, *others)]
    return list({tuple(sizes.items()): sizes for sizes in tried}.values())


def _check(
    compiled: CompiledModel, source: ImportedModel, blame: Blame, sizes: Mapping[str, int], allowed: float, *,
    rounds: bool,
) -> Check:  # fmt: skip
    """Return the largest error of a model's outputs at some sizes. Raises the errors of `compare_outputs`."""
    assert source.reference is not None
    held = draw_state(compiled.summary, sizes)
    if held:
        compiled.state = held
    inputs = list(compiled.random_inputs(sizes=sizes))
    if source.example is not None and not sizes:
        inputs = [
            given if given.dtype.kind not in "fcV" else drawn
            for given, drawn in zip(source.example, inputs, strict=True)
        ]
    began = time.perf_counter()
    try:
        got = compiled(*inputs)
    except DivisionError:  # a random divisor was zero
        inputs = [np.where(one == 0, 1, one).astype(one.dtype) if one.dtype.kind in "iu" else one for one in inputs]
        began = time.perf_counter()
        got = compiled(*inputs)
    listed = [*(got if compiled.summary.is_tuple else [got]), *compiled.state.values()]
    compiled.reset()
    given = [*inputs, *held.values()]
    want, library = source.reference([array.copy() for array in given])
    is_quick = time.perf_counter() - began < _MOST_EDGE_CHECK_S

    @functools.cache
    def estimate_rounding() -> float:
        assert source.reference is not None
        narrow, _ = source.reference([array.copy() for array in given], is_narrow=True)
        errors = [
            error_of(output.astype(np.float64), expected.astype(np.float64))
            for output, expected in zip(narrow, want, strict=True)
            if output.dtype.kind == "f" or output.dtype.name in BYTE_DTYPES
        ]
        return min(_MOST_ROUNDED, max(_ROUNDED_UNITS / 256, _ROUNDED_FACTOR * max(errors, default=0.0)))

    names = [one.name for one in (*compiled.summary.outputs, *compiled.summary.state)]
    size_text = ", ".join(f"{name}={size}" for name, size in sizes.items())
    check = compare_outputs(
        listed, want, names, library,
        lambda: f"with {size_text or 'a state'}" if sizes or held else blame(inputs, want),
        allowed,
        estimate_rounding if rounds else None,
    )  # fmt: skip
    if is_quick and check.tolerance is not None and not (sizes or held or rounds):
        for edges in _EDGE_INPUTS:
            _check_edges(compiled, source, [_fill(array, edges) for array in inputs], edges, check.tolerance, want)
    return check


_MOST_EDGE_CHECK_S = 0.5
"""Seconds of a run and its float64 original above which the edge inputs are left out."""
_EDGE_INPUTS: tuple[tuple[float, ...], ...] = ((0.0,), (0.0, 1e-6, -1e-6, 30.0, -0.0, 1e-40, -30.0, -1e-40, 1.0))
"""Values that fill the inputs in further runs, repeated."""
_NUDGE = 2.0**-24
"""Added to the inputs to see whether a result depends on the rounding of float32."""


def _fill(array: Array, numbers: Sequence[float]) -> Array:
    return np.resize(np.asarray(numbers), array.shape).astype(array.dtype) if array.dtype.name in TOLERANCE else array


def _check_edges(
    compiled: CompiledModel, source: ImportedModel, inputs: Arrays, edges: Sequence[float], limit: float, usual: Arrays
) -> None:
    """Compare outputs for unusual inputs with the original's; `usual` are the original's outputs for random inputs.

    An element counts only if the original returns the same in float32, in float64 and with slightly different inputs:
    others depend on how numbers are rounded.

    Raises
    ------
    RunError
        An output differs; the message names it.
    """
    assert source.reference is not None
    try:
        got = compiled(*inputs)
        listed = list(got) if compiled.summary.is_tuple else [got]
        want, library = source.reference([*map(np.copy, inputs)])
    except RunError as error:
        _log.info("the model cannot run with inputs of %s: %s", edges, error)
        return
    if all(_is_near(result, exact, limit).all() for result, exact in zip(listed, want, strict=True)):
        return
    nudged = [array + np.asarray(_NUDGE, array.dtype) if array.dtype.name in TOLERANCE else array for array in inputs]
    narrow, near = (source.reference([*map(np.copy, arrays)], is_narrow=True)[0] for arrays in (inputs, nudged))
    every = zip(compiled.summary.outputs, listed, want, narrow, near, usual, strict=True)
    for output, result, exact, single, moved, random in every:
        is_lost = np.isfinite(_to_float64(exact)) & np.isfinite(_to_float64(single)) & ~np.isfinite(_to_float64(result))
        is_usual = _is_near(single, exact, limit) & _is_near(moved, exact, limit)
        is_wrong = is_lost | (is_usual & ~_is_near(result, exact, limit, _largest(random)))  # zeros may be rounded
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise RunError(
                f"check: output {output.name} is {result.flat[first]:.6g} where {library} computes "
                f"{exact.flat[first]:.6g}, for inputs filled with {', '.join(f'{number:g}' for number in edges)}; "
                "check=False (--no-check) builds the model without this check"
            )


def _to_float64(array: Array) -> Array:
    return array.astype(np.float64)


def _largest(array: Array) -> float:
    """Return the largest finite magnitude of an array."""
    return float(np.abs(_to_float64(array[np.isfinite(_to_float64(array))])).max(initial=0.0))


def _is_near(result: Array, want: Array, limit: float, usual: float = 0.0) -> Array:
    """Return for each element whether arrays agree up to `limit` times the largest magnitude, or times `usual` if 0.

    Integers and truth values always agree: which of two numbers is larger may depend on rounding.
    """
    if result.dtype.name not in TOLERANCE:
        return np.ones(result.shape, np.bool_)
    first, second = _to_float64(result), _to_float64(want)
    with np.errstate(invalid="ignore"):
        is_near = np.abs(first - second) <= limit * (_largest(want) or usual)
    return np.asarray(is_near | (first == second) | (np.isnan(first) & np.isnan(second)))


def compare_outputs(
    got: Sequence[Array],
    want: Sequence[Array],
    names: Sequence[str],
    reference: str,
    blame: Callable[[], str] | None = None,
    allowed: float = 0.0,
    estimate_rounding: Callable[[], float] | None = None,
) -> Check:
    """Return the largest error of outputs, compared with the original's.

    Parameters
    ----------
    blame : callable, optional
        Returns words that say what is wrong, for the message.
    allowed : float
        Error that the arithmetic explains.
    estimate_rounding : callable, optional
        Returns the tolerance of floating-point results that are computed from rounded ones.

    Raises
    ------
    RunError
        An error exceeds `TOLERANCE`, or a shape differs; the message names the output.
    """
    if len(got) != len(want):
        raise RunError(f"check: the compiled model has {len(got)} outputs, expected {len(want)} as {reference} has")
    worst, limit = 0.0, max(allowed, *map(tolerance_of, got))
    for name, result, other in zip(names, got, want, strict=True):
        if result.shape != other.shape:
            raise RunError(f"check: output {name} has shape {result.shape}, expected {other.shape} as {reference} has")
        error, tolerance = error_of(result, other), tolerance_of(result)
        tolerance = max(tolerance, allowed) if tolerance else 0.0
        if not error <= tolerance and estimate_rounding is not None and result.dtype.name in (*TOLERANCE, *BYTE_DTYPES):
            tolerance = limit = max(limit, estimate_rounding())
            error = error_of(result.astype(np.float64), other.astype(np.float64))
        if not error <= tolerance:
            raise RunError(
                f"check: output {name} differs from {reference} by {error:.3g} of its largest magnitude, "
                f"expected at most {tolerance:g}{'; ' + blame() if blame is not None else ''}; "
                "check=False (--no-check) builds the model without this check"
            )
        worst = max(worst, error)
    return Check(worst, limit, reference)


@dataclass(frozen=True)
class FaultSearch:
    """A compiled model with wrong outputs, and the parts to find the reason with.

    Attributes
    ----------
    graph : Graph
        The graph that was built; its constants may have lost their values.
    kernels : mapping of Node to ModelKernel
        The kernel of each node that anatune has one for.
    planned : sequence of PlannedKernel
    target, threads
        The TVM target and the threads of the build.
    original : callable
        Returns the graph as it was imported, before any pass.
    prepare : callable
        Turns the original graph into one that equals the built graph.
    """

    graph: Graph
    kernels: Mapping[Node, ModelKernel]
    planned: Sequence[PlannedKernel]
    target: tvm.target.Target
    threads: int
    original: Callable[[], Graph]
    prepare: Callable[[Graph], Graph]

    def explain(self, inputs: Sequence[Array], wanted: Sequence[Array]) -> str:
        """Return words for the first operator that differs, with its workload and schedule, or for another reason.

        Parameters
        ----------
        inputs, wanted
            The inputs of the model, and the original's outputs for them.
        """
        nodes = [node for node in self.graph.nodes() if isinstance(node.type, TensorType)]
        whole = Graph(self.graph.inputs, (*nodes, *self.graph.outputs), is_tuple=True)
        try:
            _restore_constants(self.graph, self.prepare(self.original()))
            results = self._run_graph(whole, self.kernels, inputs)
        except AnatuneError as error:
            return f"the operator that differs was not found ({error})"
        values = dict[Value, Array](zip((*self.graph.inputs, *nodes), (*inputs, *results), strict=False))
        unknown: dict[str, int] = {}
        for number, node in enumerate(nodes, 1):
            want = _expected_result(node, values)
            if want is None:
                unknown[node.op] = unknown.get(node.op, 0) + 1
            elif _is_wrong(values[node], want):
                deviation, position = error_of(values[node], want), f"operator {number} of {len(nodes)}"
                return (
                    f"the first operator that differs is {self._describe_node(node)} ({position}), "
                    f"by {deviation:.3g} from float64"
                )
        names = ", ".join(f"{name} ({count})" for name, count in unknown.items())
        correct = f"each operator is right on its own operands (not checked: {names or 'none'})"
        if all(
            error_of(own, want) <= tolerance_of(own) for own, want in zip(results[len(nodes) :], wanted, strict=False)
        ):
            return f"{correct}, and so is the model if all return their results: operators that TVM fuses are wrong"
        return f"{correct}: {self._find_origin(inputs, wanted)}"

    def _find_origin(self, inputs: Sequence[Array], wanted: Sequence[Array]) -> str:
        """Return words for the source of an error if no operator is wrong: the passes, or the reader."""
        try:
            results = self._run_graph(self.original(), {}, inputs)
        except AnatuneError as error:
            return f"a pass over the graph, or the reader of the model ({error})"
        worst = max(error_of(own, want) for own, want in zip(results, wanted, strict=True))
        if not any(map(_is_wrong, results, wanted)):
            return "a pass of anatune over the graph changes the results"
        return f"without passes and planned kernels the model differs by {worst:.3g}, too: the reader or TVM is wrong"

    def _run_graph(self, graph: Graph, kernels: Mapping[Node, ModelKernel], inputs: Sequence[Array]) -> list[Array]:
        """Build a graph, run it and return its outputs. Raises the errors of `compiling.session.compile`."""
        model = write_model(graph, kernels)
        library = build_library(model, self.target, self.threads)
        memory, places = pack_weights(model.weights, self.target)
        temp = scratch_folder(BuildError)
        try:
            library.link(temp / "model.so")
            runner = LibraryRunner(temp / "model.so", [tensor_of(view) for view in views(memory, places)], self.threads)
            result = runner.run(*(tensor_of(array) for array in inputs))
            listed = list(result) if graph.is_tuple else [result]
            return [np.array(convert_to_array(one)) for one in listed]
        finally:
            shutil.rmtree(temp, ignore_errors=True)

    def _describe_node(self, node: Node) -> str:
        """Return words for an operator: its kernel, workload and schedule if it is a product."""
        for kernel in self.planned:
            if any(node is other for other in kernel.nodes):
                return f"{kernel.name}, {workload_to_text(kernel.workload)}, schedule {kernel.schedule.describe()}"
        if node in self.kernels:
            return f"{self.kernels[node].name}, {node.op} of {node.type}"
        return f"{node.op} of {node.type}, compiled by TVM"


def _restore_constants(graph: Graph, same_graph: Graph) -> None:
    """Restore the values of a graph's constants from an equal graph.

    Raises
    ------
    WorkloadError
        The graphs differ.
    """
    constants, same_constants = graph.constants(), same_graph.constants()
    if [one.type for one in constants] != [one.type for one in same_constants]:
        raise WorkloadError("the model cannot be prepared a second time: its constants differ")
    for constant, same in zip(constants, same_constants, strict=True):
        constant.array = same.array


def _is_wrong(result: Array, want: Array) -> bool:
    """Return whether an operator's result is wrong; a value rounded to 8 bits may be off by one."""
    if result.dtype.name in BYTE_DTYPES and result.shape == want.shape:
        return bool((np.abs(result.astype(np.int32) - want.astype(np.int32)) > 1).any())
    return not error_of(result, want) <= tolerance_of(result)


def _expected_result(node: Node, values: Mapping[Value, Array]) -> Array | None:
    """Return the result of a node on given operands; None if it cannot be evaluated here."""

    def array_for(value: Value) -> Array:
        return value.array if isinstance(value, Constant) else values[value]

    if any(not isinstance(one, Constant) and one not in values for one in iterate_values(node.arguments)):
        return None
    if node.op not in PRODUCTS:
        return evaluate_node(node, values)
    workload = workload_of(node)
    tensors = [access.tensor for access in workload.operands]
    return reference(workload, {t: array_for(one) for t, one in zip(tensors, node.arguments, strict=True)})

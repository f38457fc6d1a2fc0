"""Compiled outputs beside the original's, and, where they differ, which part computes something else.

For the second the model is built once more so that it returns what every operator computes. Each of anatune's kernels,
and each operator of TVM's that is known here, is then judged by what float64 makes of the very operands that it was
given: errors do not travel, so that the first operator that differs is one that is wrong.
"""

from __future__ import annotations

import functools
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anatune.codegen.compat import array_of
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
from anatune.network.graph.folding import value_of
from anatune.network.graph.nodes import Array, Constant, Graph, Node, TensorType, Value, values_in
from anatune.network.graph.operators import PRODUCTS
from anatune.network.graph.products import workload_of
from anatune.network.graph.summary import Check, ModelSummary
from anatune.network.relax.building import built
from anatune.network.relax.frontends import Imported
from anatune.network.relax.kernels import ModelKernel
from anatune.network.relax.machine import Machine
from anatune.network.relax.writing import written
from anatune.untyped import tvm

__all__ = ["TOLERANCE", "FaultSearch", "check_outputs", "compare_outputs", "error_of", "tolerance_of"]

_log = logging.getLogger(__name__)
Arrays = Sequence[Array]
Blame = Callable[[Arrays, Arrays], str]
"""Inputs and the original's outputs -> what is wrong with the compiled model, in words."""

_LARGER_FACTOR = 3
"""Times the planned size at which a size that varies is tried, too."""
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-10}
"""Largest error of a result, over its largest magnitude; integers and truth values have to be equal."""


def tolerance_of(array: Array) -> float:
    """Return how far an array may be from what it should be."""
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
"""Times the error of the original in float32, and units of a result of 8 bits, that a model may be off which rounds on
its way: what lies between two integers as nearly as float32 tells becomes the one or the other, and what follows
differs. Which ones do is chance, in the original as in kernels (quantised, over the largest magnitude, compiled and
onnxruntime's: ResNet-18 0.007 and 0.014, MobileNet-V2 0.008 and 0.023, BERT 0.063 and 0.079). And the most of it."""


def check_outputs(
    compiled: CompiledModel, source: Imported, blame: Blame, *, allowed: float = 0.0, rounds: bool = False
) -> Check:
    """Return how far a model's outputs are from the original's on random inputs.

    `allowed` is what the arithmetic of its kernels explains, where that is more than `TOLERANCE`.

    Integer inputs are the caller's where there are some: ids have to name something. Where sizes vary, at some of
    them, `_sizes_to_try`; the largest difference is returned. Models of one size that are quick see `_EDGE_INPUTS`, too.

    Parameters
    ----------
    rounds : bool
        Whether numbers become integers on the way, `_ROUNDED_FACTOR`.

    Raises
    ------
    RunError
        As `compare_outputs`.
    """
    release_freed_memory()  # what compilers have freed
    checks = [
        _check_at_sizes(compiled, source, blame, sizes, allowed, rounds=rounds)
        for sizes in _sizes_to_try(compiled.summary)
    ]
    return max(checks, key=lambda one: one.error)


def _sizes_to_try(summary: ModelSummary) -> list[dict[str, int]]:
    """Return the sizes that a model is tried at: what it was planned for, the least, and for each a larger one."""
    ranges = summary.ranges
    planned, least = ({name: getattr(one, word) for name, one in ranges.items()} for word in ("usual", "least"))
    others = [{**least, name: min(one.most, _LARGER_FACTOR * one.usual)} for name, one in ranges.items()]
    tried = [fit_state_sizes(summary, sizes) for sizes in (planned, least, *others)]
    return list({tuple(sizes.items()): sizes for sizes in tried}.values())


def _check_at_sizes(
    compiled: CompiledModel, source: Imported, blame: Blame, sizes: Mapping[str, int], allowed: float, *, rounds: bool
) -> Check:
    """Return how far a model's outputs are from the original's at some sizes; errors as `compare_outputs`."""
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
    except DivisionError:  # by numbers that were drawn
        inputs = [
            np.where(output_result == 0, 1, output_result).astype(output_result.dtype)
            if output_result.dtype.kind in "iu"
            else output_result
            for output_result in inputs
        ]
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
            error_of(output_result.astype(np.float64), output_want.astype(np.float64))
            for output_result, output_want in zip(narrow, want, strict=True)
            if output_result.dtype.kind == "f" or output_result.dtype.name in BYTE_DTYPES
        ]
        return min(_MOST_ROUNDED, max(_ROUNDED_UNITS / 256, _ROUNDED_FACTOR * max(errors, default=0.0)))

    names = [output_result.name for output_result in (*compiled.summary.outputs, *compiled.summary.state)]
    size_text = ", ".join(f"{name}={size}" for name, size in sizes.items())
    check = compare_outputs(
        listed, want, names, library, lambda: f"with {size_text or 'a state'}" if sizes or held else blame(inputs, want),
        allowed,
        estimate_rounding if rounds else None,
    )  # fmt: skip
    if is_quick and check.tolerance is not None and not (sizes or held or rounds):
        for edges in _EDGE_INPUTS:
            _check_edges(compiled, source, [_fill(array, edges) for array in inputs], edges, check.tolerance, want)
    return check


_MOST_EDGE_CHECK_S = 0.5
"""Of a model and its original in float64: those that take longer are not run with other inputs, too."""
_EDGE_INPUTS: tuple[tuple[float, ...], ...] = ((0.0,), (0.0, 1e-6, -1e-6, 30.0, -0.0, 1e-40, -30.0, -1e-40, 1.0))
"""What inputs are filled with besides: numbers again and again."""
_NUDGE = 2.0**-24
"""What is added to inputs to see whether a result depends on how float32 rounds."""


def _fill(array: Array, numbers: Sequence[float]) -> Array:
    return np.resize(np.asarray(numbers), array.shape).astype(array.dtype) if array.dtype.name in TOLERANCE else array


def _check_edges(
    compiled: CompiledModel, source: Imported, inputs: Arrays, edges: Sequence[float], limit: float, usual: Arrays
) -> None:
    """Compare outputs at inputs that are no usual numbers with the original's; `usual` are those at random inputs.

    An element counts where the original comes to the same in float32 and in float64, with inputs that differ a little,
    too: others say how numbers are rounded.

    Raises
    ------
    RunError
        One differs; the message names the output.
    """
    assert source.reference is not None
    try:
        got = compiled(*inputs)
        listed = list(got) if compiled.summary.is_tuple else [got]
        want, library = source.reference([*map(np.copy, inputs)])
    except RunError as error:
        _log.info("the model takes no inputs of %s: %s", edges, error)
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
                f"check: output {output.name} has {result.flat[first]:.6g} where {library} has {exact.flat[first]:.6g} "
                f"for inputs of {', '.join(f'{number:g}' for number in edges)}; check=False (--no-check) builds it all "
                "the same"
            )


def _to_float64(array: Array) -> Array:
    return array.astype(np.float64)


def _largest(array: Array) -> float:
    """Return the largest finite magnitude of an array."""
    return float(np.abs(_to_float64(array[np.isfinite(_to_float64(array))])).max(initial=0.0))


def _is_near(result: Array, want: Array, limit: float, usual: float = 0.0) -> Array:
    """Whether each element is that of another array but for `limit` of the largest number, `usual` where that is 0.

    Integers and truth values always are: which of two numbers is larger depends on how they are rounded.
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
    """Return how far outputs are from the original's.

    Parameters
    ----------
    blame : callable, optional
        Returns what is wrong where one differs.
    allowed : float
        Error that the arithmetic explains.
    rounded : callable, optional
        Returns how far floating-point results may be that come from rounded ones.

    Raises
    ------
    RunError
        One is further than `TOLERANCE`, or of another shape; the message names it.
    """
    if len(got) != len(want):
        raise RunError(f"check: the compiled model has {len(got)} outputs, {reference} {len(want)}")
    worst, limit = 0.0, max(allowed, *map(tolerance_of, got))
    for name, result, other in zip(names, got, want, strict=True):
        if result.shape != other.shape:
            raise RunError(f"check: output {name} has shape {result.shape}, {reference} says {other.shape}")
        error, tolerance = error_of(result, other), tolerance_of(result)
        tolerance = max(tolerance, allowed) if tolerance else 0.0
        if not error <= tolerance and estimate_rounding is not None and result.dtype.name in (*TOLERANCE, *BYTE_DTYPES):
            tolerance = limit = max(limit, estimate_rounding())
            error = error_of(result.astype(np.float64), other.astype(np.float64))
        if not error <= tolerance:
            raise RunError(
                f"check: output {name} is wrong by {error:.3g} of its largest magnitude beside {reference}, "
                f"expected at most {tolerance:g}{'; ' + blame() if blame is not None else ''}; "
                "check=False (--no-check) builds it all the same"
            )
        worst = max(worst, error)
    return Check(worst, limit, reference)


@dataclass(frozen=True)
class FaultSearch:
    """A compiled model whose outputs are wrong.

    Attributes
    ----------
    graph : Graph
        What was built; its constants may have been forgotten.
    kernels : mapping of Node to ModelKernel
        Each node that anatune has a kernel for -> its kernel.
    planned : sequence of PlannedKernel
    target, threads
        As built.
    original : callable
        Returns the graph as it was imported, before any pass.
    prepare : callable
        Makes of that a graph equal to what was built.
    """

    graph: Graph
    kernels: Mapping[Node, ModelKernel]
    planned: Sequence[PlannedKernel]
    target: tvm.target.Target
    threads: int
    original: Callable[[], Graph]
    prepare: Callable[[Graph], Graph]

    def find_fault(self, inputs: Sequence[Array], wanted: Sequence[Array]) -> str:
        """Return what is wrong: the first operator that differs, with its workload and schedule; else what it is not.

        Parameters
        ----------
        inputs, wanted
            Of the model; what the original returns for them.
        """
        nodes = [node for node in self.graph.nodes() if isinstance(node.type, TensorType)]
        whole = Graph(self.graph.inputs, (*nodes, *self.graph.outputs), is_tuple=True)
        try:
            _restore_constants(self.graph, self.prepare(self.original()))
            results = self._run_graph(whole, self.kernels, inputs)
        except AnatuneError as error:
            return f"which operator differs is not known ({error})"
        values = dict[Value, Array](zip((*self.graph.inputs, *nodes), (*inputs, *results), strict=False))
        unknown: dict[str, int] = {}
        for number, node in enumerate(nodes, 1):
            want = _expected_result(node, values)
            if want is None:
                unknown[node.op] = unknown.get(node.op, 0) + 1
            elif _is_wrong(values[node], want):
                deviation, position = error_of(values[node], want), f"operator {number} of {len(nodes)}"
                return f"the first operator that differs is {self._describe_node(node)} ({position}), by {deviation:.3g} from float64"
        names = ", ".join(f"{name} ({count})" for name, count in unknown.items())
        correct_part = f"each operator alone is right on its operands (not judged: {names or 'none'})"
        if all(
            error_of(own, want) <= tolerance_of(own) for own, want in zip(results[len(nodes) :], wanted, strict=False)
        ):
            return f"{correct_part}, and so is the model if all of them return their results: what TVM fuses is wrong"
        return f"{correct_part}: {self._find_origin(inputs, wanted)}"

    def _find_origin(self, inputs: Sequence[Array], wanted: Sequence[Array]) -> str:
        """Return whose mistake it is where no operator is wrong: of the passes, or of the reader."""
        try:
            results = self._run_graph(self.original(), {}, inputs)
        except AnatuneError as error:
            return f"a pass over the graph, or the reader of the model ({error})"
        worst = max(error_of(own, want) for own, want in zip(results, wanted, strict=True))
        if not any(map(_is_wrong, results, wanted)):
            return "a pass of anatune's over the graph changes what it computes"
        return f"without passes and planned kernels it differs as well, by {worst:.3g}: reader or TVM's code is wrong"

    def _run_graph(self, graph: Graph, kernels: Mapping[Node, ModelKernel], inputs: Sequence[Array]) -> list[Array]:
        """Return the outputs of a graph, built and run; errors as `compiling.session.compile`."""
        model = written(graph, kernels)
        library = built(model, self.target, self.threads)
        memory, places = pack_weights(model.weights, self.target)
        folder = scratch_folder(BuildError)
        try:
            library.link(folder / "model.so")
            machine = Machine(folder / "model.so", [tensor_of(view) for view in views(memory, places)], self.threads)
            result = machine.run(*(tensor_of(array) for array in inputs))
            listed = list(result) if graph.is_tuple else [result]
            return [np.array(array_of(one)) for one in listed]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _describe_node(self, node: Node) -> str:
        """Return an operator in words: of a product its kernel, workload and schedule."""
        for kernel in self.planned:
            if any(node is other for other in kernel.nodes):
                return (
                    f"{kernel.name}, {workload_to_text(kernel.workload)}, by the schedule {kernel.schedule.describe()}"
                )
        if node in self.kernels:
            return f"{self.kernels[node].name}, {node.op} of {node.type}"
        return f"{node.op} of {node.type}, TVM's own"


def _restore_constants(graph: Graph, same_graph: Graph) -> None:
    """Give the constants of a graph their values again, from an equal graph.

    Raises
    ------
    WorkloadError
        It is not equal.
    """
    constants, same_constants = graph.constants(), same_graph.constants()
    if [one.type for one in constants] != [one.type for one in same_constants]:
        raise WorkloadError("the model cannot be prepared a second time")
    for constant, same in zip(constants, same_constants, strict=True):
        constant.array = same.array


def _is_wrong(result: Array, want: Array) -> bool:
    """Whether an operator is wrong; what is rounded to 8 bits may be so to either side."""
    if result.dtype.name in BYTE_DTYPES and result.shape == want.shape:
        return bool((np.abs(result.astype(np.int32) - want.astype(np.int32)) > 1).any())
    return not error_of(result, want) <= tolerance_of(result)


def _expected_result(node: Node, values: Mapping[Value, Array]) -> Array | None:
    """Return what a node makes of its operands; None: that is not known here."""

    def array_for(value: Value) -> Array:
        return value.array if isinstance(value, Constant) else values[value]

    if any(not isinstance(one, Constant) and one not in values for one in values_in(node.arguments)):
        return None
    if node.op not in PRODUCTS:
        return value_of(node, values)
    workload = workload_of(node)
    tensors = [access.tensor for access in workload.operands]
    return reference(workload, {t: array_for(one) for t, one in zip(tensors, node.arguments, strict=True)})

"""Random ONNX graphs: made operator by operator, run by anatune, compared with samples in float64."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.fuzz.data import EDGES, drawn, edged
from bench.fuzz.oracle import NUM_SAMPLES, Undefined, fault
from bench.fuzz.onnx_oracle import evaluated, model_of_step, sampled
from bench.fuzz.program import Array, Outcome, Program, Step, literal, with_runs

__all__ = ["Builder", "Skip", "judge", "make", "model_of", "recorded", "text"]

_OPSETS = (21, 21, 21, 18, 17, 13, 23, 24, 26)
_MOST_ELEMENTS = 8192
VARYING = 7
"""The size that varies, where one does: dimensions of inputs that have it are one size."""


class Skip(Exception):  # noqa: N818  not an error: the operator does not fit here
    """An operator cannot be added to what there is."""


class Builder:
    """A graph that grows, with the values of all there is so far."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng([1, seed])
        self.seed = seed
        self.opset = int(self.random.choice(_OPSETS))
        self.dtype = str(self.random.choice(["float32"] * 8 + ["float16", "float64"]))
        self.varies = self.random.random() < 0.15
        self.steps: list[Step] = []
        self.arrays: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}
        self.limits: dict[str, tuple[int, int]] = {}
        self._count = 0

    # ---- draws ----

    def chance(self, share: float) -> bool:
        """Return true in so many of all cases."""
        return bool(self.random.random() < share)

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return int(self.random.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        """Return one of some items."""
        return items[int(self.random.integers(len(items)))]

    def size(self) -> int:
        """Return an extent: small, odd, a power of two, now and then 1, seldom 0."""
        sizes = [1, 2, 3, 4, 5, 7, 8, 8, 11, 13, 16, 17, 19, 32]
        return 0 if self.chance(0.004) else VARYING if self.varies and self.chance(0.4) else int(self.choice(sizes))

    def shape(self, low: int = 1, high: int = 4) -> tuple[int, ...]:
        """Return sizes of a tensor of few elements."""
        while True:
            shape = tuple(self.size() for _ in range(self.integer(low, high)))
            if np.prod(shape) <= _MOST_ELEMENTS:
                return shape

    # ---- values ----

    def _named(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def given(self, array: Array, *, weight: bool | None = None, limits: tuple[int, int] | None = None) -> str:
        """Return the name of a new input or weight; one with limits holds integers in [low, high) in all runs."""
        name = self._named()
        is_weight = self.chance(0.5) if weight is None else weight
        (self.weights if is_weight else self.inputs)[name] = array
        self.arrays[name] = array
        if limits is not None:
            self.limits[name] = limits
        return name

    def new(self, shape: Sequence[int], dtype: str | None = None, *, weight: bool | None = None) -> str:
        """Return the name of a new tensor of ordinary numbers."""
        return self.given(drawn(self.random, shape, dtype or self.dtype), weight=weight)

    def positive(self, shape: Sequence[int], *, weight: bool = True) -> str:
        """Return the name of a weight of positive numbers."""
        return self.given(np.abs(drawn(self.random, shape, self.dtype)) + np.array(0.5, self.dtype), weight=weight)

    def indices(self, shape: Sequence[int], low: int, high: int, *, dtype: str = "int64", weight: bool | None = None) -> str:
        """Return the name of a tensor of integers in [low, high)."""
        if high <= low:
            raise Skip
        array = self.random.integers(low, high, tuple(shape)).astype(dtype)
        return self.given(array, weight=weight, limits=(low, high))

    def numbers(self, values: Sequence[int], dtype: str = "int64") -> str:
        """Return the name of a weight of these integers: axes, sizes."""
        return self.given(np.array(values, dtype), weight=True)

    def pick(self, dtypes: Sequence[str] | None = None, low: int = 0, high: int = 6) -> str:
        """Return the name of a value of some dtype and rank: a late one, or a new input."""
        dtypes = (self.dtype,) if dtypes is None else dtypes
        fit = [
            name for name, array in self.arrays.items()
            if array.dtype.name in dtypes and low <= array.ndim <= high and name not in self.limits
            and (name not in self.weights) and array.size <= _MOST_ELEMENTS
        ]  # fmt: skip
        if fit and self.chance(0.85):
            return fit[-1] if self.chance(0.6) else str(self.choice(fit))
        return self.new(self.shape(max(low, 1), min(high, 4)) if high else (), str(self.choice(dtypes)), weight=False)

    def like(self, name: str) -> str:
        """Return the name of a value that can be broadcast to another one."""
        array = self.arrays[name]
        fit = [
            other for other, one in self.arrays.items()
            if one.dtype == array.dtype and one.shape == array.shape and other != name and other not in self.limits
        ]  # fmt: skip
        if fit and self.chance(0.5):
            return str(self.choice(fit))
        shape = array.shape[self.integer(0, array.ndim) :] if self.chance(0.5) else array.shape
        shape = tuple(1 if self.chance(0.2) else size for size in shape)
        return self.new(shape, array.dtype.name)

    # ---- steps ----

    def add(self, op: str, inputs: Sequence[str], attributes: dict[str, Any] | None = None, outputs: int = 1,
            domain: str = "") -> str:  # fmt: skip
        """Return the name of the first result of a new step.

        Raises
        ------
        Skip
            The standard or its reference evaluator does not admit it.
        """
        import onnx

        attributes = {name: value for name, value in (attributes or {}).items() if value is not None}
        step = Step(op, tuple(inputs), tuple(self._named() for _ in range(outputs)), attributes, domain)
        arrays = [self.arrays[name] if name else None for name in inputs]
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if not domain:
                    model = model_of_step(step, self.opset, arrays)
                    onnx.checker.check_node(model.graph.node[0], _context(model))
                    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
                found = evaluated(step, self.opset)(arrays)
        except Exception as error:  # noqa: BLE001  of the checker and of the reference
            self.refusal = f"{op}: {type(error).__name__}: {error}"
            raise Skip from error
        for name, array in zip(step.outputs, found, strict=True):
            if array is not None:
                self.arrays[name] = np.asarray(array)
        if any(array is not None and (array.size > 4 * _MOST_ELEMENTS or array.dtype.kind in "OUSc") for array in found):
            raise Skip
        self.steps.append(step)
        return step.outputs[0]

    def finished(self) -> Program:
        """Return the program: outputs are what nobody reads, and now and then more; inputs of several runs."""
        read = {name for step in self.steps for name in step.inputs}
        produced = [name for step in self.steps for name in step.outputs if name in self.arrays]
        outputs = [name for name in produced if name not in read or self.chance(0.1)] or produced[-1:]
        edges = ["", *(str(one) for one in self.random.choice(EDGES, 3, replace=False))]
        sizes = [VARYING] * len(edges)
        if self.varies:
            sizes = [VARYING, 1, 2, *(int(one) for one in self.random.integers(1, 17, len(edges) - 3))]
        if not self.inputs:
            self.new((3,), weight=False)
        inputs = {
            name: tuple(self._run_of(name, array, edge, size) for edge, size in zip(edges, sizes, strict=True))
            for name, array in self.inputs.items()
        }
        route = "compile" if self.varies and self.chance(0.6) else "session"
        settings = {"opset": self.opset, "varies": self.varies, "route": route, "threads": 2 if self.chance(0.1) else 1}
        return Program("onnx", self.seed, tuple(self.steps), inputs, self.weights, tuple(outputs), settings)

    def _run_of(self, name: str, array: Array, edge: str, size: int) -> Array:
        shape = tuple(size if self.varies and one == VARYING else one for one in array.shape)
        if name in self.limits:
            low, high = self.limits[name]
            if not edge and shape == array.shape:
                return array
            return self.random.integers(low, high, shape).astype(array.dtype)
        if not edge and shape == array.shape:
            return array
        other = array if shape == array.shape else drawn(self.random, shape, array.dtype.name)
        return edged(self.random, other, edge) if edge and self.chance(0.8) else other


def _context(model: Any) -> Any:
    """Return what the checker has to know about the model of a node."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {one.domain: one.version for one in model.opset_import}
    return context


def make(seed: int) -> Program:
    """Return the program of a seed."""
    from bench.fuzz.onnx_operators import OPERATORS

    builder = Builder(seed)
    names = sorted(OPERATORS)
    count, tries = builder.integer(1, 7), 0
    while len(builder.steps) < count and tries < 60:
        tries += 1
        before = len(builder.steps)
        try:
            OPERATORS[str(builder.choice(names))](builder)
        except Skip:
            del builder.steps[before:]
    used = {name for step in builder.steps for name in (*step.inputs, *step.outputs)}
    for group in (builder.inputs, builder.weights, builder.arrays):
        for name in [name for name in group if name not in used]:
            del group[name]
    if not builder.steps:
        builder.add("Relu", [builder.new((3, 5), "float32", weight=False)])
    return builder.finished()


def model_of(program: Program) -> Any:
    """Return a program as an ONNX model."""
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node(step.op, list(step.inputs), list(step.outputs), domain=step.domain, **step.attributes)
        for step in program.steps
    ]
    varies = program.settings["varies"]
    inputs = []
    for name, arrays in program.inputs.items():
        shapes = {array.shape for array in arrays}
        shape = [
            "n" if varies and (size == VARYING or len({one[axis] for one in shapes}) > 1) else size
            for axis, size in enumerate(arrays[0].shape)
        ]
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(arrays[0].dtype), shape))
    outputs = [helper.make_empty_tensor_value_info(name) for name in program.outputs]
    weights = [numpy_helper.from_array(array, name) for name, array in program.weights.items()]
    graph = helper.make_graph(nodes, "fuzz", inputs, outputs, weights)
    domains = dict.fromkeys(step.domain for step in program.steps if step.domain)
    opsets = [helper.make_opsetid("", program.settings["opset"]), *(helper.make_opsetid(one, 1) for one in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _caller(program: Program) -> Any:
    """Return what runs a program on its inputs by name."""
    import anatune
    from anatune.adapters.onnx import InferenceSession

    model, threads = model_of(program), program.settings["threads"]
    if program.settings["route"] == "session":
        session = InferenceSession(model.SerializeToString(), threads=threads)
        return lambda feeds: session.run(None, feeds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.onnx"
        path.write_bytes(model.SerializeToString())
        varies = any("n" in _sizes_of(value) for value in model.graph.input)
        compiled = anatune.compile(path, threads=threads, check=False, sizes={"n": (1, 16)} if varies else None)

    def run(feeds: dict[str, Array]) -> list[Array]:
        found = compiled(*feeds.values())
        return list(found) if compiled.summary.is_tuple else [found]

    return run


def _sizes_of(value: Any) -> list[str]:
    return [one.dim_param for one in value.type.tensor_type.shape.dim]


def judge(program: Program) -> Outcome:
    """Return what becomes of a program; exceptions of anatune's pass."""
    operators = tuple(step.op for step in program.steps)
    expected = []
    for run in range(program.num_runs):
        try:
            expected.append(sampled(program, run, num_samples=NUM_SAMPLES))
        except Exception as error:  # noqa: BLE001  of the reference: sizes that do not fit, operators without floats
            if not run:
                return Outcome("skipped", f"{type(error).__name__}: {error}"[:200], operators)
            expected.append(None)
    from anatune.errors import AnatuneError

    call = _caller(program)
    refusal = None
    for run, values in enumerate(expected):
        if values is None:
            continue
        try:
            results = call(program.feeds(run))
        except AnatuneError as error:
            if any(isinstance(values[name], Undefined) for step in program.steps for name in step.outputs if name):
                continue  # a quotient by zero may be an error
            refusal = error
            continue
        for name, result in zip(program.outputs, results, strict=True):
            if isinstance(values[name], Undefined):
                continue
            samples, dtype, exact, signs = values[name]
            why = fault(samples, np.asarray(result), dtype, exact=exact, signs=signs)
            if why:
                return Outcome("wrong", f"run {run}: {name} {why}", operators, with_runs(program, [run]))
    if refusal is not None:
        raise refusal
    return Outcome("right", "", operators)


def recorded(program: Program) -> dict[str, tuple[Array, ...]]:
    """Return what each value of a program is in each run, rounded: what can stand in its place as an input."""
    runs = [sampled(program, run, num_samples=1) for run in range(program.num_runs)]
    found = {}
    for name in dict.fromkeys(name for step in program.steps for name in step.outputs if name):
        if not any(isinstance(values[name], Undefined) for values in runs):
            with np.errstate(all="ignore"):
                found[name] = tuple(np.asarray(values[name][0][0]).astype(values[name][1]) for values in runs)
    return found


def text(program: Program) -> str:
    """Return a program as Python that compares anatune with ONNX's reference evaluator, each in the model's dtypes."""
    lines = [
        "import numpy as np, onnx, onnx.parser", "from onnx import helper as h, numpy_helper as nh, TensorProto as T",
        "from onnx.reference import ReferenceEvaluator", "from anatune.adapters.onnx import InferenceSession", "nodes = [",
    ]  # fmt: skip
    for step in program.steps:
        words = "".join(f", {name}={_attribute(value)}" for name, value in step.attributes.items())
        domain = f", domain={step.domain!r}" if step.domain else ""
        lines.append(f"    h.make_node({step.op!r}, {list(step.inputs)}, {list(step.outputs)}{words}{domain}),")
    lines += ["]", "inputs = {"]
    lines += [f"    {name!r}: {literal(arrays[0])}," for name, arrays in program.inputs.items()]
    lines += ["}", "weights = {"]
    lines += [f"    {name!r}: {literal(array)}," for name, array in program.weights.items()]
    domains = dict.fromkeys(step.domain for step in program.steps if step.domain)
    opsets = "".join(f", h.make_opsetid({one!r}, 1)" for one in domains)
    varies = program.settings["varies"]
    compiled = program.settings["route"] != "session"
    threads = program.settings["threads"]
    lines += [
        "}",
        f"size = lambda s: 'n' if {varies} and s == {VARYING} else s",
        "infos = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(a.dtype), [size(s) for s in a.shape]) for n, a in inputs.items()]",
        f"outs = [h.make_empty_tensor_value_info(n) for n in {list(program.outputs)}]",
        "g = h.make_graph(nodes, 'fuzz', infos, outs, [nh.from_array(a, n) for n, a in weights.items()])",
        f"m = h.make_model(g, opset_imports=[h.make_opsetid('', {program.settings['opset']}){opsets}], ir_version=10)",
    ]
    if compiled:
        lines += [
            "import anatune; onnx.save(m, 'fuzz.onnx')",
            f"c = anatune.compile('fuzz.onnx', threads={threads}, check=False, sizes={{'n': (1, 16)}} if {varies} else None)",
            "print('anatune', c(*inputs.values()))",
        ]
    else:
        lines.append(f"print('anatune', InferenceSession(m, threads={threads}).run(None, inputs))")
    lines.append("print('reference', ReferenceEvaluator(m).run(None, inputs))" if not domains else "")
    return "\n".join(lines) + "\n"


def _attribute(value: Any) -> str:
    import onnx

    if isinstance(value, onnx.GraphProto):
        return f"onnx.parser.parse_graph({onnx.printer.to_text(value)!r})"
    if isinstance(value, onnx.TensorProto):
        return f"nh.from_array({literal(onnx.numpy_helper.to_array(value))})"
    return repr(value)

"""Random ONNX graphs: made operator by operator, run by anatune, compared with samples in float64."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.fuzz.builder import MOST_ELEMENTS, VARYING, Builder, Skip
from bench.fuzz.onnx.oracle import agrees, evaluated, is_strange, model_of_step, sampled
from bench.fuzz.oracle import NUM_SAMPLES, Undefined, fault
from bench.fuzz.program import Array, Outcome, Program, Step, literal, with_runs

__all__ = ["OnnxBuilder", "judge", "make", "model_of", "recorded", "text"]

_OPSETS = (21, 21, 21, 18, 17, 13, 23, 24, 26)


class OnnxBuilder(Builder):
    """An ONNX graph that grows."""

    kind = "onnx"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.opset = int(self.random.choice(_OPSETS))
        self.refusal = ""

    def settings(self) -> dict[str, Any]:
        """Return how the program is run."""
        route = "compile" if self.varies and self.chance(0.6) else "session"
        return {**super().settings(), "opset": self.opset, "route": route}

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
                if not domain and onnx.defs.has(op):  # onnxruntime has some of its own in this domain
                    model = model_of_step(step, self.opset, arrays)
                    onnx.checker.check_node(model.graph.node[0], _context(model))
                    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
                found = evaluated(step, self.opset)(arrays)
        except Exception as error:
            self.refusal = f"{op}: {type(error).__name__}: {error}"
            raise Skip from error
        if not agrees(step, self.opset, arrays, found):
            self.refusal = f"{op} {step.attributes}: onnxruntime computes something else"
            raise Skip
        for name, array in zip(step.outputs, found, strict=True):
            if array is not None:
                self.arrays[name] = np.asarray(array)
        if any(array is not None and (array.size > 4 * MOST_ELEMENTS or array.dtype.kind in "OUSc") for array in found):
            raise Skip
        self.steps.append(step)
        return step.outputs[0]


def _context(model: Any) -> Any:
    """Return what the checker has to know about the model of a node."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {one.domain: one.version for one in model.opset_import}
    return context


def make(seed: int) -> Program:
    """Return the program of a seed."""
    from bench.fuzz.onnx.operators import OPERATORS

    builder = OnnxBuilder(seed)
    builder.grow(OPERATORS, builder.integer(1, 7))
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
    strange = [step for step in program.steps if is_strange(step)]
    if strange:
        call(program.feeds(0))
        return Outcome(
            "wrong", f"{strange[0].domain}.{strange[0].op} is computed, expected a refusal", operators, program
        )
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
        "import numpy as np, onnx, onnx.parser",
        "from onnx import helper as h, numpy_helper as nh, TensorProto as T",
        "from onnx.reference import ReferenceEvaluator",
        "from anatune.adapters.onnx import InferenceSession",
        "nodes = [",
    ]
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
        "dtype = h.np_dtype_to_tensor_dtype",
        "infos = [h.make_tensor_value_info(n, dtype(a.dtype), [size(s) for s in a.shape]) for n, a in inputs.items()]",
        f"outs = [h.make_empty_tensor_value_info(n) for n in {list(program.outputs)}]",
        "g = h.make_graph(nodes, 'fuzz', infos, outs, [nh.from_array(a, n) for n, a in weights.items()])",
        f"m = h.make_model(g, opset_imports=[h.make_opsetid('', {program.settings['opset']}){opsets}], ir_version=10)",
    ]
    if compiled:
        sizes = "{'n': (1, 16)}" if varies else None
        lines += [
            "import anatune; onnx.save(m, 'fuzz.onnx')",
            f"c = anatune.compile('fuzz.onnx', threads={threads}, check=False, sizes={sizes})",
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

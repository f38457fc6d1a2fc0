"""Models of which onnxruntime runs the nodes that anatune cannot compile, between the compiled parts."""

from __future__ import annotations

import functools
import timeit
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from anatune.arguments import check_flag, check_integer, check_path
from anatune.codegen.compat import last_line
from anatune.errors import BuildError, RecordError, RunError, WorkloadError
from anatune.named import import_optional
from anatune.network.compiling import folder
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.targets import make_compiled_model
from anatune.network.graph.nodes import Array
from anatune.network.graph.onnx.dividing import DividedPart, divide
from anatune.network.graph.onnx.reading import describe_node, onnx_dtype
from anatune.network.graph.summary import Division, ModelSummary, PartSummary, TensorSummary
from anatune.network.relax.frontends import ImportedModel, import_model
from anatune.network.relax.machine import check_gpu
from anatune.threads import new_lock
from anatune.untyped import onnx

__all__ = ["DividedModel", "NothingCompiledError", "compile_parts", "load", "make_whole_runner"]

_REPEATS = 5
"""Number of runs; the fastest one counts."""
Compile = Callable[[ImportedModel, CompileRequest], CompiledModel]


class NothingCompiledError(WorkloadError):
    """No node of a model can be compiled: run the model with onnxruntime itself."""


def make_whole_runner(model: onnx.ModelProto, reads: Sequence[str], threads: int | None) -> Callable[..., list[object]]:
    """Return a function that runs a whole ONNX model by onnxruntime, from the inputs `reads` to all outputs.

    Raises
    ------
    WorkloadError
        onnxruntime cannot run the model either.
    """
    return _OnnxPart(model.SerializeToString(), reads, "it", threads or 0)


def _import_runtime() -> ModuleType:
    return import_optional("onnxruntime", "onnxruntime", "a model with nodes that are left to onnxruntime")


class _OnnxPart:
    """A part that onnxruntime runs: its ONNX file `model`, and `words` that name it in messages."""

    def __init__(self, model: bytes, reads: Sequence[str], words: str, threads: int) -> None:
        runtime = _import_runtime()
        self.model, self._reads, self._words, self._threads = model, reads, words, threads
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        try:
            self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # any error of its C++ code
            raise WorkloadError(f"onnxruntime cannot run {words} either: {last_line(error):.300}") from error

    def __call__(self, *values: object) -> list[object]:
        try:
            results: list[object] = self._session.run(None, dict(zip(self._reads, values, strict=True)))
        except Exception as error:
            raise RunError(f"onnxruntime cannot run {self._words}: {last_line(error):.300}") from error
        return results

    def __reduce__(self) -> tuple[object, ...]:
        return _OnnxPart, (self.model, self._reads, self._words, self._threads)

    def types(self) -> list[onnx.ValueInfoProto]:
        """Return the outputs as onnxruntime describes them (onnx.ValueInfoProto); () may be an unknown shape."""
        onnx, types = import_module("onnx"), []
        for output in self._session.get_outputs():
            types.append(onnx.ValueInfoProto(name=output.name))
            type_name = output.type.removeprefix("tensor(").removesuffix(")").upper()
            if type_name in onnx.TensorProto.DataType.keys():  # noqa: SIM118  no dictionary
                number = onnx.TensorProto.DataType.Value(type_name)
                types[-1] = onnx.helper.make_tensor_value_info(output.name, number, output.shape or None)
        return types


Engine = CompiledModel | _OnnxPart


class DividedModel(CompiledModel):
    """A `CompiledModel` of several parts, some of which onnxruntime runs on the CPU."""

    def __init__(self, division: Division, engines: Sequence[Engine]) -> None:
        self.division, self._engines, self._lock = division, engines, new_lock()
        self.summary = _merge_summaries(division, [one.summary for one in engines if isinstance(one, CompiledModel)])

    def __call__(self, *inputs: object) -> Any:
        """Return the model's output, or a tuple of them, for `inputs`. Raises the errors of `CompiledModel`."""
        return self._convert_outputs(self._run(self._input_arrays(inputs)[0]), lambda one: one, inputs)

    def _run(
        self, arrays: Sequence[Array], before_part: Callable[[int, Engine, list[object]], None] | None = None
    ) -> list[object]:
        """Return all outputs; `before_part` is called with each part's index, engine and inputs before it runs."""
        values: dict[str, object] = {one.name: array for one, array in zip(self.summary.inputs, arrays, strict=True)}
        for index, (part, engine) in enumerate(zip(self.division.parts, self._engines, strict=True)):
            inputs = [values[word] for word in part.reads]
            if before_part is not None:
                before_part(index, engine, inputs)
            results = engine(*inputs)
            is_single = isinstance(engine, CompiledModel) and not engine.summary.is_tuple
            values.update(zip(part.makes, [results] if is_single else results, strict=True))
        return [values[one.name] for one in self.summary.outputs]

    def prepared(self, *inputs: object) -> Callable[[], object]:
        """Return a function that calls the model on `inputs`, for timing. Raises the errors of a call."""
        return functools.partial(self._run, self._input_arrays(inputs)[0])

    def profile(self, *inputs: object, repeats: int = 10) -> dict[str, float]:
        """Return the seconds of each function in one run, as `CompiledModel`; each part of onnxruntime is one."""
        repeats, times_by_name = check_integer("profile: repeats", repeats, 1, 10_000), dict[str, float]()

        def measure_part(index: int, engine: Engine, given: list[object]) -> None:
            if isinstance(engine, CompiledModel):
                times = engine.profile(*given, repeats=repeats)
                times_by_name.update((_part_name(index, name), time_s) for name, time_s in times.items())
            else:
                times_by_name[_part_name(index, "onnxruntime")] = _min_s(engine, given, repeats)

        self._run(self._input_arrays(inputs or self.random_inputs())[0], measure_part)
        return times_by_name

    def times(self, inputs: Sequence[object]) -> list[float]:
        """Return the seconds of each part for given inputs: the least of several runs."""
        times: list[float] = []
        self._run(self._input_arrays(inputs)[0], lambda _, engine, given: times.append(_min_s(engine, given, _REPEATS)))
        return times

    def __reduce__(self) -> tuple[object, ...]:
        return DividedModel, (self.division, self._engines)

    def save(self, path: str | Path) -> None:
        """Write the model into a folder, as `CompiledModel` does; onnxruntime's parts are stored as ONNX files."""
        compiled_parts = [one.to_saved_model() for one in self._engines if isinstance(one, CompiledModel)]
        onnx = [one.model for one in self._engines if isinstance(one, _OnnxPart)]
        folder.write(check_path("save: path", path, RecordError), compiled_parts, onnx, self.division)


def load(path: str | Path, *, mapped: bool = True) -> CompiledModel:
    """Load the model that `CompiledModel.save` or ``anatune compile`` wrote; no compiler, torch or ONNX is needed.

    All files are compared with the digests in ``model.json``, on all cores. This finds damage, not manipulation: the
    library is code, so load models only from people you trust.

    Parameters
    ----------
    mapped : bool
        Map the file of weights, so that processes share its memory. With False it is read, which takes about a second
        per gigabyte, into large pages if the system has them; runs are then some per cent faster.

    Raises
    ------
    RecordError
        The folder contains no model, is damaged, or was written by another version.
    RunError
        The model was compiled for another processor, or its library cannot be loaded.
    MissingDependencyError
        TVM is not installed, or onnxruntime is not and the model needs it.
    """
    root = check_path("load: path", path, RecordError)
    mapped = check_flag("load: mapped", mapped)
    while True:
        stamp = folder.stamp(root)
        try:
            saved, parts, division = folder.read(root, mapped=mapped)
            if saved[0].summary.device == "gpu" and not saved[0].summary.launches:
                check_gpu(str(path), saved[0].summary.arch)
            models = [make_compiled_model(one.summary, one.library, one.weights) for one in saved]
            return models[0] if division is None else DividedModel(division, _order(root, division, models, parts))
        except (RecordError, RunError):
            if folder.stamp(root) == stamp:  # else another model was saved there in the meantime
                raise


def _order(path: Path, division: Division, models: list[CompiledModel], onnx: list[bytes]) -> list[Engine]:
    """Return the engines of a loaded model in the order of its parts."""
    is_left = [bool(part.left) for part in division.parts]
    if (is_left.count(False), is_left.count(True)) != (len(models), len(onnx)):
        raise RecordError(f"{path}: {len(models)} compiled parts and {len(onnx)} others do not match its summary")
    compiled, onnx_parts_left = iter(models), iter(onnx)
    threads = models[0].summary.threads
    return [
        _OnnxPart(next(onnx_parts_left), part.reads, _describe_nodes(part.left), threads)
        if part.left
        else next(compiled)
        for part in division.parts
    ]


def compile_parts(
    source: ImportedModel, request: CompileRequest, threads: int, compile_part: Compile
) -> DividedModel | None:
    """Compile the parts of a model that can be read; None if the whole model can be read.

    Parameters
    ----------
    source : ImportedModel
        A model that was read from ONNX.
    compile_part : callable
        Compiles one part. Raises the errors of `anatune.compile`. onnxruntime also runs the parts that it refuses.

    Raises
    ------
    NothingCompiledError
        No part can be compiled.
    WorkloadError
        The model is not ONNX, or damaged; or onnxruntime cannot run one of its parts.
    MissingDependencyError
        onnxruntime is not installed.
    """
    if source.onnx is None:
        raise WorkloadError(
            f"compile: {source.name} is not an ONNX model, which fallback needs; for a PyTorch model use "
            'torch.compile(model, backend="anatune"), which leaves operators to PyTorch'
        )
    parts = divide(*source.onnx, source.name, functools.partial(_output_types, threads=threads))
    if not parts:
        return None
    count = sum(not part.left for part in parts)
    if count < len(parts):
        _import_runtime()
    limit_s, share = request.measuring.time_limit_s, max(count, 1)
    trials, limit_s = -(-request.trials // share), None if limit_s is None else limit_s / share
    measuring = msgspec.structs.replace(request.measuring, trials=trials, time_limit_s=limit_s)
    part_request = msgspec.structs.replace(request, measuring=measuring)
    engines, summaries = [], []
    for part in parts:
        engine, left = _engine(part, part_request, threads, compile_part)
        engines.append(engine)
        summaries.append(PartSummary(part.reads, part.makes, len(part.model.graph.node), left))
    if not any(isinstance(one, CompiledModel) for one in engines):
        raise NothingCompiledError(f"{source.name}: none of its nodes can be compiled; run it by onnxruntime")
    inputs = _inputs(*source.onnx)
    model = DividedModel(Division(inputs, _outputs(source.onnx[0], inputs, parts), tuple(summaries)), engines)
    return _measure_parts(model, source)


def _engine(
    part: DividedPart, request: CompileRequest, threads: int, compile_part: Compile
) -> tuple[Engine, tuple[tuple[str, str], ...]]:
    """Return the engine of a part, and the nodes that are left to onnxruntime with the reasons."""
    left = tuple((one.node, one.why) for one in part.left)
    if not left:
        try:
            return compile_part(import_model(part.model), request), ()
        except (WorkloadError, BuildError) as error:
            left = tuple(
                (f"{node.op_type} ({describe_node(node)})", f"cannot be compiled: {error}")
                for node in part.model.graph.node
            )
    return _OnnxPart(part.model.SerializeToString(), part.reads, _describe_nodes(left), threads), left


def _describe_nodes(left: Sequence[tuple[str, str]]) -> str:
    return f"{left[0][0]}{f' and {len(left) - 1} more nodes' if left[1:] else ''}"


def _output_types(model: onnx.ModelProto, threads: int) -> list[onnx.ValueInfoProto]:
    """Return the outputs of a one-node model with their types, by ONNX shape inference or else by onnxruntime."""
    try:
        outputs = list(import_module("onnx.shape_inference").infer_shapes(model, data_prop=True).graph.output)
    except Exception:  # noqa: BLE001  of its C++: nothing is known
        outputs = list(model.graph.output)
    if all(value.type.WhichOneof("value") for value in outputs):
        return outputs
    (node,) = model.graph.node
    return _OnnxPart(model.SerializeToString(), (), f"{node.op_type} ({describe_node(node)})", threads).types()


def _inputs(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> tuple[TensorSummary, ...]:
    kinds = {value.name: onnx_dtype(value) for value in model.graph.input if value.name in shapes}
    return tuple(TensorSummary(name, kinds[name], tuple(shape)) for name, shape in shapes.items())


def _outputs(
    model: onnx.ModelProto, inputs: tuple[TensorSummary, ...], parts: list[DividedPart]
) -> tuple[TensorSummary, ...]:
    """Return the outputs of a model; onnxruntime's may have unknown sizes, or hold no numbers."""
    summaries = {one.name: one for one in inputs}
    for value in (value for part in parts for value in part.model.graph.output):
        sizes = [one.dim_value for one in value.type.tensor_type.shape.dim if one.HasField("dim_value")]
        is_known = value.type.tensor_type.elem_type and len(sizes) == len(value.type.tensor_type.shape.dim)
        type_ = (onnx_dtype(value), tuple(sizes)) if is_known else ("object", ())
        summaries[value.name] = TensorSummary(value.name, *type_)
    missing = [value.name for value in model.graph.output if value.name not in summaries]
    if missing:
        raise WorkloadError(f"output {missing[0]} is a weight of the model, expected the result of a node")
    return tuple(summaries[value.name] for value in model.graph.output)


def _measure_parts(model: DividedModel, source: ImportedModel) -> DividedModel:
    """Return a model with the times of its parts, on the caller's inputs or on random ones, if it can run."""
    try:
        times = model.times(source.example or model.random_inputs())
    except RunError:
        return model
    parts = [
        msgspec.structs.replace(part, time_s=time_s) for part, time_s in zip(model.division.parts, times, strict=True)
    ]
    return DividedModel(msgspec.structs.replace(model.division, parts=tuple(parts)), model._engines)


def _min_s(engine: Engine, inputs: Sequence[object], repeats: int) -> float:
    """Return the least seconds of several runs."""
    return min(timeit.repeat(lambda: engine(*inputs), number=1, repeat=repeats))


def _part_name(index: int, name: str) -> str:
    return f"part{index + 1}.{name}"


def _merge_summaries(division: Division, compiled: Sequence[ModelSummary]) -> ModelSummary:
    """Return the summary of a whole model, merged from those of its compiled parts."""
    indices = [root for root, part in enumerate(division.parts) if not part.left]
    checks = [one.check for one in compiled if one.check is not None]
    first, is_alone = compiled[0], len(compiled) == 1

    def collect(field: str) -> tuple[TensorSummary, ...]:
        return tuple(
            msgspec.structs.replace(one, name=_part_name(root, one.name))
            for root, summary in zip(indices, compiled, strict=True)
            for one in getattr(summary, field)
        )

    return msgspec.structs.replace(
        first,
        is_tuple=len(division.outputs) != 1, inputs=division.inputs, outputs=division.outputs,
        weights=tuple(weight for one in compiled for weight in one.weights),
        weight_bytes=sum(one.weight_bytes for one in compiled), kernels=collect("kernels"),
        operators=collect("operators"),
        rows=collect("rows"), turning_s=sum(one.turning_s for one in compiled), parts=division.parts,
        unscheduled=tuple(
            _part_name(at, name) for at, one in zip(indices, compiled, strict=True) for name in one.unscheduled
        ),
        check=max(checks, key=lambda one: one.error) if len(checks) == len(compiled) else None,
        layouts=first.layouts if is_alone else None, latency=first.latency if is_alone else None,
        tuning=first.tuning if is_alone else None,
    )  # fmt: skip

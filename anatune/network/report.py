"""Report of a compiled model as text: kernels, their binding resources, times of its parts, and what TVM compiled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError
from anatune.model.bound import TimeBound, time_bound
from anatune.network.graph.summary import (
    KernelSummary,
    Latency,
    LayoutSummary,
    ModelSummary,
    OperatorSummary,
    TensorSummary,
    TuningSummary,
)
from anatune.report import units
from anatune.report.text import Line, paragraph, table
from anatune.templates import make_model

__all__ = [
    "LEFT", "Measured", "ModelPart", "kernel_bound", "kernel_kind",
    "measured_of", "model_dict", "model_lines", "model_parts", "model_sentences", "shape_text", "tuning_text",
]  # fmt: skip

LEFT = "left to TVM"
_KIND = re.compile(r"^(?:part[0-9]+\.)?anatune_[a-z]+_[0-9]+_")
"""Beginning of the name of a kernel that is not planned; its kind follows."""
Measured = Mapping[str, float] | None
"""Function of the library -> seconds of all its calls in a run (`CompiledModel.profile`); None if not measured."""


def measured_of(measured_s: Measured, name: str) -> float | None:
    """Return the measured seconds of a function; None if unknown."""
    return None if measured_s is None else measured_s.get(name)


def _others_measured_s(summary: ModelSummary, measured_s: Measured) -> dict[str, float]:
    """Return the measured times of the functions that TVM compiled."""
    own_names = {member.name for members in (summary.kernels, summary.rows) for member in members}
    own_names |= {f"part{number}.onnxruntime" for number in range(1, len(summary.parts) + 1)}
    return {name: time_s for name, time_s in (measured_s or {}).items() if name not in own_names}


def kernel_kind(kernel: OperatorSummary) -> str:
    """Return the kind of a kernel that is not planned, such as "softmax" or "max_pool2d"."""
    return _KIND.sub("", kernel.name)


class ModelPart(NamedTuple):
    """One kind of functions of a model.

    Attributes
    ----------
    name : str
        Products by the order of their dimensions ("products, NHWC"), unplanned kernels by their kind, or `LEFT`.
    calls : int
        Calls in a run.
    predicted_s, measured_s : float or None
        Time of all calls in a run; None if unknown.
    """

    name: str
    calls: int
    predicted_s: float | None
    measured_s: float | None


def model_parts(summary: ModelSummary, measured_s: Measured = None) -> list[ModelPart]:
    """Return the parts of a model, the longest first.

    Parameters
    ----------
    measured_s : mapping of str to float, optional
        Function of the library -> seconds of all its calls in a run (`CompiledModel.profile`).
    """
    groups: dict[str, list[ModelPart]] = {}
    for kernel in summary.kernels:
        name = f"products, {kernel.layout}" if kernel.layout else kernel.template if not kernel.schedule else "products"
        measured = measured_of(measured_s, kernel.name)
        groups.setdefault(name, []).append(ModelPart(name, kernel.count, kernel.total_s, measured))
    parts = [_merge_parts(name, members) for name, members in groups.items()] + _row_parts(summary, measured_s)
    rest = None if measured_s is None else sum(_others_measured_s(summary, measured_s).values())
    if summary.operators or rest:
        calls = sum(operator.count for operator in summary.operators)
        parts.append(ModelPart(LEFT, calls, _sum(operator.predicted_s for operator in summary.operators), rest))
    left = [part.time_s for part in summary.parts if part.left]
    if left:
        parts.append(ModelPart("left to onnxruntime", len(left), None, _sum(left)))
    return sorted(parts, key=lambda part: -(part.measured_s or part.predicted_s or 0.0))


def _row_parts(summary: ModelSummary, measured_s: Measured) -> list[ModelPart]:
    """Return the kernels that are not planned, grouped by kind."""
    kinds: dict[str, list[ModelPart]] = {}
    for row in summary.rows:
        part = ModelPart(kernel_kind(row), row.count, row.predicted_s, measured_of(measured_s, row.name))
        kinds.setdefault(part.name, []).append(part)
    return [_merge_parts(kind, members) for kind, members in kinds.items()]


def _merge_parts(name: str, members: list[ModelPart]) -> ModelPart:
    _, calls, predicted, measured = zip(*members, strict=True)
    return ModelPart(name, sum(calls), _sum(predicted), _sum(measured))


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of values; None if one of them is unknown."""
    kept = list(values)
    return sum(value for value in kept if value is not None) if None not in kept else None


def shape_text(tensor: TensorSummary) -> str:
    """Return a shape as text, such as "1x3x224x224" or "scalar"."""
    return "x".join(map(str, tensor.shape)) or "scalar"


def kernel_bound(kernel: KernelSummary) -> TimeBound | None:
    """Return a bound of one call that no schedule of a kernel's template goes below.

    It is None for an attention, and if an extent varies.

    The bound is for a kernel that runs alone with its operands in cache; in a model they come from further away.
    """
    if not kernel.schedule or kernel.varies:
        return None
    try:
        schedule = Schedule.from_json(kernel.schedule)
        fewest = make_model(schedule.workload, schedule.hardware, schedule.template).least_flop
    except AnatuneError:  # the schedule is of another version
        return None
    return time_bound(schedule.workload, schedule.hardware, {schedule.template: fewest})


def model_dict(summary: ModelSummary, measured_s: Measured = None) -> dict[str, object]:
    """Return the content of the report as plain values; times are seconds of all calls in a run.

    Parameters
    ----------
    measured_s : mapping of str to float, optional
        Function of the library -> seconds of all its calls in a run (`CompiledModel.profile`).
    """
    kernels = [
        {
            "name": kernel.name,
            "workload": kernel.workload,
            "varies": kernel.varies,
            "count": kernel.count,
            "flop": kernel.count * kernel.flop,
            "template": kernel.template,
            "rounded_to": _rounding(summary, kernel),
            "layout": kernel.layout,
            "epilogue": kernel.epilogue,
            "bound_by": kernel.bound_by,
            "predicted_s": kernel.total_s,
            "predicted_share": kernel.total_s / summary.predicted_s,
            "registers": kernel.registers,
            "spill_bytes": kernel.spill_bytes,
            "shared_bytes": kernel.shared_bytes,
            "measured_s": measured_of(measured_s, kernel.name),
        }
        for kernel in summary.kernels
    ]
    check = summary.check
    return {
        "hardware": summary.hardware,
        "device": summary.device,
        "threads": None if _is_for_gpu(summary) else summary.threads,
        "inputs": list(map(msgspec.structs.asdict, summary.inputs)),
        "outputs": list(map(msgspec.structs.asdict, summary.outputs)),
        "sizes": {name: msgspec.structs.asdict(one) for name, one in summary.ranges.items()},
        "state": list(map(msgspec.structs.asdict, summary.state)),
        "weight_bytes": summary.weight_bytes,
        "predicted_s": summary.predicted_s,
        "predicted_transposes_s": summary.turning_s,
        "predicted_whole_s": summary.whole_s,
        "launches": summary.launches,
        "arena_bytes": summary.arena_bytes,
        "emulated_error": summary.emulated,
        "measured_s": None if measured_s is None else sum(measured_s.values()),
        "kernels": kernels,
        "rows": [
            msgspec.structs.asdict(row) | {"measured_s": measured_of(measured_s, row.name)} for row in summary.rows
        ],
        "unscheduled": summary.unscheduled,
        "layouts": None if summary.layouts is None else msgspec.structs.asdict(summary.layouts),
        "left_to_tvm": {operator.name: operator.count for operator in summary.operators},
        "left_to_tvm_predicted_s": {operator.name: operator.predicted_s for operator in summary.operators},
        "left_to_tvm_measured_s": None if measured_s is None else _others_measured_s(summary, measured_s),
        "latency": None if summary.latency is None else msgspec.to_builtins(summary.latency),
        "tuning": None if summary.tuning is None else msgspec.to_builtins(summary.tuning),
        "parts": msgspec.to_builtins(summary.parts),
        "check": None if check is None else {"error": check.error, "tolerance": check.tolerance, "by": check.reference},
        "losses": msgspec.to_builtins(summary.losses),
    }


def model_lines(summary: ModelSummary, measured_s: Measured = None, *, width: int = 80) -> list[Line]:
    """Return the report of a compiled model; parameters as `model_dict`."""
    lines = []
    for text, matters in _list_sentences(summary, measured_s):
        lines += paragraph(text, width, "bold" if matters else "")
    if summary.kernels:
        lines += [Line(""), *_table(summary, measured_s, width)]
    return lines


def model_sentences(summary: ModelSummary, measured_s: Measured = None) -> list[str]:
    """Return the sentences of the report before its table, the most important first; parameters as `model_dict`."""
    return [text for text, _ in _list_sentences(summary, measured_s)]


def _list_sentences(summary: ModelSummary, measured_s: Measured) -> list[tuple[str, bool]]:
    """Return the sentences about a model, each with whether it is important."""
    calls = sum(kernel.count for kernel in summary.kernels)
    flop = sum(kernel.count * kernel.flop for kernel in summary.kernels)
    text = (
        f"{len(summary.kernels)} kernels in {calls} calls, {units.flop(flop)}, for {summary.hardware} "
        f"({summary.arch}){'' if _is_for_gpu(summary) else ', ' + units.threads(summary.threads)}: predicted "
        f"{units.duration(summary.predicted_s)}"
    )
    if measured_s is not None:
        left = "TVM and onnxruntime" if summary.parts else "TVM"
        text += f", measured {units.duration(sum(measured_s.values()))} including operators left to {left}"
    sentences = [(text, True), *((text, False) for text in _parts_texts(summary)), (_inputs_text(summary), False)]
    if summary.layouts is not None:
        sentences.append((_layouts_text(summary.layouts, " for planned sizes" if summary.ranges else ""), False))
    if summary.rows:
        sentences.append((_rows_text(summary, measured_s), False))
    sentences.append((_left_text(summary, measured_s), False))
    if summary.unscheduled:
        sentences.append((f"compiled by TVM without vectors and threads: {', '.join(summary.unscheduled)}", True))
    if summary.tuning is not None and summary.tuning.trials:
        sentences.append((tuning_text(summary.tuning), False))
    if summary.latency is not None:
        sentences.append((_latency_text(summary.latency), True))
    return [*sentences, *_losses_sentences(summary), (_check_text(summary), False)]


def _rounding(summary: ModelSummary, kernel: KernelSummary) -> str | None:
    """Return the format that a product rounds its operands to: Triton's float32 products use tf32."""
    return "tf32" if summary.precision == "float32" and kernel.template == "triton" else None


def _table(summary: ModelSummary, measured_s: Measured, width: int) -> list[Line]:
    kernels = sorted(summary.kernels, key=lambda kernel: -kernel.total_s)
    times = [measured_of(measured_s, kernel.name) if measured_s else kernel.total_s for kernel in kernels]
    total_s = sum(measured_s.values()) if measured_s else summary.predicted_s
    cells = [
        ("calls", [str(kernel.count) for kernel in kernels]),
        ("predicted", [units.duration(kernel.total_s) for kernel in kernels]),
        ("measured", [units.or_dash(measured_of(measured_s, kernel.name)) for kernel in kernels]),
        ("share", ["-" if time_s is None else units.percent(time_s / total_s) for time_s in times]),
        ("bound by", [kernel.bound_by for kernel in kernels]),
        ("template", [kernel.template for kernel in kernels]),
        ("rounded to", [_rounding(summary, kernel) or "-" for kernel in kernels]),
        ("registers", [str(kernel.registers) for kernel in kernels]),
        ("spilled", [units.size(kernel.spill_bytes or 0) for kernel in kernels]),
        ("product", [f"{one.workload} ({one.varies})" if one.varies else one.workload for one in kernels]),
    ]
    is_rounded = any(_rounding(summary, kernel) for kernel in kernels)
    without = dict.fromkeys(("registers", "spilled"), not _is_for_gpu(summary))
    without |= {"measured": measured_s is None, "rounded to": not is_rounded}
    shown = [column for column in cells if not without.get(column[0])]
    return table(shown, ("bound by", "template", "product"), width=width)


def _is_for_gpu(summary: ModelSummary) -> bool:
    return summary.device == "gpu"


def _parts_texts(summary: ModelSummary) -> list[str]:
    """Return the sentences about a divided model's parts: their share of the time, and why nodes are left out."""
    total_s, texts = _sum(part.time_s for part in summary.parts), []
    for number, part in enumerate(summary.parts, 1):
        who = "left to onnxruntime" if part.left else "compiled"
        share = "not measured" if not total_s else f"{units.percent((part.time_s or 0.0) / total_s)} of the time"
        time_s = "" if part.time_s is None else f" ({units.duration(part.time_s)}, measured when it was compiled)"
        texts.append(f"part {number} of {len(summary.parts)}, {units.many(part.nodes, 'node')} {who}: {share}{time_s}")
        reasons: dict[str, list[str]] = {}
        for node, why in part.left:
            reasons.setdefault(why, []).append(node)
        texts += [f"{', '.join(nodes)}: {why}" for why, nodes in reasons.items()]
    return texts


def _inputs_text(summary: ModelSummary) -> str:
    inputs = ", ".join(f"{tensor.name} {shape_text(tensor)} {tensor.dtype}" for tensor in summary.inputs)
    ranges = ", ".join(
        f"{name} {one.least}..{one.most} "
        + (f"(planned: {one.planned})" if one.planned == one.usual else f"(planned and predicted for {one.planned})")
        for name, one in summary.ranges.items()
    )
    varying = f"; sizes that vary: {ranges}" if ranges else ""
    held = ", ".join(f"{one.name} {shape_text(one)}{' at most' if one.grows else ''}" for one in summary.state)
    stays = f"; state: {held}" if held else ""
    return f"inputs: {inputs or 'none'}{varying}{stays}; weights: {units.size(summary.weight_bytes)}"


def _layouts_text(layouts: LayoutSummary, by: str) -> str:
    """Return the orders of activations and the predicted times of other orders; `by` is added if sizes vary."""
    words = ", ".join(f"{count} {word}" for word, count in layouts.layouts.items())
    alone = {"NHWC": layouts.channels_last_s, "NCHW": layouts.channels_first_s}
    others = "".join(
        f", {units.duration(time_s)} with {word} alone" for word, time_s in alone.items() if time_s is not None
    )
    return (
        f"layouts of convolutions: {words}; {units.many(layouts.transposes, 'transpose')}; predicted{by} "
        f"{units.duration(layouts.predicted_s)} with them{others}; at most {units.percent(layouts.gap)} above the best "
        "possible choice"
    )


def _rows_text(summary: ModelSummary, measured_s: Measured) -> str:
    """Return the kernels that are not planned, by kind."""
    kinds = []
    for kind in _row_parts(summary, measured_s):
        predicted = "" if kind.predicted_s is None else f" {units.duration(kind.predicted_s)}"
        measured = "" if measured_s is None else f", measured {units.duration(kind.measured_s or 0.0)}"
        kinds.append(f"{kind.name} ({kind.calls}){predicted}{measured}")
    return f"kernels without a plan, predicted by the bytes that they move, not in the time above: {'; '.join(kinds)}"


def _left_text(summary: ModelSummary, measured_s: Measured) -> str:
    names = ", ".join(f"{operator.name} ({operator.count})" for operator in summary.operators)
    if not names:
        launches = summary.launches
        memory = units.size(summary.arena_bytes)
        whole = units.duration(summary.whole_s)
        totals = f"; a run has {launches} launches, {memory} of data between them, and is predicted to take {whole}"
        return f"operators {LEFT}: none{totals if launches else ''}"
    if measured_s is None:
        return _predicted_left_text(summary, names)
    rest = _others_measured_s(summary, measured_s)
    slowest = sorted(rest, key=lambda name: -rest[name])[:3]
    share = units.percent(sum(rest.values()) / sum(measured_s.values()))
    slowest_text = ", ".join(f"{name} {units.duration(rest[name])}" for name in slowest)
    return f"operators {LEFT}: {names}; measured {share} of the time, most in {slowest_text}"


def _predicted_left_text(summary: ModelSummary, names: str) -> str:
    """Return the operators that TVM compiles, with their predicted share of the whole time."""
    left_s = _sum(operator.predicted_s for operator in summary.operators)
    if left_s is None:
        return f"operators {LEFT}, not in the times above: {names}"
    total_s = summary.predicted_s + sum(row.predicted_s or 0.0 for row in summary.rows) + left_s
    share = units.percent(left_s / total_s)
    return (
        f"operators {LEFT}: {names}; predicted {units.duration(left_s)} by the bytes that they move ({share} of all), "
        "not in the time above"
    )


def tuning_text(tuning: TuningSummary) -> str:
    """Return the number of trials, the reason of their end, and how close the kernels are to their bounds."""
    why = {"time_limit": ", ended by the time limit", "kernels": ", ended early: no kernel needs more trials"}
    early = Counter(kernel.ended for kernel in tuning.kernels if kernel.ended)
    words = {
        "stop_at": "close enough to the lower bound",
        "patience": "without a faster schedule for a while",
        "space": "with all schedules measured",
    }
    kernels = ", ".join(f"{count} {words[ended]}" for ended, count in early.items())
    measured = [kernel for kernel in tuning.kernels if kernel.measured_s]
    bound_s = sum(kernel.count * kernel.bound_s for kernel in measured)
    time_s = sum(kernel.count * (kernel.measured_s or 0.0) for kernel in measured)
    share = f"; together they take {units.ratio(time_s / bound_s)} times the model's lower bounds" if measured else ""
    share += "; this machine is faster than its spec says" if measured and time_s < bound_s else ""
    return (
        f"kernels were measured in {tuning.trials} trials, {tuning.new_trials} of them in this call"
        f"{why.get(tuning.ended, '')}{f' ({kernels})' if kernels else ''}{share}"
    )


def _latency_text(latency: Latency) -> str:
    measured_text = f"measured when it was compiled: {units.duration(latency.time_s)} a run"
    if latency.other_s is None:
        return f"{measured_text}; the best measured kernels are those of the plan"
    other = units.duration(latency.other_s)
    if latency.is_tuned:
        return f"{measured_text} with the best measured kernels, which are kept; with the planned kernels {other}"
    return f"{measured_text} with the planned kernels, which are kept; with the best measured kernels {other}"


_WORST = 3
"""Number of layers that the report names: those that lose most by quantisation."""


def _losses_sentences(summary: ModelSummary) -> list[tuple[str, bool]]:
    """Return the layers that lose most by quantisation, as a sentence."""
    layers = sorted((one for one in summary.losses if one.signal_db is not None), key=lambda one: one.signal_db or 0.0)
    if not layers:
        return []
    worst = ", ".join(f"{one.layer} {one.signal_db:.1f} dB" for one in layers[:_WORST])
    text = f"quantised to 8 bits: signal-to-noise ratio of {len(summary.losses)} layers' outputs, lowest: {worst}"
    return [(text, False)]


def _check_text(summary: ModelSummary) -> str:
    if summary.emulated is not None and summary.launches:
        return (
            f"each planned kernel was run in Triton's interpreter at smaller sizes, with a "
            f"largest error of {summary.emulated:.2g}, relative to the results; the whole model was not run or compared"
        )
    if summary.emulated is not None:
        return (
            f"each kernel of anatune was run in the emulator, with a largest error of {summary.emulated:.2g}, relative "
            "to the results; the whole model was not run or compared with the original"
        )
    if summary.check is not None:
        check = summary.check
        return f"largest difference from {check.reference}: {check.error:.2g} of the output's largest magnitude"
    why = ": there was no such GPU (--check lets the emulator run the kernels)" if _is_for_gpu(summary) else ""
    return f"outputs were not compared with the original's{why}"

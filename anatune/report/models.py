"""A compiled model as a table: its kernels, what bounds each, where the time goes, what was left to TVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from anatune.graph.summary import (
    KernelSummary,
    Latency,
    LayoutSummary,
    ModelSummary,
    OperatorSummary,
    TuningSummary,
)
from anatune.report import units
from anatune.report.model_parts import kernel_kind
from anatune.report.text import Line, columns, wrapped

__all__ = ["model_dict", "model_lines", "model_sentences", "tuning_text"]


def model_dict(summary: ModelSummary, measured_s: Mapping[str, float] | None = None) -> dict[str, object]:
    """Return what the table says as plain values, times in seconds of all calls in a run.

    Parameters
    ----------
    measured_s : mapping of str to float, optional
        Function of the library -> seconds of all its calls in a run (`CompiledModel.profile`).
    """
    kernels = [
        {
            "name": kernel.name,
            "workload": kernel.workload,
            "count": kernel.count,
            "flop": kernel.count * kernel.flop,
            "template": kernel.template,
            "layout": kernel.layout,
            "epilogue": kernel.epilogue,
            "bound_by": kernel.bound_by,
            "predicted_s": kernel.total_s,
            "predicted_share": kernel.total_s / summary.predicted_s,
            "registers": kernel.registers,
            "spill_bytes": kernel.spill_bytes,
            "shared_bytes": kernel.shared_bytes,
            "measured_s": None if measured_s is None else measured_s.get(kernel.name),
        }
        for kernel in summary.kernels
    ]
    own = _own(summary)
    others = {name: time_s for name, time_s in (measured_s or {}).items() if name not in own}
    check = summary.check
    return {
        "hardware": summary.hardware,
        "device": summary.device,
        "threads": None if _on_gpu(summary) else summary.threads,
        "inputs": [{"name": one.name, "dtype": one.dtype, "shape": one.shape} for one in summary.inputs],
        "outputs": [{"name": one.name, "dtype": one.dtype, "shape": one.shape} for one in summary.outputs],
        "weight_bytes": summary.weight_bytes,
        "predicted_s": summary.predicted_s,
        "predicted_transposes_s": summary.turning_s,
        "emulated_error": summary.emulated,
        "measured_s": None if measured_s is None else sum(measured_s.values()),
        "kernels": kernels,
        "rows": [
            {
                "name": one.name,
                "count": one.count,
                "predicted_s": one.predicted_s,
                "measured_s": None if measured_s is None else measured_s.get(one.name),
            }
            for one in summary.rows
        ],
        "unscheduled": summary.unscheduled,
        "layouts": None if summary.layouts is None else msgspec.structs.asdict(summary.layouts),
        "left_to_tvm": {one.name: one.count for one in summary.operators},
        "left_to_tvm_predicted_s": {one.name: one.predicted_s for one in summary.operators},
        "left_to_tvm_measured_s": others if measured_s is not None else None,
        "latency": None if summary.latency is None else msgspec.to_builtins(summary.latency),
        "tuning": None if summary.tuning is None else msgspec.to_builtins(summary.tuning),
        "check": None if check is None else {"error": check.error, "tolerance": check.tolerance, "by": check.reference},
    }


def model_lines(summary: ModelSummary, measured_s: Mapping[str, float] | None = None, *, width: int = 80) -> list[Line]:
    """Return a compiled model as a report; parameters as `model_dict`."""
    told = _told(summary, measured_s)
    lines = [Line(one, "bold" if bold else "") for text, bold in told for one in wrapped(text, width, hanging="  ")]
    if summary.kernels:
        lines += [Line(""), *_table(summary, measured_s, width)]
    return lines


def model_sentences(summary: ModelSummary, measured_s: Mapping[str, float] | None = None) -> list[str]:
    """Return what the report says before its table, the kernels and their time first; parameters as `model_dict`."""
    return [text for text, _ in _told(summary, measured_s)]


def _told(summary: ModelSummary, measured_s: Mapping[str, float] | None) -> list[tuple[str, bool]]:
    """Return the sentences about a model, and which of them matter most."""
    calls = sum(kernel.count for kernel in summary.kernels)
    flop = sum(kernel.count * kernel.flop for kernel in summary.kernels)
    text = (
        f"{len(summary.kernels)} kernels in {calls} calls, {units.flop(flop)}, for {summary.hardware} "
        f"({summary.arch}){'' if _on_gpu(summary) else ', ' + units.threads(summary.threads)}: predicted "
        f"{units.duration(summary.predicted_s)}"
    )
    if measured_s is not None:
        text += f", measured with what was left to TVM {units.duration(sum(measured_s.values()))}"
    told = [(text, True), (_inputs_text(summary), False)]
    if summary.layouts is not None:
        told.append((_layouts_text(summary.layouts), False))
    if summary.rows:
        told.append((_rows_text(summary, measured_s), False))
    told.append((_left_text(summary, measured_s), False))
    if summary.unscheduled:
        told.append((f"no vectors and no threads, as TVM wrote them: {', '.join(summary.unscheduled)}", True))
    if summary.tuning is not None and summary.tuning.trials:
        told.append((tuning_text(summary.tuning), False))
    if summary.latency is not None:
        told.append((_latency_text(summary.latency), True))
    return [*told, (_check_text(summary), False)]


def _table(summary: ModelSummary, measured_s: Mapping[str, float] | None, width: int) -> list[Line]:
    heading = ["calls", "predicted", "share", "bound by", "template", *_compiled_heads(summary), "product"]
    if measured_s is not None:
        heading.insert(2, "measured")
    rows = [heading]
    for kernel in sorted(summary.kernels, key=lambda one: -one.total_s):
        row = [
            str(kernel.count),
            units.duration(kernel.total_s),
            units.percent(kernel.total_s / summary.predicted_s),
            kernel.bound_by,
            kernel.template,
            *_compiled_words(summary, kernel),
            kernel.workload,
        ]
        if measured_s is not None:
            time_s = measured_s.get(kernel.name)
            row.insert(2, "-" if time_s is None else units.duration(time_s))
        rows.append(row)
    texts = [at for at, head in enumerate(heading) if head in ("bound by", "template", "product")]
    first, *others = columns(rows, left=tuple(texts), width=width)
    return [Line(first, "bold"), *map(Line, others)]


def _compiled_heads(summary: ModelSummary) -> list[str]:
    """Return the columns that kernels of GPUs have besides."""
    return ["registers", "spilled"] if _on_gpu(summary) else []


def _compiled_words(summary: ModelSummary, kernel: KernelSummary) -> list[str]:
    return [str(kernel.registers), units.size(kernel.spill_bytes or 0)] if _on_gpu(summary) else []


def _on_gpu(summary: ModelSummary) -> bool:
    return summary.device == "gpu"


def _inputs_text(summary: ModelSummary) -> str:
    inputs = ", ".join(f"{one.name} {'x'.join(map(str, one.shape)) or 'scalar'} {one.dtype}" for one in summary.inputs)
    return f"inputs: {inputs or 'none'}; weights: {units.size(summary.weight_bytes)}"


def _layouts_text(layouts: LayoutSummary) -> str:
    """Return in which orders activations lie, and what other choices would take."""
    words = ", ".join(f"{count} {word}" for word, count in layouts.layouts.items())
    alone = {"NHWC": layouts.channels_last_s, "NCHW": layouts.channels_first_s}
    others = "".join(
        f", {units.duration(time_s)} with {word} alone" for word, time_s in alone.items() if time_s is not None
    )
    transposes = f"{layouts.transposes} transpose{'' if layouts.transposes == 1 else 's'}"
    return (
        f"layouts of convolutions: {words}; {transposes}; predicted {units.duration(layouts.predicted_s)} with them"
        f"{others}; at most {units.percent(layouts.gap)} above the best choice"
    )


def _own(summary: ModelSummary) -> set[str]:
    """Return the functions that are anatune's."""
    return {one.name for one in summary.kernels} | {one.name for one in summary.rows}


def _rows_text(summary: ModelSummary, measured_s: Mapping[str, float] | None) -> str:
    """Return the kernels without a plan by their kinds, the last words of their names."""
    kinds: dict[str, list[OperatorSummary]] = {}
    for one in summary.rows:
        kinds.setdefault(kernel_kind(one), []).append(one)
    told = []
    for kind, members in kinds.items():
        text = f"{kind} ({sum(one.count for one in members)})"
        if all(one.predicted_s is not None for one in members):
            text += f" {units.duration(sum(one.predicted_s or 0.0 for one in members))}"
        if measured_s is not None:
            text += f", measured {units.duration(sum(measured_s.get(one.name, 0.0) for one in members))}"
        told.append(text)
    return f"kernels without a plan, predicted by their bytes and not in the time above: {'; '.join(told)}"


def _left_text(summary: ModelSummary, measured_s: Mapping[str, float] | None) -> str:
    names = ", ".join(f"{one.name} ({one.count})" for one in summary.operators)
    if not names:
        return "left to TVM: nothing"
    if measured_s is None:
        return _left_predicted(summary, names)
    own = _own(summary)
    rest = {name: time_s for name, time_s in measured_s.items() if name not in own}
    slowest = sorted(rest, key=lambda name: -rest[name])[:3]
    total = sum(measured_s.values())
    told = ", ".join(f"{name} {units.duration(rest[name])}" for name in slowest)
    return f"left to TVM, {units.percent(sum(rest.values()) / total)} of the time ({told}): {names}"


def _left_predicted(summary: ModelSummary, names: str) -> str:
    """Return what was left to TVM with its predicted share of everything."""
    left = [one.predicted_s for one in summary.operators if one.predicted_s is not None]
    if len(left) < len(summary.operators):
        return f"left to TVM, and not in these times: {names}"
    total = summary.predicted_s + sum(one.predicted_s or 0.0 for one in summary.rows) + sum(left)
    share = units.percent(sum(left) / total)
    return f"left to TVM, by its bytes {share} of the time ({units.duration(sum(left))}) and not in the above: {names}"


def tuning_text(tuning: TuningSummary) -> str:
    """Return how many trials kernels had, why that ended, and how near their bounds they are together."""
    why = {"time_limit": ", ended by the time limit", "kernels": ", ended early: no kernel has any left"}
    early = Counter(one.ended for one in tuning.kernels if one.ended)
    words = {
        "stop_at": "near enough to the bound",
        "patience": "nothing better for a while",
        "space": "no more schedules",
    }
    kernels = ", ".join(f"{count} {words[ended]}" for ended, count in early.items())
    times = [(one.count * one.bound_s, one.count * one.measured_s) for one in tuning.kernels if one.measured_s]
    share = f"; they are at {units.percent(sum(b for b, _ in times) / sum(t for _, t in times))} of their lower bounds"
    return (
        f"kernels were measured in {tuning.trials} trials, {tuning.new_trials} of them now"
        f"{why.get(tuning.ended, '')}{f' ({kernels})' if kernels else ''}{share if times else ''}"
    )


def _latency_text(latency: Latency) -> str:
    told = f"measured when it was compiled: {units.duration(latency.time_s)} a run"
    if latency.other_s is None:
        return f"{told}; measured kernels are the plan's own"
    other = units.duration(latency.other_s)
    if latency.is_tuned:
        return f"{told} with the kernels that were measured as the best, which are kept; with the plan's own {other}"
    return f"{told} with the plan's own kernels, which are kept; with those that were measured as the best {other}"


def _check_text(summary: ModelSummary) -> str:
    if summary.emulated is not None:
        return (
            f"each kernel of anatune's was right in the emulator, within {summary.emulated:.2g} of its results' scale; "
            "outputs of the whole were not compared with the original's"
        )
    if summary.check is None and _on_gpu(summary):
        return (
            "outputs were not compared with the original's: there was no such GPU (--check lets the emulator run the "
            "kernels)"
        )
    if summary.check is None:
        return "outputs were not compared with the original's"
    check = summary.check
    return f"largest difference from {check.reference}: {check.error:.2g} of the output's largest magnitude"

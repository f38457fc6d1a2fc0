"""The page of a compiled model: predicted and measured times, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.core.schedule import Schedule
from anatune.core.workload.text import workload_to_text
from anatune.errors import AnatuneError
from anatune.network.compiling.planning import strip_epilogue
from anatune.network.graph.summary import KernelSummary, KernelTuning, ModelSummary, OperatorSummary
from anatune.network.pages.plots import plot_model, plot_model_parts
from anatune.network.report import (
    Measured,
    kernel_bound,
    kernel_kind,
    measured_of,
    model_parts,
    model_sentences,
    shape_text,
)
from anatune.pages.page import Cell, Column, Facts, Figure, Page, Section, Table
from anatune.report import units
from anatune.version import __version__

if TYPE_CHECKING:
    from anatune.network.compiling.compiled import CompiledModel

__all__ = ["model_page"]

_KERNELS_SHOWN, _ROWS_SHOWN = 25, 10
"""Rows of one page of a table."""
_COMPILER_COLUMNS = ("registers", "spilled (bytes)", "shared (bytes)")


def model_page(compiled: CompiledModel | ModelSummary, measured_s: Measured = None, *, name: str = "") -> Page:
    """Return the page of a compiled model.

    Parameters
    ----------
    compiled : CompiledModel or ModelSummary
        A model for a CPU or a GPU; the GPU need not be present.
    measured_s : mapping of str to float, optional
        The result of `CompiledModel.profile`.
    name : str
        Name of the model for the title.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    """
    summary = compiled if isinstance(compiled, ModelSummary) else compiled.summary
    threads = f", {units.threads(summary.threads)}" if summary.device == "cpu" else ""
    title = f"{name or 'A model'} on {summary.hardware}{threads}"
    lead, *more = model_sentences(summary, measured_s)
    facts_section = Section("Summary", [], [Facts(_facts(summary, measured_s))])
    sentences_section = Section("In words", points=[f"{_capitalise(text)}." for text in more])
    sections = [facts_section, _parts_section(summary, measured_s), sentences_section]
    if summary.kernels:
        sections.append(_kernel_section(summary, measured_s))
        sections.append(_tuning_section(summary))
    if summary.rows:
        table = _operator_table(summary.rows, measured_s, kinds=True)
        words = (
            "These kernels have no schedules to choose from. Their times are predicted from the bytes that they move."
        )
        sections.append(Section("Kernels without a plan", [words], [table]))
    if summary.operators:
        words = "anatune has no kernels for these operators, so TVM compiles them. Times are predicted by their bytes."
        table = _operator_table(summary.operators, None, kinds=False)
        sections.append(Section("Operators left to TVM", [words], [table]))
    sections.append(_memory_section(summary))
    return Page(
        title, sections, [f"{_capitalise(lead)}."], f"Written by anatune {__version__}. The page needs no network."
    )


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _facts(summary: ModelSummary, measured_s: Measured) -> list[tuple[str, str, str]]:
    """Return the most important numbers."""
    parts = model_parts(summary, measured_s)
    predicted_times = [part.predicted_s for part in parts if part.predicted_s is not None]
    all_told = "all parts" if len(predicted_times) == len(parts) else "parts that are predicted"
    facts = [("predicted", units.duration(sum(predicted_times)), f"a run, {all_told}")]
    if summary.latency is not None:
        facts.append(("measured", units.duration(summary.latency.time_s), "a run, when it was compiled"))
    if measured_s is not None:
        facts.append(("measured by function", units.duration(sum(measured_s.values())), "the least of several runs"))
    bounds = [(one.count * bound.time_s, one.total_s) for one in summary.kernels if (bound := kernel_bound(one))]
    if bounds:
        share = units.percent(sum(bound_s for bound_s, _ in bounds) / sum(total_s for _, total_s in bounds))
        facts.append(("lower bound of the products", share, "of their predicted time"))
    calls, flop = sum(one.count for one in summary.kernels), sum(one.count * one.flop for one in summary.kernels)
    facts.append(("kernels", str(len(summary.kernels)), f"{calls} calls a run, {units.flop(flop)}"))
    facts.append(("weights", units.size(summary.weight_bytes), f"{len(summary.weights)} arrays"))
    if summary.check is not None:
        facts.append(("largest difference", f"{summary.check.error:.2g}", f"from {summary.check.reference}"))
    return facts


def _parts_section(summary: ModelSummary, measured_s: Measured) -> Section:
    """Return the section of the times of all parts."""
    rows: list[Sequence[Cell]] = [
        (part.name, part.calls, _us(part.predicted_s), _us(part.measured_s))
        for part in model_parts(summary, measured_s)
    ]
    columns = (Column("part", is_text=True), Column("calls"), Column("predicted (us)"), Column("measured (us)"))
    table = Table(columns, rows, "", _ROWS_SHOWN)
    words = [] if measured_s is not None else ["Nothing was measured here; add --measure on a machine with the device."]
    return Section("Where the time goes", words, [Figure(plot_model_parts(summary, measured_s)), table])


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _kernel_section(summary: ModelSummary, measured_s: Measured) -> Section:
    """Return the section of the kernels: a figure of the longest and a table of all."""
    columns = [
        Column("product", is_text=True),
        Column("layout", is_text=True, help="order of the data's dimensions", is_detail=True),
        Column("calls"),
        Column("predicted (us)", help="of all calls in a run"),
        Column("measured (us)", help="of all calls in a run") if measured_s is not None else None,
        Column("share (%)", help="of the predicted time of all products", is_detail=True),
        Column("of the bound (%)", help="lower bound over predicted time"),
        Column("bound by", is_text=True),
        Column("template", is_text=True, is_detail=True),
        Column("schedule from", is_text=True, is_detail=True),
        *(Column(name, is_detail=True) if summary.device == "gpu" else None for name in _COMPILER_COLUMNS),
    ]
    rows: list[Sequence[Cell]] = []
    for product in sorted(summary.kernels, key=lambda kernel: -kernel.total_s):
        bound = kernel_bound(product)
        rows.append(
            (
                product.workload, product.layout or None, product.count, product.total_s * 1e6,
                _us(measured_of(measured_s, product.name)),
                100 * product.total_s / summary.predicted_s,
                None if bound is None else 100 * bound.time_s / product.predicted_s,
                product.bound_by, product.template, "measurements" if product.is_tuned else "the plan",
                product.registers, product.spill_bytes, product.shared_bytes,
            )
        )  # fmt: skip
    words = [
        "The bound of a product is the least time of any schedule that runs alone: arithmetic at the peak, or the "
        "bytes that no cache keeps. In a model operands come from further away."
    ]
    table = Table.of(columns, rows, "Kernels", _KERNELS_SHOWN)
    return Section("Kernels", words, [Figure(plot_model(summary, measured_s)), table])


def _tuning_section(summary: ModelSummary) -> Section:
    """Return the section about measured kernels, and about those that were not measured."""
    tuned, heading = sum(one.is_tuned for one in summary.kernels), "What was tuned"
    if summary.tuning is None and not tuned:
        return Section(heading, ["Nothing: each kernel is the first choice of the analytical model."])
    words = [f"{tuned} of {len(summary.kernels)} kernels have the schedule that was measured to be the best."]
    if summary.tuning is None:
        return Section(heading, words)
    tuning = summary.tuning
    words.append(
        f"{units.count(tuning.trials)} trials, {units.count(tuning.new_trials)} of them new, in "
        f"{units.duration(tuning.elapsed_s)}. A product's trials serve all kernels that differ in fused steps only."
    )
    others = [
        one.workload
        for one in summary.kernels
        if _tuned_workload_text(one) not in {known.workload for known in tuning.kernels}
    ]
    if others:
        words.append(f"Not measured, because their operands are not constant: {', '.join(dict.fromkeys(others))}.")
    columns = (
        Column("product", is_text=True), Column("calls", is_detail=True), Column("trials"), Column("predicted (us)"),
        Column("best measured (us)"), Column("gain (%)", help="of the prediction of the plan's first choice"),
        Column("of the bound (%)", help="lower bound over measured, else predicted time"),
        Column("ended", is_text=True),
    )  # fmt: skip
    return Section(heading, words, [Table(columns, [_tuning_row(one) for one in tuning.kernels], "", _KERNELS_SHOWN)])


def _tuning_row(tuning: KernelTuning) -> Sequence[Cell]:
    time_s = tuning.predicted_s if tuning.measured_s is None else tuning.measured_s
    gain = None if tuning.measured_s is None else 100 * (1 - tuning.measured_s / tuning.predicted_s)
    return (
        tuning.workload, tuning.count, tuning.trials, tuning.predicted_s * 1e6, _us(tuning.measured_s), gain,
        100 * tuning.bound_s / time_s, tuning.ended or None,
    )  # fmt: skip


def _tuned_workload_text(kernel: KernelSummary) -> str:
    """Return a kernel's product as text without its epilogue, as the summary of tuning names it."""
    try:
        return workload_to_text(strip_epilogue(Schedule.from_json(kernel.schedule).workload))
    except AnatuneError:  # an attention has no schedule; a schedule may be of another version
        return kernel.workload


def _operator_table(operators: Sequence[OperatorSummary], measured_s: Measured, *, kinds: bool) -> Table:
    columns = [
        Column("operator", is_text=True), Column("calls"), Column("predicted (us)"),
        Column("measured (us)") if measured_s is not None else None,
    ]  # fmt: skip
    rows = [
        (
            kernel_kind(operator) if kinds else operator.name, operator.count, _us(operator.predicted_s),
            _us(measured_of(measured_s, operator.name)),
        )
        for operator in operators
    ]  # fmt: skip
    return Table.of(columns, rows, "", _ROWS_SHOWN)


def _memory_section(summary: ModelSummary) -> Section:
    """Return the section of inputs, outputs and weights."""
    rows: list[Sequence[Cell]] = []
    for what, members in (("input", summary.inputs), ("output", summary.outputs)):
        rows += [(what, member.name, shape_text(member), member.dtype) for member in members]
    columns = [Column(name, is_text=True) for name in ("what", "name", "shape", "dtype")]
    words = (
        f"Weights take {units.size(summary.weight_bytes)} in one block, {len(summary.weights)} arrays, packed in "
        "the order in which kernels read them."
    )
    return Section("Memory", [words], [Table(columns, rows, "Inputs and outputs", _ROWS_SHOWN)])

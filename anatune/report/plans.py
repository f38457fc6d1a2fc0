"""Plans and subsets of spaces as text: what and where, how sure, and the best schedules with their tiles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.accuracy import ACCURACIES, STANDARD, admits, is_plain_sum
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.workload.nest import Workload
from anatune.model.plan import Plan
from anatune.model.pruning.subset import RankedSubset
from anatune.report import units
from anatune.report.roofline import ceiling, workload_peak
from anatune.report.schedules import meaning_lines, schedule_items, schedule_line, schedule_table, template_items
from anatune.report.text import Line, paragraph, table, wrap_items, wrap_text
from anatune.templates import get_template, joined_templates, templates_of, tuning_template
from anatune.templates.base.model import Rule

_LIMITERS = {"registers": "regs", "shared": "smem", "parallel_loop": "loop", "threads": "warps"}
_MATERIAL_S = 0.5
"""Least seconds of compiling that the report shows."""
_OCCUPANCY = {"gpu": "share of the warps that an SM can hold", "cpu": "share of the cores that are at work"}
_TENSOR_DTYPE = {"float32": "tf32"}


class Filling(NamedTuple):
    """The words for the pieces of work of a kind of device, and for how well they fill it.

    Attributes
    ----------
    title : str
        Both together, for headings.
    share, rounds : str
        The share of the device that is busy; the number of waves (`Prediction.occupancy`, `Prediction.waves`).
    piece : str
        The blocks or threads that run at the same time.
    heading, about : str
        Title of the section of a page; the benefit of small and of large pieces.
    """

    title: str
    share: str
    rounds: str
    piece: str
    heading: str
    about: str


FILLING = {
    "gpu": Filling(
        "Occupancy and waves", "occupancy", "waves", "block", "Occupancy and waves",
        "Large blocks load less, but need more registers and shared memory, so that fewer run at once (occupancy), and "
        "there are fewer of them: the last wave is partly filled, and below one wave some SMs idle.",
    ),
    "cpu": Filling(
        "Busy cores, and pieces of the work a core", "busy cores", "pieces a core", "piece of work", "Cores and caches",
        "Small pieces of the parallel loop keep all cores busy, large ones make better use of caches. With fewer "
        "pieces than cores some idle, and the last round is rarely full.",
    ),
}  # fmt: skip
"""Kind of device -> its words."""


def plan_lines(plan: Plan, *, width: int = 80, seconds: float | None = None, compiling_s: float = 0.0) -> list[Line]:
    """Return a plan as a report: what and where, how sure, and the best schedules with their tiles.

    Parameters
    ----------
    plan : Plan
        The plan; all of its schedules are shown.
    width : int
        Characters a line; no cell or tile is cut for it.
    seconds : float, optional
        How long the planning took.
    compiling_s : float
        How long compiling the model took before, s.
    """
    template = (
        joined_text(plan.templates, plan.accuracy)
        if plan.joined
        else template_text(plan.workload, plan.hardware, plan.template)
    )
    lines = paragraph(_workload_text(plan), width, "bold")
    corrections = [correction.describe() for correction in plan.corrections]
    left_out = [f"note: {one.left_out.describe(one.template)}" for one in plan.joined if one.left_out is not None]
    paragraphs = (
        _hardware_text(plan),
        template,
        _products_text(plan),
        _guarantee_text(plan, seconds, compiling_s),
        *left_out,
    )
    for text in (*paragraphs, *corrections):
        lines += paragraph(text, width)
    if not plan.schedules:
        return lines
    heading, first, *rows = _table(plan, width)
    lines += [Line(""), heading, first._replace(style="green"), *rows, Line(""), *_tile_lines(plan, width)]
    return [*lines, Line(""), *(Line(text, "dim") for text in _legend(plan, width))]


def _tile_lines(plan: Plan, width: int) -> list[Line]:
    """Return the schedules in order: the first of each template as a table of its tiles, the others in a line each."""
    lines = paragraph("schedules: iterations of each axis at each level of the loops, outermost first", width)
    templates: set[str] = set()
    for rank, (schedule, ties) in enumerate(zip(plan.schedules, _ties(plan), strict=True), start=1):
        write = schedule_line if schedule.template in templates else schedule_table
        templates.add(schedule.template)
        lines += write(schedule, rank, template_items(schedule, among_several=bool(plan.joined)), ties, width)
    return lines


def joined_text(templates: Sequence[str], accuracy: str) -> str:
    """Return one sentence about templates that are ranked together: which, at which accuracy, how to get other ones."""
    wider = [f"--accuracy {known}" for known in ACCURACIES if not admits(accuracy, known)]
    more = f", {' and '.join(wider)} allows more kernels" if wider else ""
    return f"templates: {', '.join(templates)}, ranked together, accuracy {accuracy}; --template NAME ranks one{more}"


def template_text(workload: Workload, hardware: GpuSpec | CpuSpec, template: str) -> str:
    """Return one sentence: the template, where it is the default, and the device's other templates.

    `anatune plan` takes the narrowest template of CUDA cores by default, `anatune tune` a wider one where it applies.
    """
    said, device_templates = f"template: {template}", templates_of(hardware)
    if get_template(template).least_accuracy(workload) != STANDARD:
        said += f", which rounds {workload.dtype} to tf32 (--accuracy {STANDARD} refuses that)"
    names = [entry.name for entry in device_templates if entry.takes(workload, hardware)]
    tuned, planned = tuning_template(workload, hardware).name, joined_templates(workload, hardware, STANDARD)[0].name
    defaults = {planned: " (plan's default)", tuned: " (tune's default)"}
    together = [entry.name for entry in joined_templates(workload, hardware, STANDARD)]
    if len(together) > 1:
        others = ", ".join(name for name in names if name != template)
        without = f"without --template {' and '.join(together)} are ranked together"
        return f"{said}; others for --template: {others}; {without}"
    if planned == tuned:
        defaults = {tuned: " (the default)" if len(names) > 1 else ""}
    others = ", ".join(f"{name}{defaults.get(name, '')}" for name in names if name != template)
    more = f"; others for --template: {others}" if others else ""
    return f"{said}{defaults.get(template, '')}{more}"


def place_text(hardware: GpuSpec | CpuSpec) -> str:
    """Return a device in words: product, name of its spec, architecture."""
    return f"{hardware.model} ({hardware.name}, {hardware.arch})"


def _products_text(plan: Plan) -> str:
    """Return by which instruction a CPU multiplies narrow elements, "" where nothing is to be said."""
    note = get_template(plan.template).products_note(plan.schedules[0]) if plan.schedules else ""
    return f"products: {note}" if note else ""


def _ties(plan: Plan) -> list[str]:
    """Return the number of other schedules with the predicted time of each one, "" for none."""
    word = "" if plan.alike_is_exact else "at least "
    counts = plan.num_alike or [0] * len(plan.schedules)
    return [f"{word}{units.count(count)} more of the same predicted time" if count else "" for count in counts]


def _workload_text(plan: Plan) -> str:
    workload = plan.workload
    name = "+".join((workload.operator, *workload.epilogue))
    loops = " ".join(f"{axis}={extent}" for axis, extent in workload.extents.items())
    moved = f"at least {units.size(workload.compulsory_bytes)} to and from memory"
    return f"{name} {loops}, {workload.formats}: {units.flop(workload.flop)}, {moved}"


def _hardware_text(plan: Plan) -> str:
    hardware, dtype = plan.hardware, plan.workload.dtype
    peak = units.flop_rate(workload_peak(plan.workload, hardware, plan.template))
    template = get_template(plan.template)
    unit = dtype if plan.workload.multiplies else "float32"
    if template.tensor_cores and plan.workload.multiplies:
        packed = plan.workload.is_kernel and dtype == "uint8"  # 4-bit floats, which units multiply without conversion
        dtype = plan.workload.formats.partition(":")[0] if packed else dtype
        multiplied = dtype if packed else template.multiplied_dtype(dtype, hardware)
        unit = f"{_TENSOR_DTYPE.get(multiplied, multiplied)} on tensor cores"
        unit += f", to which {dtype} is converted" if multiplied != dtype else ""
    threads = f", {units.threads(plan.threads)}" if plan.threads is not None else ""
    dram = units.rate(hardware.dram.bandwidth_bytes_per_s)
    return f"on {place_text(hardware)}{threads}: peak {peak} in {unit}, DRAM {dram}"


def _guarantee_text(plan: Plan, seconds: float | None = None, compiling_s: float = 0.0) -> str:
    """Return one sentence: the proof of the ranking, the number of points examined, and the time of the search.

    `compiling_s`: seconds that compiling the model took before, which later runs do not repeat.
    """
    guarantee = plan.guarantee
    parts = [f"{units.count(guarantee.num_evaluated)} points evaluated"]
    if guarantee.num_bounded:
        parts.append(f"{units.count(guarantee.num_bounded)} partial points bounded")
    parts.append(f"space of {units.count(plan.space_size)} points")
    if plan.num_legal is not None:
        parts.append(f"{units.count(plan.num_legal)} legal")
    took = f"; {units.duration(seconds)}" if seconds is not None else ""
    if compiling_s >= _MATERIAL_S:
        took += f", after {units.duration(compiling_s)} of compiling the model, which is done once"
    return f"guarantee: {guarantee.describe()}; {', '.join(parts)}{took}"


def _table(plan: Plan, width: int) -> list[Line]:
    """Return the heading and the rows of a plan's table."""
    work, peak = ceiling(plan.workload, plan.hardware, plan.template)
    predictions = plan.predictions
    rates = [work / prediction.time_s for prediction in predictions]
    ratios = {
        f"x{level.upper()}": [
            units.or_dash(prediction.traffic_over_bound.get(level), units.ratio) for prediction in predictions
        ]
        for level in _levels(plan)
    }
    cells = [
        ("#", [str(rank) for rank in range(1, len(rates) + 1)]),
        ("time", [units.duration(prediction.time_s) for prediction in predictions]),
        ("GFLOP/s" if plan.workload.flop else "GB/s", [units.giga(rate) for rate in rates]),
        ("peak", [units.share(rate / peak) for rate in rates]),
        ("bound by", [prediction.bound_by for prediction in predictions]),
        ("occupancy", [occupancy_text(prediction) for prediction in predictions]),
        ("waves", [units.ratio(prediction.waves) for prediction in predictions]),
        *ratios.items(),
        ("regs", [registers_text(prediction) for prediction in predictions]),
    ]
    return table(cells, ("bound by", "occupancy"), width=width)


def _levels(plan: Plan) -> list[str]:
    """Return the memory levels that a prediction of the plan tells."""
    return list(dict.fromkeys(level for prediction in plan.predictions for level in prediction.traffic_over_bound))


def occupancy_text(prediction: Prediction) -> str:
    """Return the occupancy and what limits it: "67% regs"."""
    limiter = _LIMITERS.get(prediction.occupancy_limiter, prediction.occupancy_limiter)
    return f"{units.share(prediction.occupancy)} {limiter}".rstrip()


def registers_text(prediction: Prediction) -> str:
    """Return the registers of a thread or microkernel, and after a plus those that are spilled."""
    resources = prediction.resources
    registers = resources.get("registers_per_thread", resources.get("registers"))
    if registers is None:
        return "-"
    spilled = resources.get("spilled_registers", 0.0)
    return f"{registers:.0f}+{spilled:.0f}" if spilled else f"{registers:.0f}"


def _legend(plan: Plan, width: int) -> list[str]:
    """Return the meanings of the columns and of the factors of the tiles."""
    levels = ", ".join(f"x{level.upper()}" for level in _levels(plan))
    errors = not all(is_plain_sum(schedule.template) for schedule in plan.schedules)
    spilled = any(prediction.resources.get("spilled_registers") for prediction in plan.predictions)
    words = [
        "peak: share of the theoretical peak" + (", of the operations that a plain sum needs" if errors else ""),
        "error: expected error relative to a typical result" if errors else "",
        "bound by: what takes longest, explained by --explain",
        f"occupancy: {_OCCUPANCY[plan.hardware.kind]}, and what limits it",
        "waves: pieces of work over the number that run at once",
        f"{levels}: bytes moved at that level over the I/O lower bound" if levels else "",
        ("regs: registers of a thread" if plan.hardware.kind == "gpu" else "regs: vector registers")
        + (" + spilled ones" if spilled else ""),
        "schedules of the same predicted time are listed by --all" if any(plan.num_alike or ()) else "",
    ]
    lines = wrap_text("; ".join(word for word in words if word) + ".", width)
    return lines + meaning_lines(plan.schedules, width, name_templates=bool(plan.joined))


def rejected_lines(plan: Plan) -> list[str]:
    """Return one sentence for each rule that rejected points: its id, the limited quantity, the limit, the point count.

    Of several templates each rule of each of them has its own, and names the template.
    """
    if not plan.joined:
        return _rule_lines(plan.rejected, plan.rules, plan.space_size, "")
    return [
        sentence
        for space in plan.joined
        for sentence in _rule_lines(space.rejected, space.rules, space.size, f" of {space.template}")
    ]


def _rule_lines(rejected: Mapping[str, int] | None, rules: Sequence[Rule], size: int, whose: str) -> list[str]:
    by_id = {rule.id: rule for rule in rules}
    sentences = []
    for rule_id, number in (rejected or {}).items():
        if not number:
            continue
        rule = by_id.get(rule_id)
        needed = f": {rule.needed:,.10g}" if rule and rule.needed is not None else ""
        meaning = f" ({rule.text}{needed}; limit {rule.limit:,.10g})" if rule else ""
        share = units.percent(number / size)
        sentences.append(f"{rule_id}{whose}{meaning} rejected {units.count(number)} points ({share})")
    return sentences


def subset_lines(subset: RankedSubset, most: int, *, width: int = 80) -> list[Line]:
    """Return a subset as a summary: the request and the counts, then its first schedules with their tiles.

    Parameters
    ----------
    subset : RankedSubset
        With at least one schedule.
    most : int
        Schedules to show, at most.
    width : int
        Characters a line.
    """
    workload, hardware = subset.workload, subset.hardware
    schedules, predictions = zip(*itertools.islice(subset.entries(), most), strict=True)
    threads = f", {units.threads(hardware.most_threads)}" if hardware.most_threads else ""
    kept = (
        f"kept: {units.count(subset.num_kept)} of {units.count(subset.num_legal)} legal schedules "
        f"({units.percent(subset.num_kept / subset.num_legal)}), of a space of {units.count(subset.space_size)}; "
        f"order: {subset.guarantee.describe()}"
    )
    names, several = subset.templates, len(subset.templates) > 1
    templates = joined_text(names, subset.accuracy) if several else template_text(workload, hardware, *names)
    cells = [
        ("#", [str(rank) for rank in range(1, len(schedules) + 1)]),
        ("time", [units.duration(prediction.time_s) for prediction in predictions]),
        ("bound by", [prediction.bound_by for prediction in predictions]),
        ("occupancy", [units.percent(prediction.occupancy) for prediction in predictions]),
        ("waves", [units.ratio(prediction.waves) for prediction in predictions]),
        ("regs", [registers_text(prediction) for prediction in predictions]),
    ]
    heading, *rows = table(cells, ("bound by",), width=width)
    lines = paragraph(f"{workload.describe()} on {hardware.name} ({hardware.model}){threads}", width, "bold")
    lines += [*paragraph(templates, width), *paragraph(kept, width)]
    lines += [Line(""), heading]
    for row, schedule in zip(rows, schedules, strict=True):
        items = template_items(schedule, among_several=several) + schedule_items(schedule)
        tiles = wrap_items(items, width, indent="    ")
        lines += [row, *(Line(text, "dim") for text in tiles)]
    if subset.num_kept > len(schedules):
        sentence = (
            f"{units.count(subset.num_kept - len(schedules))} more; --json lists them (at most --most N), --for csv, "
            "triton, kernel-tuner or metaschedule writes them for a tuner"
        )
        lines += [Line(""), *paragraph(sentence, width)]
    return lines

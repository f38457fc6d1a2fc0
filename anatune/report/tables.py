"""Answers as tables of plain text: the ranked schedules of a plan, the known devices, one device's spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.codegen.arithmetic import arithmetic_of
from anatune.core.accuracy import is_plain_sum
from anatune.core.hardware.files import spec_to_toml
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import OptionValue, Schedule
from anatune.model.plan import Plan
from anatune.report import units
from anatune.report.roofline import peak_flop_per_s
from anatune.report.templates import joined_text, template_text
from anatune.report.text import Line, columns, wrapped, wrapped_items
from anatune.templates import template_named
from anatune.templates.base.model import Rule
from anatune.templates.cpu.dot import dot_note

__all__ = [
    "LIMITERS",
    "guarantee_text",
    "hardware_lines",
    "marked_toml",
    "plan_lines",
    "registers_text",
    "rejected_lines",
    "schedule_items",
    "template_items",
    "unverified_keys",
]

LIMITERS = {"registers": "regs", "shared": "smem", "parallel_loop": "loop", "threads": "warps"}
_TENSOR_DTYPE = {"float32": "tf32"}


# ---- plans -------------------------------------------------------------------------------------------------


def plan_lines(plan: Plan, *, width: int = 80, seconds: float | None = None) -> list[Line]:
    """Return a plan as a report: what and where, how sure, and the best schedules with their tiles.

    Parameters
    ----------
    plan : Plan
        What to show, all of its schedules.
    width : int
        Characters a line; no cell or tile is cut for it.
    seconds : float, optional
        How long the planning took.
    """
    lines = [Line(text, "bold") for text in wrapped(_workload_text(plan), width, hanging="  ")]
    lines += [Line(text) for text in wrapped(_hardware_text(plan), width, hanging="  ")]
    lines += [Line(text) for text in wrapped(_template_text(plan), width, hanging="  ")]
    lines += [Line(text) for text in wrapped(_products_text(plan), width, hanging="  ")]
    lines += [Line(text) for text in wrapped(guarantee_text(plan, seconds), width, hanging="  ")]
    for correction in plan.corrections:
        lines += [Line(text) for text in wrapped(correction.describe(), width, hanging="  ")]
    if not plan.schedules:
        return lines
    lines.append(Line(""))
    heading, *rows = columns(_cells(plan), left=(4, 5), width=width)
    lines.append(Line(heading, "bold"))
    for row, schedule, alike in zip(rows, plan.schedules, _alike_items(plan), strict=True):
        lines.append(Line(row, "green" if row is rows[0] else ""))
        items = [*template_items(schedule, among_several=bool(plan.joined)), *schedule_items(schedule), *alike]
        tiles = wrapped_items(items, width, indent="    ", hanging="      ")
        lines += [Line(text, "dim") for text in tiles]
    lines.append(Line(""))
    lines += [Line(text, "dim") for text in _legend(plan, width)]
    return lines


def _template_text(plan: Plan) -> str:
    if plan.joined:
        return joined_text(plan.templates, plan.accuracy)
    return template_text(plan.workload, plan.hardware, plan.template)


def _products_text(plan: Plan) -> str:
    """Return by which instruction a CPU multiplies narrow elements, "" where nothing is to be said."""
    simd = next((schedule.options.get("simd_axis") for schedule in plan.schedules), None)
    if not isinstance(plan.hardware, CpuSpec) or not isinstance(simd, str):
        return ""
    extension = str(plan.schedules[0].options.get("extension", ""))
    note = dot_note(plan.workload, plan.hardware, simd, extension=extension)
    return f"products: {note}" if note else ""


def _alike_items(plan: Plan) -> list[list[str]]:
    """Return what to say behind each schedule of its ties."""
    word = "" if plan.alike_is_exact else "at least "
    counts = plan.num_alike or [0] * len(plan.schedules)
    return [[f"and {word}{units.count(count)} alike"] if count else [] for count in counts]


def _workload_text(plan: Plan) -> str:
    workload = plan.workload
    name = "+".join((workload.operator, *workload.epilogue))
    loops = " ".join(f"{axis}={extent}" for axis, extent in workload.extents.items())
    moved = f"at least {units.size(workload.compulsory_bytes)} to and from memory"
    return f"{name} {loops}, {workload.dtype}: {units.flop(workload.flop)}, {moved}"


def _hardware_text(plan: Plan) -> str:
    hardware, dtype = plan.hardware, plan.workload.dtype
    peak = units.flop_rate(peak_flop_per_s(hardware, dtype, plan.template))
    unit = dtype
    if template_named(plan.template).tensor_cores:
        unit = f"{_TENSOR_DTYPE.get(dtype, dtype)} on tensor cores"
    threads = f", {units.threads(plan.threads)}" if plan.threads is not None else ""
    return (
        f"on {hardware.model} ({hardware.name}, {hardware.arch}){threads}: peak {peak} in {unit}, "
        f"DRAM {units.rate(hardware.dram.bandwidth_bytes_per_s)}"
    )


def guarantee_text(plan: Plan, seconds: float | None = None) -> str:
    """Return in one sentence how sure the ranking is, what it looked at and how long that took."""
    guarantee = plan.guarantee
    parts = [f"{units.count(guarantee.num_evaluated)} points evaluated"]
    if guarantee.num_bounded:
        parts.append(f"{units.count(guarantee.num_bounded)} partial points bounded")
    parts.append(f"space of {units.count(plan.space_size)} points")
    if plan.num_legal is not None:
        parts.append(f"{units.count(plan.num_legal)} legal")
    took = f"; {units.duration(seconds)}" if seconds is not None else ""
    return f"guarantee: {guarantee.describe()}; {', '.join(parts)}{took}"


def _cells(plan: Plan) -> list[list[str]]:
    """Return the table of a plan, the heading first."""
    counts_bytes = plan.workload.flop == 0
    levels = _levels(plan)
    heading = ["#", "time", "GB/s" if counts_bytes else "GFLOP/s", "peak", "bound by", "occupancy", "waves"]
    heading += [f"x{level.upper()}" for level in levels]
    rows = [[*heading, "regs"]]
    for rank, prediction in enumerate(plan.predictions, start=1):
        if counts_bytes:
            rate = plan.workload.compulsory_bytes / prediction.time_s
            peak = plan.hardware.dram.bandwidth_bytes_per_s
        else:
            rate = prediction.gflop_per_s * 1e9
            peak = peak_flop_per_s(plan.hardware, plan.workload.dtype, plan.template)
        limiter = LIMITERS.get(prediction.occupancy_limiter, prediction.occupancy_limiter)
        rows.append(
            [
                str(rank),
                units.duration(prediction.time_s),
                f"{rate / 1e9:.0f}" if rate >= 99.5e9 else f"{rate / 1e9:.3g}",
                units.percent(rate / peak).replace(" ", ""),
                prediction.bound_by,
                f"{units.percent(prediction.occupancy).replace(' ', '')} {limiter}".rstrip(),
                units.ratio(prediction.waves),
                *(_ratio(prediction.traffic_over_bound.get(level)) for level in levels),
                registers_text(prediction),
            ]
        )
    return rows


def _levels(plan: Plan) -> list[str]:
    """Return the memory levels that a prediction of the plan tells."""
    return list(dict.fromkeys(level for one in plan.predictions for level in one.traffic_over_bound))


def _ratio(value: float | None) -> str:
    return "-" if value is None else units.ratio(value)


def registers_text(prediction: Prediction) -> str:
    """Return the registers of a thread or microkernel, and after a plus those that are spilled."""
    resources = prediction.resources
    registers = resources.get("registers_per_thread", resources.get("registers"))
    if registers is None:
        return "-"
    spilled = resources.get("spilled_registers", 0.0)
    return f"{registers:.0f}+{spilled:.0f}" if spilled else f"{registers:.0f}"


def _legend(plan: Plan, width: int) -> list[str]:
    """Return what the columns and the factors of the tiles mean."""
    levels = ", ".join(f"x{level.upper()}" for level in _levels(plan))
    errors = not all(is_plain_sum(schedule.template) for schedule in plan.schedules)
    spilled = any(prediction.resources.get("spilled_registers") for prediction in plan.predictions)
    words = [
        "peak: share of the theoretical peak" + (", of the operations that a plain sum needs" if errors else ""),
        "error: about, of a typical result" if errors else "",
        "waves: work over what the device runs at once",
        f"{levels}: bytes moved at that level over the I/O lower bound" if levels else "",
        "regs: registers" + (" + spilled ones" if spilled else ""),
        "alike: of the same predicted time, listed by --all" if any(plan.num_alike or ()) else "",
    ]
    lines = wrapped("; ".join(word for word in words if word) + ".", width)
    for template in dict.fromkeys(schedule.template for schedule in plan.schedules):
        tiles: dict[str, list[str]] = {}
        for axis, names in template_named(template).levels(plan.workload).items():
            tiles.setdefault(" x ".join(names), []).append(axis)
        whose = f"{template}, " if plan.joined else ""
        for names_text, axes in tiles.items():
            lines += wrapped(f"{whose}tiles of {', '.join(axes)}: {names_text}", width, hanging="  ")
    return lines


def schedule_items(schedule: Schedule) -> list[str]:
    """Return a schedule as items: ``i 8x2x16x2x1``, ``k 64x4x4``, ``unroll 512``, ``A by 4``; options last."""
    words = [f"{axis} {'x'.join(map(str, factors))}" for axis, factors in schedule.tiles.items()]
    words.append(f"unroll {schedule.unroll}")
    words += [f"{tensor} by {width}" for tensor, width in schedule.vector.items()]
    return words + [f"{name} {_option_text(value)}" for name, value in schedule.options.items()]


def template_items(schedule: Schedule, *, among_several: bool) -> list[str]:
    """Return what to say before a schedule's items: its template among several, and how far off its results may be."""
    items = [schedule.template] if among_several else []
    if not is_plain_sum(schedule.template):
        items.append(f"error {arithmetic_of(schedule).expected_relative_error:.1g}")
    return items


def _option_text(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "-".join(map(str, value)) if value else "none"
    return str(value)


def rejected_lines(plan: Plan) -> list[str]:
    """Return one sentence a rule that rejected points: its id, what it limits, the limit, how many points.

    Of several templates each rule of each of them has its own, and names the template.
    """
    if not plan.joined:
        return _rejected(plan.rejected, plan.rules, plan.space_size, "")
    return [
        sentence
        for space in plan.joined
        for sentence in _rejected(space.rejected, space.rules, space.size, f" of {space.template}")
    ]


def _rejected(rejected: Mapping[str, int] | None, rules: Sequence[Rule], size: int, whose: str) -> list[str]:
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


# ---- devices -----------------------------------------------------------------------------------------------


def hardware_lines(specs: Sequence[GpuSpec | CpuSpec]) -> list[Line]:
    """Return the known devices as a table: name, kind, float32 peak, DRAM bandwidth, product."""
    rows = [["name", "kind", "FP32 peak", "DRAM", "device"]]
    for spec in specs:
        rows.append(
            [
                spec.name,
                spec.kind,
                units.flop_rate(spec.compute.fp32_peak_flop_per_s),
                units.rate(spec.dram.bandwidth_bytes_per_s),
                spec.model,
            ]
        )
    heading, *texts = columns(rows, left=(0, 1, 4))
    return [Line(heading, "bold"), *(Line(text) for text in texts)]


def unverified_keys(spec: GpuSpec | CpuSpec) -> list[str]:
    """Return the numbers of a spec that nobody has verified, as dotted keys ("l2.latency_cycles")."""
    return [
        f"{group}.{key}" for group in spec.__struct_fields__ for key in getattr(getattr(spec, group), "unverified", ())
    ]


def marked_toml(spec: GpuSpec | CpuSpec) -> str:
    """Return the spec's TOML text with a comment behind every number that nobody has verified."""
    doubtful = set(unverified_keys(spec))
    group, lines = "", []
    for line in spec_to_toml(spec).splitlines():
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        key = line.partition(" = ")[0]
        lines.append(f"{line}  # unverified" if f"{group}.{key}" in doubtful else line)
    return "\n".join(lines) + "\n"

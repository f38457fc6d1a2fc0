"""Explanation of a plan: sentences with numbers that say why the best schedule is the best.

All of it is read from the plan, so that it serves every kind of device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from anatune.codegen.arithmetic import find_arithmetic
from anatune.core.accuracy import accuracy_of, error_of, is_plain_sum
from anatune.core.generation import generation_limit
from anatune.core.hardware.spec import DOT_INSTRUCTIONS
from anatune.core.prediction import Prediction
from anatune.model import joint
from anatune.model.alternatives import Alternative, find_alternatives
from anatune.model.plan import Plan
from anatune.report import units
from anatune.report.devices import unverified_keys
from anatune.report.plans import rejected_lines
from anatune.report.roofline import reachable_share, roofline, workload_peak
from anatune.report.schedules import schedule_items
from anatune.report.text import Line, wrap_text
from anatune.templates import get_template

MATERIAL_SHARE = 0.02
"""A schedule differs materially if its time, or a part of it, differs by this share of the best schedule's time."""

MAX_STEPS = 4
"""Number of single changes of the best schedule that are listed."""

_CUDA_CORES = ("compute.fma_latency_cycles", "compute.reachable_fraction")
"""Keys of a GPU's spec that have no meaning for its tensor cores."""

MAX_PARTS = 3
"""Number of parts that a comparison names: those that differ most."""


class _PartWords(NamedTuple):
    """Words for a part of a prediction: its meaning, the remedy that shortens it, and its group in the spec."""

    what: str
    remedy: str
    group: str


_PARTS: dict[str, _PartWords] = {
    "fma": _PartWords("the multiply-add units", "fewer operations, or a device with a higher peak", "compute"),
    "mma": _PartWords(
        "the tensor cores", "fewer operations, or a device whose tensor cores are faster", "tensor_cores"
    ),
    "issue": _PartWords(
        "issuing instructions", "more multiply-adds for each load and address (larger register tiles)", "compute"
    ),
    "shared": _PartWords("shared-memory bandwidth", "more reuse in registers or fewer bank conflicts", "shared_memory"),
    "l2": _PartWords("the traffic from L2", "larger tiles in the level before it", "l2"),
    "l3": _PartWords("the traffic from L3", "larger tiles in L2", "l3"),
    "dram": _PartWords("the traffic from DRAM", "tiles that are reused more often before they leave the cache", "dram"),
    "functions": _PartWords("the special function units", "fewer powers and reciprocals", "compute"),
    "latency": _PartWords(
        "waiting for results and memory", "more independent work: more warps or more accumulators", "compute"
    ),
    "tail": _PartWords("the last, partly filled wave", "a number of blocks that fills whole waves", "compute"),
    "launch": _PartWords("starting the kernel", "fusing this work with another kernel", "launch"),
    "power": _PartWords("the power limit of the device", "fewer operations, or narrower operands", "tensor_cores"),
    "split": _PartWords("adding up partial sums", "fewer partial sums", "l2"),
    "spill": _PartWords("registers that do not fit and go to memory", "smaller register tiles", "registers"),
    "load": _PartWords("the load and store ports", "more reuse of loaded vectors (a squarer microkernel)", "compute"),
    "overhead": _PartWords("loops and calls around the microkernel", "longer microkernel runs", "compute"),
    "packing": _PartWords("copying operands into tile order", "packing ahead, or reusing the packed tiles more", "l1"),
    "product": _PartWords(
        "the products of transformed tiles",
        "fewer of them: larger output tiles, where the accuracy admits them",
        "compute",
    ),
    "input": _PartWords(
        "transforming the input", "larger output tiles, or more output channels that share it", "compute"
    ),
    "output": _PartWords("transforming the products back", "larger output tiles, or more input channels", "compute"),
    "start": _PartWords("starting the threads", "fewer threads, or more work for each", "compute"),
}


def _part(name: str) -> _PartWords:
    return _PARTS.get(name, _PartWords(f"the part {name!r}", f"less work for {name!r}", name))


def material_runner_up(plan: Plan) -> int | None:
    """Return the index of the first schedule that differs materially from the best; None if there is none."""
    best = plan.predictions[0]
    threshold = MATERIAL_SHARE * best.time_s
    for index, other in enumerate(plan.predictions[1:], start=1):
        parts = best.parts.keys() | other.parts.keys()
        differences = [abs(other.parts.get(part, 0.0) - best.parts.get(part, 0.0)) for part in parts]
        if max([other.time_s - best.time_s, *differences]) > threshold or other.bound_by != best.bound_by:
            return index
    return None


def explanation(plan: Plan, steps: Sequence[Alternative] = ()) -> list[str]:
    """Return the explanation of a plan as sentences.

    The sentences say, in this order: what is proven, the binding resource of the best schedule, why it beats the first
    schedule that differs materially, what would have to change to be faster, its traffic over the I/O lower bounds,
    how many points each rule rejected, why no kernel can be generated (if so), and which numbers of the device's spec
    are unverified.

    Parameters
    ----------
    plan : Plan
        Should hold more schedules than are shown, so that one of them differs materially.
    steps : sequence of Alternative
        Schedules that differ from the best in one choice (`model.alternatives.find_alternatives`), the slowest first.
    """
    if not plan.schedules:
        return [nothing_legal_text(plan)]
    return [
        *_guarantee(plan),
        binding_text(plan.predictions[0]),
        *_other_templates(plan),
        *_comparison(plan),
        *_steps(plan, steps),
        *_roofline(plan),
        *_traffic(plan),
        *_rules(plan),
        *_kernels(plan),
        *_doubts(plan),
    ]


def explanation_lines(plan: Plan, steps: Sequence[Alternative] = (), *, width: int = 80) -> list[Line]:
    """Return the explanation as lines of a report."""
    lines = [Line(""), Line("why", "bold")]
    for sentence in explanation(plan, steps):
        lines += [Line(text) for text in wrap_text(sentence, width, indent="- ", hanging="  ")]
    return lines


def nothing_legal_text(plan: Plan) -> str:
    """Return one line with the reason why a plan holds no schedule, and the count and limit of each rule."""
    where = f"{plan.workload.describe()} on {plan.hardware.name}"
    if plan.rejected is None or plan.num_legal:
        return f"{where}: no legal schedule was found within the time limit; use a longer --time-limit, or none"
    reasons = "; ".join(rejected_lines(plan))
    return (
        f"{where}: none of {units.count(plan.space_size)} schedules is legal: {reasons}; "
        "use a device with higher limits, other extents or another dtype"
    )


def _guarantee(plan: Plan) -> list[str]:
    """Return a sentence about the proof of the ranking."""
    guarantee, total = plan.guarantee, units.count(plan.space_size)
    if guarantee.kind == "exhaustive":
        spaces, templates = "the space", "this template"
        if plan.joined:
            spaces, templates = f"{len(plan.joined)} spaces", f"the templates {' and '.join(plan.templates)}"
        sure = (
            f"Exhaustive: all {total} points of {spaces} were evaluated, so no schedule of {templates} is predicted to "
            "be faster."
        )
    elif guarantee.kind == "certified":
        sure = (
            f"Certified: {units.count(guarantee.num_evaluated)} of {total} points were evaluated. All others are "
            f"excluded by {units.count(guarantee.num_bounded)} bounds, which never exceed the predicted time of the "
            "points they cover, so evaluating every point would give the same answer."
        )
    else:
        sure = (
            f"Best found: the time limit ended the search after {units.count(guarantee.num_evaluated)} of {total} "
            "points. The bounds of the other points prove that the best schedule takes at most "
            f"{units.percent(guarantee.gap)} more predicted time than the best possible one."
        )
    return [f"{sure} This is about predicted times; nothing was measured."]


def _other_templates(plan: Plan) -> list[str]:
    """Return the predicted times of the best schedules of other templates, and the rounding error of the best one."""
    best, sentences = plan.schedules[0], []
    for space in plan.joined:
        if space.template == best.template:
            continue
        if space.left_out is not None:
            description = space.left_out.describe(space.template)
            sentences.append(f"{description[0].upper()}{description[1:]}.")
            continue
        if space.best_s is None:
            sentences.append(f"The template {space.template} has no legal schedule for this workload and device.")
            continue
        times = space.best_s / plan.predictions[0].time_s
        sentences.append(
            f"The best schedule of the template {space.template} would take {units.duration(space.best_s)}, "
            f"{units.ratio(times)} times as long as this one, of the template {best.template}."
        )
    if not is_plain_sum(best.template):
        error = find_arithmetic(best).expected_relative_error
        plain = f"--template {plan.templates[0]} computes" if plan.joined else "other templates compute"
        sentences.append(
            f"Its kernel does not compute plain sums of products: expect errors of about {error:.1g} of a typical "
            f"result, at most {error_of(best):.1g} of the largest (accuracy {accuracy_of(best)}); {plain} plain sums."
        )
    return sentences


def _seconds_by_part(prediction: Prediction) -> list[tuple[str, float]]:
    """Return (part, seconds) without the zeros, longest first."""
    parts = [(name.removesuffix("_s"), value) for name, value in prediction.parts.items() if value > 0]
    return sorted(parts, key=lambda pair: -pair[1])


def binding_text(best: Prediction, who: str = "The best schedule") -> str:
    """Return a sentence with the parts of a schedule's time; it calls the schedule `who`."""
    listed = ", ".join(f"{name} {units.duration(value)}" for name, value in _seconds_by_part(best))
    part = _part(best.bound_by)
    binding = best.parts.get(f"{best.bound_by}_s", 0.0)
    return (
        f"{who} takes {units.duration(best.time_s)} and is bound by {best.bound_by} ({part.what}): "
        f"{units.duration(binding)}, {units.percent(binding / best.time_s)} of its time. "
        f"Time of each part alone: {listed}. Parts overlap, so their times do not add up."
    )


def _comparison(plan: Plan) -> list[str]:
    """Return sentences that compare the best schedule with the first one that differs materially."""
    index = material_runner_up(plan)
    best = plan.predictions[0]
    if index is None:
        if len(plan.predictions) == 1:
            return ["The plan holds only this schedule, so there is no other one to compare it with."]
        slowest = plan.predictions[-1]
        return [
            f"The next {len(plan.predictions) - 1} schedules are nearly the same to the model: their predicted times "
            f"are within {units.percent(slowest.time_s / best.time_s - 1)} of the best, and no part differs by more "
            f"than {units.percent(MATERIAL_SHARE)} of that time. Measure a few of them."
        ]
    other = plan.predictions[index]
    slower = other.time_s / best.time_s - 1
    tiles = ", ".join(schedule_items(plan.schedules[index])[: len(plan.workload.axes)])
    by = f"slower by {units.percent(slower)}" if slower > 0 else "predicted to take as long"
    sentences = [
        f"The first schedule that differs materially is number {index + 1} ({tiles}): {units.duration(other.time_s)}, "
        f"{by}, bound by {other.bound_by}."
    ]
    for verb, listed in zip(("more", "less"), changed_parts(best, other), strict=True):
        if listed:
            sentences.append(f"Number {index + 1} against the best needs {verb} time for: {listed}.")
    circumstances = circumstances_of(best, other)
    if circumstances:
        sentences.append(f"Number {index + 1} against the best: {'; '.join(circumstances)}.")
    return sentences


def changed_parts(best: Prediction, other: Prediction) -> tuple[str, str]:
    """Return the parts that take more time in another schedule than in the best, and those that take less."""
    changed = [
        (other.parts.get(name, 0.0) - best.parts.get(name, 0.0), name)
        for name in dict.fromkeys([*best.parts, *other.parts])
    ]
    changed = sorted((row for row in changed if abs(row[0]) > 0.001 * best.time_s), key=lambda row: -abs(row[0]))
    texts = [
        ", ".join(
            f"{name.removesuffix('_s')} {units.duration(other.parts.get(name, 0.0))} against "
            f"{units.duration(best.parts.get(name, 0.0))}"
            for difference, name in [row for row in changed if (row[0] > 0) is more][:MAX_PARTS]
        )
        for more in (True, False)
    ]
    return texts[0], texts[1]


def _steps(plan: Plan, steps: Sequence[Alternative]) -> list[str]:
    """Return the predicted cost of single changes of the best schedule, the slowest first."""
    best = plan.predictions[0]
    sentences = []
    for step in steps[:MAX_STEPS]:
        more, _ = changed_parts(best, step.prediction)
        circumstances = circumstances_of(best, step.prediction)[:3]
        reasons = "; ".join(([f"more {more}"] if more else []) + circumstances)
        times = step.prediction.time_s / best.time_s
        slower = f"{units.ratio(times)} times as long" if times >= 2 else f"slower by {units.percent(times - 1)}"
        sentences.append(f"With one change, {step.change}: {slower}{f' ({reasons})' if reasons else ''}.")
    return sentences


def circumstances_of(best: Prediction, other: Prediction) -> list[str]:
    """Return the differences in occupancy, waves, traffic and resources."""
    rows = []
    if abs(best.occupancy - other.occupancy) > 1e-3:
        rows.append(
            f"occupancy {units.percent(other.occupancy)} ({other.occupancy_limiter}) against "
            f"{units.percent(best.occupancy)} ({best.occupancy_limiter})"
        )
    pairs = [("waves", best.waves, other.waves)]
    pairs += [
        (f"{level.upper()} traffic over its lower bound", value, other.traffic_over_bound.get(level, value))
        for level, value in best.traffic_over_bound.items()
    ]
    rows += [
        f"{name} {units.ratio(there)} against {units.ratio(here)}"
        for name, here, there in pairs
        if abs(there - here) > 0.005 * abs(here)
    ]
    for name, here in best.resources.items():
        there = other.resources.get(name, here)
        if there != here:
            label = {"counted_registers": "registers that limit occupancy"}.get(
                name, name.removesuffix("_bytes").replace("_", " ")
            )
            show = units.size if "bytes" in name else units.count
            rows.append(f"{label} {show(there)} against {show(here)}")
    return rows


def _roofline(plan: Plan) -> list[str]:
    """Return the lower bounds on the time, and what would have to change to be faster than the best schedule."""
    best, floors = plan.predictions[0], roofline(plan.workload, plan.hardware, plan.template)
    moving = (
        f"{units.duration(floors.dram_s)} for {units.size(plan.workload.compulsory_bytes)} of compulsory traffic at "
        f"{units.rate(plan.hardware.dram.bandwidth_bytes_per_s)}"
    )
    if plan.workload.flop:
        template = plan.template
        peak = units.flop_rate(workload_peak(plan.workload, plan.hardware, template))
        reached = units.percent(reachable_share(plan.hardware, template))
        moving = (
            f"{units.duration(floors.fma_s)} for the operations alone ({units.flop(plan.workload.flop)} at {peak}; "
            f"{units.duration(floors.fma_reachable_s)} at the {reached} of it that compiled code reaches), nor less "
            f"than {moving}"
        )
    times = units.ratio(best.time_s / max(floors.fma_s, floors.dram_s))
    saves = not all(map(is_plain_sum, plan.templates))
    bound = "the larger of these two lower bounds" if plan.workload.flop else "this lower bound"
    who = "No schedule that multiplies every pair" if saves and plan.workload.flop else "No schedule"
    sentences = [f"{who} can take less than {moving}; the best one takes {times} times {bound}."]
    part = _part(best.bound_by)
    others = [(name, value) for name, value in _seconds_by_part(best) if name != best.bound_by]
    following = (
        f"; the next part is {others[0][0]} with {units.duration(others[0][1])}, which limits the gain"
        if others
        else ""
    )
    sentences.append(f"A faster schedule needs less time for {best.bound_by}: {part.remedy}{following}.")
    return sentences


def _traffic(plan: Plan) -> list[str]:
    """Return a sentence with the best schedule's traffic over the I/O lower bound for each level of memory."""
    ratios = plan.predictions[0].traffic_over_bound
    if not ratios:
        return []
    listed = ", ".join(f"{level.upper()} {units.ratio(value)}" for level, value in ratios.items())
    return [
        f"Bytes moved over the I/O lower bound (the fewest bytes that any schedule has to move): {listed}. "
        "1.00 is optimal; more costs time only if that level of memory is the binding resource."
    ]


def _rules(plan: Plan) -> list[str]:
    """Return sentences that say how many points each rule rejected."""
    searched = plan.searched
    if any(space.rejected is None for space in searched) or (plan.rejected is None and not searched):
        return ["The time limit ended the search before all illegal points were counted."]
    rejected = rejected_lines(plan)
    counts = plan.rejected or {rule: n for space in searched for rule, n in (space.rejected or {}).items() if n}
    searched_rules = {rule.id for space in searched for rule in space.rules} or {rule.id for rule in plan.rules}
    silent = [rule.id for rule in plan.rules if rule.id in searched_rules and not counts.get(rule.id)]
    sentences = [f"Rule {text}." for text in rejected]
    if silent:
        sentences.append(f"Rules that rejected nothing: {', '.join(silent)}.")
    if plan.num_legal is not None:
        share = units.percent(plan.num_legal / plan.space_size)
        sentences.append(f"Legal: {units.count(plan.num_legal)} of {units.count(plan.space_size)} points ({share}).")
    return sentences


def _kernels(plan: Plan) -> list[str]:
    """Return the reason why no kernel can be generated from these schedules, or an empty text."""
    limit = generation_limit(plan.workload, plan.hardware, plan.templates)
    return [f"These schedules can be ranked, but no kernel can be generated: {limit}."] if limit else []


def _doubts(plan: Plan) -> list[str]:
    """Return sentences that name the unverified numbers of the device's spec that the plan uses."""
    keys = [key for key in unverified_keys(plan.hardware) if not _is_unused(key, plan)]
    name = plan.hardware.name
    if not keys:
        return [f"All numbers of the spec {name!r} that this plan uses are verified."]
    group = _part(plan.predictions[0].bound_by).group
    binding = [key for key in keys if key.startswith(f"{group}.")]
    sentence = f"This plan uses unverified numbers of the spec {name!r}: {', '.join(keys)}."
    if binding:
        sentence += f" The binding resource depends on {', '.join(binding)}: check these first."
    return [f"{sentence} `anatune hw show {name}` shows the sources."]


def _is_unused(key: str, plan: Plan) -> bool:
    """Return whether an unverified number is for another dtype, or for units that the plan does not use."""
    dtype = plan.workload.dtype
    on_tensor_cores = get_template(plan.template).tensor_cores
    if key.startswith("tensor_cores.") != on_tensor_cores and (key in _CUDA_CORES or key.startswith("tensor_cores.")):
        return True
    if key.split(".")[0] in itertools.chain(*DOT_INSTRUCTIONS.values()):
        return key.split(".")[0] not in DOT_INSTRUCTIONS.get(dtype, ())
    if key.startswith("tiles."):
        return plan.schedules[0].options.get("extension") != "amx"
    return key == "compute.fp16_rate" or (key == "compute.int8_rate" and dtype != "int8")


def explain(answer: Plan) -> str:
    """Return the explanation of a plan as text; see `Plan.explain`."""
    return "\n".join(explanation(answer, steps_from(answer)))


def steps_from(answer: Plan) -> list[Alternative]:
    """Return schedules that differ from a plan's best in one choice, with their predictions."""
    if not answer.schedules:
        return []
    return find_alternatives(
        joint.make_applied_model(answer, answer.template, answer.correction), answer.schedules[0], MATERIAL_SHARE
    )

"""The pages of a plan, and of what ``anatune prune`` keeps of a space."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from anatune.core.accuracy import is_plain_sum
from anatune.core.show import duration_unit
from anatune.model.plan import Plan
from anatune.model.pruning.subset import Subset
from anatune.pages.device import device_section
from anatune.pages.page import Cell, Column, Facts, Figure, Page, Section, Slider, Sliders, Table
from anatune.pages.space import space_sections
from anatune.plots.candidates import Candidate, Candidates, as_candidates, candidates_of, saved_work
from anatune.plots.plans import plot_footprints, plot_occupancy, plot_roofline, plot_times
from anatune.plots.what_if import Answer, Question, plot_what_if, what_if
from anatune.report import units
from anatune.report.devices import unverified_keys
from anatune.report.explain import explanation, steps_from
from anatune.report.plans import FILLING, place_text
from anatune.report.roofline import ceiling, roofline
from anatune.templates.base.model import Progress
from anatune.version import __version__

WHAT_IF_S = 20.0
"""Seconds that all plans of the sliders take together, about, unless a caller says otherwise."""


def plan_page(
    plan: Plan, *, what_if_s: float | None = WHAT_IF_S, progress: Progress | None = None, seed: int = 0
) -> Page:
    """Return the page of a plan: ``plan_page(anatune.plan(...)).write("plan.html")``.

    The roofline with candidates at each memory level, the parts of the best times, how schedules fill the device, what
    is illegal, the space, a table of candidates, the explanation, sliders ("what if"), the sources of the device's
    numbers. A plan of about 64 schedules fills it well.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    what_if_s : float, optional
        Seconds that the plans of the sliders may take together, about; 0: no sliders; None: as long as they need.
    progress : callable, optional
        Called with the share of the sliders' plans that are done.
    seed : int
        Of the schedules that are drawn.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    """
    shown = candidates_of(plan, seed)
    questions = [] if what_if_s == 0.0 else what_if(plan, time_limit_s=what_if_s, progress=progress)
    sections = [
        _summary(plan),
        _roofline(plan, shown),
        _times(plan),
        _filling(plan, shown),
        *space_sections(plan, shown),
        _table(shown),
        Section(
            "Why this one",
            ["How the best schedule compares, in sentences."],
            points=explanation(plan, steps_from(plan)),
        ),
        *([_what_if(plan, questions)] if questions else []),
        device_section(plan.hardware),
    ]
    threads = "" if plan.threads is None else f", {units.threads(plan.threads)}"
    lead = [
        f"Schedules of {plan.workload.describe()} on {place_text(plan.hardware)}{threads}, ranked by the "
        "analytical model alone: nothing was measured."
    ]
    return Page(f"{_name_of(plan)} on {plan.hardware.name}", sections, lead, _made_by())


def _made_by() -> str:
    """Return what the foot of every page says."""
    return f"Made by anatune {__version__}. The page needs no network: everything it shows is in the file."


def _name_of(plan: Plan) -> str:
    """Return what a plan is of, in short, for titles."""
    sizes = " x ".join(str(extent) for extent in plan.workload.extents.values())
    return f"{'+'.join((plan.workload.operator, *plan.workload.epilogue))} {sizes} {plan.workload.formats}"


def _summary(plan: Plan) -> Section:
    best = plan.predictions[0]
    floors = roofline(plan.workload, plan.hardware, plan.template)
    floor_s = max(floors.fma_s, floors.dram_s)
    floor = "the least possible" if is_plain_sum(plan.template) else "the least of a plain sum"
    work, most = ceiling(plan.workload, plan.hardware, plan.template)
    speed = work / best.time_s
    told = (units.flop_rate if plan.workload.flop else units.rate)(speed)
    share = speed / most
    of_what = "the peak" if plan.workload.flop else "DRAM's bandwidth"
    if (saved := saved_work(plan).get(plan.best.template)) is not None:
        of_what = f"the peak, {units.percent(share / saved)} of the effective one"
    facts = Facts(
        [
            ("predicted time", units.duration(best.time_s), f"{units.ratio(best.time_s / floor_s)} times {floor}"),
            ("speed", told, f"{units.percent(share)} of {of_what}"),
            ("bound by", best.bound_by, f"{units.duration(best.parts.get(f'{best.bound_by}_s', 0.0))} alone"),
            (FILLING[plan.hardware.kind].share, units.percent(best.occupancy),
             f"limited by {best.occupancy_limiter.replace('_', ' ')}"),
            ("how sure", plan.guarantee.describe(), "of the order, not of the times"),
            ("unverified numbers", str(len(unverified_keys(plan.hardware))), f"of the spec {plan.hardware.name!r}"),
        ]
    )  # fmt: skip
    return Section("In short", [_certificate(plan), f"Best schedule: {plan.best.describe()}."], [facts])


def _certificate(plan: Plan) -> str:
    """Return in plain words what is proven."""
    guarantee, size = plan.guarantee, units.count(plan.space_size)
    if guarantee.kind == "exhaustive":
        told = f"Every one of the {size} schedules was evaluated: by the model, none is faster than the first."
    elif guarantee.kind == "certified":
        told = (
            f"The space has {size} schedules. {units.count(guarantee.num_evaluated)} of them were evaluated; every "
            "other one is proven to be no faster: for whole groups of schedules the model gives a time that none of "
            f"them can beat, and {units.count(guarantee.num_bounded)} such bounds lie above the times listed here. The "
            "answer is the one that evaluating all of them would have given."
        )
    else:
        told = (
            f"The time limit ended the search among {size} schedules. What was not looked at may be faster, but by the "
            f"model's bounds the first one takes at most {units.percent(guarantee.gap)} more than the best possible "
            "time."
        )
    return f"{told} This says how sure the order is, not how right the model is: only a measurement tells that."


def _roofline(plan: Plan, shown: Candidates) -> Section:
    work = "operations" if plan.workload.flop else "elements"
    words = [
        f"{shown.describe()} Each is a point at every memory level: {work} for each byte that crosses the level, and "
        f"{work} a second. No point of a level can lie above its slanted line (the bandwidth) or above the peak; "
        "none can lie to the right of its dotted line, the I/O lower bound. Diamonds are the best ones. Dashed lines "
        "are what compiled code and copies reach of peak and DRAM."
    ]
    for template, times in saved_work(plan).items():
        why = "leave out products with padding" if is_plain_sum(template) else "need fewer multiplications"
        words.append(
            f"Operations are those of the plain sum. Schedules of the template {template} {why}, up to "
            f"{units.ratio(times)} times fewer operations: their speeds are effective ones, with open markers, and "
            "their roof is their effective peak, that many times the peak."
        )
    return Section("Roofline", words, [Figure(plot_roofline(plan, shown))])


def _times(plan: Plan) -> Section:
    words = [
        "The pieces of a thick bar add up to the predicted time: the parts that take longest one after another, such "
        "as products with their latency and the last blocks, or one level of memory; what these do not hide of the "
        "others; and what nothing overlaps. The thin bars below are seconds that each part would need alone, at the "
        "same time as others. A thin bar may be longer than the first piece of the thick one, which then takes longer "
        "with the parts behind it; “bound by” names the longest single part."
    ]
    if plan.corrections:
        words.append("Bars are the analytical model's; the upright mark is the time with the learned correction.")
    return Section("Where the time goes", words, [Figure(plot_times(plan))])


def _filling(plan: Plan, shown: Candidates) -> Section:
    filling, footprints = FILLING[plan.hardware.kind], plot_footprints(plan, shown)
    words, figures = [filling.about], [Figure(plot_occupancy(plan, shown))]
    if footprints is not None:
        figures.append(Figure(footprints))
        words.append("A tile left of the dashed line fits its cache. Each schedule is a point for each cache.")
    return Section(filling.heading, words, figures)


def _table(shown: Candidates) -> Section:
    words = f"{shown.describe()} Click a heading to sort, its lens to filter by it (numbers: less, greater, between)."
    return Section("Candidates", [words], [_candidate_table(shown, "Candidates")])


_Field = tuple[Column, Callable[[Candidate], Cell]]


def _candidate_table(shown: Candidates, caption: str) -> Table:
    """Return candidates as a table: schedule, times, what binds, how the device is filled; traffic, resources."""
    plan = shown.plan
    scale, unit = duration_unit(plan.predictions[0].time_s)
    floors, filling = roofline(plan.workload, plan.hardware, plan.template), FILLING[plan.hardware.kind]
    peak_s = floors.fma_s if plan.workload.flop else floors.dram_s
    several = len({one.schedule.template for one in shown}) > 1
    fields: list[_Field] = [
        (Column("#", help="place in the plan; drawn ones have none"), lambda one: one.rank),
        (Column("schedule", True), lambda one: one.schedule.describe()),
        (Column(f"time ({unit})", help="predicted"), lambda one: one.prediction.time_s / scale),
        (
            Column("peak (%)", help="share of the theoretical peak, or of DRAM's bandwidth where nothing is computed"),
            lambda one: 100.0 * peak_s / one.prediction.time_s,
        ),
        (Column("bound by", True), lambda one: one.prediction.bound_by),
        (Column(f"{filling.share} (%)"), lambda one: 100.0 * one.prediction.occupancy),
        (Column(filling.rounds), lambda one: one.prediction.waves),
    ]
    if several:
        fields.append((Column("template", True), lambda one: one.schedule.template))
    fields += [_traffic_field(level) for level in shown.levels]
    known = {key for one in shown for key in one.prediction.resources}
    fields += [_resource_field(*number) for number in _RESOURCES if known & {*number[0]}]
    rows = [[cell(one) for _, cell in fields] for one in shown]
    return Table([column for column, _ in fields], rows, caption)


_RESOURCES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("registers_per_thread", "registers"), "registers", "of a thread, or of the microkernel"),
    (("shared_bytes_per_block",), "shared (KiB)", "shared memory of a block"),
    (("threads_per_block",), "threads", "of a block"),
    (("blocks",), "blocks", "of the grid"),
    (("threads",), "cores", "that work"),
    (("l1_tile_bytes",), "L1 tile (KiB)", "bytes of the tile for L1"),
    (("l2_tile_bytes",), "L2 tile (KiB)", "bytes of the tile for L2"),
)
"""Resources of a prediction that have a column: their keys (the first one that is known), name, and meaning."""


def _resource_field(keys: tuple[str, ...], name: str, meaning: str) -> _Field:
    def cell(one: Candidate) -> Cell:
        value = next((one.prediction.resources[key] for key in keys if key in one.prediction.resources), None)
        if value is None:
            return None
        return value / 1024 if name.endswith("(KiB)") else int(value)

    return Column(name, help=meaning, is_detail=True), cell


def _traffic_field(level: str) -> _Field:
    meaning = "bytes at that level over the I/O lower bound"
    return (
        Column(f"{level.upper()} / bound", help=meaning, is_detail=True),
        lambda one: one.prediction.traffic_over_bound.get(level),
    )


def _what_if(plan: Plan, questions: list[Question]) -> Section:
    plans = sum(len(one.answers) - 1 for one in questions) + 1
    held = "; ".join(f"{one.change.name}: {one.change.held} stay" for one in questions)
    words = [
        "Move a slider: the device is then as its spec says, but for that one number. Each answer is a plan of its "
        f"own ({plans} were made for this page), so that the best schedule may be another. One number changes at a "
        f"time, and everything else is held ({held}).",
    ]
    if plan.corrections:
        words.append("Learned corrections are left out here: they know only the device as it is.")
    sliders = [
        Slider(
            one.change.name,
            [f"{answer.value} ({answer.factor:g}x)" for answer in one.answers],
            one.start,
            [_answer(one, answer) for answer in one.answers],
        )
        for one in questions
    ]
    return Section("What if", words, [Sliders(sliders), Figure(plot_what_if(plan, questions))])


def _answer(question: Question, answer: Answer) -> Facts:
    """Return what a stop of a slider shows."""
    name = question.change.name
    if answer.prediction is None or answer.schedule is None:
        return Facts([(f"{name} {answer.value}", "nothing is legal", "")])
    own, own_schedule = question.answers[question.start].prediction, question.answers[question.start].schedule
    assert own is not None
    assert own_schedule is not None
    share = answer.prediction.time_s / own.time_s - 1.0
    change = "as it is" if abs(share) < 5e-4 else f"{units.percent(abs(share))} {'slower' if share > 0 else 'faster'}"
    kept = "would be illegal" if answer.kept_s is None else units.duration(answer.kept_s)
    sure, there = answer.guarantee.describe(), answer.schedule
    # the same choices, though the schedules are for different devices
    is_same = there.template == own_schedule.template and there.describe() == own_schedule.describe()
    return Facts(
        [
            (f"best time with {name} of {answer.value}", units.duration(answer.prediction.time_s), f"{change}; {sure}"),
            ("bound by", answer.prediction.bound_by, ""),
            ("today's best schedule there", kept, "without planning anew"),
            ("best schedule there", "as today" if is_same else "another", answer.schedule.describe()),
        ]
    )


def prune_page(subset: Subset, plan: Plan, most: int = 1000) -> Page:
    """Return the page of a subset: ``prune_page(anatune.prune(...), anatune.plan(..., template=...))``.

    How much is kept, where the cut lies in the distribution of times, what is illegal, how far good points lie from
    each other, and a table of what is kept.

    Parameters
    ----------
    subset : Subset
        Of a space, or of candidates.
    plan : Plan
        Of the same workload, hardware and template, with at least one schedule: what the space is.
    most : int
        Schedules that the table shows, at most.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    """
    entries = list(itertools.islice(subset.entries(), most))
    cut_s = max(prediction.time_s for _, prediction in entries)
    best_s = min(prediction.time_s for _, prediction in entries)
    every = len(entries) >= subset.num_kept
    last = "the last one kept" if every else f"number {units.count(len(entries))}"
    words = [
        f"{units.count(subset.num_kept)} of {units.count(subset.num_legal)} legal schedules are kept "
        f"({units.percent(subset.num_kept / max(1, subset.num_legal))}): those that deserve a run, by the analytical "
        "model alone. A tuner that measures them leaves out what the model proves or predicts to be slower.",
        f"In the table below, {last} is predicted to take {units.ratio(cut_s / best_s)} times as long as the best.",
    ]
    facts = Facts(
        [
            ("kept", units.count(subset.num_kept), f"of {units.count(subset.num_legal)} legal ones"),
            ("best predicted", units.duration(best_s), ""),
            (f"{last}, predicted", units.duration(cut_s), f"{units.ratio(cut_s / best_s)} times the best"),
        ]
    )
    shown = candidates_of(plan)
    kept = Candidates(plan, as_candidates(plan, entries), [], shown.spaces, every)
    which = "" if every else f" The first {units.count(len(entries))} are shown."
    return Page(
        f"{_name_of(plan)} on {plan.hardware.name}: what to measure",
        [
            Section("In short", words, [facts]),
            *space_sections(plan, shown, cut_s=cut_s),
            Section(
                "What is kept", [f"In predicted order.{which}"], [_candidate_table(kept, "Schedules that are kept")]
            ),
        ],
        [f"Schedules of {plan.workload.describe()} on {plan.hardware.model} for a tuner of one's own."],
        _made_by(),
    )

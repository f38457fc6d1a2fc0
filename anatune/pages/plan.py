"""The pages of a plan, and of what ``anatune prune`` keeps of a space."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from anatune import api
from anatune.core.accuracy import is_plain_sum
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
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
from anatune.report.explain import explanation
from anatune.report.roofline import peak_flop_per_s, roofline
from anatune.templates.base.model import Progress
from anatune.version import __version__

__all__ = ["WHAT_IF_S", "plan_page", "prune_page"]

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
        _why(plan),
        *([_what_if(plan, questions)] if questions else []),
        device_section(plan.hardware),
    ]
    threads = "" if plan.threads is None else f", {units.threads(plan.threads)}"
    lead = [
        f"Schedules of {plan.workload.describe()} on {plan.hardware.model} ({plan.hardware.name}, {plan.hardware.arch})"
        f"{threads}, ranked by the analytical model alone: nothing was measured."
    ]
    return Page(f"{_name_of(plan)} on {plan.hardware.name}", sections, lead, _made_by())


def _made_by() -> str:
    """Return what the foot of every page says."""
    return f"Made by anatune {__version__}. The page needs no network: everything it shows is in the file."


def _name_of(plan: Plan) -> str:
    """Return what a plan is of, in short, for titles."""
    sizes = " x ".join(str(extent) for extent in plan.workload.extents.values())
    return f"{'+'.join((plan.workload.operator, *plan.workload.epilogue))} {sizes} {plan.workload.dtype}"


def _summary(plan: Plan) -> Section:
    best = plan.predictions[0]
    floors = roofline(plan.workload, plan.hardware, plan.template)
    floor_s = max(floors.fma_s, floors.dram_s)
    floor = "the least possible" if is_plain_sum(plan.template) else "the least of a plain sum"
    flop = plan.workload.flop
    speed = (
        (units.flop_rate(flop / best.time_s), peak_flop_per_s(plan.hardware, plan.workload.dtype, plan.template), flop)
        if flop
        else (
            units.rate(plan.workload.compulsory_bytes / best.time_s),
            plan.hardware.dram.bandwidth_bytes_per_s,
            plan.workload.compulsory_bytes,
        )
    )
    share = units.percent(speed[2] / best.time_s / speed[1])
    saved = saved_work(plan).get(plan.best.template)
    peak = (
        "the peak"
        if saved is None
        else f"the peak, {units.percent(flop / best.time_s / speed[1] / saved)} of the effective one"
    )
    busy = "busy cores" if isinstance(plan.hardware, CpuSpec) else "occupancy"
    doubtful = len(unverified_keys(plan.hardware))
    facts = Facts(
        [
            (
                "predicted time",
                units.duration(best.time_s),
                f"{units.ratio(best.time_s / floor_s)} times {floor}",
            ),
            ("speed", speed[0], f"{share} of {peak}" if flop else f"{share} of DRAM's bandwidth"),
            ("bound by", best.bound_by, f"{units.duration(best.parts.get(f'{best.bound_by}_s', 0.0))} alone"),
            (busy, units.percent(best.occupancy), f"limited by {best.occupancy_limiter.replace('_', ' ')}"),
            ("how sure", plan.guarantee.describe(), "of the order, not of the times"),
            ("unverified numbers", str(doubtful), f"of the spec {plan.hardware.name!r}"),
        ]
    )
    return Section("In short", [_certificate(plan), f"Best schedule: {plan.best.describe()}."], [facts])


def _certificate(plan: Plan) -> str:
    """Return in plain words what is proven."""
    guarantee, size = plan.guarantee, units.count(plan.space_size)
    if guarantee.kind == "exhaustive":
        told = f"Every one of the {size} schedules was evaluated: by the model, none is faster than the first."
    elif guarantee.kind == "certified":
        told = (
            f"The space has {size} schedules. {units.count(guarantee.num_evaluated)} of them were evaluated; every "
            "other "
            "one is proven to be no faster: for whole groups of schedules the model gives a time that none of them can "
            f"beat, and {units.count(guarantee.num_bounded)} such bounds lie above the times listed here. The answer "
            "is "
            "the one that evaluating all of them would have given."
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
        "none can "
        "lie to the right of its dotted line, the I/O lower bound. Diamonds are the best ones. Dashed lines are what "
        "compiled code and copies reach of peak and DRAM."
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
        "The pieces of a thick bar add up to the predicted time: the part that binds, what follows it, what it does "
        "not hide of the others, and what nothing overlaps. The thin bars below are seconds that each part would need "
        "alone: they pass at the same time, so that only the longest of them is in the thick bar."
    ]
    if plan.corrections:
        words.append("Bars are the analytical model's; the upright mark is the time with the learned correction.")
    return Section("Where the time goes", words, [Figure(plot_times(plan))])


def _filling(plan: Plan, shown: Candidates) -> Section:
    figures = [Figure(plot_occupancy(plan, shown))]
    footprints = plot_footprints(plan, shown)
    if isinstance(plan.hardware, CpuSpec):
        words = [
            "Small pieces of the parallel loop keep all cores busy, large ones make better use of caches. With fewer "
            "pieces than cores some idle, and the last round is rarely full."
        ]
        if footprints is not None:
            figures.append(Figure(footprints))
            words.append("A tile left of the dashed line fits its cache. Each schedule is a point for each cache.")
        return Section("Cores and caches", words, figures)
    words = [
        "Large blocks load less, but need more registers and shared memory, so that fewer run at once (occupancy), and "
        "there are fewer of them: the last wave is partly filled, and below one wave some SMs idle."
    ]
    return Section("Occupancy and waves", words, figures)


def _table(shown: Candidates) -> Section:
    words = f"{shown.describe()} Click a heading to sort, its lens to filter by it (numbers: less, greater, between)."
    return Section("Candidates", [words], [_candidate_table(shown, "Candidates")])


def _candidate_table(shown: Candidates, caption: str) -> Table:
    """Return candidates as a table: schedule, times, what binds, how the device is filled; traffic, resources."""
    plan = shown.plan
    scale, unit = duration_unit(plan.predictions[0].time_s)
    levels = [level for level in shown.levels if any(level in one.prediction.traffic_over_bound for one in shown)]
    several = len({one.schedule.template for one in shown}) > 1
    numbers = _numbers(shown)
    columns = [
        Column("#", help="place in the plan; drawn ones have none"),
        Column("schedule", True),
        Column(f"time ({unit})", help="predicted"),
        Column(
            "peak (%)", help="share of the device's theoretical peak, or of DRAM's bandwidth where nothing is computed"
        ),
        Column("bound by", True),
        Column("busy cores (%)" if isinstance(plan.hardware, CpuSpec) else "occupancy (%)"),
        Column("pieces a core" if isinstance(plan.hardware, CpuSpec) else "waves"),
        *([Column("template", True)] if several else []),
        *(
            Column(f"{level.upper()} / bound", help="bytes at that level over the I/O lower bound", is_detail=True)
            for level in levels
        ),
        *(Column(name, help=meaning, is_detail=True) for name, meaning, _ in numbers),
    ]

    def row(one: Candidate) -> list[Cell]:
        found = one.prediction
        peak_s = _least_s(plan)
        return [
            one.rank,
            one.schedule.describe(),
            found.time_s / scale,
            100.0 * peak_s / found.time_s,
            found.bound_by,
            100.0 * found.occupancy,
            found.waves,
            *([one.schedule.template] if several else []),
            *(found.traffic_over_bound.get(level) for level in levels),
            *(value(found.resources) for _, _, value in numbers),
        ]

    return Table(columns, [row(one) for one in shown], caption, 10)


def _least_s(plan: Plan) -> float:
    """Return seconds at the theoretical peak, or at DRAM's bandwidth where nothing is computed."""
    floors = roofline(plan.workload, plan.hardware, plan.template)
    return floors.fma_s if plan.workload.flop else floors.dram_s


_Number = tuple[str, str, Callable[[Mapping[str, float]], Cell]]


def _numbers(shown: Candidates) -> list[_Number]:
    """Return the columns of resources that the candidates' templates have: name, meaning, how it is found."""

    def value(*keys: str, scale: float = 1.0) -> Callable[..., Cell]:
        def found(resources: Mapping[str, float]) -> Cell:
            known = next((resources[key] for key in keys if key in resources), None)
            if known is None:
                return None
            return int(known) if scale == 1.0 else known / scale

        return found

    known = {key for one in shown for key in one.prediction.resources}
    wanted: list[tuple[set[str], _Number]] = [
        (
            {"registers_per_thread", "registers"},
            ("registers", "of a thread, or of the microkernel", value("registers_per_thread", "registers")),
        ),
        (
            {"shared_bytes_per_block"},
            ("shared (KiB)", "shared memory of a block", value("shared_bytes_per_block", scale=1024)),
        ),
        ({"threads_per_block"}, ("threads", "of a block", value("threads_per_block"))),
        ({"blocks"}, ("blocks", "of the grid", value("blocks"))),
        ({"threads"}, ("cores", "that work", value("threads"))),
        ({"l1_tile_bytes"}, ("L1 tile (KiB)", "bytes of the tile for L1", value("l1_tile_bytes", scale=1024))),
        ({"l2_tile_bytes"}, ("L2 tile (KiB)", "bytes of the tile for L2", value("l2_tile_bytes", scale=1024))),
    ]
    return [number for keys, number in wanted if keys & known]


def _why(plan: Plan) -> Section:
    return Section(
        "Why this one", ["How the best schedule compares, in sentences."], [], explanation(plan, api.steps_from(plan))
    )


def _what_if(plan: Plan, questions: list[Question]) -> Section:
    plans = sum(len(one.answers) - 1 for one in questions) + 1
    held = "; ".join(f"{one.change.name}: {one.change.held} stay" for one in questions)
    words = [
        "Move a slider: the device is then as its spec says, but for that one number. Each answer is a plan of its "
        "own "
        f"({plans} were made for this page), so that the best schedule may be another. One number changes at a time, "
        "and "
        f"everything else is held ({held}).",
    ]
    if plan.corrections:
        words.append(
            "Learned corrections are left out here, also at the device's own numbers: they know only the device as "
            "it is."
        )
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
    sure = answer.guarantee.describe()
    return Facts(
        [
            (f"best time with {name} of {answer.value}", units.duration(answer.prediction.time_s), f"{change}; {sure}"),
            ("bound by", answer.prediction.bound_by, ""),
            ("today's best schedule there", kept, "without planning anew"),
            (
                "best schedule there",
                "as today" if _is_same(own_schedule, answer.schedule) else "another",
                answer.schedule.describe(),
            ),
        ]
    )


def _is_same(one: Schedule, other: Schedule) -> bool:
    """Return whether two schedules make the same choices, whatever device they are for."""
    return one.template == other.template and one.describe() == other.describe()


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
        "model "
        "alone. A tuner that measures them leaves out what the model proves or predicts to be slower.",
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

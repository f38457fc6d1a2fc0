"""The pages of a plan, and of the schedules that ``anatune prune`` keeps."""

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
"""The default time limit in seconds for all plans of the sliders together."""


def plan_page(
    plan: Plan, *, what_if_s: float | None = WHAT_IF_S, progress: Progress | None = None, seed: int = 0
) -> Page:
    """Return the page of a plan: ``plan_page(anatune.plan(...)).write("plan.html")``.

    The page has the roofline with schedules at each memory level, the parts of the best times, the occupancy of the
    device, illegal points, the space, a table of schedules, an explanation, sliders ("what if"), and the sources of the
    device's numbers. About 64 schedules in the plan give a good page.

    Parameters
    ----------
    plan : Plan
        A plan with at least one schedule.
    what_if_s : float, optional
        The approximate time limit in seconds for all plans of the sliders; 0 omits the sliders, None sets no limit.
    progress : callable, optional
        Called with the finished share of the sliders' plans.
    seed : int
        The seed for drawing schedules at random.

    Raises
    ------
    SpaceError
        No schedule is legal.
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
            "Why this schedule", ["The best schedule compared with others."], points=explanation(plan, steps_from(plan))
        ),
        *([_what_if(plan, questions)] if questions else []),
        device_section(plan.hardware),
    ]
    threads = "" if plan.threads is None else f", {units.threads(plan.threads)}"
    lead = [
        f"Schedules of {plan.workload.describe()} on {place_text(plan.hardware)}{threads}, ranked by the "
        "analytical model; nothing was measured."
    ]
    return Page(f"{_short_name(plan)} on {plan.hardware.name}", sections, lead, _footer())


def _footer() -> str:
    """Return the footer of every page."""
    return f"Made by anatune {__version__}. The page needs no network, because the file contains everything."


def _short_name(plan: Plan) -> str:
    """Return the short name of a plan's workload for titles."""
    sizes = " x ".join(str(extent) for extent in plan.workload.extents.values())
    return f"{'+'.join((plan.workload.operator, *plan.workload.epilogue))} {sizes} {plan.workload.formats}"


def _summary(plan: Plan) -> Section:
    best = plan.predictions[0]
    bounds = roofline(plan.workload, plan.hardware, plan.template)
    least_s = max(bounds.fma_s, bounds.dram_s)
    bound_text = "the lower bound" if is_plain_sum(plan.template) else "the lower bound of a plain sum"
    work, most = ceiling(plan.workload, plan.hardware, plan.template)
    speed = work / best.time_s
    speed_text = (units.flop_rate if plan.workload.flop else units.rate)(speed)
    share = speed / most
    of_what = "the peak" if plan.workload.flop else "DRAM's bandwidth"
    if (saved := saved_work(plan).get(plan.best.template)) is not None:
        of_what = f"the peak, {units.percent(share / saved)} of the effective peak"
    facts = Facts(
        [
            ("predicted time", units.duration(best.time_s), f"{units.ratio(best.time_s / least_s)} times {bound_text}"),
            ("speed", speed_text, f"{units.percent(share)} of {of_what}"),
            ("bound by", best.bound_by, f"{units.duration(best.parts.get(f'{best.bound_by}_s', 0.0))} alone"),
            (FILLING[plan.hardware.kind].share, units.percent(best.occupancy),
             f"limited by {best.occupancy_limiter.replace('_', ' ')}"),
            ("certainty", plan.guarantee.describe(), "of the order, not of the times"),
            ("unverified numbers", str(len(unverified_keys(plan.hardware))), f"in the spec {plan.hardware.name!r}")
        ]
    )  # fmt: skip
    return Section("Summary", [_certificate(plan), f"Best schedule: {plan.best.describe()}."], [facts])


def _certificate(plan: Plan) -> str:
    """Return the text about the proof of the plan."""
    guarantee, size = plan.guarantee, units.count(plan.space_size)
    if guarantee.kind == "exhaustive":
        proof = f"All {size} schedules were evaluated: none has a lower predicted time than the first."
    elif guarantee.kind == "certified":
        proof = (
            f"The space has {size} schedules. {units.count(guarantee.num_evaluated)} of them were evaluated, others "
            "are proven to have no lower predicted time: the model computes bounds for whole groups of schedules, and "
            f"{units.count(guarantee.num_bounded)} bounds are above the times listed here. Evaluating all schedules "
            "would give the same answer."
        )
    else:
        proof = (
            f"The time limit ended the search among {size} schedules. Others may have lower predicted times. By the "
            f"model's bounds, the first one takes at most {units.percent(guarantee.gap)} longer than the best."
        )
    return f"{proof} This proves the order of predicted times. Only measurements show how accurate the model is."


def _roofline(plan: Plan, shown: Candidates) -> Section:
    work = "operations" if plan.workload.flop else "elements"
    words = [
        f"{shown.describe()} Each schedule is a point at every memory level: {work} for each byte that crosses the "
        f"level, and {work} per second. No point of a level can be above its slanted line (the bandwidth) or above the "
        "peak, or to the right of its dotted line (the I/O lower bound). Diamonds are the best schedules. Dashed lines "
        "are the shares of peak and DRAM bandwidth that compiled code and copies reach."
    ]
    for template, times in saved_work(plan).items():
        why = "skip products with padding" if is_plain_sum(template) else "need fewer multiplications"
        words.append(
            f"Operations are those of the sum without a transform. Schedules of the template {template} {why}, up to "
            f"{units.ratio(times)} times fewer operations. Their speeds (open markers) are effective speeds, and their "
            "limit is the effective peak: the peak times that factor."
        )
    return Section("Roofline", words, [Figure(plot_roofline(plan, shown))])


def _times(plan: Plan) -> Section:
    words = [
        "The pieces of a thick bar add up to the predicted time: the longest parts in sequence (such as products with "
        "their latency and the last blocks, or one level of memory), the share of other parts that these do not hide, "
        "and the parts that nothing overlaps. The thin bars below are the seconds that each part would need alone. "
        "Parts overlap: a thin bar may be longer than the first piece of the thick bar. “Bound by” names the longest "
        "single part."
    ]
    if plan.corrections:
        words.append("Bars are analytical predictions; the vertical mark is the time with the learned correction.")
    return Section("Where the time goes", words, [Figure(plot_times(plan))])


def _filling(plan: Plan, shown: Candidates) -> Section:
    filling, footprints = FILLING[plan.hardware.kind], plot_footprints(plan, shown)
    words, figures = [filling.about], [Figure(plot_occupancy(plan, shown))]
    if footprints is not None:
        figures.append(Figure(footprints))
        words.append("Each schedule is a point for each cache. A tile to the left of the dashed line fits the cache.")
    return Section(filling.heading, words, figures)


def _table(shown: Candidates) -> Section:
    words = f"{shown.describe()} Click a heading to sort, or its lens to filter (numbers: less, greater, between)."
    return Section("Candidates", [words], [_candidate_table(shown, "Candidates")])


_Field = tuple[Column, Callable[[Candidate], Cell]]


def _candidate_table(shown: Candidates, caption: str) -> Table:
    """Return the table of schedules: time, binding resource, occupancy, traffic and resources of each."""
    plan = shown.plan
    scale, unit = duration_unit(plan.predictions[0].time_s)
    bounds, filling = roofline(plan.workload, plan.hardware, plan.template), FILLING[plan.hardware.kind]
    peak_s = bounds.fma_s if plan.workload.flop else bounds.dram_s
    several = len({one.schedule.template for one in shown}) > 1
    fields: list[_Field] = [
        (Column("#", help="rank in the plan; schedules drawn at random have none"), lambda one: one.rank),
        (Column("schedule", True), lambda one: one.schedule.describe()),
        (Column(f"time ({unit})", help="predicted"), lambda one: one.prediction.time_s / scale),
        (
            Column("peak (%)", help="share of the theoretical peak, or of DRAM's bandwidth without arithmetic"),
            lambda one: 100.0 * peak_s / one.prediction.time_s,
        ),
        (Column("bound by", True), lambda one: one.prediction.bound_by),
        (Column(f"{filling.share} (%)"), lambda one: 100.0 * one.prediction.occupancy),
        (Column(filling.rounds), lambda one: one.prediction.waves),
    ]
    if several:
        fields.append((Column("template", True), lambda one: one.schedule.template))
    fields += [_traffic_field(level) for level in shown.levels]
    resource_keys = {key for one in shown for key in one.prediction.resources}
    fields += [_resource_field(*number) for number in _RESOURCES if resource_keys & {*number[0]}]
    rows = [[cell(one) for _, cell in fields] for one in shown]
    return Table([column for column, _ in fields], rows, caption)


_RESOURCES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("registers_per_thread", "registers"), "registers", "registers of a thread, or of the microkernel"),
    (("shared_bytes_per_block",), "shared (KiB)", "shared memory of a block"),
    (("threads_per_block",), "threads", "threads of a block"),
    (("blocks",), "blocks", "blocks of the grid"),
    (("threads",), "cores", "cores that work"),
    (("l1_tile_bytes",), "L1 tile (KiB)", "bytes of the tile for L1"),
    (("l2_tile_bytes",), "L2 tile (KiB)", "bytes of the tile for L2"),
)
"""The resources of a prediction with a column: keys (the first known one counts), name, and meaning."""


def _resource_field(keys: tuple[str, ...], name: str, meaning: str) -> _Field:
    def cell(candidate: Candidate) -> Cell:
        value = next(
            (candidate.prediction.resources[key] for key in keys if key in candidate.prediction.resources), None
        )
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
    held = "; ".join(f"with {one.change.name}, {one.change.held} stay" for one in questions)
    words = [
        "Move a slider to change one number of the device's spec. Each answer is a separate plan "
        f"({plans} were made for this page), so the best schedule may change. Only one number changes at a time, and "
        f"everything else stays unchanged ({held})."
    ]
    if plan.corrections:
        words.append("Learned corrections are not used here, because they were learned for the device without changes.")
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
    """Return the facts for a stop of a slider."""
    name = question.change.name
    if answer.prediction is None or answer.schedule is None:
        return Facts([(f"{name} {answer.value}", "no schedule is legal", "")])
    now, schedule_now = (question.answers[question.start].prediction, question.answers[question.start].schedule)
    assert now is not None
    assert schedule_now is not None
    share = answer.prediction.time_s / now.time_s - 1.0
    change = "unchanged" if abs(share) < 5e-4 else f"{units.percent(abs(share))} {'slower' if share > 0 else 'faster'}"
    kept = "would be illegal" if answer.kept_s is None else units.duration(answer.kept_s)
    sure, there = answer.guarantee.describe(), answer.schedule
    # the same choices, though the schedules are for different devices
    is_same = there.template == schedule_now.template and there.describe() == schedule_now.describe()
    return Facts(
        [
            (f"best time with {name} of {answer.value}", units.duration(answer.prediction.time_s), f"{change}; {sure}"),
            ("bound by", answer.prediction.bound_by, ""),
            ("the current best schedule there", kept, "without a new plan"),
            ("best schedule there", "unchanged" if is_same else "another", answer.schedule.describe()),
        ]
    )


def prune_page(subset: Subset, plan: Plan, most: int = 1000) -> Page:
    """Return the page of a subset: ``prune_page(anatune.prune(...), anatune.plan(..., template=...))``.

    The page has the number of kept schedules, the cut in the distribution of times, illegal points, the distances
    between good points, and a table of the kept schedules.

    Parameters
    ----------
    subset : Subset
        The subset of a space or of candidates.
    plan : Plan
        A plan for the same workload, hardware and template with at least one schedule.
    most : int
        The most schedules in the table.

    Raises
    ------
    SpaceError
        No schedule is legal.
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
        f"({units.percent(subset.num_kept / max(1, subset.num_legal))}): those predicted best. A tuner that measures "
        "only these skips the schedules that are proven or predicted to be slower.",
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
        f"{_short_name(plan)} on {plan.hardware.name}: what to measure",
        [
            Section("Summary", words, [facts]),
            *space_sections(plan, shown, cut_s=cut_s),
            Section("Kept schedules", [f"In predicted order.{which}"], [_candidate_table(kept, "Kept schedules")]),
        ],
        [f"Schedules of {plan.workload.describe()} on {plan.hardware.model} for another tuner to measure."],
        _footer(),
    )

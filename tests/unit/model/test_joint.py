"""Several templates in one order: what is merged, what is proven of it, whose arithmetic is admitted."""

import json
import math

import msgspec
import pytest

import anatune
from anatune import templates
from anatune.core.accuracy import RELAXED, STANDARD, accuracy_of, error_of
from anatune.errors import SpaceError
from anatune.model.joint import choose_templates, join_guarantees
from anatune.model.plan import JoinedSpace
from anatune.pages.space import space_sections
from anatune.report import units
from anatune.report.plans import plan_lines
from anatune.templates.base.model import Guarantee
from tests.contracts.trial_template import JOINED, TRIAL
from tests.wording import refuses

HARDWARE = anatune.hardware("xeon_gold_6230r").with_threads(1)
MATMUL = anatune.matmul(16, 32, 24)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(templates.TEMPLATES, TRIAL.name, TRIAL)
    monkeypatch.setitem(templates.TEMPLATES, JOINED.name, JOINED)


def alone(template, top_k=300, accuracy=STANDARD, **more):
    return anatune.plan(MATMUL, HARDWARE, top_k, template=template, accuracy=accuracy, **more)


def test_only_what_joins_and_applies_is_ranked_with_the_default():
    assert choose_templates(MATMUL, HARDWARE, None, STANDARD) == ("cpu", "joined")
    assert choose_templates(MATMUL, HARDWARE, "trial", STANDARD) == ("trial",)
    assert choose_templates(anatune.elementwise((64,)), HARDWARE, None, STANDARD) == ("cpu",)
    assert choose_templates(MATMUL, anatune.hardware("a100"), None, STANDARD) == ("cuda",)
    halves, hardware = anatune.matmul(16, 32, 64, dtype="float16"), anatune.hardware("xeon_8480")
    assert "fp16_accumulation" not in choose_templates(halves, hardware, None, STANDARD)
    assert "fp16_accumulation" in choose_templates(halves, hardware, None, RELAXED)
    assert anatune.space(MATMUL, HARDWARE).template == "cpu"


@pytest.mark.parametrize("accuracy", [STANDARD, RELAXED])
@pytest.mark.parametrize("distinct", [False, True])
def test_the_order_is_that_of_all_schedules_together(accuracy, distinct):
    plan = anatune.plan(MATMUL, HARDWARE, 300, accuracy=accuracy, distinct=distinct)
    parts = [alone(name, 300, accuracy, distinct=distinct) for name in ("cpu", "joined")]
    times = [one.time_s for one in plan.predictions]
    every = sorted(one.time_s for part in parts for one in part.predictions)
    assert times == pytest.approx(every[:300], rel=2e-3)  # orders keep what is alike within 0.1 % as they will
    assert {one.template for one in plan.schedules} == {"cpu", "joined"}
    found = dict(zip(plan.schedules, plan.predictions, strict=True))
    assert plan.schedules[0] in {part.best for part in parts}
    for part in parts:
        listed = [one for one in plan.schedules if one.template == part.template]
        assert listed == part.schedules[: len(listed)]
        assert all(found[one] == said for one, said in zip(listed, part.predictions, strict=False))
        assert part.joined == ()
        assert part.templates == (part.template,)
    assert plan.template == plan.best.template
    assert plan.space_size == sum(part.space_size for part in parts)
    assert plan.num_legal == sum(part.num_legal for part in parts)
    assert plan.rejected == parts[0].rejected | parts[1].rejected
    assert {rule.id for rule in plan.rules} == set(plan.rejected)
    for space, part in zip(plan.joined, parts, strict=True):
        assert (space.template, space.size, space.num_legal) == (part.template, part.space_size, part.num_legal)
        assert (space.rejected, space.rules, space.guarantee) == (part.rejected, part.rules, part.guarantee)
        assert space.best_s == min(one.time_s for one in part.predictions)
    assert plan.guarantee.kind == max((part.guarantee.kind for part in parts), key=("exhaustive", "certified").index)
    assert plan.guarantee.num_evaluated == sum(part.guarantee.num_evaluated for part in parts)


def test_the_accuracy_says_whose_arithmetic_is_admitted():
    standard = anatune.plan(MATMUL, HARDWARE, 300)
    relaxed = anatune.plan(MATMUL, HARDWARE, 300, accuracy="relaxed")
    assert {accuracy_of(one) for one in standard.schedules} == {STANDARD}
    assert {accuracy_of(one) for one in relaxed.schedules} == {STANDARD, RELAXED}
    assert relaxed.space_size > standard.space_size
    assert [accuracy_of(one) for one in alone("joined", 5).schedules] == [STANDARD] * 5
    with refuses(SpaceError):
        anatune.plan(MATMUL, HARDWARE, accuracy="exact")
    table = anatune.predict(MATMUL, HARDWARE, relaxed.schedules)  # what was chosen is scored, whatever it needs
    assert table["time_s"].tolist() == [one.time_s for one in relaxed.predictions]


def test_answers_say_which_template_and_how_far_off():
    plan = anatune.plan(MATMUL, HARDWARE, 300, accuracy="relaxed")
    tree = json.loads(plan.to_json())
    assert tree["accuracy"] == "relaxed"
    assert [space["template"] for space in tree["spaces"]] == ["cpu", "joined"]
    assert sum(space["legal"] for space in tree["spaces"]) == tree["space"]["legal"]
    for entry, schedule in zip(tree["schedules"], plan.schedules, strict=True):
        assert entry["template"] == schedule.template
        assert entry.get("error_bound", 0.0) == error_of(schedule)
        assert anatune.Schedule.from_json(json.dumps(entry)) == schedule
    frame = plan.to_frame()
    assert frame["template"].tolist() == [one.template for one in plan.schedules]
    assert frame["error_bound"].fillna(0.0).tolist() == [error_of(one) for one in plan.schedules]
    gpu = json.loads(anatune.plan(MATMUL, "a100", 2).to_json())
    assert not {"accuracy", "spaces"} & set(gpu)


def test_ties_are_the_defaults_first_and_alike_ones_are_counted_in_their_own_space():
    plan = anatune.plan(MATMUL, HARDWARE, 50, distinct=True)
    parts = {name: alone(name, 50, distinct=True) for name in ("cpu", "joined")}
    said = {
        schedule: count
        for part in parts.values()
        for schedule, count in zip(part.schedules, part.num_alike, strict=True)
    }
    assert plan.num_alike == [said[one] for one in plan.schedules]


def space_of(kind, best_s, gap=0.0):
    return JoinedSpace("t", 10, 10, {}, (), Guarantee(kind, gap, 3, 1), best_s)


@pytest.mark.parametrize(
    ("spaces", "kind", "gap"),
    [
        ([("exhaustive", 2.0), ("exhaustive", 1.0)], "exhaustive", 0.0),
        ([("exhaustive", 2.0), ("certified", 1.0)], "certified", 0.0),
        # The other one may hide a schedule of 2 / 1.5: slower than the best that was found.
        ([("best_found", 2.0, 0.5), ("certified", 1.0)], "best_found", 0.0),
        # It may hide one of 1.2 / 1.5 = 0.8.
        ([("best_found", 1.2, 0.5), ("exhaustive", 1.0)], "best_found", 0.25),
        ([("best_found", None), ("exhaustive", 1.0)], "best_found", math.inf),
        ([("exhaustive", None), ("certified", 1.0)], "certified", 0.0),
    ],
)
def test_the_merged_order_is_as_sure_as_the_least_sure(spaces, kind, gap):
    found = join_guarantees([space_of(*one) for one in spaces])
    assert found.kind == kind
    assert found.gap == pytest.approx(gap)
    assert (found.num_evaluated, found.num_bounded) == (3 * len(spaces), len(spaces))
    assert msgspec.json.encode(found)


def test_a_time_limit_is_shared():
    heard = []
    plan = anatune.plan(anatune.matmul(512, 512, 512), HARDWARE, 5, time_limit_s=0.4, progress=heard.append)
    assert plan.templates == ("cpu", "joined")
    assert heard == sorted(heard)
    assert all(0.0 <= share <= 1.0 for share in heard)


def test_what_was_not_searched_says_why():
    plan = anatune.plan(anatune.matmul(4096, 4096, 4096, dtype="float16"), "h100", 1)
    cuda, triton = plan.joined
    assert (cuda.template, triton.left_out, plan.left_out) == ("cuda", None, None)
    assert cuda.left_out.last_s == plan.predictions[0].time_s < cuda.left_out.floor_s
    best = anatune.plan(plan.workload, "h100", 1, template="cuda", time_limit_s=1.0).predictions[0].time_s
    assert cuda.left_out.floor_s <= best
    told = plan.to_dict()["spaces"]
    assert told[0]["left_out"]["text"].startswith("the template cuda was not searched, its illegal points not counted:")
    assert (told[0]["legal"], told[1]["left_out"], plan.searched) == (None, None, (triton,))
    assert "note: the template cuda was not searched" in "\n".join(str(line.text) for line in plan_lines(plan))
    assert "The template cuda was not searched" in plan.explain()
    section = space_sections(plan)[0]
    assert section.words[0].startswith(f"The space has {units.count(triton.size)} points, of which")
    assert section.words[1].startswith("The template cuda was not searched")
    assert section.content

"""anatune.prune: what is kept is the beginning of the order, and everything else has a reason."""

import itertools
import pickle

import msgspec
import numpy as np
import pytest

import anatune
from anatune.errors import SpaceError
from anatune.model.pruning.diversity import common_error, error_quantities
from anatune.model.pruning.subset import count_kept
from tests.wording import refuses


@pytest.fixture(scope="module")
def rtx3090():
    return anatune.hardware("rtx3090")


@pytest.fixture(scope="module")
def small():
    return anatune.matmul(8, 8, 4)


@pytest.fixture(scope="module")
def large():
    return anatune.matmul(512, 4096, 1024)


@pytest.fixture(scope="module")
def planned(large, rtx3090):
    """The first schedules of the plan of the large space."""
    return anatune.plan(large, rtx3090, top_k=100).schedules


def test_a_share_of_a_small_space(small, rtx3090):
    subset = anatune.prune(small, rtx3090, keep=0.002)
    kept = list(subset)
    assert len(kept) == subset.num_kept == -(-subset.num_legal // 500)
    assert kept == anatune.plan(small, rtx3090, top_k=len(kept)).schedules
    assert list(subset) == kept
    assert list(anatune.prune(small, rtx3090, keep=0.002)) == kept
    members = set(kept)
    sample = anatune.space(small, rtx3090).sample(300, seed=3)
    assert [subset.keeps(schedule) for schedule in sample] == [schedule in members for schedule in sample]
    assert all(subset.keeps(schedule) for schedule in kept)


def test_verdicts(large, rtx3090):
    workload = large
    subset = anatune.prune(workload, rtx3090, keep=30, distinct=True)
    kept = list(subset)
    assert len(kept) == 30
    first = subset.explain(kept[0])
    assert (first.kept, first.place, first.rule) == (True, 1, "")
    assert first.factor < 1 < subset.explain(anatune.space(workload, rtx3090).sample(1, 0)[0]).factor
    assert "rank 1 of 30" in str(first)
    illegal = anatune.space(workload, rtx3090).schedule({"i": (1, 1, 512, 1, 1), "j": (1, 1, 4096, 1, 1)})
    verdict = subset.explain(illegal)
    assert not verdict.kept
    assert verdict.rule in {rule.id for rule in subset.rules}
    assert verdict.needed > verdict.limit
    assert verdict.rule in verdict.text
    twin = msgspec.structs.replace(kept[0], unroll=kept[0].unroll + 1)  # none of the space's depths
    assert subset.explain(twin).place is None
    assert "\n" not in "".join(str(subset.explain(schedule)) for schedule in (kept[0], illegal, twin))


def test_huge_spaces_are_read_from_the_beginning(large, planned, rtx3090):
    subset = anatune.prune(large, rtx3090, keep=0.01)
    assert subset.num_kept > 8_000_000
    kept = list(itertools.islice(subset, 3000))
    assert len(set(kept)) == 3000
    assert kept[:100] == planned
    assert subset.keeps(kept[-1])
    assert "(estimated)" in str(subset.explain(anatune.space(large, rtx3090).sample(1, 0)[0]))


@pytest.mark.parametrize("device", ["a100", "intel_xeon_gold_6130"])
def test_other_templates(device):
    template = "triton" if device == "a100" else None
    workload, hardware = anatune.matmul(32, 32, 32), anatune.hardware(device)
    subset = anatune.prune(workload, hardware, keep=40, template=template)
    kept = list(subset)
    assert kept == anatune.plan(workload, hardware, top_k=40, template=template, correction="none").schedules
    assert all(subset.keeps(schedule) for schedule in kept)
    sample = anatune.space(workload, hardware, template=template).sample(30, seed=0)
    assert any(not subset.keeps(schedule) for schedule in sample)


def test_corrected_order():
    pytest.importorskip("lightgbm", reason="corrections need LightGBM")
    workload, hardware = anatune.matmul(64, 64, 64), anatune.hardware("k80")
    subset = anatune.prune(workload, hardware, keep=20)
    assert subset.to_dict()["corrected"]
    kept = list(subset)
    times = anatune.predict(workload, hardware, kept).time_s
    assert (times.diff()[1:] >= 0).all()
    assert [subset.explain(schedule).place for schedule in kept] == list(range(1, 21))
    behind = [s for s in anatune.prune(workload, hardware, keep=2000, correction="none") if s not in kept]
    texts = [subset.explain(schedule).text for schedule in behind[500:520]]
    assert all(text.startswith("left out") for text in texts)
    assert "corrected" not in anatune.prune(workload, hardware, keep=20, correction="none").to_dict()


def test_candidates_of_several_templates(rtx3090):
    workload = anatune.matmul(128, 128, 128)
    given = anatune.space(workload, rtx3090).sample(30, seed=0)
    given += anatune.space(workload, rtx3090, template="pipelined").sample(10, seed=0)
    given.append(anatune.space(workload, rtx3090).schedule({"i": (1, 1, 128, 1, 1), "j": (1, 1, 128, 1, 1)}))
    subset = anatune.prune(workload, rtx3090, keep=0.2, candidates=given)
    kept = list(subset)
    assert len(kept) == subset.num_kept == 8
    times = anatune.predict(workload, rtx3090, given).assign(schedule=given)
    best = times[times.legal].sort_values("time_s", kind="stable").schedule[:8]
    assert kept == list(best)
    assert [subset.keeps(schedule) for schedule in given] == [schedule in kept for schedule in given]
    assert subset.to_dict()["candidates"]["rejected"]
    stranger = anatune.space(workload, rtx3090).sample(1, seed=9)[0]
    assert "not among the candidates" in str(subset.explain(stranger))


@pytest.mark.parametrize("device", ["epyc_7763", "rtx3090"])
@pytest.mark.parametrize("template", [None, "pipelined"])
def test_a_time_limit_holds_and_progress_is_told(device, template):
    if template and device == "epyc_7763":
        return
    workload = anatune.conv2d(n=1, c=16, h=14, w=14, k=16, r=3, s=3, padding=1)
    shares = []
    subset = anatune.prune(workload, device, keep=40, distinct=True, template=template, progress=shares.append)
    whole = list(subset)
    assert len(whole) == 40
    assert min(shares) >= 0
    assert max(shares) == 1
    times = anatune.predict(workload, device, whole, correction="none").time_s
    assert times.nunique() == 40
    few = anatune.prune(workload, device, keep=40, distinct=True, template=template, time_limit_s=1e-6)
    assert few.guarantee.kind == "best_found"
    assert 0 < len(list(few)) == few.num_kept <= 40
    copy = pickle.loads(pickle.dumps(subset))  # the callback stays behind
    assert list(copy) == whole


def test_a_time_limit_ends_the_order(rtx3090):
    subset = anatune.prune(anatune.matmul(512, 512, 512), rtx3090, keep=0.5, time_limit_s=1e-3)
    assert 0 < len(list(subset)) == subset.num_kept <= 10_000


@pytest.mark.parametrize("keep", [0, -1, 1.0, 0.0, 1.5, True, "8", None, float("nan")])
def test_keep_is_a_share_or_a_count(keep, small, rtx3090):
    with refuses(SpaceError):
        anatune.prune(small, rtx3090, keep=keep)


def test_counts():
    assert count_kept(5, 3) == 3
    assert count_kept(0.01, 100) == 1
    assert count_kept(0.01, 101) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"candidates": [1]},
        {"candidates": 3},
        {"time_limit_s": 0},
        {"keep": 0.1, "distinct": True},
        {"template": "opencl"},
    ],
)
def test_bad_input_is_one_line(options, small, rtx3090):
    with refuses(SpaceError) as caught:
        anatune.prune(small, rtx3090, **options)
    assert "\n" not in str(caught.value)


def test_explaining_something_else(small, rtx3090):
    subset = anatune.prune(small, rtx3090, keep=3)
    with refuses(SpaceError):
        subset.explain("8x2")
    other = anatune.space(anatune.matmul(8, 8, 8), rtx3090).sample(1)[0]
    with refuses(SpaceError):
        subset.explain(other)


def test_few_are_kept_for_what_they_differ_in(large, planned, rtx3090):
    subset = anatune.prune(large, rtx3090, keep=12)
    kept, first = list(subset), planned[:12]
    assert len(set(kept)) == 12 == subset.num_kept
    times = anatune.predict(large, rtx3090, kept).time_s
    assert (times.diff()[1:] >= 0).all()
    assert times[0] == pytest.approx(anatune.predict(large, rtx3090, first).time_s[0])
    assert common(large, rtx3090, kept) < 0.9 < common(large, rtx3090, first)
    assert [subset.explain(schedule).place for schedule in kept] == list(range(1, 13))
    twin = next(schedule for schedule in first if schedule not in kept)
    verdict = subset.explain(twin)
    assert not verdict.kept
    assert "is nearly the same and is predicted as fast" in verdict.text


def test_a_small_space_whose_schedules_are_alike_is_kept_whole(rtx3090):
    tiny = anatune.matmul(2, 2, 2)
    legal = anatune.prune(tiny, rtx3090, keep=0.01).num_legal
    for keep in (1, 7, 200):
        kept = list(anatune.prune(tiny, rtx3090, keep=keep))
        assert len(set(kept)) == len(kept) == min(keep, legal)


def test_distinct_and_diverse(rtx3090):
    workload = anatune.matmul(64, 64, 64)
    kept = list(anatune.prune(workload, rtx3090, keep=20, distinct=True))
    assert anatune.predict(workload, rtx3090, kept).time_s.nunique() == len(kept) == 20
    diverse = list(anatune.prune(workload, rtx3090, keep=20))
    assert list(anatune.prune(workload, rtx3090, keep=20)) == diverse
    first = list(anatune.prune(workload, rtx3090, keep=20, diverse=False))
    assert first == anatune.plan(workload, rtx3090, top_k=20).schedules


def test_diverse_candidates(rtx3090):
    workload = anatune.matmul(512, 512, 512)
    given = list(anatune.prune(workload, rtx3090, keep=400, diverse=False))
    given += anatune.space(workload, rtx3090).sample(300, seed=0)
    subset = anatune.prune(workload, rtx3090, keep=20, candidates=given)
    kept = list(subset)
    first = anatune.prune(workload, rtx3090, keep=20, candidates=given, diverse=False)
    assert len(set(kept)) == 20
    assert kept[0] == next(iter(first))
    assert common(workload, rtx3090, kept) < common(workload, rtx3090, list(first))
    assert [subset.keeps(schedule) for schedule in given] == [schedule in kept for schedule in given]
    left = next(schedule for schedule in first if schedule not in kept)
    assert "is nearly the same" in subset.explain(left).text
    slow = anatune.predict(workload, rtx3090, given).assign(schedule=given)
    slowest = slow[slow.legal].sort_values("time_s").schedule.iloc[-1]
    assert "times the time of the last one kept" in subset.explain(slowest).text


def common(workload, hardware, schedules):
    model = anatune.api.model(workload, hardware)
    quantities = error_quantities(model, np.array([model.space.point_of(schedule) for schedule in schedules]))
    return common_error(quantities, quantities).mean()


def test_distinct_keeps_as_many_as_it_says(rtx3090):
    subset = anatune.prune(anatune.matmul(16, 16, 8), rtx3090, keep=200, distinct=True)
    assert len(list(subset)) == subset.num_kept == 200


def test_a_candidate_counts_once(small, rtx3090):
    given = anatune.space(small, rtx3090).sample(20, seed=0)
    twice = anatune.prune(small, rtx3090, keep=8, candidates=given * 2)
    assert list(twice) == list(anatune.prune(small, rtx3090, keep=8, candidates=given))
    assert len(set(twice)) == 8

"""anatune.prune of several templates: the first of their merged order, and a reason for everything else."""

import pickle

import anatune
from anatune.core.accuracy import STANDARD
from anatune.errors import SpaceError
from anatune.model.pruning.joined import JoinedSubset
from tests.wording import refuses

H100 = anatune.hardware("h100")
WORKLOAD = anatune.matmul(32, 32, 16, dtype="float16")


def own(keep, template):
    return anatune.prune(WORKLOAD, H100, keep, template=template, diverse=False)


def test_the_first_of_a_merged_order_and_reasons():
    subset = anatune.prune(WORKLOAD, H100, 30, diverse=False)
    assert isinstance(subset, JoinedSubset)
    assert (subset.templates, subset.accuracy) == (("cuda", "triton"), STANDARD)
    parts = [own(30, name) for name in subset.templates]
    assert subset.num_legal == sum(part.num_legal for part in parts)
    assert subset.space_size == sum(part.space_size for part in parts)
    times = sorted(told.time_s for part in parts for _, told in part.entries())
    assert [told.time_s for _, told in subset.entries()] == times[:30]
    kept = list(subset)
    assert list(subset) == kept == list(pickle.loads(pickle.dumps(subset)))
    assert subset.explain(kept[0]).place == 1
    worst = anatune.space(WORKLOAD, H100, template="triton").schedule({"m": 128, "n": 128, "k": 16}, num_stages=1)
    verdict = subset.explain(worst)
    assert not verdict.kept
    assert "times the time of the last one kept" in verdict.text
    other = anatune.plan(WORKLOAD, H100, 1, template="pipelined").best
    with refuses(SpaceError):
        subset.explain(other)
    tree = subset.to_dict()
    assert [space["template"] for space in tree["spaces"]] == ["cuda", "triton"]
    assert tree["space"]["legal"] == sum(space["legal"] for space in tree["spaces"])


def test_a_share_is_one_of_the_legal_ones_of_all():
    subset = anatune.prune(WORKLOAD, H100, 0.00001)
    assert subset.num_kept == -(-subset.num_legal // 100_000)


def test_one_template_is_no_joined_subset():
    assert anatune.prune(WORKLOAD, "rtx2080ti", 5).templates == ("cuda",)
    fp8 = anatune.matmul(64, 64, 64, dtype="float8_e4m3fn")
    assert anatune.prune(fp8, "mi300x", 5).templates == ("triton",)

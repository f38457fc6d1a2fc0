"""``anatune prune --for kernel-tuner`` against Kernel Tuner: it lists, replays and orders the same configurations."""

import json
import warnings

import numpy as np
import pytest

import anatune
from anatune.adapters.kernel_tuner import prune
from anatune.adapters.kernel_tuner.listing import membership
from anatune.adapters.kernel_tuner_files import write_cache
from anatune.core.trial import Measurement, Outcome
from anatune.listing.formats import PruneRequest
from anatune.listing.writers import find_writer

kernel_tuner = pytest.importorskip("kernel_tuner", reason="pip install '.[kernel-tuner]'")

MATMUL = anatune.matmul(256, 512, 128)


def listing(workload=MATMUL, hw="rtx3090", keep=60, **options):
    request = PruneRequest(workload, anatune.hardware(hw), keep, **options)
    return json.loads("\n".join(find_writer("kernel-tuner")(request)))


def searchspace(tune_params, restrictions):
    from kernel_tuner.searchspace import Searchspace

    return Searchspace(tune_params, restrictions, 1024)


@pytest.fixture(scope="module")
def listed():
    return listing(diverse=False)


@pytest.fixture(scope="module")
def cache(listed, tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "cache.json"
    entries = [
        (config, Measurement(Outcome.OK, times_s=(time_s,)))
        for config, time_s in zip(listed["configurations"], listed["predicted_s"], strict=True)
    ]
    names = {"kernel_name": "mm", "problem_size": (512, 256), "device_name": "made up"}
    write_cache(path, entries, tune_params=listed["tune_params"], **names)
    return path


@pytest.mark.parametrize(
    "workload",
    [
        MATMUL,
        anatune.matmul(1, 512, 128),
        anatune.conv2d(n=1, c=16, h=14, w=14, k=32, r=3, s=3, stride=1, padding=1, layout="NHWC"),
        anatune.conv2d(n=4, c=16, h=14, w=14, k=32, r=1, s=1, stride=1, padding=0),
        anatune.elementwise((64, 64), "add"),
    ],
    ids=lambda workload: workload.describe(),
)
def test_kernel_tuner_lists_what_is_kept_and_nothing_else(workload):
    found = listing(workload, keep=200)
    kept = {tuple(config.values()) for config in found["configurations"]}
    assert len(kept) == found["num_listed"] == 200
    space = searchspace(found["tune_params"], found["restrictions"])
    assert set(map(tuple, space.list)) == kept
    assert found["predicted_s"] == sorted(found["predicted_s"])


def test_few_are_chosen_for_what_they_differ_in(listed):
    found = listing()
    assert found["num_listed"] == 60
    assert found["configurations"][0] == listed["configurations"][0]
    tiles = [
        {(c["block_size_x"], c["block_size_y"], c["tile_size_x"], c["tile_size_y"]) for c in one["configurations"]}
        for one in (found, listed)
    ]
    assert len(tiles[0]) > len(tiles[1])


def test_the_order_is_that_of_the_adapter(listed):
    space = prune(
        MATMUL, "rtx3090", listed["tune_params"], names=listed["names"], keep=10**9,
        restrictions=listed["restrictions"],
    )  # fmt: skip
    assert len(space) == 60
    predicted = {
        tuple(config.values()): time_s for config, time_s in zip(space.configs, space.predicted_s, strict=True)
    }
    assert [predicted[tuple(c.values())] for c in listed["configurations"]] == pytest.approx(listed["predicted_s"])


def test_nothing_better_is_missing(listed):
    """Of all configurations with these values, the first ones are listed."""
    sense = ["tile_inner_x <= tile_size_x", "tile_inner_y <= tile_size_y"]  # else they are others' doubles
    space = prune(
        MATMUL, "rtx3090", listed["tune_params"], names=listed["names"], keep=60, restrictions=sense, spread=0
    )
    assert space.predicted_s == pytest.approx(listed["predicted_s"])
    best = anatune.plan(MATMUL, anatune.hardware("rtx3090"), top_k=1).predictions[0]
    assert listed["predicted_s"][0] == pytest.approx(best.time_s, rel=0.01)


def test_tune_kernel_takes_it(listed, cache):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, _ = kernel_tuner.tune_kernel(
            "mm", "__global__ void mm(float *a) {}", (512, 256), [], listed["tune_params"],
            restrictions=listed["restrictions"], cache=str(cache), simulation_mode=True, lang="CUDA", quiet=True,
        )  # fmt: skip
    names = list(listed["tune_params"])
    assert {tuple(one[name] for name in names) for one in results} == {
        tuple(config.values()) for config in listed["configurations"]
    }
    best = min(results, key=lambda result: result["time"])
    assert best["time"] == pytest.approx(listed["predicted_s"][0] * 1e3)


def test_a_t1_file_takes_it(listed, cache, tmp_path):
    kernel = tmp_path / "mm.cu"
    kernel.write_text("__global__ void mm(float *a) {}")
    specification = {
        "Language": "CUDA", "KernelName": "mm", "KernelFile": str(kernel), "ProblemSize": [512, 256],
        "Device": {"Name": "made up"}, "Arguments": [], "GlobalSize": {"X": "1"}, "LocalSize": {"X": "1"},
    }  # fmt: skip
    path = tmp_path / "mm.json"
    whole = {
        "General": {"FormatVersion": 1},
        "ConfigurationSpace": listed["ConfigurationSpace"],
        "KernelSpecification": specification,
        "Search": {"Name": "brute_force"},
    }
    path.write_text(json.dumps(whole))
    results, _ = kernel_tuner.interface.tune_kernel_T1(
        path, cache_filepath=str(cache), simulation_mode=True, output_T4=False
    )
    assert len(results) == 60


def test_distinct_and_most_and_shares():
    times = listing(keep=20, distinct=True)["predicted_s"]
    assert len(set(times)) == 20
    assert listing(keep=0.01, most=7)["num_listed"] == 7
    assert listing(anatune.matmul(2, 2, 2), keep=1e-9)["num_listed"] == 1


def test_a_correction_of_tvm_kernels_is_not_used_unasked():
    found = listing(hw="k80", correction="none")
    assert found["predicted_s"] == listing(hw="k80")["predicted_s"]


def test_membership_is_python():
    (text,) = membership(["a"], [(1,), (2,)])
    assert [eval(text, {"a": value}) for value in (0, 1, 2)] == [False, True, True]
    rows = [tuple(row) for row in np.random.default_rng(0).integers(0, 3, (20, 7)).tolist()]
    texts = membership(list("abcdefg"), rows)
    assert len(texts) == 3
    for row in rows:
        assert all(eval(text, dict(zip("abcdefg", row, strict=True))) for text in texts)
    assert not eval(texts[-1], dict.fromkeys("abcdefg", 7))


def test_a_fourth_dimension_has_no_threads():
    tree = listing(anatune.conv2d(8, 16, 14, 14, 32, 3, 3, padding=1), keep=30)
    blocks = [name for name in tree["tune_params"] if name.startswith("block_size")]
    assert sorted(blocks) == ["block_size_x", "block_size_y", "block_size_z"]
    assert tree["names"]["threads_n"] == 1
    assert len(tree["configurations"]) == 30

"""The Kernel Tuner adapter against Kernel Tuner itself, in simulation mode on a made-up cache."""

import json
import warnings

import numpy as np
import pytest

import anatune
from anatune.adapters.kernel_tuner import Ordered, Within, clblast_gemm, prune, restrict
from anatune.adapters.kernel_tuner_files import read_results, write_cache, write_t4
from anatune.core.trial import Measurement, Outcome
from anatune.errors import MissingDependencyError, SpaceError, UnknownNameError
from tests.wording import refuses, warns

kernel_tuner = pytest.importorskip("kernel_tuner", reason="pip install '.[kernel-tuner]'")
pytestmark = pytest.mark.filterwarnings("ignore:anatune keeps")

PARAMS = {"bx": [8, 16, 32], "by": [4, 8, 16], "wx": [1, 2, 4], "wy": [1, 2, 4], "other": [0, 1]}
NAMES = {
    "threads_j": "bx", "work_j": "wx", "inner_j": 1, "threads_i": "by", "work_i": "wy", "inner_i": 1, "block_k": "bx",
}  # fmt: skip
MATMUL = anatune.matmul(512, 512, 512)


@pytest.fixture(scope="module")
def space():
    return prune(MATMUL, "rtx3090", PARAMS, names=NAMES, keep=0.1, restrictions=["bx * by >= 64"], spread=0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    everything = prune(MATMUL, "rtx3090", PARAMS, names=NAMES, keep=10**6)
    assert repr(everything.fit).startswith("Fit(understood ")
    times = everything.predicted_s * np.random.default_rng(0).uniform(0.8, 1.2, len(everything))
    measured = [Measurement(Outcome.OK, times_s=(time_s,)) for time_s in times.tolist()]
    path = tmp_path_factory.mktemp("cache") / "cache.json"
    entries = list(zip(everything.configs, measured, strict=True))
    write_cache(path, entries, kernel_name="mm", problem_size=(512, 512), device_name="made up", tune_params=PARAMS)
    return path


def tune(cache, restrictions, strategy="brute_force", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no parameter is called block_size_x
        return kernel_tuner.tune_kernel(
            "mm", "__global__ void mm(float *a) {}", (512, 512), [], PARAMS, restrictions=restrictions,
            strategy=strategy, strategy_options=options, cache=str(cache), simulation_mode=True, lang="CUDA",
            quiet=True,
        )[0]  # fmt: skip


def configs_of(results):
    return list(dict.fromkeys(tuple(result[name] for name in PARAMS) for result in results))


def values_of(space):
    return [tuple(config.values()) for config in space.configs]


def test_the_kept_ones_are_the_best_predicted(space):
    assert np.all(np.diff(space.predicted_s) >= 0)
    assert len(space) == len(space.configs) == -(-space.num_legal // 10)
    assert all(config["bx"] * config["by"] >= 64 for config in space.configs)
    assert space.start == list(space.configs[0].values())


def test_a_restriction_is_a_function_that_can_stand_alone_or_beside_others(space, cache):
    alone = restrict(MATMUL, "rtx3090", PARAMS, names=NAMES, keep=0.1, restrictions=["bx * by >= 64"], spread=0)
    whole = lambda p: p["bx"] * p["by"] >= 64  # noqa: E731 (Kernel Tuner reads the source of lambdas)
    for restrictions in (alone, [alone], ["bx * by >= 64", alone], [whole, alone]):
        assert set(configs_of(tune(cache, restrictions))) == set(values_of(space))


def test_configurations_are_asked_for_in_three_ways(space):
    config = space.configs[0]
    assert space.keeps(config)
    assert space.keeps(**config)
    assert space.keeps(*config.values())
    assert not space.keeps({**config, "bx": 8, "by": 4})
    with refuses(SpaceError):
        space.keeps(bx=8)


def test_parameters_without_a_role_stay_together_in_the_predicted_order():
    space = prune(MATMUL, "rtx3090", PARAMS, names=NAMES, keep=2, spread=0)
    first, second = space.configs
    assert {**first, "other": 1} == second
    assert space.population(2)[0] == list(first.values())


def test_populations_differ(space):
    tiles = [tuple(values[:4]) for values in space.population(4)]
    assert len(set(tiles)) == 4


def test_ordered_measures_in_predicted_order(space, cache):
    results = tune(cache, [space.keeps], Ordered(space), max_fevals=7)
    assert configs_of(results) == values_of(space)[:7]


@pytest.mark.parametrize("strategy", ["random_sample", "genetic_algorithm", "greedy_ils", "pso", "simulated_annealing"])
def test_strategies_start_from_the_best(space, cache, strategy):
    results = tune(cache, [space.keeps], Within(space, strategy), max_fevals=6, time_limit=30)
    found = configs_of(results)
    assert set(found) <= set(values_of(space))
    assert tuple(space.start) in found[:6]


def test_lonely_configurations_neither_stop_a_search_nor_keep_it_going(cache):
    space = prune(MATMUL, "rtx3090", PARAMS, names=NAMES, keep=5, spread=0)
    lonely = [space.configs[0], {**space.configs[0], "bx": 8, "by": 4, "wx": 1, "wy": 1, "other": 1}]
    allowed = {tuple(config.values()) for config in lonely}

    def keep(bx, by, wx, wy, other):
        return (bx, by, wx, wy, other) in allowed

    for best_first in (True, False):
        results = tune(cache, [keep], Within(space, "greedy_ils", best_first=best_first), max_fevals=3)
        assert set(configs_of(results)) == allowed


def test_a_population_is_filled_up_at_random(space, cache):
    found = configs_of(tune(cache, None, Within(space, "random_sample"), max_fevals=len(space) + 5))
    assert set(values_of(space)) <= set(found)
    assert len(found) == len(space) + 5


def test_fewer_values_are_left(space, cache):
    assert all(set(values) <= set(PARAMS[name]) for name, values in space.kept_params.items())
    for config in space.configs:
        assert all(value in space.kept_params[name] for name, value in config.items())


def test_every_configuration_is_explained(space):
    kept = space.explain(space.configs[2])
    assert kept.kept
    assert kept.place == 3
    left = space.explain(bx=8, by=8, wx=1, wy=1, other=0)
    assert not left.kept
    assert left.factor > 1
    assert "times the time of the last one kept" in left.text


def test_what_breaks_a_limit_says_which():
    params = {"tx": [32, 64], "ty": [8, 32]}
    names = {"threads_j": "tx", "work_j": 1, "threads_i": "ty", "work_i": 1, "block_k": 32}
    space = prune(MATMUL, "rtx3090", params, names=names, keep=10)
    verdict = space.explain(tx=64, ty=32)
    assert not verdict.kept
    assert verdict.rule == "threads_per_block"
    assert verdict.limit == 1024


def test_blocks_may_reach_over_the_end_of_a_matrix_product():
    space = prune(anatune.matmul(500, 500, 500), "rtx3090", PARAMS, names=NAMES, keep=0.1, spread=0)
    assert len(space)


IMAGE = anatune.conv2d(1, 1, 526, 526, 1, 15, 15)
IMAGE_PARAMS = {
    "block_size_x": [16, 32, 48, 64, 80], "block_size_y": [1, 2, 4, 8], "tile_size_x": [1, 2, 3],
    "tile_size_y": [1, 2, 3, 4], "read_only": [0, 1], "use_shmem": [0, 1],
}  # fmt: skip
IMAGE_NAMES = {
    "threads_n": 1, "work_n": 1, "threads_f": 1, "work_f": 1, "block_rc": 1, "block_ry": 15, "block_rx": 15,
    "threads_x": "block_size_x", "work_x": "tile_size_x", "inner_x": 1, "threads_y": "block_size_y",
    "work_y": "tile_size_y", "inner_y": 1, "staged_data": "use_shmem",
}  # fmt: skip


def foreign(**options):
    return prune(IMAGE, "a100_sxm", IMAGE_PARAMS, names=IMAGE_NAMES, **options)


def test_a_kernel_that_the_model_does_not_describe_is_said_to_be_one():
    with warns(UserWarning) as said:
        space = foreign(keep=0.05)
    assert said[0].filename == __file__ or len(said) == 1
    assert 0.25 < space.fit.spread < 1
    assert "read_only" in repr(space)
    assert len(space) == -(-space.num_legal // 20)
    assert space.num_legal == space.num_configs  # a guard is no limit of the device
    assert np.all(np.diff(space.predicted_s) >= 0)


def test_guarded_blocks_are_kept_too_and_variants_in_turn():
    space = foreign(keep=0.1)
    odd = [config for config in space.configs if config["block_size_x"] in (48, 80) or config["tile_size_x"] == 3]
    assert odd
    for name in ("read_only", "use_shmem"):
        share = np.mean([config[name] for config in space.configs])
        assert 0.3 < share < 0.7
    left = next(
        verdict for verdict in map(space.explain, foreign(keep=10**6).configs)
        if not verdict.kept and verdict.time_s < verdict.cut_s
    )  # fmt: skip
    assert "to spread the selection" in left.text


def test_the_order_alone_is_had_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        space = foreign(keep=0.05, spread=0)
        whole = foreign(keep=10**6)  # nothing is left out
    assert "spread" not in repr(space)
    assert space.configs == whole.configs[: len(space)]
    for wrong in (-0.1, 1.5, "some", True):
        with refuses(SpaceError):
            foreign(spread=wrong)


def test_what_only_the_template_could_not_run_is_kept_without_a_judgement():
    params = {"tx": [8, 16, 32], "ty": [8, 16, 32, 64], "wx": [1, 4, 8], "bk": [16, 512]}
    names = {"threads_j": "tx", "work_j": "wx", "threads_i": "ty", "work_i": 4, "block_k": "bk"}
    space = prune(MATMUL, "rtx3090", params, names=names, keep=0.9)
    assert space.num_legal < space.num_configs  # 32 x 64 threads
    beyond = [config for config in space.configs if config["bk"] == 512]
    assert beyond
    verdict = space.explain(beyond[-1])
    assert verdict.kept
    assert "the model cannot predict it: shared_bytes_per_block" in verdict.text
    assert not any(config["tx"] * config["ty"] > 1024 for config in space.configs)


def test_clblast_is_known_by_its_names():
    params = {
        "MWG": [32, 64, 128], "NWG": [32, 64, 128], "KWG": [16, 32], "MDIMC": [8, 16], "NDIMC": [8, 16], "KWI": [2],
        "VWM": [1, 2, 4], "VWN": [1, 2, 4], "STRM": [0], "STRN": [0], "SA": [0, 1], "SB": [0, 1], "MDIMA": [8, 32],
        "NDIMB": [8, 32],
    }  # fmt: skip
    gemm = clblast_gemm(1024, 512, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        space = prune(gemm, "titan_rtx", params, keep=0.05)
    assert space.fit.trusted
    assert space.configs[0]["SA"] == space.configs[0]["SB"] == 1
    assert space.configs[0]["MDIMA"] == space.configs[0]["NDIMB"] == 32
    with refuses(SpaceError):
        prune(gemm, "titan_rtx", {name: v for name, v in params.items() if name != "KWI"})


def test_kernel_tuner_continues_a_cache(space, cache, tmp_path):
    copy = tmp_path / "cache.json"
    copy.write_bytes(cache.read_bytes())
    util = pytest.importorskip("kernel_tuner.util")
    opened = util.read_cache(str(copy))
    util.store_cache("new", {"bx": 1, "time": 2.0}, str(copy), opened["cache"])
    util.close_cache(str(copy))
    assert len(json.loads(copy.read_text())["cache"]) == len(read_results(cache).entries) + 1


def test_t4_files_are_those_of_kernel_tuner(cache, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    files = pytest.importorskip("kernel_tuner.file_utils")
    entries = [*read_results(cache).entries[:5], (dict.fromkeys(PARAMS, 1), Measurement(Outcome.BUILD_ERROR, "no"))]
    write_t4(tmp_path / "t4.json", entries)
    _, schema = files.output_file_schema("results")
    jsonschema.validate(json.loads((tmp_path / "t4.json").read_text()), schema)
    again = read_results(tmp_path / "t4.json").entries
    assert [config for config, _ in again] == [config for config, _ in entries]
    assert [m.outcome for _, m in again] == [m.outcome for _, m in entries]
    assert [m.time_s for _, m in again[:5]] == pytest.approx([m.time_s for _, m in entries[:5]])


def test_what_cannot_be_pruned_is_one_line(monkeypatch):
    with refuses(SpaceError):
        prune(MATMUL, "rtx3090", PARAMS, names=NAMES, keep=0)
    with refuses(SpaceError):
        prune(MATMUL, "rtx3090", PARAMS, names=5)
    with refuses(UnknownNameError):
        prune(MATMUL, "rtx309", PARAMS, names=NAMES)
    with refuses(SpaceError):
        prune(MATMUL, "rtx3090", {}, names={"block_i": 1, "threads_i": 1})
    with refuses(SpaceError):
        prune(MATMUL, "rtx3090", PARAMS, names=NAMES, restrictions=["bx > 100"])
    space = prune(MATMUL, "rtx3090", PARAMS, names=NAMES)
    with refuses(SpaceError):
        Within(space, "guess")
    monkeypatch.setitem(__import__("sys").modules, "kernel_tuner.searchspace", None)
    with refuses(MissingDependencyError):
        prune(MATMUL, "rtx3090", PARAMS, names=NAMES)


def test_a_restriction_of_an_unknown_parameter_is_one_line():
    with refuses(SpaceError):
        prune(MATMUL, "rtx3090", PARAMS, names=NAMES, keep=5, restrictions=["unknown * 2"])

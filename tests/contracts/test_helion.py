"""Seeds and filters inside the real Helion: kernels bound to tensors of a CPU, its search with times that are none."""

import math

import pytest

from anatune.adapters.helion import config_filter, guided_autotuner, seed_configs

torch = pytest.importorskip("torch", reason="contract tests of the Helion adapter need torch")
helion = pytest.importorskip("helion", reason="contract tests of the Helion adapter need helion")
hl = pytest.importorskip("helion.language", reason="needs helion")
provider = pytest.importorskip("helion.autotuner.benchmark_provider", reason="needs Helion 1.5")


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def bound(m=1024, n=512, k=2048, **settings):
    given = torch.empty(m, k, dtype=torch.float16), torch.empty(k, n, dtype=torch.float16)
    return helion.kernel(matmul, **settings).bind(given), given


def test_seeds_are_configurations_of_the_kernel():
    kernel, _ = bound()
    seeds = seed_configs(kernel, "h100", keep=6)
    generation, said = kernel.config_spec.create_config_generation(), []
    found = generation.user_seed_flat_config_pairs([helion.Config.from_dict(seed) for seed in seeds], said.append)
    assert said == []
    assert [(c.block_sizes, c.num_warps, c.num_stages, c.pid_type, c.l2_groupings) for _, c in found] == [
        (s["block_sizes"], s["num_warps"], s["num_stages"], s["pid_type"], s["l2_groupings"]) for s in seeds
    ]
    passed = config_filter(kernel, "h100", within=1.5)
    assert all(passed(config) is config for _, config in found)
    assert passed(kernel.config_spec.default_config()) is None  # 16 x 16 x 16


class Clock(provider.BenchmarkProvider):
    """Times that only count block sizes; nothing is compiled."""

    mutated_arg_indices = ()
    asked: list = []  # noqa: RUF012

    def __init__(self, **given):
        pass

    def setup(self):
        pass

    def cleanup(self):
        pass

    def benchmark(self, configs, *, desc="", raise_if_no_viable_config=True):
        Clock.asked += configs
        return [
            provider.BenchmarkResult(config, lambda *_: None, 1.0 / math.prod(config.block_sizes), "ok", 0.0)
            for config in configs
        ]


def test_its_search_begins_with_the_seeds_and_measures_what_passes(monkeypatch):
    from helion.autotuner import cache_classes

    # its cache asks the device's driver
    monkeypatch.setitem(cache_classes, "LocalAutotuneCache", lambda search, autotuner_factory: search)
    monkeypatch.setattr(Clock, "asked", [])
    monkeypatch.setenv("HELION_AUTOTUNER", "RandomSearch")
    kernel, given = bound(autotuner_fn=guided_autotuner("h100", keep=3), autotune_effort="quick", autotune_log_level=0)
    search = kernel.settings.autotuner_fn(kernel, given)
    search._benchmark_provider_cls = Clock
    best = search.autotune()
    seeds, passed = seed_configs(kernel, "h100", keep=3), config_filter(kernel, "h100")
    assert [config.block_sizes for config in Clock.asked[:3]] == [seed["block_sizes"] for seed in seeds]
    assert all(passed(config) is not None for config in Clock.asked)
    assert best in Clock.asked
    assert kernel.settings.autotune_seed_configs is None

from dataclasses import dataclass, field

import pytest

import anatune
from anatune.adapters.triton import attention_pruner
from anatune.errors import NotJudgedWarning, SpaceError
from tests.wording import refuses, warns


@dataclass
class FakeConfig:
    kwargs: dict[str, object]
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None
    pre_hook: object = None
    extra: dict[str, object] = field(default_factory=dict)


CONFIGS = [FakeConfig({"BLOCK_M": m, "BLOCK_N": n}, warps) for m in (16, 64, 128) for n in (32, 64) for warps in (4, 8)]
WORKLOAD = anatune.attention(4, 32, 8, 2048, 2048, 128, causal=True)


def test_the_best_are_kept_and_the_callers_first() -> None:
    pruner = attention_pruner(WORKLOAD, "h100", keep=4)
    kept = pruner["early_config_prune"](CONFIGS, {})  # type: ignore[operator]
    assert len(kept) == 4
    assert CONFIGS[0] in kept
    seconds = [pruner.perf_model(**one.kwargs, num_warps=one.num_warps, num_stages=3) for one in kept[:3]]
    assert seconds == sorted(seconds)
    assert seconds[0] < pruner.perf_model(**CONFIGS[0].kwargs, num_warps=4, num_stages=3)


def test_a_function_says_what_is_computed() -> None:
    pruner = attention_pruner(lambda given: anatune.attention(1, 8, 8, int(given["S"]), int(given["S"]), 64), "a100", 1)
    assert len(pruner.early_config_prune(CONFIGS, {"S": 1024})) == 1


def test_what_cannot_be_judged_stays() -> None:
    odd = FakeConfig({"TILE": 3})
    with warns(NotJudgedWarning):
        kept = attention_pruner(WORKLOAD, "h100", keep=1).early_config_prune([*CONFIGS, odd], {})
    assert kept[1:] == [odd]
    with pytest.warns(NotJudgedWarning):
        assert attention_pruner(WORKLOAD, "h100").perf_model(TILE=3) == 0.0


def test_other_workloads_are_refused() -> None:
    with refuses(SpaceError):
        attention_pruner(anatune.matmul(8, 8, 8), "h100")

"""The pruner of kernels of experts, asked as Triton asks it: what a call says, and what is predicted for it."""

import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from anatune.adapters.triton import moe_pruner
from anatune.core.hardware.files import hardware
from anatune.errors import NotJudgedWarning, SpaceError
from anatune.servers.choose import race
from anatune.servers.shapes import Experts
from anatune.templates.triton.tiles import Tiles
from tests.kernel_arguments import Descriptor, Tensor, expert_arguments
from tests.wording import refuses, warns

pytestmark = pytest.mark.filterwarnings("error::anatune.errors.NotJudgedWarning")
FP8 = "torch.float8_e4m3fn"


def config(m, n, k, warps=4, stages=3, group=16, **meta):
    sizes = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group, "SPLIT_K": 1}
    return SimpleNamespace(kwargs=sizes | meta, num_warps=warps, num_stages=stages)


CONFIGS = [config(*sizes, warps) for *sizes, warps in itertools.product((16, 64, 128), (64, 128), (64, 128), (4, 8))]


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize(
    ("dtype", "call"),
    [
        ("auto", {}),
        ("fp8_w8a8", {"dtype": FP8}),
        ("int8_w8a8", {"dtype": "torch.int8"}),
        ("int8_w8a16", {"weights": "torch.int8"}),
        ("fp8_w8a8 in blocks", {"dtype": FP8, "group_k": 128}),
    ],
)
def test_times_are_those_of_files_for_servers(dtype, call, down):
    shape = Experts(64, 256, 1024, 4, dtype.split()[0], (128, 128) if "blocks" in dtype else None)
    known = race(shape, 512, spec := hardware("h100_sxm"), Tiles.of([(64, 128, 128, 4, 3, 1, 16)]))
    arguments = expert_arguments(512, 64, 4, *((1024, 256) if down else (512, 1024)), down=down, **call)
    pruner = moe_pruner(spec, keep=1)
    assert pruner.perf_model(**arguments, **config(64, 128, 128).kwargs, num_warps=4, num_stages=3) == pytest.approx(
        known.parts[int(down), 0]
    )


def test_ranks_share_experts_and_rows():
    shape = Experts(64, 256, 1024, 4, ranks=4)
    known = race(shape, 512, spec := hardware("h100_sxm"), Tiles.of([(64, 128, 128, 4, 3, 1, 16)]))
    meta = config(64, 128, 128).kwargs | {"num_warps": 4, "num_stages": 3}
    shared = moe_pruner(spec, ranks=4).perf_model(**expert_arguments(512), **meta)
    assert shared == pytest.approx(known.parts[0, 0])
    assert shared < moe_pruner(spec).perf_model(**expert_arguments(512), **meta)


@pytest.mark.parametrize(("version", "is_old"), [("3.3.1", True), ("3.9.0+git1", False), ("unknown", False)])
def test_the_triton_that_is_imported_compiles(monkeypatch, version, is_old):
    call, meta = expert_arguments(16, dtype=FP8, group_k=128), config(64, 128, 128, 4, 2).kwargs
    monkeypatch.setitem(sys.modules, "triton", None)
    latest = moe_pruner("b200").perf_model(**call, **meta, num_stages=2)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    assert (moe_pruner("b200").perf_model(**call, **meta, num_stages=2) != latest) is is_old


def test_the_best_are_kept_and_the_callers_first():
    pruner = moe_pruner("h100_sxm", keep=4)
    kept = pruner.early_config_prune(CONFIGS, expert_arguments())
    assert len(kept) == 4
    assert CONFIGS[0] in kept
    assert [pruner.explain(one).place for one in kept if one is not CONFIGS[0]] == [1, 2, 3]
    assert "4 of 64 experts" in str(pruner.explain(kept[0]))


def test_more_tokens_take_larger_blocks():
    few, many = (
        moe_pruner("h100_sxm", keep=1).early_config_prune(CONFIGS, expert_arguments(tokens))[0] for tokens in (8, 8192)
    )
    assert few.kwargs["BLOCK_SIZE_M"] < many.kwargs["BLOCK_SIZE_M"]


def test_block_sizes_that_the_call_passes_are_those_of_all():
    configs = [
        SimpleNamespace(kwargs={"BLOCK_SIZE_N": n, "BLOCK_SIZE_K": 64}, num_warps=4, num_stages=3) for n in (64, 128)
    ]
    whole = [config(16, n, 64, group=1) for n in (64, 128)]
    call = expert_arguments()
    shared, alone = moe_pruner("a100", keep=2), moe_pruner("a100", keep=2)
    assert len(shared.early_config_prune(configs, call, BLOCK_SIZE_M=16)) == len(alone.early_config_prune(whole, call))
    assert [shared.explain(one).time_s for one in configs] == [alone.explain(one).time_s for one in whole]


def test_weights_of_4_bits_are_seen_by_their_shape_or_said():
    packed = expert_arguments(16, packed=True) | {"group_size": 128}  # of scales: not GROUP_SIZE_M
    meta = {**config(16, 64, 64).kwargs, "num_warps": 4, "num_stages": 3}
    seconds = moe_pruner("a100").perf_model(**packed, **meta)
    bare = {key: value for key, value in packed.items() if not isinstance(value, Tensor)} | {"E": 64}
    assert moe_pruner("a100", dtype=("bfloat16", "int4")).perf_model(**bare, **meta) == seconds
    assert moe_pruner("a100").perf_model(**expert_arguments(16, weights="torch.int8"), **meta) != seconds


def test_names_and_routing_are_said():
    call = {"x": Tensor((512, 1024)), "w": Tensor((64, 512, 1024)), "count": 512}
    names = {"rows": lambda given: 4 * given["count"], "top_k": lambda given: 4, "a": "x", "b": "w"}
    few, one = (
        [moe_pruner("h100_sxm", names=names, routing=routing).perf_model(**call, **c.kwargs) for c in CONFIGS]
        for routing in ("uniform", "power:1.5")
    )
    assert few == [moe_pruner("h100_sxm").perf_model(**expert_arguments(), **c.kwargs) for c in CONFIGS]
    assert not np.allclose(few, one, rtol=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"b_ptr": Tensor((512, 1024), "torch.bfloat16")},
        {"num_valid_tokens": 0},
        {"num_valid_tokens": 2047},
        {"top_k": 128, "num_valid_tokens": 128},
        {"a_ptr": Descriptor((512, 1024), "torch.bfloat16")},
        {"a_ptr": Tensor((512, 1024), "torch.float64")},
    ],
)
def test_what_cannot_be_judged_stays(change):
    with warns(NotJudgedWarning):
        assert moe_pruner("a100", keep=1).early_config_prune(CONFIGS, expert_arguments() | change) == CONFIGS


def test_split_sums_stay_beside_the_others():
    split = config(16, 64, 64, SPLIT_K=2)
    with warns(NotJudgedWarning):
        assert moe_pruner("a100", keep=1).early_config_prune([*CONFIGS, split], expert_arguments())[1:] == [split]


@pytest.mark.parametrize("routing", ["often", "power:x", (1, 2), None])
def test_wrong_options_are_told_at_once(routing):
    with refuses(SpaceError):
        moe_pruner("a100", routing=routing)


@pytest.mark.parametrize("ranks", [0, True, 1.5, None])
def test_wrong_ranks_are_told_at_once(ranks):
    with refuses(SpaceError):
        moe_pruner("a100", ranks=ranks)

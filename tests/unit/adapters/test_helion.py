"""Seeds and filters for Helion's autotuner, on dictionaries and kernels that look like its own."""

import functools
from types import SimpleNamespace

import pytest

import anatune
from anatune.adapters.helion import config_filter, guided_autotuner, seed_configs
from anatune.errors import NotJudgedWarning, SpaceError, UnknownNameError
from tests.wording import refuses, warns

PRODUCT = anatune.matmul(4096, 2048, 1024, dtype="float16")
GOOD = {"block_sizes": [128, 128, 64], "num_warps": 8, "num_stages": 3, "l2_groupings": [8]}


@functools.cache
def seeds_of_the_product(hw="h100", keep=4):
    return seed_configs(PRODUCT, hw, keep)


@functools.cache
def passed_of_the_product():
    return config_filter(PRODUCT, "h100")


def bound(fact=None, count=1, order=(0, 1, 2), precision="tf32", **spec):
    """Return what is looked at in a bound kernel of Helion."""
    known = {
        "lhs_ndim": 2, "rhs_ndim": 2, "m_block_id": 0, "n_block_id": 1, "k_block_id": 2, "static_m": 4096,
        "static_n": 2048, "static_k": 1024, "lhs_dtype": "torch.float16", "rhs_dtype": "torch.float16",
    } | (fact or {})  # fmt: skip
    parts = {
        "matmul_facts": [SimpleNamespace(**known)] * count,
        "block_sizes": [SimpleNamespace(block_id=block) for block in order],
        "backend_name": "triton",
        "indexing": SimpleNamespace(inner=SimpleNamespace(choices=("pointer", "tensor_descriptor"))),
    } | spec
    settings = SimpleNamespace(dot_precision=precision, autotune_seed_configs=None, autotune_config_filter=None)
    return SimpleNamespace(config_spec=SimpleNamespace(**parts), settings=settings)


def test_seeds_are_the_models_first_choices():
    seeds = seed_configs(PRODUCT, "h100", keep=3)
    assert len(seeds) == 3
    passed = config_filter(PRODUCT, "h100", within=1.1)
    assert all(passed(seed) is seed for seed in seeds)
    assert len({(*seed["block_sizes"], seed["num_warps"]) for seed in seeds}) == 3
    assert {seed["indexing"] for seed in seed_configs(PRODUCT, "a100", keep=5)} == {"pointer"}


def test_a_bound_kernel_says_its_product():
    assert seed_configs(bound(), "h100") == seeds_of_the_product()
    turned = seed_configs(bound(order=(2, 1, 0)), "h100")
    assert [seed["block_sizes"][::-1] for seed in turned] == [seed["block_sizes"] for seed in seeds_of_the_product()]
    single = {"lhs_dtype": "torch.float32", "rhs_dtype": "torch.float32"}
    assert seed_configs(bound(single), "a100") == seed_configs(anatune.matmul(4096, 2048, 1024), "a100")


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({}, True),
        ({"block_sizes": [16, 16, 16]}, False),  # slow
        ({"block_sizes": [256, 256, 128], "num_stages": 4}, False),  # more shared memory than there is
        ({"range_num_stages": [0, 8]}, False),  # of the loop over k
        ({"range_unroll_factors": [0, 4]}, False),  # as deep as block_k times four
        ({"range_unroll_factors": [4, 0]}, True),
        ({"block_sizes": [16, 16, 16], "maxnreg": 64}, True),  # these are not judged
        ({"block_sizes": [16, 16, 16], "range_warp_specializes": [True]}, True),
        ({"block_sizes": [16, 16]}, True),
        ({"block_sizes": [16, 16, 16], "pid_type": "other"}, True),
        ({"block_sizes": [128, 128, 32], "range_unroll_factors": [0, 3]}, True),  # 96 deep
        ({"block_sizes": [16, 16, 16], "range_unroll_factors": [0, 3]}, False),
        # an unrolled loop has one stage of its own; descriptors leave it none, and do not unroll that of the kernel
        ({"block_sizes": [128, 128, 32], "range_unroll_factors": [0, 4], "range_num_stages": [0, 8]}, True),
        ({"indexing": "tensor_descriptor", "range_unroll_factors": [0, 4], "range_num_stages": [0, 8]}, True),
        ({"block_sizes": [16, 16, None]}, True),  # nor what cannot be read
        ({"block_sizes": 16}, True),
        ({"block_sizes": [16, 16, 16], "range_unroll_factors": [None]}, True),
        ({"block_sizes": [16, 16, 16], "range_unroll_factors": [0, 2.5]}, True),
        ({"block_sizes": [16, 16, 16], "range_num_stages": [None, None], "num_stages": None}, True),
    ],
)
def test_what_is_far_slower_or_illegal_is_not_compiled(change, passes):
    config = GOOD | change
    assert passed_of_the_product()(config) is (config if passes else None)


def test_guided_searches_get_both_and_leave_settings_as_they_were(monkeypatch):
    seen = []
    kernel = bound()
    settings = kernel.settings

    def look():
        seen.append((settings.autotune_seed_configs, settings.autotune_config_filter(GOOD)))

    def default(kernel, args):
        look()
        return SimpleNamespace(autotune=look)

    monkeypatch.setattr(
        "anatune.adapters.helion.import_module", lambda name: SimpleNamespace(default_autotuner_fn=default)
    )
    guided_autotuner("h100", keep=2)(kernel, ()).autotune()
    assert seen == [(seeds_of_the_product(keep=2), GOOD)] * 2
    assert (settings.autotune_seed_configs, settings.autotune_config_filter) == (None, None)
    settings.autotune_seed_configs, settings.autotune_config_filter = GOOD, lambda config: None
    guided_autotuner("h100", keep=2)(kernel, ())
    assert seen[2] == ([GOOD, *seeds_of_the_product(keep=2)], None)
    settings.autotune_config_filter = lambda config: config
    with warns(NotJudgedWarning):
        guided_autotuner("h100")(SimpleNamespace(config_spec=None, settings=settings), ())


@pytest.mark.parametrize(
    "product",
    [
        anatune.batch_matmul(2, 64, 64, 64),
        bound(count=2),
        bound(backend_name="cute"),
        bound({"static_m": None}),
        bound(order=(0, 1)),
        bound({"lhs_ndim": 3}),
        bound({"lhs_dtype": "torch.float64"}),
        bound({"lhs_dtype": "torch.float32"}, precision="tf32x3"),
        None,
    ],
)
def test_other_kernels_are_told(product):
    with refuses(SpaceError) as caught:
        seed_configs(product, "h100")
    assert "\n" not in str(caught.value)


def test_wrong_options_are_told_at_once():
    for order in ("mn", None, 5):
        with refuses(SpaceError):
            seed_configs(PRODUCT, "h100", order=order)
    with refuses(SpaceError):
        guided_autotuner("h100", within=0.5)
    with refuses(SpaceError):
        guided_autotuner("h100", keep=0)
    with refuses(UnknownNameError):
        config_filter(PRODUCT, "rtx9999")

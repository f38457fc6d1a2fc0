"""The pruner inside the real Triton: its autotuner asks, without a GPU, and its compiler confirms the resources."""

import itertools

import pytest

from anatune.adapters.triton import configs_for, matmul_pruner
from anatune.core.hardware.files import hardware
from anatune.errors import DeviceError, NotJudgedWarning, SpaceError, UnknownNameError
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import resources
from anatune.templates.triton.tiles import Tiles
from tests.kernel_arguments import Tensor, arguments
from tests.wording import check_texts, refuses, warns

pytestmark = pytest.mark.filterwarnings("error::anatune.errors.NotJudgedWarning")
triton = pytest.importorskip("triton", reason="contract tests of the Triton adapter need the package triton")
tl = pytest.importorskip("triton.language", reason="needs triton")

CONFIGS = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 8}, num_warps=4, num_stages=2)]
CONFIGS += [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=w, num_stages=s)
    for m, n, k, w, s in itertools.product((32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128), (4, 8), (2, 3, 4, 5))
]


@triton.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :])
        b = tl.load(b_ptr + k[:, None] * N + n[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + m[:, None] * N + n[None, :], total.to(c_ptr.dtype.element_ty))


def autotuner(pruner, call):
    tuned = triton.autotune(configs=CONFIGS, key=["M", "N", "K"], prune_configs_by=pruner)(kernel)
    tuned.nargs = call
    return tuned


def test_the_autotuner_measures_the_first_of_the_order_and_the_default():
    pruner = matmul_pruner(hw="a100", keep=8)
    kept = autotuner(pruner, arguments()).prune_configs({})
    assert len(kept) == len(set(kept)) == 8
    assert CONFIGS[0] in kept
    places = [pruner.explain(config).place for config in kept if config is not CONFIGS[0]]
    assert places == list(range(1, 8))
    assert all(pruner.explain(config).kept == (config in kept) for config in CONFIGS)
    assert autotuner(matmul_pruner(hw="a100", keep=8), arguments()).prune_configs({}) == kept


def test_every_rejected_one_can_be_asked_why():
    pruner = matmul_pruner(hw="rtx3090", keep=0.05)
    kept = autotuner(pruner, arguments()).prune_configs({})
    for config in CONFIGS:
        verdict = pruner.explain(config)
        assert "\n" not in verdict.text
        if config in kept:
            assert verdict.text.startswith("kept")
        elif verdict.rule:
            assert verdict.rule in verdict.text
            assert verdict.needed > verdict.limit
        else:
            assert verdict.time_s > 0.998 * verdict.best_s  # times within 0.1 % are ties
            assert verdict.bound_by in verdict.text
    another = triton.Config({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 1}, num_warps=1)
    assert not pruner.explain(another).kept
    assert pruner.explain(another, **arguments(64, 64, 64)).kept


def test_shapes_and_dtypes_of_the_call_decide():
    pruner = matmul_pruner(hw="a100", keep=1 / 50)
    tuned = autotuner(pruner, arguments())
    large = tuned.prune_configs({})
    tuned.nargs = arguments(128, 128, 4096)
    assert tuned.prune_configs({}) != large
    tuned.nargs = arguments(dtype="torch.float32")
    assert tuned.prune_configs({}) != large
    assert "tf32" in str(pruner.explain(CONFIGS[0]))
    tuned.nargs = arguments(transposed=True)
    assert tuned.prune_configs({})[0] in CONFIGS


def test_pieces_on_their_own():
    pruner = matmul_pruner(hw="a100", keep=5)
    assert dict(pruner).keys() == {"early_config_prune", "perf_model", "top_k"}
    both = autotuner(pruner, arguments()).prune_configs({})
    early = autotuner({"early_config_prune": pruner.early_config_prune}, arguments()).prune_configs({})
    assert early == both
    modelled = autotuner({"perf_model": pruner.perf_model, "top_k": 5}, arguments()).prune_configs({})
    assert len(modelled) == 5
    times = [pruner.perf_model(**arguments(), **config.all_kwargs()) for config in CONFIGS]
    best = min(range(len(CONFIGS)), key=times.__getitem__)
    assert times[CONFIGS.index(modelled[0])] == times[best]
    illegal = triton.Config({"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "GROUP_M": 8}, num_warps=8, num_stages=5)
    assert pruner.perf_model(**arguments(), **illegal.all_kwargs()) == float("inf")


def test_an_illegal_default_stays():
    illegal = triton.Config({"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128}, num_warps=8, num_stages=5)
    pruner = matmul_pruner(hw="a100", keep=3)
    kept = pruner.early_config_prune([illegal, *CONFIGS], arguments())
    assert len(kept) == 3
    assert kept[-1] is illegal
    check_texts([str(pruner.explain(illegal))])


def test_names_of_ones_own():
    config = triton.Config({"X": 64, "Y": 64, "Z": 32, "SPLIT": 4}, num_warps=4)
    names = {"block_m": "X", "block_n": "Y", "block_k": "Z", "split_k": "SPLIT", "k": "depth", "a": "left"}
    names |= {"m": lambda call: call["left"].shape[0], "n": lambda call: call["right"].shape[1]}
    pruner = matmul_pruner(hw="a100", names=names)
    call = {"left": Tensor((128, 8192)), "right": Tensor((8192, 256)), "depth": 8192}
    assert pruner.early_config_prune([config], call) == [config]
    assert "128 x 256 x 8192 float16" in str(pruner.explain(config))


@pytest.mark.parametrize(
    "options",
    [{"keep": 0}, {"names": {"block": "X"}}, {"names": {"block_m": 3}}, {"names": "BLOCK_M"}, {"dtype": "int3"}],
)
def test_wrong_options_are_one_line(options):
    with refuses(SpaceError) as caught:
        matmul_pruner(hw="a100", **options)
    assert "\n" not in str(caught.value)


CALLS = [
    ([triton.Config({"P": 1}), CONFIGS[1]], arguments(), 2),
    ([triton.Config({"P": 1})], arguments(), 1),
    ([triton.Config({"BLOCK_M": "x", "BLOCK_N": 64, "BLOCK_K": 64})], arguments(), 1),
    ([triton.Config({})], arguments(), 1),
    ([1], arguments(), 1),
    (CONFIGS, {"a_ptr": Tensor((8, 8)), "M": 8, "N": 8}, None),
    (CONFIGS, {"M": 8, "N": 8, "K": 8}, None),
    (CONFIGS, None, None),
    (CONFIGS, arguments() | {"a_ptr": None, "b_ptr": None, "c_ptr": None}, None),
    (CONFIGS, arguments(dtype="torch.float64"), None),
    (CONFIGS, arguments(dtype="torch.int8") | {"b_ptr": Tensor((4096, 4096))}, None),
    (CONFIGS, arguments() | {"b_ptr": Tensor((2048, 4096), "torch.uint8")}, None),
    (CONFIGS, arguments() | {"b_ptr": Tensor((4096, 4096), "torch.bfloat16")}, None),
    (CONFIGS, arguments() | {"M": 0}, None),
    (CONFIGS, arguments() | {"M": 64.0}, None),
    (CONFIGS, arguments() | {"a_ptr": Tensor((8, 4096, 4096))}, None),
    (CONFIGS, arguments() | {"a_ptr": Tensor((4096, 4096), steps=(8192, 2))}, None),
    (CONFIGS, arguments() | {"grid": (128, 128, 8)}, None),
    (CONFIGS, arguments() | {"grid": lambda meta: (128 * 128, 8)}, None),
    (CONFIGS, arguments() | {"grid": (100,)}, None),
    (CONFIGS, arguments() | {"grid": lambda meta: (meta["HEADS"],)}, None),
    ([*CONFIGS, triton.Config(CONFIGS[5].kwargs, num_ctas=2)], arguments(), 9),
    ([*CONFIGS, triton.Config(CONFIGS[5].kwargs, maxnreg=64)], arguments(), 9),
    ([triton.Config({"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128}, num_stages=5)] * 2, arguments(), 2),
]


@pytest.mark.parametrize(("configs", "call", "count"), CALLS, ids=range(len(CALLS)))
def test_what_cannot_be_judged_stays_and_is_said_once(configs, call, count):
    pruner = matmul_pruner(hw="a100", keep=8)
    with warns(NotJudgedWarning) as said:
        kept = pruner.early_config_prune(configs, call)
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert len(kept) == (len(configs) if count is None else count)
    if count != 9:
        assert set(map(id, kept)) == set(map(id, configs))
    assert pruner.explain(configs[-1]).kept
    assert "\n" not in str(pruner.explain(configs[-1]))
    assert len(pruner.early_config_prune(configs, call)) == len(kept)  # silent now: other warnings are errors here


@pytest.mark.parametrize(
    ("call", "grid"),
    [
        (arguments(dtype="torch.float64"), None),
        (arguments() | {"M": 0}, None),
        (arguments(), lambda meta: (triton.cdiv(4096, meta["BLOCK_M"]) * triton.cdiv(4096, meta["BLOCK_N"]), 1, 16)),
    ],
)
def test_triton_goes_on_with_the_whole_list(call, grid):
    tuned = autotuner(matmul_pruner(hw="a100", keep=8), call)
    with pytest.warns(NotJudgedWarning):
        assert tuned.prune_configs({"grid": grid} if grid else {}) == CONFIGS
    alone = autotuner({"perf_model": matmul_pruner(hw="a100").perf_model, "top_k": 5}, call)
    with warns(NotJudgedWarning) as said:
        assert alone.prune_configs({"grid": grid} if grid else {}) == list(dict.fromkeys(CONFIGS))[:5]
    assert len(said) == 1


def test_a_grid_of_one_product_is_judged():
    def grid(meta):
        return triton.cdiv(meta["M"], meta["BLOCK_M"]), triton.cdiv(meta["N"], meta["BLOCK_N"])

    kept = autotuner(matmul_pruner(hw="a100", keep=8), arguments()).prune_configs({"grid": grid})
    assert kept == autotuner(matmul_pruner(hw="a100", keep=8), arguments()).prune_configs({})
    flat = arguments() | {"a_ptr": Tensor((8, 512, 4096))}  # sequences of a batch, one below the other
    assert autotuner(matmul_pruner(hw="a100", keep=8), flat).prune_configs({"grid": grid}) == kept


@pytest.mark.parametrize("first", range(0, len(CONFIGS), 40))
def test_one_is_the_best_predicted_wherever_it_is_listed(first):
    pruner = matmul_pruner(hw="a100", keep=1)
    listed = [*CONFIGS[first:], *CONFIGS[:first]]
    (kept,) = pruner.early_config_prune(listed, arguments())
    assert pruner.explain(kept).place == 1
    if first:
        assert kept == pruner.early_config_prune(CONFIGS, arguments())[0]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 4096), (4096, 1, 4096), (64, 64, 1), (1, 1, 1)])
def test_extents_of_one(m, n, k):
    assert len(matmul_pruner(hw="h100_sxm", keep=4).early_config_prune(CONFIGS, arguments(m, n, k))) == 4


@pytest.mark.parametrize("dtype", ["torch.float8_e4m3fn", "torch.float8_e5m2", "torch.bfloat16", "torch.float32"])
@pytest.mark.parametrize("keep", [8, 10_000, 0.999, 1e-9])
def test_dtypes_and_shares(dtype, keep):
    kept = matmul_pruner(hw="h100_sxm", keep=keep).early_config_prune(CONFIGS, arguments(dtype=dtype))
    assert 1 <= len(kept) <= len(CONFIGS)
    assert len(kept) == 8 or keep != 8


def test_a_weight_stored_the_other_way_round():
    pruner = matmul_pruner(hw="a100", keep=8)
    along = {"b_ptr": Tensor((512, 4096), transposed=True)}
    weight = {"b_ptr": Tensor((4096, 512))}  # N x K: what torch.nn.Linear keeps
    kept = [pruner.early_config_prune(CONFIGS, arguments(4096, 4096, 512) | b) for b in (along, weight)]
    assert kept[0] == kept[1]


def test_an_empty_list():
    assert matmul_pruner(hw="a100").early_config_prune([], arguments()) == []
    tuned = triton.autotune(configs=[], key=["M"], prune_configs_by=matmul_pruner(hw="a100"))(kernel)
    tuned.nargs = arguments()
    with warns(NotJudgedWarning):
        assert tuned.prune_configs({}) == tuned.configs  # Triton's own default


def test_hooks_of_configurations_stay():
    hooked = [triton.Config(config.kwargs, config.num_warps, config.num_stages, pre_hook=print) for config in CONFIGS]
    kept = matmul_pruner(hw="a100", keep=8).early_config_prune(hooked, arguments())
    assert len(kept) == 8
    assert all(config.pre_hook is print for config in kept)


def test_an_unknown_device_is_told_where_it_is_named():
    with refuses(UnknownNameError):
        matmul_pruner(hw="rtx9999")
    with refuses(SpaceError):
        matmul_pruner(hw="ryzen_3700x")


def test_asking_before_a_call():
    with refuses(SpaceError):
        matmul_pruner(hw="a100").explain(CONFIGS[0])


def test_auto_is_looked_up_at_the_first_call(monkeypatch):
    monkeypatch.delenv("ANATUNE_HW", raising=False)
    monkeypatch.setattr("anatune.measure.cuda.detect.gpu_detection", lambda: ([], "no driver"))
    monkeypatch.setattr("anatune.adapters.device._triton_driver", lambda: None)
    pruner = matmul_pruner()
    with warns(NotJudgedWarning) as said:
        assert pruner.early_config_prune(CONFIGS, arguments()) == CONFIGS
    assert "\n" not in str(said[0].message)
    with pytest.raises(DeviceError):
        _ = pruner.hardware
    monkeypatch.setenv("ANATUNE_HW", "h100_sxm")
    assert len(pruner.early_config_prune(CONFIGS, arguments())) == 8
    assert pruner.hardware.name == "h100_sxm"


def test_proposed_configs_are_real_ones():
    names = {"block_m": "BM", "block_n": "BN", "block_k": "BK", "split_k": "SK", "group_m": "GM"}
    found = configs_for(64, 64, 16384, hw="a100", keep=5, names=names)
    assert len(found) == 5
    assert all(isinstance(config, triton.Config) and set(config.kwargs) == set(names.values()) for config in found)
    assert found[0].kwargs["SK"] > 1
    assert configs_for(512, 512, 512, hw="a100", keep=2)[0].kwargs.keys() == {
        "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "spec", "tile"),
    [
        (80, "a100_sxm", (64, 128, 32, 4, 3)),
        (80, "a100_sxm", (128, 128, 32, 8, 4)),
        (90, "h100_sxm", (128, 128, 64, 4, 3)),
        (90, "h100_sxm", (32, 64, 64, 4, 3)),
    ],
)
def test_shared_memory_is_what_the_compiler_allocates(arch, spec, tile, tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    m, n, k, warps, stages = tile
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp16")
    sizes = dict.fromkeys(("M", "N", "K"), "i32")
    meta = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}
    source = ASTSource(
        fn=kernel,
        signature=pointers | sizes | dict.fromkeys(meta, "constexpr"),
        constexprs=meta,
        attrs={(i,): [["tt.divisibility", 16]] for i in range(6)},
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": stages}
    )
    need = resources(MatmulProblem(4096, 4096, 4096), Tiles.of([[*tile, 1, 8]]), hardware(spec))
    assert need.shared_bytes[0] == compiled.metadata.shared

"""The real autotuner's calls, with a benchmark that is none: what is measured, for every kind of kernel."""

import itertools
from types import SimpleNamespace

import pytest

from anatune.adapters.triton import matmul_pruner, moe_pruner
from anatune.errors import NotJudgedWarning
from anatune.templates.triton.problem import DTYPES
from tests.kernel_arguments import Tensor, arguments, expert_arguments
from tests.wording import warns

pytestmark = pytest.mark.filterwarnings("error::anatune.errors.NotJudgedWarning")
triton = pytest.importorskip("triton", reason="contract tests of the Triton adapter need the package triton")
tl = pytest.importorskip("triton.language", reason="needs triton")

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=w, num_stages=s)
    for m, n, k, w, s in itertools.product((16, 64, 128, 256), (64, 128, 256), (32, 64, 128), (4, 8), (3, 4))
]


@triton.jit
def kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pass


def tiles_of(meta):
    return triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"])


class Run:
    """The autotuner called with a kernel that does nothing, and a clock that counts."""

    def __init__(self, prune_configs_by, configs=CONFIGS, key=("M", "N", "K"), kernel=kernel, **options):
        self.measured, self.launched = 0, []

        def do_bench(call, quantiles):
            self.measured += 1
            return [1.0] * len(quantiles)

        self.tuner = triton.autotune(
            configs, key=list(key), prune_configs_by=prune_configs_by, do_bench=do_bench, **options
        )(kernel)
        self.tuner.fn = SimpleNamespace(run=lambda *_, **given: self.launched.append(given))

    def __call__(self, call=None, grid=lambda meta: (tiles_of(meta),), **given):
        self.tuner.run(*(call or arguments()).values(), grid=grid, warmup=False, **given)
        return self.tuner.best_config


@pytest.mark.skipif(VERSION < (3, 8), reason="before Triton 3.8 a single configuration is measured, too")
@pytest.mark.parametrize("keep", [1, 1e-9])
def test_one_is_not_measured(keep):
    pruner = matmul_pruner(hw="a100", keep=keep)
    run = Run(pruner)
    best = run()
    assert run.measured == 0
    assert pruner.explain(best).place == 1
    assert len(run.launched) == 1
    assert run() is best
    other = run(arguments(64, 64, 8192))
    assert run.measured == 0
    assert other is not best


def test_as_many_are_measured_as_are_kept_once_a_shape():
    run = Run(matmul_pruner(hw="a100", keep=8))
    run(), run()
    assert run.measured == 8
    run(arguments(64, 4096, 4096))
    assert run.measured == 16


def test_what_cannot_be_judged_is_measured_beside_the_one():
    hooked = [*CONFIGS, triton.Config(CONFIGS[0].kwargs, num_ctas=2)]
    run = Run(matmul_pruner(hw="h100_sxm", keep=1), hooked)
    with warns(NotJudgedWarning):
        run()
    assert run.measured == 2


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_the_pruners_own_share_counts_survivors_for_every_version(share):
    """Triton below 3.9 takes a fractional top_k of the whole list; all of it is what the pruner says."""
    pruner = matmul_pruner(hw="a100", keep=share)
    assert pruner["top_k"] == 1.0
    run = Run(pruner)
    run()
    legal = [config for config in CONFIGS if not pruner.explain(config).rule]
    assert run.measured == pytest.approx(share * len(legal), abs=1)


def test_meta_parameters_of_amd_are_variants_in_the_order_given():
    variants = [
        triton.Config(
            config.kwargs | {"waves_per_eu": waves, "matrix_instr_nonkdim": 16, "kpack": 1},
            config.num_warps,
            config.num_stages,
        )
        for config in CONFIGS
        for waves in (0, 2, 4)
    ]
    pruner = matmul_pruner(hw="mi300x", keep=len(variants))
    kept = pruner.early_config_prune(variants, arguments())
    for config in kept:
        same = [v.kwargs["waves_per_eu"] for v in kept if sizes(v) == sizes(config)]
        assert same == sorted(same)


def sizes(config):
    return *(config.kwargs[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")), config.num_warps, config.num_stages


class BFloat16:
    """What a TensorDescriptor of Triton asks a torch.dtype."""

    itemsize = 2

    def __str__(self):
        return "torch.bfloat16"


class Base(Tensor):
    """What a TensorDescriptor of Triton asks a torch.Tensor."""

    def __init__(self, shape):
        super().__init__(shape, BFloat16())

    def element_size(self):
        return self.dtype.itemsize

    def data_ptr(self):
        return 4096


def test_descriptors_of_triton_stand_for_pointers():
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor", reason="needs Triton 3.4")
    call = arguments(4096, 2048, 1024, dtype="torch.bfloat16")
    shapes = {"a_ptr": (4096, 1024), "b_ptr": (2048, 1024), "c_ptr": (4096, 2048)}
    described = {name: descriptor.TensorDescriptor.from_tensor(Base(shape), [1, 1]) for name, shape in shapes.items()}
    run = Run(pruner := matmul_pruner(hw="h100_sxm", keep=8))
    run(call | described)
    assert run.measured == 8
    assert "4096 x 2048 x 1024 bfloat16" in str(pruner.explain(CONFIGS[0]))


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        *(((f"torch.{name}", f"torch.{name}"), name) for name, size in DTYPES.items() if size == 1),
        (("torch.bfloat16", "torch.int8"), "bfloat16"),
        (("torch.float16", "torch.float8_e4m3fn"), "float16"),
    ],
)
def test_operands_of_8_bits(pair, words):
    call = arguments() | {
        name: Tensor((4096, 4096), dtype) for name, dtype in zip(("a_ptr", "b_ptr"), pair, strict=True)
    }
    hw = "mi300x" if words.endswith("fnuz") else "h100_sxm"  # AMD's own, which no other device has
    run = Run(pruner := matmul_pruner(hw=hw, keep=4))
    run(call)
    assert run.measured == 4
    assert words in str(pruner.explain(CONFIGS[0]))


def test_weights_of_8_bits_are_another_problem_than_wide_ones():
    pruner, listed = matmul_pruner(hw="a100", keep=len(CONFIGS)), CONFIGS
    wide = pruner.early_config_prune(listed, arguments(16, 4096, 4096))
    seconds = pruner.explain(wide[0]).time_s
    narrow = pruner.early_config_prune(
        listed, arguments(16, 4096, 4096) | {"b_ptr": Tensor((4096, 4096), "torch.int8")}
    )
    verdict = pruner.explain(narrow[0])
    assert verdict.time_s != seconds  # fewer bytes, more instructions
    assert "float16 x 8 bits" in str(verdict)


@pytest.mark.parametrize(
    "grid", [lambda meta: (min(132, tiles_of(meta)),), lambda meta: (min(264, tiles_of(meta)),), (132,)]
)
def test_persistent_kernels_are_judged(grid):
    run = Run(pruner := matmul_pruner(hw="h100_sxm", keep=8))
    run(grid=grid)
    assert run.measured == 8
    assert pruner.perf_model(**arguments(), grid=grid, **CONFIGS[0].all_kwargs()) > 0


def test_rows_of_odd_bytes_have_no_descriptors():
    run = Run(matmul_pruner(hw="h100_sxm", keep=8, names={"descriptors": True}))
    with warns(NotJudgedWarning) as said:
        run(arguments(4096, 4096, 4095))
    assert len(said) == 1
    assert run.measured == len(CONFIGS)


@triton.jit
def fused_moe_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    sorted_token_ids_ptr,
    expert_ids_ptr,
    num_tokens_post_padded_ptr,
    N,
    K,
    EM,
    num_valid_tokens,
    top_k: tl.constexpr,
    group_k: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):
    pass


def expert_blocks(meta):
    return (triton.cdiv(meta["EM"], meta["BLOCK_SIZE_M"]) * triton.cdiv(meta["N"], meta["BLOCK_SIZE_N"]),)


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"down": True},
        {"weights": "torch.int8"},
        {"packed": True},
        {"dtype": "torch.int8"},
        {"dtype": "torch.float8_e4m3fn"},
        {"dtype": "torch.float8_e4m3fn", "group_k": 128},
    ],
)
def test_kernels_of_experts(kind):
    configs = [
        triton.Config(
            {f"BLOCK_SIZE_{x}": size for x, size in zip("MNK", sizes, strict=True)} | {"GROUP_SIZE_M": 16}, w, s
        )
        for *sizes, w, s in itertools.product((16, 64, 128), (64, 128), (64, 128), (4, 8), (3, 4))
    ]
    run = Run(pruner := moe_pruner("h100_sxm", keep=6), configs, ("N", "K", "num_valid_tokens"), fused_moe_kernel)
    best = run(expert_arguments(**kind), expert_blocks)
    assert run.measured == 6
    assert pruner.explain(best).kept
    run(expert_arguments(16, **kind), expert_blocks)
    assert run.measured == 12
    ranked = Run({"perf_model": pruner.perf_model, "top_k": 3}, configs, ("N", "K", "EM"), fused_moe_kernel)
    ranked(expert_arguments(**kind), expert_blocks)
    assert ranked.measured == 3


def test_rows_that_are_sorted_already_fix_block_m():
    configs = [
        triton.Config({"BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 1}) for n in (64, 128) for k in (64, 128)
    ]
    run = Run(moe_pruner("h100_sxm", keep=2), configs, ("N", "K", "EM"), fused_moe_kernel)
    run(expert_arguments(), expert_blocks, BLOCK_SIZE_M=16)
    assert run.measured == 2

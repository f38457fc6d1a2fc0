"""Layers by config.json."""

import itertools
import json

import pytest

from anatune.errors import SpaceError
from anatune.servers.shapes import Experts, Product, check_shape, check_size, model_experts
from tests.wording import refuses

MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3 = {"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
         "num_experts_per_tok": 8}  # fmt: skip
DEEPSEEK = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
PACKED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
}


def read(config, ranks=1, spread=1, dtype=None):
    return model_experts(json.dumps(config).encode(), "config.json", ranks, spread, dtype)


@pytest.mark.parametrize(
    ("config", "ranks", "shape"),
    [
        (MIXTRAL, 2, Experts(8, 7168, 4096, 2)),
        (QWEN3, 1, Experts(128, 768, 2048, 8)),
        (DEEPSEEK, 8, Experts(256, 256, 7168, 8, "fp8_w8a8", (128, 128))),
        ({"text_config": {**QWEN3}}, 1, Experts(128, 768, 2048, 8)),
        ({**MIXTRAL, "quantization_config": {"quant_method": "fp8"}}, 1, Experts(8, 14336, 4096, 2, "fp8_w8a8")),
    ],
)
def test_models(config, ranks, shape):
    assert read(config, ranks) == shape


@pytest.mark.parametrize(
    ("quantised", "dtype", "group"),
    [
        (AWQ, "int4_w4a16", 128),
        (PACKED, "int4_w4a16", 32),
        ({**AWQ, "quant_method": "gptq", "bits": 8}, "int8_w8a16", 128),
    ],
)
def test_weights_of_few_bits(quantised, dtype, group):
    found = read({**QWEN3, "quantization_config": quantised})
    assert found == Experts(128, 768, 2048, 8, dtype, group=group)
    check_shape(found)


def test_experts_are_spread_over_ranks():
    assert read(DEEPSEEK, spread=16) == Experts(16, 2048, 7168, 8, "fp8_w8a8", (128, 128), ranks=16)
    assert read(QWEN3, 2, 4) == Experts(32, 384, 2048, 8, ranks=4)
    check_shape(read({**QWEN3, "num_experts_per_tok": 32}, spread=8))  # more than a rank has


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        ({"hidden_size": 4096}, 1),
        (QWEN3, 7),
        ({**QWEN3, "quantization_config": {"quant_method": "awq"}}, 1),
        ({**QWEN3, "quantization_config": {**AWQ, "bits": 3}}, 1),
        ([1], 1),
        ({**QWEN3, "hidden_size": 1 << 25}, 1),
        ({**QWEN3, "num_experts": 1 << 17}, 1),
        ({**DEEPSEEK, "quantization_config": {"quant_method": "fp8", "weight_block_size": [1 << 70, 128]}}, 1),
        ({**QWEN3, "quantization_config": {**AWQ, "group_size": 1 << 70}}, 1),
    ],
)
def test_what_is_no_model_of_experts(config, ranks):
    with refuses(SpaceError):
        read(config, ranks)


@pytest.mark.parametrize(
    "shape",
    [Experts(8, 64, 64, 9), Experts(8, 64, 64, 2, "int4_w4a16"), Experts(8, 64, 64, 2, "auto", (128, 128)),
     Product(64, 64, block=(100, 128)), Experts(8, 64, 64, 2, group=32),
     Experts(8, 192, 256, 2, "int4_w4a16", group=128),
     Experts(8, 96, 256, 2, "int4_w4a16", group=32), Experts(8, 64, 64, 2, "int8_w8a16", group=48)],
)  # fmt: skip
def test_layers_without_a_model(shape):
    with pytest.raises(SpaceError):
        check_shape(shape)


BLOCKS = [(128, 128), (64, 128), (128, 32)]


@pytest.mark.parametrize("dtype", ["fp8_w8a8", "int8_w8a8"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("intermediate", "hidden", "n", "k"), [*itertools.product((96, 128, 192), (64, 256), (96, 576), (96, 256))]
)
def test_layers_are_whole_blocks_of_scales(dtype, block, intermediate, hidden, n, k):
    """As ``Fp8MoEMethod.create_weights``, ``validate_fp8_block_shape`` and ``per_token_group_quant_fp8`` want them."""
    layers = {
        Experts(8, intermediate, hidden, 2, dtype, block):
            intermediate % block[0] == intermediate % block[1] == hidden % block[1] == 0,
        Product(n, k, dtype, block): k % block[1] == 0 and (n > block[0] or n % block[0] == 0),
    }  # fmt: skip
    for layer, is_taken in layers.items():
        if is_taken:
            check_shape(layer)
            continue
        with pytest.raises(SpaceError, match=f"{block[0]} x {block[1]}"):
            check_shape(layer)


def test_what_does_not_divide_is_said():
    with refuses(SpaceError):
        read(QWEN3, spread=7)
    with refuses(SpaceError):
        read(QWEN3, 7, 2)


def test_a_dtype_that_is_said_counts():
    mxfp4 = {**QWEN3, "quantization_config": {"quant_method": "mxfp4"}}
    with refuses(SpaceError):
        read(mxfp4)
    assert read(mxfp4, dtype="auto") == Experts(128, 768, 2048, 8)
    assert read(DEEPSEEK, 8, dtype="fp8_w8a8").block == (128, 128)
    assert read(DEEPSEEK, 8, dtype="auto").block is None
    assert read({**QWEN3, "quantization_config": AWQ}, dtype="int4_w4a16").group == 128


@pytest.mark.parametrize("value", ["0", "-1", "x", "", 1 << 25, 0, True, 1.5, pytest.param("9" * 5000, id="long")])
def test_sizes_are_checked(value):
    with refuses(SpaceError):
        check_size("size", value)
    assert check_size("size", " 128 ") == 128

"""Layers by config.json."""

import json

import pytest

from anatune.adapters.serving.shapes import Experts, Product, check_shape, model_experts
from anatune.errors import SpaceError

MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3 = {"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
         "num_experts_per_tok": 8}  # fmt: skip
DEEPSEEK = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


def read(config, ranks=1):
    return model_experts(json.dumps(config).encode(), "config.json", ranks)


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
    ("config", "ranks", "said"),
    [
        ({"hidden_size": 4096}, 1, "no model of experts"),
        (QWEN3, 7, "--tp 7"),
        ({**QWEN3, "quantization_config": {"quant_method": "awq"}}, 1, "--dtype"),
        ([1], 1, "no JSON object"),
    ],
)
def test_what_is_no_model_of_experts(config, ranks, said):
    with pytest.raises(SpaceError, match=said):
        read(config, ranks)


@pytest.mark.parametrize(
    "shape",
    [Experts(8, 64, 64, 9), Experts(8, 64, 64, 2, "int4_w4a16"), Experts(8, 64, 64, 2, "auto", (128, 128)),
     Product(64, 64, block=(100, 128))],
)  # fmt: skip
def test_layers_without_a_model(shape):
    with pytest.raises(SpaceError):
        check_shape(shape)

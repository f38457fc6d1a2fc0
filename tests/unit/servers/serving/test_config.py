"""Decoders read from config.json, and their weights on one of several devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatune.errors import SpaceError
from anatune.servers.serving.config import parse_decoder, read_decoder
from anatune.servers.serving.division import Parallelism, cache_bytes, check_division, head_product, weight_bytes
from tests.unit.servers.serving.models import DEEPSEEK, GEMMA, GPT_OSS, LLAMA, MIXTRAL, QWEN, text_of
from tests.wording import refuses


def decoder_of(config, precision=None, **changes):
    return parse_decoder(text_of(config, **changes), "config.json", precision)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(LLAMA, 8.03e9), (QWEN, 32.8e9), (GPT_OSS, 117e9), (DEEPSEEK, 671e9), (MIXTRAL, 46.7e9), (GEMMA, 27.0e9)],
    ids=["llama", "qwen", "gpt-oss", "deepseek", "mixtral", "gemma"],
)
def test_parameters_are_those_of_the_model_cards(config, parameters):
    """Biases and the weights of norms, which are left out, are far below a hundredth."""
    bytes_of_16_bits = weight_bytes(decoder_of(config, "bfloat16"), Parallelism())
    assert bytes_of_16_bits / 2 == pytest.approx(parameters, rel=0.015)


def test_layers_of_one_size_are_one_group():
    groups = decoder_of(GPT_OSS).layers
    assert [(group.count, group.window, group.experts) for group in groups] == [(18, 128, 128), (18, 0, 128)]
    dense, sparse = decoder_of(DEEPSEEK).layers
    assert (dense.count, dense.experts, dense.intermediate) == (3, 0, 18432)
    assert (sparse.count, sparse.experts, sparse.intermediate, sparse.expert_intermediate) == (58, 256, 2048, 2048)
    sliding, full = decoder_of(GEMMA).layers
    assert (sliding.count, sliding.window, full.count, full.window) == (52, 1024, 10, 0)
    assert {group.window for group in decoder_of(MIXTRAL).layers} == {0}


def test_the_file_tells_the_format_of_weights():
    assert decoder_of(LLAMA).precision == "bfloat16"
    assert decoder_of(DEEPSEEK).precision == "fp8_block"
    assert (decoder_of(GPT_OSS).precision, decoder_of(GPT_OSS).dense_precision) == ("mxfp4", "bfloat16")
    few_bits = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    assert decoder_of(LLAMA, quantization_config=few_bits).dense_precision == "int4"
    assert (
        decoder_of(LLAMA, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"}).precision == "nvfp4"
    )
    assert decoder_of(DEEPSEEK, "nvfp4").dense_precision == "bfloat16"


@given(tp=st.sampled_from([1, 2, 4, 8]), config=st.sampled_from([LLAMA, QWEN, GPT_OSS, DEEPSEEK, MIXTRAL]))
def test_devices_together_hold_at_least_the_model(tp, config):
    decoder = decoder_of(config)
    whole, part = weight_bytes(decoder, Parallelism()), weight_bytes(decoder, Parallelism(tp))
    assert whole <= tp * part * (1 + 1e-12) <= 1.1 * whole
    if decoder.has_experts:
        assert weight_bytes(decoder, Parallelism(tp, tp)) == pytest.approx(part, rel=1e-9)
    assert head_product(decoder, Parallelism(tp)).n * tp >= decoder.vocab


@given(tokens=st.integers(1, 10_000))
def test_windows_bound_the_cache(tokens):
    decoder = decoder_of(GPT_OSS)
    held = cache_bytes(decoder, Parallelism(), tokens, 2.0)
    assert held == 2.0 * 8 * 128 * (18 * tokens + 18 * min(tokens, 128))
    assert cache_bytes(decoder_of(DEEPSEEK), Parallelism(8), tokens, 2.0) == 2.0 * 61 * 576 * tokens


def test_files_of_many_kinds_tell_the_format_of_weights(tmp_path):
    nested = {"quantization": {"quant_algo": "NVFP4"}}
    assert decoder_of(LLAMA, quantization_config=nested).precision == "nvfp4"
    for weights, precision in (
        ({"type": "float", "num_bits": 8, "strategy": "channel"}, "fp8"),
        ({"type": "float", "num_bits": 8, "strategy": "block"}, "fp8_block"),
        ({"type": "float", "num_bits": 4, "group_size": 16}, "nvfp4"),
    ):
        groups = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
        assert decoder_of(LLAMA, quantization_config=groups).precision == precision
    (tmp_path / "config.json").write_bytes(text_of(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert read_decoder(tmp_path).precision == "fp8"
    assert read_decoder(tmp_path, "bfloat16").precision == "bfloat16"


def test_smaller_groups_of_integers_have_more_scales():
    def bytes_of(**quantised):
        decoder = parse_decoder(
            text_of(LLAMA, quantization_config={"quant_method": "awq", "bits": 4, **quantised}), "a"
        )
        return weight_bytes(decoder, Parallelism())

    assert bytes_of(group_size=32) > bytes_of(group_size=128) == bytes_of(group_size=128, version="gemm")
    asked = parse_decoder(text_of(LLAMA, quantization_config={"group_size": "x"}), "a", "int4")
    assert asked.group == 128


def test_what_files_leave_out_is_as_in_their_classes():
    gemma = {key: GEMMA["text_config"][key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    sizes = decoder_of({"model_type": "gemma3", "text_config": gemma}).attention
    assert (sizes.heads, sizes.kv_heads, sizes.head_dim) == (8, 4, 256)
    windows = {"model_type": "qwen2", "sliding_window": 4096}
    assert {group.window for group in decoder_of(QWEN, **windows).layers} == {0}
    assert {group.window for group in decoder_of(QWEN, **windows, use_sliding_window=True).layers} == {4096}
    some = decoder_of(QWEN, **windows, use_sliding_window=True, max_window_layers=60).layers
    assert [(group.count, group.window) for group in some] == [(60, 0), (4, 4096)]


WRONG = {
    "list of types": {"model_type": ["llama"]},
    "word": {"quantization_config": "fp8"},
    "tied": {"tie_word_embeddings": "false"},
    "type": {"model_type": "rwkv"},
    "sparse attention": {"index_topk": 2048},
    "linear attention": {"linear_num_key_heads": 16},
    "layer types": {"layer_types": ["linear_attention"] * 32},
    "no hidden size": {"hidden_size": None},
    "text": {"num_hidden_layers": "many"},
    "negative": {"vocab_size": -1},
    "heads": {"num_key_value_heads": 5},
    "quantisation": {"quantization_config": {"quant_method": "aqlm"}},
    "modelopt": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8"}},
    "experts": {"num_local_experts": 4, "num_experts_per_tok": 8},
    "windows": {"sliding_window": 128, "layer_types": ["full_attention"]},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_what_is_wrong_or_unknown_is_one_line(changes):
    with refuses(SpaceError):
        decoder_of(LLAMA, **changes)


def test_files_and_divisions_that_are_wrong(tmp_path):
    with refuses(SpaceError):
        read_decoder(tmp_path / "none.json")
    with refuses(SpaceError):
        parse_decoder(b"[1]", "config.json")
    with refuses(SpaceError):
        parse_decoder(text_of(LLAMA), "config.json", "int3")
    for division in (Parallelism(3), Parallelism(2, 2)):
        with refuses(SpaceError):
            check_division(decoder_of(LLAMA), division)
    with refuses(SpaceError):
        check_division(decoder_of(MIXTRAL), Parallelism(16, 16))

"""Readers of ONNX operators, by family: each returns the operators of the graph that replace a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from anatune.network.graph.onnx.call import Convert
from anatune.network.graph.onnx.operators.control import OUTSIDE, REFUSED

__all__ = ["DEFAULTS", "MICROSOFT", "OUTSIDE", "READERS", "UNUSED"]

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's operators."""
_FAMILIES = (
    "elements", "products", "moves", "reductions", "pools", "constants", "control", "quantised", "attention", "images",
    "places", "recurrent", "samples",
)  # fmt: skip
"""The modules, the most common ones first; no operator is in two of them."""
_IN_BOTH = ("GatherND", "GridSample", "Pad", "Range", "Trilu")
"""Operators of the standard that exist in onnxruntime's domain as well."""


class _Readers(Mapping[tuple[str, str], Convert]):
    """Readers by domain and operator; families are imported one by one until one has the operator."""

    def __getitem__(self, key: tuple[str, str]) -> Convert:
        if key in REFUSED:
            return REFUSED[key]
        if key[0] in ("", MICROSOFT):
            for family in _FAMILIES:
                if key in (readers := _load_family(family)):
                    return readers[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter({**dict.fromkeys(key for family in _FAMILIES for key in _load_family(family)), **REFUSED})

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _load_family(name: str) -> Mapping[tuple[str, str], Convert]:
    """Return the readers of a family by domain and operator."""
    module = import_module(f"{__name__}.{name}")
    shared = {(MICROSOFT, word): module.READERS[word] for word in _IN_BOTH if word in module.READERS}
    onnxruntime_readers = {(MICROSOFT, word): reader for word, reader in getattr(module, "MICROSOFT", {}).items()}
    return {**{("", word): reader for word, reader in module.READERS.items()}, **shared, **onnxruntime_readers}


READERS: Mapping[tuple[str, str], Convert] = _Readers()
"""(domain, operator) -> reader; the domain of the standard is ""."""

_NORM = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
_WINDOWS = {**dict.fromkeys(("kernel_shape", "pads", "strides")), "auto_pad": "NOTSET", "channels_last": 0}
_AXIS, _EPSILON, _PRODUCT = {"axis": 1}, {"epsilon": 1e-12}, {"alpha": 1.0, "transA": 0, "transB": 0}
_DEFAULTS: dict[str, Mapping[str, object]] = {
    "Attention": {
        "do_rotary": 0, "mask_filter_value": -10000.0, "num_heads": None, "past_present_share_buffer": 0,
        "qkv_hidden_sizes": None, "rotary_embedding_dim": 0, "scale": None, "unidirectional": 0,
    },
    "EmbedLayerNormalization": {"epsilon": 1e-12, "mask_index_type": 0},
    "FusedMatMul": {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0},
    "GridSample": {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"},
    "MatMulNBits": {"K": None, "N": None, "accuracy_level": 0, "bits": 4, "block_size": None, "weight_prepacked": 0},
    "MultiHeadAttention": {"mask_filter_value": -10000.0, "num_heads": None, "scale": None, "unidirectional": 0},
    "Pad": {"mode": "constant"},
    "PagedAttention": {
        "do_rotary": 0, "is_causal": 1, "k_cache_dtype": "", "k_quant_type": "NONE",
        "kv_cache_layout": "SEPARATE", "kv_num_heads": None, "local_window_size": -1, "num_heads": None,
        "qk_norm_epsilon": None, "rotary_interleaved": 0, "rotary_offset": 0, "scale": None, "softcap": 0.0,
        "v_cache_dtype": "", "v_head_size": None, "v_quant_type": "NONE",
    },
    "QLinearAveragePool": {**_WINDOWS, "ceil_mode": 0, "count_include_pad": 0},
    "QLinearConcat": {"axis": None},
    "QLinearConv": {**_WINDOWS, "dilations": None, "group": 1},
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QLinearLeakyRelu": {"alpha": 0.01},
    "QLinearReduceMean": {"axes": None, "keepdims": None},
    "QLinearSoftmax": {"axis": -1, "opset": None},
    "QuickGelu": {"alpha": 1.702},
    "RotaryEmbedding": {
        "interleaved": 0, "is_packed_batching": 0, "num_heads": 0, "rotary_embedding_dim": 0, "scale": 1.0,
    },
    "DequantizeLinear": _AXIS, "QuantizeLinear": _AXIS, "QGemm": _PRODUCT, "TransposeMatMul": _PRODUCT,
    "SkipLayerNormalization": _EPSILON, "SkipSimplifiedLayerNormalization": _EPSILON,
    "Trilu": {"upper": 1},
}  # fmt: skip
DEFAULTS: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("", "LayerNormalization"): _NORM,  # before version 17
    ("", "SimplifiedLayerNormalization"): _NORM,
    **{(MICROSOFT, name): attributes for name, attributes in _DEFAULTS.items()},
}
"""Operators that the package onnx does not know -> their attributes and default values; None: no default.

Source: the schemas of onnxruntime 1.32 (``get_all_operator_schema``). Operators that are not listed have no attributes.
"""

UNUSED: Mapping[str, tuple[str | int, ...]] = {
    "Attention": ("kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "rotary_embedding_dim"),
    "BatchNormalization": ("is_test", "momentum", "spatial"),
    "Cast": ("round_mode", "saturate"),
    "CastLike": ("round_mode", "saturate"),
    "ConvTranspose": ("pads",),
    "Dropout": ("is_test", "ratio", "seed", 1),
    "EmbedLayerNormalization": ("mask_index_type",),
    "Gemm": ("beta", "broadcast"),
    "MatMulNBits": ("accuracy_level",),
    "MaxPool": ("storage_order",),
    "Optional": ("type",),
    "Pad": ("value", 2),
    "PagedAttention": ("rotary_interleaved", 8, 9),
    "QuantizeLinear": ("saturate",),
    "Resize": ("cubic_coeff_a", "extrapolation_value", "keep_aspect_ratio_policy", "nearest_mode", 1, 2),
    "RotaryEmbedding": ("num_heads",),
    "ScatterElements": ("reduction", 2),
    "ScatterND": ("reduction", 2),
    "Split": ("num_outputs",),
    "TopK": ("sorted",),
}  # fmt: skip
"""Operator -> attributes and indices of operands that change nothing if its reader does not ask for them."""

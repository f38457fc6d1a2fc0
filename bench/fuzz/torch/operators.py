"""Which of PyTorch's core operators are drawn, and why some are not."""

from __future__ import annotations

from bench.fuzz.builder import Draw
from bench.fuzz.program import words
from bench.fuzz.torch.elements import ELEMENTS
from bench.fuzz.torch.layers import LAYERS
from bench.fuzz.torch.moves import MOVES

__all__ = ["ALSO", "NO_GENERATOR", "OPERATORS"]

OPERATORS: dict[str, Draw] = {**ELEMENTS, **MOVES, **LAYERS}
"""Name of a core operator, words on its form -> what adds an expression of it."""

ALSO: dict[str, list[str]] = {
    "_embedding_bag": words("_embedding_bag_forward_only"),
    "addmm": words("addmv baddbmm addbmm mv dot"),
    "avg_pool2d": words("avg_pool1d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d"),
    "max_pool2d_with_indices": words("max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d"),
    "bitwise_and": words("__and__ __or__ __xor__"),
    "bitwise_left_shift": words("__lshift__ __rshift__"),
    "constant_pad_nd": words(
        "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
    ),
    "clone": words("alias copy lift_fresh_copy"),
    "flip (move)": words("diagonal expand unsqueeze split_with_sizes as_strided repeat_interleave _unsafe_view"),
    "view": words("_reshape_copy view_copy permute_copy as_strided_copy"),
    "hardtanh (activation)": words("hardswish mish rrelu_with_noise_functional"),
    "index": words("_unsafe_index"),
    "index_put": words("_unsafe_index_put index_add"),
    "lstm": words("gru rnn_tanh"),
    "maximum (number)": words("full full_like fill scalar_tensor"),
    "native_layer_norm": words(
        "_fused_rms_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_no_update"
    ),
    "scatter": words("scatter_add scatter_reduce"),
    "searchsorted": words("bucketize"),
    "eq (one_hot)": words("arange"),
    "slice_scatter": words("select_scatter"),
    "sort": words("topk kthvalue"),
    "upsample_nearest2d": words(
        """upsample_nearest1d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
        upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"""
    ),
    "var": words("std var_mean std_mean"),
}
"""Generator -> core operators that its other expressions become."""

_RANDOM = words("bernoulli native_dropout rand rand_like randint randn randn_like randperm")
_SIZES = words("masked_select nonzero")
_RARE = words(
    """_grouped_mm grouped_mm_fallback _pdist_forward _trilinear _upsample_bicubic2d_aa _upsample_bilinear2d_aa col2im
    grid_sampler_3d histc masked_scatter rnn_relu tril_indices triu_indices"""
)
_EMPTY = words("empty empty_permuted empty_strided")
_QUANTISED = words(
    "dequantize_affine dequantize_per_channel dequantize_per_tensor quantize_per_channel quantize_per_tensor"
)
NO_GENERATOR: dict[str, str] = {
    **dict.fromkeys(_RANDOM, "random numbers, or left out of models that are run"),
    **dict.fromkeys(_SIZES, "sizes that depend on data"),
    **dict.fromkeys(_EMPTY, "memory of any content, which is written to before it is read"),
    **dict.fromkeys(_QUANTISED, "of torch.ao's quantisers; the kind onnx has such parts"),
    **dict.fromkeys(_RARE, "not drawn so far"),
}
"""Core operator that is read -> why no generator draws it."""

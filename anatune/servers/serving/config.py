"""Decoders as config.json of Hugging Face describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from anatune.arguments import quote
from anatune.decoding import from_json
from anatune.errors import SpaceError
from anatune.servers.shapes import (
    EXPERTS,
    INTERMEDIATE,
    TOP_K,
    check_size,
    parse_config,
    read_quantisation,
    read_weight_bits,
)

PRECISIONS = ("bfloat16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4")
"""The number formats of weights. "fp8": 8-bit floats with a scale for each tensor; "fp8_block": with a scale for each
block of 128 x 128 weights. Activations have the format of the weights, but 16 bits beside "int8" and "int4"."""
_FEW_BITS = ("int4", "nvfp4", "mxfp4")
MODEL_TYPES = frozenset({
    "deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3", "gemma3_text", "glm4_moe", "gpt_oss", "granite",
    "kimi_k2", "llama", "minimax_m2", "ministral", "mistral", "mistral3", "mixtral", "olmo2", "phi3", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
})  # fmt: skip
"""The values of "model_type" whose layers are those that this module describes."""
_UNKNOWN = {
    "index_topk": "sparse attention that chooses its keys",
    "linear_num_key_heads": "linear attention",
    "linear_attn_config": "linear attention",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "num_kv_shared_layers": "layers that share their keys",
}
"""Fields of configurations whose kernels are not predicted -> what they mean."""
_GEMMA3: dict[str, object] = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 4096,
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, object]] = {
    "gemma": {"head_dim": 256}, "gemma2": {"head_dim": 256}, "gemma3": _GEMMA3, "gemma3_text": _GEMMA3,
    "qwen3": {"head_dim": 128}, "glm4_moe": {"head_dim": 128}, "gpt_oss": {"head_dim": 64},
}  # fmt: skip
"""Model type -> values of fields that its files may leave out. Source: the classes of Hugging Face's transformers."""
_TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "smollm3")
"""The model types whose embedding is also the last product, unless the file says otherwise."""
_METHODS = {"auto": "bfloat16", "int4_w4a16": "int4", "int8_w8a16": "int8"}
_MOST_LAYERS = 4096
_FOUR_NORMS = ("gemma2", "gemma3", "gemma3_text")
"""The model types that normalise what attention and the dense part add, too."""
_ALL_HEADS = ("minimax_m2", "olmo2")
"""The model types that normalise queries and keys over all heads. Source: the classes of Hugging Face's
transformers."""
_GEMMA_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}
"""Model types -> every so manieth layer sees all tokens, if the configuration does not list its layers."""


class AttentionSizes(msgspec.Struct, frozen=True):
    """The sizes of an attention, before it is divided.

    Attributes
    ----------
    heads, kv_heads, head_dim : int
        Heads of queries, heads of keys, and the size of a head of queries and keys.
    value_dim : int
        The size of a head of values.
    latent, rope_dim, query_latent : int
        For multi-head latent attention: the size of what the cache holds of a token without positions, the size of
        the part with positions, and the rank of the queries' projection (0: not divided). Otherwise 0.
        Source: [DeepSeek-V3] Sec. 2.1.1.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    latent: int = 0
    rope_dim: int = 0
    query_latent: int = 0

    def count_cache_elements(self, tp: int) -> int:
        """Return the elements of a token and layer in the cache of one of `tp` devices."""
        if self.latent:
            return self.latent + self.rope_dim
        return -(-self.kv_heads // tp) * (self.head_dim + self.value_dim)


class LayerGroup(msgspec.Struct, frozen=True):
    """Layers of the same sizes.

    Attributes
    ----------
    count : int
        The number of layers.
    window : int
        The number of tokens that attention sees; 0: all.
    intermediate : int
        The intermediate size of the part that all tokens pass (a dense network or the shared experts); 0: none.
    experts, top_k, expert_intermediate : int
        The routed experts, those of a token, and the intermediate size of each; 0: none.
    """

    count: int
    window: int
    intermediate: int
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0


class Decoder(msgspec.Struct, frozen=True):
    """A language model as its configuration describes it.

    Attributes
    ----------
    name, hidden, vocab
        The name in reports, the hidden size and the number of tokens in the vocabulary.
    attention : AttentionSizes
        The attention of each layer.
    layers : tuple of LayerGroup
        The layers, grouped by their sizes.
    is_tied : bool
        Whether the embedding and the last product share their weights.
    precision : str
        The format of the weights, one of `PRECISIONS`.
    dense_precision : str
        The format of the weights outside the experts.
    group : int
        The number of integer weights that share a scale.
    norms : int
        The normalisations of the hidden state in a layer.
    norms_all_heads : bool
        Whether queries and keys are normalised over all heads, for which devices add up sums of squares.
    """

    name: str
    hidden: int
    vocab: int
    attention: AttentionSizes
    layers: tuple[LayerGroup, ...]
    is_tied: bool
    precision: str
    dense_precision: str
    group: int = 128
    norms: int = 2
    norms_all_heads: bool = False

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return sum(group.count for group in self.layers)

    @property
    def has_experts(self) -> bool:
        """True if a layer has routed experts."""
        return any(group.experts for group in self.layers)


class _Fields:
    """The fields of a configuration, with errors that name the file."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self.values, self.source = values, source

    def size(self, *names: str, default: int | None = None) -> int:
        """Return the first of the fields that is there, a positive integer; without it the default."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, list) and value and all(item == value[0] for item in value):
                value = value[0]
            if value is not None:
                return check_size(f"{self.source}: {name}", value)
        if default is None:
            raise SpaceError(
                f"{self.source} has no field {' or '.join(names)}, expected the config.json of a language model on "
                "Hugging Face; give the folder or the file of another model"
            )
        return default


def read_decoder(path: str | Path, precision: str | None = None) -> Decoder:
    """Read the configuration of a language model.

    Parameters
    ----------
    path : str or Path
        A config.json of Hugging Face, or the folder that holds it.
    precision : str, optional
        The number format of the weights, one of `PRECISIONS`; by default that of the configuration.

    Raises
    ------
    SpaceError
        The file cannot be read, a field is missing or wrong, or the model has layers that are not predicted.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        text = file.read_bytes()
    except OSError as error:
        raise SpaceError(
            f"{file}: {error.strerror or error}, expected the config.json of a language model; give its path"
        ) from None
    beside, quantised = file.with_name("hf_quant_config.json"), None
    if precision is None and beside.is_file():
        try:
            quantised = from_json(beside.read_bytes(), dict[str, object])
        except (OSError, msgspec.MsgspecError) as error:
            raise SpaceError(
                f"{beside}: {error}, expected ModelOpt's description of weights; give --precision"
            ) from None
    name = f"{file.parent.name}/{file.name}" if file.parent.name else file.name
    return parse_decoder(text, name, precision, quantised)


def parse_decoder(text: bytes, source: str, precision: str | None = None, quantised: object = None) -> Decoder:
    """Parse the text of a config.json; `source` names it in messages. See `read_decoder`.

    Parameters
    ----------
    quantised : object
        The quantisation that another file of the model describes, if there is one.
    """
    if precision is not None and precision not in PRECISIONS:
        raise SpaceError(f"precision is {quote(precision)}, expected one of {', '.join(PRECISIONS)}")
    document, config = parse_config(text, source)
    kind = config.get("model_type", document.get("model_type"))
    _check_known(config, kind, source)
    given = {name: value for name, value in config.items() if value is not None}
    fields = _Fields({**_DEFAULTS.get(str(kind), {}), **given}, source)
    for part in (document, config):
        quantised = quantised or part.get("quantization_config") or part.get("quantization")
    weights = precision or _precision_of(quantised, source)
    layers = _read_layers(fields, str(kind))
    has_experts = any(group.experts for group in layers)
    is_tied = fields.values.get("tie_word_embeddings", document.get("tie_word_embeddings", kind in _TIED))
    if not isinstance(is_tied, bool):
        raise SpaceError(f"{source}: tie_word_embeddings is {quote(is_tied)}, expected true or false")
    return Decoder(
        str(document.get("_name_or_path") or kind),
        fields.size("hidden_size"),
        fields.size("vocab_size"),
        _read_attention(fields),
        layers,
        is_tied,
        weights,
        "bfloat16" if has_experts and weights in _FEW_BITS else weights,
        _read_group(quantised),
        4 if kind in _FOUR_NORMS else 2,
        kind in _ALL_HEADS,
    )


def _check_known(config: Mapping[str, object], kind: object, source: str) -> None:
    """Raise SpaceError for a model whose layers are not among those that are predicted."""
    for name, meaning in _UNKNOWN.items():
        if config.get(name):
            raise SpaceError(f"{source}: {name} means {meaning}, which is not predicted; choose another model")
    types = config.get("layer_types")
    for word in types if isinstance(types, list) else []:
        if word not in ("full_attention", "sliding_attention"):
            raise SpaceError(
                f"{source}: layer_types has {quote(word)}, expected full_attention or sliding_attention; other layers "
                "are not predicted"
            )
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise SpaceError(
            f"{source}: model_type is {quote(kind)}, expected one of {', '.join(sorted(MODEL_TYPES))}; if its layers "
            "are those of one of these, change the field in a copy of the file"
        )


def _precision_of(quantised: object, source: str) -> str:
    """Return the format of the weights in a "quantization_config"."""
    if not quantised:
        return "bfloat16"
    nested = quantised.get("quantization") if isinstance(quantised, dict) else None
    config = nested if isinstance(nested, dict) else quantised
    method = str(config.get("quant_method", "")).lower() if isinstance(config, dict) else ""
    if not isinstance(config, dict) or not (method or "quant_algo" in config):
        raise SpaceError(
            f"{source}: the quantisation {quote(quantised)} is unknown; give --precision, one of "
            f"{', '.join(PRECISIONS)}"
        )
    if method == "mxfp4":
        return "mxfp4"
    if (floats := _read_float_format(config)) is not None:
        return floats
    if method.startswith("modelopt") or "quant_algo" in config:
        algorithm = str(config.get("quant_algo", "")).upper()
        if algorithm in ("NVFP4", "FP8"):
            return algorithm.lower()
        raise SpaceError(
            f"{source}: quant_algo is {quote(algorithm)}, expected NVFP4 or FP8; give --precision, one of "
            f"{', '.join(PRECISIONS)}"
        )
    try:
        dtype, block, _ = read_quantisation(config, source)
    except SpaceError:
        raise SpaceError(
            f"{source}: the quantisation {quote(method)} is unknown; give --precision, one of {', '.join(PRECISIONS)}"
        ) from None
    return _METHODS.get(dtype) or ("fp8_block" if block else "fp8")


def _read_group(quantised: object) -> int:
    """Return the number of integer weights that share a scale; 128 where a file does not tell."""
    group = read_weight_bits(quantised)[1] if isinstance(quantised, dict) else None
    return group if isinstance(group, int) and group > 0 else 128


def _read_float_format(config: Mapping[str, object]) -> str | None:
    """Return the format of weights that compressed-tensors stores as floats; None for other weights."""
    groups = config.get("config_groups")
    scheme = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = scheme.get("weights") if isinstance(scheme, dict) else None
    if not isinstance(weights, dict) or weights.get("type") != "float":
        return None
    if weights.get("num_bits") == 8:
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    four_bits = {16: "nvfp4", 32: "mxfp4"} if weights.get("num_bits") == 4 else {}
    return next((name for group, name in four_bits.items() if group == weights.get("group_size")), None)


def _read_attention(fields: _Fields) -> AttentionSizes:
    heads = fields.size("num_attention_heads")
    if fields.values.get("kv_lora_rank"):
        nope, rope = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
        return AttentionSizes(
            heads, heads, nope + rope, fields.size("v_head_dim"), fields.size("kv_lora_rank"), rope,
            fields.size("q_lora_rank") if fields.values.get("q_lora_rank") else 0,
        )  # fmt: skip
    kv_heads = fields.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise SpaceError(
            f"{fields.source}: num_attention_heads is {heads}, expected a multiple of num_key_value_heads, {kv_heads}"
        )
    head_dim = fields.size("head_dim", default=max(1, fields.size("hidden_size") // heads))
    return AttentionSizes(heads, kv_heads, head_dim, head_dim)


def _read_layers(fields: _Fields, kind: str) -> tuple[LayerGroup, ...]:
    """Return the layers, those of the same sizes as one group, in the order of their first."""
    values, count = fields.values, fields.size("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise SpaceError(f"{fields.source}: num_hidden_layers is {count}, expected at most {_MOST_LAYERS}")
    experts = next((fields.size(name) for name in EXPERTS if values.get(name)), 0)
    dense = fields.size("intermediate_size")
    shared = _read_shared_size(fields) if experts else 0
    sparse = fields.size(*INTERMEDIATE) if experts else 0
    top_k = fields.size(*TOP_K) if experts else 0
    if top_k > experts:
        raise SpaceError(f"{fields.source}: a token has {top_k} experts, expected at most all {experts}")
    groups: Counter[tuple[int, ...]] = Counter()
    for index in range(count):
        window = _window_of(fields, kind, index)
        if experts and _has_experts(fields, index):
            groups[(window, shared, experts, top_k, sparse)] += 1
        else:
            groups[(window, dense, 0, 0, 0)] += 1
    return tuple(LayerGroup(number, *sizes) for sizes, number in groups.items())


def _read_shared_size(fields: _Fields) -> int:
    """Return the intermediate size of the experts that all tokens pass; 0 without them."""
    if fields.values.get("shared_expert_intermediate_size"):
        return fields.size("shared_expert_intermediate_size")
    if fields.values.get("n_shared_experts"):
        return fields.size("n_shared_experts") * fields.size(*INTERMEDIATE)
    return 0


def _has_experts(fields: _Fields, index: int) -> bool:
    values = fields.values
    first = values.get("first_k_dense_replace") or 0
    excluded = values.get("mlp_only_layers") or ()
    step = values.get("decoder_sparse_step") or values.get("moe_layer_freq") or 1
    if isinstance(step, list):
        return index < len(step) and step[index] in (1, True)
    if not (isinstance(first, int) and isinstance(step, int) and isinstance(excluded, list | tuple)):
        raise SpaceError(
            f"{fields.source}: first_k_dense_replace, decoder_sparse_step or mlp_only_layers is no number or list of "
            "numbers; expected those of Hugging Face"
        )
    base = 0 if values.get("moe_layer_freq") else 1
    return index >= first and (index + base) % max(1, step) == 0 and index not in excluded


def _window_of(fields: _Fields, kind: str, index: int) -> int:
    """Return the number of tokens that a layer's attention sees; 0: all."""
    values = fields.values
    is_used = values.get("use_sliding_window", not kind.startswith("qwen"))
    first = values.get("max_window_layers") if kind.startswith("qwen") else 0
    if not values.get("sliding_window") or not is_used or (isinstance(first, int) and index < first):
        return 0
    window, types = fields.size("sliding_window"), values.get("layer_types")
    if isinstance(types, list):
        if len(types) != fields.size("num_hidden_layers"):
            raise SpaceError(
                f"{fields.source}: layer_types has {len(types)} entries, expected one for each of "
                f"{fields.size('num_hidden_layers')} layers"
            )
        return window if types[index] == "sliding_attention" else 0
    pattern = fields.size("sliding_window_pattern", default=_GEMMA_PATTERN.get(kind, _MOST_LAYERS + 1))
    return 0 if (index + 1) % pattern == 0 else window

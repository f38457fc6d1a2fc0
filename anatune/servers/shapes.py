"""Which layers files of configurations are for, and where Hugging Face's config.json says it."""

from __future__ import annotations

import msgspec

from anatune.arguments import checked_integer, shown
from anatune.decoding import from_json
from anatune.errors import SpaceError

MOST_EXPERTS, MOST_ROWS, MOST_SIZE = 1 << 16, 1 << 20, 1 << 24

DTYPES: dict[str, tuple[str, float]] = {
    "auto": ("bfloat16", 0),
    "fp8_w8a8": ("fp8", 0),
    "int8_w8a8": ("int8", 0),
    "int8_w8a16": ("bfloat16", 1),
    "int4_w4a16": ("bfloat16", 0.5),
}
"""What servers call operands (auto: 16 bits, not in the name) -> type of a product, bytes of a weight that it converts.
"""
GROUPS = (32, 64, 128)
"""Weights along k that share a scale, where they have 4 bits."""
_LEAST_DEPTH = 64
"""Smallest block_k that is tried: kernels read packed weights in whole blocks."""
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_INTERMEDIATE = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


class Experts(msgspec.Struct, frozen=True):
    """A layer of experts on one rank.

    Attributes
    ----------
    experts, intermediate : int
        Of this rank: its experts, and its share of the intermediate size of each.
    hidden, top_k : int
        Of the layer.
    dtype : str
        One of `DTYPES`.
    block : (int, int), optional
        Of weights that share a scale, (n, k).
    group : int
        Weights along k that share a scale, of weights with fewer bits than rows; 0: all.
    ranks : int
        Ranks that share the layer's experts, as many each.
    """

    experts: int
    intermediate: int
    hidden: int
    top_k: int
    dtype: str = "auto"
    block: tuple[int, int] | None = None
    group: int = 0
    ranks: int = 1


class Product(msgspec.Struct, frozen=True):
    """A block-scaled product on one rank: weights (n, k)."""

    n: int
    k: int
    dtype: str = "fp8_w8a8"
    block: tuple[int, int] = (128, 128)


def checked_size(name: str, value: object, most: int = MOST_SIZE) -> int:
    """Return a number from 1 to `most`, or digits that say one; raise SpaceError for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) <= len(str(most)):
        value = int(value)
    return checked_integer(name, value, 1, most)


def check_shape(shape: Experts | Product) -> None:
    """Raise SpaceError for operands without a model, and for blocks of scales that servers do not take.

    Source: vLLM, ``Fp8MoEMethod.create_weights`` (intermediate size: whole blocks of n, and of k), and
    ``per_token_group_quant_fp8`` (rows: whole blocks of k); SGLang's are the same.
    """
    if shape.dtype not in DTYPES:
        raise SpaceError(f"dtype is {shown(shape.dtype)}, expected one of {', '.join(DTYPES)}")
    if isinstance(shape, Experts):
        if shape.top_k > (experts := shape.experts * shape.ranks):
            raise SpaceError(f"top-k is {shape.top_k} of {experts} experts, expected as many at most")
        _check_group(shape)
    if shape.block is not None:
        if shape.dtype not in ("fp8_w8a8", "int8_w8a8"):
            raise SpaceError(f"block shape {list(shape.block)} goes with fp8_w8a8 or int8_w8a8, got {shape.dtype}")
        for size in shape.block:
            if size < 32 or size & (size - 1):
                raise SpaceError(f"block shape is {list(shape.block)}, expected powers of two from 32 on: 128,128")
        _check_blocks(shape, shape.block)


def _check_blocks(shape: Experts | Product, block: tuple[int, int]) -> None:
    """Raise SpaceError for a layer that servers refuse: it is not made of whole blocks of scales.

    Of a product's n a part of a last block is taken where the weights are neither split nor merged (DeepSeek-V3: 576).
    """
    if isinstance(shape, Product):
        sizes = (("k", shape.k, block[1]), ("n", block[0] if shape.n > block[0] else shape.n, block[0]))
    else:
        sizes = (
            ("intermediate size on a rank", shape.intermediate, max(block)),
            ("hidden size", shape.hidden, block[1]),
        )
    for name, size, part in sizes:
        if size % part:
            raise SpaceError(
                f"{name} is {size}, expected a multiple of {part}: servers refuse layers that are not whole blocks of "
                f"{block[0]} x {block[1]} weights; take fewer ranks (--tp), or spread whole experts over them (--ep)"
            )


def _check_group(shape: Experts) -> None:
    group, narrow = shape.group, shape.dtype in ("int4_w4a16", "int8_w8a16")
    if group and not narrow:
        raise SpaceError(f"group size is {group}, which goes with int4_w4a16 or int8_w8a16, got {shape.dtype}")
    if group not in (GROUPS if shape.dtype == "int4_w4a16" else (0, *GROUPS)):
        raise SpaceError(
            f"group size of {shape.dtype} is {group}, expected one of {', '.join(map(str, GROUPS))}; say --group-size"
        )
    for name, size in (("intermediate size on a rank", shape.intermediate), ("hidden size", shape.hidden)):
        if group and size % max(group, _LEAST_DEPTH):
            raise SpaceError(
                f"{name} is {size}, expected a multiple of {max(group, _LEAST_DEPTH)}: whole groups of {group}"
            )


def model_experts(text: bytes, source: str, ranks: int = 1, spread: int = 1, dtype: str | None = None) -> Experts:
    """Return the experts of a model by its config.json: each split over `ranks`, all of them over `spread` others.

    Models of several parts have those of language in "text_config". Experts are those that a token is routed to:
    servers that merge shared ones into them (DeepSeek-V3: 257 of 256) look for a file of one more. With a `dtype`, what
    the model says of its weights counts only where it agrees.

    Raises
    ------
    SpaceError
        It is no JSON object, a field is missing, the intermediate size or the experts do not divide.
    """
    try:
        whole = from_json(text, dict[str, object])
    except msgspec.MsgspecError as error:
        raise SpaceError(f"{source} is no JSON object ({error}), expected a config.json of Hugging Face") from None
    inner = (whole.get(part) for part in ("text_config", "llm_config"))
    config = next((part for part in inner if isinstance(part, dict)), whole)
    sizes = {
        what: _field(config, names, what, source)
        for what, names in {
            "experts": _EXPERTS,
            "intermediate": _INTERMEDIATE,
            "hidden": _HIDDEN,
            "top_k": _TOP_K,
        }.items()
    }
    sizes = on_a_rank(sizes, ranks, spread, f"{source}: ")
    quantised = whole.get("quantization_config") or config.get("quantization_config")
    try:
        found, block, group = _quantisation(quantised if isinstance(quantised, dict) else {}, source)
    except SpaceError:
        if dtype is None:
            raise
        found, block, group = dtype, None, 0
    if dtype not in (None, found):
        found, block, group = str(dtype), None, 0
    return Experts(**sizes, dtype=found, block=block, group=group, ranks=spread)


def on_a_rank(sizes: dict[str, int], ranks: int, spread: int, source: str = "") -> dict[str, int]:
    """Return what a rank has of "experts" that are spread, and of the "intermediate" size of each, which is split.

    Raises
    ------
    SpaceError
        One of them does not divide.
    """
    split = f"--tp {ranks}" if spread == 1 else f"--tp / --ep = {ranks}"
    for name, words, parts, option in (
        ("intermediate", "intermediate size", ranks, split), ("experts", "number of experts", spread, f"--ep {spread}"),
    ):  # fmt: skip
        if sizes[name] % parts:
            raise SpaceError(f"{source}{words} {sizes[name]} does not divide by {option}; expected equal shares")
        sizes = {**sizes, name: sizes[name] // parts}
    return sizes


def _field(config: dict[str, object], names: tuple[str, ...], what: str, source: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            most = MOST_EXPERTS if names in (_EXPERTS, _TOP_K) else MOST_SIZE
            return checked_size(f"{source}: {name}", value, most)
    raise SpaceError(
        f"{source} has none of {', '.join(names)} as a number: no model of experts, or one whose names are not known; "
        f"say --experts --intermediate --hidden --top-k instead of --model ({what} is missing)"
    )


def _quantisation(config: dict[str, object], source: str) -> tuple[str, tuple[int, int] | None, int]:
    """Return the dtype, the block of scales and the group that a "quantization_config" stands for."""
    method = str(config.get("quant_method", "")).lower()
    if not method:
        return "auto", None, 0
    if method in ("fp8", "fbgemm_fp8"):
        block = config.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) for size in block):
            rows, depth = (checked_size(f"{source}: weight_block_size", size) for size in block)
            return "fp8_w8a8", (rows, depth), 0
        return "fp8_w8a8", None, 0
    bits, group = _weight_bits(config)
    if method in ("gptq", "awq", "compressed-tensors") and bits in (4, 8) and isinstance(group, int) and group > 0:
        return f"int{bits}_w{bits}a16", None, checked_size(f"{source}: group_size", group)
    raise SpaceError(
        f"{source}: weights are quantised by {shown(method)} with {shown(bits)} bits in groups of {shown(group)}, "
        "which is not known here; say --dtype and perhaps --group-size, one of " + ", ".join(DTYPES)
    )


def _weight_bits(config: dict[str, object]) -> tuple[object, object]:
    """Return the bits of a weight and the weights that share a scale, as GPTQ, AWQ and compressed-tensors say them."""
    groups = config.get("config_groups")
    if isinstance(groups, dict) and groups:
        scheme = next(iter(groups.values()))
        if isinstance(scheme, dict) and isinstance(weights := scheme.get("weights"), dict):
            is_plain = weights.get("type", "int") == "int" and not scheme.get("input_activations")
            return (weights.get("num_bits") if is_plain else None), weights.get("group_size")
    return config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))

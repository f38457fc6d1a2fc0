"""The layers of configuration files, and reading them from Hugging Face's config.json."""

from __future__ import annotations

import msgspec

from anatune.arguments import check_integer, quote
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
"""The servers' names of operand types ("auto" is 16 bits and not in file names) -> the type of the product, and the
bytes of a weight that is converted to it (0: none)."""
GROUPS = (32, 64, 128)
"""The possible numbers of 4-bit weights along k that share a scale."""
_LEAST_DEPTH = 64
"""The smallest block_k that is tried; kernels read packed weights in whole blocks."""
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
INTERMEDIATE = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


class Experts(msgspec.Struct, frozen=True):
    """A layer of experts on one rank.

    Attributes
    ----------
    experts, intermediate : int
        The experts of this rank, and its share of the intermediate size of each.
    hidden, top_k : int
        The hidden size of the layer, and the number of experts for each token.
    dtype : str
        The operand types, one of `DTYPES`.
    block : (int, int), optional
        The block (n, k) of weights that share a scale.
    group : int
        The number of weights along k that share a scale, for weights with fewer bits than rows; 0 means all.
    ranks : int
        The number of ranks that share the layer's experts evenly.
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
    """A block-scaled product on one rank with weights (n, k)."""

    n: int
    k: int
    dtype: str = "fp8_w8a8"
    block: tuple[int, int] = (128, 128)


def check_size(name: str, value: object, most: int = MOST_SIZE) -> int:
    """Return an integer from 1 to `most`, given as such or as text; raise SpaceError for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) <= len(str(most)):
        value = int(value)
    return check_integer(name, value, 1, most)


def check_shape(shape: Experts | Product) -> None:
    """Raise SpaceError for operand types without a model, and for blocks of scales that servers do not support.

    Source: vLLM, ``Fp8MoEMethod.create_weights`` (intermediate size: whole blocks of n and k), and
    ``per_token_group_quant_fp8`` (rows: whole blocks of k); the same in SGLang.
    """
    if shape.dtype not in DTYPES:
        raise SpaceError(f"dtype is {quote(shape.dtype)}, expected one of {', '.join(DTYPES)}")
    if isinstance(shape, Experts):
        if shape.top_k > (experts := shape.experts * shape.ranks):
            raise SpaceError(f"top-k is {shape.top_k}, expected at most the number of experts, {experts}")
        _check_group(shape)
    if shape.block is not None:
        if shape.dtype not in ("fp8_w8a8", "int8_w8a8"):
            raise SpaceError(f"block shape {list(shape.block)} needs fp8_w8a8 or int8_w8a8, got {shape.dtype}")
        for size in shape.block:
            if size < 32 or size & (size - 1):
                raise SpaceError(f"block shape is {list(shape.block)}, expected powers of two from 32 on: 128,128")
        _check_blocks(shape, shape.block)


def _check_blocks(shape: Experts | Product, block: tuple[int, int]) -> None:
    """Raise SpaceError for a layer that servers refuse because it does not consist of whole blocks of scales.

    The last block along n of a product may be partial if the weights are neither split nor merged (DeepSeek-V3: 576).
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
                f"{name} is {size}, expected a multiple of {part}, because servers only support whole blocks of "
                f"{block[0]} x {block[1]} weights; use fewer ranks (--tp), or distribute whole experts over them (--ep)"
            )


def _check_group(shape: Experts) -> None:
    group, narrow = shape.group, shape.dtype in ("int4_w4a16", "int8_w8a16")
    if group and not narrow:
        raise SpaceError(f"group size {group} needs the dtype int4_w4a16 or int8_w8a16, got {shape.dtype}")
    if group not in (GROUPS if shape.dtype == "int4_w4a16" else (0, *GROUPS)):
        raise SpaceError(
            f"group size of {shape.dtype} is {group}, expected {', '.join(map(str, GROUPS))} (--group-size)"
        )
    for name, size in (("intermediate size on a rank", shape.intermediate), ("hidden size", shape.hidden)):
        if group and size % max(group, _LEAST_DEPTH):
            raise SpaceError(f"{name} is {size}, expected a multiple of {max(group, _LEAST_DEPTH)} (groups of {group})")


def parse_config(text: bytes, source: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return the document of a config.json, and its part about the language model.

    Raises
    ------
    SpaceError
        The text is not a JSON object.
    """
    try:
        document = from_json(text, dict[str, object])
    except msgspec.MsgspecError as error:
        raise SpaceError(f"{source} is not a JSON object ({error}), expected a config.json of Hugging Face") from None
    inner = (document.get(part) for part in ("text_config", "llm_config"))
    return document, next((part for part in inner if isinstance(part, dict)), document)


def model_experts(text: bytes, source: str, ranks: int = 1, spread: int = 1, dtype: str | None = None) -> Experts:
    """Read the experts of a model from its config.json; each is split over `ranks`, all are distributed over `spread`.

    Models with several parts have the language part in "text_config". Only routed experts count. Servers that add
    shared experts to them (DeepSeek-V3: 257 instead of 256) look for a file with one more. If `dtype` is given, the
    quantisation in the file only counts if it agrees.

    Raises
    ------
    SpaceError
        The text is not a JSON object, a field is missing, or intermediate size or experts cannot be divided evenly.
    """
    document, config = parse_config(text, source)
    sizes = {
        what: _field(config, names, what, source)
        for what, names in {"experts": EXPERTS, "intermediate": INTERMEDIATE, "hidden": _HIDDEN, "top_k": TOP_K}.items()
    }
    sizes = divide_over_ranks(sizes, ranks, spread, f"{source}: ")
    quantised = document.get("quantization_config") or config.get("quantization_config")
    try:
        model_dtype, block, group = read_quantisation(quantised if isinstance(quantised, dict) else {}, source)
    except SpaceError:
        if dtype is None:
            raise
        model_dtype, block, group = dtype, None, 0
    if dtype not in (None, model_dtype):
        model_dtype, block, group = str(dtype), None, 0
    return Experts(**sizes, dtype=model_dtype, block=block, group=group, ranks=spread)


def divide_over_ranks(sizes: dict[str, int], ranks: int, spread: int, source: str = "") -> dict[str, int]:
    """Divide "experts" by the ranks they are distributed over, and the "intermediate" size by the ranks that split it.

    Raises
    ------
    SpaceError
        One of them cannot be divided evenly.
    """
    split = f"--tp {ranks}" if spread == 1 else f"--tp / --ep = {ranks}"
    for name, words, parts, option in (
        ("intermediate", "intermediate size", ranks, split), ("experts", "number of experts", spread, f"--ep {spread}"),
    ):  # fmt: skip
        if sizes[name] % parts:
            raise SpaceError(f"{source}{words} {sizes[name]} cannot be divided evenly by {option}")
        sizes = {**sizes, name: sizes[name] // parts}
    return sizes


def _field(config: dict[str, object], names: tuple[str, ...], what: str, source: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            most = MOST_EXPERTS if names in (EXPERTS, TOP_K) else MOST_SIZE
            return check_size(f"{source}: {name}", value, most)
    raise SpaceError(
        f"{source} has no number named {', '.join(names)} ({what}): it has no experts, or its names are unknown; give "
        "--experts --intermediate --hidden --top-k instead of --model"
    )


def read_quantisation(config: dict[str, object], source: str) -> tuple[str, tuple[int, int] | None, int]:
    """Return the dtype, the block of scales and the group in a "quantization_config"."""
    method = str(config.get("quant_method", "")).lower()
    if not method:
        return "auto", None, 0
    if method in ("fp8", "fbgemm_fp8"):
        block = config.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) for size in block):
            rows, depth = (check_size(f"{source}: weight_block_size", size) for size in block)
            return "fp8_w8a8", (rows, depth), 0
        return "fp8_w8a8", None, 0
    bits, group = read_weight_bits(config)
    if method in ("gptq", "awq", "compressed-tensors") and bits in (4, 8) and isinstance(group, int) and group > 0:
        return f"int{bits}_w{bits}a16", None, check_size(f"{source}: group_size", group)
    raise SpaceError(
        f"{source}: weights are quantised by {quote(method)} with {quote(bits)} bits in groups of {quote(group)}, "
        "unknown to anatune; give --group-size if needed, and --dtype, one of " + ", ".join(DTYPES)
    )


def read_weight_bits(config: dict[str, object]) -> tuple[object, object]:
    """Return the bits of a weight and how many weights share a scale, from GPTQ, AWQ or compressed-tensors."""
    groups = config.get("config_groups")
    if isinstance(groups, dict) and groups:
        scheme = next(iter(groups.values()))
        if isinstance(scheme, dict) and isinstance(weights := scheme.get("weights"), dict):
            is_plain = weights.get("type", "int") == "int" and not scheme.get("input_activations")
            return (weights.get("num_bits") if is_plain else None), weights.get("group_size")
    return config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))

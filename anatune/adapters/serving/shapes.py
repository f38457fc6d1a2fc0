"""Which layers files of configurations are for, and where Hugging Face's config.json says it."""

from __future__ import annotations

import msgspec

from anatune.arguments import shown
from anatune.decoding import from_json
from anatune.errors import SpaceError

__all__ = ["DTYPES", "Experts", "Product", "model_experts"]

DTYPES = {
    "auto": ("bfloat16", 0),
    "fp8_w8a8": ("fp8", 0),
    "int8_w8a8": ("int8", 0),
    "int8_w8a16": ("bfloat16", 1),
}
"""What servers call operands (auto: 16 bits, not in the name) -> type of a product, bytes of a weight that it converts.
Weights of 4 bits have kernels of their own that choose their tiles."""
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_INTERMEDIATE = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


class Experts(msgspec.Struct, frozen=True):
    """A layer of experts on one rank; `block`: of weights that share a scale, (n, k), else None."""

    experts: int
    intermediate: int
    hidden: int
    top_k: int
    dtype: str = "auto"
    block: tuple[int, int] | None = None


class Product(msgspec.Struct, frozen=True):
    """A block-scaled product on one rank: weights (n, k)."""

    n: int
    k: int
    dtype: str = "fp8_w8a8"
    block: tuple[int, int] = (128, 128)


def check_shape(shape: Experts | Product) -> None:
    """Raise SpaceError for operands without a model, and for blocks of scales that kernels do not take."""
    if shape.dtype not in DTYPES:
        raise SpaceError(f"dtype is {shown(shape.dtype)}, expected one of {', '.join(DTYPES)}")
    if isinstance(shape, Experts) and shape.top_k > shape.experts:
        raise SpaceError(f"top-k is {shape.top_k} of {shape.experts} experts, expected as many at most")
    if shape.block is not None:
        if shape.dtype not in ("fp8_w8a8", "int8_w8a8"):
            raise SpaceError(f"block shape {list(shape.block)} goes with fp8_w8a8 or int8_w8a8, got {shape.dtype}")
        for size in shape.block:
            if size < 32 or size & (size - 1):
                raise SpaceError(f"block shape is {list(shape.block)}, expected powers of two from 32 on: 128,128")


def model_experts(text: bytes, source: str, ranks: int = 1) -> Experts:
    """Return the experts of a model by its config.json, split over `ranks` tensor-parallel ranks.

    Models of several parts have those of language in "text_config". Experts are those that a token is routed to:
    servers that merge shared ones into them (DeepSeek-V3: 257 of 256) look for a file of one more.

    Raises
    ------
    SpaceError
        It is no JSON object, a field is missing, the intermediate size does not divide.
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
    if sizes["intermediate"] % ranks:
        raise SpaceError(f"{source}: intermediate size {sizes['intermediate']} does not divide by --tp {ranks}")
    sizes["intermediate"] //= ranks
    quantised = whole.get("quantization_config") or config.get("quantization_config")
    dtype, block = _quantisation(quantised if isinstance(quantised, dict) else {}, source)
    return Experts(**sizes, dtype=dtype, block=block)


def _field(config: dict[str, object], names: tuple[str, ...], what: str, source: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise SpaceError(
        f"{source} has none of {', '.join(names)} as a number: no model of experts, or one whose names are not known; "
        f"say --experts --intermediate --hidden --top-k instead of --model ({what} is missing)"
    )


def _quantisation(config: dict[str, object], source: str) -> tuple[str, tuple[int, int] | None]:
    """Return the dtype and the block of scales that a "quantization_config" stands for."""
    method = str(config.get("quant_method", "")).lower()
    if not method:
        return "auto", None
    if method in ("fp8", "fbgemm_fp8"):
        block = config.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) for size in block):
            return "fp8_w8a8", (block[0], block[1])
        return "fp8_w8a8", None
    raise SpaceError(
        f"{source}: weights are quantised by {shown(method)}, for which servers have kernels with tiles of their own, "
        "or which is not known here; say --dtype, one of " + ", ".join(DTYPES)
    )

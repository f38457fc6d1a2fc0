"""llama.cpp beside the decoder of `bench.cpu.llama_steps`: the same sizes and random weights in its own format.

Needs llama-cpp-python, built from its source for this processor, and gguf.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["LlamaCpp"]

_GROUP = 32
"""Weights of a block, behind one scale of 16 bits."""


class LlamaCpp:
    """A model of llama.cpp's, with caches of its own.

    Parameters
    ----------
    sizes : (int, int, int, int)
        Width, heads, heads of keys, hidden width.
    most : int
        Most tokens that its caches hold.
    """

    def __init__(
        self, path: Path, sizes: Sequence[int], *, layers: int, words: int, bits: int, threads: int, most: int
    ) -> None:
        import llama_cpp

        _write(path, sizes, layers=layers, words=words, bits=bits, most=most)
        self._api: Any = llama_cpp
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        self._kept = [quiet]
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError("llama.cpp does not load the model")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = most
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)

    def call(self, ids: Any, held: int) -> Callable[[], None]:
        """Return a call with some tokens behind `held` others, which are read once before."""
        if held:
            self._decode(np.arange(held) % 1000, 0)
        tokens = np.asarray(ids).reshape(-1)
        return lambda: self._decode(tokens, held)

    def _decode(self, tokens: Any, held: int) -> None:
        api = self._api
        api.llama_memory_seq_rm(api.llama_get_memory(self._context), 0, held, -1)
        words = (api.llama_token * len(tokens))(*map(int, tokens))
        if api.llama_decode(self._context, api.llama_batch_get_one(words, len(tokens))):
            raise RuntimeError("llama.cpp refuses the tokens")


def _write(path: Path, sizes: Sequence[int], *, layers: int, words: int, bits: int, most: int) -> None:
    """Write a model with random weights."""
    import gguf

    width, heads, key_heads, hidden = sizes
    rng, kind = (
        np.random.default_rng(0),
        gguf.GGMLQuantizationType.Q4_0 if bits == 4 else gguf.GGMLQuantizationType.Q8_0,
    )
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(layers)
    writer.add_context_length(most)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5e5)
    writer.add_vocab_size(words)
    writer.add_tokenizer_model("none")

    def product(name: str, length: int, columns: int) -> None:
        blocks = rng.integers(0, 256, (columns, length // _GROUP, 2 + _GROUP * bits // 8), dtype=np.uint8)
        scale = np.float16(1.0 / (4.6 if bits == 4 else 74.0) / length**0.5)
        blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
        writer.add_tensor(name, blocks.reshape(columns, -1), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, rng.uniform(0.5, 1.5, width).astype(np.float32))

    product("token_embd.weight", width, words)
    norm("output_norm.weight")
    product("output.weight", width, words)
    keys = width // heads * key_heads
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            norm(f"blk.{layer}.{name}.weight")
        parts = {
            "attn_q": (width, width), "attn_k": (width, keys), "attn_v": (width, keys), "attn_output": (width, width),
            "ffn_gate": (width, hidden), "ffn_up": (width, hidden), "ffn_down": (hidden, width),
        }  # fmt: skip
        for name, (length, columns) in parts.items():
            product(f"blk.{layer}.{name}.weight", length, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

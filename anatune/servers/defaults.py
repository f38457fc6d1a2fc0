"""What servers take where they find no file, and which other kernels they may prefer. As their packages say it.

Source: vLLM 0.33 (``fused_moe.get_default_config``, ``fused_moe/oracle``), SGLang 0.5.23 (the same name, ``fp8.py``).
"""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec
from anatune.servers.names import Server
from anatune.servers.shapes import Experts, Product

Tile = tuple[int, int, int, int, int, int, int]
"""block_m, block_n, block_k, num_warps, num_stages, split_k, group_m: `tiles.TILE_FIELDS`."""
FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages", "SPLIT_K", "GROUP_SIZE_M")
"""What files call them."""

_LITTLE_SHARED = 128 << 10


def default_tile(server: Server, shape: Experts | Product, tokens: int, spec: GpuSpec) -> Tile:
    """Return the tile that a server takes for so many rows without a file."""
    amd = spec.vendor == "amd"
    if isinstance(shape, Product):
        return 64, shape.block[0], shape.block[1], 4, 2 if server == "vllm" else 3, 1, 32
    found = _vllm(shape, tokens, amd) if server == "vllm" else _sglang(shape, tokens, spec)
    return (*found[:4], 2 if amd else found[4], 1, found[5])


def _vllm(shape: Experts, tokens: int, amd: bool) -> tuple[int, int, int, int, int, int]:
    """Return block_m, block_n, block_k, warps, stages, group_m."""
    if shape.block is not None and shape.dtype == "fp8_w8a8":
        few = tokens <= 8 and not amd and shape.block[0] % 64 == 0
        stages = 4 if few and tokens <= 4 else 3
        rows, group = (16 if tokens <= 64 else 64), (1 if tokens <= 16 else 32)
        return rows, 64 if few else shape.block[0], shape.block[1], 4, stages, group
    if shape.group:
        # with few rows an expert block_m is that of a CUDA kernel, which comes after Triton's today
        few = shape.dtype == "int4_w4a16" and tokens * shape.top_k <= 6 * shape.experts and not amd
        rows = 16 if few or tokens <= 20 else 32 if tokens <= 40 else 64
        return rows, *((32, 64) if tokens == 1 else (64, 32)), 4, 3, 1
    rows = next((rows for most, rows in ((32, 16), (96, 32), (512, 64)) if tokens <= most), 128)
    depth = 128 if shape.dtype == "fp8_w8a8" or tokens <= 64 else 64
    group = 16 if tokens // shape.experts > 128 else 1
    return rows, 64 if tokens <= 64 else 128, depth, 4 if tokens <= 128 else 8, 4 if tokens <= 32 else 3, group


def _sglang(shape: Experts, tokens: int, spec: GpuSpec) -> tuple[int, int, int, int, int, int]:
    few = tokens <= shape.experts
    if shape.dtype != "fp8_w8a8":  # warps and stages are Triton's own defaults
        return (16, 32, 64, 4, 3, 1) if few else (64, 64, 32, 4, 3, 8)
    if shape.block is not None:
        return 64, shape.block[0], shape.block[1], 4, 3, 32
    if spec.shared_memory.per_block_bytes < _LITTLE_SHARED:
        return (32, 64, 256, 4, 4, 1) if few else (64, 128, 256, 4, 2, 64)
    return (64, 128, 128, 4, 4, 1) if few else (128, 256, 128, 8, 4, 32)


def rivals(server: Server, shape: Experts | Product, spec: GpuSpec) -> list[str]:
    """Return in sentences where a server takes other kernels, which never read the file."""
    capability = spec.compute_capability or 0.0
    scaled = shape.dtype == "fp8_w8a8" and shape.block is not None
    if spec.vendor == "amd":
        return [
            "With VLLM_ROCM_USE_AITER or SGLANG_USE_AITER the server takes AITER's kernels and never reads the file."
        ]
    if isinstance(shape, Experts) and shape.dtype == "int4_w4a16":
        flag = "--moe-backend triton" if server == "vllm" else "--quantization moe_wna16"
        return [f"Marlin's kernels come before Triton's for weights of 4 bits: the file is read with {flag}."]
    if isinstance(shape, Product):
        return (
            ["DeepGEMM and CUTLASS come before Triton for block-scaled products from sm_90 on: the file is read only "
             "where they are absent or turned off (VLLM_USE_DEEP_GEMM=0; SGLang: SGLANG_ENABLE_JIT_DEEPGEMM=0)."]
            if capability >= 9.0 else []
        )  # fmt: skip
    if server == "vllm" and capability >= 10.0:
        return [
            "vLLM prefers FlashInfer's and DeepGEMM's experts on sm_100: the file is read with --moe-backend triton."
        ]
    if server == "vllm" and capability >= 9.0 and scaled:
        return ["vLLM takes Triton with tensor parallelism, but FlashInfer's CUTLASS kernels with expert parallelism."]
    if server == "vllm" and capability >= 9.0 and shape.dtype == "fp8_w8a8":
        return ["vLLM prefers FlashInfer or CUTLASS where they are installed: --moe-backend triton reads the file."]
    if server == "sglang" and capability >= 9.0 and scaled:
        return ["SGLang takes DeepGEMM where it is installed: the file is read with --moe-runner-backend triton."]
    return []

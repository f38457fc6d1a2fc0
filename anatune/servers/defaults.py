"""The tiles that servers use without a file, and the other kernels that they may prefer.

Source: vLLM 0.33 (``fused_moe.get_default_config``, ``fused_moe/oracle``), SGLang 0.5.23 (the same name, ``fp8.py``).
"""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec
from anatune.servers.names import Server
from anatune.servers.shapes import Experts, Product

Tile = tuple[int, int, int, int, int, int, int]
"""The values of block_m, block_n, block_k, num_warps, num_stages, split_k, group_m (`tiles.TILE_FIELDS`)."""
FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages", "SPLIT_K", "GROUP_SIZE_M")
"""The names of the values in files."""

_SMALL_SHARED_BYTES = 128 << 10


def default_tile(server: Server, shape: Experts | Product, tokens: int, spec: GpuSpec) -> Tile:
    """Return the tile that a server uses for a number of rows if it has no file."""
    amd = spec.vendor == "amd"
    if isinstance(shape, Product):
        return 64, shape.block[0], shape.block[1], 4, 2 if server == "vllm" else 3, 1, 32
    values = _default_of_vllm(shape, tokens, amd) if server == "vllm" else _default_of_sglang(shape, tokens, spec)
    return (*values[:4], 2 if amd else values[4], 1, values[5])


def _default_of_vllm(shape: Experts, tokens: int, amd: bool) -> tuple[int, int, int, int, int, int]:
    """Return block_m, block_n, block_k, warps, stages, group_m."""
    if shape.block is not None and shape.dtype == "fp8_w8a8":
        few = tokens <= 8 and not amd and shape.block[0] % 64 == 0
        stages = 4 if few and tokens <= 4 else 3
        rows, group = (16 if tokens <= 64 else 64), (1 if tokens <= 16 else 32)
        return rows, 64 if few else shape.block[0], shape.block[1], 4, stages, group
    if shape.group:
        # with few rows for each expert, block_m is that of a CUDA kernel, which servers today use only after Triton's
        few = shape.dtype == "int4_w4a16" and tokens * shape.top_k <= 6 * shape.experts and not amd
        rows = 16 if few or tokens <= 20 else 32 if tokens <= 40 else 64
        return rows, *((32, 64) if tokens == 1 else (64, 32)), 4, 3, 1
    rows = next((rows for most, rows in ((32, 16), (96, 32), (512, 64)) if tokens <= most), 128)
    depth = 128 if shape.dtype == "fp8_w8a8" or tokens <= 64 else 64
    group = 16 if tokens // shape.experts > 128 else 1
    return rows, 64 if tokens <= 64 else 128, depth, 4 if tokens <= 128 else 8, 4 if tokens <= 32 else 3, group


def _default_of_sglang(shape: Experts, tokens: int, spec: GpuSpec) -> tuple[int, int, int, int, int, int]:
    few = tokens <= shape.experts
    if shape.dtype != "fp8_w8a8":  # warps and stages are Triton's defaults
        return (16, 32, 64, 4, 3, 1) if few else (64, 64, 32, 4, 3, 8)
    if shape.block is not None:
        return 64, shape.block[0], shape.block[1], 4, 3, 32
    if spec.shared_memory.per_block_bytes < _SMALL_SHARED_BYTES:
        return (32, 64, 256, 4, 4, 1) if few else (64, 128, 256, 4, 2, 64)
    return (64, 128, 128, 4, 4, 1) if few else (128, 256, 128, 8, 4, 32)


def rivals(server: Server, shape: Experts | Product, spec: GpuSpec) -> list[str]:
    """Return sentences about other kernels that the server may use, which do not read the file."""
    capability = spec.compute_capability or 0.0
    scaled = shape.dtype == "fp8_w8a8" and shape.block is not None
    if spec.vendor == "amd":
        return ["With VLLM_ROCM_USE_AITER or SGLANG_USE_AITER, the server uses AITER's kernels without the file."]
    if isinstance(shape, Experts) and shape.dtype == "int4_w4a16":
        flag = "--moe-backend triton" if server == "vllm" else "--quantization moe_wna16"
        return [f"The server prefers Marlin's kernels for weights of 4 bits. It reads the file with {flag}."]
    if isinstance(shape, Product):
        return (
            ["Servers prefer DeepGEMM and CUTLASS for block-scaled products from sm_90 on. They read the file only if "
             "they are missing or turned off (VLLM_USE_DEEP_GEMM=0; SGLang: SGLANG_ENABLE_JIT_DEEPGEMM=0)."]
            if capability >= 9.0 else []
        )  # fmt: skip
    if server == "vllm" and capability >= 10.0:
        return ["vLLM prefers FlashInfer's and DeepGEMM's experts on sm_100; --moe-backend triton reads the file."]
    if server == "vllm" and capability >= 9.0 and scaled:
        return ["vLLM uses Triton with tensor parallelism, but FlashInfer's CUTLASS kernels with expert parallelism."]
    if server == "vllm" and capability >= 9.0 and shape.dtype == "fp8_w8a8":
        return ["vLLM prefers FlashInfer or CUTLASS if installed; --moe-backend triton reads the file."]
    if server == "sglang" and capability >= 9.0 and scaled:
        return ["SGLang uses DeepGEMM if it is installed. It reads the file with --moe-runner-backend triton."]
    return []

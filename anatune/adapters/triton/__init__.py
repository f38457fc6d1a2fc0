"""Triton: ``@triton.autotune`` measures only the best predicted configurations of matmul-like kernels.

``prune_configs_by=matmul_pruner(hw="auto", keep=8)`` keeps the eight configurations with the smallest predicted times,
always including the caller's first one. `attention_pruner` does the same for attention, and `moe_pruner` for the matrix
products of experts. `configs_for` proposes configurations for a product. These functions need no GPU before the first
call, and import Triton only when they need it.
"""

from anatune.adapters.triton.attention import AttentionPruner, attention_pruner
from anatune.adapters.triton.configs import config_lines, configs_for
from anatune.adapters.triton.experts import MoePruner, moe_pruner
from anatune.adapters.triton.pruner import MatmulPruner, matmul_pruner

__all__ = [
    "AttentionPruner",
    "MatmulPruner",
    "MoePruner",
    "attention_pruner",
    "config_lines",
    "configs_for",
    "matmul_pruner",
    "moe_pruner",
]

"""Triton: ``@triton.autotune`` measures only the configurations that deserve it, for matmul-like kernels.

``prune_configs_by=matmul_pruner(hw="auto", keep=8)`` leaves the eight of smallest predicted time, the caller's first
configuration among them; `attention_pruner` does it for attention, `moe_pruner` for the products of experts;
`configs_for` proposes configurations that nobody has listed. None of them needs a GPU before the first call, nor
imports Triton before it has to.
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

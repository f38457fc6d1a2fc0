"""Types of packages that may be missing, for annotations: type checkers import them, at run time the names are None."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = [
    "Arithmetic", "ExportedProgram", "TorchArgument", "TorchSize", "TorchTensor", "fx", "ir", "ms", "nn", "onnx",
    "sympy", "tirx", "torch", "tvm", "tvm_ffi",
]  # fmt: skip

if TYPE_CHECKING:
    import onnx
    import sympy
    import torch
    import tvm
    import tvm_ffi
    from torch import Tensor as TorchTensor
    from torch import fx, nn
    from torch.export import ExportedProgram
    from tvm import ir, tirx
    from tvm.s_tir import meta_schedule as ms

    TorchSize: TypeAlias = int | torch.SymInt
    TorchArgument: TypeAlias = TorchTensor | torch.SymInt
else:
    ExportedProgram = TorchArgument = TorchSize = TorchTensor = None
    fx = ir = ms = nn = onnx = sympy = tirx = torch = tvm = tvm_ffi = None

TvmObject = Any
TorchObject = Any
OnnxObject = Any
Arithmetic = Any
"""Numbers, and expressions of TVM and PyTorch, which can be added, multiplied and divided."""

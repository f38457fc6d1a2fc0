"""Objects of packages that have no types, or need not be there: their names say whose they are."""

from __future__ import annotations

from typing import Any

__all__ = ["Arithmetic", "OnnxObject", "TorchObject", "TvmObject"]

TvmObject = Any
"""The package tvm, or whatever it makes."""
TorchObject = Any
"""The package torch, or whatever it makes: modules, programs, nodes of their graphs, tensors."""
OnnxObject = Any
"""The package onnx, or whatever it makes: models, nodes, their attributes."""
Arithmetic = TvmObject
"""What can be added, multiplied and divided: numbers, expressions of TVM's or PyTorch's."""
